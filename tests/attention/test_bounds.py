"""The error bound: what it must never reject, what it must always reject, and what it must not depend on."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from kvref.arrays import Array, dtype_name
from kvref.attention.arithmetic import Arithmetic, Format, gamma
from kvref.attention.bounds import Bound, attention_bound, dense_bound, exceeds, margin, paged_bound
from kvref.attention.bounds.merge import merge_bound
from kvref.attention.dense import attend, attention
from kvref.attention.merge import State, merge
from kvref.attention.paged import paged_attention
from kvref.errors import ArgumentError, DTypeError
from kvref_conformance.emulation import KERNELS, run
from kvref_conformance.families import FAMILIES, draw

STRICT = Arithmetic()


def gaussian(
    n: int, *, rows: int = 2, heads: tuple[int, int] = (4, 2), head_dim: int = 64, dtype: str = "bfloat16"
) -> tuple[Array, Array, Array]:
    """Draw standard normal q, k, v."""
    rng = np.random.default_rng(n)
    q = rng.normal(size=(rows, heads[0], head_dim))
    k, v = rng.normal(size=(2, n, heads[1], head_dim))
    kind = {"bfloat16": "bfloat16", "float32": "float32", "float16": "float16"}[dtype]
    return tuple(x.astype(kind) for x in (q, k, v))  # type: ignore[return-value]


def exact(q: Array, k: Array, v: Array, scale: float) -> State:
    """Answer with every key visible."""
    wide = [x.astype(np.float64) for x in (q, k, v)]
    return attend(*wide, np.ones((len(q), len(k)), np.bool_), scale=scale)  # type: ignore[misc]


def bound(q: Array, k: Array, v: Array, scale: float, arithmetic: Arithmetic = STRICT) -> Bound:
    """Bound with every key visible."""
    return attention_bound(q, k, v, np.ones((len(q), len(k)), np.bool_), scale=scale, arithmetic=arithmetic)


class TestReference:
    """The reference's own error is part of every bound, so it must be a true bound as well."""

    @pytest.mark.parametrize("n", [1, 3, 257, 2000])
    @pytest.mark.parametrize("grow", [1.0, 8.0])
    def test_longdouble_stays_within_the_float64_bound(self, n: int, grow: float) -> None:
        """Attention in 64-bit significands differs from float64 by no more than `REFERENCE` allows."""
        if np.finfo(np.longdouble).nmant <= 52:
            pytest.skip("long double is no wider than float64 here")
        q, k, v = (grow * x.astype(np.float64) for x in gaussian(n, heads=(2, 2)))
        state = exact(q, k, v, 0.125)
        wide = [x.astype(np.longdouble) for x in (q, k, v)]
        logits = np.einsum("qhd,nhd->hqn", wide[0], wide[1]) * np.longdouble(0.125)
        peak = logits.max(axis=-1, keepdims=True)
        w = np.exp(logits - peak)
        total = w.sum(axis=-1, keepdims=True)
        out = np.einsum("hqn,nhd->qhd", w / total, wide[2])
        lse = (peak + np.log(total))[..., 0].T
        own = Arithmetic(
            accumulate="float64",
            scores="float64",
            probabilities="float64",
            partial="float64",
            output="float64",
            merges=0,
            block=None,
        )
        allowed = bound(q, k, v, 0.125, own)  # twice the reference's own bound, at least
        assert float(np.max(np.abs(out - state.out) / allowed.out)) <= 0.5
        assert float(np.max(np.abs(lse - state.lse) / allowed.lse)) <= 0.5

    def test_paged_reference_stays_within_the_float64_bound(self) -> None:
        """Reading in pieces of 256 and merging them is a different order of the same sum."""
        q, k, v = (x.astype(np.float64) for x in gaussian(1500))
        lens = {"query_start_loc": [0, 2], "seq_lens": [1500], "scale": 0.125, "causal": False}
        own = replace(STRICT, accumulate="float64", probabilities="float64", output="float64")
        whole, allowed = dense_bound(q, k, v, **lens, arithmetic=own)
        caches = (x.reshape(1500, 1, *x.shape[1:]) for x in (k, v))
        paged = paged_attention(q, *caches, block_tables=np.arange(1500)[None], **lens)
        assert not exceeds(paged.out, whole.out, allowed.out).any()
        assert not exceeds(paged.lse, whole.lse, allowed.lse).any()


