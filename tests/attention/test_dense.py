"""The formula, held to implementations nobody here wrote, to the figures of papers, and to its laws."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import Ragged, batches, ragged, variants

from kvref.attention import dense
from kvref.attention.arithmetic import Arithmetic
from kvref.attention.bounds import REFERENCE, dense_bound, exceeds
from kvref.attention.dense import attention, blend, no_cache_tokens_computed, softmax
from kvref.errors import ArgumentError, DTypeError, LengthError, ShapeError


def may_attend(variant: dict, spans: np.ndarray | None, t: int, j: int) -> bool:
    """Say whether a query at t may attend to j, before the boolean mask."""
    plain = j <= t if variant.get("causal", True) else True
    plain &= variant.get("window") is None or t - j < variant["window"]
    plain &= variant.get("chunk_size") is None or t // variant["chunk_size"] == j // variant["chunk_size"]
    return plain or (spans is not None and t >= 0 and spans[t] >= 0 and spans[t] == spans[j])


def literal(batch: Ragged, **variant) -> np.ndarray:
    """Attention as a triple loop over rows, heads and positions: the slowest thing that can be meant."""
    group = batch.q.shape[1] // batch.k.shape[1]
    out = np.zeros((*batch.q.shape[:2], batch.v.shape[2]))
    masked = iter(variant.get("mask", ()))
    for request, (n, n_q) in enumerate(zip(batch.seq_lens, batch.query_lens, strict=True)):
        context = slice(*batch.context_start_loc[request : request + 2])
        k, v = batch.k[context], batch.v[context]
        spans = variant["span_ids"][context] if "span_ids" in variant else None
        for i in range(n_q):
            t = n - n_q + i
            row = batch.query_start_loc[request] + i
            pairs = [may_attend(variant, spans, t, j) for j in range(n)]
            if "mask" in variant:
                pairs = [pair and next(masked) if pair else (next(masked), False)[1] for pair in pairs]
            for h in range(batch.q.shape[1]):
                total = np.exp(variant["sinks"][h]) if "sinks" in variant else 0.0
                for j in np.flatnonzero(pairs):
                    logit = batch.scale * float(batch.q[row, h] @ k[j, h // group])
                    if variant.get("softcap"):
                        logit = variant["softcap"] * np.tanh(logit / variant["softcap"])
                    if "alibi_slopes" in variant:
                        logit += variant["alibi_slopes"][h] * (j - t)
                    out[row, h] += np.exp(logit) * v[j, h // group]
                    total += np.exp(logit)
                if any(pairs):
                    out[row, h] /= total
    return out


@given(st.data(), batches(max_len=8))
def test_equals_the_triple_loop(data, batch: Ragged) -> None:
    """Any ragged batch under any combination of variants, within the bound of float64."""
    arguments = {**batch.lengths, "scale": batch.scale}
    variant = data.draw(variants(batch))
    state, bound = dense_bound(batch.q, batch.k, batch.v, **arguments, **variant, arithmetic=REFERENCE)
    assert not exceeds(literal(batch, **variant), state.out, bound.out).any()


@given(batches(more_queries=False))
def test_chunked_equals_whole(batch: Ragged) -> None:
    """The rows of a prompt answered in two calls are the rows answered in one."""
    whole = attention(batch.q, batch.k, batch.v, **batch.lengths, scale=batch.scale)
    for request, (n, n_q) in enumerate(zip(batch.seq_lens, batch.query_lens, strict=True)):
        start, context = batch.query_start_loc[request], batch.context_start_loc[request]
        for cut in range(n_q + 1):
            first = n - n_q + cut  # context when the first chunk has been read
            q = batch.q[start : start + cut]
            k, v = batch.k[context : context + first], batch.v[context : context + first]
            lengths = {"query_start_loc": [0, cut], "seq_lens": [first]}
            state, bound = dense_bound(q, k, v, **lengths, scale=batch.scale, arithmetic=REFERENCE)
            assert not exceeds(whole.out[start : start + cut], state.out, bound.out).any()


@given(batches(), st.integers(0, 2**16))
def test_rows_are_the_rows_of_the_whole(batch: Ragged, seed: int) -> None:
    """A sample of query rows, in any order, equals those rows of the full answer bit for bit per row."""
    num_tokens = len(batch.q)
    rows = np.random.default_rng(seed).permutation(num_tokens)[: num_tokens // 2 + 1]
    whole, bound = dense_bound(
        batch.q, batch.k, batch.v, **batch.lengths, scale=batch.scale, arithmetic=REFERENCE
    )
    some = attention(batch.q, batch.k, batch.v, **batch.lengths, scale=batch.scale, rows=rows)
    assert not exceeds(some.out, whole.out[rows], bound.out[rows]).any()
    assert not exceeds(some.lse, whole.lse[rows], bound.lse[rows]).any()


@given(batches(), st.sampled_from([np.nan, np.inf, -np.inf]))
def test_nothing_outside_the_attended_set_is_read(batch: Ragged, poison: float) -> None:
    """Positions that no row of their request attends to may hold anything: not a bit changes."""
    k, v = batch.k.copy(), batch.v.copy()
    for request, (n, n_q) in enumerate(zip(batch.seq_lens, batch.query_lens, strict=True)):
        dead = slice(batch.context_start_loc[request], batch.context_start_loc[request] + max(n - n_q - 1, 0))
        k[dead], v[dead] = poison, poison
    arguments = {**batch.lengths, "scale": batch.scale, "window": 2}
    clean = attention(batch.q, batch.k, batch.v, **arguments)
    poisoned = attention(batch.q, k, v, **arguments)
    np.testing.assert_array_equal(poisoned.out, clean.out)
    np.testing.assert_array_equal(poisoned.lse, clean.lse)


def test_value_that_only_later_rows_attend_to_does_not_reach_earlier_ones() -> None:
    """NaN in the newest value of a chunk poisons its own row alone, through the causal mask."""
    batch = ragged(1, (6,), (4,))
    v = batch.v.copy()
    v[-1] = np.nan
    arguments = {**batch.lengths, "scale": batch.scale}
    out = attention(batch.q, batch.k, v, **arguments).out
    assert np.isnan(out[-1]).all()
    np.testing.assert_array_equal(out[:-1], attention(batch.q, batch.k, batch.v, **arguments).out[:-1])


def test_empty_context_answers_zero() -> None:
    """No position: out 0 and lse −inf, between requests that have some."""
    batch = ragged(2, (3, 0, 2), (1, 2, 1))
    state = attention(batch.q, batch.k, batch.v, **batch.lengths, scale=1.0)
    assert (state.out[1:3] == 0).all()
    assert np.isneginf(state.lse[1:3]).all()
    assert np.isfinite(state.lse[[0, 3]]).all()


@pytest.mark.parametrize("logit", [-7e4, -3e2, 7e4, 3e2])
def test_logits_of_any_size_give_the_same_weights(logit: float) -> None:
    """Equal logits weigh equally wherever they are: no sentinel, no overflow."""
    batch = ragged(4, (8,), (1,))
    q, k = np.ones_like(batch.q), np.full_like(batch.k, logit / 8)
    state = attention(q, k, batch.v, **batch.lengths, scale=1.0)
    np.testing.assert_array_equal(state.out[0, 0], batch.v[:, 0].mean(axis=0))
    assert (np.abs(state.lse - (logit + np.log(8))) <= np.spacing(abs(logit)) * 2).all()


def test_toy_example_of_the_founding_page() -> None:
    """Scores 0.8, −0.41, 0.55 weigh 0.481, 0.144, 0.375: softmax to ten digits."""
    weights, _ = softmax(np.array([0.8, -0.41, 0.55]))
    assert np.round(weights, 10).tolist() == [0.4814640986, 0.1435712844, 0.374964617]


def test_no_cache_recomputes_every_prefix() -> None:
    """1000 tokens without a cache cost 500,500 token computations: 500.5 times as many."""
    assert no_cache_tokens_computed(1000) == 500_500
    assert no_cache_tokens_computed(1000) / 1000 == 500.5


def test_needle_comes_back_bit_for_bit() -> None:
    """A weight of exactly 1 copies the value: no rounding on the way."""
    batch = ragged(5, (40,), (1,), head_dim=4)
    q, k = np.zeros_like(batch.q), np.zeros_like(batch.k)
    q[..., 0], k[17, :, 0] = 32, 32
    out = attention(q, k, batch.v, **batch.lengths, scale=1.0).out
    np.testing.assert_array_equal(out[0], np.repeat(batch.v[17], 3, axis=0))


@pytest.mark.parametrize(
    ("values", "blended"),
    [
        ([np.inf, 1.0, 2.0], np.inf),
        ([-np.inf, -np.inf, 2.0], -np.inf),
        ([np.inf, -np.inf, 2.0], np.nan),
        ([np.nan, np.inf, 2.0], np.nan),
    ],
)
def test_blend_of_values_that_are_read_follows_ieee(values: list[float], blended: float) -> None:
    """Infinity with weight is infinity, two of them that differ are NaN, and NaN is NaN."""
    out = blend(np.full((1, 1, 3), 1 / 3), np.array(values).reshape(3, 1, 1))
    np.testing.assert_array_equal(out, [[[blended]]])
    assert np.isnan(blend(np.full((1, 1, 3), np.nan), np.array(values).reshape(3, 1, 1))).all()


def test_blend_of_zero_weight_ignores_infinity() -> None:
    """0 · inf would be NaN; a weight of 0 means the value is not read."""
    out = blend(np.array([[[0.0, 1.0]]]), np.array([[[np.inf]], [[3.0]]]))
    assert out.tolist() == [[[3.0]]]


def test_float32_takes_sinks_and_slopes_of_float64() -> None:
    """They are arguments, not cached numbers: a list of Python floats goes with either arithmetic."""
    batch = ragged(3, (5, 2), (3, 1))
    arguments = {**batch.lengths, "scale": 0.5, "sinks": [0.1] * 6, "alibi_slopes": [0.3] * 6}
    q, k, v = (x.astype(np.float32) for x in (batch.q, batch.k, batch.v))
    narrow = attention(q, k, v, dtype=np.float32, **arguments)
    assert narrow.out.dtype == narrow.lse.dtype == np.float32
    facts = Arithmetic(normalized=True, rounded_sum=True, block=None)
    state, bound = dense_bound(q, k, v, **arguments, arithmetic=facts)
    assert not exceeds(narrow.out, state.out, bound.out).any()
    assert not exceeds(narrow.lse, state.lse, bound.lse).any()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"q": np.zeros((4, 6))},
            ShapeError,
            r"q has shape \[4, 6\], expected \[num_tokens, num_q_heads, head_dim\]",
        ),
        ({"q": np.zeros((4, 5, 8))}, ShapeError, "q has 5 heads and k has 2, expected a multiple"),
        (
            {"q": np.zeros((4, 6, 7))},
            ShapeError,
            r"k has shape \[7, 2, 8\], expected \[num_slots, num_kv_heads, 7\]",
        ),
        ({"q": np.zeros((4, 6, 8), int)}, DTypeError, "q has dtype int64, expected real numbers"),
        ({"v": np.zeros((6, 2, 8))}, ShapeError, r"v has shape \[6, 2, 8\], expected \[7, 2, head_dim\]"),
        ({"seq_lens": [5, -2]}, LengthError, r"seq_lens\[1\] = -2, expected >= 0"),
        ({"seq_lens": [5, 3]}, ShapeError, r"k has shape \[7, 2, 8\], expected \[8, 2, 8\]"),
        ({"seq_lens": [5.0, 2.0]}, DTypeError, "seq_lens has dtype float64, expected integers"),
        ({"query_start_loc": [0, 3]}, ShapeError, r"query_start_loc has shape \[2\], expected \[3\]"),
        ({"query_start_loc": [0, 3, 5]}, LengthError, "expected to rise from 0 to 4"),
        ({"query_start_loc": [0, 5, 4]}, LengthError, "expected to rise from 0 to 4"),
        ({"query_start_loc": [1, 3, 4]}, LengthError, "expected to rise from 0 to 4"),
        ({"scale": np.inf}, ArgumentError, "scale = inf, expected a finite number"),
        ({"rows": [4]}, LengthError, r"rows = \[4\], expected indices below 4"),
        ({"rows": [-1]}, LengthError, r"rows = \[-1\], expected indices below 4"),
        ({"window": True}, ArgumentError, "window = True, expected an integer >= 1"),
        ({"dtype": np.float16}, DTypeError, "dtype = .*float16.*, expected float64 or float32"),
        ({"sinks": [[1.0], [1.0, 2.0]]}, ShapeError, "sinks holds rows of unequal length"),
        ({"dtype": np.float32}, DTypeError, "q has dtype float64, which float32 cannot hold exactly"),
    ],
)
def test_bad_input_is_named(change: dict, error: type[Exception], message: str) -> None:
    """The argument, what was found, what was expected."""
    batch = ragged(6, (5, 2), (3, 1))
    arguments = {"q": batch.q, "k": batch.k, "v": batch.v, **batch.lengths, "scale": 1.0, **change}
    with pytest.raises(error, match=message):
        attention(arguments.pop("q"), arguments.pop("k"), arguments.pop("v"), **arguments)


def test_torch_agrees() -> None:
    """torch's SDPA in float64, with an explicit lower-right mask, request by request."""
    torch = pytest.importorskip("torch", reason="torch is not installed; the oracle is torch's SDPA")
    for seed in range(6):
        batch = ragged(seed, (9, 4, 17), (3, 4, 1), head_dim=16)
        state, bound = dense_bound(
            batch.q, batch.k, batch.v, **batch.lengths, scale=batch.scale, arithmetic=REFERENCE
        )
        for request, (n, n_q) in enumerate(zip(batch.seq_lens, batch.query_lens, strict=True)):
            rows = slice(*batch.query_start_loc[request : request + 2])
            context = slice(*batch.context_start_loc[request : request + 2])
            q, k, v = (
                torch.from_numpy(x).permute(1, 0, 2)[None]
                for x in (batch.q[rows], batch.k[context], batch.v[context])
            )
            mask = torch.ones(n_q, n, dtype=torch.bool).tril(n - n_q)
            out = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, scale=batch.scale, enable_gqa=True
            )
            assert not exceeds(out[0].permute(1, 0, 2).numpy(), state.out[rows], bound.out[rows]).any()


