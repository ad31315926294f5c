"""Events of a step: tokens are computed, their slots written, and everything they attend to read.

The common case costs a few comparisons: a request computes the tokens that follow, in a block that it alone
holds and has written so far, and everything before them was verified. Anything else is looked at in full.

Realises: KV-BLOCK-020 token-slot, KV-BLOCK-021 reads-own-tokens, KV-BLOCK-022 write-private, KV-BLOCK-040
computed-once, KV-BLOCK-043 use-after-free, KV-BLOCK-045 write-published.
For porters: write everything of a step first, then judge what it reads; a layer does the same.
Source: the chapter on memory, histories.
"""

from itertools import repeat

from kvref.memory.history import Event
from kvref.sanitizer.faults import read_fault
from kvref.sanitizer.requests import Request
from kvref.sanitizer.shadow import Flight
from kvref.sanitizer.state import State
from kvref.sanitizer.writes import judge_write, told_blocks, told_slots, write_slots


def compute(state: State, line: int, event: Event) -> None:
    """`compute`: a step writes tokens of each request, then reads all that they attend to."""
    step = state.step if "step" not in event else _step(state, line, event)
    requests, now, ahead = state.requests, state.steps, state.ahead
    late: list[tuple[Request, int, int]] = []
    state.active = True
    for name, start, count in zip(event["requests"], event["starts"], event.get("counts") or repeat(1)):  # noqa: B905  # repeat has no end
        request = requests.get(name)
        if request is None:
            state.request(name, line, "a computation")
            continue
        tail, stop = request.tail, start + count
        if (
            tail is not None
            and tail.owner is request
            and start == request.computed == request.verified
            and stop <= request.tail_stop
            and stop <= len(request.symbols) + ahead
        ):
            main = tail.main
            main.hi, main.line = stop - main.base, line  # type: ignore[union-attr]  # its owner wrote it
            request.computed = request.verified = stop
        elif request.ended:
            state.request(name, line, "a computation")
            continue
        else:
            stop = _write_tokens(state, line, request, start, stop)
            if start == request.verified and not state.disturbed:
                request.verified = max(stop, start)
            else:
                late.append((request, start, stop))
        request.step, request.progress = step, now
    if state.disturbed:  # what one row wrote, another had verified
        late = [(r, 0, r.computed) for r in map(requests.get, event["requests"]) if r is not None]
        state.disturbed = False
    for request, start, stop in late:
        _read_table(state, line, request, start, stop)
    if not state.stepped:
        state.tick(line)


def write(state: State, line: int, event: Event) -> None:
    """`write`: tokens are computed, and written where the table says, or where a kernel was told."""
    request = state.request(event["request"], line, "a write")
    if request is None:
        return
    start, stop = event["start"], event["start"] + event["count"]
    if "blocks" not in event and "slots" not in event:
        stop = _write_tokens(state, line, request, start, stop)
        request.verified = stop if request.verified == start < stop else request.verified
    else:
        stop = _count_computed(state, line, request, start, stop)
        group = state.group(event)
        slots = told_slots(state, line, request, event, state.sizes[group], stop)
        write_slots(state, line, request, group, start, slots)
        request.back_to(start)
    request.step = _step(state, line, event) if "step" in event else state.step
    request.progress, state.active = state.steps, True


