"""Small problems for the scans: ragged, off every grid, with states far from zero."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from recurrent.bounded import BOUNDS, float64_in_chunks

from kvref.arrays import Array
from kvref.recurrent.conv import causal_conv
from kvref.recurrent.gated_delta import gated_delta_rule
from kvref.recurrent.kda import kimi_delta_attention
from kvref.recurrent.mamba import selective_scan
from kvref.recurrent.scan import Scan
from kvref.recurrent.ssd import ssd_scan
from kvref.recurrent.updates import (
    gated_delta_rule_update,
    kimi_delta_attention_update,
    selective_state_update,
    ssd_update,
)

SCANS = {
    "selective_scan": selective_scan,
    "ssd_scan": ssd_scan,
    "gated_delta_rule": gated_delta_rule,
    "kimi_delta_attention": kimi_delta_attention,
}
UPDATES = {
    "selective_scan": selective_state_update,
    "ssd_scan": ssd_update,
    "gated_delta_rule": gated_delta_rule_update,
    "kimi_delta_attention": kimi_delta_attention_update,
}
#: What has a row for each token.
OF_TOKENS = ("x", "dt", "B", "C", "z", "q", "k", "v", "g", "beta")


@dataclass(frozen=True)
class Problem:
    """One call of a scan: arrays with a row a token, arrays without, and a state a request."""

    name: str
    lens: tuple[int, ...]
    tokens: dict[str, Array]
    weights: dict[str, Any]
    state: Array

    @property
    def query_start_loc(self) -> Array:
        return np.concatenate([[0], np.cumsum(self.lens)]).astype(np.int64)

    def scan(self, **options: Any) -> Scan:
        """Scan all requests."""
        return self._call(
            **self.tokens,
            **self.weights,
            **{"initial_state": self.state, "query_start_loc": self.query_start_loc, **options},
        )

    def part(self, request: int, first: int, last: int, state: Array, **options: Any) -> Scan:
        """Scan some tokens of one request, alone, from a given state."""
        start = int(self.query_start_loc[request])
        rows = {name: x[start + first : start + last] for name, x in self.tokens.items()}
        return self._call(
            **rows, **self.weights, initial_state=state[None], query_start_loc=[0, last - first], **options
        )

    def bound(self, chunk_size: int | None = None) -> tuple[Scan, Scan]:
        """Return the answer and how far the reference's form in such chunks may be off."""
        return BOUNDS[self.name](
            **self.tokens,
            **self.weights,
            initial_state=self.state,
            query_start_loc=self.query_start_loc,
            arithmetic=float64_in_chunks(chunk_size),
        )

    def _call(self, **arguments: Any) -> Scan:
        if self.name == "causal_conv":
            arguments.pop("chunk_size", None)  # it has one form
            return causal_conv(**arguments)
        return SCANS[self.name](**arguments)


def problem(name: str, lens: tuple[int, ...], seed: int = 0) -> Problem:
    """Return a problem with three value heads to a key head, unequal widths and strong decays among weak."""
    rng = np.random.default_rng(seed)
    n, requests = sum(lens), len(lens)

    def bell(*shape: int) -> Array:
        return rng.standard_normal(shape)

    if name == "selective_scan":
        tokens = {"x": bell(n, 5), "dt": bell(n, 5), "B": bell(n, 3), "C": bell(n, 3), "z": bell(n, 5)}
        weights = {"A": -np.exp(bell(5, 3)), "D": bell(5), "dt_bias": bell(5), "dt_softplus": True}
        return Problem(name, lens, tokens, weights, bell(requests, 5, 3))
    if name == "ssd_scan":
        tokens = {"x": bell(n, 6, 4), "dt": bell(n, 6), "B": bell(n, 2, 3), "C": bell(n, 2, 3)}
        tokens["z"] = bell(n, 6, 4)
        weights = {"A": -np.exp(bell(6)), "D": bell(6), "dt_bias": bell(6), "dt_softplus": True}
        weights["dt_limit"] = (0.125, 2.0)
        return Problem(name, lens, tokens, weights, bell(requests, 6, 4, 3))
    if name == "causal_conv":
        weights = {"weight": bell(5, 4), "bias": bell(5), "activation": "silu"}
        return Problem(name, lens, {"x": bell(n, 5)}, weights, bell(requests, 5, 3))
    if name == "lightning":  # linear attention with a fixed decay a head is Mamba-2 with steps of 1
        tokens = {"x": bell(n, 4, 4), "dt": np.ones((n, 4)), "B": bell(n, 4, 3), "C": bell(n, 4, 3)}
        return Problem("ssd_scan", lens, tokens, {"A": -(2.0 ** -np.arange(1, 5))}, bell(requests, 4, 4, 3))
    decays = (n, 6) if name == "gated_delta_rule" else (n, 6, 5)
    tokens = {"q": bell(n, 2, 5), "k": bell(n, 2, 5), "v": bell(n, 6, 4)}
    tokens |= {"g": -np.exp(2 * bell(*decays)), "beta": rng.random((n, 6))}
    return Problem(name, lens, tokens, {"scale": 1.75, "qk_l2norm": True}, bell(requests, 6, 5, 4))


def asked(answer: dict[str, Any]) -> Problem:
    """Return the problem that another implementation was asked, widened exactly."""
    arrays = {name: np.array(x, np.float64) for name, x in answer["inputs"].items()}
    state = arrays.pop("initial_state", None)
    if state is None:
        state = np.zeros_like(np.array(answer["state"], np.float64))
    tokens = {name: arrays.pop(name) for name in OF_TOKENS if name in arrays}
    lens = tuple(np.diff(answer["query_start_loc"]).tolist())
    return Problem(answer["verb"], lens, tokens, {**arrays, **answer["options"]}, state)
