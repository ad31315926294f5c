"""What a snapshot cache does for one request: find its joint hit, take its memory, save its states, settle.

Every group of layers has its own condition for resuming after p tokens, and all of them must hold at one p.
Attention to everything needs the blocks of all p tokens, a window of W those of the last W − 1, recurrent
layers the state after exactly p. There is no least or greatest of these to be taken: a state at 32 and blocks
to 48 are a hit of 32 tokens, a state at 48 and blocks to 32 are none. A window that has the blocks before 48
and has lost those before 32 makes neither.

Realises: KV-SNAP-002 snapshot-exact-position, KV-SNAP-003 hit-in-every-group, KV-SNAP-008
snapshot-leaves-one, KV-SNAP-013 junction-snapshot, KV-SNAP-014 longest-joint-hit, KV-SNAP-015 draft-rollback,
KV-SNAP-022 window-group-hit, KV-SNAP-025 due-state-saved.
For porters: look from the longest prefix down, and stop at the first position where every group agrees.
Source: vLLM's hybrid coordinator finds the same length by shrinking it group by group.
"""

from typing import NamedTuple

from kvref.memory.admission import scheduled_until
from kvref.memory.prefix import PrefixIndex
from kvref.memory.prefix_request import NULL
from kvref.memory.snapshot_groups import GroupKey, find_blocks, grid_of
from kvref.memory.snapshot_request import ZEROS, SnapshotRequest, positions_saved
from kvref.memory.snapshots import Snapshots


class JointHit(NamedTuple):
    """Where a request can resume: after how many tokens, over which blocks, from which state.

    `rows` are blocks, one row a group; `attention_tokens` is how far the blocks alone would reach.
    """

    num_tokens: int
    rows: list[list[int]]
    source: int
    attention_tokens: int


def joint_hit(index: PrefixIndex[GroupKey], snapshots: Snapshots, new: SnapshotRequest) -> JointHit:
    """Find the longest prefix of a prompt that every group of layers has."""
    grid = grid_of(new.groups)
    limit = (new.prefix.num_prompt - 1) // grid * grid
    found = [
        find_blocks(index, number, group, prefix, limit)
        for number, (group, prefix) in enumerate(zip(new.groups, new.rows, strict=True))
    ]
    reach = [stop for stop in range(0, limit + 1, grid) if all(own.can_resume(stop) for own in found)]
    for stop in reversed(reach):
        source = snapshots.find(new.prefix_of(stop)) if stop else ZEROS
        if source is not None:
            return JointHit(stop, [own.row(stop) for own in found], source, reach[-1])
    raise AssertionError("zero tokens can always be hit")


def take(
    index: PrefixIndex[GroupKey], snapshots: Snapshots, new: SnapshotRequest, max_new_tokens: int | None
) -> JointHit:
    """Hold a new request's hit, and memory for its first step: blocks, a state slot of its own.

    Where no other state slot can be had, the snapshot itself becomes the running state.
    Raises: OutOfBlocksError or OutOfStatesError, and nothing has changed.
    """
    snapshots.check_free(1)
    hit = joint_hit(index, snapshots, new)
    stop = scheduled_until(hit.num_tokens, new.prefix.num_prompt, max_new_tokens)
    for prefix, row in zip(new.rows, hit.rows, strict=True):
        prefix.row, prefix.num_published, prefix.num_computed = row, len(row), hit.num_tokens
    hits, missing = new.blocks, new.missing(stop)
    new.schedule(stop, missing, index.take(hits, sum(missing)))
    restored = [] if hit.source == ZEROS else [hit.source]
    for source in restored:
        snapshots.hold(source)  # the blocks just taken may be those it is found by, below a window
    snapshots.forget(index.lost)
    new.source = hit.source
    if not restored or snapshots.num_free:
        new.held += restored
        (new.state,) = snapshots.take(1)
    else:
        if snapshots.is_snapshot(hit.source):
            snapshots.take_over(hit.source)
            snapshots.release(restored)
        new.state = hit.source
    return hit


