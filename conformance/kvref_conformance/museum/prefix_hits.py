"""Faults of hits: contents of another prefix, hits that reach too far, and hits that never come."""

from collections.abc import Hashable
from hashlib import sha256

from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.lists.naming import Content, Name
from kvref_conformance.subjects.lists.prefix import PrefixLists
from kvref_conformance.subjects.lists.requests import Request

CACHE = ("prefix_cache",)
SIZES = (4,)


@exhibit(
    as_if="prefixes were told apart by their length alone",
    fault="F03 cache key",
    seen_in=("ollama/ollama#17599", "ggml-org/llama.cpp#27422"),
    breaks=("KV-PREFIX-001",),
    may_also_break=("KV-PREFIX-024",),
    verbs=CACHE,
    block_sizes=SIZES,
    program="admit 1 1 4; commit 1; admit 2 2 5",
)
class KnownByLength(PrefixLists):
    """What was computed for one prompt is given to the next one that is as long.

    Both reports show the symptom, another client's prompt answered, and no cause. A cache that restores what
    fits by size, or keeps a slot whose prompt is only similar, behaves like this.
    """

    def key(self, name: Name) -> Hashable:
        """Count."""
        return len(name[1])


@exhibit(
    as_if="a hit was counted in one cache and read from another",
    fault="F21 one path only",
    seen_in=("EricLBuehler/mistral.rs#1035",),
    breaks=("KV-PREFIX-005",),
    may_also_break=(
        "KV-PREFIX-001",
        "KV-PREFIX-004",
        "KV-PREFIX-015",
        "KV-PREFIX-018",
        "KV-PREFIX-019",
        "KV-PREFIX-020",
        "KV-PREFIX-021",
        "KV-PREFIX-024",
    ),
    verbs=CACHE,
    block_sizes=SIZES,
    program="admit 1 1 4; commit 1; admit 2 1 5",
)
class HitOfAnotherCache(PrefixLists):
    """The prefix is found, and its tokens are skipped; the blocks that are read are new ones.

    Prefix reuse was written for the first kind of cache that the engine had, and is consulted although the
    requests now run on the second.
    """

    def begin(self, one: Request, hits: list[int]) -> None:
        """Take new blocks in place of the hit."""
        super().begin(one, [])
        one.blocks = self.take(len(hits))

    def missing(self, one: Request, stop: int, hits: list[int]) -> int:
        """Count them."""
        return super().missing(one, stop, [])


@exhibit(
    as_if="a hit was rounded up to the end of the request",
    fault="F01 boundary",
    seen_in=("jundot/omlx#2227",),
    breaks=("KV-PREFIX-002",),
    may_also_break=("KV-PREFIX-001", "KV-PREFIX-003", "KV-PREFIX-005", "KV-PREFIX-015"),
    verbs=CACHE,
    block_sizes=SIZES,
    program="admit 1 1 4; commit 1; admit 2 1 5",
)
class HitRoundedUp(PrefixLists):
    """The number of blocks that are not computed again counts the last one, which is not full.

    All full blocks of the prompt are hit, and the tokens behind them are taken for computed as well. The
    model never sees the end of the prompt.
    """

    def hit_of(self, one: Request, hits: list[int]) -> int:
        """Count the partly filled block in."""
        if hits and len(hits) == one.num_tokens // self.block_size:
            return one.num_tokens
        return super().hit_of(one, hits)