@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_onnx_reference_agrees(softcap: float) -> None:
    """The reference evaluator of ONNX Attention-23 over a past of any length (bottom-right causal).

    ONNX multiplies q and k by the root of the scale, kept in float32: 0.25 has an exact one.
    """
    onnx = pytest.importorskip("onnx", reason="onnx is not installed; the oracle is its reference evaluator")
    from onnx.reference import ReferenceEvaluator

    node = onnx.helper.make_node(
        "Attention",
        ["q", "k", "v", "", "past_k", "past_v"],
        ["out", "present_k", "present_v"],
        is_causal=1,
        scale=0.25,
        softcap=softcap,
    )
    kind = onnx.TensorProto.DOUBLE
    values = [onnx.helper.make_tensor_value_info(n, kind, None) for n in ("q", "k", "v", "past_k", "past_v")]
    outs = [onnx.helper.make_tensor_value_info(n, kind, None) for n in ("out", "present_k", "present_v")]
    graph = onnx.helper.make_graph([node], "g", values, outs)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 23)])
    evaluator = ReferenceEvaluator(model)
    for seed, (n, n_q) in enumerate([(9, 1), (12, 5), (4, 4)]):
        batch = ragged(seed, (n,), (n_q,), head_dim=8)
        as_bnsh = [x.transpose(1, 0, 2)[None] for x in (batch.q, batch.k, batch.v)]
        past = n - n_q
        feeds = {
            "q": as_bnsh[0],
            "k": as_bnsh[1][:, :, past:],
            "v": as_bnsh[2][:, :, past:],
            "past_k": as_bnsh[1][:, :, :past],
            "past_v": as_bnsh[2][:, :, :past],
        }
        out = evaluator.run(["out"], feeds)[0]
        variant = {"softcap": softcap} if softcap else {}
        state, bound = dense_bound(
            batch.q, batch.k, batch.v, **batch.lengths, scale=0.25, arithmetic=REFERENCE, **variant
        )
        assert not exceeds(out[0].transpose(1, 0, 2), state.out, bound.out).any()


def test_dense_module_states_its_requirements() -> None:
    """A reader finds the ids the formula realises in the module's first paragraph."""
    assert "KV-ATTN-001 softmax-average" in (dense.__doc__ or "")


def test_golden_figures_are_those_of_the_founding_page() -> None:
    """The figures asserted above are the ones kept with the project's data."""
    path = Path(__file__).parents[1] / "data" / "golden_attention.json"
    golden = json.loads(path.read_text())
    assert (
        softmax(np.array(golden["toy_attention"]["scores"]))[0].round(10).tolist()
        == golden["toy_attention"]["softmax"]
    )
    assert (
        no_cache_tokens_computed(golden["recompute"]["tokens"])
        == golden["recompute"]["no_cache_tokens_computed"]
    )
