"""Other people's scans: transformers, ONNX's reference and ONNX Runtime; and Mamba in exact fractions.

The answers of transformers are in a file, made by `ask_transformers.py`; they are float32, and so is ONNX.
"""

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recurrent.problems import SCANS

from kvref.arrays import Array
from kvref.recurrent.conv import causal_conv
from kvref.recurrent.gated_delta import gated_delta_rule
from kvref.recurrent.gates import decay_gate, softplus
from kvref.recurrent.kda import kimi_delta_attention
from kvref.recurrent.mamba import selective_scan

DATA = Path(__file__).parents[1] / "data" / "recurrent_transformers.json"
ANSWERS = json.loads(DATA.read_text(encoding="utf-8"))["answers"]
#: A float32 answer after some dozen tokens of some dozen products each, relative to the largest number.
FLOAT32 = 1000 * 2.0**-24


def assert_float32(found: Array, expected: Array) -> None:
    """Equal but for the roundings of a float32 implementation."""
    assert found.shape == expected.shape
    assert not (np.abs(found - expected) > FLOAT32 * max(1.0, float(np.abs(found).max()))).any()


@pytest.mark.parametrize("chunk_size", [None, 4])
@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer["source"])
def test_transformers(answer: dict[str, Any], chunk_size: int | None) -> None:
    """Its reference paths, recurrent and chunked, with initial states where they take one."""
    inputs = {name: np.array(x) for name, x in answer["inputs"].items()}
    num_tokens = len(answer["out"])
    scan = SCANS[answer["verb"]](
        **inputs, **answer["options"], query_start_loc=[0, num_tokens], chunk_size=chunk_size
    )
    assert_float32(scan.out, np.array(answer["out"]))
    assert_float32(scan.state[0], np.array(answer["state"]))


@pytest.mark.parametrize("runtime", ["onnx.reference", "onnxruntime"])
@pytest.mark.parametrize("channels", [False, True], ids=["gated_delta_rule", "kimi_delta_attention"])
def test_onnx_linear_attention(runtime: str, channels: bool) -> None:
    """LinearAttention-27 under the rule gated_delta; a decay a channel is KDA."""
    rng = np.random.default_rng(8)
    tokens, heads, keys, values = 9, 3, 4, 5
    q, k = (rng.standard_normal((tokens, heads, keys)).astype(np.float32) for _ in range(2))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    v = rng.standard_normal((tokens, heads, values)).astype(np.float32)
    g = -rng.random((tokens, heads, keys) if channels else (tokens, heads)).astype(np.float32)
    beta = rng.random((tokens, heads)).astype(np.float32)
    state = rng.standard_normal((1, heads, keys, values)).astype(np.float32)
    names = ("query", "key", "value", "past_state", "decay", "beta")
    arrays = [x.reshape(1, tokens, -1) for x in (q, k, v)] + [state, g.reshape(1, tokens, -1), beta[None]]
    attributes = {"q_num_heads": heads, "kv_num_heads": heads, "update_rule": "gated_delta", "scale": 0.75}
    out, final = run_onnx(runtime, "LinearAttention", dict(zip(names, arrays, strict=True)), attributes)
    scan = (kimi_delta_attention if channels else gated_delta_rule)(
        q, k, v, g, beta, query_start_loc=[0, tokens], initial_state=state, scale=0.75
    )
    assert_float32(scan.out, out.reshape(tokens, heads, values))
    assert_float32(scan.state, final)


@pytest.mark.parametrize("runtime", ["onnx.reference", "onnxruntime"])
@pytest.mark.parametrize("tokens", [1, 2, 9])
def test_onnx_convolution(runtime: str, tokens: int) -> None:
    """CausalConvWithState-27, also over fewer tokens than its state has columns."""
    rng = np.random.default_rng(9)
    x, weight = rng.standard_normal((tokens, 5)), rng.standard_normal((5, 4))
    bias, state = rng.standard_normal(5), rng.standard_normal((1, 5, 3))
    x, weight, bias, state = (a.astype(np.float32) for a in (x, weight, bias, state))
    inputs = {"input": x.T[None].copy(), "weight": weight[:, None], "bias": bias, "past_state": state}
    out, final = run_onnx(runtime, "CausalConvWithState", inputs, {"activation": "silu"})
    scan = causal_conv(
        x, weight, query_start_loc=[0, tokens], initial_state=state, bias=bias, activation="silu"
    )
    assert_float32(scan.out, out[0].T)
    assert scan.state.tolist() == final.tolist()


