"""Faults of what a hit restores: another prefix, another position, another group."""

from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.programs.asking_snapshots import SNAPSHOTS
from kvref_conformance.subjects.lists.naming import Content, Name
from kvref_conformance.subjects.lists.requests import Request
from kvref_conformance.subjects.lists.snapshots import SnapshotLists
from kvref_conformance.subjects.lists.steps import ZEROS, Step

SIZES = (4,)


@exhibit(
    as_if="prefixes were told apart by their length alone",
    fault="F03 cache key",
    seen_in=("ollama/ollama#17599",),
    breaks=("KV-SNAP-001",),
    may_also_break=("KV-SNAP-003", "KV-SNAP-025"),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    program="admit 1 1 4; commit 1; admit 2 2 5",
)
class StatesKnownByLength(SnapshotLists):
    """What was kept for one prompt is restored for the next one that is as long.

    In the report another client's prompt is answered after a restore. Whoever looks for a file or a slot that
    fits by size finds one.
    """

    def name(self, content: Content, stop: int) -> Name:
        """Count."""
        return (), ((0,),) * stop


@exhibit(
    as_if="a state were saved one token late",
    fault="F01 boundary",
    breaks=("KV-SNAP-002",),
    may_also_break=("KV-SNAP-025",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    program="admit 1 1 5; commit 1; admit 2 1 5",
)
class SavedATokenLate(SnapshotLists):
    """The state after token p is taken for the state after p tokens, counting from one.

    A plant: the answer is fluent, for one token in thousands is read twice.
    """

    def told(self, step: Step) -> tuple[int, int, list[int], list[int]]:
        """Save behind the next token, where the step has one."""
        source, state, positions, slots = super().told(step)
        return source, state, [min(p + 1, step.stop) for p in positions], slots


@exhibit(
    as_if="a state were saved one token early",
    fault="F01 boundary",
    breaks=("KV-SNAP-002",),
    may_also_break=("KV-SNAP-025",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    program="admit 1 1 4; commit 1; admit 2 1 5",
)
class SavedATokenEarly(SnapshotLists):
    """The last token before a snapshot is not in it.

    A plant: whoever restores it never sees that token.
    """

    def told(self, step: Step) -> tuple[int, int, list[int], list[int]]:
        """Save before the last token, where the step has another."""
        source, state, positions, slots = super().told(step)
        return source, state, [max(p - 1, step.start + 1) for p in positions], slots


@exhibit(
    as_if="the place of a snapshot were counted from the first token of the batch",
    fault="F16 state and position",
    seen_in=("sgl-project/sglang#37836",),
    breaks=("KV-SNAP-002",),
    may_also_break=("KV-SNAP-025",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    program="admit 1 2 1; admit 2 1 5; commit 2; admit 3 1 5",
)
class RowOfTheWholeBatch(SnapshotLists):
    """A scan cuts all tokens of a step into chunks, and the snapshot is taken from the chunk of the batch.

    Each request was thought to have chunks of its own. With two requests in one step, of which the first does
    not fill its last chunk, the second one's state is of another position.
    """

    def told(self, step: Step) -> tuple[int, int, list[int], list[int]]:
        """Shift every position by what others have in the last chunk."""
        source, state, positions, slots = super().told(step)
        flight = [own.step for own in self.running.values() if own.step is not None]
        shift = sum(one.stop - one.start for one in flight if one is not step) % self.block_size
        moved = [p - shift if p - shift > step.start and not step.num_drafts else p for p in positions]
        return source, state, moved, slots


@exhibit(
    as_if="the index of a state were computed with a block size that was not final",
    fault="F02 unit",
    seen_in=("wtdcode/vllm-backport#77",),
    breaks=("KV-SNAP-002",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    program="admit 1 1 8; commit 1; admit 2 1 5",
)
class IndexOfAnEarlierBlockSize(SnapshotLists):
    """States are found by number, and the number is computed with the block size of the first moment.

    It is raised later, so that the states of all layers fit. A prefix that is resumed then indexes far behind
    its own state.
    """

    def find_state(self, content: Content, stop: int) -> int | None:
        """Look as many states further as a block has tokens."""
        if super().find_state(content, stop) is None:
            return None
        texts, items = self.name(content, stop)
        longer = [
            (len(known), slot)
            for (own, known), slot in self.states.known
            if own == texts and known[: len(items)] == items
        ]
        return max(longer)[1]


@exhibit(
    as_if="the hit were the longest of any group, and not of all together",
    fault="F16 state and position",
    seen_in=("vllm-project/vllm#47491",),
    breaks=("KV-SNAP-003",),
    may_also_break=("KV-SNAP-007",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    program="admit 1 1 4; commit 1; admit 2 1 5",
)
class HitOfBlocksAlone(SnapshotLists):
    """The blocks are there, the state is not, and the tokens are counted as computed.

    One number says how far a request is, and recurrent layers take it for a sign that they have a state. They
    go on in the middle from nothing. It was found while the change was reviewed.
    """

    def joint_hit(self, content: Content, num_tokens: int) -> tuple[int, list[int], int]:
        """Ask the blocks."""
        blocks = self.find(content, num_tokens - 1)
        stop = len(blocks) * self.block_size
        slot = self.find_state(content, stop) if blocks else None
        return stop, blocks, ZEROS if slot is None else slot


@exhibit(
    as_if="a snapshot were hit whose blocks had been evicted under it",
    fault="F04 stale entry",
    breaks=("KV-SNAP-003",),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    program="admit 1 1 4; commit 1; finish 1; admit 2 2 12; abort 2; admit 3 1 5",
)
class BlocksEvictedUnderTheState(SnapshotLists):
    """A snapshot remembers which blocks belong to it, and not whether they still do.

    A plant: states and blocks are evicted apart, each in an order of its own, which part sooner or later.
    """

    def store(self, name: Name, block: int) -> None:
        """Remember where a prefix lay."""
        self.__dict__.setdefault("lay", {})[name] = block
        super().store(name, block)

    def find_blocks(self, content: Content, stop: int) -> list[int] | None:
        """Return where the prefix lay."""
        lay = self.__dict__.get("lay", {})
        names = [self.name(content, end) for end in range(self.block_size, stop + 1, self.block_size)]
        return [lay[name] for name in names] if all(name in lay for name in names) else None

    def forget(self, block: int) -> None:
        """Keep the snapshots."""
        for name in [name for name, known in self.known if known == block]:
            self.known.remove((name, block))


@exhibit(
    as_if="the interval of snapshots were counted from where the hit ends",
    fault="F01 boundary",
    breaks=("KV-SNAP-025",),
    may_also_break=("KV-SNAP-012", "KV-SNAP-013", "KV-SNAP-014"),
    verbs=SNAPSHOTS,
    block_sizes=SIZES,
    features=("junctions",),
    program="admit 1 1 4; commit 1; admit 2 1 4 2 1; commit 2; admit 3 1 4 3 5",
)
class IntervalFromTheHit(SnapshotLists):
    """A request that goes on from a snapshot saves the next one an interval behind it.

    A plant: as long as all snapshots lie on the interval nothing shows. A junction lies beside it.
    """

    def is_due(self, one: Request, position: int, stop: int) -> bool:
        """Count from the hit."""
        junction = position == self.running[one.number].junction
        return junction or (position - one.hit) % self.interval == 0
