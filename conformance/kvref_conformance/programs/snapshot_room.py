"""What memory a step takes and what it leaves, and whether there was room for it.

For porters: a subject that may hold more than it must is given the benefit of the doubt.
"""

from typing import TYPE_CHECKING

from kvref_conformance.contracts import Failed
from kvref_conformance.programs.state_cells import ZEROS, StepTold
from kvref_conformance.programs.stateful import Stateful

if TYPE_CHECKING:
    from kvref_conformance.programs.watched_snapshots import WatchedSnapshots

#: State slots that a request may hold beside those that its steps name, where several are declared.
UNNAMED = 3


def note_force(cache: "WatchedSnapshots", said: str, one: Stateful, step: StepTold) -> None:
    """Note whether there were slots enough for what a step writes, and for what it should save.

    What is due and was not saved needs no slot if others could be had by an eviction.
    """
    held = cache.held_states(most=True) | one.places | cache.saved
    new = set(step.targets) - one.places
    room = cache.num_states - len(held) - UNNAMED * cache.several * len(cache.live)
    if cache.shared:
        blocks = {cache.block(slot) for slot in cache.ledger.known_blocks()}
        room = cache.capacity - len(held | blocks | cache.held_blocks(most=True)) - UNNAMED * len(cache.live)
    due = set(cache.ledger.due_saves(step.start, step.stop, one.junction)) - dict(step.saves).keys()
    one.spared = {position for position in due if cache.ledger.at(one.prompt, position).states.slots}
    missing = sorted(due - one.spared)
    certain = [p for p in missing if p <= step.stop - step.num_drafts and _is_sure(cache, one, p)]
    needed = {*step.targets, step.source} - {ZEROS} - cache.held_states(most=True)
    spare = cache.free_states() - len(needed)
    if certain and spare > 0 and not cache.shared:
        left = f"{len(certain)} more due, of the state after {certain[0]} tokens for one"
        cache.log.breach(
            f"{said} and leaves out saves, {left}, where {spare} slots can be had", "KV-SNAP-025"
        )
    if len(new) + len(missing) > room:
        cache.ledger.forced_states = True
        cache.ledger.forced_blocks |= cache.shared


def _is_sure(cache: "WatchedSnapshots", one: Stateful, position: int) -> bool:
    """Say whether there is no state after so many tokens, and none is coming."""
    stranded = cache.ledger.at(one.prompt, position).is_stranded
    return not stranded and not cache.states.is_coming(one.prompt, position)


def judge_refusal(cache: "WatchedSnapshots", said: str, answer: Failed, blocks: int, states: int) -> None:
    """Judge a refusal: there was no room, or the memory that lay idle is named. Raises: Stop."""
    free = cache.capacity - len(cache.held_blocks(most=True))
    free_states = cache.free_states() - UNNAMED * cache.several
    if cache.shared:
        free, free_states = (
            free - cache.count_held_states()[0] - UNNAMED * (1 + len(cache.live)) - states,
            states,
        )
    waits = cache.eager and any(one.step is not None for one in cache.live.values())
    if blocks <= free and states <= free_states and not waits:
        also = ["KV-SNAP-020"] if cache.cells.epoch else []
        also += ["KV-SNAP-017"] if cache.told.refused_admission else []
        said = f"{said}: {answer}; {free} blocks are free and {blocks} enough, and {free_states} states"
        cache.stop(f"{said} where {states} are", "KV-SNAP-011", *also)
    cache.log.note(said, "is refused")
    cache.told.refused_admission = True
    cache.look("KV-SNAP-017")


def give_out(cache: "WatchedSnapshots", blocks: set[int]) -> None:
    """Note that blocks are given out: what they held is lost."""
    held = cache.held_blocks(most=True)
    known = {cache.block(slot) for slot in cache.ledger.known_blocks()}
    states = cache.held_states(most=True) | cache.saved if cache.shared else set()
    new = blocks - held
    if len(new) > cache.capacity - len(held | known | states):
        cache.ledger.forced_blocks = True
        cache.ledger.forced_states |= cache.shared
    cache.lose(blocks)


def publish(cache: "WatchedSnapshots", request: int, one: Stateful, step: StepTold, kept: int) -> None:
    """Note what a computed step lets others hit: its blocks, and the states it saved."""
    cache.ledger.publish(one.prompt, one.slots, request)
    told = {p: slot for p, slot in step.saves if p <= kept and not p % cache.block_size}
    lost = {p for p in one.spared if not cache.ledger.at(one.prompt, p).states.slots}
    scheduled = cache.ledger.due_saves(step.start, step.stop, one.junction)
    due = [p for p in scheduled if p <= kept and p not in lost]
    if step.num_drafts or cache.ledger.saves in ("interval", "chunk_end"):
        told = {position: slot for position, slot in told.items() if position in due}
    places: dict[int, int | None] = {**dict.fromkeys(due), **told}
    one.saved.update(places)
    cache.ledger.save(one.prompt, request, places, one.junction)
