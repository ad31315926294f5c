"""A prefix cache over a radix tree: requests come, are computed, and leave their prefix behind.

    admit     the longest cached prefix is held, and blocks for what is scheduled are the request's own
    extend    decoded tokens join; the next tokens are scheduled
    commit    what is scheduled is computed: its full blocks go into the tree, which the request now holds
              further down; copies of what was there are freed, and the request reads the tree's instead
    finish    the request lets go, and what it put into the tree can be hit and evicted
    abort     the same, but nothing more is put into the tree

Every block is free, the tree's, or one request's own. Blocks of the tree that nobody holds count as free:
they are evicted when an admission or an extension needs them. Prompt and outputs are nodes of their own, so
that the answer can go before the question; outputs of one request lengthen one node.

Hits are whole blocks of the tree. A profile that keys tails or hits to the token hits no more here.

The pool is the cache's own. A step in flight or a pin would keep blocks that the tree has given up and that
count as free, so there are none here: `kvref.memory.prefix_cache` has a pool with both.

Realises: KV-PREFIX-001 hit-own-prefix, KV-PREFIX-002 hit-leaves-one, KV-PREFIX-005 hit-computed,
KV-PREFIX-006 hit-complete, KV-PREFIX-015 reset-forgets, KV-PREFIX-018 evict-before-refuse, KV-PREFIX-019
admit-atomic, KV-PREFIX-020 duplicates-safe, KV-PREFIX-021 abort-leaves-computed, KV-PREFIX-022
prefix-counts, KV-PREFIX-025 outputs-cached, KV-PREFIX-026 slots-stay, KV-PREFIX-027 prefix-request-known,
KV-PREFIX-028 writes-private.
For porters: in `admit`, find, count, and only then touch, lock, evict, allocate. Lock before evicting, or the
hit is evicted to make room for the rest.
Source: SGLang 0.5.23: radix_cache.py (checkpoint), common.py (release), schedule_batch.py (the last token).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from kvref.arrays import check_count
from kvref.errors import ArgumentError, OutOfBlocksError, OwnershipError
from kvref.memory.admission import Admission, check_fits, new_request, scheduled_until, unknown_request
from kvref.memory.blocks import BlockPool
from kvref.memory.keys import TOKEN, check_spans, written_tokens
from kvref.memory.namespace import COMMON, Namespace, check_namespace
from kvref.memory.profiles import PROFILES, Profile, profile_of
from kvref.memory.radix import RadixTree
from kvref.memory.radix_contents import sliced
from kvref.memory.radix_policies import DEFAULT_PRIORITY
from kvref.memory.radix_request import RadixRequest

#: The canonical answers, with a tree in the place of keys: it has one copy of a block, or none.
CANONICAL = replace(PROFILES["kvref"], structure="radix", duplicates="adopt")

#: What a profile must say, or may, for a tree to do as it says.
_ALLOWED = {
    "structure": ("radix",),
    "publish": ("computed", "finished"),
    "duplicates": ("adopt",),
    "evict_unit": ("block", "node"),
}


class RadixCache:
    """Requests over a pool of `num_blocks` blocks, under a profile of structure "radix".

    Raises: ArgumentError if the profile is unknown or of another structure, or a number is no count.
    """

    def __init__(
        self, num_blocks: int, profile: Profile | str = CANONICAL, block_size: int | None = None
    ) -> None:
        self.profile = _radix(profile_of(profile))
        size = self.profile.block_size if block_size is None else block_size
        self.block_size = check_count("block_size", size)
        self.evictions = 0
        """Blocks evicted so far."""
        self._pool = BlockPool(num_blocks, null_block=self.profile.null_block, plain=self.profile.plain)
        self.tree = RadixTree(
            self.profile.policy,
            whole_nodes=self.profile.evict_unit == "node",
            split_renews=self.profile.split == "renews",
        )
        self._requests: dict[int, RadixRequest] = {}

    @property
    def num_free(self) -> int:
        """How many blocks are free, or held by nobody but the tree."""
        return self._pool.num_free + self.tree.num_evictable

    def admit(
        self,
        request: int,
        tokens: Sequence[int],
        *,
        namespace: Namespace = COMMON,
        max_new_tokens: int | None = None,
        priority: int = DEFAULT_PRIORITY,
    ) -> Admission:
        """Begin a request: hit what is cached of its prompt, and schedule up to `max_new_tokens` of the rest.

        `priority` counts under the policy of that name: blocks of a lower one go first.
        Raises: OutOfBlocksError if the blocks cannot be had; UnknownRequestError if the request is there;
        ArgumentError if the prompt is empty or a token is none, or a span ends behind it.
        """
        raw, own = written_tokens(tokens), new_request(request, self._requests)
        count, size = len(raw) // TOKEN, self.block_size
        check_spans(check_namespace(namespace), count)
        check_fits(count, size, self._pool.capacity)
        rank = check_count("priority", priority, minimum=0)
        contents = sliced(raw, size, namespace, 0)
        found = self.tree.find(contents[: (count - 1) // size], namespace)
        hit = found.num_blocks
        scheduled = scheduled_until(hit * size, count, max_new_tokens)
        needed = -(-scheduled // size) - hit
        self._check_had(needed, self.tree.num_takeable(found))
        match = self.tree.take(found)
        self.tree.lock(match.node)
        live = RadixRequest(
            raw=bytearray(raw),
            contents=contents,
            blocks=match.blocks + self._allocate(needed),
            node=match.node,
            namespace=namespace,
            priority=rank,
            num_prompt=count,
            num_scheduled=scheduled,
            num_computed=hit * size,
        )
        self._requests[own] = live
        return Admission(hit * size, live.slots(size), [])

    def extend(
        self, request: int, tokens: Sequence[int] = (), *, max_new_tokens: int | None = None
    ) -> list[int]:
        """Let decoded tokens join, schedule up to `max_new_tokens` tokens, and return their slots.

        Raises: OutOfBlocksError if the blocks cannot be had; UnknownRequestError; ArgumentError.
        """
        raw, live = written_tokens(tokens), self._live(request)
        start = live.num_scheduled
        stop = scheduled_until(start, live.num_tokens + len(raw) // TOKEN, max_new_tokens)
        needed = -(-stop // self.block_size) - len(live.blocks)
        self._check_had(needed, 0)
        live.blocks += self._allocate(needed)
        live.raw += raw
        live.num_scheduled = stop
        return live.slots(self.block_size, start)

    def commit(self, request: int) -> None:
        """Say that everything scheduled of a request has been computed; slots of the request may change.

        Raises: UnknownRequestError.
        """
        live = self._live(request)
        live.num_computed = live.num_scheduled
        if self.profile.publish == "computed":
            self._publish(live, outputs=not self.profile.outputs_wait)

    def slots(self, request: int) -> list[int]:
        """List the slots of all scheduled tokens of a request, as they are now.

        Raises: UnknownRequestError.
        """
        return self._live(request).slots(self.block_size)

    def finish(self, request: int) -> None:
        """End a request; what it computed stays, and was used now.

        Raises: UnknownRequestError.
        """
        live = self._live(request)
        self._publish(live, outputs=True)
        self.tree.access(live.node)
        self._release(request)

    def abort(self, request: int) -> None:
        """End a request that is wanted no more; what it has put into the tree stays.

        Raises: UnknownRequestError.
        """
        self._live(request)
        self._release(request)

    def reset(self) -> None:
        """Forget everything cached, as a change of the model's weights requires.

        Raises: OwnershipError if a request is live (KV-PREFIX-015 reset-forgets).
        """
        if self._requests:
            raise OwnershipError(
                f"{len(self._requests)} requests are live, expected none (KV-PREFIX-015 reset-forgets)"
            )
        self._pool.free(self.tree.clear())

    def check_invariants(self) -> None:
        """Assert that every block is free, the tree's, or one request's own; costs time in their number."""
        self._pool.check_invariants()
        self.tree.check_invariants()
        held: Counter[int] = Counter(id(live.node) for live in self._requests.values())
        nodes = {id(node): node.held for node in self.tree.nodes() if node.held}
        assert nodes == {key: n for key, n in held.items() if key in nodes}, "a node is held by no request"
        owned = [block for node in self.tree.nodes() for block in node.blocks]
        for live in self._requests.values():
            live.check_invariants(self.block_size)
            owned += live.blocks[live.node.end :]
        assert len(owned) == len(set(owned)), "a block has two owners"
        free = self._pool.free_order()
        assert len(owned) + len(free) == self._pool.capacity, "a block is nobody's"
        assert set(owned).isdisjoint(free), "a free block has an owner"

    def _publish(self, live: RadixRequest, *, outputs: bool) -> None:
        """Put computed full blocks into the tree: those of the prompt, then those of the outputs."""
        prompt = live.num_prompt // self.block_size
        full = live.num_computed // self.block_size
        if not (outputs and self.profile.cached_outputs):
            full = min(full, prompt)
        for stop in (min(full, prompt), full):
            if stop > live.num_inserted:
                self._insert(live, stop, stop > prompt)

    def _insert(self, live: RadixRequest, stop: int, outputs: bool) -> None:
        own = live.node.end
        result = self.tree.insert(
            live.read(stop, self.block_size),
            live.blocks[:stop],
            below=live.node,
            priority=live.priority,
            counted=live.num_inserted,
            grow=live.grows,
        )
        if result.duplicates:
            self._pool.free(result.duplicates)
            live.blocks[own:stop] = result.node.prefix()[own:]
        self.tree.move_lock(live.node, result.node)
        live.node, live.num_inserted, live.grows = result.node, stop, outputs

    def _release(self, request: int) -> None:
        live = self._requests.pop(request)
        self._pool.free(live.blocks[live.node.end :][::-1])
        self.tree.unlock(live.node)

    def _allocate(self, num_blocks: int) -> list[int]:
        """Hand out blocks that can be had, evicting as many as are missing."""
        short = num_blocks - self._pool.num_free
        if short > 0:
            victims = self.tree.evict(short)
            self.evictions += len(victims)
            self._pool.free(victims)
        return self._pool.allocate(num_blocks).blocks

    def _live(self, request: int) -> RadixRequest:
        try:
            return self._requests[check_count("request", request, minimum=0)]
        except KeyError:
            raise unknown_request(request) from None

    def _check_had(self, needed: int, taken: int) -> None:
        available = self.num_free - taken
        if needed > available:
            raise OutOfBlocksError(
                f"{needed} blocks are needed, but {available} of {self._pool.capacity} can be had "
                "(KV-PREFIX-018 evict-before-refuse)"
            )


def _radix(profile: Profile) -> Profile:
    for name, allowed in _ALLOWED.items():
        if getattr(profile, name) not in allowed:
            raise ArgumentError(
                f"profile {profile.name!r} has {name} = {getattr(profile, name)!r}, "
                f"expected {' or '.join(map(repr, allowed))}"
            )
    return profile
