"""A live request of a radix cache: its tokens, its blocks, and how far it has come.

Its row of blocks has two parts. The first `node.end` blocks are the tree's, and the request holds the node;
the rest are its own, and nobody else reaches them:

    0 <= num_inserted <= node.end,  num_computed <= num_scheduled <= num_tokens

Realises: KV-PREFIX-026 slots-stay, KV-PREFIX-028 writes-private.
For porters: free from `node.end` on, never from the first token: the tree still refers to what is before.
Source: SGLang's per-request record (cache_protected_len, cache_inserted_len), counted in blocks.
"""

from dataclasses import dataclass

from kvref.memory.keys import TOKEN
from kvref.memory.namespace import Namespace
from kvref.memory.radix_contents import sliced
from kvref.memory.radix_node import Content, Node


@dataclass(slots=True)
class RadixRequest:
    """Tokens as they are written (8 bytes each), contents of full blocks, and blocks."""

    raw: bytearray
    contents: list[Content]
    blocks: list[int]
    node: Node
    """Where its part of the tree ends; locked."""
    namespace: Namespace
    priority: int
    num_prompt: int
    num_scheduled: int
    num_computed: int
    num_inserted: int = 0
    """Blocks it has put into the tree, whether they were new there or not."""
    grows: bool = False
    """Whether `node` is a leaf of its own outputs, which may become longer."""

    @property
    def num_tokens(self) -> int:
        """Tokens it has, scheduled or not."""
        return len(self.raw) // TOKEN

    def read(self, num_blocks: int, block_size: int) -> list[Content]:
        """Return the contents of its first blocks, all of them full."""
        known = len(self.contents)
        if num_blocks > known:
            raw = bytes(self.raw[known * block_size * TOKEN :])
            self.contents += sliced(raw, block_size, self.namespace, known)
        return self.contents[:num_blocks]

    def slots(self, block_size: int, start: int = 0) -> list[int]:
        """List the slots of its scheduled tokens, from position `start` on."""
        slots: list[int] = []
        for block in self.blocks[start // block_size :]:
            slots += range(block * block_size, (block + 1) * block_size)
        return slots[start % block_size : self.num_scheduled - start + start % block_size]

    def check_invariants(self, block_size: int) -> None:
        """Assert that the request and the tree agree on the part that is the tree's."""
        path = [node for node in self.node.path() if node.parent][::-1]
        assert self.blocks[: self.node.end] == self.node.prefix(), (
            "a request reads other blocks than the tree's"
        )
        held = [content for node in path for content in node.contents]
        assert held == self.read(self.node.end, block_size), "a request holds a prefix that is not its own"
        assert self.node.held, "a request does not hold its node"
        assert self.num_inserted <= self.node.end, "a request has put in more than its node has"
        assert self.node.end * block_size <= self.num_computed, "a request holds what is not computed"
        assert self.num_computed <= self.num_scheduled <= self.num_tokens, "a request is ahead of itself"
        assert len(self.blocks) == -(-self.num_scheduled // block_size), "a request has too many blocks"
