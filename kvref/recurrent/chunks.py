"""What lets a scan take many tokens at once: sums of segments, a triangular solve, pairs of steps.

A recurrence is a chain, but the decay between two tokens of one chunk is a single number: the exponential of
the sum of the log decays from the later side of one to the other. With all of those in a matrix the chain
becomes matrix products. No function here exponentiates a positive number, and none divides by a decay.

Realises: KV-RNN-026 strong-decay-finite, KV-RNN-027 zero-log-decay-keeps.
For porters: differences of one running sum lose the small decays behind a large one; sum each segment.
Source: Mamba-2 (Dao and Gu 2024, section 6) for the segment sums; Yang et al. 2024 for the solve; Blelloch
1990.
"""

import numpy as np

from kvref.arrays import Array

#: Below this many rows the recursions here stop and do the rest directly.
FEW = 4


def segment_sums(g: Array) -> Array:
    """Return M[i, j] = g_{j+1} + … + g_i for i ≥ j, and −inf above the diagonal.

    Shapes: g [..., c, n] -> [..., c, c, n]. The diagonal is an empty sum, 0.
    """
    c = g.shape[-2]
    below, upper = np.tri(c, k=-1, dtype=bool), ~np.tri(c, dtype=bool)
    sums = np.cumsum(np.where(below[..., None], g[..., :, None, :], 0), axis=-3)
    sums[..., upper, :] = -np.inf
    return sums


def sums_from_start(g: Array) -> Array:
    """Return the decay of what came before the chunk, g_1 + … + g_i. Shapes: g [..., c, n], result alike."""
    return np.cumsum(g, axis=-2)


def sums_to_end(g: Array) -> Array:
    """Return the decay from each token to the end, g_{j+1} + … + g_c. Shapes: as `sums_from_start`."""
    later = np.zeros_like(g)
    later[..., :-1, :] = np.cumsum(g[..., :0:-1, :], axis=-2)[..., ::-1, :]
    return later


def solve_unit_lower(a: Array, b: Array) -> Array:
    """Return x with (I + a) x = b, where a is zero on and above its diagonal.

    Shapes: a [..., c, c], b [..., c, n]. Row by row x_i = b_i − Σ_{j<i} a_ij x_j; halves are solved one after
    the other, so that most of the work is a matrix product.
    """
    x = b.copy()
    _solve_in_place(a, x)
    return x


def _solve_in_place(a: Array, x: Array) -> None:
    c = a.shape[-1]
    if c <= FEW:
        for i in range(1, c):
            x[..., i : i + 1, :] -= a[..., i : i + 1, :i] @ x[..., :i, :]
        return
    half = c // 2
    _solve_in_place(a[..., :half, :half], x[..., :half, :])
    x[..., half:, :] -= a[..., half:, :half] @ x[..., :half, :]
    _solve_in_place(a[..., half:, half:], x[..., half:, :])


def running_steps(a: Array, b: Array) -> Array:
    """Return h_i = a_i · h_{i−1} + b_i for every i, with h before the first equal to 0.

    Shapes: a, b [c, ...] -> [c, ...]. Two steps in a row are one step, (a₂·a₁, a₂·b₁ + b₂): steps are taken
    in pairs, the pairs are run, and the steps between them are filled in.
    """
    c = a.shape[0]
    if c == 1:
        return b
    even = c // 2 * 2
    first, second = slice(0, even, 2), slice(1, even, 2)
    after_pairs = running_steps(a[second] * a[first], a[second] * b[first] + b[second])
    h = np.empty_like(b)
    h[second] = after_pairs
    h[0] = b[0]
    h[2::2] = a[2::2] * h[1:-1:2] + b[2::2]
    return h
