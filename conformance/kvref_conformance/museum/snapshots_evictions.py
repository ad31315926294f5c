"""Faults of evictions in a snapshot cache: which snapshots go, and for what none does."""

from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.programs.asking_snapshots import SNAPSHOTS
from kvref_conformance.subjects.lists.requests import Request
from kvref_conformance.subjects.lists.snapshots import SnapshotLists
from kvref_conformance.subjects.lists.states import States
from kvref_conformance.subjects.lists.steps import Step

SIZES = (4,)


class _NewestInFront(States):
    def put_back(self, slot: int) -> None:
        """Let a snapshot wait in front of all other snapshots."""
        idle = sum(not self.is_snapshot(other) for other in self.waiting)
        self.waiting.insert(idle if self.is_snapshot(slot) else 0, slot)


@exhibit(
    as_if="the snapshot that was used last were evicted first",
    fault="F06 order",
    breaks=("KV-SNAP-024",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    program="admit 1 1 4; commit 1; finish 1; admit 2 2 4; commit 2; admit 3 3 4; commit 3; finish 3; "
    "admit 4 4 4",
)
class NewestSnapshotGoesFirst(SnapshotLists):
    """Snapshots that are let go of join the list of free slots where slots are taken from.

    A plant: a stack in place of a queue. Everything works while there are slots enough.
    """

    def __init__(
        self, num_blocks: int, block_size: int, num_states: int, snapshot_interval: int, window: int = 0
    ) -> None:
        super().__init__(num_blocks, block_size, num_states, snapshot_interval, window)
        self.states = _NewestInFront(num_states)


class _InOrderOfSaving(States):
    def put_back(self, slot: int) -> None:
        """Let a snapshot wait where it has stood since it was saved."""
        super().put_back(slot)
        saved = [known for _, known in self.known]
        self.waiting.sort(key=lambda other: saved.index(other) if other in saved else -1)


@exhibit(
    as_if="a restore had not counted as a use",
    fault="F06 order",
    breaks=("KV-SNAP-024",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    program="admit 1 1 4; commit 1; finish 1; admit 2 2 4; commit 2; finish 2; admit 3 1 5; commit 3; "
    "finish 3; admit 4 4 4",
)
class RestoresRenewNothing(SnapshotLists):
    """Snapshots go in the order in which they were saved.

    A plant: the system prompt, saved first and restored by everybody, is the first to be lost.
    """

    def __init__(
        self, num_blocks: int, block_size: int, num_states: int, snapshot_interval: int, window: int = 0
    ) -> None:
        super().__init__(num_blocks, block_size, num_states, snapshot_interval, window)
        self.states = _InOrderOfSaving(num_states)


@exhibit(
    as_if="snapshots had been saved in slots that held none, and nowhere else",
    fault="F22 no progress",
    breaks=("KV-SNAP-025",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    program="admit 1 1 4; commit 1; admit 2 2 4",
)
class FirstComersKeepTheirSlots(SnapshotLists):
    """A state that is due is saved while a slot is empty. When none is, nothing makes room for it.

    A plant: requests are served as before, and the cache answers those alone whose prompts came first.
    """

    def positions(self, one: Request, step: Step) -> list[int]:
        """Leave out what no empty slot is left for."""
        empty = sum(not self.states.is_snapshot(slot) for slot in self.states.waiting)
        known = [p for p in super().positions(one, step) if p in dict(step.saves)]
        return known or super().positions(one, step)[:empty]
