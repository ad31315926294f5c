"""A prefix cache over keys of full blocks: requests find what others computed, and leave what they computed.

`admit` hits the longest run of blocks whose keys are known and schedules tokens behind it; `commit` says that
what is scheduled was computed; `extend` adds decoded tokens and schedules on. Where engines differ, the
profile decides (`kvref.memory.profiles`); whatever it says, a slot of a hit holds what this prefix in this
namespace wrote there, slots given for new tokens are nobody else's, and a refused call has changed nothing.

A profile that publishes scheduled blocks has one condition: steps are run in the order of their scheduling.
Aborting a request before its step takes back what it published; who hit it meanwhile must be aborted too.

Realises: KV-PREFIX-001 hit-own-prefix, KV-PREFIX-002 hit-leaves-one, KV-PREFIX-003 hit-on-grid, KV-PREFIX-004
hit-contiguous, KV-PREFIX-005 hit-computed, KV-PREFIX-006 hit-complete, KV-PREFIX-015 reset-forgets,
KV-PREFIX-019 admit-atomic, KV-PREFIX-021 abort-leaves-computed, KV-PREFIX-022 prefix-counts, KV-PREFIX-025
outputs-cached, KV-PREFIX-026 slots-stay, KV-PREFIX-027 prefix-request-known, KV-PREFIX-028 writes-private.
For porters: build `admit` under `kvref`, the canonical profile, and `finish`; then chunks, then profiles.
Source: vLLM's KVCacheManager; the choices are those of the profiles.
"""

from collections import Counter
from collections.abc import Sequence

from kvref.arrays import check_count, check_flag
from kvref.errors import ArgumentError, OwnershipError
from kvref.memory.admission import Admission, check_fits, new_request, scheduled_until, unknown_request
from kvref.memory.blocks import BlockPool
from kvref.memory.cache_events import Event, Told
from kvref.memory.keys import TOKEN, Digest, check_digest, check_spans, sha256, written_tokens
from kvref.memory.namespace import COMMON, Namespace, check_namespace
from kvref.memory.prefix import PrefixIndex
from kvref.memory.prefix_request import PrefixRequest
from kvref.memory.prefix_steps import publish, publish_tail, take
from kvref.memory.profiles import Profile, profile_of


