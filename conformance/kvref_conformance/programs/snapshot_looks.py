"""What is looked at after every operation on a snapshot cache: slots of each request, and both counts."""

from typing import TYPE_CHECKING, Any

from kvref_conformance.contracts import Failed
from kvref_conformance.programs.running import ask_if_offered
from kvref_conformance.programs.snapshot_hits import blame_block

if TYPE_CHECKING:
    from kvref_conformance.programs.watched_snapshots import WatchedSnapshots

NULL = -1


def look_at_slots(cache: "WatchedSnapshots", request: int, requirement: str) -> None:
    """Hold every slot that has moved to hold what belongs there, and follow it. Raises: Stop."""
    one = cache.live[request]
    told = _ask(cache, requirement, "slots", "slots", request=request)
    if told is None or told == one.slots:
        return
    if len(told) != len(one.slots):
        cache.stop(f"slots({request}) are {len(told)}, expected {len(one.slots)}", requirement)
    first = cache.ledger.first_seen(one.computed)
    for at, (slot, known) in enumerate(zip(told, one.slots, strict=True)):
        if slot == known or (slot == NULL and at < first):
            continue
        wrong = blame_block(cache, slot, one.prompt, at)
        if wrong is not None:
            where = f"slots({request}) moved position {at} to slot {slot}"
            cache.stop(f"{where}: it holds {wrong[1]}", requirement)
    one.slots = list(told)


def look_at_blocks(cache: "WatchedSnapshots", requirement: str) -> None:
    """Hold the count of free blocks to what requests hold; a difference is told when it changes."""
    least, most = len(cache.held_blocks()), len(cache.held_blocks(most=True))
    if cache.shared:
        more = cache.count_held_states()
        least, most = least + more[0], most + more[1]
    _look(cache, requirement, "num_free", "num_free_blocks", cache.capacity, least, most)


def look_at_states(cache: "WatchedSnapshots", requirement: str) -> None:
    """The same of state slots."""
    if not cache.shared:
        least, most = cache.count_held_states()
        _look(cache, requirement, "num_free_states", "num_free_states", cache.num_states, least, most)


def _look(
    cache: "WatchedSnapshots", requirement: str, operation: str, gives: str, total: int, least: int, most: int
) -> None:
    told = _ask(cache, requirement, operation, gives)
    if told is None:
        return
    low, high = total - most, total - least
    drift = max(told - high, 0) + min(told - low, 0)
    if drift and drift != cache.drift[operation]:
        due = f"{low}" if low == high else f"{low} to {high}"
        held = f"{least}" if least == most else f"{least} to {most}"
        said = f"{operation}() = {told}, expected {due}: requests hold {held} of {total}"
        cache.log.breach(said, requirement)
    cache.drift[operation] = drift


def _ask(cache: "WatchedSnapshots", requirement: str, operation: str, gives: str, **arguments: Any) -> Any:
    """Return one thing that an operation gives, None if it is not offered. Raises: Stop if it is refused."""
    try:
        return ask_if_offered(cache.session, operation, gives, **arguments)
    except Failed as failed:
        if failed.kind not in ("refused", "error"):
            raise
        cache.stop(f"{operation}({', '.join(map(str, arguments.values()))}): {failed}", requirement)
