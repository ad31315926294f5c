"""Faults of the order of eviction: what goes too early, and what stays too long."""

from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.museum.prefix_hits import CACHE, SIZES
from kvref_conformance.subjects.lists.naming import Name
from kvref_conformance.subjects.lists.prefix import PrefixLists
from kvref_conformance.subjects.lists.radix import RadixLists, Run

NODES = {"eviction-order": "lru_node"}


@exhibit(
    as_if="a request's first block were evicted before its last",
    fault="F08 accounting",
    breaks=("KV-PREFIX-023",),
    may_also_break=("KV-PREFIX-024",),
    verbs=CACHE,
    block_sizes=SIZES,
    program="admit 1 1 8; commit 1; finish 1; admit 2 2 17",
)
class HeadGoesFirst(PrefixLists):
    """Blocks are released in the order of their tokens.

    A plant: the first block of a prefix is the oldest in the queue. When it goes, all behind it is held in
    vain.
    """

    eviction_order = "lru_head_first"


@exhibit(
    as_if="a prefix went by its age, whether a longer one needed it or not",
    fault="F22 no progress",
    seen_in=("NVIDIA/TensorRT-LLM#3735",),
    breaks=("KV-PREFIX-024",),
    verbs=CACHE,
    block_sizes=SIZES,
    choices=NODES,
    program=(
        "admit 0 1 4; commit 0; finish 0; admit 0 1 4 2 4; commit 0; finish 0; admit 0 3 20; "
        "commit 0; finish 0; admit 0 1 4 4 4"
    ),
)
class InnerNodesEvicted(RadixLists):
    """The queue holds every node that nobody reads, inner ones as well.

    In the report an assertion found it out. Without one, what continues the node can be hit no more, and
    keeps its blocks.
    """

    def victim(self) -> Run:
        """Ask nobody whether it is a leaf."""
        return min((run for run in self.runs if not self.readers(run)), key=lambda run: (run.used, run.start))


@exhibit(
    as_if="a request's last block were evicted before its first, and the first was declared to go",
    fault="F08 accounting",
    breaks=("KV-PREFIX-024",),
    verbs=CACHE,
    block_sizes=SIZES,
    choices={"eviction-order": "lru_head_first"},
    program="admit 0 1 8; commit 0; finish 0; admit 0 2 20; commit 0; finish 0; admit 0 1 4 3 4",
)
class TailGoesFirst(PrefixLists):
    """Blocks are released from the last to the first, and the claims say from the first to the last.

    A plant: whoever sizes a cache by what is declared expects fewer hits than there are.
    """

    eviction_order = "lru_tail_first"


@exhibit(
    as_if="a hit that ends inside a node had used all of it",
    fault="F08 accounting",
    seen_in=("sgl-project/sglang#24892",),
    breaks=("KV-PREFIX-024",),
    verbs=CACHE,
    block_sizes=SIZES,
    choices=NODES,
    program=(
        "admit 0 1 16; commit 0; finish 0; admit 0 2 8; commit 0; finish 0; "
        "admit 0 1 4 3 4; commit 0; finish 0; admit 0 2 4 4 4"
    ),
)
class SplitRenewsTheRest(RadixLists):
    """The time of a node is set before it is split, so the part that was not hit has it too.

    What nobody asked for outlives what somebody did. An engine may do so, and has to declare it.
    """

    def part(self, name: Name) -> None:
        """Use the run that is about to be split."""
        stop = len(name[1])
        for run in self.runs:
            if run.start < stop < run.end and run.up_to(stop) == name:
                run.used = self.now + 1
        super().part(name)


@exhibit(
    as_if="blocks were evicted by when they were computed, and not by when they were used",
    fault="F08 accounting",
    breaks=("KV-PREFIX-024",),
    may_also_break=("KV-PREFIX-023",),
    verbs=CACHE,
    block_sizes=SIZES,
    program=(
        "admit 0 1 4 2 4; commit 0; finish 0; admit 0 3 4; commit 0; finish 0; admit 0 1 4 4 4; "
        "commit 0; finish 0; admit 0 5 12; commit 0; finish 0; admit 0 1 4 6 4"
    ),
)
class HitsDoNotRenew(PrefixLists):
    """A block that was hit goes back to where it was in the queue.

    A plant: the prompt that every request begins with is the oldest, and goes first.
    """

    def release(self, blocks: list[int]) -> None:
        """Sort those that hold something by when they were published."""
        super().release(blocks)
        ages = {block: age for age, (_, block) in enumerate(self.known)}
        self.waiting.sort(key=lambda block: ages.get(block, -1))
