"""Faults of requests: equal ones at one time, aborted ones, unknown ones, resets, and slots that move."""

from collections.abc import Sequence
from typing import Any

from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.museum.prefix_evictions.order import NODES
from kvref_conformance.museum.prefix_hits import CACHE, SIZES
from kvref_conformance.subjects.lists.prefix import PrefixLists
from kvref_conformance.subjects.lists.radix import RadixLists
from kvref_conformance.subjects.lists.requests import Request


@exhibit(
    as_if="a reset dropped what blocks hold, and kept the index over them",
    fault="F04 stale entry",
    seen_in=("vllm-project/vllm#17103", "vllm-project/vllm-omni#6442"),
    breaks=("KV-PREFIX-015",),
    verbs=CACHE,
    block_sizes=SIZES,
    program="admit 1 1 4; commit 1; finish 1; reset; admit 2 1 5",
)
class ResetKeepsTheIndex(PrefixLists):
    """Memory is given back while a server sleeps, and its prefixes are found as before when it wakes.

    Two engines did so. New weights in place of new memory would do the same.
    """

    def reset(self) -> None:
        """Refuse where it has to be refused, and forget nothing."""
        known = list(self.known)
        super().reset()
        self.known = known


@exhibit(
    as_if="a reset had cleared the table of keys, and left the keys on the blocks",
    fault="F21 one path only",
    breaks=("KV-PREFIX-015", "KV-PREFIX-018"),
    verbs=CACHE,
    block_sizes=SIZES,
    program="admit 1 1 4; commit 1; finish 1; reset; admit 2 2 21",
)
class ResetKeepsTheKeys(PrefixLists):
    """A block that still has its key is evicted after the reset, and the key is in no table.

    A plant: the admission that evicts it fails, long after the reset, in a pool full of free blocks.
    """

    def __init__(self, num_blocks: int, block_size: int, hash_bits: int = 0) -> None:
        super().__init__(num_blocks, block_size, hash_bits)
        self.keyed: set[int] = set()
        """Blocks that had a key when the cache was reset."""

    def reset(self) -> None:
        """Leave the keys."""
        keyed = {block for _, block in self.known}
        super().reset()
        self.keyed |= keyed

    def make_room(self, count: int, hits: list[int]) -> None:
        """Look the keys of blocks that are handed out up in the table."""
        super().make_room(count, hits)
        for block in [block for block in self.waiting if block not in hits][: max(count, 0)]:
            if block in self.keyed:
                raise KeyError(f"the key of block {block} is not in the table")


@exhibit(
    as_if="a reset were accepted while requests hold blocks",
    fault="F07 ownership",
    breaks=("KV-PREFIX-015",),
    verbs=CACHE,
    block_sizes=SIZES,
    program="admit 1 1 1; reset",
)
class ResetUnderRequests(PrefixLists):
    """A reset forgets every prefix, whoever reads it.

    A plant: what live requests compute is published under weights that are not theirs.
    """

    def reset(self) -> None:
        """Forget."""
        self.known.clear()


