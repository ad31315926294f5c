"""What arithmetic a subject really uses, read off its answers to a few probes.

A lax declaration buys a lax bound. So the suite does not only believe: each probe below is one short request
whose answer differs, far beyond noise, between the candidate formats of one stage. A stage is named only if
exactly one candidate explains the answer, and is "unknown" otherwise.

Every logit is a single product with a power of two as scale, so it is exact in any format that can hold it;
what is left is the rounding that the probe asks about.

For porters: `emulation.run` predicts the answer of a candidate; `attention_bound` says what noise may remain.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np

from kvref.arrays import Array, dtype_of, widen
from kvref.attention.arithmetic import Arithmetic, Format
from kvref.attention.bounds import attention_bound, exceeds
from kvref_conformance.emulation import Kernel, run

#: attend(q, k, v, scale) -> out, for one request whose last token is the query.
Attend = Callable[[Array, Array, Array, float], Array]

UNKNOWN = "unknown"
_NARROW = ("float8_e5m2", "float8_e4m3fn", "bfloat16", "float16")
_WIDE = ("float32", "float64")
#: Logits whose weights lie well away from a tie and from a number of each narrow format, five a request.
_LOGITS = -np.array([[6, 16, 22, 37, 46], [36, 38, 70, 74, 108]]) / 32
_TOKENS = np.array([9, 19, 33, 47, 61])

Request = tuple[Array, Array, Array, float]


@dataclass(frozen=True)
class Inferred:
    """The formats and the rounding that explain a subject's answers; "unknown" where none does, or several.

    A stage in float32 may be finer than that where the sums are in float32: then no probe can tell.
    """

    accumulate: str
    probabilities: str
    scores: str
    output: str
    rounding: str


class Difference(NamedTuple):
    """Where claim and answers part: `observed` is "coarser" (a fault) or "finer" (a lax claim)."""

    name: str
    declared: str
    inferred: str
    observed: str


@dataclass(frozen=True)
class Bench:
    """A subject and the shape of the requests it is given."""

    attend: Attend
    dtype: str
    head_dim: int
    num_q_heads: int
    num_kv_heads: int

    def request(self, logits: Array, v: Array) -> Request:
        """Build a request of one query: `logits [n]` or parts of them `[n, parts]`, and `v [n, channels]`."""
        kind = dtype_of(self.dtype)
        parts = logits.reshape(len(logits), -1)
        q, k = np.zeros((1, self.num_q_heads, self.head_dim)), np.zeros((len(logits), 1, self.head_dim))
        q[..., : parts.shape[1]] = 8.0
        k[:, 0, : parts.shape[1]] = parts
        values = np.zeros((len(v), 1, self.head_dim))
        values[:, 0, : v.shape[1]] = v
        k, values = np.repeat(k, self.num_kv_heads, axis=1), np.repeat(values, self.num_kv_heads, axis=1)
        return q.astype(kind), k.astype(kind), values.astype(kind), 0.125

    def answer(self, request: Request) -> Array:
        """Return the subject's output of head 0, `[head_dim]`."""
        out: Array = widen("out", np.asarray(self.attend(*request)))[0, 0]
        return out


def infer(
    attend: Attend, dtype: str, *, head_dim: int = 64, num_q_heads: int = 1, num_kv_heads: int = 1
) -> Inferred:
    """Probe a subject; `dtype` is that of q, k and v. Needs head_dim >= 8."""
    bench = Bench(attend, dtype, head_dim, num_q_heads, num_kv_heads)
    accumulate = accumulate_width(bench)
    output, rounding = output_format(bench, accumulate)
    probabilities, rounding = probability_format(bench, accumulate, output, rounding)
    scores = score_format(bench, accumulate, output, probabilities, rounding)
    return Inferred(accumulate, probabilities, scores, output, rounding)


