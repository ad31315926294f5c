"""Scans of transformers, in an interpreter that has it: prints inputs and what came out as JSON.

    python tests/recurrent/ask_transformers.py > tests/data/recurrent_transformers.json

Functions alone are asked: the reference paths that run without a GPU. Scans take one request, updates three.
"""

import importlib.metadata
import json
from typing import Any

import numpy as np
import torch
from asked import delta_inputs, drawn, record
from transformers.models.kimi_linear.modeling_kimi_linear import (
    chunk_kimi_delta_attention,
    recurrent_kimi_delta_attention,
)
from transformers.models.mamba.modeling_mamba import mamba_selective_scan, mamba_selective_state_update
from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan, mamba2_selective_state_update
from transformers.models.qwen3_next.modeling_qwen3_next import (
    causal_conv1d_update,
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)

TOKENS, CHUNK = 11, 4
EACH_ONE = [0, 1, 2, 3]


def batch(x: np.ndarray) -> torch.Tensor:
    """Return an array as a batch of one."""
    return torch.from_numpy(np.ascontiguousarray(x))[None]


def delta(rng: np.random.Generator, channels: bool) -> list[Any]:
    """Ask both forms of a delta rule; Qwen3-Next's takes fewer key heads than value heads."""
    x = delta_inputs(rng, TOKENS, k_heads=2, v_heads=2 if channels else 4, channels=channels)
    name = "kimi_delta_attention" if channels else "gated_delta_rule"
    asked = (
        (recurrent_kimi_delta_attention, chunk_kimi_delta_attention)
        if channels
        else (torch_recurrent_gated_delta_rule, torch_chunk_gated_delta_rule)
    )
    answers = []
    for function, chunk in zip(asked, (None, CHUNK), strict=True):
        out, state = function(
            *(batch(x[key]) for key in ("q", "k", "v")),
            g=batch(x["g"]),
            beta=batch(x["beta"]),
            initial_state=torch.from_numpy(x["initial_state"]),
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
            **({"chunk_size": chunk} if chunk else {}),
        )
        answers.append(
            record(name, function.__name__, x, {"qk_l2norm": True}, out[0], state, chunk_size=chunk)
        )
    return answers


def mamba1(rng: np.random.Generator) -> list[Any]:
    """Ask the selective scan, which takes no initial state, and its update."""
    x = {"x": drawn(rng, TOKENS, 5), "dt": drawn(rng, TOKENS, 5), "A": drawn(rng, 5, 3, most=0)}
    x |= {"B": drawn(rng, TOKENS, 3), "C": drawn(rng, TOKENS, 3), "D": drawn(rng, 5)}
    x |= {"z": drawn(rng, TOKENS, 5), "dt_bias": drawn(rng, 5)}
    t = {key: torch.from_numpy(value) for key, value in x.items()}
    out, state = mamba_selective_scan(
        t["x"].T[None], t["dt"].T[None], t["A"], t["B"].T[None], t["C"].T[None], t["D"], t["z"].T[None],
        t["dt_bias"], True, True,
    )  # fmt: skip
    options = {"dt_softplus": True}
    scan = record("selective_scan", "mamba_selective_scan", x, options, out[0].T, state)
    y = x | {name: x[name][:3] for name in ("x", "dt", "B", "C", "z")}
    y["initial_state"] = drawn(rng, 3, 5, 3)
    return [scan, update("selective_scan", mamba_selective_state_update, y, options)]


def mamba2(rng: np.random.Generator) -> list[Any]:
    """Ask the chunked scan of Mamba-2, and its update, which knows no limit of dt."""
    x = {"x": drawn(rng, TOKENS, 4, 6), "dt": drawn(rng, TOKENS, 4), "A": drawn(rng, 4, most=0)}
    x |= {"B": drawn(rng, TOKENS, 2, 3), "C": drawn(rng, TOKENS, 2, 3)}
    x |= {"D": drawn(rng, 4), "dt_bias": drawn(rng, 4), "initial_state": drawn(rng, 4, 6, 3)[None]}
    options = {"dt_softplus": True, "dt_limit": [0.25, 1.5]}
    t = {key: torch.from_numpy(value) for key, value in x.items()}
    out, state = mamba2_chunk_scan(
        t["x"][None], t["dt"][None], t["A"], t["B"][None], t["C"][None], CHUNK, D=t["D"],
        dt_bias=t["dt_bias"], initial_states=t["initial_state"], dt_softplus=True, dt_limit=(0.25, 1.5),
        return_final_states=True,
    )  # fmt: skip
    scan = record("ssd_scan", "mamba2_chunk_scan", x, options, out[0], state, chunk_size=CHUNK)
    y = x | {name: x[name][:3] for name in ("x", "dt", "B", "C")}
    y["initial_state"] = drawn(rng, 3, 4, 6, 3)
    wide = {name: np.broadcast_to(y[name][:, None, None], (4, 6, 3)) for name in ("A",)}
    wide |= {name: np.broadcast_to(y[name][:, None], (4, 6)) for name in ("D", "dt_bias")}
    wide["dt"] = np.broadcast_to(y["dt"][:, :, None], (3, 4, 6))
    return [scan, update("ssd_scan", mamba2_selective_state_update, y, {"dt_softplus": True}, wide)]


def update(
    verb: str,
    function: Any,
    x: dict[str, np.ndarray],
    options: dict[str, Any],
    as_asked: dict[str, np.ndarray] | None = None,
) -> Any:
    """Ask an update, which writes the state in place; `as_asked` holds inputs in the shapes it takes."""
    t = {name: torch.from_numpy(value.copy()) for name, value in {**x, **(as_asked or {})}.items()}
    state = t.pop("initial_state")
    out = function(state, t.pop("x"), t.pop("dt"), t.pop("A"), t.pop("B"), t.pop("C"), **t, **options)
    return record(verb, function.__name__, x, options, out, state, starts=EACH_ONE)


def conv(rng: np.random.Generator, tokens: int) -> Any:
    """Ask Qwen3-Next's convolution behind a window, also of fewer tokens than its state has columns."""
    x = {"x": drawn(rng, tokens, 5), "weight": drawn(rng, 5, 4), "bias": drawn(rng, 5)}
    x["initial_state"] = drawn(rng, 1, 5, 3)
    state = torch.from_numpy(x["initial_state"].copy())
    weight, bias = torch.from_numpy(x["weight"]), torch.from_numpy(x["bias"])
    out = causal_conv1d_update(batch(x["x"].T), state, weight, bias, "silu")
    name = f"causal_conv1d_update of {tokens}"
    return record("causal_conv", name, x, {"activation": "silu"}, out[0].T, state)


def main() -> None:
    """Ask everything."""
    rng = np.random.default_rng(20)
    answers = [*delta(rng, False), *delta(rng, True), *mamba1(rng), *mamba2(rng)]
    answers += [conv(rng, tokens) for tokens in (1, 2, 9)]
    versions = {name: importlib.metadata.version(name) for name in ("transformers", "torch")}
    print(json.dumps({"versions": versions, "answers": answers}))


if __name__ == "__main__":
    main()
