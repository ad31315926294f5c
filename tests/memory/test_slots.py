"""A cache of rows: which row a request gets, what of it is kept, and whom it costs."""

from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from memory.graphs import graph_of

from kvref.errors import ArgumentError, KVError, OutOfBlocksError, OwnershipError, UnknownRequestError
from kvref.memory.namespace import COMMON, Namespace, Span
from kvref.memory.profiles import PROFILES
from kvref.memory.slots import SlotCache


def serve(cache: SlotCache, request: int, tokens: Any, **how: Any) -> int:
    """Compute a request and finish it; return its hit."""
    hit = cache.admit(request, tokens, **how).num_cached_tokens
    cache.commit(request)
    cache.finish(request)
    return hit


def test_hit_is_exact_to_the_token() -> None:
    """Up to the first difference, and never the last token; blocks do not matter."""
    for size in (1, 4):
        cache = SlotCache(64, block_size=size)
        serve(cache, 0, range(10))
        assert serve(cache, 1, range(10)) == 9
        assert serve(cache, 2, [*range(7), 99]) == 7
        assert serve(cache, 3, range(12)) == 7
        assert serve(cache, 4, range(30)) == 12


def test_row_is_continued_in_place() -> None:
    """The common prefix keeps its slots; what was behind it is overwritten."""
    cache = SlotCache(8, block_size=4, num_rows=1)
    slots = cache.admit(0, range(10)).slots
    cache.commit(0)
    cache.finish(0)
    assert cache.num_free == 8
    given = cache.admit(1, [*range(6), 9, 9, 9])
    assert given.num_cached_tokens == 6
    assert given.slots[:8] == slots[:8]
    assert (cache.num_free, cache.evictions) == (5, 1)


def test_most_in_common_or_longest_unused() -> None:
    """More than a tenth of the prompt decides; otherwise the row unused longest, empty ones first."""
    cache = SlotCache(100, num_rows=2)
    serve(cache, 0, range(20))
    serve(cache, 1, range(50, 70))
    assert serve(cache, 2, [*range(50, 53), *range(80, 97)]) == 3  # 3 of 20: that row
    assert serve(cache, 3, range(20)) == 19
    assert serve(cache, 4, [*range(2), *range(200, 218)]) == 0  # 2 of 20: not more than a tenth
    assert serve(cache, 5, range(20)) == 19


def test_row_in_use_is_nobody_elses() -> None:
    """Equal prompts in flight share nothing; with every row busy the next is refused."""
    cache = SlotCache(64, num_rows=2)
    serve(cache, 0, range(8))
    first, second = cache.admit(1, range(8)), cache.admit(2, range(8))
    assert (first.num_cached_tokens, second.num_cached_tokens) == (7, 0)
    assert not set(first.slots) & set(second.slots)
    before = graph_of(cache)
    with pytest.raises(OutOfBlocksError, match="all 2 rows are busy"):
        cache.admit(3, [1])
    assert graph_of(cache) == before


def test_other_rows_are_emptied_longest_unused_first() -> None:
    """As whole rows, when the memory they share runs out."""
    cache = SlotCache(12, num_rows=3)
    for request, first in enumerate((0, 10, 20)):
        serve(cache, request, range(first, first + 4))
    cache.admit(3, range(20, 30))
    assert cache.evictions == 8
    assert cache.num_free == 2
    cache.check_invariants()


def test_only_what_was_computed_stays() -> None:
    """An aborted request leaves its row with the tokens of its committed steps."""
    cache = SlotCache(32, num_rows=1)
    cache.admit(0, range(10), max_new_tokens=4)
    cache.commit(0)
    cache.extend(0)
    cache.abort(0)
    assert cache.admit(1, range(10)).num_cached_tokens == 4


def test_outputs_are_continued() -> None:
    """The next turn hits prompt and decoded tokens."""
    cache = SlotCache(32)
    cache.admit(0, range(5))
    cache.commit(0)
    cache.extend(0, [5, 6])
    cache.commit(0)
    cache.finish(0)
    assert serve(cache, 1, range(9)) == 7


def test_namespaces_and_media_have_nothing_in_common() -> None:
    """A row of another adapter is emptied (llama.cpp#26207); of another image, from its first row on."""
    image = Span(kind="media", digest="cat", offset=2, length=2)
    cats, dogs = (Namespace(spans=(replace(image, digest=d),)) for d in ("cat", "dog"))
    for first, second, hit in (
        (COMMON, Namespace(adapter="a"), 0),
        (Namespace(salt="a"), Namespace(adapter="a"), 0),
        (cats, dogs, 2),
        (cats, COMMON, 2),
        (cats, cats, 7),
    ):
        cache = SlotCache(32, num_rows=1)
        serve(cache, 0, [5] * 8, namespace=first)
        assert serve(cache, 1, [5] * 8, namespace=second) == hit


def test_reset_forgets_or_is_refused() -> None:
    """As every cache of prefixes."""
    cache = SlotCache(16)
    serve(cache, 0, range(8))
    cache.admit(1, [9])
    with pytest.raises(OwnershipError, match="1 requests hold blocks"):
        cache.reset()
    cache.finish(1)
    cache.reset()
    assert (cache.num_free, serve(cache, 2, range(8))) == (16, 0)


