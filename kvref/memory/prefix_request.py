"""One request of a prefix cache over keys: its tokens, what names them, and the blocks they lie in.

For porters: tokens only ever join, so keys only ever join; compute them as blocks fill.
Source: vLLM's requests, which hash their blocks as tokens are appended.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

from kvref.memory.content import Content, contents, root
from kvref.memory.keys import TOKEN, Digest, chained, messages, namespace_key
from kvref.memory.namespace import Namespace

#: What stands in a row for a block that is not held, because its tokens are not attended to any more.
NULL = -1


@dataclass(slots=True)
class PrefixRequest:
    """What a cache knows of a request it has admitted."""

    namespace: Namespace
    block_size: int
    digest: Digest
    verified: bool
    """Whether contents are kept, to be compared where keys are equal."""
    raw: bytearray = field(default_factory=bytearray)
    """Its tokens, written."""
    keys: list[bytes] = field(default_factory=list)
    """One a full block."""
    contents: list[Content] = field(default_factory=list)
    row: list[int] = field(default_factory=list)
    """The blocks its scheduled tokens lie in, the first token's first."""
    sources: list[int] = field(default_factory=list)
    """Blocks held until what is copied from them is there."""
    num_prompt: int = 0
    num_scheduled: int = 0
    num_computed: int = 0
    num_published: int = 0
    """Blocks, counted from the first, that were published or hit."""

    @property
    def num_tokens(self) -> int:
        """How many tokens are known."""
        return len(self.raw) // TOKEN

    def join(self, raw: bytes) -> None:
        """Let written tokens join; the blocks they fill get keys."""
        self.raw += raw
        size, done = self.block_size, len(self.keys)
        full = len(self.raw) // (size * TOKEN)
        if full == done:
            return
        fresh = bytes(self.raw[done * size * TOKEN : full * size * TOKEN])
        texts = messages(fresh, size, self.namespace, done * size)
        self.keys += chained(texts, self._before(done), self.digest)
        if self.verified:
            self.contents += contents(texts, self._content_before(done))

    def cut(self, num_tokens: int) -> list[int]:
        """Keep the first tokens alone; return the blocks that held none but others."""
        full, blocks = num_tokens // self.block_size, -(-num_tokens // self.block_size)
        del self.raw[num_tokens * TOKEN :], self.keys[full:], self.contents[full:]
        dropped, self.row = self.row[blocks:], self.row[:blocks]
        self.num_scheduled = min(self.num_scheduled, num_tokens)
        return dropped

    def of_blocks(self, start: int, stop: int) -> tuple[Sequence[bytes], Sequence[Content] | None]:
        """Return keys of full blocks, and their contents if they are verified."""
        return self.keys[start:stop], self.contents[start:stop] if self.verified else None

    def of_tail(self) -> tuple[Sequence[bytes], Sequence[Content] | None]:
        """Return the key of what the prompt's full blocks leave over, and its content; or no key."""
        size, full = self.block_size, self.num_prompt // self.block_size
        rest = bytes(self.raw[full * size * TOKEN : self.num_prompt * TOKEN])
        texts = messages(rest, size, self.namespace, full * size)
        keys = chained(texts, self._before(full), self.digest)
        return keys, contents(texts, self._content_before(full)) if self.verified else None

    def slots(self, start: int, stop: int) -> list[int]:
        """List the slots of the tokens from `start` to below `stop`."""
        size, first = self.block_size, start // self.block_size
        bases = [block * size for block in self.row[first : -(-stop // size)]]
        slots = list(chain.from_iterable(map(range, bases, [base + size for base in bases])))
        return slots[start - first * size : stop - first * size]

    def check_invariants(self) -> None:
        """Assert that tokens, keys and blocks fit each other."""
        assert self.num_published * self.block_size <= self.num_scheduled, "published before it is scheduled"
        assert self.num_computed <= self.num_scheduled <= self.num_tokens, "counts of tokens are out of order"
        assert self.num_prompt <= self.num_tokens, "a prompt has lost tokens"
        assert len(self.keys) == self.num_tokens // self.block_size, "a full block has no key"
        assert len(self.contents) == (len(self.keys) if self.verified else 0), "a full block has no content"
        assert len(self.row) == -(-self.num_scheduled // self.block_size), "tokens and blocks do not fit"
        held = [block for block in self.row if block != NULL]
        assert len(set(held)) == len(held), "a block is twice in a row"

    def _before(self, block: int) -> bytes:
        return self.keys[block - 1] if block else namespace_key(self.namespace, self.digest)

    def _content_before(self, block: int) -> Content:
        return self.contents[block - 1] if block else root(self.namespace)
