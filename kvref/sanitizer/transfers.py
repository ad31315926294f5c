"""Events of steps, transfers and tiers: what is in flight, what was stored, what came back, what was lost.

Realises: KV-BLOCK-004 counts-add-up, KV-BLOCK-011 fenced-free, KV-BLOCK-041 no-starvation.
For porters: until a transfer ends, what it delivers is not there; if it fails, it never will be.
Source: the chapter on memory, histories.
"""

from dataclasses import replace

from kvref.errors import HistoryError
from kvref.memory.history import Event
from kvref.sanitizer.delivery import judge_sent, known_tokens, received
from kvref.sanitizer.faults import empty, mismatch
from kvref.sanitizer.requests import Request
from kvref.sanitizer.shadow import Flight, Name
from kvref.sanitizer.state import State, ids
from kvref.sanitizer.writes import overwritten

_REMEMBERED = 4096


def begin(state: State, line: int, event: Event) -> None:
    """`begin`: a step, or a transfer of blocks."""
    what = _what(event)
    flight = Flight(what, event[what], line)
    if what == "transfer":
        _load_up(flight, event)
        if flight.kind == "receive":
            state.request(event["request"], line, "a transfer")
    elsewhere = state.flights.pop((what, flight.name), None)
    if elsewhere is not None:
        state.report("KV-BLOCK-042", line, f"{flight.title} begins twice", [elsewhere.told()])
        elsewhere.done = True
        state.entries -= len(elsewhere.blocks)
    if len(state.flights) >= state.limits.flights:
        raise HistoryError(f"more than {state.limits.flights} flights at a time, expected at most that")
    state.flights[what, flight.name] = flight
    if what == "step":
        state.stepped, flight.before, state.step = True, state.step, flight
        return
    state.count_entries(len(flight.blocks))
    state.changed([block for block in flight.blocks if _take_along(state, line, flight, block)])
    if flight.kind == "send":
        judge_sent(state, line, flight)


def end(state: State, line: int, event: Event) -> None:
    """`end`: a step, or a transfer."""
    what = _what(event)
    name: Name = event[what]
    flight = state.flights.pop((what, name), None)
    if flight is None:
        later = ", or one that began later has ended" if what == "step" else ""
        state.report("KV-BLOCK-042", line, f"{what} {name} ends, but it has not begun{later}")
    elif what == "step":
        _end_step(state, flight)
        state.tick(line)
    else:
        flight.done = True
        state.entries -= len(flight.blocks)
        if flight.kind == "receive":
            received(state, line, flight, failed=event.get("failed", False))
    count_free(state, line, event)


def _end_step(state: State, flight: Flight) -> None:
    """Let a step have ended, and those that began before it: they end in the order in which they began."""
    state.step = None if state.step is flight else state.step
    last: Flight | None = flight
    while last is not None and not last.done:
        last.done = True
        state.flights.pop(("step", last.name), None)
        before, last.before = last.before, None
        last = before


def count_free(state: State, line: int, event: Event) -> None:
    """Hold the engine's count of free blocks to ours; those that wait for a flight may count as either."""
    if "num_free" not in event:
        return
    most = state.capacity - state.held
    least = most
    if event["num_free"] < most and state.flights:
        least -= sum(1 for b in state.blocks.values() if not b.refs and any(not f.done for f in b.fences))
    if not least <= event["num_free"] <= most:
        holders = [r for r in state.requests.values() if r.holds]
        message = (
            f"{event['num_free']} blocks count as free, but {most} of {state.capacity} are held by nobody"
        )
        facts = [
            (r.ended, f"request {r.name} {r.how} and still holds {r.holds} blocks")
            for r in holders
            if r.ended
        ]
        state.report("KV-BLOCK-004", line, message, facts[:4])


def discard(state: State, line: int, event: Event) -> None:
    """`discard`: what blocks hold is lost, of all blocks if none are named."""
    everything = "blocks" not in event
    for block in list(state.blocks) if everything else ids(event):
        known = state.block(block, line, "discard")
        if known is not None:
            known.empty(line, "the pool was discarded" if everything else "the block was discarded")
    if not everything:
        state.changed(ids(event))
    for request in state.requests.values() if everything else ():
        request.back_to(0)


def store(state: State, line: int, event: Event) -> None:
    """`store`: what blocks hold is kept in a tier."""
    tier = event["tier"]
    for key, block in _pairs(state, event):
        known = state.block(block, line, "store")
        if known is None:
            continue
        if not known.refs and not known.published and known.lost <= known.allocated:
            facts = known.facts(block, "allocated", "freed")
            state.report("KV-BLOCK-043", line, f"block {block} is stored, but nobody holds it", facts)
        if (tier, key) not in state.cells:
            state.stored[tier] = state.stored.get(tier, 0) + 1
            if len(state.cells) >= state.limits.places:
                raise HistoryError(
                    f"tiers hold more than {state.limits.places} blocks, expected at most that"
                )
            if state.stored[tier] > state.tiers.get(tier, state.stored[tier]):
                message = (
                    f"tier {tier} holds {state.stored[tier]} blocks, but it has {state.tiers[tier]} places"
                )
                state.report("KV-BLOCK-004", line, message)
        state.cells[tier, key] = (tuple(known.copied(max(state.sizes), None)), line)


