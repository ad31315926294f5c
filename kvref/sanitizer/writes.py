"""Who may write a slot: one request alone, into a block that is not published, where its table says.

Realises: KV-BLOCK-020 token-slot, KV-BLOCK-022 write-private, KV-BLOCK-043 use-after-free, KV-BLOCK-045
write-published.
For porters: a wrong write is told, and then done: what it overwrote is wrong from now on.
Source: the chapter on memory, histories.
"""

from kvref.errors import HistoryError
from kvref.memory.history import Event
from kvref.sanitizer.requests import Request
from kvref.sanitizer.shadow import Block, Name
from kvref.sanitizer.state import State, ids


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
    state.changed([block])


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
    foreign, strays = set[int](), set[int]()
    for position, slot in enumerate(slots, start):
        block, offset = divmod(slot, size)
        if slot < 0 or block in foreign:
            continue
        known = state.block(block, line, "write", request.name)
        if known is None:
            foreign.add(block)
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
            strays.add(block)
    state.changed(strays)


def told_slots(state: State, line: int, request: Request, event: Event, size: int, stop: int) -> list[int]:
    """Return the slots that a kernel was told for tokens up to `stop`, and report too few or too many."""
    start = event["start"]
    if "slots" not in event:
        blocks, first = told_blocks(state, line, request, event, size), start // size
        stop = min(stop, (first + len(blocks)) * size)
        return [blocks[p // size - first] * size + p % size for p in range(start, stop)]
    slots = ids(event, "slots")
    if len(slots) != event["count"]:
        message = f"request {request.name} writes {event['count']} tokens, but {len(slots)} slots are told"
        state.report("KV-BLOCK-020", line, message, request.facts())
    return slots[: max(0, stop - start)]


def told_blocks(state: State, line: int, request: Request, event: Event, size: int) -> list[int]:
    """Return the blocks that a kernel was told, the first for `start`, and report too few of them.

    Raises: HistoryError if they are too many: then a count is not in tokens.
    """
    start, stop, blocks = event["start"], event["start"] + event["count"], ids(event)
    needed = -(-stop // size) - start // size if stop > start else 0
    if needed < len(blocks):
        raise HistoryError(
            f"{event['event']}.count = {event['count']}, which fill {needed} blocks of {size}, "
            f"but {event['event']}.blocks names {len(blocks)}; a count is in tokens"
        )
    if needed > len(blocks):
        message = (
            f"request {request.name} {event['event']}s positions {start} to {stop - 1}, "
            f"in {needed} blocks of {size}, but {len(blocks)} are told"
        )
        state.report("KV-BLOCK-020", line, message, request.facts())
    return blocks


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
