"""How far an honest kernel with a known fault may be from that fault's exact answer.

The bounds of kvref hold around right answers. An exhibit's answer is wrong, but it is made in the same way:
some weights, averaged values, roundings. Run in float64 on v, on |v| and on v², it gives its own output o,
the mean size A = Σ p|v|, and the spread C = sqrt(Σ p v² − o²), which bounds Σ p|v − o|. With t, the most
rounding can move a log-weight,

    E = (e^{2t} − 1) C + (u_P + γ_N) (A + |o|) + what P loses to underflow

and o + E is rounded once more to the output format. t is bounded from the largest product of the call, for
all keys at once, so E is wider than the bound of `kvref.attention.bounds`. It decides what a report suggests,
never a verdict.

Source: the terms of `spec/bounds.md`; Cauchy and Schwarz for the spread.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref.attention.arithmetic import Arithmetic, gamma
from kvref_conformance.contracts import Call

#: What is done to values before they are averaged.
Change = Callable[[Array], Array]
#: Runs a fault on one call, its values changed, and returns the outputs by name.
Run = Callable[[Change], Mapping[str, Array]]
#: Tensors that hold what is averaged.
_VALUES = {"v", "v_cache", "kv_cache", "out_a", "out_b"}


@dataclass(frozen=True)
class Near:
    """An exact answer under some fault, and the bound around each output."""

    outputs: Mapping[str, Array]
    bounds: Mapping[str, Array]

    def holds(self, observed: Mapping[str, Array]) -> bool:
        """Say whether an answer equals this one, within the bounds and with NaN at the same places."""
        return all(
            not _apart(np.asarray(observed[name]).astype(np.float64), expected, self.bounds[name]).any()
            for name, expected in self.outputs.items()
        )

    def twice(self, outputs: Mapping[str, Array]) -> "Near":
        """Return another answer with this one's bounds doubled: made by an arithmetic of its own."""
        return Near(outputs, {name: 2 * bound for name, bound in self.bounds.items()})

    def differs(self, other: "Near") -> bool:
        """Say whether the two are apart somewhere by more than both bounds."""
        return any(
            _apart(mine, other.outputs[name], self.bounds[name] + other.bounds[name]).any()
            for name, mine in self.outputs.items()
        )


@dataclass(frozen=True)
class Yardstick:
    """What bounds all faults of one call alike."""

    call: Call
    facts: Arithmetic
    t: Array
    """The most rounding moves a log-weight, `[..., num_q_heads]`."""
    largest_value: float

    @staticmethod
    def of(call: Call, facts: Arithmetic) -> "Yardstick":
        """Measure a call once."""
        with np.errstate(all="ignore"):
            t = _log_weight_error(call, facts) if "out" in call.outputs and averages(call) else np.zeros(())
            values = [np.abs(call.tensors[name].astype(np.float64)) for name in _VALUES & call.tensors.keys()]
            largest = [np.max(x, initial=0.0, where=np.isfinite(x)) for x in values]
        return Yardstick(call, facts, t, float(max(largest, default=0.0)))

    def near(self, run: Run, observed: Mapping[str, Array] | None = None) -> Near:
        """Return a fault's answer, which `run` makes in float64, and its bounds.

        Where it is far from `observed` whatever its weights are, the bounds are left at 0.
        """
        outputs = run(np.asarray)
        if self.call.verb == "apply_rope":
            return Near(outputs, {"out": _rotation_bound(self.call, self.facts)})
        none = {name: np.zeros(x.shape) for name, x in outputs.items()}
        if not averages(self.call):
            return Near(outputs, none)
        out, bounds = outputs["out"], dict(none)
        with np.errstate(all="ignore"):
            any_out = np.full(out.shape, self.largest_value)
            widest = self._out_bound(any_out, any_out, any_out**2 * 2)
            if observed is not None and _apart(observed["out"], out, widest).any():
                return Near(outputs, none)
            bounds["out"] = self._out_bound(out, run(np.abs)["out"], run(np.square)["out"])
            if "lse" in outputs:
                bounds["lse"] = self._lse_bound(outputs["lse"])
        return Near(outputs, bounds)

    def _out_bound(self, out: Array, size: Array, square: Array) -> Array:
        facts, longest = self.facts, _longest(self.call)
        mean = np.maximum(size, np.abs(out))
        spread = np.sqrt(np.maximum(square - out**2, 0.0))
        depth = longest + 2 * longest / (facts.block or longest) + 16
        g = gamma(depth, facts.format("accumulate").roundoff)
        probability, part = facts.format("probabilities"), facts.format("partial")
        moved = np.expm1(2 * self.t)[..., None] * spread
        in_sums = (probability.roundoff + g + 2 * facts.merges * part.roundoff) * (mean + np.abs(out))
        flushed = probability.underflow * longest * self.largest_value
        total = (moved + in_sums) * (1 + 4 * g) + flushed
        if self.call.verb == "merge_attention_states":
            total = moved + gamma(8, facts.roundoff) * (mean + np.abs(out))
        total = total + facts.format("output").rounded(np.abs(out) + total)
        return np.asarray(np.where(np.isnan(total), np.inf, total))

    def _lse_bound(self, lse: Array) -> Array:
        finite = np.where(np.isfinite(lse), np.abs(lse), 0.0)
        g = gamma(_longest(self.call) + 16, self.facts.format("accumulate").roundoff)
        bound = self.t + g + self.facts.roundoff * (16 * finite + 16)
        return np.asarray(np.where(np.isinf(lse), 0.0, bound))


