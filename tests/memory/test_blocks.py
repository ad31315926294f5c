"""A pool of blocks: who holds which, who is handed out next, what is refused."""

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from memory.states import state_of

from kvref.errors import ArgumentError, KVError, OutOfBlocksError, OwnershipError
from kvref.memory.blocks import BlockPool


def test_blocks_are_handed_out_once_each() -> None:
    """In the order of their ids at first; what is held is not handed out again."""
    pool = BlockPool(5)
    assert pool.allocate(3) == ([0, 1, 2], [])
    assert pool.allocate(2) == ([3, 4], [])
    assert (pool.num_free, pool.num_held, pool.capacity) == (0, 5, 5)
    with pytest.raises(OutOfBlocksError, match="num_blocks = 1, but 0 of 5 blocks are free"):
        pool.allocate(1)


@pytest.mark.parametrize(("plain", "order"), [("front", [3, 2, 1, 0, 4, 5]), ("back", [0, 4, 5, 3, 2, 1])])
def test_plain_blocks_join_at_the_declared_end(plain: str, order: list[int]) -> None:
    """The block named first is handed out first, at either end."""
    pool = BlockPool(6, plain=plain)
    pool.allocate(4)
    pool.free([0])
    pool.free([3, 2, 1])
    assert pool.free_order() == (order if plain == "front" else [4, 5, 0, 3, 2, 1])


def test_vllm_queue_after_a_request() -> None:
    """Ten tokens in blocks of 4: block 3 is partial and plain, 1 and 2 are cached; tail first (vLLM 0.33)."""
    pool = BlockPool(12, null_block=True, plain="front")
    assert pool.allocate(3).blocks == [1, 2, 3]
    for block in (1, 2):
        pool.mark_cached([block])
    pool.free([3, 2, 1])
    assert pool.free_order() == [3, 4, 5, 6, 7, 8, 9, 10, 11, 2, 1]
    assert (pool.num_free, pool.num_cached) == (11, 2)


def test_cached_blocks_leave_oldest_first_and_are_reported() -> None:
    """An allocation that reaches them says which it evicted; they are cached no longer."""
    pool = BlockPool(4)
    pool.allocate(4)
    for block in (2, 0):
        pool.mark_cached([block])
    pool.free([2, 0])
    pool.free([3, 1])
    assert pool.allocate(3) == ([3, 1, 2], [2])
    assert [pool.is_cached(block) for block in range(4)] == [True, False, False, False]
    assert pool.num_cached == 1


def test_touch_takes_a_cached_block_back_and_keeps_the_order_of_others() -> None:
    """It leaves from the middle of the queue with what it holds."""
    pool = BlockPool(5, plain="back")
    pool.allocate(5)
    for block in (1, 3):
        pool.mark_cached([block])
    pool.free([0, 1, 2, 3, 4])
    pool.touch([3, 1, 3])
    assert pool.free_order() == [0, 2, 4]
    assert (pool.ref_count(3), pool.ref_count(1), pool.num_cached) == (2, 1, 0)
    pool.free([3, 1])
    assert pool.free_order() == [0, 2, 4, 1]
    pool.free([3])
    assert pool.free_order() == [0, 2, 4, 1, 3]


def test_last_holder_frees_a_block() -> None:
    """Two holders: the first to let go changes nothing for the second."""
    pool = BlockPool(2)
    (block,), _ = pool.allocate(1)
    pool.touch([block])
    pool.free([block])
    assert (pool.ref_count(block), pool.is_free(block), pool.num_free) == (1, False, 1)
    pool.free([block])
    assert (pool.ref_count(block), pool.is_free(block), pool.num_free) == (0, True, 2)


def test_block_named_twice_with_one_holder_is_not_freed() -> None:
    """It would stand in the queue twice, and two requests would get it."""
    pool = BlockPool(3)
    pool.allocate(3)
    with pytest.raises(
        OwnershipError, match=r"block 1 2 times, expected at most its 1 holders \(KV-BLOCK-006"
    ):
        pool.free([0, 1, 1])
    assert (pool.num_free, pool.ref_count(0), pool.ref_count(1)) == (0, 1, 1)


def test_two_holders_may_let_go_in_one_call() -> None:
    """A block named as often as it is held joins the queue once."""
    pool = BlockPool(2)
    pool.allocate(2)
    pool.touch([1])
    pool.free([1, 0, 1])
    assert sorted(pool.free_order()) == [0, 1]


