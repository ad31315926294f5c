"""Slots that a prefix cache gives out for writing, held to what they may be."""

from typing import TYPE_CHECKING

from kvref_conformance.programs.breach import Stop

if TYPE_CHECKING:
    from kvref_conformance.programs.watched_cache import WatchedCache


def judge_writes(cache: "WatchedCache", said: str, request: int, slots: list[int]) -> None:
    """Hold new slots to be in the pool, nobody else's, and of no published block. Raises: Stop."""
    own = cache.live[request]
    wrong = _foreign(cache, slots) or _repeated(cache, request, slots) or _held(cache, request, slots)
    if wrong:
        cache.log.breach(f"{said} and gives {wrong[0]}", *wrong[1:])
        raise Stop
    new = {cache.block(slot) for slot in slots} - {cache.block(slot) for slot in own.slots}
    _judge_order(cache, said, new)


def _foreign(cache: "WatchedCache", slots: list[int]) -> tuple[str, ...]:
    for slot in slots:
        block = cache.block(slot)
        if not cache.null <= block < cache.num_blocks:
            return f"slot {slot}, which is in no block of the pool", "KV-PREFIX-028"
    return ()


def _repeated(cache: "WatchedCache", request: int, slots: list[int]) -> tuple[str, ...]:
    """Find a slot, or a published block, that the request itself has already."""
    own = cache.live[request]
    known = {slot: at for at, slot in enumerate(own.slots)}
    full = own.hit - own.hit % cache.block_size
    hits = {cache.block(slot) for slot in own.slots[:full]}
    for at, slot in enumerate(slots, len(own.slots)):
        if known.setdefault(slot, at) != at:
            requirement = "KV-PREFIX-016" if known[slot] < own.hit else "KV-PREFIX-028"
            said = f"slot {slot} for position {at}, which is position {known[slot]} as well"
            return said, requirement, *_after_abort(cache, slot)
        if cache.block(slot) in hits:
            return f"slot {slot} for position {at}, in a block of its hit", "KV-PREFIX-028"
    return ()


def _held(cache: "WatchedCache", request: int, slots: list[int]) -> tuple[str, ...]:
    """Find a slot that another request holds: evicted if it is published and gets other contents."""
    own = cache.live[request]
    wanted = {slot: at for at, slot in enumerate(slots, len(own.slots))}
    for other, one in cache.live.items():
        for at, slot in enumerate(one.slots if other != request else []):
            if slot not in wanted:
                continue
            end = at - at % cache.block_size + cache.block_size - 1
            published = end < len(one.prompt.labels) and one.prompt.labels[end] in cache.ledger.entries
            same = own.prompt.labels[wanted[slot]] == one.prompt.labels[at]
            requirement = "KV-PREFIX-016" if published and not same else "KV-PREFIX-028"
            also = ("KV-PREFIX-020",) if cache.is_twice(one.prompt, at) else ()
            said = f"slot {slot}, position {at} of request {other}"
            return said, requirement, *also, *_after_abort(cache, slot)
    return ()


def _after_abort(cache: "WatchedCache", slot: int) -> tuple[str, ...]:
    cell = cache.cells.at(slot)
    return ("KV-PREFIX-021",) if cell is not None and cell.aborted else ()


def _judge_order(cache: "WatchedCache", said: str, new: set[int]) -> None:
    """Hold evictions to the rule that no prefix goes before a longer one."""
    if cache.claims.choice("eviction-order") not in ("lru_tail_first", "unspecified"):
        return
    for block in sorted(new):
        last = block * cache.block_size + cache.block_size - 1
        cell = cache.cells.at(last)
        if cell is None or not cell.written or cell.aborted or cell.epoch != cache.cells.epoch:
            continue
        if cache.ledger.orphans(cell.label, last, cache.cells, new):
            message = f"{said} and evicts block {block}, {cell}, before what follows it"
            cache.log.breach(message, "KV-PREFIX-023")
            return
