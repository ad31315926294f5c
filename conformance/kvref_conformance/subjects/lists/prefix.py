"""A naive prefix cache: a list of names and the blocks that hold them, looked through from the front.

Blocks that nobody holds lie in one list and are handed out from its front. Those that hold a name join at the
back, a request's last block first, and the others at the front. What is named goes when it is handed out.
"""

from collections.abc import Hashable, Sequence
from typing import Any

from kvref.errors import OutOfBlocksError, OwnershipError
from kvref_conformance.subjects.lists.events import Events
from kvref_conformance.subjects.lists.naming import Content, Name
from kvref_conformance.subjects.lists.requests import Request, Requests


class PrefixLists:
    """Whose tokens are computed already, kept in lists.

    The attributes are the declared choices of the same names.
    """

    publish_time = "computed"
    full_hit = "block_floor"
    eviction_order = "lru_tail_first"
    cached_outputs = "yes"

    def __init__(self, num_blocks: int, block_size: int, hash_bits: int = 0) -> None:
        self.num_blocks, self.block_size, self.hash_bits = num_blocks, block_size, hash_bits
        self.waiting = list(range(num_blocks))
        """Blocks that nobody holds, the first to be handed out in front."""
        self.holders = [0] * num_blocks
        self.known: list[tuple[Name, int]] = []
        """Names and the blocks that hold them, the oldest first."""
        self.requests = Requests()
        self.events = Events(block_size)

    # --- operations

    def admit(
        self, request: int, tokens: Sequence[int], max_new_tokens: int, **given: Any
    ) -> tuple[int, list[int]]:
        """Begin a request: find what is cached, and schedule what is not."""
        one = self.requests.read(request, tokens, max_new_tokens, given)
        if one.num_tokens > self.num_blocks * self.block_size:
            raise OutOfBlocksError(f"{one.num_tokens} tokens do not fit (KV-PREFIX-027)")
        hits = self.find(one.content, self.limit(one.num_tokens))
        one.hit = self.hit_of(one, hits)
        self.make_room(self.missing(one, one.hit + max_new_tokens, hits), hits)
        self.begin(one, hits)
        self.schedule(one, max_new_tokens)
        return one.hit, self.slots(request)

    def extend(self, request: int, tokens: Sequence[int], max_new_tokens: int) -> list[int]:
        """Let tokens join a request, and schedule more."""
        one = self.requests.idle(request, tokens, max_new_tokens)
        stop = min(one.scheduled + max_new_tokens, one.num_tokens + len(tokens))
        self.make_room(-(-stop // self.block_size) - len(one.blocks), [])
        one.content.tokens += tokens
        start = one.scheduled
        self.schedule(one, max_new_tokens)
        return self.slots(request)[start:]

    def commit(self, request: int) -> None:
        """Let what is scheduled be computed."""
        one = self.requests.get(request)
        one.computed = one.scheduled
        if self.publish_time == "computed":
            self.publish(one, one.computed)

    def slots(self, request: int) -> list[int]:
        """Return where the scheduled tokens of a request lie."""
        one = self.requests.get(request)
        return [self.slot(one, at) for at in range(one.scheduled)]

    def finish(self, request: int) -> None:
        """End a request."""
        one = self.requests.get(request)
        if self.publish_time == "finished":
            self.publish(one, one.computed)
        self.end(one)

    def abort(self, request: int) -> None:
        """End a request in the middle."""
        self.end(self.requests.get(request))

    def num_free(self) -> int:
        """Count the blocks that nobody holds."""
        return len(self.waiting)

    def reset(self) -> None:
        """Forget every name."""
        if self.requests.live:
            raise OwnershipError("requests hold blocks, expected none (KV-PREFIX-015)")
        self.known.clear()
        self.events.cleared()

    def take_events(self) -> str:
        """Return what was stored and removed since the last time."""
        return self.events.take()

    # --- what they are made of

    def slot(self, one: Request, at: int) -> int:
        """Return where a position of a request lies."""
        return one.blocks[at // self.block_size] * self.block_size + at % self.block_size

    def name(self, content: Content, stop: int) -> Name:
        """Return the name of the first `stop` tokens of a request."""
        return content.texts, content.items(0, stop)

    def limit(self, num_tokens: int) -> int:
        """Return how many tokens of a request may be looked for."""
        return num_tokens if self.full_hit == "last_token" else num_tokens - 1

    def find(self, content: Content, most: int) -> list[int]:
        """Return the blocks that hold a request's first tokens, up to the first that is missing."""
        found: list[int] = []
        while (stop := (len(found) + 1) * self.block_size) <= most:
            block = self.look_up(self.name(content, stop))
            if block is None:
                break
            found.append(block)
        return found

    def hit_of(self, one: Request, hits: list[int]) -> int:
        """Return how many tokens a hit spares."""
        return min(len(hits) * self.block_size, one.num_tokens - 1)

    def look_up(self, name: Name) -> int | None:
        """Return the oldest block that holds a name."""
        key = self.key(name)
        return next((block for known, block in self.known if self.key(known) == key), None)

    def key(self, name: Name) -> Hashable:
        """Return what tells a name from others: all of it."""
        return name

    def missing(self, one: Request, stop: int, hits: list[int]) -> int:
        """Count the blocks that an admission needs beside its hits."""
        copied = one.hit < len(hits) * self.block_size
        return -(-min(stop, one.num_tokens) // self.block_size) - len(hits) + copied

    def make_room(self, count: int, hits: list[int]) -> None:
        """Refuse if that many blocks cannot be handed out, once the hits are held.

        Raises: OutOfBlocksError.
        """
        free = self.num_free() - self.taken_by(hits)
        if count > free:
            raise OutOfBlocksError(f"{count} blocks are needed, {free} can be had (KV-PREFIX-018)")

    def taken_by(self, hits: list[int]) -> int:
        """Count the blocks that can be had now, and not once a hit is held."""
        return sum(block in self.waiting for block in hits)

    def begin(self, one: Request, hits: list[int]) -> None:
        """Let a request hold its hit."""
        self.hold(hits)
        one.blocks, one.computed = list(hits), one.hit
        one.scheduled = one.hit
        if one.hit < len(hits) * self.block_size:
            self.copy_last(one)
        self.requests.live.append(one)

    def schedule(self, one: Request, most: int) -> None:
        """Give a request the blocks of its next tokens."""
        one.scheduled = min(one.scheduled + most, one.num_tokens)
        one.blocks += self.take(-(-one.scheduled // self.block_size) - len(one.blocks))
        if self.publish_time == "scheduled":
            self.publish(one, one.scheduled)

    def copy_last(self, one: Request) -> None:
        """Let a request have its last block to itself: it will write into it."""
        own = self.take(1)
        self.release([one.blocks[-1]])
        one.blocks[-1:] = own

    def hold(self, blocks: list[int]) -> None:
        """Hold blocks once more."""
        for block in blocks:
            if block in self.waiting:
                self.waiting.remove(block)
            self.holders[block] += 1

    def take(self, count: int) -> list[int]:
        """Hand out blocks from the front; what they held is lost."""
        blocks = self.waiting[:count]
        del self.waiting[:count]
        for block in blocks:
            self.forget(block)
            self.holders[block] = 1
        return blocks

    def forget(self, block: int) -> None:
        """Let a block hold no name."""
        for name in [name for name, known in self.known if known == block]:
            self.known.remove((name, block))
            if self.look_up(name) is None:
                self.events.removed(name)

    def publish(self, one: Request, stop: int) -> None:
        """Let others find a request's full blocks, up to a position."""
        if self.cached_outputs == "no":
            stop = min(stop, one.prompt_len)
        for at in range(stop // self.block_size):
            self.store(self.name(one.content, (at + 1) * self.block_size), one.blocks[at])

    def store(self, name: Name, block: int) -> None:
        """Let a block hold a name."""
        if (name, block) in self.known:
            return
        if self.look_up(name) is None:
            self.events.stored(name)
        self.known.append((name, block))

    def end(self, one: Request) -> None:
        """Let go of all blocks of a request."""
        self.requests.live.remove(one)
        tail_first = self.eviction_order == "lru_tail_first"
        self.release(one.blocks[::-1] if tail_first else one.blocks)

    def release(self, blocks: list[int]) -> None:
        """Let go of blocks; those that nobody holds any more wait to be handed out."""
        for block in blocks:
            self.holders[block] -= 1
            if self.holders[block] == 0:
                if any(known == block for _, known in self.known):
                    self.waiting.append(block)
                else:
                    self.waiting.insert(0, block)
