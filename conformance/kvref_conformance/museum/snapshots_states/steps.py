"""Faults of aborts, refusals, namespaces, resets and odd requests."""

from collections.abc import Sequence
from typing import Any

from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.programs.asking_snapshots import SNAPSHOTS
from kvref_conformance.subjects.lists.naming import Content
from kvref_conformance.subjects.lists.snapshots import SnapshotLists
from kvref_conformance.subjects.lists.steps import Step

SIZES = (4,)


@exhibit(
    as_if="an aborted request had published what it never computed",
    fault="F04 stale entry",
    breaks=("KV-SNAP-016",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    program="admit 1 1 4; abort 1; admit 2 1 5",
)
class AbortPublishesItsStep(SnapshotLists):
    """However a request ends, its blocks and saves go to the cache.

    A plant: the step that was to write them is not run.
    """

    def abort(self, request: int) -> None:
        """Publish the step in flight."""
        one, own = self.requests.get(request), self.running[request]
        if own.step is not None:
            self.publish(one, own.step.stop)
            self.publish_states(one, own.step, own.step.stop)
        super().abort(request)


@exhibit(
    as_if="a request without blocks kept the state slot that it was given first",
    fault="F08 leak",
    breaks=("KV-SNAP-017",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    program="admit 1 1 32; admit 2 2 1",
)
class RefusedRequestKeepsAState(SnapshotLists):
    """A slot is taken, then there are no blocks, and the request is put back into the queue.

    A plant: it takes another slot the next time.
    """

    def make_room(self, count: int, hits: list[int]) -> None:
        """Take a slot before the blocks are there."""
        try:
            super().make_room(count, hits)
        except Exception:
            if self.states.waiting:
                self.states.take()
            raise


@exhibit(
    as_if="a save were placed at the end of the block, where the step had not come to",
    fault="F01 boundary",
    breaks=("KV-SNAP-018",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    program="admit 1 1 1",
)
class SavesBehindItsStep(SnapshotLists):
    """The number of blocks is rounded up, and the last of them is taken for full.

    A plant: the runner has no state to save there.
    """

    def told(self, step: Step) -> tuple[int, int, list[int], list[int]]:
        """Save at the end of the last block."""
        source, state, positions, slots = super().told(step)
        end = -(-step.stop // self.block_size) * self.block_size
        if end == step.stop or not self.states.waiting:
            return source, state, positions, slots
        return source, state, [*positions, end], [*slots, self.states.waiting[0]]


@exhibit(
    as_if="a state were found without its namespace",
    fault="F03 cache key",
    breaks=("KV-SNAP-019",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    features=("salt",),
    program="salt 1 1; admit 1 1 4; commit 1; admit 2 1 4; commit 2; admit 3 1 5",
)
class StatesOfEveryNamespace(SnapshotLists):
    """Blocks have the salt in their keys, states are found by tokens.

    A plant: the blocks keep tenants apart until both have the same prompt.
    """

    def find_state(self, content: Content, stop: int) -> int | None:
        """Look at tokens alone."""
        items = content.items(0, stop)
        return next((slot for (_, known), slot in self.states.known if known == items), None)


@exhibit(
    as_if="a state were found without the version of its adapter",
    fault="F03 cache key",
    breaks=("KV-SNAP-019",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    features=("adapter", "adapter_version"),
    program="adapter 1 1; version 1 1; admit 1 1 4; commit 1; adapter 2 1; admit 2 1 4; commit 2; "
    "adapter 3 1; admit 3 1 5",
)
class StatesOfEveryVersion(SnapshotLists):
    """An adapter is loaded anew under its old name, and what was computed with the old weights is restored.

    A plant: blocks have the version in their keys, so it shows when both versions have seen the prompt.
    """

    def find_state(self, content: Content, stop: int) -> int | None:
        """Look at tokens, adapter and salt."""
        (adapter, _, salt), items = self.name(content, stop)
        found = (s for ((a, _, b), known), s in self.states.known if (a, b, known) == (adapter, salt, items))
        return next(found, None)


@exhibit(
    as_if="a reset forgot blocks and kept states",
    fault="F21 one path only",
    breaks=("KV-SNAP-020",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    program="admit 1 1 4; commit 1; finish 1; reset; admit 2 1 4; commit 2; admit 3 1 5",
)
class ResetKeepsStates(SnapshotLists):
    """New weights come, the blocks go, and the states of the old ones are found.

    A plant: not at once, but as soon as the blocks of the prompt are there again.
    """

    def reset(self) -> None:
        """Keep the states."""
        known = list(self.states.known)
        super().reset()
        self.states.known = known


@exhibit(
    as_if="a reset were accepted while requests are there",
    fault="F07 ownership",
    breaks=("KV-SNAP-020",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    program="admit 1 1 1; reset",
)
class ResetUnderStates(SnapshotLists):
    """A reset forgets every prefix, whoever goes on from it.

    A plant: what live requests save next is published under weights that are not theirs.
    """

    def reset(self) -> None:
        """Forget."""
        self.known.clear()
        self.states.known.clear()


@exhibit(
    as_if="a second admission of a request had replaced the first",
    fault="F07 ownership",
    breaks=("KV-SNAP-021",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    program="admit 1 1 1; again 1",
)
class SecondAdmissionReplacesTheState(SnapshotLists):
    """A request with a number that is taken replaces the one before.

    A plant: what the first one runs in is let go of under it.
    """

    def admit(self, request: int, tokens: Sequence[int], max_new_tokens: int, **given: Any) -> Any:
        """End the one before."""
        if any(one.number == request for one in self.requests.live):
            super().abort(request)
        return super().admit(request, tokens, max_new_tokens, **given)


@exhibit(
    as_if="a request had been extended while its step is in flight",
    fault="F05 in flight",
    breaks=("KV-SNAP-023",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    program="admit 1 1 1; ahead 1",
)
class ExtendedInFlight(SnapshotLists):
    """The next step is scheduled as if the one in flight had been computed.

    A plant: it starts from a state that nobody has written yet.
    """

    def extend(self, request: int, tokens: Sequence[int], max_new_tokens: int, num_drafts: int = 0) -> Any:
        """Take the step in flight for done."""
        if request in self.running and self.running[request].step is not None:
            self.commit(request)
        return super().extend(request, tokens, max_new_tokens, num_drafts)