def test_pinned_block_stays_whoever_lets_go() -> None:
    """A transfer reads a block whose request has ended; the pin is not the request's to give back."""
    pool = BlockPool(3)
    pool.allocate(2)
    pool.pin([1, 1])
    pool.free([1, 0])
    with pytest.raises(OwnershipError, match="block 1 1 times, expected at most its 0 holders"):
        pool.free([1])
    pool.unpin([1])
    assert pool.free_order() == [0, 2]
    with pytest.raises(OwnershipError, match="block 1 2 times, expected at most its 1 pins"):
        pool.unpin([1, 1])
    pool.unpin([1])
    assert pool.free_order() == [1, 0, 2]


def test_block_freed_during_a_step_waits_for_it() -> None:
    """A block waits for the steps begun before it was let go of, and for no later one."""
    pool = BlockPool(4)
    pool.allocate(4)
    first = pool.begin_step()
    second = pool.begin_step()
    pool.free([2])
    third = pool.begin_step()
    pool.free([0])
    assert (pool.num_free, pool.num_fenced, pool.num_held) == (0, 2, 4)
    pool.end_step(first)
    assert pool.num_free == 0
    pool.end_step(second)
    assert pool.free_order() == [2]
    pool.end_step(third)
    assert pool.free_order() == [0, 2]
    with pytest.raises(ArgumentError, match="expected a step in flight"):
        pool.end_step(third)


def test_end_of_a_step_is_the_end_of_those_before_it() -> None:
    """Nobody says that the first has ended once the second has; it would be waited for for ever."""
    pool = BlockPool(3)
    pool.allocate(3)
    steps = [pool.begin_step()]
    pool.free([1])
    steps.append(pool.begin_step())
    pool.free([0])
    steps.append(pool.begin_step())
    pool.free([2])
    pool.end_step(steps[1])
    assert (sorted(pool.free_order()), pool.num_fenced) == ([0, 1], 1)
    for ended in steps[:2]:
        with pytest.raises(ArgumentError, match="expected a step in flight"):
            pool.end_step(ended)
    pool.end_step(steps[2])
    assert pool.num_free == 3


def test_cached_block_is_hit_while_it_waits() -> None:
    """What a step in flight still writes is not this block's published contents; it need not come round."""
    pool = BlockPool(2)
    pool.allocate(2)
    pool.mark_cached([1])
    step = pool.begin_step()
    pool.free([1, 0])
    pool.touch([1])
    pool.end_step(step)
    assert pool.free_order() == [0]
    with pytest.raises(OwnershipError, match="expected a held or a cached block"):
        pool.touch([0])


def test_null_block_is_nobodys() -> None:
    """Block 0 stands in tables where nothing is read: it is not allocated, freed, counted or cached."""
    pool = BlockPool(3, null_block=True)
    assert (pool.capacity, pool.num_free) == (2, 2)
    assert pool.allocate(2).blocks == [1, 2]
    for refused in (pool.free, pool.touch, pool.pin, pool.unpin):
        with pytest.raises(OwnershipError, match=r"block 0, expected 1 to 2 \(KV-BLOCK-007 foreign-block\)"):
            refused([0])
    with pytest.raises(OwnershipError):
        pool.mark_cached([0])


def test_only_a_private_unpublished_block_is_writable() -> None:
    """One holder and no key: a reader of a key may come at any time."""
    pool = BlockPool(2)
    pool.allocate(1)
    assert pool.is_writable(0)
    pool.mark_cached([0])
    assert not pool.is_writable(0)
    pool.drop_cached([0])
    pool.touch([0])
    assert not pool.is_writable(0)
    pool.free([0, 0])
    assert not pool.is_writable(0)


def test_dropped_block_keeps_its_place_in_the_queue() -> None:
    """An index that forgets a key does not reorder the pool."""
    pool = BlockPool(3)
    pool.allocate(3)
    for block in range(3):
        pool.mark_cached([block])
    pool.free([1, 0, 2])
    pool.drop_cached([0])
    pool.drop_cached([0])
    assert (pool.free_order(), pool.num_cached) == ([1, 0, 2], 2)
    assert pool.allocate(2) == ([1, 0], [1])
    pool.mark_cached([1])
    pool.drop_cached([1])
    assert (pool.free_order(), pool.num_cached) == ([2], 1)


