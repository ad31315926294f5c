"""Problems of recurrent layers in which everything rounds: what the bound of the declared arithmetic is for.

Numbers are dyadic where a dtype would round them, and float32 where it is float32 that is passed. Keys are
not longer than 1, decays lie between nearly nothing and e^−20, step sizes between 0 and a few.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.cases import Case
from kvref_conformance.claims import Claims
from kvref_conformance.probes.random import dyadic
from kvref_conformance.probes.scans import single
from kvref_conformance.problems import cast
from kvref_conformance.scan_cases import DELTA, scan_of
from kvref_conformance.scan_problems import ScanProblem

#: Features of the optional arguments of each scan.
VARIANTS: Mapping[str, tuple[str, ...]] = {
    "causal_conv": ("conv_bias", "silu"),
    "selective_scan": ("skip", "output_gate", "dt_bias", "dt_softplus"),
    "ssd_scan": ("skip", "output_gate", "dt_bias", "dt_softplus", "dt_limit"),
    **dict.fromkeys(DELTA, ("qk_l2norm",)),
}
#: A scale far from head_dim ** -0.5.
SCALE = 0.21875
#: Limits of a step size inside the range of those that are drawn.
LIMITS = (0.0625, 1.25)


def random_scan(case: Case, claims: Claims, features: Iterable[str] | None = None) -> ScanProblem:
    """Return the numeric problem of a case, with optional arguments whose features are named and claimed.

    None: of even seeds all that are claimed, of odd ones none.
    """
    scan = scan_of(case.verb)
    wanted = (VARIANTS[scan] if case.seed % 2 == 0 else ()) if features is None else features
    used = set(wanted) & set(claims.features) & set(VARIANTS[scan])
    rng = np.random.default_rng(case.seed + 41)
    inputs, params, shape = _BUILDERS[scan](case, claims, rng, used)
    before = np.array(case.seq_lens) > np.array(case.query_lens)
    kind = case.dtype if scan == "causal_conv" else claims.scan_arithmetic.resolve(case.dtype).state
    initial = cast(rng.normal(size=(len(before), *shape)), kind).astype(np.float64)  # bits to the last place
    kept = initial * before.reshape(-1, *[1] * len(shape))
    return ScanProblem(scan, inputs, np.array(case.query_lens, np.int64), kept, params, case.dtype)


def _conv(case: Case, claims: Claims, rng: np.random.Generator, used: set[str]) -> tuple[Any, ...]:
    channels, width = case.num_kv_heads * case.head_dim, int(case.option("conv_width"))
    inputs = {
        "x": dyadic(rng, (case.num_tokens, channels), case.dtype),
        "weight": dyadic(rng, (channels, width), case.dtype),
    }
    if "conv_bias" in used:
        inputs["bias"] = dyadic(rng, (channels,), case.dtype)
    return inputs, {"activation": "silu"} if "silu" in used else {}, (channels, width - 1)


def _selective(case: Case, claims: Claims, rng: np.random.Generator, used: set[str]) -> tuple[Any, ...]:
    channels, entries = case.num_kv_heads * case.head_dim, int(case.option("state_dim"))
    A = -rng.uniform(0.05, 1.5, (channels, entries)) * np.arange(1, entries + 1) / 4
    inputs, params = _mamba(case, rng, used, (channels,), (), entries, A)
    return inputs, params, (channels, entries)


def _ssd(case: Case, claims: Claims, rng: np.random.Generator, used: set[str]) -> tuple[Any, ...]:
    shape, entries = (case.num_q_heads, case.head_dim), int(case.option("state_dim"))
    A = -(2.0 ** rng.integers(-5, 4, case.num_q_heads)) * rng.uniform(0.5, 1.0, case.num_q_heads)
    inputs, params = _mamba(case, rng, used, shape, (case.num_kv_heads,), entries, A)
    return inputs, params, (*shape, entries)


def _mamba(
    case: Case,
    rng: np.random.Generator,
    used: set[str],
    per_token: tuple[int, ...],
    groups: tuple[int, ...],
    entries: int,
    A: Array,
) -> tuple[dict[str, Array], dict[str, Any]]:
    tokens, heads = case.num_tokens, per_token[0]
    dt = dyadic(rng, (tokens, heads), case.dtype)
    positive = "dt_softplus" in used or "dt_limit" in used
    inputs = {
        "x": dyadic(rng, (tokens, *per_token), case.dtype),
        "dt": dt if positive else np.abs(dt),
        "A": single(A),
        "B": dyadic(rng, (tokens, *groups, entries), case.dtype),
        "C": dyadic(rng, (tokens, *groups, entries), case.dtype),
    }
    if "skip" in used:
        inputs["D"] = dyadic(rng, (heads,), "float32")
    if "output_gate" in used:
        inputs["z"] = dyadic(rng, (tokens, *per_token), case.dtype)
    if "dt_bias" in used:
        bias = single(rng.uniform(-3.0, 1.0, heads))
        inputs["dt_bias"] = bias if positive else np.abs(bias)
    if "dt_limit" in used:
        inputs["dt_limit"] = single(np.array(LIMITS))
    return inputs, {"dt_softplus": True} if "dt_softplus" in used else {}


def _delta(case: Case, claims: Claims, rng: np.random.Generator, used: set[str]) -> tuple[Any, ...]:
    tokens, heads, width = case.num_tokens, case.num_q_heads, case.head_dim
    v_dim = int(case.option("v_dim"))
    shape = (tokens, heads, width) if case.verb.startswith("kimi") else (tokens, heads)
    weak = -(2.0 ** rng.uniform(-9, 1, shape))
    g = np.where(rng.random(shape) < 0.05, -20.0, weak)
    vectors = (dyadic(rng, (tokens, case.num_kv_heads, width), case.dtype) for _ in range(2))
    if "qk_l2norm" in used:  # some of them short, so that what stands beside the sum of squares shows
        lengths = np.where(rng.random((tokens, case.num_kv_heads, 1)) < 0.2, 2.0**-12, 1.0)
        q, k = (cast(x.astype(np.float64) * lengths, case.dtype) for x in vectors)
    else:  # no longer than 1, or the recurrence would grow without end
        longest = 2.0 ** np.ceil(np.log2(4 * np.sqrt(width) + 1))
        q, k = (cast(x.astype(np.float64) / longest, case.dtype) for x in vectors)
    inputs = {
        "q": q,
        "k": k,
        "v": dyadic(rng, (tokens, heads, v_dim), case.dtype),
        "g": single(g),
        "beta": cast(rng.uniform(0.0, 1.0, (tokens, heads)), case.dtype),
    }
    params: dict[str, Any] = {"qk_l2norm": True} if "qk_l2norm" in used else {}
    if "delta_scale" in claims.features and case.seed // 2 % 2 == 0:
        params["scale"] = SCALE
    return inputs, params, (heads, width, v_dim)


_BUILDERS: Mapping[str, Callable[..., tuple[Any, ...]]] = {
    "causal_conv": _conv,
    "selective_scan": _selective,
    "ssd_scan": _ssd,
    **dict.fromkeys(DELTA, _delta),
}