def read(state: State, line: int, event: Event) -> None:
    """`read`: tokens are read where the table says, or where a kernel was told."""
    request = state.request(event["request"], line, "a read")
    if request is None:
        return
    start, stop = event["start"], event["start"] + event["count"]
    if "blocks" not in event:
        for group in range(len(state.sizes)):
            _read_group(state, line, request, group, start, stop)
        return
    size = state.sizes[state.group(event)]
    blocks, told = told_blocks(state, line, request, event, size), False
    place = state.finder(request, len(blocks))
    for at, block in enumerate(blocks):
        base = (start // size + at) * size
        lo, hi = max(start - base, 0), min(stop - base, size)
        known = state.block(block, line, "read", request.name)
        if known is None or read_fault(state, line, request, block, known, lo, hi, base):
            continue
        if not told and place(block) is None:
            told = True
            facts = known.facts(block, "allocated", "freed", "held")
            message = f"request {request.name} reads block {block}, which it does not hold"
            state.report("KV-BLOCK-043", line, message, facts)


def _step(state: State, line: int, event: Event) -> Flight | None:
    """Return the step that an event names, and report one that is not in flight."""
    step = state.flights.get(("step", event["step"]))
    if step is None:
        state.report(
            "KV-BLOCK-042", line, f"step {event['step']} computes, but it has not begun, or has ended"
        )
    return step


def _write_tokens(state: State, line: int, request: Request, start: int, stop: int) -> int:
    """Write tokens start to stop − 1 by the tables, and return where the tokens that there are end."""
    stop = _count_computed(state, line, request, start, stop)
    if start >= stop:
        return stop
    if request.stateless:
        _no_state(state, line, request, start)
    for size, table in zip(state.sizes, request.tables, strict=True):
        for index in range(start // size, (stop - 1) // size + 1):
            base = index * size
            lo, hi = max(start - base, 0), min(stop - base, size)
            block = table[index] if index < len(table) else -1
            if block < 0:
                _no_block(state, line, request, "computes", max(start, base), index, table, size)
                request.verified = stop  # it was told; reading the same would tell it again
                break
            known = state.blocks[block]
            if known.refs > 1 or known.published or known.fences:
                judge_write(state, line, request, block, known, lo, hi)
            known.write(lo, hi, base, request.labels, request.name, line)
            if (
                known.refs == 1
                and not known.published
                and base + hi == request.computed
                and known.ends_at(hi)
            ):
                known.owner, request.tail, request.tail_stop = request, known, base + size
    if not state.single or request.computed != stop:
        request.tail = None
    return stop


def _count_computed(state: State, line: int, request: Request, start: int, stop: int) -> int:
    """Report tokens that are left out, computed again, or unknown; return the end of those that are known."""
    known = len(request.symbols) + state.ahead
    if start == request.computed and stop <= known:
        request.computed = stop
        return stop
    name = request.name
    facts = [(request.line, f"request {name} arrived"), *request.facts()]
    if stop > known:
        message = (
            f"request {name} computes positions up to {stop - 1}, but it has {len(request.symbols)} tokens"
        )
        state.report("KV-BLOCK-042", line, message, facts)
        stop = known
    if start != request.computed and start < stop:
        if start > request.computed:
            what = f"without positions {request.computed} to {start - 1}, which nobody computed"
        else:
            what = f"again: {request.computed} positions are computed"
        which = f"position {start}" if stop == start + 1 else f"positions {start} to {stop - 1}"
        state.report("KV-BLOCK-040", line, f"request {name} computes {which} {what}", facts)
    if start < stop:
        request.computed = max(request.computed, stop)
    return stop


def _read_table(state: State, line: int, request: Request, start: int, stop: int) -> None:
    """Judge what tokens start to stop − 1 attend to, in every group."""
    for group, window in enumerate(state.windows):
        first = 0 if window is None else max(0, start - window + 1)
        _read_group(state, line, request, group, max(first, request.verified), stop)
    request.verified = max(request.verified, stop)


def _read_group(state: State, line: int, request: Request, group: int, start: int, stop: int) -> None:
    """Judge positions start to stop − 1 of a group, and report the first block that is wrong."""
    size, table = state.sizes[group], request.tables[group]
    if start >= stop:
        return
    for index in range(start // size, (stop - 1) // size + 1):
        base = index * size
        block = table[index] if index < len(table) else -1
        if block < 0:
            _no_block(state, line, request, "reads", max(start, base), index, table, size)
            return
        lo, hi = max(start - base, 0), min(stop - base, size)
        if read_fault(state, line, request, block, state.blocks[block], lo, hi, base):
            return


def _no_block(
    state: State,
    line: int,
    request: Request,
    doing: str,
    position: int,
    index: int,
    table: list[int],
    size: int,
) -> None:
    """Report that a position lies in no block."""
    facts, rule = request.facts(), "KV-BLOCK-043"
    hole = table[index] if index < len(table) else 0
    if hole < -1:
        block = -2 - hole
        what = f"in block {block}, which it let go of"
        facts = state.blocks[block].facts(block, "freed", "allocated", "written")
    elif request.freed and not table:
        what = "and has let go of its blocks"
    else:
        its = "its table" if state.single else f"its table of group {_group(request, table)}"
        rule, what = "KV-BLOCK-020", f"but {its} has {len(table)} blocks of {size}"
        what = what if not hole else f"but entry {index} of {its} is none"
    state.report(rule, line, f"request {request.name} {doing} position {position}, {what}", facts)


def _group(request: Request, table: list[int]) -> int:
    return next(group for group, its in enumerate(request.tables) if its is table)


def _no_state(state: State, line: int, request: Request, start: int) -> None:
    """Report that a request goes on behind a hit, and that its recurrent state has seen none of that."""
    facts = [(request.stateless, f"request {request.name} hit blocks"), *request.facts()]
    message = (
        f"request {request.name} computes position {start} without the recurrent state of the tokens it hit"
    )
    request.stateless = 0
    state.report("KV-BLOCK-040", line, message, facts)
