"""Checks of sparse attention: the reference passes, any valid set does, and wrong choices are seen."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvref.arrays import Array
from kvref.attention.arithmetic import Arithmetic
from kvref_conformance.cases import Case
from kvref_conformance.probes.random import dyadic
from kvref_conformance.probes.selections import Indexer
from kvref_conformance.runner.evaluate import Evidence
from kvref_conformance.subjects.reference import Reference

Failing = Callable[..., list[Evidence]]


def ranked(q: Array, k: Array, weights: Array, rule: Any, causal: bool, **rest: Any) -> Array:
    """Choose by another score: rule(products [H, N], weights [H])."""
    loc, lens, top_k = rest["query_start_loc"], rest["seq_lens"], rest["top_k"]
    chosen = np.full((len(q), top_k), -1, np.int32)
    start = 0
    for request, n in enumerate(lens.tolist()):
        keys = k[start : start + n].astype(np.float64)
        for token in range(loc[request], loc[request + 1]):
            own = n - int(loc[request + 1]) + token if causal else n - 1
            scores = rule(q[token].astype(np.float64) @ keys.T, weights[token])[: own + 1]
            best = np.argsort(-scores, kind="stable")[:top_k]
            chosen[token, : len(best)] = best
        start += n
    return chosen


class WithoutRelu(Reference):
    """Adds negative products."""

    def select_topk(self, q: Array, k: Array, weights: Array, **rest: Any) -> Array:
        return ranked(q, k, weights, lambda s, w: w @ s, True, **rest)


class ReluAfterTheWeight(Reference):
    """Drops what is negative after the weight was applied."""

    def select_topk(self, q: Array, k: Array, weights: Array, **rest: Any) -> Array:
        return ranked(q, k, weights, lambda s, w: np.maximum(w[:, None] * s, 0).sum(axis=0), True, **rest)


class LooksAhead(Reference):
    """Chooses among all positions of the context."""

    def select_topk(self, q: Array, k: Array, weights: Array, **rest: Any) -> Array:
        return ranked(q, k, weights, lambda s, w: w @ np.maximum(s, 0), False, **rest)


class LatestAmongEquals(Reference):
    """Breaks ties the other way: as right as the reference."""

    def select_topk(self, q: Array, k: Array, weights: Array, **rest: Any) -> Array:
        def rule(s: Array, w: Array) -> Array:
            return w @ np.maximum(s, 0) + 1e-9 * np.arange(s.shape[1])

        return ranked(q, k, weights, rule, True, **rest)


class NamesOneTwice(Reference):
    """Fills up with its best choice."""

    def select_topk(self, q: Array, k: Array, weights: Array, **rest: Any) -> Array:
        chosen = super().select_topk(q, k, weights, **rest)
        return np.where(chosen == -1, chosen[:, :1], chosen)


class MissesTheBest(Reference):
    """Starts at the second rank."""

    def select_topk(self, q: Array, k: Array, weights: Array, *, top_k: int, **rest: Any) -> Array:
        return super().select_topk(q, k, weights, top_k=top_k + 1, **rest)[:, 1:]


class DropsTheLastSlot(Reference):
    """Reads all but the last entry of a selection."""

    def sparse_attention(self, q: Array, k_cache: Array, v_cache: Array, *, slots: Array, **rest: Any) -> Any:
        return super().sparse_attention(q, k_cache, v_cache, slots=slots[:, :-1], **rest)


class ReadsTheNeighbour(Reference):
    """Reads one slot more than is named."""

    def sparse_attention(self, q: Array, k_cache: Array, v_cache: Array, *, slots: Array, **rest: Any) -> Any:
        first = slots.max(axis=1, keepdims=True)
        extra = np.where((first > 0) & ~(slots == first - 1).any(axis=1, keepdims=True), first - 1, -1)
        return super().sparse_attention(
            q, k_cache, v_cache, slots=np.concatenate([slots, extra], axis=1), **rest
        )


class NegativeIsSlotZero(Reference):
    """Clamps what names no slot to the first one."""

    def sparse_attention(self, q: Array, k_cache: Array, v_cache: Array, *, slots: Array, **rest: Any) -> Any:
        first = np.where(slots < 0, 0, slots)
        kept = np.where((np.cumsum(first == 0, axis=1) > 1) & (first == 0), -1, first)
        return super().sparse_attention(q, k_cache, v_cache, slots=kept, **rest)


class StopsAtTheFirstNegative(Reference):
    """Takes the first negative entry for the end of the row."""

    def sparse_attention(self, q: Array, k_cache: Array, v_cache: Array, *, slots: Array, **rest: Any) -> Any:
        ended = np.logical_or.accumulate(slots < 0, axis=1)
        return super().sparse_attention(q, k_cache, v_cache, slots=np.where(ended, -1, slots), **rest)


@pytest.mark.parametrize("honest", [Reference, LatestAmongEquals])
def test_any_valid_selection_passes(failing: Failing, honest: type[Reference]) -> None:
    """Among ties there is no right list of indices, only right sets."""
    assert failing("sparse", honest) == []


@pytest.mark.parametrize(
    ("faulty", "requirement"),
    [
        (NamesOneTwice, "KV-ATTN-070"),
        (MissesTheBest, "KV-ATTN-070"),
        (WithoutRelu, "KV-ATTN-071"),
        (ReluAfterTheWeight, "KV-ATTN-071"),
        (DropsTheLastSlot, "KV-ATTN-072"),
        (ReadsTheNeighbour, "KV-ATTN-072"),
        (LooksAhead, "KV-ATTN-073"),
        (NegativeIsSlotZero, "KV-ATTN-074"),
        (StopsAtTheFirstNegative, "KV-ATTN-074"),
    ],
)
def test_a_faulty_selection_is_caught(failing: Failing, faulty: type[Reference], requirement: str) -> None:
    """One small fault, and the check of the rule it breaks sees it."""
    assert failing("sparse", faulty, requirement)


@pytest.mark.parametrize("faulty", [NegativeIsSlotZero, StopsAtTheFirstNegative])
def test_a_selection_without_gaps_is_read_right(failing: Failing, faulty: type[Reference]) -> None:
    """Where nothing is negative, the fault of a negative entry must not show."""
    assert failing("sparse", faulty, "KV-ATTN-072") == []


def test_the_message_names_what_was_left_out(failing: Failing) -> None:
    """A wrong set is only believable with the two scores that prove it."""
    first = failing("sparse", MissesTheBest, "KV-ATTN-070")[0]
    assert "but left out position" in first.message
    assert "with score" in first.message


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_score_errors_cover_a_serial_float32_sum(dtype: str) -> None:
    """The bound of a score is no guess: a kernel that adds one product after another stays within it."""
    case = Case(
        verb="select_topk",
        seq_lens=(40,),
        query_lens=(3,),
        num_kv_heads=1,
        group=8,
        head_dim=64,
        dtype=dtype,
    )
    rng = np.random.default_rng(3)
    probe = Indexer(
        q=dyadic(rng, (3, 8, 64), dtype),
        k=(dyadic(rng, (40, 64), "float32") * np.float32(1.0009)).astype(dyadic(rng, (1,), dtype).dtype),
        weights=rng.random((3, 8)).astype(np.float32),
        case=case,
    )
    score = np.zeros((3, 40), np.float32)
    for head in range(8):
        product = np.zeros((3, 40), np.float32)
        for channel in range(64):
            product += probe.q[:, head, channel, None].astype(np.float32) * probe.k[:, channel].astype(
                np.float32
            )
        score += probe.weights[:, head, None] * np.maximum(product, 0)
    exact, bound = probe.scores, probe.score_error(Arithmetic())
    seen = ~np.isneginf(exact)
    assert (np.abs(score - exact)[seen] <= bound[seen]).all()
    assert bound[seen].max() < 1e-3 * np.abs(exact[seen]).max()
