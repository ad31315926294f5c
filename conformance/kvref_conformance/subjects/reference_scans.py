"""The reference's recurrent layers as a subject: every verb is kvref's own function, rounded once.

The suite's independent implementation is `subjects.scanned`.
"""

from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref.recurrent import updates
from kvref.recurrent.arithmetic import ScanArithmetic
from kvref.recurrent.conv import causal_conv
from kvref.recurrent.gated_delta import gated_delta_rule
from kvref.recurrent.gates import decay_gate
from kvref.recurrent.kda import kimi_delta_attention
from kvref.recurrent.mamba import selective_scan
from kvref.recurrent.scan import Scan
from kvref.recurrent.ssd import ssd_scan
from kvref_conformance.claims import Claims
from kvref_conformance.subjects.scanned import FEATURES

#: Results in float32 where they are not in the dtype of the inputs.
SINGLE = np.dtype(np.float32)


class ReferenceScans:
    """kvref itself, in chunks, under the claims of a float32 kernel."""

    claims = Claims(
        name="kvref scans",
        dtypes=("float32", "bfloat16", "float16"),
        head_dims=(64, 32),
        state_dims=(16, 24),
        conv_widths=(4, 2),
        features=FEATURES,
        scan_arithmetic=ScanArithmetic(chunk_size=16, running_sums=False),
    )

    def causal_conv(self, x: Array, weight: Array, **rest: Any) -> tuple[Array, Array]:
        """Convolve whole requests."""
        return _rounded(causal_conv(x, weight, **_started(rest)), x, x.dtype)

    def selective_scan(self, x: Array, *others: Array, **rest: Any) -> tuple[Array, Array]:
        """Scan with Mamba-1."""
        return _rounded(selective_scan(x, *others, chunk_size=self._chunk, **_started(rest)), x)

    def ssd_scan(self, x: Array, *others: Array, **rest: Any) -> tuple[Array, Array]:
        """Scan with Mamba-2."""
        return _rounded(ssd_scan(x, *others, chunk_size=self._chunk, **_started(rest)), x)

    def gated_delta_rule(self, q: Array, k: Array, v: Array, *gates: Array, **rest: Any) -> Any:
        """Scan with one decay for each head."""
        return _rounded(gated_delta_rule(q, k, v, *gates, chunk_size=self._chunk, **_started(rest)), v)

    def kimi_delta_attention(self, q: Array, k: Array, v: Array, *gates: Array, **rest: Any) -> Any:
        """Scan with a decay for each channel."""
        return _rounded(kimi_delta_attention(q, k, v, *gates, chunk_size=self._chunk, **_started(rest)), v)

    def causal_conv_update(self, x: Array, weight: Array, state: Array, **rest: Any) -> Array:
        """Convolve one token of each request."""
        return updates.causal_conv_update(x, weight, state=state, **rest).astype(x.dtype)

    def selective_state_update(self, *tensors: Array, **rest: Any) -> Array:
        """Advance Mamba-1 by one token."""
        *inputs, state = tensors
        out = updates.selective_state_update(*inputs, state=state, **rest)
        return out.astype(tensors[0].dtype)

    def ssd_update(self, *tensors: Array, **rest: Any) -> Array:
        """Advance Mamba-2 by one token."""
        *inputs, state = tensors
        return updates.ssd_update(*inputs, state=state, **_limited(rest)).astype(tensors[0].dtype)

    def gated_delta_rule_update(self, *tensors: Array, **rest: Any) -> Array:
        """Advance by one token, with one decay for each head."""
        *inputs, state = tensors
        return updates.gated_delta_rule_update(*inputs, state=state, **rest).astype(tensors[0].dtype)

    def kimi_delta_attention_update(self, *tensors: Array, **rest: Any) -> Array:
        """Advance by one token, with a decay for each channel."""
        *inputs, state = tensors
        return updates.kimi_delta_attention_update(*inputs, state=state, **rest).astype(tensors[0].dtype)

    def decay_gate(self, a: Array, A_log: Array, dt_bias: Array, **rest: Any) -> Array:
        """Return log decays."""
        return decay_gate(a, A_log, dt_bias, **rest).astype(SINGLE)

    @property
    def _chunk(self) -> int | None:
        return self.claims.scan_arithmetic.chunk_size


def _started(rest: dict[str, Any]) -> dict[str, Any]:
    """Return options as the reference takes them: zeros where a request has no initial state."""
    flags = rest.pop("has_initial_state", None)
    if flags is not None:
        initial = rest["initial_state"]
        rest["initial_state"] = np.where(flags.reshape(-1, *[1] * (initial.ndim - 1)) == 0, 0, initial)
    return _limited(rest)


def _limited(rest: dict[str, Any]) -> dict[str, Any]:
    if "dt_limit" in rest:
        rest["dt_limit"] = tuple(float(limit) for limit in rest["dt_limit"])
    return rest


def _rounded(scan: Scan, like: Array, state: np.dtype[Any] = SINGLE) -> tuple[Array, Array]:
    return scan.out.astype(like.dtype), scan.state.astype(state)