def compare(declared: Arithmetic, inferred: Inferred, dtype: str) -> list[Difference]:
    """List the stages that were inferred and are not as declared; `dtype` is that of q."""
    facts, found = declared.resolve(dtype), []
    for name in (field.name for field in fields(Inferred)):
        said, seen = getattr(facts, name), getattr(inferred, name)
        hidden = said == "float64" and seen == "float32" and inferred.accumulate == "float32"
        if seen in (UNKNOWN, said) or hidden:
            continue
        if name == "rounding":
            found.append(Difference(name, said, seen, "coarser" if seen == "truncate" else "finer"))
            continue
        coarser = Format.of(seen).roundoff > Format.of(said).roundoff
        found.append(Difference(name, said, seen, "coarser" if coarser else "finer"))
    return found


def accumulate_width(bench: Bench) -> str:
    """Find the format of the running sums of P·V: X, then 1, then −X, all with the same weight, leave 1.

    X is 1.5 · 2^k, k rising from channel to channel: p bits keep the 1 beside X or −X as long as k < p. X
    comes first and −X last, so that they do not meet before the 1 has met one of them.
    """
    n, largest = 16, 15
    lowest = 18 if bench.dtype == "float16" else 45
    kept = []
    for ks in _in_groups(range(1, largest + lowest + 1), bench.head_dim):
        v = np.zeros((n, len(ks)))
        small = np.array([2.0 ** (largest - k) for k in ks])
        v[0], v[n // 2], v[n - 1] = 1.5 * 2.0**largest, small, -1.5 * 2.0**largest
        out = bench.answer(bench.request(np.zeros(n), v))[: len(ks)]
        kept += list(out * n == small)
    bits = len(kept) if all(kept) else kept.index(False) + 1
    for name in (*_NARROW, *_WIDE):
        if _bits(name) == bits:
            return name
    return "float64" if bits == len(kept) else UNKNOWN


def output_format(bench: Bench, accumulate: str) -> tuple[str, str]:
    """Find the format and the rounding of the output: 1 + ¾ of a last place becomes 1 + one, or 1.

    Four tokens of equal weight with values 4, three lasts, 0, 0 have exactly that mean. Sums that are as
    narrow as the output hide it.
    """
    names = [name for name in ("bfloat16", "float16", "float32") if name != accumulate]
    places = np.array([2.0 ** (1 - _bits(name)) for name in names])
    v = np.zeros((4, len(names)))
    v[0], v[1] = 4.0, 3 * places
    if bench.dtype == "float16":
        v[1] = np.where(v[1] < 2.0**-24, 0.0, v[1])
    out = bench.answer(bench.request(np.zeros(4), v))[: len(names)]
    for name, place, seen, used in zip(names, places, out, v[1], strict=True):
        if used and accumulate not in _NARROW and seen in (1.0, 1.0 + place):
            return name, "nearest" if seen > 1.0 else "truncate"
    exact = out[-1] == 1.0 + 0.75 * places[-1]
    if accumulate == "float64" and "float32" in names and v[1, -1] and exact:
        return "float64", UNKNOWN
    return (accumulate if accumulate == "float32" else UNKNOWN), UNKNOWN


def probability_format(bench: Bench, accumulate: str, output: str, rounding: str) -> tuple[str, str]:
    """Find the format P is rounded to before it multiplies V, and how it rounds.

    In channel c, a value of −1 stands on a token with weight w_c, and its exact counterweight, in three
    pieces the dtype can hold, on three tokens with weight 1. The output is what rounding did to w_c.
    """
    if accumulate not in _WIDE or output == UNKNOWN:
        return UNKNOWN, rounding
    modes = ["nearest", "truncate"] if rounding == UNKNOWN else [rounding]
    candidates = [
        {"probabilities": kind, "rounding": mode} for kind in (*_NARROW, accumulate) for mode in modes
    ]
    for five in _LOGITS:
        logits = _at_odd_places(five)
        request = bench.request(logits, _counterweights(bench.dtype, logits))
        candidates = _explaining(bench, request, candidates, accumulate, output)
    kinds = {facts["probabilities"] for facts in candidates}
    left = {facts["rounding"] for facts in candidates}
    kind = kinds.pop() if len(kinds) == 1 else UNKNOWN
    return kind, left.pop() if len(left) == 1 and kind != UNKNOWN else rounding


def score_format(bench: Bench, accumulate: str, output: str, probabilities: str, rounding: str) -> str:
    """Find the format of the stored logits: each is 16 and a part that narrow formats drop beside it."""
    if UNKNOWN in (output, probabilities) or accumulate not in _WIDE:
        return UNKNOWN
    fixed = {"probabilities": probabilities, "rounding": "nearest" if rounding == UNKNOWN else rounding}
    candidates = [{"scores": kind, **fixed} for kind in ("bfloat16", "float16", accumulate)]
    for offset in range(4):
        low = _at_odd_places(
            -np.array([0.04296875, 0.48046875, 0.91796875, 1.35546875, 1.79296875]) - offset / 64
        )
        logits = np.stack([np.full(len(low), 16.0), low], axis=1)
        request = bench.request(logits, _counterweights(bench.dtype, low))
        candidates = _explaining(bench, request, candidates, accumulate, output)
    return candidates[0]["scores"] if len(candidates) == 1 else UNKNOWN


def _at_odd_places(logits: Array) -> Array:
    """Spread five logits over 64 tokens whose logit is 0, so that every split sees the maximum."""
    spread = np.zeros(64)
    spread[_TOKENS] = logits
    return spread


def _counterweights(dtype: str, logits: Array) -> Array:
    """Return values `[64, 5]` whose weighted sum is nearly 0: −1 against three pieces of the weight.

    All are multiplied by 1024, which keeps what is left within the normal numbers of float16.
    """
    kind, unit = dtype_of(dtype), 1024.0
    v, rest = np.zeros((64, 5)), unit * np.exp(logits[_TOKENS].astype(kind).astype(np.float64))
    for token in (0, 22, 42):
        v[token] = rest.astype(kind).astype(np.float64)
        rest = rest - v[token]
    v[_TOKENS, np.arange(5)] = -unit
    return v


def _explaining(
    bench: Bench, request: Request, candidates: list[dict[str, str]], accumulate: str, output: str
) -> list[dict[str, str]]:
    """Keep the candidates that explain a subject's answer, up to the noise of the other stages."""
    seen = bench.answer(request)
    q, k, v, scale = request
    everything = np.ones((1, len(k)), np.bool_)
    other = Arithmetic(
        accumulate=accumulate,
        scores=accumulate,
        probabilities=accumulate,
        partial=accumulate,
        output=accumulate,
        rounding="truncate",
    )
    noise = attention_bound(q, k, v, everything, scale=scale, arithmetic=other).out[0, 0]

    def explains(facts: Arithmetic) -> bool:
        predicted = run(Kernel(facts), q, k, v, everything, scale=scale).out[0, 0]
        rounded = Format.of(output, facts.rounding).rounded(np.abs(predicted) + noise)
        return not exceeds(seen, predicted, noise + rounded).any()

    return [facts for facts in candidates if any(explains(style) for style in _styles(facts))]


def _styles(facts: dict[str, str]) -> Iterator[Arithmetic]:
    """Yield the ways a kernel may use P, everything else in float64: divided first, or summed as rounded."""
    exact = {"accumulate": "float64", "scores": "float64", "output": "float64", **facts}
    base = replace(Arithmetic(merges=0, block=None), **exact)  # type: ignore[arg-type]
    yield base
    yield replace(base, normalized=True)
    yield replace(base, rounded_sum=True)


def _bits(name: str) -> int:
    return int(1 - np.log2(Format.of(name).roundoff)) - 1


def _in_groups(ks: Iterable[int], size: int) -> Iterator[list[int]]:
    every = list(ks)
    for start in range(0, len(every), size):
        yield every[start : start + size]
