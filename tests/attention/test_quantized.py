"""Attention over codes: the numbers they stand for, the bound of a kernel on them, and the format's term."""

import itertools
import math
from dataclasses import astuple, dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvref.arrays import Array
from kvref.attention.arithmetic import REFERENCE, Arithmetic
from kvref.attention.bounds import dense_bound, exceeds, format_bound, margin, quantized_paged_bound
from kvref.attention.dense import attention
from kvref.attention.quantized import quantized_paged_attention
from kvref.errors import ArgumentError, FormatError, ShapeError
from kvref.formats.elements import decode
from kvref.formats.format import FORMATS, Format, Quantized, format_of
from kvref.formats.loss import loss_bound, loss_of_codes
from kvref.formats.packing import arrange_scales
from kvref.formats.paths import CANONICAL, Path
from kvref.formats.scaled import decoded, dequantize, quantize
from kvref_conformance.emulation import KERNELS, run
from kvref_conformance.families import FAMILIES, draw
from kvref_conformance.probes.formats_worst import losses, worst

#: Formats whose scales belong to one token each, or to the whole cache.
ATTENDED = [name for name, format in FORMATS.items() if format.group != "tokens" and not format.zeros]
HEADS = (4, 2)
BLOCK = 8


@dataclass(frozen=True)
class Cache:
    """One ragged batch of two requests over scattered blocks whose other slots are full of NaN."""

    format: Format
    path: Path
    k: Quantized
    v: Quantized
    arrays: dict[str, Any]
    """Everything `quantized_paged_attention` takes but q and the variant."""
    lens: dict[str, Any]

    @property
    def keys(self) -> Array:
        """The keys that the codes stand for, packed request after request."""
        return dequantize(self.k, self.format, path=self.path)

    @property
    def values(self) -> Array:
        """The values that the codes stand for."""
        return dequantize(self.v, self.format, path=self.path)


