"""Events of blocks and tables: handed out, let go, pinned, copied, replaced.

Realises: KV-BLOCK-001 alloc-distinct, KV-BLOCK-005 last-holder, KV-BLOCK-006 double-free, KV-BLOCK-011
fenced-free, KV-BLOCK-012 pinned-stays, KV-PREFIX-016 held-not-evicted.
For porters: a block that is handed out while held has two holders from then on, as it has in the engine.
Source: the chapter on memory, histories.
"""

from kvref.errors import HistoryError
from kvref.memory.history import Event
from kvref.sanitizer.requests import Request
from kvref.sanitizer.shadow import Block
from kvref.sanitizer.state import State, ids
from kvref.sanitizer.tables import FEW
from kvref.sanitizer.writes import names, overwritten

#: How many tokens of neighbouring blocks share the labels that are kept of them.
_TOGETHER = 128


def allocate(state: State, line: int, event: Event) -> None:
    """`allocate`: free blocks join the end of a table."""
    request = state.request(event["request"], line, "blocks")
    if request is None:
        return
    table, who = request.tables[state.group(event) if "group" in event else 0], request.name
    blocks, held, given = state.blocks, 0, ids(event)
    state.count_entries(len(given))
    told, taken = set[str](), list[int]()
    for block in given:
        known = blocks.get(block)
        if known is None:
            known = state.block(block, line, "allocate", who)
            if known is None:
                state.entries -= 1
                continue
        if known.refs or known.fences:
            taken += [block] if known.refs else []
            _judge_free(state, line, request, block, known, told)
        held += not known.refs
        known.refs += 1
        known.hand_out(line, who)
        table.append(block)
        request.holds += 1
    state.held += held
    state.changed(taken)


def free(state: State, line: int, event: Event) -> None:
    """`free`: a request lets go of the blocks that are named, or of all it has."""
    request = state.requests.get(event["request"])
    if request is None:
        _unknown(state, line, event)
        return
    request.tail = None
    if "blocks" in event:
        _free_some(state, line, request, ids(event))
    else:
        _free_all(state, line, request)
    request.freed = line
    state.forget(request)


def pin(state: State, line: int, event: Event) -> None:
    """`pin`: blocks are kept from being free."""
    for block in ids(event):
        known = state.block(block, line, "pin")
        if known is not None:
            state.held += not known.refs
            known.refs += 1
            known.pins += 1
            known.pinned, known.owner = line, None


def unpin(state: State, line: int, event: Event) -> None:
    """`unpin`: one pin of each block is taken back."""
    for block in ids(event):
        known = state.block(block, line, "unpin")
        if known is None:
            continue
        if not known.pins:
            facts = known.facts(block, "pinned", "freed")
            state.report("KV-BLOCK-012", line, f"block {block} is unpinned more often than pinned", facts)
            continue
        known.pins -= 1
        known.refs -= 1
        state.held -= not known.refs
        if not known.refs and not known.published and known.main is not None:
            known.main.source = None


def copy(state: State, line: int, event: Event) -> None:
    """`copy`: the first slots of a block are copied, and the request has the target in the source's place."""
    source, target = event["source"], event["target"]
    old, new = state.block(source, line, "copy"), state.block(target, line, "copy")
    if old is None or new is None:
        return
    if not old.refs and not old.published:
        facts = old.facts(source, "freed", "allocated")
        state.report("KV-BLOCK-043", line, f"block {source} is copied, but nobody holds it", facts)
    request = state.request(event["request"], line, "a copy") if "request" in event else None
    most = max(state.sizes) if request is None else state.sizes[state.group(event)]
    if event["count"] > most:
        raise HistoryError(f"copy.count = {event['count']}, expected at most {most}, the slots of a block")
    parts = old.copied(event["count"], None if request is None else request.labels)
    if request is not None:
        table = request.tables[state.group(event)]
        if source not in table:
            facts = old.facts(source, "allocated", "freed")
            state.report(
                "KV-BLOCK-042", line, f"block {source} is not in the table of request {request.name}", facts
            )
            return
        if new.refs or new.fences:
            _judge_free(state, line, request, target, new, set())
        state.changed([target] if new.refs else [])
        state.held += not new.refs
        new.refs += 1
        new.hand_out(line, request.name)
        request.holds += 1
        index = table.index(source)
        table[index] = target
        state.let_go(old, request, line)
        request.back_to(index * state.sizes[state.group(event)])
    elif not new.refs:
        facts = new.facts(target, "freed", "allocated")
        state.report(
            "KV-BLOCK-043", line, f"block {source} is copied into block {target}, which nobody holds", facts
        )
    elif new.refs > 1 or new.published:
        overwritten(state, line, f"block {source} is copied", target, new)
    if new.refs > 1 or request is None:
        state.changed([target], request)
    new.owner = None
    new.older, new.main = tuple(parts[:-1]), parts[-1] if parts else None


