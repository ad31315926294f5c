"""Block tables: where tokens lie, who may write, and what a fork, a cut and a window do to both."""

import random
from itertools import count, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from memory.states import state_of

from kvref.errors import ArgumentError, KVError, LengthError, OutOfBlocksError, UnknownRequestError
from kvref.memory.blocks import BlockPool
from kvref.memory.tables import BlockTables, Copy


def tables_of(num_blocks: int, *block_sizes: int, **options: Any) -> tuple[BlockPool, BlockTables]:
    """A fresh pool and tables over it."""
    pool = BlockPool(num_blocks)
    return pool, BlockTables(pool, block_sizes, **options)


def test_token_lies_where_its_block_says() -> None:
    """Two requests grow in turns, so that neither has adjacent blocks."""
    _, tables = tables_of(6, 4)
    tables.add(7)
    tables.add(9)
    assert tables.append(7, 3).slots == [[0, 1, 2]]
    assert tables.append(9, 5).slots == [[4, 5, 6, 7, 8]]
    assert tables.append(7, 6).slots == [[3, 12, 13, 14, 15, 16]]
    assert (tables.table(7), tables.table(9)) == ([0, 3, 4], [1, 2])
    assert (tables.num_tokens(7), tables.requests()) == (9, [7, 9])
    slots = tables.slots(7)
    assert slots == [tables.table(7)[i // 4] * 4 + i % 4 for i in range(9)]


def test_read_through_a_table_equals_one_piece() -> None:
    """Values written to the slots and gathered through the table are those of one piece, bit by bit."""
    pool, tables = tables_of(40, 3)
    rng = np.random.default_rng(5)
    order = rng.permutation(pool.allocate(40).blocks)
    pool.free(order)
    cache = np.full((40, 3, 2), np.nan)
    piece = rng.standard_normal((31, 2))
    tables.add(0)
    for start in (0, 1, 8, 9, 20):
        stop = {0: 1, 1: 8, 8: 9, 9: 20, 20: 31}[start]
        slots = np.array(tables.append(0, stop - start).slots[0])
        cache[slots // 3, slots % 3] = piece[start:stop]
    gathered = cache[np.array(tables.table(0))].reshape(-1, 2)[:31]
    assert gathered.tobytes() == piece.tobytes()


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16])
def test_request_holds_the_blocks_its_tokens_need(size: int) -> None:
    """One more token than a block holds takes a block; one less takes none."""
    pool, tables = tables_of(60, size)
    tables.add(0)
    for length in range(1, 50):
        tables.append(0, 1)
        assert pool.num_held == len(tables.table(0)) == -(-length // size)
        assert pool.num_held * size - length < size


def test_fork_takes_no_block_and_its_first_write_copies_one() -> None:
    """Parallel samples share the prompt; the tail block is copied by the first to write, not by the last."""
    pool, tables = tables_of(8, 4)
    tables.add(1)
    tables.append(1, 7)
    tables.fork(1, 2)
    assert (tables.table(2), pool.num_held, pool.ref_count(0), pool.ref_count(1)) == ([0, 1], 2, 2, 2)
    second = tables.append(2, 2)
    assert second == ([[11, 12]], [Copy(source=1, target=2, count=3)], [])
    assert (tables.table(1), tables.table(2), pool.ref_count(1)) == ([0, 1], [0, 2, 3], 1)
    assert tables.append(1, 1) == ([[7]], [], [])


def test_fork_at_the_end_of_a_block_copies_nothing() -> None:
    """The next token begins a block of its own for either."""
    pool, tables = tables_of(4, 4)
    tables.add(1)
    tables.append(1, 8)
    tables.fork(1, 2)
    assert [tables.append(request, 1).copies for request in (1, 2)] == [[], []]
    assert (tables.table(1), tables.table(2), pool.num_free) == ([0, 1, 2], [0, 1, 3], 0)


def test_copy_covers_the_tokens_that_are_left() -> None:
    """Cut back to 5 of 7 tokens, a request has one token in its shared tail block, and copies that one."""
    _, tables = tables_of(8, 4)
    tables.add(1)
    tables.append(1, 7)
    tables.fork(1, 2)
    tables.truncate(2, 5)
    assert tables.append(2, 1).copies == [Copy(source=1, target=2, count=1)]
    assert tables.num_tokens(1) == 7


def test_published_block_is_not_written_in_place() -> None:
    """Its one holder cut back into it; a reader of its key may come at any time."""
    pool, tables = tables_of(3, 4)
    tables.add(1)
    tables.append(1, 8)
    pool.mark_cached([1])
    tables.truncate(1, 6)
    appended = tables.append(1, 1)
    assert appended.copies == [Copy(source=1, target=2, count=2)]
    assert (pool.is_free(1), pool.is_cached(1), tables.table(1)) == (True, True, [0, 2])


def test_evicted_blocks_are_named() -> None:
    """Whoever keeps an index of cached blocks must forget them."""
    pool, tables = tables_of(2, 4)
    tables.add(1)
    tables.append(1, 8)
    pool.mark_cached([0])
    tables.free(1)
    tables.add(2)
    assert tables.append(2, 5).evicted == [0]


@pytest.mark.parametrize(("length", "kept"), [(0, 0), (1, 1), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_cut_request_holds_the_blocks_of_what_is_left(length: int, kept: int) -> None:
    """Released tail first; the slots of the tokens that stay are the same."""
    pool, tables = tables_of(3, 4)
    tables.add(1)
    slots = tables.append(1, 9).slots[0]
    tables.truncate(1, length)
    assert tables.slots(1) == slots[:length]
    assert pool.num_held == kept
    assert pool.free_order() == list(range(2, kept - 1, -1))


def test_request_ends_tail_first() -> None:
    """Of a cached prefix the tail is evicted before the head, which more requests share."""
    pool, tables = tables_of(4, 4)
    tables.add(1)
    tables.append(1, 16)
    for block in range(4):
        pool.mark_cached([block])
    tables.free(1)
    assert pool.free_order() == [3, 2, 1, 0]
    with pytest.raises(UnknownRequestError, match="request = 1, expected one of the 0 requests there"):
        tables.free(1)


@pytest.mark.parametrize("order", list(permutations([1, 2, 3])))
def test_family_returns_its_blocks_in_any_order(order: tuple[int, ...]) -> None:
    """Parent first or last: a block is free when the last of the family that shares it ends."""
    pool, tables = tables_of(9, 4)
    tables.add(1)
    tables.append(1, 6)
    tables.fork(1, 2)
    tables.append(2, 4)
    tables.fork(2, 3)
    tables.append(3, 1)
    for request in order:
        assert not pool.is_free(0)
        tables.free(request)
        tables.check_invariants()
    assert pool.num_free == 9


def test_vllm_window() -> None:
    """W = 8 in blocks of 4: with 24 tokens computed, the first 4 entries are null (vLLM 0.33)."""
    pool, tables = tables_of(8, 4, windows=[8])
    tables.add(1)
    tables.append(1, 24)
    assert tables.prune(1) == [3, 2, 1, 0]
    assert tables.table(1) == [None, None, None, None, 4, 5]
    assert tables.slots(1) == [None] * 16 + list(range(16, 24))
    assert (pool.num_held, tables.prune(1)) == (2, [])
    assert tables.append(1, 1).slots == [[tables.table(1)[6] * 4]]


@pytest.mark.parametrize("window", [1, 2, 3, 4, 5, 8, 9])
def test_block_of_the_first_attended_token_stays(window: int) -> None:
    """A token at t attends to t − W < j; the block of the first such j is there at every length."""
    _, tables = tables_of(30, 4, windows=[window])
    tables.add(1)
    for position in range(40):
        first = max(0, position - window + 1)
        tables.append(1, 1)
        table = tables.table(1)
        assert all(table[j // 4] is not None for j in range(first, position + 1))
        assert all(block is None for block in table[: first // 4])
        tables.prune(1)
        tables.check_invariants()


def test_tokens_in_flight_keep_their_window() -> None:
    """12 tokens of which 4 are drafts: the query at 8 still attends from 5, whatever comes after it."""
    _, tables = tables_of(8, 4, windows=[4])
    tables.add(1)
    tables.append(1, 12)
    assert tables.prune(1, num_settled=8) == [0]
    tables.truncate(1, 8)
    assert tables.table(1) == [None, 1]
    with pytest.raises(LengthError, match=r"num_tokens = 6, but group 0 of request 1 has no tokens below 4"):
        tables.truncate(1, 6)
    tables.truncate(1, 7)


def test_pruned_block_stays_with_a_fork_that_needs_it() -> None:
    """Each row prunes for itself."""
    pool, tables = tables_of(8, 4, windows=[4])
    tables.add(1)
    tables.append(1, 8)
    tables.fork(1, 2)
    tables.append(1, 4)
    assert tables.prune(1) == [1, 0]
    assert (pool.ref_count(0), tables.table(2), tables.table(1)) == (1, [0, 1], [None, None, 2])
    tables.fork(1, 3)
    assert tables.table(3) == [None, None, 2]


def test_groups_have_tables_of_their_own() -> None:
    """Unequal block sizes over one pool, and a window in one group only."""
    pool, tables = tables_of(20, 4, 6, windows=[None, 5])
    tables.add(1)
    appended = tables.append(1, 13)
    assert (tables.table(1, 0), tables.table(1, 1)) == ([0, 1, 2, 3], [4, 5, 6])
    assert appended.slots == [list(range(13)), list(range(24, 37))]
    tables.fork(1, 2)
    assert tables.append(2, 1).copies == [Copy(3, 7, 1, group=0), Copy(6, 8, 1, group=1)]
    assert tables.prune(1) == [4]
    assert (tables.table(1, 0), tables.table(1, 1)) == ([0, 1, 2, 3], [None, 5, 6])
    assert pool.ref_count(4) == 1


def test_groups_grow_together_or_not_at_all() -> None:
    """Group 0 would fit, both would not: nothing is taken for group 0."""
    pool, tables = tables_of(4, 4, 3)
    tables.add(1)
    tables.append(1, 3)
    before = state_of((pool, tables))
    with pytest.raises(OutOfBlocksError, match="request 1 need 3 blocks, but 2 of 4 are free"):
        tables.append(1, 4)
    assert state_of((pool, tables)) == before
    tables.append(1, 1)


def test_copy_needs_a_block_before_anything_is_let_go() -> None:
    """A full pool refuses the first write of a fork, and both requests stay as they were."""
    pool, tables = tables_of(2, 4)
    tables.add(1)
    tables.append(1, 6)
    tables.fork(1, 2)
    before = state_of((pool, tables))
    with pytest.raises(OutOfBlocksError):
        tables.append(2, 1)
    assert state_of((pool, tables)) == before
    tables.free(2)
    assert tables.append(1, 1).copies == []


def test_source_of_a_copy_waits_for_the_step_that_reads_it() -> None:
    """Its last holder ends while the step is in flight: the block is not handed out before the step ends."""
    pool, tables = tables_of(3, 4)
    tables.add(1)
    tables.append(1, 2)
    tables.fork(1, 2)
    (copy,) = tables.append(2, 1).copies
    step = pool.begin_step()
    tables.free(1)
    tables.add(3)
    assert tables.append(3, 1).slots != [[copy.source * 4]]
    with pytest.raises(OutOfBlocksError):
        tables.append(3, 4)
    pool.end_step(step)
    assert tables.append(3, 4).slots[0][-1] == copy.source * 4


def used_tables() -> tuple[BlockPool, BlockTables]:
    """Two groups, one with a window of 4; request 1 pruned, request 2 its fork; two blocks are free."""
    pool, tables = tables_of(9, 4, 6, windows=[4, None])
    tables.add(1)
    tables.append(1, 13)
    tables.prune(1)
    tables.fork(1, 2)
    return pool, tables


BAD_CALLS: list[tuple[str, tuple[Any, ...], type[KVError]]] = [
    ("add", (1,), UnknownRequestError),
    ("add", (-1,), ArgumentError),
    ("add", (True,), ArgumentError),
    ("add", (1.0,), ArgumentError),
    ("add", ("1",), ArgumentError),
    ("add", ([1],), ArgumentError),
    ("append", (3, 1), UnknownRequestError),
    ("append", (1, -1), ArgumentError),
    ("append", (1, True), ArgumentError),
    ("append", (1, 1.0), ArgumentError),
    ("append", (1, None), ArgumentError),
    ("append", (1, 10**18), OutOfBlocksError),
    ("append", (1, 2**64), ArgumentError),
    ("append", (1, 20), OutOfBlocksError),
    ("fork", (3, 4), UnknownRequestError),
    ("fork", (1, 2), UnknownRequestError),
    ("fork", (1, 1), UnknownRequestError),
    ("fork", (1, False), ArgumentError),
    ("fork", (None, 4), ArgumentError),
    ("truncate", (3, 0), UnknownRequestError),
    ("truncate", (1, 14), LengthError),
    ("truncate", (1, -1), ArgumentError),
    ("truncate", (1, 0), LengthError),
    ("truncate", (1, 10), LengthError),
    ("truncate", (2, True), ArgumentError),
    ("prune", (3,), UnknownRequestError),
    ("prune", (False,), ArgumentError),
    ("free", (3,), UnknownRequestError),
    ("free", (1.5,), ArgumentError),
    ("num_tokens", (3,), UnknownRequestError),
    ("table", (3,), UnknownRequestError),
    ("table", (1, 2), LengthError),
    ("table", (1, -1), ArgumentError),
    ("table", (1, True), ArgumentError),
    ("slots", (1, 2), LengthError),
    ("slots", (3,), UnknownRequestError),
]


@pytest.mark.parametrize(("operation", "arguments", "error"), BAD_CALLS, ids=str)
def test_refused_call_changes_nothing(
    operation: str, arguments: tuple[Any, ...], error: type[KVError]
) -> None:
    """No table, no count of tokens, no holder, no place in the queue."""
    pool, tables = used_tables()
    before = state_of((pool, tables))
    with pytest.raises(error) as raised:
        getattr(tables, operation)(*arguments)
    assert type(raised.value) is error
    assert state_of((pool, tables)) == before


@pytest.mark.parametrize("settled", [-1, 14, True, 2.0])
def test_impossible_number_of_settled_tokens_is_refused(settled: Any) -> None:
    """More than there are, or no count."""
    pool, tables = used_tables()
    before = state_of((pool, tables))
    with pytest.raises(LengthError if settled == 14 else ArgumentError):
        tables.prune(2, num_settled=settled)
    assert state_of((pool, tables)) == before


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"block_sizes": []}, LengthError),
        ({"block_sizes": [4, 0]}, ArgumentError),
        ({"block_sizes": [4, True]}, ArgumentError),
        ({"block_sizes": 4}, ArgumentError),
        ({"block_sizes": [4.0]}, ArgumentError),
        ({"block_sizes": [4], "windows": [0]}, ArgumentError),
        ({"block_sizes": [4], "windows": [True]}, ArgumentError),
        ({"block_sizes": [4], "windows": 8}, ArgumentError),
        ({"block_sizes": [4], "windows": [8, 8]}, LengthError),
        ({"block_sizes": [4, 4], "windows": []}, LengthError),
    ],
)
def test_impossible_groups_are_refused(arguments: dict, error: type[KVError]) -> None:
    """A group without slots, or a window that does not even hold its own token."""
    with pytest.raises(error):
        BlockTables(BlockPool(4), **arguments)


def test_nothing_appended_is_nothing_copied() -> None:
    """A step that schedules no token of a fork leaves its tail block shared."""
    pool, tables = tables_of(2, 4, 4)
    tables.add(np.int64(1))
    tables.append(1, np.int32(3))
    tables.fork(1, np.uint8(2))
    assert tables.append(2, 0) == ([[], []], [], [])
    assert (pool.ref_count(0), {type(request) for request in tables.requests()}) == (2, {int})


class NaiveRequest:
    """One label a token, whichever request wrote it first; and how many lead tokens may be gone, by group."""

    def __init__(self, labels: list[int], gone: list[int]) -> None:
        self.labels, self.gone = labels, gone


class TablesAgainstLists(RuleBasedStateMachine):
    """Every slot carries the label of the token written there; every request must find its own labels."""

    @initialize(
        sizes=st.lists(st.integers(1, 5), min_size=1, max_size=2),
        windows=st.lists(st.none() | st.integers(1, 7), min_size=2, max_size=2),
        num_blocks=st.integers(2, 14),
        plain=st.sampled_from(["front", "back"]),
    )
    def start(self, sizes: list[int], windows: list[int | None], num_blocks: int, plain: str) -> None:
        self.sizes, self.windows = sizes, windows[: len(sizes)]
        self.pool = BlockPool(num_blocks, plain=plain)
        self.tables = BlockTables(self.pool, sizes, windows=self.windows)
        self.naive: dict[int, NaiveRequest] = {}
        self.memory: dict[tuple[int, int], int] = {}  # (block, offset) -> label
        self.label = count()

    def refused(self, call: Any, *arguments: Any) -> bool:
        """Make a call; where it raises, nothing may have changed."""
        before = state_of((self.pool, self.tables))
        try:
            self.answer = call(*arguments)
        except KVError:
            assert state_of((self.pool, self.tables)) == before
            return True
        return False

    def known(self, request: int) -> list[int]:
        return self.naive[request].labels

    @rule(request=st.integers(0, 3))
    def add(self, request: int) -> None:
        assert self.refused(self.tables.add, request) == (request in self.naive)
        self.naive.setdefault(request, NaiveRequest([], [0] * len(self.sizes)))

    @rule(request=st.integers(0, 3), n=st.integers(0, 9))
    def append(self, request: int, n: int) -> None:
        allowed = request in self.naive and self.needed(request, n) <= self.pool.num_free
        assert self.refused(self.tables.append, request, n) != allowed
        if allowed:
            others = {block for other in self.naive if other != request for block in self.blocks_of(other)}
            for copy in self.answer.copies:
                tokens = len(self.known(request)) % self.sizes[copy.group]
                assert copy.count == tokens
                self.copy(copy)
            labels = [next(self.label) for _ in range(n)]
            for size, slots in zip(self.sizes, self.answer.slots, strict=True):
                for label, slot in zip(labels, slots, strict=True):
                    assert slot // size not in others
                    assert not self.pool.is_cached(slot // size)
                    self.memory[slot // size, slot % size] = label
            self.known(request).extend(labels)

    def copy(self, copy: Copy) -> None:
        """Fill the target with what no request wrote, then copy what was promised."""
        for offset in range(self.sizes[copy.group]):
            self.memory[copy.target, offset] = -1
        for offset in range(copy.count):
            self.memory[copy.target, offset] = self.memory[copy.source, offset]

    def needed(self, request: int, n: int) -> int:
        """Blocks for n more tokens, counted token by token."""
        had, blocks = len(self.known(request)), 0
        for group, size in enumerate(self.sizes):
            blocks += sum(position % size == 0 for position in range(had, had + n))
            if n and had % size:
                tail = self.tables.table(request, group)[-1]
                blocks += self.pool.ref_count(tail) > 1 or self.pool.is_cached(tail)
        return blocks

    def blocks_of(self, request: int) -> list[int]:
        return [
            b for group in range(len(self.sizes)) for b in self.tables.table(request, group) if b is not None
        ]

    @rule(parent=st.integers(0, 3), child=st.integers(0, 3))
    def fork(self, parent: int, child: int) -> None:
        allowed = parent in self.naive and child not in self.naive
        free = self.pool.num_free
        assert self.refused(self.tables.fork, parent, child) != allowed
        assert self.pool.num_free == free
        if allowed:
            old = self.naive[parent]
            self.naive[child] = NaiveRequest(list(old.labels), list(old.gone))

    @rule(request=st.integers(0, 3), n=st.integers(0, 20))
    def truncate(self, request: int, n: int) -> None:
        allowed = request in self.naive and n <= len(self.known(request)) and self.attended(request, n)
        assert self.refused(self.tables.truncate, request, n) != allowed
        if allowed:
            del self.known(request)[n:]

    def attended(self, request: int, n: int) -> bool:
        """Whether all that the token at position n attends to is there."""
        pairs = zip(self.windows, self.naive[request].gone, strict=True)
        return all(j >= gone for window, gone in pairs for j in range(n + 1) if j > n - (window or n + 1))

    @rule(request=st.integers(0, 3), back=st.integers(0, 3))
    def prune(self, request: int, back: int) -> None:
        if request not in self.naive:
            assert self.refused(self.tables.prune, request)
            return
        settled = max(0, len(self.known(request)) - back)
        self.tables.prune(request, num_settled=settled)
        gone = self.naive[request].gone
        for group, (size, window) in enumerate(zip(self.sizes, self.windows, strict=True)):
            if window is not None:
                while gone[group] + size <= settled + 1 - window:
                    gone[group] += size

    @rule(request=st.integers(0, 3))
    def free(self, request: int) -> None:
        assert self.refused(self.tables.free, request) == (request not in self.naive)
        self.naive.pop(request, None)

    @rule(request=st.integers(0, 3), at=st.integers(0, 5))
    def publish(self, request: int, at: int) -> None:
        if request in self.naive and self.blocks_of(request):
            blocks = self.blocks_of(request)
            self.pool.mark_cached([blocks[at % len(blocks)]])

    @invariant()
    def every_request_reads_its_own_tokens(self) -> None:
        self.pool.check_invariants()
        self.tables.check_invariants()
        holders: dict[int, int] = {}
        for request, naive in self.naive.items():
            assert self.tables.num_tokens(request) == len(naive.labels)
            for group, (size, gone) in enumerate(zip(self.sizes, naive.gone, strict=True)):
                table = self.tables.table(request, group)
                assert len(table) == -(-len(naive.labels) // size)
                assert [block is None for block in table] == [at * size < gone for at in range(len(table))]
                for position in range(gone, len(naive.labels)):
                    block = table[position // size]
                    assert self.memory[block, position % size] == naive.labels[position]
            for block in self.blocks_of(request):
                holders[block] = holders.get(block, 0) + 1
        assert holders == {b: n for b in range(self.pool.capacity) if (n := self.pool.ref_count(b))}


TestTablesAgainstLists = TablesAgainstLists.TestCase


@given(st.integers(1, 6), st.integers(0, 20), st.integers(1, 5), st.randoms())
def test_samples_of_one_prompt_share_all_but_what_they_wrote(
    size: int, prompt: int, samples: int, rng: random.Random
) -> None:
    """Parallel sampling: full prompt blocks once for all; each sample its own tail; all of it returns."""
    pool, tables = tables_of(200, size)
    tables.add(0)
    tables.append(0, prompt)
    for sample in range(1, samples + 1):
        tables.fork(0, sample)
    tables.free(0)
    lengths = [rng.randrange(1, 9) for _ in range(samples)]
    for sample, length in enumerate(lengths, start=1):
        tables.append(sample, length)
    full = prompt // size
    assert pool.num_held == full + sum(-(-(prompt + n) // size) - full for n in lengths)
    for sample in rng.sample(range(1, samples + 1), samples):
        tables.free(sample)
    assert pool.num_free == 200