@exhibit(
    as_if="the last, partly filled block of a request were found like a full one",
    fault="F02 unit",
    breaks=("KV-PREFIX-003",),
    may_also_break=("KV-PREFIX-028",),
    verbs=CACHE,
    block_sizes=SIZES,
    program="admit 1 1 2; commit 1; finish 1; admit 2 1 3",
)
class TailFound(PrefixLists):
    """A finished request leaves its last block to be found, however few tokens are in it.

    A plant: whoever hits it writes on in the same block, and so does the next one.
    """

    def finish(self, request: int) -> None:
        """Name the tail."""
        one = self.requests.get(request)
        if one.computed % self.block_size:
            self.store(self.name(one.content, one.computed), one.blocks[-1])
        super().finish(request)

    def find(self, content: Content, most: int) -> list[int]:
        """Look for a longer hit that ends inside the next block."""
        found = super().find(content, most)
        full = len(found) * self.block_size
        self.reached = full
        for stop in range(min(most, full + self.block_size - 1), full, -1):
            block = self.look_up(self.name(content, stop))
            if block is not None:
                self.reached = stop
                return [*found, block]
        return found

    def hit_of(self, one: Request, hits: list[int]) -> int:
        """Count its tokens."""
        return self.reached

    def missing(self, one: Request, stop: int, hits: list[int]) -> int:
        """Count new blocks alone."""
        return -(-min(stop, one.num_tokens) // self.block_size) - len(hits)

    def copy_last(self, one: Request) -> None:
        """Write on in the same block."""


@exhibit(
    as_if="a hit went on behind a missing block",
    fault="F04 stale entry",
    breaks=("KV-PREFIX-004",),
    may_also_break=("KV-PREFIX-024",),
    verbs=CACHE,
    block_sizes=SIZES,
    choices={"eviction-order": "lru_head_first"},
    program="admit 1 1 12; commit 1; finish 1; admit 2 2 13; commit 2; finish 2; admit 3 1 9",
)
class HolesSkipped(PrefixLists):
    """Every block of the prompt that is known is counted, whether the one before it is or not.

    A plant: the sum of what is found looks like a length. The first block is evicted and the second takes its
    place.
    """

    eviction_order = "lru_head_first"

    def find(self, content: Content, most: int) -> list[int]:
        """Leave out what is missing."""
        ends = range(self.block_size, most + 1, self.block_size)
        blocks = (self.look_up(self.name(content, stop)) for stop in ends)
        return [block for block in blocks if block is not None]


@exhibit(
    as_if="blocks were published before all of their tokens were computed",
    fault="F04 stale entry",
    seen_in=("NVIDIA/TensorRT-LLM#12818",),
    breaks=("KV-PREFIX-005",),
    verbs=CACHE,
    block_sizes=SIZES,
    program="part 1 1 1 4; commit 1; admit 2 1 5",
)
class PublishedByTheBlock(PrefixLists):
    """After each chunk of a prompt, every block that has been given out is published.

    Storing for reuse was written when prompts were computed at once. The last block of a chunk holds a few
    tokens of what its key says.
    """

    def publish(self, one: Request, stop: int) -> None:
        """Publish to the end of the block."""
        whole = -(-stop // self.block_size) * self.block_size
        super().publish(one, min(whole, one.num_tokens))


@exhibit(
    as_if="a prompt were cut into blocks anew at the start of each chunk",
    fault="F21 one path only",
    seen_in=("LMCache/LMCache#195",),
    breaks=("KV-PREFIX-006",),
    may_also_break=("KV-PREFIX-023",),
    verbs=CACHE,
    block_sizes=SIZES,
    program="part 1 1 1 4; commit 1; more 1 3; commit 1; admit 2 1 5",
)
class CutAnewAtEachChunk(PrefixLists):
    """What is stored is named by pieces that begin where a chunk began, and looked up from the first token.

    Store and lookup cut the prompt in two ways. After a chunk that ends inside a block, none of the later
    ones is ever found.
    """

    def publish(self, one: Request, stop: int) -> None:
        """Name nothing that a chunk's end lies in, or that follows it."""
        unaligned = self.__dict__.setdefault("unaligned", {})
        first = unaligned.get(id(one), stop)
        super().publish(one, min(first, stop))
        if stop % self.block_size and stop < one.prompt_len:
            unaligned.setdefault(id(one), stop)


@exhibit(
    as_if="outputs were not cached, although they are declared to be",
    fault="F21 one path only",
    breaks=("KV-PREFIX-025",),
    may_also_break=("KV-PREFIX-023",),
    verbs=CACHE,
    block_sizes=SIZES,
    program="admit 1 1 3; commit 1; decode 1 2 1; commit 1; finish 1; admit 2 1 3 2 1 3 1",
)
class OutputsForgotten(PrefixLists):
    """Only blocks of the prompt are published.

    A plant: the next turn of a conversation computes the last answer again, and nothing says so.
    """

    cached_outputs = "no"


@exhibit(
    as_if="two prefixes were one because their keys collide",
    fault="F03 cache key",
    breaks=("KV-PREFIX-034",),
    verbs=CACHE,
    block_sizes=SIZES,
    features=("weak_hash",),
    program="admit 1 1 4; commit 1; admit 2 3 5",
)
class EqualKeysTrusted(PrefixLists):
    """A block is another's if its key is, and what it holds is not compared.

    A plant: with a digest that nobody can make collide this is as safe as the digest. Here it is opened with
    one that anybody can.
    """

    def key(self, name: Name) -> Hashable:
        """Cut the digest."""
        if not self.hash_bits:
            return name
        return int.from_bytes(sha256(repr(name).encode()).digest()[:4], "big") % (1 << self.hash_bits)
