"""What a transfer of blocks sends and what it delivers: which positions of a request lie in which block.

Realises: KV-BLOCK-021 reads-own-tokens.
For porters: the blocks of a transfer follow the tokens, in each group of layers for itself.
Source: the chapter on memory, histories.
"""

from collections.abc import Iterator

from kvref.sanitizer.faults import mismatch
from kvref.sanitizer.requests import Request
from kvref.sanitizer.shadow import Flight
from kvref.sanitizer.state import State


def received(state: State, line: int, flight: Flight, *, failed: bool) -> None:
    """Let blocks hold what a transfer delivered: tokens of its request that another machine computed."""
    request = None if flight.request is None else state.requests.get(flight.request)
    stop = flight.start + flight.count
    for block, base, lo, hi in _stretches(state, flight, request):
        known = state.blocks.get(block)
        if known is None or known.arriving is not flight:
            continue
        known.arriving = None
        if failed:
            known.emptied, known.emptied_how = line, f"{flight.title} failed"
        elif request is not None and lo < hi:
            known.write(lo, hi, base, request.labels, request.name, line)
    if request is not None and not failed and not request.ended:
        stop = known_tokens(state, line, request, stop, f"{flight.title} delivers")
        if request.computed == flight.start:
            request.computed = stop
        request.tail = None


def known_tokens(state: State, line: int, request: Request, stop: int, doing: str) -> int:
    """Report tokens that came for a request and that it has not; return the end of those that it has."""
    known = len(request.symbols)
    if stop > known + state.ahead:
        message = f"{doing} positions up to {stop - 1} of request {request.name}, but it has {known} tokens"
        arrived = (request.line, f"request {request.name} arrived")
        state.report("KV-BLOCK-042", line, message, [arrived, *request.facts()])
    return min(stop, known)


def _stretches(state: State, flight: Flight, request: Request | None) -> Iterator[tuple[int, int, int, int]]:
    """Say for each block of a transfer its first position, and which of its slots are meant.

    Blocks stand in the order of the tokens, in each group for itself; a window leaves out the first of them.
    """
    firsts = [flight.start // size for size in state.sizes]
    in_order = state.single and not state.windows[0]
    places = {} if request is None or in_order else state.places(request)
    for block in flight.blocks:
        group, index = places.get(block, (0, firsts[0]))
        index = index if state.windows[group] else firsts[group]
        firsts[group] += 1
        base = index * state.sizes[group]
        yield (
            block,
            base,
            max(flight.start - base, 0),
            min(flight.start + flight.count - base, state.sizes[group]),
        )


def judge_sent(state: State, line: int, flight: Flight) -> None:
    """Report a block that does not hold what a request is said to send; what is empty may be computed yet."""
    request = None if flight.request is None else state.requests.get(flight.request)
    if request is None:
        return
    for block, base, lo, hi in _stretches(state, flight, request):
        known = state.blocks.get(block)
        slot, held = (known and lo < hi and known.fault(lo, hi, base, request.labels)) or (0, None)
        if known is not None and held is not None:
            _, why = mismatch(request, held, slot, base)
            doing = f"{flight.title} sends position {base + slot} of request {request.name} from slot {slot} "
            facts = known.facts(block, "allocated", "freed", "written")
            state.report("KV-BLOCK-021", line, f"{doing}of block {block}, {why}", facts)
            return