def test_profiles_of_other_caches_are_refused() -> None:
    """Rows are llama.cpp's alone; there must be one."""
    for wrong in ("kvref", "sglang", replace(PROFILES["llama.cpp"], cached_outputs=False), None):
        with pytest.raises(ArgumentError, match="expected"):
            SlotCache(4, wrong)  # type: ignore[arg-type]
    for sizes in ({"num_rows": 0}, {"block_size": 0}, {"num_rows": 1.5}):
        with pytest.raises(ArgumentError, match="expected"):
            SlotCache(4, **sizes)  # type: ignore[arg-type]


tokens_lists = st.builds(
    lambda which, count, tail: [which, *range(10, 10 + count), *tail],
    st.integers(0, 1),
    st.integers(0, 9),
    st.lists(st.integers(0, 1), max_size=3),
)


class RowsAgainstShadow(RuleBasedStateMachine):
    """Any calls in any order: each slot has the label of who wrote it, and all blocks are accounted for."""

    @initialize(num_blocks=st.integers(3, 14), size=st.integers(1, 3), rows=st.integers(1, 3))
    def start(self, num_blocks: int, size: int, rows: int) -> None:
        self.cache = SlotCache(num_blocks, block_size=size, num_rows=rows)
        self.capacity, self.size, self.rows = num_blocks, size, rows
        self.live: dict[int, dict[str, Any]] = {}
        self.written: dict[int, Any] = {}
        self.names = count()

    def scheduled(self, request: int, slots: list[int]) -> None:
        self.live[request]["pending"] += slots
        self.written.update(dict.fromkeys(slots))

    @rule(tokens=tokens_lists, salt=st.sampled_from(["", "", "s"]), most=st.none() | st.integers(1, 6))
    def admit(self, tokens: list[int], salt: str, most: int | None) -> None:
        request, before, room = next(self.names), graph_of(self.cache), self.cache.num_free
        try:
            hit, slots, _ = self.cache.admit(
                request, tokens, namespace=Namespace(salt=salt), max_new_tokens=most
            )
        except OutOfBlocksError:
            assert len(self.live) == self.rows or room * self.size < len(tokens)
            assert graph_of(self.cache) == before
            return
        assert hit < len(tokens)
        assert [self.written[slot] for slot in slots[:hit]] == [(salt, *tokens[: n + 1]) for n in range(hit)]
        self.live[request] = {"tokens": tokens, "salt": salt, "computed": hit, "pending": []}
        self.scheduled(request, slots[hit:])

    @rule(data=st.data(), joined=st.lists(st.integers(0, 1), max_size=4), most=st.none() | st.integers(1, 4))
    def extend(self, data: st.DataObject, joined: list[int], most: int | None) -> None:
        if self.live:
            request = data.draw(st.sampled_from(sorted(self.live)))
            before, room = graph_of(self.cache), self.cache.num_free
            try:
                slots = self.cache.extend(request, joined, max_new_tokens=most)
            except OutOfBlocksError:
                assert graph_of(self.cache) == before
                assert room * self.size < len(self.live[request]["tokens"]) + len(joined)
                return
            self.live[request]["tokens"] += joined
            self.scheduled(request, slots)

    @rule(data=st.data(), end=st.sampled_from([None, "finish", "abort"]))
    def commit(self, data: st.DataObject, end: str | None) -> None:
        if self.live:
            request = data.draw(st.sampled_from(sorted(self.live)))
            model = self.live[request]
            if end:
                getattr(self.cache, end)(request)
                del self.live[request]
                return
            for slot in model["pending"]:
                model["computed"] += 1
                self.written[slot] = (model["salt"], *model["tokens"][: model["computed"]])
            model["pending"] = []
            self.cache.commit(request)

    @rule(data=st.data())
    def misuse(self, data: st.DataObject) -> None:
        cache, stranger = self.cache, next(self.names)
        calls: list[tuple[type[KVError], Any]] = [
            *(
                (UnknownRequestError, lambda op=op: getattr(cache, op)(stranger))
                for op in ("extend", "commit", "finish", "abort", "slots")
            ),
            *((ArgumentError, lambda t=t: cache.admit(stranger, t)) for t in ([], [-1], ["a"], None, "ab")),
            (OutOfBlocksError, lambda: cache.admit(stranger, [0] * (self.capacity * self.size + 1))),
            (ArgumentError, lambda: cache.admit(-1, [1])),
        ]
        if len(self.live) < self.rows:
            calls.append((ArgumentError, lambda: cache.admit(stranger, [1], max_new_tokens=0)))
        if self.live:
            known = min(self.live)
            calls.append((UnknownRequestError, lambda: cache.admit(known, [1])))
            calls.append((ArgumentError, lambda: cache.extend(known, [1.5])))  # type: ignore[list-item]
            calls.append((OwnershipError, cache.reset))
        error, call = data.draw(st.sampled_from(calls))
        before = graph_of(cache)
        with pytest.raises(error):
            call()
        assert graph_of(cache) == before

    @invariant()
    def everybody_reads_their_own(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check_invariants()
        blocks: list[int] = []
        for request, model in self.live.items():
            slots, computed = self.cache.slots(request), model["computed"]
            assert slots[computed:] == model["pending"]
            read = [self.written[slot] for slot in slots[:computed]]
            assert read == [(model["salt"], *model["tokens"][: n + 1]) for n in range(computed)]
            blocks += {slot // self.size for slot in slots}
        assert len(blocks) == len(set(blocks))
        assert self.cache.num_free == self.capacity - len(blocks)


TestRowsAgainstShadow = RowsAgainstShadow.TestCase