def cache_of(
    name: str, *, seed: int = 0, path: Path = CANONICAL, head_dim: int = 128, grow: float = 1.0
) -> Cache:
    """Quantise random keys and values and scatter them over blocks."""
    rng = np.random.default_rng(seed)
    format, seq_lens = format_of(name), [19, 2 * BLOCK]
    n = sum(seq_lens)
    loud = np.resize([0.4, 1.0, 3.0], n)[:, None, None]
    k, v = (grow * loud * rng.normal(size=(n, HEADS[1], head_dim)).astype(np.float32) for _ in range(2))
    stored = [
        quantize(x.astype(np.float32), format, path=path, **givens(format, path, scale))
        for x, scale in ((k, 0.37), (v, 2.9))
    ]
    num_blocks = sum(-(-length // BLOCK) for length in seq_lens) + 3
    tables = rng.permutation(num_blocks)[: num_blocks - 3]
    used = [-(-length // BLOCK) for length in seq_lens]
    block_tables = np.full((2, max(used)), -1)
    block_tables[0, : used[0]], block_tables[1, : used[1]] = tables[: used[0]], tables[used[0] :]
    slots = np.concatenate(
        [
            block_tables[r, np.arange(m) // BLOCK] * BLOCK + np.arange(m) % BLOCK
            for r, m in enumerate(seq_lens)
        ]
    )
    arrays: dict[str, Any] = {"format": name, "path": path, "block_tables": block_tables}
    for side, part in zip("kv", stored, strict=True):
        arrays[f"{side}_cache"] = scattered(part.codes, slots, num_blocks)
        arrays[f"{side}_scales"] = scattered(part.scales, slots, num_blocks)
        arrays[f"{side}_global_scale"] = scattered(part.global_scale, slots, num_blocks)
    return Cache(format, path, *stored, arrays, {"seq_lens": seq_lens, "query_start_loc": [0, 3, 4]})


def givens(format: Format, path: Path, scale: float) -> dict[str, Any]:
    """Uneven scales where they are given."""
    if format.group == "given":
        return {"scales": np.array([scale / 40, scale / 90], np.float32)}
    if format.global_scale == "given":
        return {
            "global_scale": np.array([1 / scale * 200 if path.nvfp4_operand == "encode" else scale / 200])
        }
    return {}


def scattered(x: Array | None, slots: Array, num_blocks: int) -> Array | None:
    """Put rows into their slots; every other slot is NaN, or 0xFF, which is NaN in codes and in E8M0."""
    if x is None or x.ndim == 1:
        return x
    poison = np.uint8(0xFF) if x.dtype == np.uint8 else x.dtype.type(np.nan)
    flat = np.full((num_blocks * BLOCK, *x.shape[1:]), poison, x.dtype)
    flat[slots] = x
    return flat.reshape(num_blocks, BLOCK, *x.shape[1:])


def queries(head_dim: int, dtype: Any = np.float32, seed: int = 1) -> Array:
    """Four query tokens."""
    return np.random.default_rng(seed).normal(size=(4, HEADS[0], head_dim)).astype(dtype)


def by_hand(q: Array, cache: Cache, scale: float) -> Array:
    """Causal attention in Python's own arithmetic, position by position, over the numbers of the cache."""
    out = np.zeros(q.shape)
    starts, tokens = np.cumsum([0, *cache.lens["seq_lens"]]), cache.lens["query_start_loc"]
    for request, n in enumerate(cache.lens["seq_lens"]):
        for token in range(tokens[request], tokens[request + 1]):
            last = n - (tokens[request + 1] - token)
            for head in range(q.shape[1]):
                k = cache.keys[starts[request] :][: last + 1, head * HEADS[1] // HEADS[0]]
                v = cache.values[starts[request] :][: last + 1, head * HEADS[1] // HEADS[0]]
                logits = [
                    scale * math.fsum(float(a) * float(b) for a, b in zip(q[token, head], row, strict=True))
                    for row in k
                ]
                weights = [math.exp(s - max(logits)) for s in logits]
                total = math.fsum(weights)
                for d in range(v.shape[1]):
                    out[token, head, d] = math.fsum(
                        w / total * float(x) for w, x in zip(weights, v[:, d], strict=True)
                    )
    return out


class TestAnswer:
    """Attention over the numbers that codes stand for, and nothing else."""

    @pytest.mark.parametrize("name", ATTENDED)
    def test_is_attention_over_dequantised_numbers(self, name: str) -> None:
        """Whatever the blocks, against dense attention and against sums in Python."""
        cache = cache_of(name)
        q = queries(128)
        found = quantized_paged_attention(q, **cache.arrays, **cache.lens, scale=0.05)
        dense, allowed = dense_bound(
            q, cache.keys, cache.values, **cache.lens, scale=0.05, arithmetic=REFERENCE
        )
        assert not exceeds(found.out, dense.out, allowed.out).any()
        assert not exceeds(found.lse, dense.lse, allowed.lse).any()
        assert np.abs(found.out - by_hand(q, cache, 0.05)).max() < 1e-9

    @pytest.mark.parametrize("name", ["fp8_e4m3", "mxfp4", "nvfp4_token_head"])
    def test_variants_act_on_the_numbers(self, name: str) -> None:
        """A window, a softcap, sinks and ALiBi see keys and values, not codes."""
        cache, q = cache_of(name), queries(128)
        variant = {
            "scale": 0.05,
            "window": 5,
            "softcap": 3.0,
            "sinks": np.arange(4.0),
            "alibi_slopes": [0.1] * 4,
        }
        found = quantized_paged_attention(q, **cache.arrays, **cache.lens, **variant)
        dense = attention(q, cache.keys, cache.values, **cache.lens, **variant)
        np.testing.assert_allclose(found.out, dense.out, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("name", ATTENDED)
    def test_dead_codes_and_scales_change_no_bit(self, name: str) -> None:
        """NaN in slots outside a window and beyond a length, or zeros there: the same bits."""
        cache, q = cache_of(name), queries(128)
        variant = {"scale": 0.05, "window": 4, **cache.lens}
        poisoned = quantized_paged_attention(q, **cache.arrays, **variant)
        clean = dict(cache.arrays)
        outside = np.setdiff1d(np.arange(clean["k_cache"].shape[0]), clean["block_tables"])
        for side in "kv":
            for part in ("cache", "scales", "global_scale"):
                array = clean[f"{side}_{part}"]
                if array is not None and array.ndim > 1:
                    clean[f"{side}_{part}"] = np.array(array)
                    clean[f"{side}_{part}"][outside] = 0
                    clean[f"{side}_{part}"][clean["block_tables"][0, 0]] = (
                        0xFF if array.dtype == np.uint8 else np.nan
                    )
        again = quantized_paged_attention(q, **clean, **variant)
        assert np.array_equal(poisoned.out, again.out)
        assert np.array_equal(poisoned.lse, again.lse)
        assert np.isfinite(again.out).all()

    def test_keys_and_values_have_their_own_scales(self) -> None:
        """One taken for the other changes the answer by far more than a bound."""
        cache, q = cache_of("fp8_e4m3"), queries(128)
        swapped = {**cache.arrays, "k_scales": cache.arrays["v_scales"], "v_scales": cache.arrays["k_scales"]}
        found = quantized_paged_attention(q, **cache.arrays, **cache.lens, scale=0.05).out
        other = quantized_paged_attention(q, **swapped, **cache.lens, scale=0.05).out
        assert np.abs(found - other).max() > 0.1 * np.abs(found).max()

    def test_interleaved_value_scales(self) -> None:
        """Four tokens take turns within the value scales of each block and head, and not in those of keys."""
        cache, q = cache_of("nvfp4"), queries(128)
        plain = quantized_paged_attention(q, **cache.arrays, **cache.lens, scale=0.05)
        by_head = cache.arrays["v_scales"].swapaxes(1, 2)
        turned = np.ascontiguousarray(arrange_scales(by_head, "interleaved").swapaxes(1, 2))
        arrays = {**cache.arrays, "v_scales": turned, "path": Path(v_scale_layout="interleaved")}
        assert np.array_equal(quantized_paged_attention(q, **arrays, **cache.lens, scale=0.05).out, plain.out)
        arrays["path"] = CANONICAL
        assert not np.allclose(
            quantized_paged_attention(q, **arrays, **cache.lens, scale=0.05).out, plain.out
        )

    @pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e4m3_token_head", "nvfp4"])
    def test_attending_over_rounded_numbers(self, name: str) -> None:
        """A path that rounds keys and values to the dtype of q attends to what its reader gets."""
        path = Path(attend_values="input", decode_dtype="output")
        cache, q = cache_of(name, path=path), queries(128, ml_dtypes.bfloat16)
        found = quantized_paged_attention(q, **cache.arrays, **cache.lens, scale=0.05)
        read = [decoded(x, cache.format, dtype="bfloat16", path=path) for x in (cache.k, cache.v)]
        dense = attention(q, *read, **cache.lens, scale=0.05)
        np.testing.assert_allclose(found.out, dense.out, rtol=0, atol=1e-12)
        exact = attention(q, cache.keys, cache.values, **cache.lens, scale=0.05)
        assert np.abs(found.out - exact.out).max() > 1e-4

    def test_rows_and_empty_requests(self) -> None:
        """Some rows alone have the bits they have among others; a request without a context has none."""
        cache, q = cache_of("int8_token_head"), queries(128)
        whole = quantized_paged_attention(q, **cache.arrays, **cache.lens, scale=0.05)
        some = quantized_paged_attention(q, **cache.arrays, **cache.lens, scale=0.05, rows=[3, 1])
        assert np.array_equal(some.out, whole.out[[3, 1]])
        none = {"seq_lens": [0, 0], "query_start_loc": [0, 3, 4]}
        empty = quantized_paged_attention(q, **cache.arrays, **none, scale=0.05)
        assert not empty.out.any()
        assert np.isneginf(empty.lse).all()
        state, bound = quantized_paged_bound(q, **cache.arrays, **none, scale=0.05, arithmetic=Arithmetic())
        assert not state.out.any()
        assert not bound.out.any()


class TestRefusals:
    """What cannot be a cache of the format."""

    def refused(self, error: type[Exception], message: str, **changes: Any) -> None:
        cache, q = cache_of(changes.pop("name", "fp8_e4m3")), queries(128)
        with pytest.raises(error, match=message):
            quantized_paged_attention(q, **{**cache.arrays, **changes}, **cache.lens, scale=0.05)

    def test_formats_whose_groups_leave_the_token(self) -> None:
        """KIVI's keys share scales over 32 tokens, which are no neighbours in a cache of blocks."""
        self.refused(FormatError, "kivi_k4", format="kivi_k4")
        self.refused(FormatError, "scale_axis", name="mxfp4", path=Path(scale_axis="tokens"))

    def test_codes_that_are_no_bytes(self) -> None:
        """float8 arrays are refused: the format says what a byte stands for."""
        codes = cache_of("fp8_e4m3").arrays["k_cache"].view(ml_dtypes.float8_e4m3fn)
        self.refused(FormatError, "k_cache has dtype float8_e4m3fn", k_cache=codes)

    def test_scales_of_another_cache(self) -> None:
        """Scales with fewer slots than codes, or none at all."""
        scales = cache_of("int8_token_head").arrays["k_scales"]
        self.refused(ShapeError, "k_scales has shape", name="int8_token_head", k_scales=scales[:, 1:])
        self.refused(FormatError, "scales is missing", k_scales=None)

    def test_another_head_dim(self) -> None:
        """Packed codes hold two numbers a byte."""
        cache = cache_of("mxfp4", head_dim=64)
        with pytest.raises(ShapeError, match="q has shape"):
            quantized_paged_attention(queries(32), **cache.arrays, **cache.lens, scale=0.05)


def folded(cache: Cache, q: Array, scale: float, kernel: str) -> Array:
    """A kernel that puts the scales of whole caches into the softmax scale and the finished output."""
    facts = KERNELS[kernel].arithmetic
    wide = replace(KERNELS[kernel], arithmetic=replace(facts, output="float32"))
    out = np.zeros(q.shape, np.float32)
    for rows, context in requests(cache):
        allowed = causal(len(rows), context.stop - context.start)
        for kv_head in range(HEADS[1]):
            heads = slice(2 * kv_head, 2 * kv_head + 2)
            codes = [
                decode(x.codes[context, kv_head, None], cache.format.element) for x in (cache.k, cache.v)
            ]
            both = [np.broadcast_to(x.scales, HEADS[1])[kv_head] for x in (cache.k, cache.v)]  # type: ignore[arg-type]
            fold = float(np.float32(scale) * both[0])
            part = run(wide, q[rows][:, heads], *codes, allowed, scale=fold).out
            out[rows, heads] = part * both[1]
    return out.astype(facts.resolve(q.dtype.name).output)


def requests(cache: Cache) -> list[tuple[Array, slice]]:
    """The rows of q and the context of each request."""
    starts, tokens = np.cumsum([0, *cache.lens["seq_lens"]]), cache.lens["query_start_loc"]
    return [(np.arange(tokens[r], tokens[r + 1]), slice(starts[r], starts[r + 1])) for r in range(2)]


def causal(num_rows: int, n: int) -> Array:
    """Bottom-right."""
    allowed: Array = np.arange(n)[None] <= np.arange(n - num_rows, n)[:, None]
    return allowed


def by_slot(cache: Cache, q: Array, scale: float, p_dtype: Any) -> Array:
    """A float32 kernel that multiplies logits by the key scale of their slot, and weights by the value scale.

    The weights are rounded to `p_dtype` after that; the sum of weights adds what they were before.
    """
    f, out = np.float32, np.zeros(q.shape, np.float32)
    for rows, context in requests(cache):
        allowed = causal(len(rows), context.stop - context.start)
        for head in range(HEADS[0]):
            kv_head = head // 2
            k, v = (decode(x.codes[context, kv_head], cache.format.element) for x in (cache.k, cache.v))
            k_scale, v_scale = (x.scales[context, kv_head] for x in (cache.k, cache.v))  # type: ignore[index]
            logits = (q[rows, head].astype(f) @ k.T) * f(scale) * k_scale
            logits = np.where(allowed, logits, -np.inf).astype(f)
            w = np.exp(logits - logits.max(axis=1, keepdims=True))
            p = (w * v_scale).astype(p_dtype).astype(f)
            out[rows, head] = (p @ v) / w.sum(axis=1, keepdims=True)
    return out


class TestKernelBound:
    """A correct kernel over codes is within, an incorrect one is not."""

    @pytest.mark.parametrize("kernel", [name for name in KERNELS if "float16" not in name.split(",")[0]])
    @pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e5m2", "int8", "fp8_e4m3_tensor"])
    def test_scales_folded_into_logits_and_output(self, name: str, kernel: str) -> None:
        """The scale of keys goes into the softmax scale, that of values into the output."""
        facts = KERNELS[kernel].arithmetic
        for seed in range(4):
            cache, q = cache_of(name, seed=seed, head_dim=64), queries(64, ml_dtypes.bfloat16, seed)
            seen = folded(cache, q, 0.05, kernel)
            state, bound = quantized_paged_bound(
                q, **cache.arrays, **cache.lens, scale=0.05, arithmetic=facts
            )
            assert not exceeds(seen.astype(np.float64), state.out, bound.out).any()
            plain = dense_bound(q, cache.keys, cache.values, **cache.lens, scale=0.05, arithmetic=facts)[1]
            assert (bound.out >= plain.out).all()
            assert (bound.out[np.isfinite(bound.out)] < 1.5 * plain.out[np.isfinite(bound.out)]).all()

    @pytest.mark.parametrize("p_dtype", ["float32", "float16", "bfloat16"])
    @pytest.mark.parametrize("grow", [1e-5, 1.0, 100.0])
    def test_scales_of_slots_folded_into_logits_and_weights(self, p_dtype: str, grow: float) -> None:
        """Weights are multiplied by small scales before they are rounded, so they get small themselves."""
        facts = Arithmetic(probabilities=p_dtype, output="float32", merges=0, block=None)
        for name, seed in itertools.product(["int8_token_head", "fp8_e4m3_token_head"], range(6)):
            cache = cache_of(name, seed=seed, head_dim=64, grow=grow)
            q = queries(64, np.float32, seed) / np.float32(grow)
            seen = by_slot(cache, q, 0.2, p_dtype)
            state, bound = quantized_paged_bound(q, **cache.arrays, **cache.lens, scale=0.2, arithmetic=facts)
            assert margin(seen.astype(np.float64), state.out, bound.out) <= 1

    def test_small_weights_need_the_units(self) -> None:
        """Where values have scales of 10⁻⁷, float16 weights vanish: the plain bound calls that a fault."""
        facts = Arithmetic(probabilities="float16", output="float32", merges=0, block=None)
        cache = cache_of("int8_token_head", head_dim=64, grow=1e-5)
        q = queries(64) / np.float32(1e-5)
        seen = by_slot(cache, q, 0.2, "float16").astype(np.float64)
        state, plain = dense_bound(q, cache.keys, cache.values, **cache.lens, scale=0.2, arithmetic=facts)
        assert margin(seen, state.out, plain.out) > 1

    @pytest.mark.parametrize("name", ["nvfp4", "nvfp4_tensor", "mxfp4", "ggml_q8_0", "int4_token_head"])
    @pytest.mark.parametrize(
        "kernel", ["float32 naive", "P bfloat16, out bfloat16", "8 splits, parts float32"]
    )
    def test_numbers_decoded_in_float32(self, name: str, kernel: str) -> None:
        """A kernel that decodes each number in float32, in either order of the scales."""
        facts = KERNELS[kernel].arithmetic
        for order in ("elements_first", "scales_first"):
            path = Path(nvfp4_decode_order=order)
            cache, q = cache_of(name, path=path), queries(128, ml_dtypes.bfloat16)
            k, v = (decoded(x, cache.format, dtype="float32", path=path) for x in (cache.k, cache.v))
            state, bound = quantized_paged_bound(
                q, **cache.arrays, **cache.lens, scale=0.05, arithmetic=facts
            )
            for rows, context in requests(cache):
                allowed = causal(len(rows), context.stop - context.start)
                seen = run(KERNELS[kernel], q[rows], k[context], v[context], allowed, scale=0.05).out
                assert not exceeds(seen.astype(np.float64), state.out[rows], bound.out[rows]).any()

    def test_rounded_numbers_are_modelled_and_not_allowed_for(self) -> None:
        """A kernel that rounds keys to bfloat16 is outside, unless it says so."""
        facts = KERNELS["float32 naive"].arithmetic
        path = Path(attend_values="input")
        cache, q = cache_of("fp8_e4m3", path=path), queries(128, ml_dtypes.bfloat16)
        k, v = (decoded(x, cache.format, dtype="bfloat16", path=path) for x in (cache.k, cache.v))
        rows, context = requests(cache)[0]
        allowed = causal(len(rows), context.stop - context.start)
        seen = run(KERNELS["float32 naive"], q[rows], k[context], v[context], allowed, scale=0.05).out
        shares = []
        for declared in (path, CANONICAL):
            arrays = {**cache.arrays, "path": declared}
            state, bound = quantized_paged_bound(q, **arrays, **cache.lens, scale=0.05, arithmetic=facts)
            shares.append(margin(seen.astype(np.float64), state.out[rows], bound.out[rows]))
        assert shares[0] <= 1
        assert shares[1] > 10

    def test_a_scale_one_percent_off(self) -> None:
        """The value scale of one slot, taken from its neighbour or a percent too large, is seen."""
        cache, q = cache_of("fp8_e4m3_token_head"), queries(128)
        wrong = dict(cache.arrays)
        wrong["v_scales"] = cache.arrays["v_scales"] * np.float32(1.01)
        seen = quantized_paged_attention(q, **wrong, **cache.lens, scale=0.05).out
        facts = KERNELS["P bfloat16, out float32"].arithmetic
        state, bound = quantized_paged_bound(q, **cache.arrays, **cache.lens, scale=0.05, arithmetic=facts)
        assert margin(seen, state.out, bound.out) > 1

    def test_numbers_past_float32(self) -> None:
        """E8M0 reaches 2^127 and E4M3 448: a kernel in float32 has no such number, and no bound."""
        codes = np.full((1, 1, 1, 32), 0x7E, np.uint8)
        scales = np.full((1, 1, 1, 1), 0xFE, np.uint8)
        call = {"format": "mxfp8_e4m3", "block_tables": [[0]], "seq_lens": [1], "query_start_loc": [0, 1]}
        state, bound = quantized_paged_bound(
            np.zeros((1, 1, 32), np.float32),
            codes,
            codes,
            k_scales=scales,
            v_scales=scales,
            **call,
            scale=1.0,
            arithmetic=Arithmetic(),
        )
        assert (state.out == 448 * 2.0**127).all()
        assert np.isinf(bound.out).all()


BATCH: dict[str, Any] = {"query_start_loc": [0, 1], "scale": 0.5}


def corners(
    q: Array, k: Array, v: Array, dk: Array, dv: Array, sink: float | None, softcap: float | None
) -> tuple[Array, float]:
    """The most that one row's out and lse can change, over every corner of what keys and values may be."""

    def answer(logits: Array, values: Array) -> tuple[Array, float]:
        s = logits if softcap is None else softcap * np.tanh(logits / softcap)
        w = np.exp(s)
        return (w @ values) / (w.sum() + (0 if sink is None else np.exp(sink))), float(np.log(w.sum()))

    logits, delta = 0.5 * (k @ q), 0.5 * (dk @ np.abs(q))
    out, lse = answer(logits, v)
    change, lse_change = np.zeros(v.shape[1]), 0.0
    for signs in itertools.product([-1, 1], repeat=len(k)):
        for side in (-1, 1):
            other, other_lse = answer(logits + np.array(signs) * delta, v + side * dv)
            change = np.maximum(change, np.abs(other - out))
            lse_change = max(lse_change, abs(other_lse - lse))
    return change, lse_change


class TestFormatBound:
    """How far the answer may be from that over the numbers before they were quantised."""

    @settings(max_examples=120)
    @given(
        st.integers(0, 2**32),
        st.integers(1, 6),
        st.floats(-6, 1.5),
        st.sampled_from([None, 0.3]),
        st.booleans(),
    )
    def test_is_the_worst_corner(self, seed: int, n: int, size: float, sink: float | None, cap: bool) -> None:
        """Against every corner there is, for errors small and large: that maximum, and no more."""
        rng = np.random.default_rng(seed)
        q, k, v = rng.normal(size=4), rng.normal(size=(n, 4)), rng.normal(size=(n, 4))
        dk, dv = rng.random((n, 4)) * 10.0**size, rng.random((n, 4)) * 10.0 ** rng.uniform(-6, 1)
        softcap = 2.0 if cap else None
        out, lse = corners(q, k, v, dk, dv, sink, softcap)
        found = format_bound(
            q[None, None],
            *(x[:, None] for x in (k, v, dk, dv)),
            seq_lens=[n],
            softcap=softcap,
            sinks=None if sink is None else [sink],
            **BATCH,
        )
        slack = 1e-9
        assert (out <= found.out[0, 0]).all()
        assert (found.out[0, 0] <= (1 + slack) * out + slack).all()
        assert lse <= found.lse[0, 0] <= (1 + slack) * lse + slack

    @settings(max_examples=60)
    @given(st.integers(0, 2**32), st.floats(-4, 1))
    def test_no_keys_and_values_within_their_errors_exceed_it(self, seed: int, size: float) -> None:
        """Ragged batches, grouped heads and every variant; errors of random signs and at their ends."""
        rng = np.random.default_rng(seed)
        lens = {"seq_lens": [17, 5], "query_start_loc": [0, 3, 4]}
        q, (k, v) = rng.normal(size=(4, 4, 16)), rng.normal(size=(2, 22, 2, 16))
        dk, dv = (rng.random(k.shape) * 10.0**size for _ in range(2))
        variant: dict[str, Any] = {"scale": 0.3, "window": int(rng.integers(2, 20))}
        variant |= {"softcap": 4.0} if rng.random() < 0.5 else {}
        variant |= {"sinks": rng.normal(size=4)} if rng.random() < 0.5 else {}
        variant |= {"alibi_slopes": rng.random(4)} if rng.random() < 0.5 else {}
        bound = format_bound(q, k, v, dk, dv, **lens, **variant)
        before = attention(q, k, v, **lens, **variant)
        for _ in range(8):
            ends = [
                np.sign(rng.normal(size=k.shape)) if rng.random() < 0.5 else rng.uniform(-1, 1, k.shape)
                for _ in "kv"
            ]
            other = k + ends[0] * dk, v + ends[1] * dv
            after, own = dense_bound(q, *other, **lens, **variant, arithmetic=REFERENCE)
            assert not exceeds(after.out, before.out, bound.out + own.out).any()
            assert not exceeds(after.lse, before.lse, bound.lse + own.lse).any()

    @pytest.mark.parametrize("name", FORMATS)
    def test_no_format_exceeds_it(self, name: str) -> None:
        """Some requests of all families of inputs; the loss is known by x, and by codes alone."""
        format, n, seeds = FORMATS[name], 32, 80
        head_dim = {"fp8_e4m3_group128": 128, "ggml_nvfp4": 64}.get(name, 32)
        parts = [
            draw(family, n=n, head_dim=head_dim, dtype="float32", seed=seed, num_rows=1, heads=(1, 1))
            for seed, family in zip(range(seeds), itertools.cycle(FAMILIES), strict=False)
        ]
        limit = 3e4 if format.family in ("affine", "ggml") else 1e30
        parts = [replace(part, v=np.clip(part.v, -limit, limit)) for part in parts]
        sides = []
        for x in ([part.k for part in parts], [part.v for part in parts]):
            stored = [quantize(part, format, **_scales(part, format)) for part in x]
            sides.append(
                (
                    np.concatenate(x),
                    np.concatenate([dequantize(part, format) for part in stored]),
                    np.concatenate([loss_bound(a, part, format) for a, part in zip(x, stored, strict=True)]),
                    np.concatenate([loss_of_codes(part, format) for part in stored]),
                )
            )
        (k, read_k, dk, dk_codes), (v, read_v, dv, dv_codes) = sides
        q = np.concatenate([part.q for part in parts])
        batch = {"query_start_loc": np.arange(seeds + 1), "seq_lens": [n] * seeds, "scale": parts[0].scale}
        before = attention(q, k, v, **batch)
        after, own = dense_bound(q, read_k, read_v, **batch, arithmetic=REFERENCE)
        bound = format_bound(q, k, v, dk, dv, **batch)
        assert not exceeds(after.out, before.out, bound.out + own.out).any()
        assert not exceeds(after.lse, before.lse, bound.lse + own.lse).any()
        some = np.arange(0, seeds, 4)  # from the codes alone, back to what was written
        backward = format_bound(q, read_k, read_v, dk_codes, dv_codes, **batch, rows=some)
        own = dense_bound(q, k, v, **batch, arithmetic=REFERENCE, rows=some)[1]
        assert not exceeds(before.out[some], after.out[some], backward.out + own.out).any()
        assert not exceeds(before.lse[some], after.lse[some], backward.lse + own.lse).any()

    def test_every_format_reaches_it(self) -> None:
        """On the inputs built for it, each format moves the answer by nearly all that its bound allows."""
        found = losses()
        for loss in found:
            print(f"{loss.format:22}", *(f"{x:8.4f}" for x in astuple(loss)[1:]))
        assert [loss.format for loss in found] == list(FORMATS)
        assert min(loss.reached for loss in found) > 0.8
        assert min(loss.reached_lse for loss in found) > 0.8
        assert max(max(loss.reached, loss.reached_lse) for loss in found) <= 1

    def test_the_worst_case_is_what_it_says(self) -> None:
        """Half the logits rise and half fall, each by the same half nat; every value rises."""
        case = worst(FORMATS["fp8_e4m3"])
        k, v = (dequantize(x, case.format) for x in (case.stored_k, case.stored_v))
        change = ((k - case.k) @ case.q[0, 0])[:, 0]
        assert np.abs(np.abs(change) - 0.5).max() < 0.01
        assert np.count_nonzero(change > 0) == len(change) // 2
        assert (v > case.v).all()

    def test_nothing_lost_costs_nothing(self) -> None:
        """Without errors only the reference's own are left; in an empty row not even those."""
        rng = np.random.default_rng(0)
        q, (k, v) = rng.normal(size=(1, 2, 8)), rng.normal(size=(2, 40, 2, 8))
        none = np.zeros_like(k)
        found = format_bound(q, k, v, none, none, seq_lens=[40], **BATCH)
        assert 0 < found.out.max() < 1e-10
        empty = format_bound(q, k[:0], v[:0], none[:0], none[:0], seq_lens=[0], **BATCH)
        assert not empty.out.any()
        assert not empty.lse.any()

    def test_an_unknown_key_leaves_the_answer_among_the_values(self) -> None:
        """A key of which nothing is known may take all the weight, or none; the values remain."""
        rng = np.random.default_rng(1)
        q, (k, v) = rng.normal(size=(1, 1, 8)), rng.normal(size=(2, 5, 1, 8))
        dk, dv = np.zeros_like(k), np.full_like(v, 0.1)
        dk[2, 0, 3] = np.inf
        out = attention(q, k, v, seq_lens=[5], **BATCH).out[0, 0]
        found = format_bound(q, k, v, dk, dv, seq_lens=[5], **BATCH)
        hull = np.maximum(v.max(0)[0] + 0.1 - out, out - v.min(0)[0] + 0.1)
        np.testing.assert_allclose(found.out[0, 0], hull, rtol=1e-9)
        assert np.isinf(found.lse).all()
        q[..., 3] = 0.0
        assert np.isfinite(format_bound(q, k, v, dk, dv, seq_lens=[5], **BATCH).lse).all()

    def test_dead_positions_may_have_any_errors(self) -> None:
        """What no row attends to has no say: NaN in k, v, dk and dv there changes no bit."""
        rng = np.random.default_rng(2)
        q, (k, v) = rng.normal(size=(1, 2, 8)), rng.normal(size=(2, 12, 2, 8))
        dk, dv = np.full_like(k, 0.1), np.full_like(v, 0.1)
        clean = format_bound(q, k, v, dk, dv, seq_lens=[12], window=4, **BATCH)
        for x in (k, v, dk, dv):
            x[:8] = np.nan
        poisoned = format_bound(q, k, v, dk, dv, seq_lens=[12], window=4, **BATCH)
        assert np.array_equal(clean.out, poisoned.out)
        assert np.array_equal(clean.lse, poisoned.lse)

    def test_an_error_below_zero_is_refused(self) -> None:
        """It is a distance."""
        x = np.ones((1, 1, 4))
        with pytest.raises(ArgumentError, match=r"dv\[0, 0, 0\] = -1.0, expected an error >= 0"):
            format_bound(x, x, x, 0 * x, -x, seq_lens=[1], **BATCH)

    @pytest.mark.parametrize("name", ["fp8_e4m3_token_head", "nvfp4_tensor", "int4_token_head"])
    def test_the_whole_way_from_numbers_to_a_kernel(self, name: str) -> None:
        """A kernel over codes differs from attention over what was written by no more than both bounds."""
        rng = np.random.default_rng(4)
        cache, q = cache_of(name), queries(128, ml_dtypes.bfloat16)
        x = [part + 0.1 * rng.normal(size=part.shape) for part in (cache.keys, cache.values)]
        x = [part.astype(np.float32) for part in x]
        stored = [quantize(part, name) for part in x]
        lost = [loss_bound(part, codes, name) for part, codes in zip(x, stored, strict=True)]
        k, v = (dequantize(codes, name).astype(np.float32) for codes in stored)
        kernel = KERNELS["P bfloat16, out bfloat16"]
        before = attention(q, *x, **cache.lens, scale=0.05)
        format_term = format_bound(q, *x, *lost, **cache.lens, scale=0.05)
        kernel_term = dense_bound(q, k, v, **cache.lens, scale=0.05, arithmetic=kernel.arithmetic)[1]
        for rows, context in requests(cache):
            allowed = causal(len(rows), context.stop - context.start)
            seen = run(kernel, q[rows], k[context], v[context], allowed, scale=0.05).out.astype(np.float64)
            both = format_term.out[rows] + kernel_term.out[rows]
            assert not exceeds(seen, before.out[rows], both).any()
            assert margin(seen, before.out[rows], kernel_term.out[rows]) > 1


def _scales(x: Array, format: Format) -> dict[str, Array]:
    size = float(np.abs(x).max())
    if format.group == "given":
        return {"scales": np.array([size / 100], np.float32)}
    if format.global_scale == "given":
        return {"global_scale": np.array([size / 2000], np.float32)}
    return {}