def averages(call: Call) -> bool:
    """Say whether the output of a call is an average of values."""
    return "out" in call.outputs and call.verb not in ("convert_layout", "apply_rope")


def _apart(observed: Array, expected: Array, bound: Array) -> Array:
    """Say where two arrays differ by more than a bound; NaN equals NaN, infinities equal themselves."""
    with np.errstate(invalid="ignore"):
        error = np.where(observed == expected, 0.0, np.abs(observed - expected))
        error = np.where(np.isnan(observed) & np.isnan(expected), 0.0, error)
        return np.asarray(~(error <= bound))


def _log_weight_error(call: Call, facts: Arithmetic) -> Array:
    """Bound the error of any log-weight, `[..., num_q_heads]`."""
    u, exp = facts.roundoff, gamma(facts.exp_error, facts.roundoff)
    if call.verb == "merge_attention_states":
        both = np.stack([call.tensors["lse_a"], call.tensors["lse_b"]]).astype(np.float64)
        largest = np.where(np.isfinite(both), np.abs(both), 0.0).max(axis=0)
        return np.asarray(u * 16 * largest + 2 * exp)
    q, scale = np.abs(call.tensors["q"]), abs(float(call.params.get("scale", 1.0)))
    keys = largest_keys(call)  # [num_kv_heads, head_dim]
    group = q.shape[-2] // len(keys)
    size = scale * (q * np.repeat(keys, group, axis=0)).sum(axis=-1)
    sums, scores = facts.format("accumulate"), facts.format("scores")
    query = 0.0 if facts.query is None else facts.format("query").roundoff
    logit = size if "softcap" not in call.params else np.minimum(size, float(call.params["softcap"]))
    if "alibi_slopes" in call.tensors:
        logit = logit + np.abs(call.tensors["alibi_slopes"]) * _longest(call)
    stored = scores.roundoff if scores.roundoff > sums.roundoff else 0.0
    rescalings = _longest(call) / (facts.block or _longest(call) or 1)
    error = (gamma(q.shape[-1] + 4, sums.roundoff) + query) * size
    error = error + (16 * u + 3 * stored + facts.tanh_error * u) * logit
    return np.asarray(error + (rescalings + 3) * exp + 3 * u * np.log(_longest(call) + 1))


def largest_keys(call: Call) -> Array:
    """Return the largest finite size of each key channel in the contexts, `[num_kv_heads, head_dim]`."""
    if "k" in call.tensors and "k_cache" not in call.tensors:
        keys = call.tensors["k"]
    elif "kv_cache" in call.tensors:
        keys = _in_tables(call, call.tensors["kv_cache"][:, :, None, :])
    elif "slots" in call.tensors:
        cache, slots = call.tensors["k_cache"], call.tensors["slots"]
        keys = cache[np.divmod(slots[slots >= 0], cache.shape[1])]
    else:
        keys = _in_tables(call, call.tensors["k_cache"])
        if "k" in call.tensors:
            keys = np.concatenate([keys, call.tensors["k"]])
    size = np.abs(keys.astype(np.float64))
    return np.asarray(np.max(size, axis=0, initial=0.0, where=np.isfinite(size)))


def _in_tables(call: Call, cache: Array) -> Array:
    tables, lens = call.tensors["block_tables"], call.tensors["seq_lens"]
    needed = -(-lens // cache.shape[1])
    live = np.arange(tables.shape[-1]) < needed[..., None]
    ids = np.unique(tables[live])
    ids = ids[(ids >= 0) & (ids < len(cache))]
    whole: Array = cache[ids]
    if tables.ndim == 2:  # the tail of a last block holds anything: keep what lies inside a length
        inside = np.zeros(cache.shape[:2], np.bool_)
        for table, n in zip(tables, lens, strict=True):
            at = np.arange(int(n))
            inside[table[at // cache.shape[1]], at % cache.shape[1]] = True
        whole = cache[inside]
    return whole.reshape(-1, *cache.shape[2:])


def _longest(call: Call) -> int:
    if "seq_lens" in call.tensors:
        return int(np.max(call.tensors["seq_lens"], initial=1))
    return int(call.tensors["slots"].shape[1]) if "slots" in call.tensors else 2


def _rotation_bound(call: Call, facts: Arithmetic) -> Array:
    """Bound a rotation by angles up to twice the largest: faults move positions that far."""
    x = np.abs(call.tensors["x"])
    u, output = facts.roundoff, facts.format("output")
    reach = 2 * np.abs(np.asarray(call.tensors["positions"], np.float64))[:, None, None]
    largest = (
        x.max(axis=-1, keepdims=True, initial=0.0) * max(float(call.params.get("magnitude", 1.0)), 1.0) ** 2
    )
    off = np.minimum(reach * u * (facts.exp_error + 4), 2.0) + facts.exp_error * u
    bound: Any = 2 * largest * (off + gamma(4, output.roundoff)) + output.underflow * 8
    return np.asarray(np.broadcast_to(bound, x.shape))
