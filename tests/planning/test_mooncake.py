"""The conversation trace of Mooncake gives the published and the golden figures, each by its own rule."""

import hashlib
import time
from pathlib import Path

import numpy as np
import pytest
from planning.requests import lists_of, plain_lru

from kvref.planning.counting import Counting, Touch
from kvref.planning.distances import HitCurve
from kvref.planning.traces import Trace

PATH = Path(__file__).resolve().parents[1] / "data" / "traces" / "mooncake_conversation_trace.jsonl.gz"
SHA256 = "630e20581e30d2280cf4bf27782492849a42668268e0d070428540559866e708"

#: Blocks of cache -> share of blocks, share of input tokens; head-first touch, partial tails counted.
GOLDEN: dict[int | None, tuple[float, float]] = {
    None: (0.3664, 0.3736),
    100_000: (0.3637, 0.3708),
    50_000: (0.3546, 0.3615),
    30_000: (0.3257, 0.3321),
    10_000: (0.2112, 0.2153),
    1_000: (0.0445, 0.0454),
}


@pytest.fixture(scope="module")
def trace() -> Trace:
    """The trace, read once."""
    return Trace.read(PATH)


def test_the_file_is_the_published_one(trace: Trace) -> None:
    """Size and means are those of the trace's own description."""
    assert hashlib.sha256(PATH.read_bytes()).hexdigest() == SHA256
    assert (trace.num_requests, len(trace.blocks), trace.num_distinct) == (12_031, 288_500, 182_790)
    assert trace.tail == "keyed"
    assert round(trace.input_lengths.mean()) == 12_035
    assert round(trace.output_lengths.mean()) == 343
    assert len(np.unique(trace.timestamps)) == 1_180
    assert trace.tokens_of_blocks().sum() == trace.input_lengths.sum()


@pytest.mark.parametrize("capacity", GOLDEN)
def test_golden_hit_rates(trace: Trace, capacity: int | None) -> None:
    """Four digits at every capacity, by block and by token."""
    found = HitCurve.of(trace, Counting(touch="head_first")).at(capacity)
    assert (round(found.of_blocks, 4), round(found.of_input_tokens, 4)) == GOLDEN[capacity]


def test_tail_first_touch_differs_in_the_fourth_digit(trace: Trace) -> None:
    """The order within a request matters most where the cache is small, and little even there."""
    curve = HitCurve.of(trace)
    found = {
        c: round(curve.at(c).of_blocks, 4) for c in (None, 100_000, 50_000, 30_000, 10_000, 5_859, 1_000)
    }
    assert list(found.values()) == [0.3664, 0.3637, 0.3546, 0.3257, 0.2116, 0.1361, 0.0445]


def test_second_half_by_token_is_what_kvcache_simulator_prints(trace: Trace) -> None:
    """Version 0.1.3, LRU, its six capacities and what it reaches without any eviction."""
    curve = HitCurve.of(trace, Counting(warm_up=0.5))
    found = [curve.at(c).of_input_tokens for c in (1_000, 5_859, 10_000, 30_000, 50_000, 100_000, None)]
    assert [round(100 * share, 1) for share in found] == [4.7, 13.7, 22.0, 34.4, 37.7, 39.2, 39.8]


def test_other_rules_give_other_numbers(trace: Trace) -> None:
    """A cache that never evicts, under the rules that papers use without saying so."""
    keyed, full = HitCurve.of(trace).at(None), HitCurve.of(trace, Counting(tail="full_blocks")).at(None)
    assert round(keyed.of_blocks, 3) == 0.366
    assert round(keyed.of_input_tokens, 3) == 0.374
    assert round(keyed.mean_of_requests, 3) == 0.409
    assert round(keyed.of_all_tokens, 3) == 0.363
    assert round(full.of_blocks, 3) == 0.382


def test_three_million_tokens_are_two_capacities(trace: Trace) -> None:
    """3 million in blocks of 512 is 5859; 3 Mi is 6144, and hits half a point more."""
    curve = HitCurve.of(trace, Counting(touch="head_first"))
    assert [round(curve.at(c).of_blocks, 4) for c in (3_000_000 // 512, 3 * 2**20 // 512)] == [0.1355, 0.1410]


@pytest.mark.parametrize("touch", ["head_first", "tail_first"])
def test_curve_is_the_simulation_here_too(trace: Trace, touch: Touch) -> None:
    """Request by request at one capacity of the real trace, not in the sum alone."""
    curve = HitCurve.of(trace, Counting(touch=touch))
    request = trace.request_of_blocks()[curve.needs <= 5_859]
    assert np.bincount(request, minlength=trace.num_requests).tolist() == plain_lru(
        lists_of(trace), 5_859, touch
    )


def test_the_whole_curve_costs_few_simulations(trace: Trace) -> None:
    """All capacities in less time than ten simulations of one; about one is usual."""
    requests = lists_of(trace)
    began = time.perf_counter()
    plain_lru(requests, 10_000, "head_first")
    single = time.perf_counter() - began
    began = time.perf_counter()
    HitCurve.of(trace, Counting(touch="head_first")).points()
    assert time.perf_counter() - began < 10 * single
