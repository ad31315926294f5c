"""Snapshots: which state slots hold the state after which prefix, and which of them may go.

A state is what all recurrent layers keep of a request, the recurrent part and the conv part together. It is
kept and lost as one unit, so one number, its state slot, stands for all of it. It is the state after exactly
p tokens and after no other number: half of it is no state of p / 2. So a snapshot has the key of the whole
prefix, and is found under that key or not at all.

A state slot is held (a running state, a state being saved, a snapshot that somebody restores) or free. A
free slot may be a snapshot still; handing it out evicts it, the one used longest ago first. A snapshot whose
blocks were evicted can be restored by nobody, and is forgotten: its slot is handed out before any other.

Realises: KV-SNAP-001 snapshot-own-prefix, KV-SNAP-002 snapshot-exact-position, KV-SNAP-004
snapshot-all-or-nothing, KV-SNAP-010 states-conserved, KV-SNAP-011 state-evict-before-refuse, KV-SNAP-012
tombstone-keeps-kv, KV-SNAP-024 state-eviction-order.
For porters: this is a prefix index whose blocks are state slots; only `forget` is new.
Source: SGLang's list of states beside its list of blocks; vLLM's mamba blocks in the queue of free blocks.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kvref.arrays import check_count
from kvref.errors import OutOfStatesError
from kvref.memory.blocks import BlockPool
from kvref.memory.content import Content
from kvref.memory.prefix import PrefixIndex
from kvref.memory.profiles import Profile
from kvref.memory.snapshot_groups import GroupKey


class Prefix(NamedTuple):
    """What names a prefix: the key of its last block, and its content where contents are verified."""

    key: bytes
    content: Content | None


class Snapshots:
    """State slots 0 to num_states − 1, and the prefixes whose states some of them hold.

    Raises: ArgumentError if `num_states` is no positive count.
    """

    def __init__(self, num_states: int, profile: Profile) -> None:
        self._index: PrefixIndex[bytes] = PrefixIndex(check_count("num_states", num_states), profile)
        self._needs: dict[int, frozenset[GroupKey]] = {}  # snapshot -> keys of the blocks it needs

    @property
    def pool(self) -> BlockPool:
        """The state slots."""
        return self._index.pool

    @property
    def num_free(self) -> int:
        """How many state slots can be had now; snapshots that nobody restores count."""
        return self._index.pool.num_free

    @property
    def evictions(self) -> int:
        """How many snapshots were evicted so far."""
        return self._index.evictions

    def find(self, prefix: Prefix) -> int | None:
        """Return the state slot that holds the state after a prefix, or None."""
        return self._index.find(prefix.key, prefix.content)

    def check_free(self, count: int) -> None:
        """Check that so many state slots can be had.

        Raises: OutOfStatesError.
        """
        if count > self.num_free:
            raise OutOfStatesError(
                f"{count} state slots are needed, but {self.num_free} of {self.pool.capacity} can be had "
                "(KV-SNAP-011 state-evict-before-refuse)"
            )

    def hold(self, slot: int) -> None:
        """Keep a snapshot from being evicted until it is released as often."""
        self.pool.touch([slot])

    def take(self, count: int) -> list[int]:
        """Hand out state slots, and evict the snapshots they held."""
        slots = self._index.take((), count)
        self._drop(slots)
        return slots

    def publish(self, prefix: Prefix, slot: int, needs: Iterable[GroupKey]) -> bool:
        """Let others restore a held state slot; `needs` are the keys of blocks without which nobody can.

        False, and nothing has changed, if there is a snapshot of this prefix.
        """
        if self.find(prefix) is not None:
            return False
        self._index.publish([prefix.key], [slot], 0, None if prefix.content is None else [prefix.content])
        self._needs[slot] = frozenset(needs)
        return True

    def take_over(self, slot: int) -> None:
        """Hold a snapshot and let it be one no more: the holder may write the slot."""
        self.hold(slot)
        self._index.withdraw([slot])
        self._drop([slot])

    def release(self, slots: Sequence[int]) -> None:
        """Let go of state slots; what is a snapshot stays one until it is evicted."""
        self.pool.free(slots)

    def forget(self, keys: Sequence[GroupKey]) -> None:
        """Let go of the snapshots that need one of these blocks: their slots are the next to be had."""
        if keys:
            for slot in [slot for slot, needs in self._needs.items() if not needs.isdisjoint(keys)]:
                self.take_over(slot)
                self.release([slot])

    def reset(self) -> None:
        """Forget every snapshot.

        Raises: OwnershipError if a state slot is held.
        """
        self._index.reset()
        self._needs.clear()

    def needed(self) -> set[GroupKey]:
        """Return the keys of all blocks that snapshots need."""
        return {key for needs in self._needs.values() for key in needs}

    def is_snapshot(self, slot: int) -> bool:
        """Say whether others can restore a state slot."""
        return self._index.is_published(slot)

    def check_invariants(self) -> None:
        """Assert that every snapshot has a key, and each state slot is free or held."""
        self._index.check_invariants()
        own = range(self.pool.capacity)
        assert set(self._needs) == set(filter(self.is_snapshot, own)), "needs are not those of the snapshots"

    def _drop(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self._needs.pop(slot, None)
