"""Naive references of flash-linear-attention, where it is installed: prints inputs and answers as JSON.

    python tests/recurrent/ask_fla.py > tests/data/recurrent_fla.json

Only files without kernels are loaded, from their paths, since the package around them asks for a GPU; of the
file of KDA's gates, only the two functions without kernels. Attention with a decay for each head and no
correction is Mamba-2 with dt · x as its values and −1 as A.
"""

import ast
import importlib.metadata
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from asked import delta_inputs, drawn, record

TOKENS, CHUNK = 24, 8


def installed() -> Path:
    """Return where fla's operators lie."""
    spec = importlib.util.find_spec("fla")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("fla is not installed: pip install --no-deps fla-core==0.6.0 einops")
    return Path(spec.submodule_search_locations[0]) / "ops"


def naive(operator: str) -> ModuleType:
    """Return the module of an operator's naive functions, without its package."""
    path = installed() / operator / "naive.py"
    spec = importlib.util.spec_from_file_location(f"naive_{operator}", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"fla has no {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lifted(path: Path, *names: str) -> list[Any]:
    """Return functions of a file by name, without running the rest of it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
    space: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    exec(compile(tree, str(path), "exec"), space)  # fla's own code, as importing it would run it
    return [space[name] for name in names]


def batch(x: np.ndarray) -> torch.Tensor:
    """Return an array as a batch of one."""
    return torch.from_numpy(np.ascontiguousarray(x))[None]


def delta(rng: np.random.Generator, channels: bool) -> list[Any]:
    """Ask both forms of a delta rule; arguments by name, for their order differs."""
    operator, rule, verb = "gated_delta_rule", "gated_delta_rule", "gated_delta_rule"
    if channels:
        operator, rule, verb = "kda", "kda", "kimi_delta_attention"
    x = delta_inputs(rng, TOKENS, k_heads=2, v_heads=4 if channels else 2, channels=channels)
    module, answers = naive(operator), []
    for form, chunk in (("recurrent", None), ("chunk", CHUNK)):
        name = f"naive_{form}_{rule}"
        out, state = getattr(module, name)(
            **{key: batch(x[key]) for key in ("q", "k", "v", "g", "beta")},
            **({"chunk_size": chunk} if chunk else {}),
            scale=0.75,
            initial_state=torch.from_numpy(x["initial_state"]),
            output_final_state=True,
        )
        answers.append(record(verb, name, x, {"scale": 0.75}, out[0], state, chunk_size=chunk))
    return answers


def decayed_attention(rng: np.random.Generator) -> list[Any]:
    """Ask attention with a decay a head, without corrections; dt is a power of two, so dt · x is exact."""
    heads, width, values = 3, 6, 4
    x = {"x": drawn(rng, TOKENS, heads, values), "A": np.full(heads, -1, np.float32)}
    x["dt"] = rng.choice([0.0625, 0.25, 1.0, 2.0], (TOKENS, heads)).astype(np.float32)
    x |= {"B": drawn(rng, TOKENS, heads, width), "C": drawn(rng, TOKENS, heads, width)}
    x["initial_state"] = drawn(rng, heads, values, width)[None]
    module, answers = naive("simple_gla"), []
    for form, chunk in (("recurrent", None), ("chunk", CHUNK)):
        name = f"naive_{form}_simple_gla"
        out, state = getattr(module, name)(
            batch(x["C"]),
            batch(x["B"]),
            batch(x["dt"][..., None] * x["x"]),
            batch(-x["dt"]),
            **({"chunk_size": chunk} if chunk else {}),
            scale=1.0,
            initial_state=torch.from_numpy(x["initial_state"]).transpose(-1, -2).contiguous(),
            output_final_state=True,
        )
        answers.append(record("ssd_scan", name, x, {}, out[0], state.transpose(-1, -2), chunk_size=chunk))
    return answers


def gates(rng: np.random.Generator) -> list[Any]:
    """Ask both gates, with arguments from −40 to 40."""
    x = {"a": drawn(rng, TOKENS, 3, 5, least=-2560, most=2560), "A_log": drawn(rng, 3)}
    x["dt_bias"] = drawn(rng, 3, 5)
    free, bounded = lifted(installed() / "kda" / "gate.py", "naive_kda_gate", "naive_kda_lowerbound_gate")
    arguments = [torch.from_numpy(x[name]) for name in ("a", "A_log")]
    arguments.append(torch.from_numpy(x["dt_bias"]).ravel())
    return [
        record("decay_gate", free.__name__, x, {}, free(*arguments)),
        record(
            "decay_gate", bounded.__name__, x, {"lower_bound": -5.0}, bounded(*arguments, lower_bound=-5.0)
        ),
    ]


def main() -> None:
    """Ask everything."""
    rng = np.random.default_rng(21)
    answers = [*delta(rng, False), *delta(rng, True), *decayed_attention(rng), *gates(rng)]
    versions = {name: importlib.metadata.version(name) for name in ("fla-core", "torch")}
    print(json.dumps({"versions": versions, "answers": answers}))


if __name__ == "__main__":
    main()
