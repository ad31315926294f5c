"""Inputs and answers of scans on their way through JSON, for the scripts that ask other implementations.

Numbers are multiples of 1/64, so that a file holds inputs exactly; answers are float32.
"""

from typing import Any

import numpy as np


def drawn(rng: np.random.Generator, *shape: int, least: int = -128, most: int = 128) -> np.ndarray:
    """Return multiples of 1/64 in float32, from −2 to 2 or within limits given in 64ths."""
    return (rng.integers(least, most + 1, shape) / 64).astype(np.float32)


def delta_inputs(
    rng: np.random.Generator, tokens: int, *, k_heads: int, v_heads: int, channels: bool
) -> dict[str, np.ndarray]:
    """Return what a delta rule takes, for one request with a state; keys are about 0.7 long."""
    decays = (tokens, v_heads, 6) if channels else (tokens, v_heads)
    x = {"q": drawn(rng, tokens, k_heads, 6), "k": drawn(rng, tokens, k_heads, 6, least=-32, most=32)}
    x |= {"v": drawn(rng, tokens, v_heads, 4), "g": drawn(rng, *decays, most=0)}
    x |= {"beta": drawn(rng, tokens, v_heads, least=0, most=64)}
    return x | {"initial_state": drawn(rng, v_heads, 6, 4)[None]}


def record(
    verb: str,
    source: str,
    arrays: dict[str, Any],
    options: dict[str, Any],
    *answer: Any,
    starts: list[int] | None = None,
    chunk_size: int | None = None,
) -> dict[str, Any]:
    """Return one call and its answer: out, and the states of all requests where the verb has any.

    `starts` is query_start_loc, one request if None; `chunk_size` is what the implementation took at once.
    """
    names = ("out", "state")[: len(answer)]
    return {
        "verb": verb,
        "source": source,
        "inputs": {name: x.tolist() for name, x in arrays.items()},
        "options": options,
        "query_start_loc": starts or [0, len(answer[0])],
        "chunk_size": chunk_size,
        **{name: x.tolist() for name, x in zip(names, answer, strict=True)},
    }
