"""Faults of events: what is told twice, never, in the wrong order, or with another meaning."""

from typing import Any

from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.museum.prefix_hits import CACHE, SIZES
from kvref_conformance.subjects.lists.naming import Name
from kvref_conformance.subjects.lists.prefix import PrefixLists
from kvref_conformance.subjects.lists.requests import Request

TOLD: dict[str, Any] = {"verbs": CACHE, "block_sizes": SIZES, "features": ("events",)}


@exhibit(
    as_if="a block was told before the one that it follows",
    fault="F18 row mapping",
    breaks=("KV-PREFIX-040",),
    may_also_break=("KV-PREFIX-045",),
    program="admit 1 1 8; commit 1",
    **TOLD,
)
class ChildrenFirst(PrefixLists):
    """Blocks are told in the order in which a loop over them ends: the last one first.

    A plant: a tree that is built from the events has nothing to hang the first ones on.
    """

    def publish(self, one: Request, stop: int) -> None:
        """Turn round what was told."""
        start = len(self.events.waiting)
        super().publish(one, stop)
        self.events.waiting[start:] = self.events.waiting[start:][::-1]


@exhibit(
    as_if="every copy of a block was told",
    fault="F08 accounting",
    breaks=("KV-PREFIX-041",),
    program="admit 1 1 4; admit 2 1 4; commit 1; commit 2",
    **TOLD,
)
class EveryCopyTold(PrefixLists):
    """A block is told when it is published, whether another holds the same or not.

    A plant: whoever counts the events counts the block twice, and drops it at the first removal.
    """

    def store(self, name: Name, block: int) -> None:
        """Tell of a second copy."""
        again = self.look_up(name) is not None and (name, block) not in self.known
        super().store(name, block)
        if again:
            self.events.stored(name)


@exhibit(
    as_if="a removal was told of every block that was handed out",
    fault="F08 accounting",
    breaks=("KV-PREFIX-042",),
    program="admit 1 1 1",
    **TOLD,
)
class EveryBlockRemoved(PrefixLists):
    """A block that is handed out is told to be removed, whether it held anything or not.

    A plant: a name has to be made up for what never had one.
    """

    def forget(self, block: int) -> None:
        """Tell of a block without a name."""
        if not any(known == block for _, known in self.known):
            self.events.removed((("", "", ""), ((block, "never"),)))
        super().forget(block)


@exhibit(
    as_if="an event held all tokens of a chunk, with those that fill no block",
    fault="F02 unit",
    breaks=("KV-PREFIX-043",),
    program="admit 1 1 5; commit 1",
    **TOLD,
)
class TokensOfTheChunk(PrefixLists):
    """The tokens of an event are those that were computed, and its blocks those that are full.

    A plant: whoever cuts the tokens into blocks finds a block too many, or the wrong tokens in each.
    """

    def publish(self, one: Request, stop: int) -> None:
        """Put the rest of the chunk into the last event."""
        told = len(self.events.waiting)
        super().publish(one, stop)
        rest = one.content.tokens[stop - stop % self.block_size : stop]
        for event in self.events.waiting[told:][-1:]:
            event["token_ids"] += rest


@exhibit(
    as_if="a hash stood for a block's own tokens, whatever comes before",
    fault="F03 cache key",
    breaks=("KV-PREFIX-044",),
    may_also_break=("KV-PREFIX-041", "KV-PREFIX-042"),
    program="admit 1 1 4; commit 1; admit 2 2 4 1 4; commit 2",
    **TOLD,
)
class HashOfOneBlock(PrefixLists):
    """Events name blocks by a hash of their tokens, and the cache by the whole prefix.

    A plant: two blocks have one name, and a removal of either is taken for both.
    """

    def __init__(self, num_blocks: int, block_size: int, hash_bits: int = 0) -> None:
        super().__init__(num_blocks, block_size, hash_bits)
        chained = self.events.hash_of
        self.events.hash_of = lambda name: chained((name[0], name[1][-block_size:]))  # type: ignore[method-assign]


@exhibit(
    as_if="a reset was not told",
    fault="F21 one path only",
    breaks=("KV-PREFIX-045",),
    program="admit 1 1 4; commit 1; finish 1; reset",
    **TOLD,
)
class ResetNotTold(PrefixLists):
    """A reset clears the index, and no event says so.

    A plant: routers go on to send requests to where their prefix was.
    """

    def reset(self) -> None:
        """Take the last event back."""
        super().reset()
        self.events.waiting.pop()


@exhibit(
    as_if="a block was told to follow the one that was stored last, not the one before it",
    fault="F21 one path only",
    seen_in=("vllm-project/vllm-ascend#12002",),
    breaks=("KV-PREFIX-046",),
    may_also_break=("KV-PREFIX-044",),
    program="admit 1 1 4; admit 2 1 4 2 4; commit 1; commit 2; admit 3 1 4 2 4 3 1",
    **TOLD,
)
class ParentIsTheLastStored(PrefixLists):
    """Blocks that are stored already are skipped, and so is their part in the chain.

    The next one is told to follow whatever the loop stored before it, or nothing. The chain is broken for
    whoever builds a tree of it.
    """

    def publish(self, one: Request, stop: int) -> None:
        """Chain the new events to each other."""
        told = len(self.events.waiting)
        super().publish(one, stop)
        last = None
        for event in self.events.waiting[told:]:
            event["parent_block_hash"] = last
            last = event["block_hashes"][-1]


@exhibit(
    as_if="evictions were not told",
    fault="F21 one path only",
    breaks=("KV-PREFIX-046",),
    may_also_break=("KV-PREFIX-041",),
    program="admit 1 1 4; commit 1; finish 1; admit 2 2 21; abort 2; admit 3 1 5",
    **TOLD,
)
class EvictionsNotTold(PrefixLists):
    """Blocks are told when they are stored, and never when they go.

    A plant: the mirror grows, and promises more with every prompt.
    """

    def forget(self, block: int) -> None:
        """Take back what was told."""
        told = len(self.events.waiting)
        super().forget(block)
        del self.events.waiting[told:]
