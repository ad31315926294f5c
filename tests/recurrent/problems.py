"""Small problems for the scans: ragged, off every grid, with states far from zero."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvref.arrays import Array
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
        return SCANS[self.name](
            **self.tokens,
            **self.weights,
            **{"initial_state": self.state, "query_start_loc": self.query_start_loc, **options},
        )

    def part(self, request: int, first: int, last: int, state: Array, **options: Any) -> Scan:
        """Scan some tokens of one request, alone, from a given state."""
        start = int(self.query_start_loc[request])
        rows = {name: x[start + first : start + last] for name, x in self.tokens.items()}
        return SCANS[self.name](
            **rows, **self.weights, initial_state=state[None], query_start_loc=[0, last - first], **options
        )


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
    decays = (n, 6) if name == "gated_delta_rule" else (n, 6, 5)
    tokens = {"q": bell(n, 2, 5), "k": bell(n, 2, 5), "v": bell(n, 6, 4)}
    tokens |= {"g": -np.exp(2 * bell(*decays)), "beta": rng.random((n, 6))}
    return Problem(name, lens, tokens, {"scale": 1.75, "qk_l2norm": True}, bell(requests, 6, 5, 4))
