"""One pass over a trace gives what a simulation at every capacity gives."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import find, given
from hypothesis import strategies as st
from planning.requests import lists_of, lru, trace_of, traces

from kvref.errors import ArgumentError
from kvref.planning.counting import TOUCHES, Counting, Touch
from kvref.planning.distances import NEVER, HitCurve, larger_before, stack_distances
from kvref.planning.traces import Trace

touches = st.sampled_from(TOUCHES)


@given(st.permutations(range(13)), st.integers(0, 13))
def test_larger_before_counts_what_its_name_says(order: list[int], n: int) -> None:
    """Against the definition, at sizes that are no power of two, the empty one included."""
    ranks = [x for x in order if x < n]
    expected = [sum(x > y for x in ranks[:at]) for at, y in enumerate(ranks)]
    assert larger_before(np.array(ranks, np.int64)).tolist() == expected


@given(traces(), touches)
def test_curve_is_the_simulation_at_every_capacity(trace: Trace, touch: Touch) -> None:
    """Hits of prefixes, by block and by token, from one cached block to more than there are."""
    curve = HitCurve.of(trace, Counting(touch=touch))
    tokens = trace.tokens_of_blocks()
    for capacity in range(1, trace.num_distinct + 2):
        hits = lru(lists_of(trace), capacity, touch).hits
        found = curve.at(capacity)
        assert found.hit_blocks == sum(hits)
        spans = zip(trace.starts[:-1], hits, strict=True)
        assert found.hit_tokens == sum(tokens[start : start + hit].sum() for start, hit in spans)
    assert curve.at(None).hit_blocks == curve.at(trace.num_distinct).hit_blocks


@given(traces(), touches)
def test_points_are_where_the_curve_rises(trace: Trace, touch: Touch) -> None:
    """The whole curve at once says the same as one capacity after the other, and never falls."""
    curve = HitCurve.of(trace, Counting(touch=touch))
    capacities, blocks, tokens = curve.points()
    assert (np.diff(capacities) > 0).all()
    assert (np.diff(blocks, prepend=0) > 0).all()
    assert (np.diff(tokens, prepend=0) > 0).all()
    for capacity in range(1, trace.num_distinct + 2):
        at = np.searchsorted(capacities, capacity, side="right")
        found = curve.at(capacity)
        expected = (int(blocks[at - 1]), int(tokens[at - 1])) if at else (0, 0)
        assert (found.hit_blocks, found.hit_tokens) == expected


@given(traces(), touches)
def test_distances_are_places_in_the_list_of_recent_blocks(trace: Trace, touch: Touch) -> None:
    """The definition: how many blocks were touched since, the block itself included."""
    recent: list[int] = []
    expected = []
    for blocks in lists_of(trace):
        expected += [recent.index(block) + 1 if block in recent else NEVER for block in blocks]
        for block in blocks if touch == "head_first" else reversed(blocks):
            recent = [block, *(other for other in recent if other != block)]
    assert stack_distances(trace, touch).tolist() == expected


@given(traces(), touches, st.integers(1, 20))
def test_a_larger_cache_holds_what_a_smaller_one_holds(trace: Trace, touch: Touch, capacity: int) -> None:
    """LRU is a stack algorithm under both orders of touch."""
    smaller, larger = (lru(lists_of(trace), size, touch).contents for size in (capacity, capacity + 1))
    assert all(a <= b for a, b in zip(smaller, larger, strict=True))


@given(traces(), st.integers(1, 20))
def test_tail_first_every_cached_block_can_be_hit(trace: Trace, capacity: int) -> None:
    """Leaf-first order keeps the contents closed under prefixes, so counting blocks counts the hit."""
    played = lru(lists_of(trace), capacity, "tail_first")
    assert played.hits == played.single
    distances = stack_distances(trace, "tail_first")
    assert all((np.diff(distances[a:b]) >= 0).all() for a, b in _spans(trace))


def test_head_first_a_block_may_be_there_that_nobody_can_hit() -> None:
    """Counting every block that is there counts more than the prefix: hypothesis finds such a trace."""

    def differs(trace: Trace) -> bool:
        return any(
            played.hits != played.single
            for capacity in range(1, trace.num_distinct)
            if (played := lru(lists_of(trace), capacity, "head_first"))
        )

    assert differs(find(traces(), differs))
    (first, second) = (lru([[0, 1], [2], [0, 1]], 2, touch).hits for touch in TOUCHES)
    assert (first, second) == ([0, 0, 1], [0, 0, 0])


def test_refusing_what_does_not_fit_is_no_stack_algorithm() -> None:
    """Where a request larger than the cache is turned away, a larger cache may hit less; one such trace."""

    def falls(trace: Trace) -> bool:
        hits = [
            sum(lru(lists_of(trace), size, "tail_first", refuse=True).hits)
            for size in range(1, trace.num_distinct + 1)
        ]
        return hits != sorted(hits)

    assert falls(find(traces(), falls))
    assert lru([[0, 1], [2, 3, 4], [0, 1]], 2, "tail_first", refuse=True).hits == [0, 0, 2]
    assert lru([[0, 1], [2, 3, 4], [0, 1]], 3, "tail_first", refuse=True).hits == [0, 0, 0]


@given(traces(), touches, st.floats(0, 0.99))
def test_warm_up_fills_the_cache_and_is_not_counted(trace: Trace, touch: Touch, warm_up: float) -> None:
    """The first requests leave what later ones find; blocks and hits of the later ones are counted."""
    found = HitCurve.of(trace, Counting(touch=touch, warm_up=warm_up)).at(3)
    first = int(Fraction(str(warm_up)) * trace.num_requests)
    assert found.hit_blocks == sum(lru(lists_of(trace), 3, touch).hits[first:])
    assert found.blocks == len(trace.blocks) - trace.starts[first]
    assert found.input_tokens == trace.input_lengths[first:].sum()
    curve = HitCurve.of(trace, Counting(touch=touch, warm_up=warm_up))
    assert curve.points()[1][-1:].sum() == curve.at(None).hit_blocks


def test_a_share_of_requests_is_what_is_written() -> None:
    """The float of 0.29 lies below it, and 29 of a hundred requests are meant; the rule says so too."""
    counting = Counting(warm_up=0.29)
    assert counting.first_counted(trace_of([[1]] * 100)) == 29
    assert "after the first 29% of requests" in str(counting)
    assert "after the first 0.4% of requests" in str(Counting(warm_up=0.004))


@given(traces(), st.integers(1, 12))
def test_full_blocks_only_leaves_partial_tails_out(trace: Trace, capacity: int) -> None:
    """A partial tail neither hits nor takes a place; its tokens stay in the denominator."""
    found = HitCurve.of(trace, Counting(tail="full_blocks")).at(capacity)
    kept = [
        blocks[: tokens // trace.block_size]
        for blocks, tokens in zip(lists_of(trace), trace.input_lengths, strict=True)
    ]
    assert found.hit_blocks == sum(lru(kept, capacity, "tail_first").hits)
    assert found.hit_tokens == found.hit_blocks * trace.block_size
    assert found.blocks == sum(map(len, kept))
    assert found.input_tokens == trace.input_lengths.sum()


def test_mean_of_requests_weighs_each_alike() -> None:
    """A long request that misses and a short one that hits: half of the requests, not of the tokens."""
    trace = trace_of([[0], [0], [1, 1, 1, 1, 1], [0]])
    rates = HitCurve.of(trace).at(None)
    assert rates.mean_of_requests == 0.5
    assert rates.of_blocks == rates.of_input_tokens == 2 / 8
    assert rates.of_all_tokens == 8 / (32 + trace.output_lengths.sum())


@pytest.mark.parametrize("capacity", [0, -1, 1.5, True, "many"])
def test_a_capacity_counts_blocks(capacity: object) -> None:
    """Nothing else is a capacity, except None for a cache that never evicts."""
    with pytest.raises(ArgumentError, match="capacity"):
        HitCurve.of(trace_of([[0]])).at(capacity)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"touch": "random"}, "touch = 'random', expected one of tail_first, head_first"),
        ({"tail": "maybe"}, "tail = 'maybe', expected one of keyed, full_blocks"),
        ({"warm_up": 1.0}, "warm_up = 1.0, expected a share"),
        ({"warm_up": float("nan")}, "warm_up = nan, expected a share"),
    ],
)
def test_unknown_rules_are_refused(wrong: dict[str, object], message: str) -> None:
    """A rule that is not defined gives no number."""
    with pytest.raises(ArgumentError, match=message):
        Counting(**wrong)  # type: ignore[arg-type]


def _spans(trace: Trace) -> list[tuple[int, int]]:
    return list(zip(trace.starts[:-1].tolist(), trace.starts[1:].tolist(), strict=True))
