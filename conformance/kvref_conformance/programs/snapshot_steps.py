"""What a step of a snapshot cache starts from and writes, held to what it may be."""

from typing import TYPE_CHECKING

from kvref_conformance.programs.breach import Stop
from kvref_conformance.programs.state_cells import ZEROS, StepTold

if TYPE_CHECKING:
    from kvref_conformance.programs.watched_snapshots import WatchedSnapshots


def judge_source(cache: "WatchedSnapshots", said: str, request: int, step: StepTold) -> None:
    """Hold a later step to start from the state after the tokens that its request has. Raises: Stop."""
    one = cache.live[request]
    if step.source == ZEROS:
        cache.stop(f"{said} and starts from zeros, {step.start} tokens behind it", "KV-SNAP-007")
    blamed = cache.states.blame(step.source, one.prompt, step.start)
    if blamed is None:
        return
    requirement, found = blamed
    if one.was_cut:
        requirement = "KV-SNAP-015"
    elif cache.states.writer(step.source) not in (None, request):
        requirement = "KV-SNAP-009"
    expected = f"expected the state after {step.start} tokens"
    cache.stop(f"{said} and starts from state slot {step.source}: it holds {found}, {expected}", requirement)


def judge_targets(cache: "WatchedSnapshots", said: str, request: int, step: StepTold) -> None:
    """Hold what a step writes to be in the pool, each slot once, nobody else's. Raises: Stop."""
    positions = [position for position, _ in step.saves]
    if positions != sorted(set(positions)) or any(not step.start < p <= step.stop for p in positions):
        due = f"expected rising ones from {step.start + 1} to {step.stop}"
        cache.stop(f"{said} and saves at positions {positions}, {due}", "KV-SNAP-018")
    wrong = _foreign(cache, step) or _repeated(step) or _held(cache, request, step)
    if wrong:
        cache.log.breach(f"{said} and gives {wrong[0]}", *wrong[1:])
        raise Stop


def judge_blocks(cache: "WatchedSnapshots", said: str, request: int, slots: list[int]) -> None:
    """Hold new slots to be in the pool, nobody else's, and in no block of a hit. Raises: Stop."""
    own = cache.live[request]
    others = cache.held_blocks(but=request)
    states = cache.held_states(most=True) if cache.shared else set()
    hits = {cache.block(slot) for slot in own.slots[: own.hit - own.hit % cache.block_size]}
    known = set(own.slots)
    for slot in slots:
        block = cache.block(slot)
        if not cache.null <= block < cache.num_blocks:
            cache.stop(f"{said} and gives slot {slot}, which is in no block of the pool", "KV-SNAP-010")
        if slot in known or block in others or block in hits or block in states:
            who = "the request's own" if slot in known or block in hits else "another's"
            cache.stop(f"{said} and gives slot {slot}, which is {who}", "KV-SNAP-010")
        known.add(slot)


def _foreign(cache: "WatchedSnapshots", step: StepTold) -> tuple[str, ...]:
    first, stop = (cache.null, cache.num_blocks) if cache.shared else (0, cache.num_states)
    for slot in step.targets:
        if not first <= slot < stop:
            return f"state slot {slot}, expected {first} to {stop - 1}", "KV-SNAP-010"
    return ()


def _repeated(step: StepTold) -> tuple[str, ...]:
    """Find a slot that is written twice; the last save may be the slot that the step ends in."""
    seen: set[int] = set()
    for position, slot in step.saves:
        if slot in seen or (slot == step.state and position != step.stop):
            return f"state slot {slot} for the state after {position} tokens, and for another", "KV-SNAP-010"
        seen.add(slot)
    return ()


def _held(cache: "WatchedSnapshots", request: int, step: StepTold) -> tuple[str, ...]:
    """Find a slot that another request runs in, or that a step in flight reads or writes."""
    for other, one in cache.live.items():
        if other == request:
            continue
        mine = {one.step.state} if one.step is not None else one.places if len(one.places) == 1 else set()
        for slot in step.targets:
            if slot in mine:
                return f"state slot {slot}, in which request {other} runs", "KV-SNAP-009"
            if one.step is not None and slot in (*one.step.targets, one.step.source):
                return f"state slot {slot}, which a step of request {other} needs", "KV-SNAP-010"
    if cache.shared and (both := set(step.targets) & cache.held_blocks(most=True)):
        return f"state slot {min(both)}, which is a block of a request", "KV-SNAP-010"
    if step.num_drafts and step.start == step.stop - step.num_drafts and step.runs_in_place:
        return f"state slot {step.state}, which no draft may be written over", "KV-SNAP-015"
    return ()