def test_all_blocks_return() -> None:
    """After the last holder and the last step, every block can be had at once."""
    pool = BlockPool(50, null_block=True)
    rng = random.Random(7)
    requests = [pool.allocate(rng.randrange(1, 8)).blocks for _ in range(6)]
    pool.touch(requests[0])
    requests.append(requests[0])
    step = pool.begin_step()
    for blocks in requests:
        pool.free(blocks)
    pool.end_step(step)
    assert sorted(pool.allocate(49).blocks) == list(range(1, 50))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"num_blocks": 0}, "num_blocks = 0, expected an integer >= 1"),
        ({"num_blocks": 1, "null_block": True}, "num_blocks = 1, expected an integer >= 2"),
        ({"num_blocks": -3}, "num_blocks = -3"),
        ({"num_blocks": True}, "num_blocks = True"),
        ({"num_blocks": 4.0}, "num_blocks = 4.0"),
        ({"num_blocks": 4, "null_block": 1}, "null_block = 1, expected True or False"),
        ({"num_blocks": 4, "plain": "middle"}, "plain = 'middle', expected one of front, back"),
    ],
)
def test_pool_that_could_serve_nobody_is_refused(arguments: dict, says: str) -> None:
    """Before any block is made."""
    with pytest.raises(ArgumentError, match=says):
        BlockPool(**arguments)


def used_pool() -> BlockPool:
    """A pool with every kind of block: 0 free, 1 held, 2 shared, 3 free and cached, 4 pinned, 5 fenced."""
    pool = BlockPool(8)
    pool.allocate(8)
    pool.touch([2])
    pool.mark_cached([3])
    pool.pin([4])
    pool.free([0, 3, 4])
    pool.begin_step()
    pool.free([5])
    return pool


BAD_CALLS: list[tuple[str, Any, type[KVError]]] = [
    ("allocate", -1, ArgumentError),
    ("allocate", True, ArgumentError),
    ("allocate", 1.0, ArgumentError),
    ("allocate", "1", ArgumentError),
    ("allocate", None, ArgumentError),
    ("allocate", 2**70, ArgumentError),
    ("allocate", 3, OutOfBlocksError),
    ("allocate", 9, OutOfBlocksError),
    ("free", [1, 0], OwnershipError),
    ("free", [1, 1], OwnershipError),
    ("free", [2, 2, 2], OwnershipError),
    ("free", [1, 3], OwnershipError),
    ("free", [1, 4], OwnershipError),
    ("free", [1, 5], OwnershipError),
    ("free", [1, 8], OwnershipError),
    ("free", [1, -1], OwnershipError),
    ("free", [1, 10**30], OwnershipError),
    ("free", [1, True], ArgumentError),
    ("free", [1, 2.0], ArgumentError),
    ("free", [1, None], ArgumentError),
    ("free", 1, ArgumentError),
    ("free", "1", ArgumentError),
    ("free", b"\x01", ArgumentError),
    ("free", {1}, ArgumentError),
    ("free", {1: 1}, ArgumentError),
    ("free", np.array([1.0]), ArgumentError),
    ("free", np.array([[1, 2]]), ArgumentError),
    ("touch", [1, 0], OwnershipError),
    ("touch", [1, 5], OwnershipError),
    ("touch", [1, 8], OwnershipError),
    ("touch", [1, False], ArgumentError),
    ("pin", [1, 0], OwnershipError),
    ("pin", [1, -8], OwnershipError),
    ("unpin", [4, 4], OwnershipError),
    ("unpin", [4, 1], OwnershipError),
    ("unpin", [4, 1.5], ArgumentError),
    ("mark_cached", [1, 0], OwnershipError),
    ("mark_cached", [1, 5], OwnershipError),
    ("mark_cached", [1, 8], OwnershipError),
    ("mark_cached", [True], ArgumentError),
    ("drop_cached", [1, -1], OwnershipError),
    ("drop_cached", 1, ArgumentError),
    ("end_step", 0, ArgumentError),
    ("end_step", 2, ArgumentError),
    ("end_step", True, ArgumentError),
    ("ref_count", 8, OwnershipError),
    ("is_free", -1, OwnershipError),
    ("is_cached", 1.0, ArgumentError),
    ("is_writable", "0", ArgumentError),
]


