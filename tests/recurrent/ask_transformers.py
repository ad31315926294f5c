"""Scans of transformers, in an interpreter that has it: prints inputs and what came out as JSON.

    python tests/recurrent/ask_transformers.py > tests/data/recurrent_transformers.json

Functions alone are asked, on one request each: the reference paths that run without a GPU. Inputs are small
multiples of 1/64, so that JSON holds them exactly; answers are float32.
"""

import importlib.metadata
import json
from typing import Any

import numpy as np
import torch
from transformers.models.kimi_linear.modeling_kimi_linear import (
    chunk_kimi_delta_attention,
    recurrent_kimi_delta_attention,
)
from transformers.models.mamba.modeling_mamba import mamba_selective_scan
from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan
from transformers.models.qwen3_next.modeling_qwen3_next import (
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)

TOKENS = 11


def drawn(rng: np.random.Generator, *shape: int, least: int = -128, most: int = 128) -> np.ndarray:
    """Return multiples of 1/64."""
    return (rng.integers(least, most + 1, shape) / 64).astype(np.float32)


def batch(x: np.ndarray) -> torch.Tensor:
    """Return an array as a batch of one."""
    return torch.from_numpy(np.ascontiguousarray(x))[None]


def record(
    name: str, source: str, arrays: dict[str, np.ndarray], options: dict[str, Any], out: Any, state: Any
) -> Any:
    """Return one call and its answer."""
    inputs = {key: x.tolist() for key, x in arrays.items()}
    answer = {"out": out[0].tolist(), "state": state[0].tolist()}
    return {"verb": name, "source": source, "inputs": inputs, "options": options, **answer}


def delta(rng: np.random.Generator, channels: bool) -> list[Any]:
    """Ask both forms of a delta rule."""
    decays = (TOKENS, 2, 6) if channels else (TOKENS, 2)
    x = {"q": drawn(rng, TOKENS, 2, 6), "k": drawn(rng, TOKENS, 2, 6), "v": drawn(rng, TOKENS, 2, 4)}
    x |= {"g": drawn(rng, *decays, most=0), "beta": drawn(rng, TOKENS, 2, least=0, most=64)}
    x["initial_state"] = drawn(rng, 2, 6, 4)[None]
    name = "kimi_delta_attention" if channels else "gated_delta_rule"
    asked = (
        (recurrent_kimi_delta_attention, chunk_kimi_delta_attention)
        if channels
        else (torch_recurrent_gated_delta_rule, torch_chunk_gated_delta_rule)
    )
    answers = []
    for function in asked:
        out, state = function(
            *(batch(x[key]) for key in ("q", "k", "v")),
            g=batch(x["g"]),
            beta=batch(x["beta"]),
            initial_state=torch.from_numpy(x["initial_state"]),
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )
        answers.append(record(name, function.__name__, x, {"qk_l2norm": True}, out, state))
    return answers


def mamba1(rng: np.random.Generator) -> Any:
    """Ask the selective scan, which takes no initial state."""
    x = {"x": drawn(rng, TOKENS, 5), "dt": drawn(rng, TOKENS, 5), "A": drawn(rng, 5, 3, most=0)}
    x |= {"B": drawn(rng, TOKENS, 3), "C": drawn(rng, TOKENS, 3), "D": drawn(rng, 5)}
    x |= {"z": drawn(rng, TOKENS, 5), "dt_bias": drawn(rng, 5)}
    t = {key: torch.from_numpy(value) for key, value in x.items()}
    out, state = mamba_selective_scan(
        t["x"].T[None], t["dt"].T[None], t["A"], t["B"].T[None], t["C"].T[None], t["D"], t["z"].T[None],
        t["dt_bias"], True, True,
    )  # fmt: skip
    return record(
        "selective_scan", "mamba_selective_scan", x, {"dt_softplus": True}, out.transpose(1, 2), state
    )


def mamba2(rng: np.random.Generator) -> list[Any]:
    """Ask the chunked scan of Mamba-2."""
    x = {"x": drawn(rng, TOKENS, 4, 6), "dt": drawn(rng, TOKENS, 4), "A": drawn(rng, 4, most=0)}
    x |= {
        "B": drawn(rng, TOKENS, 2, 3),
        "C": drawn(rng, TOKENS, 2, 3),
        "D": drawn(rng, 4),
        "dt_bias": drawn(rng, 4),
    }
    x["initial_state"] = drawn(rng, 4, 6, 3)[None]
    options = {"dt_softplus": True, "dt_limit": [0.25, 1.5]}
    t = {key: torch.from_numpy(value) for key, value in x.items()}
    out, state = mamba2_chunk_scan(
        t["x"][None], t["dt"][None], t["A"], t["B"][None], t["C"][None], 4, D=t["D"], dt_bias=t["dt_bias"],
        initial_states=t["initial_state"], dt_softplus=True, dt_limit=(0.25, 1.5), return_final_states=True,
    )  # fmt: skip
    return [record("ssd_scan", "mamba2_chunk_scan", x, options, out, state)]


def main() -> None:
    """Ask everything."""
    rng = np.random.default_rng(20)
    answers = [*delta(rng, False), *delta(rng, True), mamba1(rng), *mamba2(rng)]
    versions = {name: importlib.metadata.version(name) for name in ("transformers", "torch")}
    print(json.dumps({"versions": versions, "answers": answers}))


if __name__ == "__main__":
    main()
