"""How far from the exact rotation a kernel may be: the bound on `apply_rope` alone.

Take one pair (a, b) at position p, with angle φ = p·θ, and let u be the roundoff of float32, in which every
engine keeps its angles. θ = base^(−e) with e = 2i / rotary_dim, so

- the exponent, ln base and their product are rounded, which moves ln θ by 3u · e ln base; the power and a
  reciprocal add the error of an exponential and 2u more;
- φ is one product: |Δφ| <= φ (relative error of θ + u);
- sine and cosine are as good as the declared exponential, so each is off by δ = min(|Δφ|, 2) + exp_error · u;
- tables, products and the sum may all be kept in the output format: three roundings of each product.

So a component cos φ · a − sin φ · b, and likewise the other, is off by at most

    E = (1 + γ₃) δ (|a| + |b|) + γ₃ (|cos φ · a| + |sin φ · b|) + underflow.

YaRN replaces θ by θ' = (1 − r) θ + r θ/s: 3u · θ' more for the division, the products and the sum, and
where 0 < r < 1 another 8u · θ for the share r itself and for 1 − r. Its magnitude m multiplies everything,
with one more rounding of each product.

A channel that does not turn has the bound 0: it must come back as it was.

For porters: needed only where a kernel offers the rotation as a function of its own.
Source: Higham 2002, sections 2.1 and 3.1.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from kvref.arrays import Array, as_indices, widen
from kvref.attention.arithmetic import Arithmetic, Format, gamma, resolved
from kvref.attention.rope import Yarn, apply_rope, channel_pairs, inverse_frequencies

#: Roundings of a product on its way into the result: the table's, its own, the sum's.
_ROUNDINGS = 3
#: Roundings of YaRN's ramp and of the interpolation along it, as a share of the plain frequency.
_IN_RAMP = 8


def rope_bound(
    x: ArrayLike,
    *,
    positions: ArrayLike,
    base: float,
    rotary_dim: int,
    style: str = "half",
    rotated_part: str = "first",
    yarn: Yarn | None = None,
    arithmetic: Arithmetic,
) -> tuple[Array, Array]:
    """Return the exact rotation of x and the bound around it, both float64 of the shape of x.

    Shapes and errors: as `apply_rope`; "input" in `arithmetic` is the dtype of `x`. The reference's own
    roundings, 2^−29 of a kernel's in the angles, are covered by the two float32 roundings allowed to θ beyond
    its power.
    """
    facts = resolved(arithmetic, "x", x)
    named = {"base": base, "rotary_dim": rotary_dim, "style": style, "rotated_part": rotated_part}
    exact = apply_rope(x, positions=positions, yarn=yarn, **named)  # type: ignore[arg-type]  # by name
    x = widen("x", x)
    at = as_indices("positions", positions, [x.shape[0]])
    u, output = Format.of("float32").roundoff, facts.format("output")

    exponents = np.arange(0, rotary_dim, 2) / max(rotary_dim, 1)
    in_theta = u * (3 * exponents * math.log(base) + facts.exp_error + 2)
    theta = inverse_frequencies(base, rotary_dim, yarn)
    off_theta, magnitude, roundings = theta * (in_theta + u), 1.0, _ROUNDINGS
    if yarn is not None:
        between = np.abs(yarn.interpolated(base, rotary_dim) - 0.5) < 0.5
        plain = inverse_frequencies(base, rotary_dim)
        off_theta = off_theta + u * (3 * theta + _IN_RAMP * between * plain)
        magnitude, roundings = yarn.magnitude, _ROUNDINGS + 1
    angles = at[:, None, None] * theta  # [T, 1, R/2]
    off = np.minimum(np.abs(at)[:, None, None] * off_theta, 2.0) + facts.exp_error * u
    off, cos, sin = magnitude * off, magnitude * np.abs(np.cos(angles)), magnitude * np.abs(np.sin(angles))

    first, second = channel_pairs(x.shape[2], rotary_dim, style, rotated_part)
    a, b = np.abs(x[..., first]), np.abs(x[..., second])
    g = gamma(roundings, output.roundoff)
    bound = np.zeros_like(x)
    with np.errstate(over="ignore", invalid="ignore"):
        turned = (1 + g) * off * (a + b) + output.underflow * (4 + 2 * (a + b))
        bound[..., first] = turned + g * (cos * a + sin * b)
        bound[..., second] = turned + g * (sin * a + cos * b)
    return exact, np.where(np.isnan(bound), np.inf, bound)
