"""What memory a step takes and what it leaves, and whether there was room for it.

For porters: a subject that may hold more than it must is given the benefit of the doubt.
"""

from typing import TYPE_CHECKING

from kvref_conformance.contracts import Failed
from kvref_conformance.programs.state_cells import StepTold
from kvref_conformance.programs.stateful import Stateful

if TYPE_CHECKING:
    from kvref_conformance.programs.watched_snapshots import WatchedSnapshots


def note_force(cache: "WatchedSnapshots", one: Stateful, step: StepTold) -> None:
    """Note whether there were slots enough for what a step writes, and for what it should save."""
    held = cache.held_states(most=True) | one.places | cache.saved
    new = set(step.targets) - one.places
    room = cache.num_states - len(held) - 2 * cache.several * len(cache.live)
    if cache.shared:
        blocks = {cache.block(slot) for slot in cache.ledger.known_blocks()}
        room = cache.capacity - len(held | blocks | cache.held_blocks(most=True)) - 2 * len(cache.live)
    saved = {position for position, _ in step.saves}
    missing = [
        position
        for position in cache.ledger.due_saves(step.start, step.stop, one.junction)
        if position not in saved and not cache.ledger.at(one.prompt, position).states.slots
    ]
    if len(new) + len(missing) > room:
        cache.ledger.forced_states = True
        cache.ledger.forced_blocks |= cache.shared


def judge_refusal(cache: "WatchedSnapshots", said: str, answer: Failed, blocks: int, states: int) -> None:
    """Judge a refusal: there was no room, or the memory that lay idle is named. Raises: Stop."""
    free = cache.capacity - len(cache.held_blocks(most=True))
    free_states = cache.free_states() - (2 * cache.several)
    if cache.shared:
        free, free_states = free - cache.count_held_states()[0] - 3 * (1 + len(cache.live)) - states, states
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
    due = cache.ledger.due_saves(step.start, kept, one.junction)
    if step.num_drafts or cache.ledger.saves in ("interval", "chunk_end"):
        told = {position: slot for position, slot in told.items() if position in due}
    places: dict[int, int | None] = {**dict.fromkeys(due), **told}
    one.saved.update(places)
    cache.ledger.save(one.prompt, request, places, one.junction)