class PrefixCache:
    """Requests over a pool of `num_blocks` blocks, under a profile of structure "chain".

    `digest` makes the keys; one that can be made to collide needs a profile that compares tokens. With
    `events`, the cache tells which keys it stores and removes.
    Raises: ArgumentError if the profile is unknown or of another structure, a number is no count, or `digest`
    is no digest.
    """

    def __init__(
        self,
        num_blocks: int,
        profile: Profile | str = "kvref",
        block_size: int | None = None,
        *,
        digest: Digest = sha256,
        events: bool = False,
    ) -> None:
        self.profile = _chain(profile_of(profile))
        size = self.profile.block_size if block_size is None else block_size
        self.block_size = check_count("block_size", size)
        self._digest = check_digest(digest)
        self._index: PrefixIndex[bytes] = PrefixIndex(num_blocks, self.profile)
        self._requests: dict[int, PrefixRequest] = {}
        self._told = Told() if check_flag("events", events) else None

    @property
    def pool(self) -> BlockPool:
        """The blocks."""
        return self._index.pool

    @property
    def num_free(self) -> int:
        """How many blocks a request can have now; cached blocks that nobody holds count."""
        return self._index.pool.num_free

    @property
    def evictions(self) -> int:
        """How many blocks were evicted so far."""
        return self._index.evictions

    def admit(
        self,
        request: int,
        tokens: Sequence[int],
        *,
        namespace: Namespace = COMMON,
        max_new_tokens: int | None = None,
    ) -> Admission:
        """Begin a request: hit what is cached of its prompt, and schedule up to `max_new_tokens` of the rest.

        Raises: OutOfBlocksError if the blocks cannot be had; UnknownRequestError if the request is there;
        ArgumentError if the prompt is empty or a token is none, or a span ends behind it.
        """
        raw, own = written_tokens(tokens), new_request(request, self._requests)
        count = len(raw) // TOKEN
        check_spans(check_namespace(namespace), count)
        check_fits(count, self.block_size, self.pool.capacity)
        scheduled_until(0, count, max_new_tokens)  # to be refused before anything is looked up
        new = PrefixRequest(namespace, self.block_size, self._digest, self.profile.identity == "tokens")
        new.join(raw)
        new.num_prompt = count
        copies = take(self._index, new, max_new_tokens)
        self._tell_removed()
        self._requests[own] = new
        self._scheduled(new)
        return Admission(new.num_computed, new.slots(0, new.num_scheduled), copies)

    def extend(
        self, request: int, tokens: Sequence[int] = (), *, max_new_tokens: int | None = None
    ) -> list[int]:
        """Let decoded tokens join, schedule up to `max_new_tokens` tokens, and return their slots.

        Raises: OutOfBlocksError if the blocks cannot be had; UnknownRequestError; ArgumentError.
        """
        raw, own = written_tokens(tokens), self._known(request)
        start = own.num_scheduled
        stop = scheduled_until(start, own.num_tokens + len(raw) // TOKEN, max_new_tokens)
        missing = -(-stop // self.block_size) - len(own.row)
        if missing:
            own.row += self._index.take((), missing)
            self._tell_removed()
        own.join(raw)
        own.num_scheduled = stop
        self._scheduled(own)
        return own.slots(start, stop)

    def commit(self, request: int) -> None:
        """Say that everything scheduled of a request has been computed, and what was to be copied is there.

        Raises: UnknownRequestError.
        """
        own = self._known(request)
        own.num_computed = own.num_scheduled
        self._let_go_of_sources(own)
        if self.profile.publish == "computed":
            self._publish(own, own.num_computed)

    def slots(self, request: int) -> list[int]:
        """List the slots of all scheduled tokens of a request, the first token's first.

        Raises: UnknownRequestError.
        """
        own = self._known(request)
        return own.slots(0, own.num_scheduled)

    def finish(self, request: int) -> None:
        """End a request; what it computed stays, as far as the profile publishes it.

        Raises: UnknownRequestError.
        """
        own = self._known(request)
        self._publish(own, own.num_computed)
        publish_tail(self._index, own)
        self._end(request, own)

    def abort(self, request: int) -> None:
        """End a request that is wanted no more; nothing stays that was not computed.

        Raises: UnknownRequestError.
        """
        self._end(request, self._known(request))

    def reset(self) -> None:
        """Forget everything cached, as a change of the model's weights requires.

        Raises: OwnershipError if a request is there (KV-PREFIX-015 reset-forgets).
        """
        if self._requests:
            raise OwnershipError(
                f"{len(self._requests)} requests hold blocks, expected none (KV-PREFIX-015 reset-forgets)"
            )
        self._index.reset()
        if self._told:
            self._told.cleared()

    def take_events(self) -> list[Event]:
        """Return what was stored and removed since the last time, in its order.

        Raises: ArgumentError if the cache was not opened to tell.
        """
        if not self._told:
            raise ArgumentError("events = False, expected a cache that tells of itself")
        return self._told.take()

    def check_invariants(self) -> None:
        """Assert that blocks are held by exactly the requests that have them, and that all counts agree."""
        self._index.check_invariants()
        held: Counter[int] = Counter()
        for own in self._requests.values():
            own.check_invariants()
            held.update(own.row + own.sources)
        assert self.pool.num_held == len(held), "blocks are held by no request"
        if self._told and self.profile.tail == "full_blocks":
            assert self._told.keys() == self._index.keys(), "what was told is not what is there"
        for block, count in held.items():
            assert self.pool.ref_count(block) == count, f"block {block} is not held once a request"

    def _scheduled(self, own: PrefixRequest) -> None:
        if self.profile.publish == "scheduled":
            self._publish(own, own.num_scheduled)

    def _publish(self, own: PrefixRequest, num_tokens: int) -> None:
        start = publish(self._index, own, num_tokens)
        if self._told and start < own.num_published:
            keys = own.keys[: own.num_published]
            self._told.stored(keys, start, bytes(own.raw), self.block_size, own.namespace)

    def _let_go_of_sources(self, own: PrefixRequest) -> None:
        if own.sources:
            self.pool.free(own.sources)
            own.sources = []

    def _end(self, request: int, own: PrefixRequest) -> None:
        del self._requests[int(request)]
        uncomputed = own.row[own.num_computed // self.block_size : own.num_published]
        self._index.withdraw(uncomputed)
        self._tell_removed()
        self._let_go_of_sources(own)
        self._index.release(own.row)

    def _tell_removed(self) -> None:
        if self._told:
            self._told.removed(self._index.lost)

    def _known(self, request: int) -> PrefixRequest:
        try:
            return self._requests[check_count("request", request, minimum=0)]
        except KeyError:
            raise unknown_request(request) from None


def _chain(profile: Profile) -> Profile:
    needed = {"structure": "chain", "evict_unit": "block", "policy": "lru"}
    for name, value in needed.items():
        if getattr(profile, name) != value:
            raise ArgumentError(
                f"profile {profile.name!r} has {name} = {getattr(profile, name)!r}, expected {value!r}"
            )
    return profile
