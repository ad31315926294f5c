"""What is exact about a few tokens of a delta rule: the map from the state before them to everything after.

Over a block of c tokens the state and the outputs are affine in the state before the block and in whatever is
added to the values that are written. Those maps follow from keys, decays and write strengths alone:

    error after the block  =  Φ · (error before) + Ψ · ρ
    error of output i      =  Y_i · (error before) + R_i · ρ

where ρ_j is what the write of token j is off by. Their norms say what an error costs, cancellation included:
a delta rule forgets errors by overwriting them, and sums of absolute values would not see that.

For porters: read `spec/recurrent.md` on bounds first; the letters are those of that section.
Source: derived in `spec/recurrent.md`, on bounds; Yang et al. 2024, section 3.3, for A and T.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kvref.arrays import Array
from kvref.recurrent.chunks import solve_unit_lower, sums_from_start, sums_to_end
from kvref.recurrent.delta import Products

#: Squarings of a Gram matrix in `spectral_bound`: the bound is within 64^(1/64), 7 %, of the norm.
_SQUARINGS = 5


@dataclass(frozen=True)
class Block:
    """A block of tokens of one request, all heads: what they bring, and the exact maps.

    Shapes: q (scaled), k [H, c, K], v, u [H, c, V], g, G, to_end [H, c, 1 or K], beta [H, c, 1], S [H, K, V]
    before the block; A, T, Q, R [H, c, c], W, k_end, Y [H, c, K], phi [H, K, K], psi [H, K, c].
    """

    q: Array
    k: Array
    v: Array
    g: Array
    beta: Array
    S: Array
    G: Array
    """Sums of log decays from the start of the block."""
    to_end: Array
    """Sums of log decays from each token to the end of the block."""
    A: Array
    T: Array
    W: Array
    Q: Array
    u: Array
    phi: Array
    psi: Array
    k_end: Array
    R: Array
    Y: Array
    products: Products

    @staticmethod
    def of(q: Array, k: Array, v: Array, g: Array, beta: Array, S: Array, products: Products) -> "Block":
        """Form the maps in float64, from sums of segments and one triangular solve."""
        G, to_end = sums_from_start(g), sums_to_end(g)
        from_start = np.exp(G)
        of_keys, Q = products(np.stack([k, q]), k, g)
        A = beta * np.tril(of_keys, -1)
        k_start, k_end = k * from_start, k * np.exp(to_end)
        T = solve_unit_lower(A, np.broadcast_to(np.eye(A.shape[-1]), A.shape))
        W = T @ (beta * k_start)
        k_end_t = np.swapaxes(k_end, -1, -2)
        phi = -(k_end_t @ W)
        diagonal = np.arange(k.shape[-1])
        phi[:, diagonal, diagonal] += from_start[:, -1, :]
        u = T @ (beta * v) - W @ S
        Y = q * from_start - Q @ W
        return Block(
            q, k, v, g, beta, S, G, to_end, A, T, W, Q, u, phi, k_end_t @ T, k_end, Q @ T, Y, products
        )

    @property
    def length(self) -> int:
        """Return the number of tokens."""
        return int(self.k.shape[1])

    @cached_property
    def spectral(self) -> tuple[Array, Array, Array]:
        """Return bounds on the spectral norms of phi, psi and the decayed keys, each [H]."""
        return spectral_bound(self.phi), spectral_bound(self.psi), spectral_bound(self.k_end)

    def states(self) -> Array:
        """Return the state before the block and after each of its tokens, [c + 1, H, K, V]."""
        states, decay = np.empty((self.length + 1, *self.S.shape)), np.exp(self.g)
        states[0] = self.S
        written = np.empty_like(self.S)
        for t in range(self.length):
            np.multiply(states[t], decay[:, t, :, None], out=states[t + 1])
            np.multiply(self.k[:, t, :, None], self.u[:, t, None, :], out=written)
            states[t + 1] += written
        return states

    def state_error(
        self, before: Array, rho: Array, own: Array, values: Array | None = None
    ) -> tuple[Array, Array]:
        """Return the error after the block, as a norm for each column [H, V] and for each number [H, K, V].

        `before` [H, V] is the norm of the error before the block, `rho` [H, c, V] what the writes are off by,
        `values` [H, c, V] what the written values are off by themselves, `own` [H, K, V] or [H, 1, V] what is
        added to the state besides: each number's, or the norm of a column's.
        """
        of_phi, of_psi, of_keys = self.spectral
        moved, columns = _through(self.psi, of_psi, rho)
        if values is not None:
            parts = _through(np.swapaxes(self.k_end, -1, -2), of_keys, values)
            moved, columns = moved + parts[0], columns + parts[1]
        by_rows = norms(self.phi, -1)[..., None] * before[:, None, :] + moved + own
        return of_phi[:, None] * before + columns + norms(own, -2), by_rows

    def out_error(self, before: Array, rho: Array, values: Array | None = None) -> Array:
        """Return the error of each output because of those errors, [H, c, V]."""
        result: Array = norms(self.Y, -1)[..., None] * before[:, None, :] + np.abs(self.R) @ rho
        return result if values is None else result + np.abs(self.Q) @ values


def _through(m: Array, norm: Array, x: Array) -> tuple[Array, Array]:
    """Return how far m moves what is off by x: each number [H, n, V], and the norm of each column [H, V]."""
    moved = np.abs(m) @ x
    return moved, np.minimum(norms(moved, -2), norm[:, None] * norms(x, -2))


def norms(x: Array, axis: int) -> Array:
    """Return Euclidean norms along an axis."""
    # einsum squares and adds in one pass
    moved = np.moveaxis(x, axis, -1)
    result: Array = np.sqrt(np.einsum("...i,...i->...", moved, moved))
    return result


def spectral_bound(m: Array) -> Array:
    """Bound the largest singular value of each matrix from above. Shapes: m [..., n, p] -> [...].

    ‖m‖ ≤ ‖(m mᵀ)^(2^p)‖_F^(1 / 2^(p+1)); what is squared is scaled first, so that nothing is lost.
    """
    largest = np.abs(m).max(axis=(-1, -2), initial=0.0)
    short = m if m.shape[-2] <= m.shape[-1] else np.swapaxes(m, -1, -2)
    short = short / np.where(largest > 0, largest, 1.0)[..., None, None]
    gram = short @ np.swapaxes(short, -1, -2)
    log_norm, share = np.zeros(gram.shape[:-2]), 0.5
    for _ in range(_SQUARINGS):
        size = np.sqrt(np.square(gram).sum(axis=(-1, -2)))
        safe = np.where(size > 0, size, 1.0)
        log_norm += share * np.log(safe)
        gram = gram / safe[..., None, None]
        gram = gram @ gram
        share /= 2
    size = np.sqrt(np.square(gram).sum(axis=(-1, -2)))
    safe = np.where(size > 0, size, 1.0)
    result: Array = np.where(largest == 0, 0.0, largest * np.exp(log_norm + share * np.log(safe)))
    return result