class TestTorch:
    """An implementation we did not write, with an arithmetic we can read in its source."""

    @pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
    @pytest.mark.parametrize("backend", ["FLASH_ATTENTION", "MATH"])
    @pytest.mark.parametrize("family", FAMILIES)
    def test_sdpa_is_within_the_bound(self, dtype: str, backend: str, family: str) -> None:
        """The CPU flash kernel rounds P to the input dtype; the math one computes in float32."""
        torch = pytest.importorskip("torch", reason="torch is not installed")
        from torch.nn.attention import SDPBackend, sdpa_kernel

        def tensor(x: Array) -> object:
            wide = torch.from_numpy(x.astype(np.float32))
            return wide.to(getattr(torch, dtype)).transpose(0, 1)[None]

        for n in (1, 65, 700):
            x = draw(family, n=n, head_dim=64, dtype=dtype, seed=n, heads=(2, 2))
            with sdpa_kernel(getattr(SDPBackend, backend)):
                seen = torch.nn.functional.scaled_dot_product_attention(tensor(x.q), tensor(x.k), tensor(x.v))
            out = seen[0].transpose(0, 1).float().numpy()
            assert margin(out, exact(x.q, x.k, x.v, x.scale).out, bound(x.q, x.k, x.v, x.scale).out) <= 1