@pytest.mark.parametrize(("operation", "argument", "error"), BAD_CALLS, ids=str)
def test_refused_call_changes_nothing(operation: str, argument: object, error: type[KVError]) -> None:
    """Checked as a whole first: a good block before the bad one is not let go of."""
    pool = used_pool()
    before = state_of(pool)
    with pytest.raises(error) as raised:
        getattr(pool, operation)(argument)
    assert type(raised.value) is error
    assert state_of(pool) == before
    pool.check_invariants()


def test_numpy_integers_are_integers() -> None:
    """Ids come from arrays; the pool keeps Python's."""
    pool = BlockPool(np.int32(6))
    assert pool.allocate(np.int64(3)).blocks == [0, 1, 2]
    pool.free(np.array([0, 2], np.int32))
    pool.mark_cached([np.uint8(1)])
    pool.free((np.int64(1),))
    assert state_of(pool) == state_of(_same_with_python_ints())
    assert {type(block) for block in pool.free_order()} == {int}


def _same_with_python_ints() -> BlockPool:
    pool = BlockPool(6)
    pool.allocate(3)
    pool.free([0, 2])
    pool.mark_cached([1])
    pool.free([1])
    return pool


class NaivePool:
    """The pool said once more with lists alone: a step waits for whom it finds, block by block."""

    def __init__(self, blocks: list[int], front: bool) -> None:
        self.free, self.front = list(blocks), front
        self.holders: dict[int, int] = dict.fromkeys(blocks, 0)
        self.pins: dict[int, int] = dict.fromkeys(blocks, 0)
        self.cached: list[int] = []
        self.steps: list[int] = []
        self.waiting: list[tuple[int, list[int]]] = []
        self.num_steps = 0

    def may_free(self, blocks: list[int]) -> bool:
        return all(self.holders.get(block, 0) >= times for block, times in Counter(blocks).items())

    def may_touch(self, blocks: list[int]) -> bool:
        return all(self.used(block) or block in self.cached for block in blocks)

    def may_unpin(self, blocks: list[int]) -> bool:
        return all(self.pins.get(block, 0) >= times for block, times in Counter(blocks).items())

    def used(self, block: int) -> bool:
        return self.holders.get(block, 0) + self.pins.get(block, 0) > 0

    def allocate(self, n: int) -> tuple[list[int], list[int]]:
        taken, self.free = self.free[:n], self.free[n:]
        evicted = [block for block in taken if block in self.cached]
        for block in taken:
            self.holders[block] = 1
        self.cached = [block for block in self.cached if block not in evicted]
        return taken, evicted

    def let_go(self, blocks: list[int], who: dict[int, int]) -> None:
        idle = []
        for block in blocks:
            who[block] -= 1
            if not self.used(block):
                idle.append(block)
        if self.steps:
            self.waiting += [(block, list(self.steps)) for block in idle]
        else:
            self.join(idle)

    def join(self, idle: list[int]) -> None:
        ahead = [block for block in idle if self.front and block not in self.cached]
        self.free = ahead + self.free + [block for block in idle if block not in ahead]

    def hold(self, blocks: list[int], who: dict[int, int]) -> None:
        for block in blocks:
            self.free = [other for other in self.free if other != block]
            self.waiting = [(other, steps) for other, steps in self.waiting if other != block]
            who[block] += 1

    def begin_step(self) -> int:
        self.num_steps += 1
        self.steps.append(self.num_steps)
        return self.num_steps

    def end_step(self, step: int) -> None:
        self.steps = [other for other in self.steps if other > step]
        self.waiting = [(block, [s for s in steps if s > step]) for block, steps in self.waiting]
        self.join([block for block, steps in self.waiting if not steps])
        self.waiting = [(block, steps) for block, steps in self.waiting if steps]


some_blocks = st.lists(st.integers(-1, 6), max_size=4)


