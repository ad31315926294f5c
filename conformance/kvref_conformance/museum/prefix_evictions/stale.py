"""Faults of eviction: blocks that are found after they were given away, and held ones that are given away."""

from collections.abc import Sequence
from typing import Any

from kvref.errors import OutOfBlocksError
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.museum.prefix_hits import CACHE, SIZES
from kvref_conformance.subjects.lists.naming import Content, Name
from kvref_conformance.subjects.lists.prefix import PrefixLists
from kvref_conformance.subjects.lists.requests import Request


@exhibit(
    as_if="an evicted block were still found under its old prefix",
    fault="F04 stale entry",
    seen_in=("vllm-project/vllm#4761",),
    breaks=("KV-PREFIX-017",),
    may_also_break=("KV-PREFIX-005", "KV-PREFIX-020", "KV-PREFIX-024"),
    verbs=CACHE,
    block_sizes=SIZES,
    program="admit 1 1 4; commit 1; finish 1; admit 2 2 21; abort 2; admit 3 1 5",
)
class EvictedStaysKnown(PrefixLists):
    """A block leaves the list of what can be evicted, and not the table of what is cached.

    Whoever asks for the old prefix is given a block that holds somebody else's tokens by now.
    """

    def forget(self, block: int) -> None:
        """Keep the entry."""


@exhibit(
    as_if="a hit that was found once were still trusted when the request came again",
    fault="F04 stale entry",
    seen_in=("vllm-project/vllm#17305",),
    breaks=("KV-PREFIX-017",),
    verbs=CACHE,
    block_sizes=SIZES,
    program=(
        "admit 1 1 4; commit 1; finish 1; admit 2 2 20; admit 3 1 9; commit 2; decode 2 3 4; "
        "abort 2; admit 3 1 9"
    ),
)
class HitRemembered(PrefixLists):
    """How much of a waiting request is cached is found out once, and kept with the request.

    It waits because there is no room; by the time it is admitted its prefix has been evicted.
    """

    def __init__(self, num_blocks: int, block_size: int, hash_bits: int = 0) -> None:
        super().__init__(num_blocks, block_size, hash_bits)
        self.notes: dict[tuple[int, ...], list[int]] = {}
        self.found: list[int] = []

    def find(self, content: Content, most: int) -> list[int]:
        """Look in the notes first."""
        known = self.notes.pop(tuple(content.tokens), None)
        self.found = super().find(content, most) if known is None else known
        return list(self.found)

    def admit(self, request: int, tokens: Sequence[int], max_new_tokens: int, **given: Any) -> Any:
        """Note the hit of a request that is refused."""
        try:
            return super().admit(request, tokens, max_new_tokens, **given)
        except OutOfBlocksError:
            self.notes[tuple(tokens)] = self.found
            raise


@exhibit(
    as_if="a request were given the blocks of its own hit for its new tokens",
    fault="F05 in flight",
    seen_in=("NVIDIA/TensorRT-LLM#8830",),
    breaks=("KV-PREFIX-016",),
    verbs=CACHE,
    block_sizes=SIZES,
    program="admit 1 1 4; commit 1; finish 1; admit 2 2 20; commit 2; finish 2; admit 3 1 4 3 1",
)
class EvictsItsOwnHit(PrefixLists):
    """New blocks are taken before the hit is claimed.

    In the report the matched block lies at the head of the queue, is not claimed yet, and is handed out for
    what comes behind it.
    """

    def begin(self, one: Request, hits: list[int]) -> None:
        """Take what is new first."""
        need = -(-min(one.hit + self.most, one.num_tokens) // self.block_size) - len(hits)
        new = self.take(need)
        for block in hits:
            if block in self.waiting:
                self.waiting.remove(block)
            self.holders[block] += 1
        one.blocks, one.computed, one.scheduled = [*hits, *new], one.hit, one.hit
        self.requests.live.append(one)

    def admit(self, request: int, tokens: Sequence[int], max_new_tokens: int, **given: Any) -> Any:
        """Remember how much is scheduled."""
        self.most = max_new_tokens
        return super().admit(request, tokens, max_new_tokens, **given)


@exhibit(
    as_if="a hit held nothing",
    fault="F07 ownership",
    breaks=("KV-PREFIX-016",),
    may_also_break=("KV-PREFIX-022", "KV-PREFIX-023", "KV-PREFIX-024"),
    verbs=CACHE,
    block_sizes=SIZES,
    program="admit 1 1 4; commit 1; finish 1; admit 2 1 5; admit 3 2 17",
)
class HitsNotHeld(PrefixLists):
    """A hit is read where it lies, among the blocks that can be evicted.

    A plant: all is well until the pool is full, and then the oldest prefix goes first, which is the one that
    is shared most.
    """

    def hold(self, blocks: list[int]) -> None:
        """Leave them among the free ones."""

    def release(self, blocks: list[int]) -> None:
        """Let go of what is held."""
        super().release([block for block in blocks if self.holders[block]])

    def taken_by(self, hits: list[int]) -> int:
        """Count none."""
        return 0


@exhibit(
    as_if="an evicted block were still found if two blocks had held its prefix",
    fault="F04 stale entry",
    breaks=("KV-PREFIX-017",),
    may_also_break=("KV-PREFIX-020",),
    verbs=CACHE,
    block_sizes=SIZES,
    program=(
        "admit 1 1 4; admit 2 1 4; commit 1; commit 2; finish 1; finish 2; admit 3 2 21; abort 3; admit 4 1 5"
    ),
)
class CopiesStayKnown(PrefixLists):
    """The entry of a key that was stored twice is not taken out with either of its blocks.

    A plant: each removal leaves it to the other.
    """

    def __init__(self, num_blocks: int, block_size: int, hash_bits: int = 0) -> None:
        super().__init__(num_blocks, block_size, hash_bits)
        self.copied: list[Name] = []

    def store(self, name: Name, block: int) -> None:
        """Note what is stored a second time."""
        if (name, block) not in self.known and self.look_up(name) is not None:
            self.copied.append(name)
        super().store(name, block)

    def forget(self, block: int) -> None:
        """Keep the entries of what was stored twice."""
        kept = [entry for entry in self.known if entry[1] == block and entry[0] in self.copied]
        super().forget(block)
        self.known += [entry for entry in kept if entry not in self.known]
