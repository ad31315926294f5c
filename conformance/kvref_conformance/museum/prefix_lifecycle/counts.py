"""Faults of counts: blocks that are counted twice, held too long, or taken again and again."""

from collections.abc import Sequence

from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.museum.prefix_evictions.order import NODES
from kvref_conformance.museum.prefix_hits import CACHE, SIZES
from kvref_conformance.subjects.lists.prefix import PrefixLists
from kvref_conformance.subjects.lists.radix import RadixLists, Run
from kvref_conformance.subjects.lists.requests import Request


@exhibit(
    as_if="blocks that two prefixes share were counted twice",
    fault="F08 accounting",
    seen_in=("sgl-project/sglang#35270",),
    breaks=("KV-PREFIX-022",),
    may_also_break=("KV-PREFIX-020",),
    verbs=CACHE,
    block_sizes=SIZES,
    choices=NODES,
    program="admit 1 1 4; commit 1; admit 2 1 4 2 4; commit 2",
)
class SharedBlocksCountedTwice(RadixLists):
    """What an insertion adds to the tree is counted by the length of what is inserted.

    Part of it was there before. When all requests have ended, more is free than there is.
    """

    def insert(self, one: Request, stop: int) -> None:
        """Count what was there once more."""
        there = len(self.find(one.content, stop))
        super().insert(one, stop)
        self.counted = self.__dict__.get("counted", 0) + there

    def num_free(self) -> int:
        """Add it."""
        return super().num_free() + int(self.__dict__.get("counted", 0))


@exhibit(
    as_if="a request that hits half a node held all of it",
    fault="F07 ownership",
    seen_in=("bytedance-iaas/sglang#508",),
    breaks=("KV-PREFIX-022",),
    verbs=CACHE,
    block_sizes=SIZES,
    choices=NODES,
    program="admit 1 1 8; commit 1; finish 1; admit 2 1 5",
)
class WholeNodeHeld(RadixLists):
    """A match that ends inside a node does not split it, and the lock is on the node.

    More is held than is read. In the report a later split copies the lock to a leaf that nobody unlocks.
    """

    def begin(self, one: Request, hits: list[int]) -> None:
        """Use the prefix, and split nothing."""
        one.kept = one.computed = one.scheduled = one.hit
        one.blocks = list(hits)
        self.requests.live.append(one)
        self.use(self.path(self.name(one.content, one.hit)))

    def readers(self, run: Run) -> list[Request]:
        """Count whoever reads a part of it."""
        return [one for one in self.requests.live if self.reads(one, run)]

    def reads(self, one: Request, run: Run) -> bool:
        """Say whether a request reads any block of a run."""
        stop = min(one.kept, run.end)
        return stop > run.start and run.up_to(stop) == self.name(one.content, stop)


@exhibit(
    as_if="every chunk of a prompt took blocks for all chunks before it",
    fault="F08 accounting",
    seen_in=("sgl-project/sglang#36855",),
    breaks=("KV-PREFIX-022",),
    verbs=CACHE,
    block_sizes=SIZES,
    program="part 1 1 1 5; commit 1; more 1 4",
)
class EachChunkStartsOver(PrefixLists):
    """A request that is not to be put into the cache begins each chunk with an empty prefix.

    It takes blocks for everything up to the end of the chunk, and keeps those that it had.
    """

    def extend(self, request: int, tokens: Sequence[int], max_new_tokens: int) -> list[int]:
        """Take the blocks of all earlier chunks once more, as far as there are any."""
        slots = super().extend(request, tokens, max_new_tokens)
        one = self.requests.get(request)
        if one.scheduled <= one.prompt_len:
            again = self.take(min(len(one.blocks), len(self.waiting)))
            self.__dict__.setdefault("lost", {}).setdefault(request, []).extend(again)
        return slots

    def end(self, one: Request) -> None:
        """Let go of all of them."""
        super().end(one)
        self.release(self.__dict__.get("lost", {}).pop(one.number, []))


@exhibit(
    as_if="an aborted prefill freed blocks that the tree still holds",
    fault="F05 in flight",
    seen_in=("sgl-project/sglang#38319",),
    breaks=("KV-PREFIX-021",),
    may_also_break=("KV-PREFIX-017", "KV-PREFIX-022"),
    verbs=CACHE,
    block_sizes=SIZES,
    choices=NODES,
    program="admit 1 1 4; commit 1; abort 1; admit 2 1 4 2 1",
)
class AbortFreesFromTheFirstToken(RadixLists):
    """Each chunk of a prompt has been put into the tree; the abort frees the request's blocks from 0 on.

    The tree goes on to offer what has been given to the next request.
    """

    def abort(self, request: int) -> None:
        """Free the tree's part as well."""
        one = self.requests.get(request)
        kept = one.blocks[: one.kept // self.block_size]
        super().abort(request)
        self.waiting = kept + self.waiting
