"""Faults of restoring, of what is kept, and of hits that never come."""

from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.programs.asking_snapshots import SNAPSHOTS
from kvref_conformance.subjects.lists.naming import Content
from kvref_conformance.subjects.lists.requests import Request
from kvref_conformance.subjects.lists.snapshots import SnapshotLists
from kvref_conformance.subjects.lists.steps import NULL, ZEROS, Step

SIZES = (4,)


@exhibit(
    as_if="a restored state were run in place",
    fault="F15 state not copied",
    breaks=("KV-SNAP-005",),
    may_also_break=("KV-SNAP-009", "KV-SNAP-025"),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    program="admit 1 1 4; commit 1; admit 2 1 5; admit 3 1 5",
)
class RunsInTheSnapshot(SnapshotLists):
    """A request that hits a snapshot goes on in its slot.

    A plant: blocks are shared that way, and a state is not: its next token changes all of it.
    """

    def restore(self, one: Request, source: int) -> Step:
        """Hold the snapshot and run in it."""
        if source == ZEROS:
            return super().restore(one, source)
        self.states.hold(source)
        return Step(one.hit, one.scheduled, source, source)


@exhibit(
    as_if="what a step is going to compute had been published when it was scheduled",
    fault="F04 stale entry",
    breaks=("KV-SNAP-006",),
    may_also_break=("KV-SNAP-016",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    program="admit 1 1 4; admit 2 1 5",
)
class PublishedWhenScheduled(SnapshotLists):
    """Blocks and states have their keys as soon as they have a place.

    A plant: of blocks this is a choice, for the step that reads them may come behind the one that writes.
    The state at the end of a step is not there while the step runs.
    """

    publish_time = "scheduled"

    def save(self, one: Request, step: Step) -> None:
        """Publish what will be saved."""
        super().save(one, step)
        self.publish_states(one, step, step.stop)


@exhibit(
    as_if="the copy of a restored state had been staged and never made",
    fault="F15 state not copied",
    seen_in=("sgl-project/sglang#32450",),
    breaks=("KV-SNAP-006",),
    may_also_break=("KV-SNAP-001", "KV-SNAP-002", "KV-SNAP-005", "KV-SNAP-010", "KV-SNAP-024"),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    program="admit 1 1 4; commit 1; admit 2 1 5",
)
class StagedCopyNeverMade(SnapshotLists):
    """Copies from snapshots are put on a list, which only one of two runners works off.

    On the other one the prompt goes on from whatever its state slot holds.
    """

    def restore(self, one: Request, source: int) -> Step:
        """Start from the new slot."""
        step = super().restore(one, source)
        if source in (ZEROS, step.state):
            return step
        self.states.let_go(source)
        return Step(step.start, step.stop, step.state, step.state)


@exhibit(
    as_if="a new request started from what its state slot held",
    fault="F15 state not copied",
    seen_in=("state-spaces/mamba#743",),
    breaks=("KV-SNAP-007",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    program="admit 1 1 1",
)
class StartsFromTheLastOnesState(SnapshotLists):
    """Nothing is cached, and nobody says that the state has to be zeros.

    In the report states are kept by layer alone, and the next batch finds those of the last one.
    """

    def told(self, step: Step) -> tuple[int, int, list[int], list[int]]:
        """Name the slot."""
        source, state, positions, slots = super().told(step)
        return state if source == ZEROS else source, state, positions, slots


@exhibit(
    as_if="a prompt that is cached as a whole were restored behind its last token",
    fault="F01 boundary",
    breaks=("KV-SNAP-008",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    program="admit 1 1 4; commit 1; admit 2 1 4",
)
class RestoredBehindTheLastToken(SnapshotLists):
    """The state after the whole prompt is there, so nothing has to be computed.

    A plant: to have its logits the last token is computed again, on a state that has seen it.
    """

    def joint_hit(self, content: Content, num_tokens: int) -> tuple[int, list[int], int]:
        """Look one token further."""
        return super().joint_hit(content, num_tokens + 1)


@exhibit(
    as_if="a snapshot that was evicted took the blocks of its prefix along",
    fault="F04 stale entry",
    breaks=("KV-SNAP-012",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    program="admit 1 1 8; commit 1; finish 1; admit 2 2 4; admit 3 1 9",
)
class StateTakesItsBlocksAlong(SnapshotLists):
    """A node without its state is removed, whoever lies behind it.

    A plant: the blocks are good for every snapshot further on.
    """

    def save(self, one: Request, step: Step) -> None:
        """Look whose snapshots were lost, and forget their last blocks."""
        before = [name for name, _ in self.states.known]
        super().save(one, step)
        lost = set(before) - {name for name, _ in self.states.known}
        self.known = [(name, block) for name, block in self.known if name not in lost]


@exhibit(
    as_if="a lost block took every snapshot of its prompt along, those before it as well",
    fault="F04 stale entry",
    breaks=("KV-SNAP-012",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    program="admit 1 1 8; commit 1; finish 1; admit 2 2 8; abort 2; admit 3 1 5",
)
class BlockTakesAllStatesAlong(SnapshotLists):
    """The states of a path are kept in one list, which goes with the first block that does.

    A plant: a state needs the blocks before it, and no other.
    """

    def forget(self, block: int) -> None:
        """Forget every state that begins alike."""
        names = [name for name, known in self.known if known == block]
        super().forget(block)
        for texts, items in names:
            self.states.forget_under((texts, items[: self.block_size]))


@exhibit(
    as_if="no state were saved where a request parts from a cached prefix",
    fault="F21 one path only",
    breaks=("KV-SNAP-013",),
    may_also_break=("KV-SNAP-025",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    features=("junctions",),
    program="admit 1 1 4; commit 1; admit 2 1 5; commit 2; admit 3 1 5",
)
class JunctionNeverSaved(SnapshotLists):
    """Snapshots are taken at multiples of the interval, and nowhere else.

    A plant: a system prompt that ends between two of them is computed again for every user.
    """

    saves_junctions = False


@exhibit(
    as_if="a prompt were looked up at one place only, and not walked back to a state",
    fault="F15 state not copied",
    seen_in=("sgl-project/sglang#22935",),
    breaks=("KV-SNAP-014",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    program="admit 1 1 12; commit 1; admit 2 1 13",
)
class SplitLosesTheState(SnapshotLists):
    """A lookup of all tokens but the last splits the last edge, and the new node has no state.

    The longest match is a node without a state, and the hit is 0, though a shorter one has a state.
    """

    def joint_hit(self, content: Content, num_tokens: int) -> tuple[int, list[int], int]:
        """Ask for the longest run of blocks and nothing shorter."""
        stop = len(self.find(content, num_tokens - 1)) * self.block_size
        found = super().joint_hit(content, num_tokens)
        return found if found[0] == stop else (0, [], ZEROS)


@exhibit(
    as_if="a state were kept at the last boundary and asked for one block lower",
    fault="F01 boundary",
    seen_in=("local-inference-lab/vllm#556",),
    breaks=("KV-SNAP-014",),
    may_also_break=(
        "KV-SNAP-012",
        "KV-SNAP-017",
        "KV-SNAP-020",
    ),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    program="admit 1 1 4; commit 1; admit 2 1 5",
)
class AskedOneBlockLower(SnapshotLists):
    """With drafts the lookup leaves a block out, and retention keeps the state that is left out.

    The same prompt, sent again, hits nothing.
    """

    def joint_hit(self, content: Content, num_tokens: int) -> tuple[int, list[int], int]:
        """Leave the last block out."""
        return super().joint_hit(content, max(1, num_tokens - self.block_size))


@exhibit(
    as_if="a hit under a window asked for less than the window sees",
    fault="F01 boundary",
    breaks=("KV-SNAP-022",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    features=("window",),
    program="admit 1 1 4; commit 1; admit 2 1 5",
)
class WindowCutShort(SnapshotLists):
    """The blocks that the window sees are counted from the block after the first of them.

    A plant: the first tokens behind the hit read what nobody wrote.
    """

    def find_blocks(self, content: Content, stop: int) -> list[int] | None:
        """Leave a block out."""
        found, first = super().find_blocks(content, stop), self.first_seen(stop) // self.block_size
        if self.window and found and first < len(found):
            found[first] = NULL
        return found


@exhibit(
    as_if="a hit under a window asked for all blocks of its prefix",
    fault="F04 stale entry",
    breaks=("KV-SNAP-022",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    features=("window",),
    program="admit 1 1 8; commit 1; admit 2 2 12; abort 2; admit 3 1 9",
)
class WindowForgotten(SnapshotLists):
    """Blocks that no layer will read again are asked for.

    A plant: the hit is lost with a block that nobody needs.
    """

    def find_blocks(self, content: Content, stop: int) -> list[int] | None:
        """Ask for all."""
        ends = range(self.block_size, stop + 1, self.block_size)
        if any(self.look_up(self.name(content, end)) is None for end in ends):
            return None
        return super().find_blocks(content, stop)
