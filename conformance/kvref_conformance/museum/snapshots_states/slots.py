"""Faults of state slots: of another request, of nobody, leaked, and refused."""

from collections.abc import Sequence
from typing import Any

from kvref.errors import OutOfStatesError
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.programs.asking_snapshots import SNAPSHOTS
from kvref_conformance.subjects.lists.requests import Request
from kvref_conformance.subjects.lists.snapshots import SnapshotLists
from kvref_conformance.subjects.lists.steps import ZEROS, Running, Step

DRAFTS = ("drafts",)
SIZES = (4,)


@exhibit(
    as_if="requests that restore one snapshot ran in one state slot",
    fault="F07 ownership",
    breaks=("KV-SNAP-009",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    program="admit 1 1 4; commit 1; admit 2 1 5; admit 3 1 5",
)
class ForksShareAState(SnapshotLists):
    """Samples of one prompt hold its blocks together, and its state as well.

    A plant: each of them steps it.
    """

    def restore(self, one: Request, source: int) -> Step:
        """Run where another does that restored the same."""
        for own in self.running.values():
            if source != ZEROS and own.step is not None and own.step.source == source != own.step.state:
                self.states.hold(source)
                self.states.hold(own.step.state)
                return Step(one.hit, one.scheduled, source, own.step.state)
        return super().restore(one, source)


@exhibit(
    as_if="states were found by row of an earlier batch",
    fault="F18 row mapping",
    seen_in=("wtdcode/vllm-backport#63",),
    breaks=("KV-SNAP-009",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    program="admit 1 1 1; admit 2 2 1; admit 3 3 1; commit 2; commit 3; abort 1; decode 2 1 1",
)
class RowOfAnEarlierBatch(SnapshotLists):
    """A request's row is noted when its step begins, and read in the table of a later one.

    Steps overlap. When a request before it has left, the row is somebody else's.
    """

    def commit(self, request: int, num_accepted: int | None = None) -> None:
        """Note the row."""
        super().commit(request, num_accepted)
        row = [one.number for one in self.requests.live].index(request)
        self.__dict__.setdefault("rows", {})[id(self.running[request])] = row

    def told(self, step: Step) -> tuple[int, int, list[int], list[int]]:
        """Name the state of whoever has the row now."""
        source, state, positions, slots = super().told(step)
        own = next(own for own in self.running.values() if own.step is step)
        row = self.__dict__.get("rows", {}).get(id(own))
        if row is not None and row < len(self.requests.live):
            other = self.running[self.requests.live[row].number]
            source = source if other is own or other.slot == ZEROS else other.slot
        return source, state, positions, slots


@exhibit(
    as_if="the slot that padding rows write to were handed out",
    fault="F09 padding",
    seen_in=("sgl-project/sglang#16714",),
    breaks=("KV-SNAP-010",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    program="admit 1 1 1",
)
class SlotOfPadding(SnapshotLists):
    """An index stands for no request, and one request has it.

    In the report rows of padding write to the last slot. Here that slot is behind those there are.
    """

    def __init__(self, *opened: Any, **named: Any) -> None:
        super().__init__(*opened, **named)
        self.states.waiting[0] = self.states.num_states
        self.states.holders.append(0)


@exhibit(
    as_if="an abort let go of blocks and kept the state",
    fault="F08 leak",
    breaks=("KV-SNAP-010",),
    may_also_break=("KV-SNAP-011", "KV-SNAP-017", "KV-SNAP-025"),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    program="admit 1 1 1; abort 1",
)
class AbortKeepsTheState(SnapshotLists):
    """One of two ways to end a request knows of states.

    A plant: each client that hangs up costs a slot.
    """

    def abort(self, request: int) -> None:
        """Let go of blocks."""
        one = self.requests.get(request)
        self.end(one)
        del self.running[request]


@exhibit(
    as_if="an abort let go of the snapshot that it restored twice",
    fault="F07 ownership",
    breaks=("KV-SNAP-010",),
    may_also_break=("KV-SNAP-005", "KV-SNAP-006", "KV-SNAP-009"),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    program="admit 1 1 4; commit 1; finish 1; admit 2 1 5; admit 3 1 5; abort 2; admit 4 2 1; admit 5 3 1",
)
class AbortLetsGoTwice(SnapshotLists):
    """The step in flight lets go of its source, and the request lets go of what it holds, the source too.

    A plant: with one reader nothing happens, for nobody holds it any more. With two, the other one's source
    is handed out under it.
    """

    def abort(self, request: int) -> None:
        """Let go of the source once more, if anybody holds it."""
        own = self.running.get(request, Running())
        super().abort(request)
        if own.step is not None and own.step.source != ZEROS and self.states.holders[own.step.source]:
            self.states.let_go(own.step.source)


@exhibit(
    as_if="a finished request let go of what it saved and not of the state it ran in",
    fault="F08 leak",
    breaks=("KV-SNAP-010",),
    may_also_break=("KV-SNAP-011", "KV-SNAP-017", "KV-SNAP-025"),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    program="admit 1 1 1; commit 1; finish 1",
)
class FinishKeepsTheState(SnapshotLists):
    """The last state of a request is neither given to the cache nor given back.

    A plant: the cache works until every slot is gone.
    """

    def end_states(self, one: Request) -> None:
        """Let go of what a step in flight has, and nothing else."""
        own = self.running.pop(one.number)
        if own.step is not None:
            self.let_go_of(own.step)


@exhibit(
    as_if="what was saved for rejections that did not come were kept",
    fault="F08 leak",
    breaks=("KV-SNAP-010",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    features=DRAFTS,
    program="admit 1 1 1; commit 1; draft 1 1 1 2; commit 1",
)
class StatesOfDraftsKept(SnapshotLists):
    """The state for every number of accepted drafts has a slot, and one of them is used.

    A plant: the others are let go of where something is rejected, and not where nothing is.
    """

    def let_go_of(self, step: Step) -> None:
        """Keep what was saved beside snapshots."""
        if step.num_drafts:
            for slot in {slot for _, slot in step.saves} - {step.state}:
                if not self.states.is_snapshot(slot):
                    self.states.hold(slot)
        super().let_go_of(step)


@exhibit(
    as_if="snapshots that nobody restores were not counted as slots that can be had",
    fault="F22 no progress",
    breaks=("KV-SNAP-011",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    program="admit 1 1 20; commit 1; admit 2 2 1",
)
class RefusesBeforeEvicting(SnapshotLists):
    """A request waits for a free slot while all of them are snapshots.

    A plant: on an idle server it waits for ever.
    """

    def admit(self, request: int, tokens: Sequence[int], max_new_tokens: int, **given: Any) -> Any:
        """Ask for a slot that is no snapshot."""
        if all(self.states.is_snapshot(slot) for slot in self.states.waiting):
            raise OutOfStatesError("no state slot is free")
        return super().admit(request, tokens, max_new_tokens, **given)


@exhibit(
    as_if="the block behind a prompt of whole blocks were looked up and is not there",
    fault="F01 boundary",
    seen_in=("vllm-project/vllm#44637",),
    breaks=("KV-SNAP-011",),
    may_also_break=("KV-SNAP-017",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    program="admit 1 1 4",
)
class BlockBehindTheLast(SnapshotLists):
    """Where a state is copied to is the block of the next token, which has none yet.

    A prompt that ends with a block fails with an index error, the first one already.
    """

    def admit(self, request: int, tokens: Sequence[int], max_new_tokens: int, **given: Any) -> Any:
        """Look at the block of the token behind the last."""
        range(-(-len(tokens) // self.block_size))[len(tokens) // self.block_size]
        return super().admit(request, tokens, max_new_tokens, **given)
