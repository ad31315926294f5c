"""What single steps of a delta rule cost under declared facts: sums over channels, operands, decays.

For porters: read `spec/recurrent.md` on bounds first.
Source: derived in `spec/recurrent.md`, on bounds.
"""

from dataclasses import dataclass

import numpy as np

from kvref.arrays import Array, as_array, dtype_name, dtype_of, narrow
from kvref.recurrent.arithmetic import TENSORFLOAT32, ScanArithmetic
from kvref.recurrent.bounds.elementwise import roundoff, tiny
from kvref.roundings import gamma


@dataclass(frozen=True)
class Costs:
    """Relative errors, each of at most so much: u a single operation, p an operand, d a sum over channels.

    `key` and `query` are what is off about k and q before they are used: rounding them to the format of
    products where they are not of that format, and normalising them in the kernel. `eta` is what a number too
    small for its format may lose, there or among operands.
    """

    u: float
    p: float
    d: float
    key: float
    query: float
    exp: float
    """Roundings of an exponential and of the product with it."""
    eta: float
    depth: float
    """Most additions in any sum."""
    channel_decay: bool
    running_sums: bool

    @staticmethod
    def of(facts: ScanArithmetic, q: Array, k: Array, *, qk_l2norm: bool, channel_decay: bool) -> "Costs":
        """Count roundings for some queries and keys as they were given."""
        u, p, channels = roundoff(facts), facts.extra("products"), k.shape[-1]
        depth = channels if facts.depth is None else min(facts.depth, channels)
        own = 0.0
        if qk_l2norm:
            own = float(gamma(depth + 2, u)) / 2 + (facts.exp_error + 2) * u
        operands = [own + p * (qk_l2norm or not _fits(x, facts.products)) for x in (q, k)]
        return Costs(
            u=u,
            p=p,
            d=float(gamma(depth, u)),
            query=operands[0]
            + (p and facts.format("products").roundoff),  # scale · q is no longer of its format
            key=operands[1],
            exp=facts.exp_error + 1,
            eta=tiny(facts) + (facts.format("products").underflow if p else 0.0),
            depth=np.inf if facts.depth is None else facts.depth,
            channel_decay=channel_decay,
            running_sums=facts.running_sums,
        )

    def sum(self, terms: Array | float) -> Array:
        """Return the relative error of sums of so many terms, each against the sum of sizes."""
        return gamma(np.minimum(terms, self.depth), self.u)

    def decay_error(self, roundings: Array | float, size: Array) -> Array:
        """Return the relative error of exp(−size) whose argument was rounded so many times."""
        twice = 2 if self.channel_decay else 1  # a decay in a sum over channels may be split in two
        result: Array = np.expm1(gamma(roundings + 2, self.u) * size + self.u * twice * self.exp)
        return result


def relative(*parts: float | Array) -> Array:
    """Return what errors in a row come to: at most s / (1 − s) for their sum s, infinity from s = 1 on."""
    return gamma(1, sum(parts))  # type: ignore[arg-type]  # a sum of floats is a float


def _fits(x: Array, dtype: str) -> bool:
    """Say whether numbers are of a format already."""
    given = as_array("x", x)
    if dtype_name(given) == dtype:
        return True
    wide = given.astype(np.float64)
    if dtype == TENSORFLOAT32:
        significand = np.frexp(wide)[0] * 2.0**11
        return bool((significand == np.rint(significand)).all())
    return bool((narrow(wide, dtype_of(dtype)).astype(np.float64) == wide).all())
