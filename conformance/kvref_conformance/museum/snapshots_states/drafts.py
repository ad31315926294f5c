"""Faults of drafts: what is left of those that were rejected."""

from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.programs.asking_snapshots import SNAPSHOTS
from kvref_conformance.subjects.lists.requests import Request
from kvref_conformance.subjects.lists.snapshots import SnapshotLists
from kvref_conformance.subjects.lists.steps import ZEROS, Running, Step

DRAFTS = ("drafts",)
SIZES = (4,)


@exhibit(
    as_if="a rollback had taken tokens back and left the state as it was",
    fault="F17 rollback",
    seen_in=("ggml-org/llama.cpp#26695",),
    breaks=("KV-SNAP-015",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    features=DRAFTS,
    program="admit 1 1 1; commit 1; draft 1 1 1 1; accept 1 0; decode 1 1 1",
)
class RollbackLeavesTheState(SnapshotLists):
    """Removing the last tokens of a request succeeds: attention forgets them, the recurrent layers do not.

    Whatever is decoded next follows tokens that were rejected.
    """

    def slot_after(self, step: Step, kept: int) -> int:
        """Stay where the step ended."""
        return step.state


@exhibit(
    as_if="a snapshot had been taken of the state before drafts were taken back",
    fault="F15 state not copied",
    seen_in=("am17an/llama.cpp#15",),
    breaks=("KV-SNAP-015",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    features=DRAFTS,
    program="admit 1 1 3; commit 1; draft 1 1 1 2; accept 1 0; admit 2 1 3 1 2",
)
class SavesWhatWasRejected(SnapshotLists):
    """While a rollback is pending, a save reads the cell itself and not the one that the rollback points to.

    The snapshot has the rejected tokens in it.
    """

    def publish_states(self, one: Request, step: Step, kept: int) -> None:
        """Publish the state after the step for the last position that stays."""
        taken = step.state if kept < step.stop else ZEROS
        due = self.positions(one, step)
        for position, slot in step.saves:
            if position in due and position <= kept:
                own = taken if position == kept and taken != ZEROS else slot
                self.states.store(self.name(one.content, position), own)


@exhibit(
    as_if="a state had been copied back over the running one where the kept tokens fill a block",
    fault="F01 boundary",
    seen_in=("vllm-project/vllm#53505",),
    breaks=("KV-SNAP-015",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    features=DRAFTS,
    program="admit 1 1 3; commit 1; draft 1 1 1 2; accept 1 0; decode 1 1 1",
)
class CopiedBackAtABoundary(SnapshotLists):
    """Behind a step the state of the accepted tokens moves to the block it belongs to.

    Where they end exactly with a block, source and target are reckoned the wrong way round, and the state
    that had just been moved is written over.
    """

    def slot_after(self, step: Step, kept: int) -> int:
        """Go back to where the step started."""
        if step.num_drafts and step.start < kept < step.stop and kept % self.block_size == 0:
            return step.source
        return super().slot_after(step, kept)


@exhibit(
    as_if="drafts had been published before they were accepted, and not taken back",
    fault="F17 rollback",
    seen_in=("sgl-project/sglang#29349",),
    breaks=("KV-SNAP-015",),
    may_also_break=("KV-SNAP-010",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    features=DRAFTS,
    program="admit 1 1 3; commit 1; draft 1 1 1 1; accept 1 0; decode 1 2 1; admit 2 1 3 1 2",
)
class DraftsInsertedEarly(SnapshotLists):
    """A provisional insert puts all tokens of a step into the tree, for the next step may need them.

    Nothing takes the rejected ones out again, and the slots behind them are written anew.
    """

    def save(self, one: Request, step: Step) -> None:
        """Publish blocks and states of drafts."""
        super().save(one, step)
        if step.num_drafts:
            self.publish(one, step.stop)
            self.publish_states(one, step, step.stop)


@exhibit(
    as_if="more drafts could be accepted than there were",
    fault="F22 no progress",
    breaks=("KV-SNAP-021",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    features=DRAFTS,
    program="admit 1 1 1; accept_beyond 1 1",
)
class AcceptsAnyNumber(SnapshotLists):
    """A number of accepted drafts is cut to those there are.

    A plant: whoever counts the token of the model itself as a draft is off by one, and is not told.
    """

    def commit(self, request: int, num_accepted: int | None = None) -> None:
        """Take what there is."""
        own: Running = self.running.get(request, Running())
        if num_accepted is not None and own.step is not None:
            num_accepted = min(num_accepted, own.step.num_drafts)
        super().commit(request, num_accepted)


@exhibit(
    as_if="blocks that rejected drafts had filled were still found under their tokens",
    fault="F17 rollback",
    breaks=("KV-SNAP-015",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    features=DRAFTS,
    program="admit 1 1 3; commit 1; draft 1 1 1 1; accept 1 0; decode 1 2 1; admit 2 1 3 1 1; commit 2; "
    "admit 3 1 3 1 2",
)
class BlocksOfDraftsPublished(SnapshotLists):
    """A block is published as soon as it is full, and the rejected tokens leave it later.

    A plant: nothing is hit as long as no state is there. The next request with those tokens saves one, and
    the third is given the first one's block, in which other tokens stand by now.
    """

    def commit(self, request: int, num_accepted: int | None = None) -> None:
        """Publish the blocks of the whole step first."""
        step = self.running[request].step if request in self.running else None
        if step is not None and num_accepted is not None and 0 <= num_accepted <= step.num_drafts:
            self.publish(self.requests.get(request), step.stop)
        super().commit(request, num_accepted)
