"""What a snapshot cache says is cached, held to what it may hit and to what it must."""

from typing import TYPE_CHECKING

from kvref_conformance.programs.prompts import APART, Prompt
from kvref_conformance.programs.state_cells import ZEROS

if TYPE_CHECKING:
    from kvref_conformance.programs.watched_snapshots import WatchedSnapshots

#: What a slot of the blocks holds, as of a prefix cache -> what that is in a cache that keeps states too.
OF_BLOCKS = {
    "KV-PREFIX-005": "KV-SNAP-006",
    "KV-PREFIX-015": "KV-SNAP-020",
    "KV-PREFIX-021": "KV-SNAP-016",
    **{requirement: "KV-SNAP-019" for _, requirement in APART},
}


def judge_hit(
    cache: "WatchedSnapshots", said: str, prompt: Prompt, hit: int, slots: list[int], source: int
) -> None:
    """Hold the length of a hit, its blocks and its state to the requirements."""
    count = len(prompt.tokens)
    if not 0 <= hit < count:
        cache.log.breach(f"{said} of {count}, expected at most {count - 1}", "KV-SNAP-008")
    hit = max(0, min(hit, count))
    fine = _judge_blocks(cache, said, prompt, hit, slots)
    fine &= _judge_state(cache, said, prompt, hit, source)
    if fine:
        _judge_shortfall(cache, said, prompt, hit)


def blame_block(cache: "WatchedSnapshots", slot: int, prompt: Prompt, at: int) -> tuple[str, str] | None:
    """Return the requirement that a reader of a slot breaches, and what it finds; None if all is well."""
    blamed = cache.cells.blame(slot, prompt, at)
    if blamed is None:
        return None
    if prompt.labels[at] in cache.states.rejected:
        return "KV-SNAP-015", blamed[1]
    lost = "KV-SNAP-022" if cache.window else "KV-SNAP-003"
    if slot < 0:
        return lost, "nothing: it is null"
    return OF_BLOCKS.get(blamed[0], lost), blamed[1]


def _judge_blocks(cache: "WatchedSnapshots", said: str, prompt: Prompt, hit: int, slots: list[int]) -> bool:
    wrong: set[str] = set()
    for at in range(cache.ledger.first_seen(hit), min(hit, len(slots))):
        blamed = blame_block(cache, slots[at], prompt, at)
        if blamed is not None and blamed[0] not in wrong:
            wrong.add(blamed[0])
            where = f"position {at} (block {cache.block(slots[at])}, slot {slots[at] % cache.block_size})"
            cache.log.breach(f"{said}: {where} holds {blamed[1]}", blamed[0])
    return not wrong


def _judge_state(cache: "WatchedSnapshots", said: str, prompt: Prompt, hit: int, source: int) -> bool:
    if hit == 0:
        if source != ZEROS:
            cache.log.breach(f"{said} and starts from state slot {source}, expected zeros", "KV-SNAP-007")
        return source == ZEROS
    if source == ZEROS:
        cache.log.breach(f"{said} and starts from zeros", "KV-SNAP-003", "KV-SNAP-007")
        return False
    blamed = cache.states.blame(source, prompt, hit)
    if blamed is not None:
        cache.log.breach(f"{said} and starts from state slot {source}: it holds {blamed[1]}", blamed[0])
    return blamed is None


def _judge_shortfall(cache: "WatchedSnapshots", said: str, prompt: Prompt, hit: int) -> None:
    due = cache.ledger.due(prompt)
    if hit >= due:
        return
    known = cache.ledger.at(prompt, due)
    if cache.told.refused_reset:
        requirement, why = "KV-SNAP-020", "a reset was refused"
    elif cache.told.refused_admission:
        requirement, why = "KV-SNAP-017", "a request was refused"
    elif cache.ledger.forced_blocks and cache.window:
        requirement, why = "KV-SNAP-022", "the blocks that are seen and the state lie where they were"
    elif cache.ledger.is_forced:
        requirement, why = "KV-SNAP-012", "its blocks and its state lie where they were"
    elif known.is_junction:
        requirement, why = "KV-SNAP-013", "a request parted there"
    elif not prompt.given.is_plain:
        requirement, why = "KV-SNAP-019", "its namespace has been seen"
    else:
        requirement, why = "KV-SNAP-014", "nothing has been evicted"
    cache.log.breach(f"{said}, expected {due}: {why}", requirement)