def replace(state: State, line: int, event: Event) -> None:
    """`replace`: entries of a table become other blocks; the old ones are let go."""
    request = state.request(event["request"], line, "a table")
    if request is None:
        return
    group, index, blocks = state.group(event), event["index"], ids(event).copy()
    table = request.tables[group]
    if index > len(table):
        message = f"entry {index} of the table of request {request.name} is replaced, but it has {len(table)}"
        state.report("KV-BLOCK-042", line, message)
        return
    old = table[index : index + len(blocks)]
    for at, block in enumerate(blocks):
        known = state.entry(block, line, "replace", request.name)
        if known is None:
            blocks[at] = -1
            continue
        if not known.refs and not known.published:
            facts = known.facts(block, "freed", "lost", "allocated")
            message = f"request {request.name} takes block {block}, which nobody holds and nobody can find"
            state.report("KV-BLOCK-043", line, message, facts)
        state.hold(known, request.name, line)
        request.holds += 1
    state.count_entries(len(blocks) - len(old))
    table[index : index + len(blocks)] = blocks
    for block in old:
        if block >= 0:
            state.let_go(state.blocks[block], request, line)
    request.back_to(index * state.sizes[group])


def _judge_free(state: State, line: int, request: Request, block: int, known: Block, told: set[str]) -> None:
    """Report a block that is handed out while somebody holds it, or while something may still write it.

    Each requirement is reported once an event, and joins `told`.
    """
    flight = next((f for f in known.fences if not f.done), None)
    if known.refs:
        twice = known.allocated == line and known.refs - known.pins == 1
        rule = "KV-BLOCK-012" if known.pins == known.refs else "KV-BLOCK-001" if twice else _rule(known)
        if rule not in told:
            why = "twice" if twice else _why(state, block, known)
            more = ("published", "lost") if rule == "KV-PREFIX-016" else ()
            facts = known.facts(block, "allocated", "held", "freed", "pinned", *more)
            state.report(rule, line, f"request {request.name} is given block {block}, {why}", facts)
        told.add(rule)
        known.disputed = True
    elif flight is not None:
        message = (
            f"request {request.name} is given block {block}, but {flight.title}, which may still use it, "
            "has not ended"
        )
        if "KV-BLOCK-011" not in told:
            state.report("KV-BLOCK-011", line, message, known.facts(block, "freed", "fences"))
        told.add("KV-BLOCK-011")
    known.fences = ()


def _why(state: State, block: int, known: Block) -> str:
    if known.pins == known.refs:
        return "which is pinned"
    holders = [request.name for request in state.holders(block)]
    return f"which {names(holders)} still hold" + "s" * (len(holders) == 1)


def _rule(known: Block) -> str:
    """Say why a held block can have been handed out."""
    if known.published or known.lost > known.held:
        return "KV-PREFIX-016"
    return "KV-BLOCK-005" if known.freed > known.allocated else "KV-BLOCK-001"


def _unknown(state: State, line: int, event: Event) -> None:
    """Report that somebody lets go of blocks who holds none, or never was; to let go of none is no fault."""
    name = event["request"]
    if name not in state.ended:
        state.request(name, line, "free")
        return
    for block in ids(event)[:1] if "blocks" in event else ():
        known = state.block(block, line, "free", name)
        facts = known.facts(block, "allocated", "freed", "held") if known else []
        message = f"request {name} lets go of block {block} again: it holds none"
        state.report("KV-BLOCK-006", line, message, [state.ended[name], *facts])


def _free_all(state: State, line: int, request: Request) -> None:
    """Let a request go of all its blocks; what it wrote into those that others can read is kept apart.

    The same as letting go of each, but neighbours share the labels that are kept.
    """
    labels, blocks, held = request.labels, state.blocks, state.held
    step = None if request.step is None or request.step.done else request.step
    for size, table in zip(state.sizes, request.tables, strict=True):
        span = max(1, _TOGETHER // size)
        piece, until = labels, 0
        for index, block in enumerate(table):
            if block < 0:
                continue
            known = blocks[block]
            known.refs -= 1
            known.owner = None
            known.freed, known.freed_by = line, request.name
            if not known.refs:
                held -= 1
                known.disputed = False
            if step is not None:
                known.wait_for(step)
            main = known.main
            if main is None or main.source is not labels or known.older or main.base != index * size:
                known.settle(labels, keep=bool(known.refs or known.published))
            elif known.refs or known.published:
                if index >= until:
                    piece, until = labels.piece(index * size, (index + span) * size), index + span
                main.source = piece
            else:
                main.source = None
        state.entries -= len(table)
        table.clear()
    state.held, request.holds, request.verified = held, 0, 0


def _free_some(state: State, line: int, request: Request, blocks: list[int]) -> None:
    """Let a request go of some blocks: holes in its table stay, unless the end of the table is gone."""
    gone: list[set[int]] = [set() for _ in request.tables]
    places = state.places(request) if len(blocks) > FEW else None
    for block in blocks:
        place = state.place(request, block) if places is None else places.pop(block, None)
        if place is None and places:
            place = state.place(request, block)  # a block that stands twice in a table
        if block < 0 or place is None:
            _not_held(state, line, request, block)
            continue
        group, index = place
        request.tables[group][index] = -2 - block  # a hole that says what was there
        gone[group].add(index)
        request.verified = min(request.verified, index * state.sizes[group])
        state.let_go(state.blocks[block], request, line)
    for table, holes in zip(request.tables, gone, strict=True):
        while table and len(table) - 1 in holes:
            table.pop()
            state.entries -= 1


def _not_held(state: State, line: int, request: Request, block: int) -> None:
    known = state.block(block, line, "free", request.name)
    if known is not None:
        holders = [r.name for r in state.holders(block)]
        facts = known.facts(block, "allocated", "freed", "held" if holders else "")
        message = f"request {request.name} lets go of block {block}, which {names(holders)} holds"
        state.report("KV-BLOCK-006", line, message, facts)
