"""Faults of room: admissions that are refused without need, and refusals that leave something behind."""

from collections.abc import Sequence

from kvref.errors import OutOfBlocksError
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.museum.prefix_evictions.order import NODES
from kvref_conformance.museum.prefix_hits import CACHE, SIZES
from kvref_conformance.subjects.lists.naming import Name
from kvref_conformance.subjects.lists.prefix import PrefixLists
from kvref_conformance.subjects.lists.radix import RadixLists, Run
from kvref_conformance.subjects.lists.requests import Request


@exhibit(
    as_if="nothing were evicted to make room",
    fault="F22 no progress",
    seen_in=("sgl-project/sglang#29662",),
    breaks=("KV-PREFIX-018",),
    may_also_break=("KV-PREFIX-019",),
    verbs=CACHE,
    block_sizes=SIZES,
    program="admit 1 1 4; commit 1; finish 1; admit 2 2 21",
)
class NothingEvictedForRoom(PrefixLists):
    """An admission is held against what is free at once, and nobody asks for an eviction.

    In the report the wrong one of two pools is asked. The pool is full of prefixes that nobody reads, and
    every request is refused.
    """

    def make_room(self, count: int, hits: list[int]) -> None:
        """Count the blocks that hold nothing."""
        cached = {block for _, block in self.known}
        if count > sum(block not in cached for block in self.waiting):
            raise OutOfBlocksError("no block is empty")
        super().make_room(count, hits)


@exhibit(
    as_if="a prompt shorter than a block had left an empty node behind",
    fault="F01 boundary",
    seen_in=("sgl-project/sglang#28692", "sgl-project/sglang#10637", "sgl-project/sglang#35821"),
    breaks=("KV-PREFIX-018",),
    verbs=CACHE,
    block_sizes=SIZES,
    choices=NODES,
    program="admit 1 1 1; commit 1; finish 1; admit 2 2 4; commit 2; finish 2; admit 3 3 21",
)
class EmptyNode(RadixLists):
    """A prefix that is rounded down to no block at all is put into the tree.

    It holds nothing, so nothing can be taken from it. The first eviction that reaches it fails.
    """

    def publish(self, one: Request, stop: int) -> None:
        """Put an empty run into the tree."""
        super().publish(one, stop)
        if stop < self.block_size and not any(run.end == 0 for run in self.runs):
            self.runs.append(Run(self.name(one.content, 0), 0, [], self.now))

    def path(self, name: Name) -> list[Run]:
        """Pass by an empty run."""
        return [run for run in super().path(name) if run.blocks]

    def readers(self, run: Run) -> list[Request]:
        """Find nobody who reads an empty run."""
        return super().readers(run) if run.blocks else []

    def continued(self, run: Run) -> bool:
        """Find nothing below an empty key."""
        return bool(run.blocks) and super().continued(run)

    def evict(self, run: Run) -> None:
        """Look at the first block."""
        if not run.blocks:
            raise IndexError("a node has no first block")
        super().evict(run)


@exhibit(
    as_if="a refused request still held what it had hit",
    fault="F08 accounting",
    breaks=("KV-PREFIX-019",),
    verbs=CACHE,
    block_sizes=SIZES,
    program="admit 1 1 4; commit 1; finish 1; admit 2 2 4; admit 3 1 4 3 20",
)
class RefusalKeepsTheHit(PrefixLists):
    """The hit is held, and then there is no room for the rest.

    A plant: the way out of the refusal does not pass by where the hit is let go of.
    """

    def make_room(self, count: int, hits: list[int]) -> None:
        """Hold first."""
        try:
            super().make_room(count, hits)
        except OutOfBlocksError:
            self.hold(hits)
            raise


@exhibit(
    as_if="a request was refused only after others had been evicted for it",
    fault="F08 accounting",
    breaks=("KV-PREFIX-019",),
    verbs=CACHE,
    block_sizes=SIZES,
    program="admit 1 1 4; commit 1; finish 1; admit 2 2 4; admit 3 3 24; admit 4 1 5",
)
class RefusalEvicts(PrefixLists):
    """Blocks are evicted one by one until there is room, or until there is nothing left.

    A plant: a request that is too large empties the cache each time it is tried.
    """

    def make_room(self, count: int, hits: list[int]) -> None:
        """Evict what there is."""
        try:
            super().make_room(count, hits)
        except OutOfBlocksError:
            for block in self.waiting:
                self.forget(block)
            raise


@exhibit(
    as_if="tokens of a refused extension were still part of the request's keys",
    fault="F04 stale entry",
    breaks=("KV-PREFIX-019",),
    verbs=CACHE,
    block_sizes=SIZES,
    program="admit 0 1 4; commit 0; decode 0 2 4 3 24; decode 0 5 4; commit 0; admit 2 1 4 2 4 3 1",
)
class RefusedTokensKeyed(PrefixLists):
    """Keys are made when decoded tokens join, and are not taken back when there is no room for them.

    A plant: the request goes on with other tokens, which are then found under the keys of the first.
    """

    def __init__(self, num_blocks: int, block_size: int, hash_bits: int = 0) -> None:
        super().__init__(num_blocks, block_size, hash_bits)
        self.names: dict[int, list[Name]] = {}
        """Request -> names of its blocks, made once each."""

    def extend(self, request: int, tokens: Sequence[int], max_new_tokens: int) -> list[int]:
        """Name blocks before there is room for them."""
        content = self.requests.get(request).content
        before = len(content.tokens)
        content.tokens += tokens
        self.name_all(self.requests.get(request))
        del content.tokens[before:]
        return super().extend(request, tokens, max_new_tokens)

    def name_all(self, one: Request) -> list[Name]:
        """Name the full blocks that have no name yet."""
        names = self.names.setdefault(one.number, [])
        while (stop := (len(names) + 1) * self.block_size) <= len(one.content.tokens):
            names.append(self.name(one.content, stop))
        return names

    def publish(self, one: Request, stop: int) -> None:
        """Store blocks under the names that were made."""
        for name, block in zip(self.name_all(one)[: stop // self.block_size], one.blocks, strict=False):
            self.store(name, block)

    def end(self, one: Request) -> None:
        """Forget the names with the request."""
        super().end(one)
        self.names.pop(one.number, None)
