"""What `kvref size` says of one stage of a pipeline, and of what an allocator adds."""

from typing import TYPE_CHECKING, Any

from kvref.errors import ArgumentError, shown

if TYPE_CHECKING:
    from kvref.planning.groups import CacheGeometry

#: Tokens that a block is a multiple of, for latent attention and for others.
OF_LATENT, OF_HEADS = 128, 16


def staged(
    found: "CacheGeometry", stages: str | None, stage: int | None, tokens: int, form: str
) -> tuple["CacheGeometry", dict[str, Any] | None]:
    """Return the geometry of a stage, the one asked for or that which keeps most, and what there is of all.

    Raises: ArgumentError if the text is no division of the layers, or the stage is not there.
    """
    from kvref.planning.stages import geometry_of_stage

    if stages is None:
        if stage is not None:
            raise ArgumentError(f"stage = {stage}, expected --pp with it")
        return found, None
    rows, each, first = [], [], 0
    for count in _counts(stages, found.num_layers // found.attentions):
        each.append(geometry_of_stage(found, first, count))
        rows.append({"first_layer": first, "num_layers": count, "bytes": _kept(each[-1], tokens, form)})
        first += count
    own = max(range(len(rows)), key=lambda i: rows[i]["bytes"]) if stage is None else stage
    if own >= len(rows):
        raise ArgumentError(f"stage = {own}, expected one of {len(rows)} stages, from 0")
    return each[own], {"stage": own, "stages": rows}


def allocated(found: "CacheGeometry", tokens: int, form: str) -> dict[str, Any] | None:
    """Return what a manager of equal blocks takes; None where layers are laid out in other ways."""
    from kvref.planning.allocation import allocation_of

    latent = any(group.kind == "latent" for group in found.groups)
    taken = allocation_of(found, tokens, form, block_size=OF_LATENT if latent and found.states else OF_HEADS)
    if taken is None:
        return None
    return {
        "group_size": taken.group_size,
        "part_bytes": taken.part_bytes,
        "block_bytes": taken.block_bytes,
        "bytes_per_token": float(taken.bytes_per_token),
        "state_bytes": taken.state_bytes,
        "bytes": taken.bytes,
        "tables": [vars(table) for table in taken.tables],
    }


def _counts(stages: str, num_layers: int) -> tuple[int, ...]:
    """How many layers each stage has, by their number or by a list."""
    from kvref.planning.stages import stages_of

    words = stages.split(",")
    if not all(word.isascii() and word.isdigit() and int(word) for word in words):
        raise ArgumentError(
            f"pp = {shown(stages)}, expected a number of stages, or of layers for each: 20,20,21"
        )
    counts = tuple(int(word) for word in words)
    if len(counts) == 1:
        return stages_of(num_layers, counts[0])
    if sum(counts) != num_layers:
        raise ArgumentError(f"pp = {shown(stages)}, {sum(counts)} layers, expected all {num_layers}")
    return counts


def _kept(stage: "CacheGeometry", tokens: int, form: str) -> int:
    return stage.kv_bytes(tokens, form) + stage.snapshot_bytes