def num_states_of_drafts(own: SnapshotRequest, num_drafts: int, num_new: int) -> int:
    """Count the state slots that a step of `num_new` tokens takes so that its drafts may be rejected.

    The step ends in the slot that the request has, and takes one more for the state before each draft. If all
    of it is drafts and it starts from a slot that it does not run in, the state before the first lies there.
    """
    return num_drafts - (num_drafts == num_new and num_drafts > 0 and own.source != own.state)


def save(
    snapshots: Snapshots, own: SnapshotRequest, start: int, stop: int, interval: int, saves: str
) -> tuple[list[int], list[int]]:
    """Take state slots for what a step saves; return positions and slots.

    The states that a rejection would need come first, and were checked to be free. Snapshots take what is
    left: the junction, then the deepest; what has one is saved no second time.
    """
    needed = range(max(start + 1, stop - own.num_drafts), stop) if own.num_drafts else range(0)
    own.saves.update(zip(needed, snapshots.take(len(needed)), strict=True))
    due = positions_saved(start, stop, interval, saves, [own.junction])
    own.due.update(position for position in due if position in needed)
    new = [p for p in due if p not in needed and snapshots.find(own.prefix_of(p)) is None]
    new.sort(key=lambda position: (position != own.junction, -position))
    for position in new[: snapshots.num_free]:
        (own.saves[position],) = snapshots.take(1)
        own.due.add(position)
    positions = sorted(position for position in own.saves if start < position <= stop)
    return positions, [own.saves[position] for position in positions]


def settle(snapshots: Snapshots, own: SnapshotRequest, kept: int) -> None:
    """Let the request go on from the state after its kept tokens; what it saved before that are snapshots."""
    release = [slot for slot in own.held if slot != own.source]
    own.held = [slot for slot in own.held if slot == own.source]  # no step has copied it yet
    if kept < own.prefix.num_scheduled:
        release = _roll_back(snapshots, own, kept, release)
    for position, slot in sorted(own.saves.items()):
        if position in own.due and position <= kept:
            snapshots.publish(own.prefix_of(position), slot, own.needs(position))
        release.append(slot)
    snapshots.release(release)
    own.saves, own.due, own.num_drafts = {}, set(), 0


def publish(index: PrefixIndex[GroupKey], own: SnapshotRequest, num_tokens: int) -> None:
    """Let others hit the full blocks of a request's first tokens, those of every group."""
    for number, prefix in enumerate(own.rows):
        prefix.num_computed = num_tokens
        start, stop = prefix.num_published, num_tokens // prefix.block_size
        if start < stop:
            index.publish(own.keys(number, start, stop), prefix.row, start, prefix.of_blocks(start, stop)[1])
            prefix.num_published = stop


def prune(index: PrefixIndex[GroupKey], own: SnapshotRequest) -> None:
    """Let go of the blocks that the window of the next token does not see."""
    gone: list[int] = []
    for group, prefix in zip(own.groups, own.rows, strict=True):
        stop = min(group.first_block(prefix.num_computed), len(prefix.row))
        gone += [block for block in prefix.row[:stop] if block != NULL]
        prefix.row[:stop] = [NULL] * stop
    index.release(gone)


def _roll_back(snapshots: Snapshots, own: SnapshotRequest, kept: int, release: list[int]) -> list[int]:
    """Go on from the state after `kept` tokens; return the state slots to let go of."""
    slot = own.saves.pop(kept, own.before)
    if kept in own.due:
        own.due.discard(kept)
        if snapshots.publish(own.prefix_of(kept), slot, own.needs(kept)):
            own.source, own.held = slot, [slot]
            return release
    if slot in release:
        own.source, own.held = slot, [slot]
        return [other for other in release if other != slot]
    release.append(own.state)
    own.source = own.state = slot
    return release
