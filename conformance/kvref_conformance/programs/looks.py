"""What is looked at after every operation on a prefix cache: the slots of each request, and the count."""

from typing import TYPE_CHECKING, Any

from kvref_conformance.contracts import Failed
from kvref_conformance.programs.running import ask_if_offered

if TYPE_CHECKING:
    from kvref_conformance.programs.watched_cache import WatchedCache

#: Requirements about an operation that must change nothing, slots included.
UNCHANGED = ("KV-PREFIX-015", "KV-PREFIX-019", "KV-PREFIX-027")


def look_at_slots(cache: "WatchedCache", request: int, counts: str) -> None:
    """Hold every slot that has moved to hold what belongs there, and follow it. Raises: Stop."""
    one = cache.live[request]
    requirement = counts if counts in UNCHANGED else "KV-PREFIX-026"
    told = _ask(cache, requirement, "slots", "slots", request=request)
    if told is None or told == one.slots:
        return
    if len(told) != len(one.slots):
        cache.stop(f"slots({request}) are {len(told)}, expected {len(one.slots)}", requirement)
    for at, (slot, known) in enumerate(zip(told, one.slots, strict=True)):
        wrong = cache.cells.blame(slot, one.prompt, at) if slot != known else None
        if wrong is not None:
            also = ["KV-PREFIX-020"] if cache.is_twice(one.prompt, at) else []
            where = f"slots({request}) moved position {at} to slot {slot}"
            cache.stop(f"{where}: it holds {wrong[1]}", requirement, *also)
    one.slots = list(told)


def look_at_count(cache: "WatchedCache", requirement: str) -> None:
    """Hold the count of free blocks to what requests hold; a difference is told when it changes."""
    told = _ask(cache, requirement, "num_free", "num_free_blocks")
    if told is None:
        return
    copying = sum(one.copying for one in cache.live.values())  # the block that is copied may be held as well
    drift = max(told - cache.free, 0) + min(told - cache.free + copying, 0)
    if drift and drift != cache.drift:
        said = f"num_free() = {told}, expected {cache.free}"
        also = ["KV-PREFIX-020"] if cache.twice else []
        held = len(cache.held())
        cache.log.breach(f"{said}: requests hold {held} of {cache.capacity} blocks", requirement, *also)
    cache.drift = drift


def _ask(cache: "WatchedCache", requirement: str, operation: str, gives: str, **arguments: Any) -> Any:
    """Return one thing that an operation gives, None if it is not offered. Raises: Stop if it is refused."""
    try:
        return ask_if_offered(cache.session, operation, gives, **arguments)
    except Failed as failed:
        if failed.kind not in ("refused", "error"):
            raise
        cache.stop(f"{operation}({', '.join(map(str, arguments.values()))}): {failed}", requirement)
