"""What a snapshot cache does for one request: find its joint hit, take its memory, save its states, settle.

Every group of layers has its own condition for resuming after p tokens, and all of them must hold at one p.
Attention to everything needs the blocks of all p tokens, a window of W those of the last W − 1, recurrent
layers the state after exactly p. There is no least or greatest of these to be taken: a state at 32 and blocks
to 48 are a hit of 32 tokens, a state at 48 and blocks to 32 are none.

Realises: KV-SNAP-002 snapshot-exact-position, KV-SNAP-003 hit-in-every-group, KV-SNAP-008
snapshot-leaves-one, KV-SNAP-013 junction-snapshot, KV-SNAP-014 longest-joint-hit, KV-SNAP-015 draft-rollback,
KV-SNAP-022 window-group-hit.
For porters: look from the longest prefix down, and stop at the first position where every group agrees.
Source: vLLM's hybrid coordinator finds the same length by shrinking it group by group.
"""

from typing import NamedTuple

from kvref.memory.admission import hit_limit, scheduled_until
from kvref.memory.prefix import PrefixIndex
from kvref.memory.prefix_request import NULL
from kvref.memory.snapshot_request import ZEROS, SnapshotRequest, first_seen, positions_saved
from kvref.memory.snapshots import Snapshots


class JointHit(NamedTuple):
    """Where a request can resume: after how many tokens, over which blocks, from which state.

    `attention_tokens` is how far the blocks alone would reach.
    """

    num_tokens: int
    row: list[int]
    source: int
    attention_tokens: int


def joint_hit(
    index: PrefixIndex[bytes], snapshots: Snapshots, new: SnapshotRequest, window: int | None
) -> JointHit:
    """Find the longest prefix of a prompt that every group of layers has."""
    prefix = new.prefix
    size = prefix.block_size
    limit = hit_limit("block_floor", prefix.num_prompt, size) // size
    found: list[int | None] = []
    run, reach = 0, [0]  # found one after another before here; where the blocks suffice, in blocks
    for at in range(limit):
        keys, contents = prefix.of_blocks(at, at + 1)
        found.append(index.find(keys[0], contents[0] if contents else None))
        run = 0 if found[-1] is None else run + 1
        if run >= at + 1 - first_seen((at + 1) * size, window) // size:
            reach.append(at + 1)
    for stop in reversed(reach):
        source = snapshots.find(new.prefix_of(stop * size)) if stop else ZEROS
        if source is not None:
            first = first_seen(stop * size, window) // size
            row = [NULL] * first + [block for block in found[first:stop] if block is not None]
            return JointHit(stop * size, row, source, reach[-1] * size)
    raise AssertionError("zero tokens can always be hit")


def take(
    index: PrefixIndex[bytes],
    snapshots: Snapshots,
    new: SnapshotRequest,
    window: int | None,
    max_new_tokens: int | None,
) -> JointHit:
    """Hold a new request's hit, and memory for its first step: blocks, a state slot of its own.

    Where no other state slot can be had, the snapshot itself becomes the running state.
    Raises: OutOfBlocksError or OutOfStatesError, and nothing has changed.
    """
    snapshots.check_free(1)
    prefix, hit = new.prefix, joint_hit(index, snapshots, new, window)
    stop = scheduled_until(hit.num_tokens, prefix.num_prompt, max_new_tokens)
    hits = [block for block in hit.row if block != NULL]
    prefix.row = hit.row + index.take(hits, -(-stop // prefix.block_size) - len(hit.row))
    restored = [] if hit.source == ZEROS else [hit.source]
    for source in restored:
        snapshots.hold(source)  # the blocks just taken may be those it is found by, below a window
    snapshots.forget(index.lost)
    prefix.num_scheduled, prefix.num_computed = stop, hit.num_tokens
    prefix.num_published = len(hit.row)
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


def settle(snapshots: Snapshots, own: SnapshotRequest, kept: int, window: int | None) -> None:
    """Let the request go on from the state after its kept tokens; what it saved before that are snapshots."""
    release = [slot for slot in own.held if slot != own.source]
    own.held = [slot for slot in own.held if slot == own.source]  # no step has copied it yet
    if kept < own.prefix.num_scheduled:
        release = _roll_back(snapshots, own, kept, release, window)
    for position, slot in sorted(own.saves.items()):
        if position in own.due and position <= kept:
            snapshots.publish(own.prefix_of(position), slot, needs(own, position, window))
        release.append(slot)
    snapshots.release(release)
    own.saves, own.due, own.num_drafts = {}, set(), 0


def needs(own: SnapshotRequest, position: int, window: int | None) -> list[bytes]:
    """List the keys of the blocks without which nobody can resume at a position.

    Without a window they are all of them, and the last stands for all: it is evicted first.
    """
    size, stop = own.prefix.block_size, position // own.prefix.block_size
    first = stop - 1 if window is None else min(stop - 1, first_seen(position, window) // size)
    return own.prefix.keys[first:stop]


def _roll_back(
    snapshots: Snapshots, own: SnapshotRequest, kept: int, release: list[int], window: int | None
) -> list[int]:
    """Go on from the state after `kept` tokens; return the state slots to let go of."""
    slot = own.saves.pop(kept, own.before)
    if kept in own.due:
        own.due.discard(kept)
        if snapshots.publish(own.prefix_of(kept), slot, needs(own, kept, window)):
            own.source, own.held = slot, [slot]
            return release
    if slot in release:
        own.source, own.held = slot, [slot]
        return [other for other in release if other != slot]
    release.append(own.state)
    own.source = own.state = slot
    return release