class PoolAgainstLists(RuleBasedStateMachine):
    """Any calls in any order, good and bad: pool and lists agree, and what is refused changes nothing."""

    @initialize(
        num_blocks=st.integers(2, 6), null_block=st.booleans(), plain=st.sampled_from(["front", "back"])
    )
    def start(self, num_blocks: int, null_block: bool, plain: str) -> None:
        self.pool = BlockPool(num_blocks, null_block=null_block, plain=plain)
        self.naive = NaivePool(list(range(int(null_block), num_blocks)), plain == "front")

    def do(self, allowed: bool, operation: str, argument: object) -> Any:
        """Call the pool; a call that is not allowed must be refused and change nothing."""
        before = state_of(self.pool)
        try:
            answer = getattr(self.pool, operation)(argument)
        except KVError:
            assert not allowed, f"{operation}({argument}) was refused"
            assert state_of(self.pool) == before
            return None
        assert allowed, f"{operation}({argument}) was not refused"
        return answer

    @rule(n=st.integers(0, 6))
    def allocate(self, n: int) -> None:
        allowed = n <= len(self.naive.free)
        answer = self.do(allowed, "allocate", n)
        if allowed:
            assert answer == self.naive.allocate(n)

    @rule(blocks=some_blocks)
    def free(self, blocks: list[int]) -> None:
        allowed = self.naive.may_free(blocks)
        self.do(allowed, "free", blocks)
        if allowed:
            self.naive.let_go(blocks, self.naive.holders)

    @rule(data=st.data(), n=st.integers(1, 4))
    def free_held(self, data: st.DataObject, n: int) -> None:
        held = [block for block, times in self.naive.holders.items() if times]
        if held:
            self.free(data.draw(st.permutations(held))[:n])

    @rule(blocks=some_blocks)
    def touch(self, blocks: list[int]) -> None:
        allowed = self.naive.may_touch(blocks)
        self.do(allowed, "touch", blocks)
        if allowed:
            self.naive.hold(blocks, self.naive.holders)

    @rule(blocks=some_blocks)
    def pin(self, blocks: list[int]) -> None:
        allowed = self.naive.may_touch(blocks)
        self.do(allowed, "pin", blocks)
        if allowed:
            self.naive.hold(blocks, self.naive.pins)

    @rule(blocks=some_blocks)
    def unpin(self, blocks: list[int]) -> None:
        allowed = self.naive.may_unpin(blocks)
        self.do(allowed, "unpin", blocks)
        if allowed:
            self.naive.let_go(blocks, self.naive.pins)

    @rule(block=st.integers(-1, 6))
    def mark_cached(self, block: int) -> None:
        allowed = self.naive.used(block)
        self.do(allowed, "mark_cached", [block])
        if allowed and block not in self.naive.cached:
            self.naive.cached.append(block)

    @rule(block=st.integers(-1, 6))
    def drop_cached(self, block: int) -> None:
        allowed = block in self.naive.holders
        self.do(allowed, "drop_cached", [block])
        if allowed and block in self.naive.cached:
            self.naive.cached.remove(block)

    @rule()
    def begin_step(self) -> None:
        assert self.pool.begin_step() == self.naive.begin_step()

    @rule(step=st.integers(0, 8))
    def end_step(self, step: int) -> None:
        allowed = step in self.naive.steps
        self.do(allowed, "end_step", step)
        if allowed:
            self.naive.end_step(step)

    @invariant()
    def agree(self) -> None:
        pool, naive = self.pool, self.naive
        pool.check_invariants()
        assert pool.free_order() == naive.free
        assert pool.num_free + pool.num_held == pool.capacity == len(naive.holders)
        assert pool.num_cached == sum(block in naive.cached for block in naive.free)
        assert pool.num_fenced == len(naive.waiting)
        for block in naive.holders:
            assert pool.ref_count(block) == naive.holders[block] + naive.pins[block]
            assert pool.is_cached(block) == (block in naive.cached)
            assert pool.is_free(block) == (block in naive.free)


TestPoolAgainstLists = PoolAgainstLists.TestCase


@given(st.lists(st.integers(1, 6), min_size=1, max_size=8), st.booleans(), st.randoms())
def test_untouched_requests_are_evicted_in_the_order_they_ended(
    sizes: list[int], plain_front: bool, rng: random.Random
) -> None:
    """Within a request the tail before the head, and an earlier request before a later one."""
    pool = BlockPool(sum(sizes), plain="front" if plain_front else "back")
    requests = [pool.allocate(n).blocks for n in sizes]
    rng.shuffle(requests)
    for blocks in requests:
        for block in blocks:
            pool.mark_cached([block])
        pool.free(reversed(blocks))
    expected = [block for blocks in requests for block in reversed(blocks)]
    assert pool.allocate(sum(sizes)) == (expected, expected)
