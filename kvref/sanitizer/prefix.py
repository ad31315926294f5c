"""Events of a prefix cache: blocks are published, evicted, hit; states are kept and restored.

Realises: KV-PREFIX-001 hit-own-prefix, KV-PREFIX-002 hit-leaves-one, KV-PREFIX-005 hit-computed,
KV-PREFIX-015 reset-forgets, KV-PREFIX-017 evicted-not-hit.
For porters: a hit is judged by what the blocks hold, whatever key found them.
Source: the chapter on memory, histories.
"""

from kvref.errors import HistoryError
from kvref.memory.history import Event
from kvref.sanitizer.faults import empty, mismatch
from kvref.sanitizer.findings import Fact
from kvref.sanitizer.requests import Request
from kvref.sanitizer.shadow import Block, Name
from kvref.sanitizer.state import State, ids


def publish(state: State, line: int, event: Event) -> None:
    """`publish`: blocks can be found by others from now on."""
    blocks, who, size = ids(event), event.get("request"), state.sizes[state.group(event)]
    count = event.get("count", len(blocks) * size)
    if -(-count // size) != len(blocks):
        raise HistoryError(
            f"publish.count = {count}, which fill {-(-count // size)} blocks of {size}, "
            f"but publish.blocks names {len(blocks)}; a count is in tokens"
        )
    told, doubtful = False, list[tuple[int, bool]]()
    for block in blocks:
        known = state.blocks.get(block) or state.block(block, line, "publish", who)
        here = min(size, count)
        count -= here
        if known is None:
            continue
        if not known.refs or (who is not None and (known.holder != who or known.freed > known.held)):
            doubtful.append((block, known.published > 0))
        filled = known.covered(0, here)
        if not told and (filled < here or known.allocated < state.was_reset):
            told = _judge_published(state, line, block, known, here, filled)
        known.published, known.published_by, known.findable = line, who, here
        known.lost, known.owner = 0, None
    if doubtful:
        _judge_publisher(state, line, who, doubtful)


def evict(state: State, line: int, event: Event) -> None:
    """`evict`: blocks and states can no longer be found."""
    for block in ids(event) if "blocks" in event else ():
        known = state.block(block, line, "evict")
        if known is None:
            continue
        if not known.published:
            facts = known.facts(block, "allocated", "published", "lost")
            state.report("KV-PREFIX-042", line, f"block {block} is evicted, but it is not published", facts)
        known.lose(line, "evicted")
    for snapshot in event.get("snapshots", ()):
        if state.snapshots.pop(snapshot, None) is None:
            state.report("KV-PREFIX-042", line, f"snapshot {snapshot} is evicted, but there is none")


def reset(state: State, line: int, event: Event) -> None:
    """`reset`: nothing that was published can be found any more."""
    for known in state.blocks.values():
        if known.published:
            known.lose(line, "forgotten by a reset")
    state.snapshots.clear()
    state.was_reset = line


def hit(state: State, line: int, event: Event) -> None:
    """`hit`: published blocks join a table, and their tokens count as computed."""
    request = state.request(event["request"], line, "a hit")
    if request is None:
        return
    group = state.group(event)
    size, table, blocks = state.sizes[group], request.tables[group], ids(event)
    start = event.get("start", 0)
    stop = start + event["count"]
    first = start // size
    if -(-stop // size) - first != len(blocks):
        raise HistoryError(
            f"hit.count = {event['count']}, which fill {-(-stop // size) - first} blocks of {size}, "
            f"but hit.blocks names {len(blocks)}; a count is in tokens"
        )
    if _misplaced(state, line, request, table, start, first, stop):
        return
    state.count_entries(len(blocks))
    told, deferred = False, stop
    for index, block in enumerate(blocks, first):
        base = index * size
        lo, hi = max(start - base, 0), min(stop - base, size)
        known = state.blocks.get(block) or state.entry(block, line, "hit", request.name)
        if known is None:
            table.append(-1)
            deferred = min(deferred, base + lo)  # a window may reach it
            continue
        if not told:
            told, fine = _judge_hit(state, line, request, block, known, lo, hi, base)
            deferred = deferred if fine else min(deferred, base + lo)
        state.hold(known, request.name, line)
        request.holds += 1
        table.append(block)
    _move(state, line, request, start, min(stop, len(request.symbols)), deferred, told=told)


def snapshot(state: State, line: int, event: Event) -> None:
    """`snapshot`: the state after the first tokens of a request is kept."""
    request, count = state.request(event["request"], line, "a snapshot"), event["count"]
    if request is None:
        return
    if count > request.computed:
        message = (
            f"snapshot {event['snapshot']} is the state of request {request.name} after {count} tokens, "
            f"but {request.computed} are computed"
        )
        state.report("KV-PREFIX-005", line, message, request.facts())
    if len(state.snapshots) >= state.limits.places:
        raise HistoryError(f"more than {state.limits.places} snapshots are kept, expected at most that")
    state.snapshots[event["snapshot"]] = (request.labels.label(count - 1), count, request.name, line)
    state.recurrent = True


def restore(state: State, line: int, event: Event) -> None:
    """`restore`: a state that was kept becomes the state of a request."""
    request = state.request(event["request"], line, "a restored state")
    if request is None:
        return
    kept = state.snapshots.get(event["snapshot"])
    if kept is None:
        message = f"request {request.name} restores snapshot {event['snapshot']}, which is not kept"
        state.report("KV-PREFIX-017", line, message)
        return
    state.recurrent, request.stateless = True, 0
    label, count, who, when = kept
    fact = (when, f"snapshot {event['snapshot']} of request {who} was taken after {count} tokens")
    if label == -1 or request.labels.label(count - 1) != label:
        message = f"request {request.name} restores snapshot {event['snapshot']}, the state of another prefix"
        state.report("KV-PREFIX-001", line, message, [fact])
    if request.computed not in (0, count):
        message = (
            f"request {request.name} restores a state after {count} tokens, "
            f"but {request.computed} of its tokens count as computed"
        )
        state.report("KV-BLOCK-040", line, message, [fact])
    request.computed = min(count, len(request.symbols))
    request.back_to(count)  # a state says nothing of the blocks


def _judge_publisher(state: State, line: int, who: Name | None, doubtful: list[tuple[int, bool]]) -> None:
    """Report the first block that nobody holds, or not the one who is said to publish it.

    Each comes with whether it was published before: to say that again after the end changes nothing.
    """
    request = None if who is None else state.requests.get(who)
    over = request is None or bool(request.ended)
    place = None if request is None else state.finder(request, len(doubtful))
    for block, before in doubtful:
        known = state.blocks[block]
        if before and over:
            continue
        if not known.refs and not before:
            facts = known.facts(block, "allocated", "freed", "lost")
            state.report("KV-BLOCK-043", line, f"block {block} is published, but nobody holds it", facts)
            return
        if who is not None and (place is None or place(block) is None):
            message = f"block {block} is published by request {who}, which does not hold it"
            state.report("KV-BLOCK-043", line, message, known.facts(block, "allocated", "held", "freed"))
            return


def _judge_published(state: State, line: int, block: int, known: Block, here: int, filled: int) -> bool:
    """Report a block that is published unfilled, or with what is older than a reset; return whether it is."""
    doing, reset = f"block {block} is published with ", state.was_reset
    if known.main is not None and known.main.line < reset and known.allocated < reset:
        message = f"{doing}what request {known.main.who} wrote before everything was reset"
        facts = [*known.facts(block, "allocated", "written"), (reset, "everything published was forgotten")]
        state.report("KV-PREFIX-015", line, message, facts)
        return True
    if filled == here or state.scheduled:
        return False
    why, more = empty(known, filled)
    message = f"{doing}{here} tokens, one of them in slot {filled}, {why}"
    state.report("KV-PREFIX-005", line, message, known.facts(block, "allocated", "written", *more))
    return True


def _move(
    state: State, line: int, request: Request, start: int, stop: int, deferred: int, *, told: bool
) -> None:
    """Let a hit of positions start to stop − 1 count as computed; those from `deferred` on are read later."""
    moves = request.computed < stop
    if told:
        request.verified = max(request.verified, stop)
    elif moves and state.single and request.verified >= start:
        request.verified = min(stop, deferred)
    else:  # what lies before it, or in another group, was not looked at
        request.verified = min(request.verified, deferred)
    if moves:
        request.computed = stop
        request.stateless = line if state.recurrent else 0
    request.tail = None


def _misplaced(
    state: State, line: int, request: Request, table: list[int], start: int, first: int, stop: int
) -> bool:
    """Report a hit that finds all, or does not follow what is there; return whether it has no place."""
    name = request.name
    if stop >= len(request.symbols):
        message = (
            f"request {name} hits {stop} tokens of its {len(request.symbols)}, and has none left to compute"
        )
        state.report("KV-PREFIX-002", line, message, [(request.line, f"request {name} arrived")])
    if len(table) == first:
        if request.computed not in (start, stop):
            message = (
                f"request {name} hits positions {start} to {stop - 1}, but {request.computed} are computed"
            )
            state.report("KV-BLOCK-040", line, message, request.facts())
        return False
    message = f"request {name} hits blocks for entry {first} of its table, which has {len(table)} blocks"
    if request.preempted and not start:
        blocks = ", ".join(map(str, table[:8]))
        message = f"request {name} still holds block {blocks} from before it was preempted, and hits others"
        state.report("KV-BLOCK-044", line, message, request.facts())
    else:
        state.report("KV-BLOCK-042", line, message, request.facts())
    return True


def _judge_hit(
    state: State, line: int, request: Request, block: int, known: Block, lo: int, hi: int, base: int
) -> tuple[bool, bool]:
    """Report what is wrong with a block that was hit; return whether it was told, and whether all is well."""
    found, findable = known.fault(lo, hi, base, request.labels), known.findable if known.published else 0
    if found is None and hi <= findable:
        return False, True
    doing = f"request {request.name} hits block {block}, which "
    facts: list[Fact | None] = known.facts(block, "allocated", "published", "written")
    if not known.published and known.lost:
        rule = "KV-PREFIX-015" if known.lost_how.endswith("reset") else "KV-PREFIX-017"
        what = f"was {known.lost_how} and not published since"
        if found is not None and found[1] is not None:
            what += f"; it holds what request {found[1].who} wrote"
        state.report(rule, line, doing + what, [*facts, *known.facts(block, "lost", "stale")])
        return True, False
    if not known.published and not known.refs:
        facts += known.facts(block, "freed")
        state.report("KV-BLOCK-043", line, doing + "nobody holds and nobody has published", facts)
        return True, False
    if found is None:
        what = (
            f"{doing}is published up to slot {findable - 1}" if findable else f"{doing}nobody has published"
        )
        state.report("KV-PREFIX-005", line, what, facts)
        return True, False
    slot, held = found
    what = f"request {request.name} hits position {base + slot} in slot {slot} of block {block}, "
    if held is not None:
        rule, why = mismatch(request, held, slot, base)
        state.report(rule, line, what + why, facts)
        return True, False
    if state.scheduled and known.refs and not known.emptied:
        return False, False  # it may still be computed before it is read
    why, more = empty(known, slot)
    rule = "KV-PREFIX-001" if known.emptied else "KV-PREFIX-005"
    state.report(rule, line, what + why, [*facts, *known.facts(block, "freed", *more)])
    return True, False
