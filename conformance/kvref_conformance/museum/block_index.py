"""Faults of indexes: paths cut short or counted too long, and workers taken for each other."""

from collections.abc import Sequence

from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.lists.index import IndexLists

INDEX = ("block_index",)
SIZES = (4,)


@exhibit(
    as_if="only a path that is held as a whole were found",
    fault="F01 boundary",
    breaks=("KV-PREFIX-050",),
    may_also_break=("KV-PREFIX-051", "KV-PREFIX-053"),
    verbs=INDEX,
    block_sizes=SIZES,
    program="store 0 1 1; match 1 2",
)
class WholePathsOnly(IndexLists):
    """A path is looked up by its last key.

    A plant: a prompt that is longer than what is cached finds nothing.
    """

    def run(self, worker: int, keys: Sequence[str]) -> int:
        """Ask for the last key."""
        return len(keys) if keys[-1] in self.held[worker] else 0


@exhibit(
    as_if="blocks behind a removed one were still counted",
    fault="F04 stale entry",
    breaks=("KV-PREFIX-051",),
    verbs=INDEX,
    block_sizes=SIZES,
    program="store 0 1 2; remove 0 0 1 1 1; match 1 2",
)
class RemovedBlockSkipped(IndexLists):
    """How many keys of a path a worker holds is taken for how many of its first ones.

    A plant: a block in the middle is evicted, and the rest of the path still looks like a hit.
    """

    def run(self, worker: int, keys: Sequence[str]) -> int:
        """Count all that is held."""
        return sum(key in self.held[worker] for key in keys)


@exhibit(
    as_if="blocks that were stored twice counted twice",
    fault="F08 accounting",
    seen_in=("ai-dynamo/dynamo#7800",),
    breaks=("KV-PREFIX-052",),
    may_also_break=("KV-PREFIX-050", "KV-PREFIX-051"),
    verbs=INDEX,
    block_sizes=SIZES,
    program="store 0 1 1; store 0 1 1; match 1 1",
)
class EventsCounted(IndexLists):
    """The size of what a worker holds grows by the length of each event.

    An event about blocks that are there already counts them once more.
    """

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self.twice: list[tuple[int, str]] = []

    def store(self, worker: int, parent: str, keys: Sequence[str]) -> None:
        """Count what was there."""
        own = self.held.get(worker, [])
        self.twice += [(worker, key) for key in keys if key in own]
        super().store(worker, parent, keys)

    def run(self, worker: int, keys: Sequence[str]) -> int:
        """Add it."""
        count = super().run(worker, keys)
        return count + self.twice.count((worker, keys[0])) * bool(count)


@exhibit(
    as_if="a block had one worker, the last that stored it",
    fault="F18 row mapping",
    breaks=("KV-PREFIX-053",),
    verbs=INDEX,
    block_sizes=SIZES,
    program="store 0 1 1; store 1 1 1; match 1 1",
)
class OneWorkerPerBlock(IndexLists):
    """The index maps a block to a worker.

    A plant: of two workers with the same prefix, one is never found.
    """

    def store(self, worker: int, parent: str, keys: Sequence[str]) -> None:
        """Take the keys from all others."""
        for other in self.held:
            super().remove(other, keys)
        super().store(worker, parent, keys)


@exhibit(
    as_if="a block that one worker removed was removed from all",
    fault="F18 row mapping",
    breaks=("KV-PREFIX-053",),
    verbs=INDEX,
    block_sizes=SIZES,
    program="store 0 1 1; store 1 1 1; remove 0 0 1 1 1; match 1 1",
)
class RemovedFromAll(IndexLists):
    """A removal takes the block out of the tree, and with it what other workers have there.

    A plant: one worker evicts a popular prefix, and the router forgets everybody's.
    """

    def remove(self, worker: int, keys: Sequence[str]) -> None:
        """Remove from every worker."""
        for other in list(self.held):
            super().remove(other, keys)
