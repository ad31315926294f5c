"""Who may write a slot: one request alone, into a block that is not published, where its table says.

Realises: KV-BLOCK-020 token-slot, KV-BLOCK-022 write-private, KV-BLOCK-043 use-after-free, KV-BLOCK-045
write-published.
For porters: a wrong write is told, and then done: what it overwrote is wrong from now on.
Source: the chapter on memory, histories.
"""

from kvref.sanitizer.requests import Request
from kvref.sanitizer.shadow import Block, Name
from kvref.sanitizer.state import State


def judge_write(
    state: State, line: int, request: Request, block: int, known: Block, lo: int, hi: int
) -> None:
    """Report a write into a block that others hold, that is published, or that is arriving."""
    doing = f"request {request.name} writes"
    fresh = known.covered(lo, hi) == lo and known.at(hi - 1) is None
    if state.scheduled and known.allocated_by == request.name and fresh:
        return  # others may have found the block before this request computes it
    if known.published and lo < known.findable:
        overwritten(state, line, doing, block, known)
    elif known.refs - known.pins > 1:
        if not known.published:
            overwritten(state, line, doing, block, known)
        elif not known.disputed:
            facts = known.facts(block, "allocated", "held", "published")
            message = f"{doing} into block {block}, which {known.refs - known.pins} requests hold"
            state.report("KV-BLOCK-022", line, message, facts)
    else:
        return
    state.changed(block)


def overwritten(state: State, line: int, doing: str, block: int, known: Block) -> None:
    """Report that a block is written which others hold, or which is published."""
    if known.published:
        facts = known.facts(block, "published", "written")
        state.report("KV-BLOCK-045", line, f"{doing} into block {block}, which is published", facts)
    elif not known.disputed:
        facts = known.facts(block, "allocated", "held", "written")
        who = names([r.name for r in state.holders(block)])
        state.report("KV-BLOCK-022", line, f"{doing} into block {block}, held by {who}", facts)


def write_slots(state: State, line: int, request: Request, group: int, start: int, slots: list[int]) -> None:
    """Write positions from `start` on into the slots that a kernel was told."""
    size, table, told = state.sizes[group], request.tables[group], False
    for position, slot in enumerate(slots, start):
        block, offset = divmod(slot, size)
        known = state.block(block, line, "write") if slot >= 0 else None
        if known is None:
            continue
        index = position // size
        expected = table[index] * size + position % size if index < len(table) else -1
        if slot != expected and not told:
            told = True
            _wrong_slot(state, line, request, position, block, known, slot, expected)
        if slot == expected and (known.refs > 1 or known.published):
            judge_write(state, line, request, block, known, offset, offset + 1)
        known.owner = None
        known.write(offset, offset + 1, position - offset, request.labels, request.name, line)
        if slot != expected:
            state.changed(block)


def slots_of(blocks: list[int], start: int, stop: int, size: int) -> list[int]:
    """Return the slots of positions by the blocks that a kernel was told, the first for `start`."""
    first = start // size
    return [
        blocks[p // size - first] * size + p % size if p // size - first < len(blocks) else -1
        for p in range(start, stop)
    ]


def _wrong_slot(
    state: State,
    line: int,
    request: Request,
    position: int,
    block: int,
    known: Block,
    slot: int,
    expected: int,
) -> None:
    holders = [r.name for r in state.holders(block)]
    doing = f"request {request.name} writes position {position} into slot {slot} of block {block}"
    facts = known.facts(block, "allocated", "held", "freed", "written")
    if not holders:
        state.report("KV-BLOCK-043", line, f"{doing}, which nobody holds", facts)
    elif request.name not in holders:
        state.report("KV-BLOCK-022", line, f"{doing}, held by {names(holders)}", facts)
    else:
        by_table = (
            f"by its table it lies in slot {expected}" if expected >= 0 else "its table has no block for it"
        )
        state.report("KV-BLOCK-020", line, f"{doing}, but {by_table}", facts)


def names(holders: list[Name]) -> str:
    """Say who holds a block, a few of them if they are many."""
    named = " and ".join(f"request {name}" for name in holders[:4]) or "nobody"
    return named if len(holders) < 5 else f"{named} and {len(holders) - 4} others"
