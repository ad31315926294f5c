"""`kvref size`: how many bytes a model keeps of a request, layer by layer, from its config."""

import json
from fractions import Fraction
from os.path import isfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvref.cli.errors import friendly
from kvref.errors import ConfigError, shown

if TYPE_CHECKING:
    from kvref.planning.groups import CacheGeometry, LayerGroup

#: Tokens of the request if none are given, unless the model takes fewer.
CONTEXT = 32_768
#: Names that are near to one that is not there.
NEAR = 5


@click.command()
@click.argument("model", required=False)
@click.option("--context", type=click.IntRange(1, 2**40), metavar="TOKENS", help="Tokens of the request.")
@click.option(
    "--format",
    "form",
    default="bfloat16",
    show_default=True,
    metavar="NAME",
    help="What entries are kept in.",
)
@click.option(
    "--tp",
    "tensor_parallel",
    type=click.IntRange(1, 4096),
    default=1,
    metavar="RANKS",
    help="Say what one of so many ranks keeps.",
)
@click.option(
    "--dp-attention",
    type=click.IntRange(1, 4096),
    default=1,
    metavar="GROUPS",
    help="Groups of these ranks share out the requests.",
)
@click.option("--pp", "stages", metavar="STAGES", help="Stages of a pipeline: how many, or 20,20,21 layers.")
@click.option("--stage", type=click.IntRange(0), metavar="STAGE", help="Which; else that which keeps most.")
@click.option("--as", "read_as", metavar="TYPE", help="Read the config as one of this model type.")
@click.option("--drafts", is_flag=True, help="Count the layers that draft, too.")
@click.option("--compare", is_flag=True, help="Compare all models of the catalogue at one context.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@friendly
def size(model: str | None, as_json: bool, compare: bool, read_as: str | None, **options: Any) -> None:
    """Size the cache of MODEL: a name of the catalogue, or a config.json.

    For each group of layers: what it keeps, which key of the config decided that, and what it takes. Windows,
    recurrent states and layers that draft are apart.
    """
    from kvref.cli.size_text import spelled, spelled_comparison

    if compare:
        others = (model, read_as, options["stages"], options["stage"], options["drafts"] or None)
        ranks = options["tensor_parallel"] * options["dp_attention"]
        if ranks > 1 or any(other is not None for other in others):
            raise click.UsageError("--compare takes --context and --format alone, expected the rest left out")
        data = compared(options["context"] or CONTEXT, options["form"])
        lines = spelled_comparison(data)
    elif model is None:
        raise click.UsageError("expected a MODEL, or --compare")
    else:
        data = sized(geometry_named(model, read_as), **options)
        lines = spelled(data)
    click.echo(json.dumps(data, indent=1) if as_json else "\n".join(lines))


def geometry_named(model: str, read_as: str | None = None) -> "CacheGeometry":
    """Return the geometry of a model of the catalogue, or of a config in a file; `read_as` is its model type.

    Raises: ConfigError; for a name that is not there, with those that are near.
    """
    from kvref.planning.catalog import catalog, config_of
    from kvref.planning.config_files import read_config
    from kvref.planning.geometry import geometry_of

    if model.endswith(".json") or isfile(model):  # a name may be too long for a file
        return geometry_of(read_config(model), Path(model).stem, read_as=read_as)
    names = {name.lower(): name for name in catalog()}
    if model.lower() not in names:
        raise ConfigError(f"model = {shown(model)}{_near(model, names)}, expected a config.json or a name")
    name = names[model.lower()]
    return geometry_of(config_of(name), name, read_as=read_as)


def sized(
    found: "CacheGeometry",
    context: int | None,
    form: str,
    drafts: bool = False,
    tensor_parallel: int = 1,
    dp_attention: int = 1,
    stages: str | None = None,
    stage: int | None = None,
) -> dict[str, Any]:
    """Return what a model, or a rank of it, keeps of a request: groups of layers, sums, warnings.

    Raises: FormatError; ArgumentError if the ranks cannot share out the heads, the requests or the layers.
    """
    from kvref.cli.size_ranks import allocated, staged
    from kvref.planning.ranks import geometry_of_rank

    tokens = context or min(CONTEXT, found.max_context or CONTEXT)
    whole, found = found, geometry_of_rank(found, tensor_parallel, dp_attention=dp_attention)
    keeping = tensor_parallel // dp_attention
    all_ranks = keeping * (found.kv_bytes(tokens, form, drafts=drafts) + found.snapshot_bytes)
    found, pipeline = staged(found, stages, stage, tokens, form)
    grown, held = (
        found.growing_bytes(tokens, form, drafts=drafts),
        found.window_bytes(tokens, form, drafts=drafts),
    )
    warnings = list(found.warnings)
    if found.max_context is not None and tokens > found.max_context:
        warnings.append(f"{tokens} tokens are more than the {found.max_context} that the config names")
    data: dict[str, Any] = {
        "model": found.name,
        "num_layers": found.num_layers,
        "max_context": found.max_context,
        "context": tokens,
        "format": form,
        "tensor_parallel": tensor_parallel,
        "dp_attention": dp_attention,
        "pipeline": pipeline,
        "groups": [group_row(group, tokens, form) for group in found.groups if group.layers],
        "states": [_state_row(state) for state in found.states],
        "drafts": [group_row(group, tokens, form) for group in found.drafts],
        "drafts_counted": drafts,
        "bytes_per_token": number(found.bytes_per_token(form, drafts=drafts)),
        "growing_bytes": grown,
        "window_bytes": held,
        "recurrent_bytes": found.recurrent_bytes,
        "conv_bytes": found.conv_bytes,
        "state_bytes": found.snapshot_bytes,
        "bytes": grown + held + found.snapshot_bytes,
        "snapshot_in_tokens": _in_tokens(found, form),
        "hybrid_block_size": _hybrid_block(found, form),
        "allocator": None if pipeline else allocated(found, tokens, form),
        "ranks_of_a_request": keeping * (len(pipeline["stages"]) if pipeline else 1),
        "bytes_of_all_ranks": all_ranks,
        "bytes_of_model": whole.kv_bytes(tokens, form, drafts=drafts) + whole.snapshot_bytes,
        "warnings": warnings,
    }
    return data


def compared(context: int, form: str) -> dict[str, Any]:
    """Return every model of the catalogue at one context, the largest first.

    A format that cannot hold the entries of a model leaves it out, and is told.
    Raises: FormatError if there is no such format.
    """
    from kvref.errors import FormatError
    from kvref.formats.footprints import form_of
    from kvref.planning.catalog import catalog, geometry_by_name

    form_of(form)
    rows: list[dict[str, Any]] = []
    left_out: list[str] = []
    for name in catalog():
        found = geometry_by_name(name)
        try:
            kv = found.kv_bytes(context, form)
        except FormatError:
            left_out.append(name)
            continue
        rows.append(
            {
                "model": name,
                "bytes_per_token": number(found.bytes_per_token(form)),
                "kv_bytes": kv,
                "state_bytes": found.snapshot_bytes,
                "bytes": kv + found.snapshot_bytes,
                "beyond_context": found.max_context is not None and context > found.max_context,
            }
        )
    rows.sort(key=lambda row: (-row["bytes"], row["model"]))
    return {"context": context, "format": form, "models": rows, "left_out": left_out}


def group_row(group: "LayerGroup", tokens: int, form: str) -> dict[str, Any]:
    """Return what one group of layers keeps."""
    from kvref.planning.groups import entry_bytes

    each = Fraction(entry_bytes(group, form))
    rate = Fraction(0) if group.window is not None else len(group.layers) * each / group.tokens_per_entry
    return {
        "kind": group.kind,
        "layers": list(group.layers),
        "readers": list(group.readers),
        "decided_by": group.decided_by,
        "num_heads": group.num_heads,
        "k_dim": group.k_dim,
        "v_dim": group.v_dim,
        "elements": group.elements,
        "tokens_per_entry": group.tokens_per_entry,
        "window": group.window,
        "bytes_per_token": number(rate),
        "bytes": number(len(group.layers) * group.entries(tokens) * each),
    }


def number(x: "int | Fraction") -> int | float:
    """Return a number as JSON has it: whole where it is."""
    return int(x) if x == int(x) else float(x)


def _state_row(state: Any) -> dict[str, Any]:
    count = len(state.layers)
    return {
        "family": state.family,
        "layers": list(state.layers),
        "decided_by": state.decided_by,
        "recurrent": list(state.recurrent),
        "recurrent_dtype": state.recurrent_dtype,
        "recurrent_bytes": count * state.recurrent_bytes,
        "conv": list(state.conv),
        "conv_dtype": state.conv_dtype,
        "conv_bytes": count * state.conv_bytes,
    }


def _in_tokens(found: "CacheGeometry", form: str) -> float | None:
    """Return for how many tokens entries take the bytes of a snapshot; None where nothing can be compared."""
    if not found.states or not found.bytes_per_token(form):
        return None
    return float(found.snapshot_in_tokens(form))


def _hybrid_block(found: "CacheGeometry", form: str) -> dict[str, int] | None:
    """Return the block size of a hybrid, and of what it is a multiple; None where there is none."""
    from kvref.cli.size_ranks import OF_HEADS, OF_LATENT
    from kvref.planning.ranks import hybrid_block_size

    growing = {group.kind for group in found.groups if group.layers and group.window is None}
    if not growing or not found.states:
        return None
    multiple = OF_LATENT if "latent" in growing else OF_HEADS
    return {"block_size": hybrid_block_size(found, form, multiple=multiple), "multiple": multiple}


def _near(model: str, names: dict[str, str]) -> str:
    from difflib import get_close_matches

    low = model.lower()
    near = [names[n] for n in names if low and low in n][:NEAR] or [
        names[n] for n in get_close_matches(low, names, NEAR, 0.5)
    ]
    return f" (did you mean {' or '.join(near)}?)" if near else ""
