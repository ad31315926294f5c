"""Families of inputs on which rounding errors grow: what a bound on scans must survive."""

from typing import Any

import numpy as np

from kvref.arrays import Array

F = np.float32

#: Log decays per token by name: a scale, and how they are spread.
DECAYS = ("none", "slow", "plain", "strong", "mixed")
KEYS = ("unit", "parallel", "positive", "one-hot", "alternating")


def log_decays(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> Array:
    """Draw log decays: none at all, 1e-4, a tenth, five, or mostly none with a few very strong ones."""
    size = rng.exponential(size=shape)
    if name == "mixed":
        return (-np.where(rng.random(shape) < 0.05, 200 * size, 1e-3 * size)).astype(F)
    return (-size * {"none": 0.0, "slow": 1e-4, "plain": 0.1, "strong": 5.0}[name]).astype(F)


def keys(rng: np.random.Generator, name: str, tokens: int, width: int) -> Array:
    """Draw keys of length 1: in all directions, in nearly one, in one quadrant, on the axes, turning back."""
    k = rng.normal(size=(tokens, width))
    if name == "parallel":
        k = np.ones((1, width)) + 1e-3 * k
    if name == "positive":
        k = np.abs(k)
    if name == "one-hot":
        k = np.eye(width)[rng.integers(0, 3, tokens)]
    if name == "alternating":
        k = (-1.0) ** np.arange(tokens)[:, None] * (np.ones((1, width)) + 0.1 * k)
    return (k / np.linalg.norm(k, axis=1, keepdims=True)).astype(F)


def delta_inputs(
    seed: int,
    *,
    tokens: int,
    key: str = "unit",
    decay: str = "plain",
    full: bool = False,
    channels: tuple[int, int] = (16, 8),
    channel_decay: bool = False,
    heads: int = 1,
) -> dict[str, Any]:
    """Draw what a delta rule takes, for one request: `full` writes with beta 1 and values that cancel."""
    rng = np.random.default_rng(seed)
    width, depth = channels
    k = np.stack([keys(rng, key, tokens, width) for _ in range(heads)], axis=1)
    q = np.stack([keys(rng, "unit", tokens, width) for _ in range(heads)], axis=1)
    v = rng.normal(size=(tokens, heads, depth))
    if full:
        v = 100.0 * (-1.0) ** np.arange(tokens)[:, None, None] + v
    g = log_decays(rng, decay, (tokens, heads, width) if channel_decay else (tokens, heads))
    beta = np.ones((tokens, heads)) if full else rng.uniform(size=(tokens, heads))
    return {"q": q.astype(F), "k": k, "v": v.astype(F), "g": g, "beta": beta.astype(F)}
