"""The bounds on both Mambas: recurrences whose state is a sum of what was written, times decays.

    h_t = a_t · h_{t−1} + w_t        a_t = exp(g_t), g_t ≤ 0

So h_t = Σ_j a_t ⋯ a_{j+1} w_j, and an evaluation in whatever chunks computes each term with an error relative
to that term. A term pays once when it is written, and something at each token it lives through; therefore one
running sum of sizes M and one of errors E cover every order of evaluation at once:

    M_t = a_t M_{t−1} + |w_t|        E_t = a_t e^θ_t E_{t−1} + a_t (e^θ_t − 1) M_{t−1} + (e^ω_t − 1) |w_t| + …

For porters: read `spec/recurrent.md` on bounds first; θ and ω are what is derived there.
Source: derived in `spec/recurrent.md`, on bounds; Higham 2002, chapter 4, on sums in any order.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kvref.arrays import Array, widen
from kvref.recurrent.arithmetic import ScanArithmetic, resolved_scan
from kvref.recurrent.bounds.elementwise import (
    finished,
    narrowed,
    product_error,
    roundoff,
    silu_error,
    step_size_error,
    tiny,
    with_reference,
)
from kvref.recurrent.gates import silu, step_sizes
from kvref.recurrent.mamba import selective_scan
from kvref.recurrent.scan import Requests, Scan
from kvref.recurrent.ssd import ssd_scan
from kvref.roundings import gamma


def selective_bound(
    x: ArrayLike,
    dt: ArrayLike,
    A: ArrayLike,
    B: ArrayLike,
    C: ArrayLike,
    *,
    query_start_loc: ArrayLike,
    initial_state: ArrayLike | None = None,
    D: ArrayLike | None = None,
    z: ArrayLike | None = None,
    dt_bias: ArrayLike | None = None,
    dt_softplus: bool = False,
    arithmetic: ScanArithmetic,
) -> tuple[Scan, Scan]:
    """Return the exact answer of `selective_scan` and the bound around it.

    Shapes and errors: as `selective_scan`; "input" in `arithmetic` is the dtype of `x`.
    """
    facts = resolved_scan(arithmetic, "x", x)
    exact = selective_scan(
        x, dt, A, B, C,
        query_start_loc=query_start_loc, initial_state=initial_state,
        D=D, z=z, dt_bias=dt_bias, dt_softplus=dt_softplus,
    )  # fmt: skip
    x, A, B, C = (widen(name, part) for name, part in (("x", x), ("A", A), ("B", B), ("C", C)))
    with np.errstate(all="ignore"):
        dt, off_dt = _steps(dt, dt_bias, dt_softplus, (0.0, np.inf), facts)
        terms = _Terms(
            g=lambda at: dt[at][..., None] * A,
            off_g=lambda at: off_dt[at][..., None] * -A,
            written=lambda at: (dt[at] * x[at])[..., None] * B[at][..., None, :],
            off_written=lambda at: (off_dt[at] * np.abs(x[at]))[..., None] * np.abs(B[at])[..., None, :],
            read=lambda h, at: (h @ np.abs(C[at])[..., None])[..., 0],
            reads=lambda h, at: (h @ C[at][..., None])[..., 0],
        )
        first = None if initial_state is None else widen("initial_state", initial_state)
        return _bound(exact, terms, first, x, D, z, query_start_loc, facts)


def ssd_bound(
    x: ArrayLike,
    dt: ArrayLike,
    A: ArrayLike,
    B: ArrayLike,
    C: ArrayLike,
    *,
    query_start_loc: ArrayLike,
    initial_state: ArrayLike | None = None,
    D: ArrayLike | None = None,
    z: ArrayLike | None = None,
    dt_bias: ArrayLike | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, np.inf),
    arithmetic: ScanArithmetic,
) -> tuple[Scan, Scan]:
    """Return the exact answer of `ssd_scan` and the bound around it.

    Shapes and errors: as `ssd_scan`; "input" in `arithmetic` is the dtype of `x`.
    """
    facts = resolved_scan(arithmetic, "x", x)
    exact = ssd_scan(
        x, dt, A, B, C,
        query_start_loc=query_start_loc, initial_state=initial_state,
        D=D, z=z, dt_bias=dt_bias, dt_softplus=dt_softplus, dt_limit=dt_limit,
    )  # fmt: skip
    x, A, B, C = (widen(name, part) for name, part in (("x", x), ("A", A), ("B", B), ("C", C)))
    group = x.shape[1] // B.shape[1]
    B, C = np.repeat(B, group, axis=1), np.repeat(C, group, axis=1)  # [T, H, N]
    with np.errstate(all="ignore"):
        dt, off_dt = _steps(dt, dt_bias, dt_softplus, dt_limit, facts)
        terms = _Terms(
            g=lambda at: (dt[at] * A)[..., None, None],
            off_g=lambda at: (off_dt[at] * -A)[..., None, None],
            written=lambda at: (dt[at][..., None] * x[at])[..., None] * B[at][..., None, :],
            off_written=lambda at: (
                (off_dt[at][..., None] * np.abs(x[at]))[..., None] * np.abs(B[at])[..., None, :]
            ),
            read=lambda h, at: (h @ np.abs(C[at])[..., None])[..., 0],
            reads=lambda h, at: (h @ C[at][..., None])[..., 0],
        )
        first = None if initial_state is None else widen("initial_state", initial_state)
        skip = None if D is None else widen("D", D)[:, None]
        return _bound(exact, terms, first, x, skip, z, query_start_loc, facts)


@dataclass(frozen=True)
class _Terms:
    """What tokens bring, by their places: functions, because over all tokens at once they may not fit."""

    g: Any
    """The log decay."""
    off_g: Any
    """How far it may be off before it is summed."""
    written: Any
    """What is added to the state."""
    off_written: Any
    """How far that may be off because of dt."""
    read: Any
    """Σ |C| h of sizes."""
    reads: Any
    """Σ C h."""


@dataclass(frozen=True)
class _Costs:
    """Roundings of a term: where it is written, at each token it lives through, and where it is read."""

    u: float
    in_decay: float
    """Relative error of the log decay of a token: its own roundings, and those of sums."""
    step: float
    """Roundings at each token."""
    write: float
    write_window: float
    """Relative error of the log decays of the chunk up to the token."""
    write_products: float
    read: Array
    window: int

    @staticmethod
    def of(facts: ScanArithmetic, channels: int) -> "_Costs":
        """Count them for a state that is read over so many channels."""
        u, chunk = roundoff(facts), facts.chunk_size or 1
        sums = max(chunk, 2 * int(np.ceil(np.log2(chunk)))) + 1 if chunk > 1 else 0
        products = gamma(3, facts.extra("products"))
        depth = channels if facts.depth is None else min(facts.depth, channels)
        most = chunk if facts.depth is None else min(facts.depth, chunk)
        read = gamma(depth + most + 4, u)
        return _Costs(
            u=u,
            in_decay=float(gamma(3 + sums, u)),
            step=facts.exp_error + (2 if chunk == 1 else 3),
            write=facts.exp_error + most + 5,
            write_window=float(gamma(sums, u)) if facts.running_sums else 0.0,
            write_products=float(products),
            read=read + products * (1 + read),
            window=chunk,
        )


def _steps(
    dt: ArrayLike,
    dt_bias: ArrayLike | None,
    dt_softplus: bool,
    dt_limit: tuple[float, float],
    facts: ScanArithmetic,
) -> tuple[Array, Array]:
    """Return the step sizes and how far they may be off."""
    wide = widen("dt", dt)
    bias = None if dt_bias is None else widen("dt_bias", dt_bias)
    off = step_size_error(wide, bias, dt_softplus, dt_limit, facts)
    return step_sizes(wide, bias, dt_softplus, dt_limit), off


def _bound(
    exact: Scan,
    terms: _Terms,
    first: Array | None,
    x: Array,
    D: ArrayLike | None,
    z: ArrayLike | None,
    query_start_loc: ArrayLike,
    facts: ScanArithmetic,
) -> tuple[Scan, Scan]:
    """Run the sizes and the errors along the tokens of all requests at once."""
    costs, eta, kept = _Costs.of(facts, exact.state.shape[-1]), tiny(facts), facts.format("state")
    requests = Requests.of(query_start_loc, x.shape[0])
    order = requests.longest_first()
    h = np.zeros_like(exact.state) if first is None else first[order]
    M, E = np.abs(h), np.zeros_like(h)
    y, off_y = np.zeros_like(exact.out), np.zeros_like(exact.out)
    behind = _Window(costs.window)
    for step, (live, at) in enumerate(requests.by_token()):
        g, w = terms.g(at), terms.written(at)
        theta = terms.off_g(at) + costs.u * costs.step - costs.in_decay * g
        omega = costs.u * costs.write + costs.write_window * behind.add(live, -g)
        write = np.expm1(omega) + costs.write_products * np.exp(omega)
        a, grown = np.exp(g), np.exp(g + theta)
        size, error = M[live], E[live]
        gain = grown * -np.expm1(-theta)  # the most the computed decay may exceed the exact one
        error = grown * error + gain * size + write * np.abs(w) + (1 + write) * terms.off_written(at)
        size = a * size + np.abs(w)
        error += eta * (4 + 2 * size + 2 * error)
        h[live] = a * h[live] + w
        if facts.state_rounded == "token":
            error += kept.rounded(np.abs(h[live]) + error)
        y[at] = terms.reads(h[live], at)
        off_y[at] = terms.read(error + costs.read * (size + error), at) + eta
        if facts.state_rounded == "chunk" and (step + 1) % (facts.chunk_size or 1) == 0:
            error += kept.rounded(np.abs(h[live]) + error)
        M[live], E[live] = size, error
    state = np.empty_like(E)
    state[order] = E
    if facts.state_rounded != "token":  # the last rounding, of what is handed over
        grown_in_tokens = requests.lens.reshape(-1, *[1] * (state.ndim - 1)) > 0
        state = np.where(grown_in_tokens, state + _last_rounding(exact.state, state, facts), state)
    state = with_reference(state, facts)
    off_y = narrowed(np.abs(y), off_y, "stored", facts)
    if D is not None:
        skipped = np.abs(widen("D", D) * x)
        off_y = off_y + 2 * costs.u * skipped + costs.u * (np.abs(y) + off_y) + 2 * eta
        y = y + widen("D", D) * x
        off_y = narrowed(np.abs(y), off_y, "stored", facts)
    if z is not None:
        gate = widen("z", z)
        off_gate = narrowed(np.abs(silu(gate)), silu_error(gate, 0.0, facts), "stored", facts)
        off_y = product_error(np.abs(y), off_y, np.abs(silu(gate)), off_gate, facts)
    return exact, Scan(finished(exact.out, off_y, facts), np.where(np.isnan(state), np.inf, state))


def _last_rounding(state: Array, error: Array, facts: ScanArithmetic) -> Array:
    if not facts.extra("state") and facts.state == facts.working:
        return np.zeros_like(state)
    return facts.format("state").rounded(np.abs(state) + error)


class _Window:
    """The sum of the last so many sizes, for each live request."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.kept: list[Array] = []
        self.sum: Array | None = None

    def add(self, live: slice, size: Array) -> Array:
        """Take the sizes of the next token of the live requests; return their sums."""
        self.kept.append(size)
        total: Array = size if self.sum is None else self.sum[live] + size
        if len(self.kept) > self.length:
            total = np.maximum(total - self.kept.pop(0)[live], 0.0)
        self.sum = total
        return total