def run_onnx(
    runtime: str, operator: str, inputs: dict[str, Array], attributes: dict[str, Any]
) -> list[Array]:
    """Run one operator of opset 27."""
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    node = helper.make_node(operator, list(inputs), ["out", "state"], **attributes)
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info(name, kind, x.shape) for name, x in inputs.items()],
        [helper.make_tensor_value_info(name, kind, None) for name in ("out", "state")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 27)], ir_version=10)
    if runtime == "onnxruntime":
        ort = pytest.importorskip("onnxruntime")
        session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    else:
        session = pytest.importorskip("onnx.reference").ReferenceEvaluator(model)
    result: list[Array] = session.run(None, inputs)
    return result


def test_mamba_in_fractions() -> None:
    """The recurrence by rational numbers alone; only the decays are taken from floating point."""
    rng = np.random.default_rng(4)
    tokens, channels, width = 7, 2, 3
    x, z = rng.integers(-8, 9, (2, tokens, channels)) / 4
    dt, A = rng.integers(0, 9, (tokens, channels)) / 8, -rng.integers(0, 5, (channels, width)) / 2
    B, C = rng.integers(-8, 9, (2, tokens, width)) / 4
    D = rng.integers(-4, 5, channels) / 2
    scan = selective_scan(x, dt, A, B, C, query_start_loc=[0, tokens], D=D)
    for d in range(channels):
        h = [Fraction(0)] * width
        for t in range(tokens):
            decays = [Fraction(math.exp(dt[t, d] * a)) for a in A[d]]
            fed = Fraction(dt[t, d]) * Fraction(x[t, d])
            h = [a * s + fed * Fraction(b) for a, s, b in zip(decays, h, B[t], strict=True)]
            y = sum(s * Fraction(c) for s, c in zip(h, C[t], strict=True)) + Fraction(D[d]) * Fraction(
                x[t, d]
            )
            assert abs(float(y) - scan.out[t, d]) <= 100 * np.finfo(np.float64).eps * 10
        assert (
            np.abs(scan.state[0, d] - np.array([float(s) for s in h])).max()
            <= 1000 * np.finfo(np.float64).eps
        )
    gated = selective_scan(x, dt, A, B, C, query_start_loc=[0, tokens], D=D, z=z)
    assert np.abs(gated.out - scan.out * z / (1 + np.exp(-z))).max() <= 1000 * np.finfo(np.float64).eps


def test_decay_gates() -> None:
    """Both forms against the standard library, and the ends at which a careless form overflows."""
    for a, rate, bias in ((0.5, -1.0, 0.25), (-700.0, 2.0, 0.0), (800.0, 0.5, 1.0)):
        unbounded = decay_gate([[a]], [rate], [bias])[0, 0]
        plus = (
            a + bias + math.log1p(math.exp(-(a + bias))) if a + bias > 0 else math.log1p(math.exp(a + bias))
        )
        assert unbounded == pytest.approx(-math.exp(rate) * plus, rel=1e-14)
        bounded = decay_gate([[a]], [rate], [bias], lower_bound=-5.0)[0, 0]
        raw = math.exp(rate) * (a + bias)
        expected = -5.0 / (1 + math.exp(-raw)) if raw > 0 else -5.0 * math.exp(raw) / (1 + math.exp(raw))
        assert bounded == pytest.approx(expected, rel=1e-13, abs=1e-300)
    assert softplus(np.float64([-1000.0, 0.0, 1000.0])).tolist() == [0.0, math.log(2), 1000.0]