class TestRejects:
    """On the input built for it, a fault is far outside the bound (the table of facts the suite rests on)."""

    n, head_dim = 2048, 64

    def needles(self) -> tuple[Array, Array, Array, float]:
        """Head h looks for one token at a boundary; it holds about three quarters of the weight."""
        places = [0, 1, 15, 16, self.n // 2 - 1, self.n // 2, self.n - 2, self.n - 1]
        q = np.zeros((1, len(places), self.head_dim))
        k = 0.01 * np.random.default_rng(0).normal(size=(self.n, 1, self.head_dim))
        v = np.zeros((self.n, 1, self.head_dim))
        for head, place in enumerate(places):
            q[0, head, head] = 8.0
            k[place, 0, head] = np.log(self.n) + 1
            v[place, 0, head] = 1.0
        v[:, 0, -1] = np.arange(self.n) % 2 * 2.0 - 1.0
        return (*(x.astype("bfloat16") for x in (q, k, v)), 0.125)  # type: ignore[return-value]

    def kernel(
        self, q: Array, k: Array, v: Array, scale: float, name: str = "P bfloat16, out bfloat16"
    ) -> Array:
        return run(KERNELS[name], q, k, v, np.ones((len(q), len(k)), np.bool_), scale=scale).out

    def share(self, seen: Array, q: Array, k: Array, v: Array, scale: float) -> float:
        return margin(seen, exact(q, k, v, scale).out, bound(q, k, v, scale).out)

    def test_accepts_the_correct_kernel(self) -> None:
        """The same probe, nothing wrong: the bound is used, not exceeded."""
        q, k, v, scale = self.needles()
        assert 0.1 < self.share(self.kernel(q, k, v, scale), q, k, v, scale) <= 1

    @pytest.mark.parametrize("dropped", [0, n // 2, n - 1])
    def test_a_dropped_token(self, dropped: int) -> None:
        """One token of 2048 is not read."""
        q, k, v, scale = self.needles()
        kept = np.arange(self.n) != dropped
        assert self.share(self.kernel(q, k[kept], v[kept], scale), q, k, v, scale) > 50

    def test_a_token_read_twice(self) -> None:
        """The last token counts double."""
        q, k, v, scale = self.needles()
        twice = [*range(self.n), self.n - 1]
        assert self.share(self.kernel(q, k[twice], v[twice], scale), q, k, v, scale) > 20

    def test_a_stale_value(self) -> None:
        """The last slot still holds another value."""
        q, k, v, scale = self.needles()
        old = v.copy()
        old[-1] = 0
        assert self.share(self.kernel(q, k, old, scale), q, k, v, scale) > 50

    def test_a_scale_one_percent_off(self) -> None:
        """Small, smooth, everywhere: what fixed tolerances let through."""
        q, k, v, scale = self.needles()
        assert self.share(self.kernel(q, k, v, 1.01 * scale), q, k, v, scale) > 2

    def test_splits_merged_with_the_wrong_base(self) -> None:
        """The lse of the parts is in base 2, the merge takes it for nats."""
        q, k, v, scale = self.needles()
        half = self.n // 2
        a, b = (exact(q, k[part], v[part], scale) for part in (slice(0, half), slice(half, None)))
        wrong = merge(State(a.out, a.lse / np.log(2)), State(b.out, b.lse / np.log(2)))
        assert self.share(wrong.out, q, k, v, scale) > 10

    def test_splits_averaged_without_their_weights(self) -> None:
        """Each half counts one half."""
        q, k, v, scale = self.needles()
        half = self.n // 2
        parts = [exact(q, k[part], v[part], scale).out for part in (slice(0, half), slice(half, None))]
        assert self.share(0.5 * (parts[0] + parts[1]), q, k, v, scale) > 50

    def test_an_accumulator_in_bfloat16_that_was_not_declared(self) -> None:
        """Float32 sums are claimed; sums in bfloat16 lose what is small beside the running total."""
        q, k, v, scale = self.needles()
        assert self.share(self.kernel(q, k, v, scale, "sums in bfloat16"), q, k, v, scale) > 1

    def test_a_zero_pad_among_very_negative_logits(self) -> None:
        """One unmasked slot of zeros scores 0 where every real key scores −30."""
        q, k, v = gaussian(300)
        q, k = np.ones_like(q), (-30 / 8 + 0.01 * k.astype(np.float32)).astype(k.dtype)
        padded = [np.concatenate([x, np.zeros_like(x[:1])]) for x in (k, v)]
        assert self.share(self.kernel(q, *padded, 0.125), q, k, v, 0.125) > 20

    def test_an_lse_in_base_two(self) -> None:
        """The lse bound is far below the difference of the bases."""
        q, k, v = gaussian(300)
        lse = exact(q, k, v, 0.125).lse
        assert margin(lse / np.log(2), lse, bound(q, k, v, 0.125).lse) > 1000


class TestIndependence:
    """What must not influence the bound."""

    def test_dead_slots_have_no_effect(self) -> None:
        """NaN outside the attended set changes no bit."""
        q, k, v = gaussian(40)
        allowed = np.zeros((2, 40), np.bool_)
        allowed[:, 10:30] = True
        clean = attention_bound(q, k, v, allowed, scale=0.125, arithmetic=STRICT)
        k[30:], v[:10] = np.nan, np.nan
        poisoned = attention_bound(q, k, v, allowed, scale=0.125, arithmetic=STRICT)
        assert np.array_equal(clean.out, poisoned.out)
        assert np.array_equal(clean.lse, poisoned.lse)

    def test_a_slot_dead_for_one_row_only_spoils_the_other_alone(self) -> None:
        """A row that does attend to NaN has nothing to be compared with; its neighbour is unaffected."""
        q, k, v = gaussian(8)
        allowed = np.ones((2, 8), np.bool_)
        allowed[0, 5] = False
        v[5] = np.nan
        found = attention_bound(q, k, v, allowed, scale=0.125, arithmetic=STRICT)
        assert np.isfinite(found.out[0]).all()
        assert np.isinf(found.out[1]).all()

    def test_an_empty_row_must_be_exact(self) -> None:
        """Nothing was added, so nothing was rounded: bound 0 for out 0 and lse −inf, sink or no sink."""
        q, k, v = gaussian(4)
        for sinks in (None, np.zeros(4)):
            found = attention_bound(
                q, k, v, np.zeros((2, 4), np.bool_), scale=1.0, sinks=sinks, arithmetic=STRICT
            )
            assert not found.out.any()
            assert not found.lse.any()
        assert not exceeds(np.array([-np.inf]), np.array([-np.inf]), np.array([0.0])).any()

    def test_paged_and_dense_agree(self) -> None:
        """The same slots through a block table: the same state and the same bound."""
        q, k, v = gaussian(12, rows=3)
        tables, lens = np.array([[2, 0, 1]]), {"query_start_loc": [0, 3], "seq_lens": [10], "scale": 0.125}
        order = [8, 9, 10, 11, 0, 1, 2, 3, 4, 5]
        extra = {"window": 4, "softcap": 5.0, "sinks": np.arange(4.0), "alibi_slopes": np.full(4, 0.25)}
        caches = (x.reshape(3, 4, *x.shape[1:]) for x in (k, v))
        paged = paged_bound(q, *caches, block_tables=tables, arithmetic=STRICT, **lens, **extra)
        dense = dense_bound(q, k[order], v[order], arithmetic=STRICT, **lens, **extra)
        assert np.array_equal(paged[0].out, dense[0].out)
        assert np.array_equal(paged[1].out, dense[1].out)
        assert np.array_equal(paged[1].lse, dense[1].lse)

    def test_the_state_is_the_reference(self) -> None:
        """`dense_bound` answers what `dense.attention` answers, to the reference's own bound."""
        q, k, v = gaussian(30, rows=5)
        lens = {"query_start_loc": [0, 2, 5], "seq_lens": [13, 17], "scale": 0.125, "window": 6}
        state, allowed = dense_bound(q, k, v, arithmetic=replace(STRICT, output="float64"), **lens)
        again = attention(q, k, v, **lens)
        assert not exceeds(state.out, again.out, allowed.out).any()
        rows = dense_bound(q, k, v, arithmetic=STRICT, rows=[4, 1], **lens)
        assert not exceeds(rows[0].out, state.out[[4, 1]], allowed.out[[4, 1]]).any()


class TestShape:
    """How the bound moves with what is declared."""

    @pytest.mark.parametrize(
        "lax",
        [
            {"probabilities": "float8_e4m3fn"},
            {"output": "float8_e5m2"},
            {"scores": "bfloat16"},
            {"query": "input"},
            {"key": "input"},
            {"partial": "bfloat16"},
            {"merges": 8},
            {"block": 1},
            {"exp_error": 1000.0},
            {"rounding": "truncate"},
            {"accumulate": "bfloat16"},
        ],
        ids=lambda lax: "-".join(lax),
    )
    def test_a_laxer_declaration_gives_a_laxer_bound(self, lax: dict[str, object]) -> None:
        """Every declared fact widens the bound when it gets worse; none is dead."""
        q, k, v = gaussian(100)
        strict, wide = bound(q, k, v, 0.125), bound(q, k, v, 0.125, Arithmetic(**lax))  # type: ignore[arg-type]
        assert (wide.out > strict.out).all()

    def test_a_declared_depth_gives_a_smaller_bound(self) -> None:
        """Sums in trees are shorter than sums in a row."""
        q, k, v = gaussian(1000, dtype="float32")
        assert (bound(q, k, v, 0.125, Arithmetic(depth=80)).out < bound(q, k, v, 0.125).out).all()

    def test_the_companion_is_never_above_the_worst_case(self) -> None:
        """And on a long random context far below it."""
        q, k, v = gaussian(4096)
        every = np.ones((2, 4096), np.bool_)
        likely = attention_bound(q, k, v, every, scale=0.125, arithmetic=STRICT, independent=True)
        worst = bound(q, k, v, 0.125)
        assert (likely.out <= worst.out).all()
        assert float(np.median(likely.out / worst.out)) < 0.5

    def test_sums_too_long_for_their_format_leave_nothing_to_say(self) -> None:
        """300 additions in bfloat16 may lose everything: the bound is infinite, and only NaN fails."""
        q, k, v = gaussian(300)
        found = bound(q, k, v, 0.125, Arithmetic(accumulate="bfloat16")).out
        assert np.isinf(found).all()
        assert exceeds(np.full(found.shape, np.nan), np.zeros(found.shape), found).all()

    def test_an_output_beyond_its_format_may_overflow(self) -> None:
        """A value of 60000 fits float16, one of 70000 does not."""
        q, k = np.zeros((1, 1, 8), np.float32), np.zeros((2, 1, 8), np.float32)
        v = np.full((2, 1, 2), [60000.0, 70000.0], np.float32)
        found = bound(q, k, v, 1.0, Arithmetic(output="float16")).out[0, 0]
        assert np.isfinite(found[0])
        assert np.isinf(found[1])
        overflown = np.array([65000.0, np.inf])
        assert not exceeds(overflown, np.array([65000.0, 70000.0]), found).any()
        assert margin(overflown, np.array([65000.0, 70000.0]), found) == 0.0


class TestCompare:
    """`exceeds` and `margin` never let the unknown pass."""

    @pytest.mark.parametrize("seen", [np.nan, np.inf, -np.inf, 1.1])
    def test_what_is_not_within_the_bound_exceeds_it(self, seen: float) -> None:
        """NaN and infinity are not near 1."""
        assert exceeds(np.array([seen]), np.array([1.0]), np.array([0.05])).all()
        assert margin(np.array([seen]), np.array([1.0]), np.array([0.05])) > 1

    def test_an_exact_answer_has_margin_zero(self) -> None:
        """Even where the bound is 0."""
        assert margin(np.array([2.0]), np.array([2.0]), np.array([0.0])) == 0.0


class TestMerge:
    """The merge of two given states."""

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_a_float32_merge_is_within_its_bound(self, dtype: str) -> None:
        """Lse far apart, near, equal, and empty on either side."""
        rng = np.random.default_rng(0)
        out = rng.normal(size=(2, 400, 2, 8)).astype(dtype)
        lse = (rng.normal(size=(2, 400, 2)) * rng.choice([0.0, 1.0, 30.0], size=(1, 400, 1))).astype(
            np.float32
        )
        lse[0, :40], lse[1, 20:60] = -np.inf, -np.inf
        state, allowed = merge_bound(out[0], lse[0], out[1], lse[1], arithmetic=STRICT)
        peak = lse.max(axis=0)
        w = np.exp(lse - np.where(np.isneginf(peak), 0, peak).astype(np.float32))
        total = w.sum(axis=0)
        seen = (w[..., None] * out.astype(np.float32)).sum(axis=0) / np.where(total == 0, 1, total)[..., None]
        with np.errstate(divide="ignore", invalid="ignore"):
            seen_lse = np.where(total == 0, -np.inf, peak + np.log(total))
        assert margin(seen.astype(dtype), state.out, allowed.out) <= 1
        assert margin(seen_lse, state.lse, allowed.lse) <= 1
        assert not allowed.out[20:40].any()

    def test_base_two_is_rejected(self) -> None:
        """A merge that takes nats for bits."""
        out = np.array([[[[0.0]]], [[[1.0]]]], np.float32)
        lse = np.array([[[0.0]], [[1.0]]], np.float32)
        state, allowed = merge_bound(out[0], lse[0], out[1], lse[1], arithmetic=STRICT)
        wrong = 2.0 ** lse[1] / (2.0 ** lse[0] + 2.0 ** lse[1])
        assert margin(wrong[..., None], state.out, allowed.out) > 1e4


class TestArithmetic:
    """The record of declared facts."""

    def test_roundtrip_through_json(self) -> None:
        """What was written is read back."""
        facts = Arithmetic(probabilities="float16", query="input", depth=40, rounding="truncate")
        assert Arithmetic.from_dict(facts.to_dict()) == facts

    @pytest.mark.parametrize(
        "record", [{"tolerance": 1e-3}, {"output": 3}, {"merges": -1}, {"block": 0}, {"rounding": "up"}]
    )
    def test_what_is_no_fact_is_refused(self, record: dict[str, object]) -> None:
        """There is no entry for a tolerance."""
        with pytest.raises(ArgumentError):
            Arithmetic.from_dict(record)

    @pytest.mark.parametrize("name", ["float12", "int32"])
    def test_a_dtype_that_is_not_real_is_refused(self, name: str) -> None:
        """A stage rounds to a real format that has a name."""
        with pytest.raises(DTypeError):
            Arithmetic(output=name)

    def test_input_means_the_dtype_of_q(self) -> None:
        """Resolved once, then a plain name."""
        facts = Arithmetic(query="input").resolve("float16")
        assert (facts.query, facts.probabilities, facts.output) == ("float16",) * 3

    @pytest.mark.parametrize(
        ("name", "roundoff", "underflow"),
        [
            ("float16", 2.0**-11, 2.0**-25),
            ("float8_e4m3fn", 2.0**-4, 2.0**-10),
            ("bfloat16", 2.0**-8, 2.0**-126),
            ("float32", 2.0**-24, 2.0**-126),
        ],
    )
    def test_formats_cost_what_ieee_says(self, name: str, roundoff: float, underflow: float) -> None:
        """Half a unit in the last place; half the smallest number, or all of a flushed one."""
        found = Format.of(name)
        assert (found.roundoff, found.underflow) == (roundoff, underflow)
        assert Format.of(name, "truncate").roundoff == 2 * roundoff

    @pytest.mark.parametrize("name", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
    def test_casts_stay_within_the_format(self, name: str) -> None:
        """Every cast of ml_dtypes is within roundoff·|x| + underflow."""
        rng = np.random.default_rng(0)
        x = (rng.normal(size=20000) * 2.0 ** rng.integers(-40, 6, 20000)).astype(np.float32)
        cast = x.astype(name)
        assert dtype_name(cast) == name
        moved = np.abs(cast.astype(np.float64) - x)
        assert (moved <= Format.of(name).rounded(np.abs(x.astype(np.float64)))).all()

    def test_gamma_is_infinite_where_nothing_can_be_said(self) -> None:
        """N·u >= 1."""
        assert gamma(256, 2.0**-8) == np.inf
        assert gamma(1, 2.0**-8) == pytest.approx(1 / 255)


def test_a_long_context_is_widened_one_kv_head_at_a_time() -> None:
    """Never both caches in float64 at once: 128k tokens of 8 heads would be 2 GiB, and their copies."""
    tokens, heads, width, block_size = 2048, 64, 64, 16
    q, k, _ = gaussian(tokens, rows=1, heads=(heads, heads), head_dim=width)
    cache = k.reshape(-1, block_size, heads, width)
    tables = np.arange(tokens // block_size)[None]
    tracemalloc.start()
    paged_bound(
        q,
        cache,
        cache,
        block_tables=tables,
        seq_lens=[tokens],
        query_start_loc=[0, 1],
        scale=0.1,
        arithmetic=STRICT,
    )
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * cache.size * 8