@exhibit(
    as_if="a request let go of the block that was found under its prefix, and not of its own",
    fault="F07 ownership",
    seen_in=("NVIDIA/TensorRT-LLM#12648",),
    breaks=("KV-PREFIX-020",),
    verbs=CACHE,
    block_sizes=SIZES,
    program="admit 1 1 4; admit 2 1 4; commit 1; commit 2; finish 2; admit 3 2 17",
)
class LetsGoOfTheOtherCopy(PrefixLists):
    """Two requests computed the same block, and the second looks up which block to release.

    It finds the first one's. In the report a pin is put on the wrong copy, which then is in the queue twice.
    """

    def end(self, one: Request) -> None:
        """Look every full block up."""
        own = list(one.blocks)
        for at in range(one.computed // self.block_size):
            found = self.look_up(self.name(one.content, (at + 1) * self.block_size))
            if found is not None and self.holders[found]:
                one.blocks[at] = found
        super().end(one)
        one.blocks = own


@exhibit(
    as_if="a tree's blocks were put into a request's row in the wrong order",
    fault="F18 row mapping",
    breaks=("KV-PREFIX-026",),
    may_also_break=("KV-PREFIX-020",),
    verbs=CACHE,
    block_sizes=SIZES,
    choices=NODES,
    program="admit 1 1 8; admit 2 1 8; commit 1; commit 2",
)
class RowRewrittenBackwards(RadixLists):
    """A request's own copies are replaced by the tree's, collected from the last node to the first.

    A plant: with one block there is no order to get wrong.
    """

    def insert(self, one: Request, stop: int) -> None:
        """Turn round what was replaced."""
        own = list(one.blocks)
        super().insert(one, stop)
        replaced = [at for at, (old, new) in enumerate(zip(own, one.blocks, strict=True)) if old != new]
        for at, block in zip(replaced, [one.blocks[at] for at in replaced][::-1], strict=True):
            one.blocks[at] = block


@exhibit(
    as_if="a request was given the slots of its new tokens alone, and counted as if it had all",
    fault="F21 one path only",
    seen_in=("vllm-project/vllm#9532",),
    breaks=("KV-PREFIX-026",),
    may_also_break=(
        "KV-PREFIX-001",
        "KV-PREFIX-004",
        "KV-PREFIX-005",
        "KV-PREFIX-015",
        "KV-PREFIX-017",
        "KV-PREFIX-020",
        "KV-PREFIX-021",
    ),
    verbs=CACHE,
    block_sizes=SIZES,
    program="admit 1 1 4; commit 1; admit 2 1 5",
)
class TableOfNewBlocks(PrefixLists):
    """With a hit, the table that is passed on holds only the blocks behind it.

    Lengths count all tokens, so a kernel reads past the end of the table. It took chunked prefill and a hit
    together to show it.
    """

    def admit(self, request: int, tokens: Sequence[int], max_new_tokens: int, **given: Any) -> Any:
        """Leave the hit out."""
        hit, slots = super().admit(request, tokens, max_new_tokens, **given)
        return hit, slots[hit:]


@exhibit(
    as_if="an aborted request had left blocks to be found that it never computed",
    fault="F04 stale entry",
    seen_in=("NVIDIA/TensorRT-LLM#15018",),
    breaks=("KV-PREFIX-021",),
    verbs=CACHE,
    block_sizes=SIZES,
    program="admit 1 1 4; abort 1; admit 2 1 5",
)
class AbortPublishes(PrefixLists):
    """A request that ends early leaves the blocks of its prompt in the tree, computed or not.

    They are handed on with whatever lies in them, until the server is started again.
    """

    def abort(self, request: int) -> None:
        """Publish what was scheduled."""
        one = self.requests.get(request)
        self.publish(one, one.scheduled)
        super().abort(request)


@exhibit(
    as_if="operations on requests that are not there were carried out in silence",
    fault="F22 no progress",
    breaks=("KV-PREFIX-027",),
    verbs=CACHE,
    block_sizes=SIZES,
    program="stranger 0",
)
class StrangersWelcome(PrefixLists):
    """Ending a request twice, or one that never was, does nothing and says nothing.

    A plant: the caller's list of requests and the cache's drift apart, and nobody notices.
    """

    def abort(self, request: int) -> None:
        """Abort if there is anything to abort."""
        if any(one.number == request for one in self.requests.live):
            super().abort(request)


@exhibit(
    as_if="a second admission of a request had replaced the first",
    fault="F07 ownership",
    breaks=("KV-PREFIX-027",),
    verbs=CACHE,
    block_sizes=SIZES,
    program="admit 1 1 1; again 1",
)
class SecondAdmissionReplaces(PrefixLists):
    """A request with a number that is taken replaces the one before.

    A plant: what the first one held is let go of under it.
    """

    def admit(self, request: int, tokens: Sequence[int], max_new_tokens: int, **given: Any) -> Any:
        """End the one before."""
        for one in [one for one in self.requests.live if one.number == request]:
            self.end(one)
        return super().admit(request, tokens, max_new_tokens, **given)


@exhibit(
    as_if="the last block of a hit were computed again in place",
    fault="F07 ownership",
    breaks=("KV-PREFIX-028",),
    may_also_break=("KV-PREFIX-023",),
    verbs=CACHE,
    block_sizes=SIZES,
    program="admit 1 1 4; commit 1; admit 2 1 4",
)
class FullHitWrittenInPlace(PrefixLists):
    """A prompt that is cached as a whole computes its last block again, and writes it where it was.

    A plant: the same numbers are written, says whoever does it. Under another batch they are not the same to
    the last bit, and somebody reads them meanwhile.
    """

    def begin(self, one: Request, hits: list[int]) -> None:
        """Hold the last block too, if it is there."""
        full = self.look_up(self.name(one.content, one.num_tokens))
        super().begin(one, hits if full is None or one.num_tokens % self.block_size else [*hits, full])
        one.computed = one.scheduled = one.hit

    def copy_last(self, one: Request) -> None:
        """Share it."""

    def missing(self, one: Request, stop: int, hits: list[int]) -> int:
        """Count as if nothing were shared."""
        return super().missing(one, stop, hits)