def load(state: State, line: int, event: Event) -> None:
    """`load`: blocks hold what was stored, and the first tokens of a request count as computed."""
    request = state.request(event["request"], line, "a load") if "request" in event else None
    pairs, others, told = _pairs(state, event), list[int](), False
    place = None if request is None else state.finder(request, len(pairs))
    for key, block in pairs:
        known = state.block(block, line, "load")
        if known is None:
            continue
        doing = f"{event['tier']} {key} is loaded"
        if not known.refs:
            facts = known.facts(block, "allocated", "freed")
            state.report("KV-BLOCK-043", line, f"{doing} into block {block}, which nobody holds", facts)
        elif known.published or known.refs - known.pins > 1:
            overwritten(state, line, doing, block, known)
        cell = state.cells.get((event["tier"], key))
        if cell is None:
            dropped = state.dropped.get((event["tier"], key), 0)
            state.report(
                "KV-PREFIX-017", line, f"{doing}, which is not stored", [(dropped, f"{key} was dropped")]
            )
        parts, stored = cell or ((), 0)
        parts = tuple(replace(part) for part in parts)  # each block has its own
        known.empty(line, "")
        known.emptied = 0
        known.older, known.main = parts[:-1], parts[-1] if parts else None
        if request is not None and place is not None and not told and cell is not None:
            told = _judge_loaded(state, line, request, block, place(block), stored, event)
        if request is None or known.refs > 1 or known.holder != request.name:
            others.append(block)
    state.changed(others, request)
    if request is not None:
        stop = known_tokens(
            state, line, request, event.get("count", 0), f"a load from {event['tier']} brings"
        )
        request.computed = max(request.computed, stop)
        request.verified = request.computed if told else 0
        request.tail = None


def drop(state: State, line: int, event: Event) -> None:
    """`drop`: places of a tier are given up."""
    tier = event["tier"]
    for key in event["keys"]:
        if state.cells.pop((tier, key), None) is None:
            state.report("KV-PREFIX-042", line, f"{tier} {key} is dropped, but it is not stored")
            continue
        state.stored[tier] -= 1
        state.dropped[tier, key] = line
        if len(state.dropped) > _REMEMBERED:
            state.dropped.popitem(last=False)


def _what(event: Event) -> str:
    if ("step" in event) is ("transfer" in event):
        raise HistoryError(f"{event['event']} has both or none of step and transfer, expected one of them")
    return "step" if "step" in event else "transfer"


def _load_up(flight: Flight, event: Event) -> None:
    """Read what a transfer is about."""
    kind = event.get("kind", "")
    for field in ("kind", "blocks", "request", "count") if kind == "receive" else ("kind", "blocks"):
        if field not in event:
            raise HistoryError(f"begin has no field {field}, which {kind or 'a transfer'} needs")
    flight.kind, flight.request, flight.blocks = kind, event.get("request"), tuple(ids(event))
    flight.start, flight.count = event.get("start", 0), event.get("count", 0)


def _take_along(state: State, line: int, flight: Flight, block: int) -> bool:
    """Let a transfer use a block, and return whether others have lost what it held.

    What a block holds that is received is gone before it has arrived.
    """
    known = state.block(block, line, "begin")
    if known is None:
        return False
    if not known.refs and not known.published:
        facts = known.facts(block, "allocated", "freed", "lost")
        message = f"{flight.title} begins with block {block}, which nobody holds"
        state.report("KV-BLOCK-043", line, message, facts)
    known.wait_for(flight)
    if flight.kind != "receive":
        return False
    if known.published:
        overwritten(state, line, f"{flight.title} is received", block, known)
    known.empty(line, "")
    known.emptied, known.arriving = 0, flight
    return known.refs > 1 or known.holder != flight.request


def _pairs(state: State, event: Event) -> list[tuple[Name, int]]:
    blocks = ids(event)
    if len(blocks) != len(event["keys"]):
        raise HistoryError(
            f"{event['event']}.keys has {len(event['keys'])} items, expected {len(blocks)}, one a block"
        )
    return list(zip(event["keys"], blocks, strict=True))


def _judge_loaded(
    state: State,
    line: int,
    request: Request,
    block: int,
    place: tuple[int, int] | None,
    stored: int,
    event: Event,
) -> bool:
    """Report a block of a request's table that was loaded with what is not the request's own."""
    known = state.blocks[block]
    if place is None:
        return False
    size = state.sizes[place[0]]
    base = place[1] * size
    stop = min(event.get("count", base + size), base + size)
    found = known.fault(0, max(0, stop - base), base, request.labels)
    if found is None:
        return False
    slot, held = found
    doing = f"request {request.name} loads position {base + slot} into slot {slot} of block {block}, "
    rule, why = (
        ("KV-PREFIX-005", empty(known, slot)[0]) if held is None else mismatch(request, held, slot, base)
    )
    facts = [*known.facts(block, "allocated", "written"), (stored, f"it was stored in {event['tier']}")]
    state.report(rule, line, doing + why, facts)
    return True
