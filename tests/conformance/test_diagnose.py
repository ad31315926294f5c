"""Tests of the diagnosis: faults are known again in kernels that share nothing with the museum.

The kernels here run token by token, in float64, over slots counted by hand. Each fault is written anew, in
another order of operations than the exhibit of its class, and what is returned is rounded once, to the dtype
of q. The class has to be found from the numbers alone.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvref.arrays import Array
from kvref.attention.arithmetic import Arithmetic
from kvref_conformance.cases import Case
from kvref_conformance.claims import FEATURES, Claims
from kvref_conformance.contracts import Answer, Call
from kvref_conformance.museum.diagnose import diagnose
from kvref_conformance.probes.random import random_problem
from kvref_conformance.problems import Placement, present

#: The fault of a disguised kernel, the exhibit of its class, the requirement it breaks, the variant it needs.
DISGUISES: list[tuple[str, str, str, dict[str, Any]]] = [
    ("wide window", "WindowOneTooMany", "KV-ATTN-021", {"window": 9}),
    ("narrow window", "WindowOneTooFew", "KV-ATTN-021", {"window": 9}),
    ("no window", "WindowIgnored", "KV-ATTN-021", {"window": 9}),
    ("two-sided window", "WindowOnBothSides", "KV-ATTN-022", {"window": 9}),
    ("top left", "CornerTopLeft", "KV-ATTN-020", {}),
    ("ahead", "CausalOneAhead", "KV-ATTN-020", {}),
    ("blind to itself", "CausalStrict", "KV-ATTN-020", {}),
    ("one more token", "LengthIsLastIndex", "KV-ATTN-011", {}),
    ("last token missing", "LastTokenMissing", "KV-ATTN-011", {}),
    ("dealt heads", "HeadsTiled", "KV-ATTN-003", {}),
    ("scale squared", "ScaleTwice", "KV-ATTN-002", {}),
    ("powers of two", "ExponentialBaseTwo", "KV-ATTN-001", {}),
    ("half blocks", "KernelBlockHalfAsLarge", "KV-ATTN-010", {}),
    ("sorted blocks", "BlocksInMemoryOrder", "KV-ATTN-013", {}),
    ("consecutive", "BlocksAssumedConsecutive", "KV-ATTN-013", {}),
    ("sliding chunk", "ChunkSlides", "KV-ATTN-023", {"chunk_size": 12}),
    ("no mask", "MaskForgotten", "KV-ATTN-025", {"mask": "random"}),
    ("clipped", "SoftcapClips", "KV-ATTN-040", {"softcap": 2.0}),
    ("no cap", "SoftcapIgnored", "KV-ATTN-040", {"softcap": 2.0}),
    ("no sink", "SinkForgotten", "KV-ATTN-041", {"sinks": "ramp"}),
    ("shared sink", "SinkOfFirstHeadInGroup", "KV-ATTN-042", {"sinks": "ramp"}),
    ("scaled sink", "SinkScaled", "KV-ATTN-045", {"sinks": "ramp"}),
    ("sink in lse", "LseIncludesSink", "KV-ATTN-035", {"sinks": "ramp"}),
    ("rewards distance", "AlibiRewardsDistance", "KV-ATTN-044", {"alibi_slopes": "ramp"}),
    ("bits", "LseInBits", "KV-ATTN-030", {}),
    ("head-major", "LseHeadMajor", "KV-ATTN-034", {}),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("fault", "exhibit", "requirement", "variant"), DISGUISES)
def test_fault_is_recognised_in_disguise(
    fault: str, exhibit: str, requirement: str, variant: dict[str, Any], dtype: str
) -> None:
    """The same fault in a kernel written from scratch, on random inputs, is called by its name first."""
    call, claims = _call(dtype, variant), _claims(dtype)
    found = [match.exhibit for match in diagnose(call, answer_in_disguise(call, fault), requirement, claims)]
    assert [e.name for e in found][:1] == [exhibit]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_right_answer_has_no_diagnosis(dtype: str) -> None:
    """A kernel without a fault looks like no fault, whoever wrote it."""
    call = _call(dtype, {"window": 9, "sinks": "ramp"})
    assert list(diagnose(call, answer_in_disguise(call, "none"), "KV-ATTN-001", _claims(dtype))) == []


def test_unknown_fault_has_no_diagnosis() -> None:
    """An answer that is wrong in a new way is not forced into an old one."""
    call = _call("float32", {})
    answer = answer_in_disguise(call, "none")
    wrong = Answer({**answer.outputs, "out": answer.outputs["out"] * 1.25})
    assert list(diagnose(call, wrong, "KV-ATTN-001", _claims("float32"))) == []


def test_diagnosis_names_class_and_reports() -> None:
    """The sentence in a report says what it looks like and where that was seen."""
    call = _call("float32", {"window": 9})
    found = list(diagnose(call, answer_in_disguise(call, "wide window"), "KV-ATTN-021", _claims("float32")))
    assert found[0].sentence == (
        "the window held one more token (F01; seen in onnxruntime#25927, transformers#39408)"
    )


def test_declared_spellings_are_no_fault() -> None:
    """An lse that is declared to be in base 2 is compared in nats."""
    call = _call("float32", {"window": 9})
    claims = replace(_claims("float32"), choices={"lse-base": "2"})
    wide = answer_in_disguise(call, "wide window")
    declared = Answer({**wide.outputs, "lse": (wide.outputs["lse"] / np.log(2.0)).astype(np.float32)})
    assert next(iter(diagnose(call, declared, "KV-ATTN-021", claims))).exhibit.name == "WindowOneTooMany"


def _long(query_lens: tuple[int, ...]) -> Call:
    """Contexts of thousands of tokens with a window."""
    case = Case(verb="paged_attention", seq_lens=(900, 4096), query_lens=query_lens, group=4)
    return present(random_problem(case, window=200), case, Placement(seed=3))


def test_long_context_is_diagnosed_by_its_worst_request() -> None:
    """A call from someone's own test has thousands of tokens; one request of it shows most faults."""
    call = _long((1, 1))
    q, v = (call.tensors[name].astype(np.float64) for name in ("q", "v_cache"))
    out = np.zeros(call.outputs["out"].shape, np.float32)
    for request, n in enumerate((900, 4096)):
        at = np.arange(n - 201, n)  # one more than the window
        where = call.tensors["block_tables"][request, at // 16], at % 16
        for head in range(8):
            s = call.tensors["k_cache"][where][:, head // 4] @ q[request, head] * call.params["scale"]
            p = np.exp(s - s.max())
            out[request, head] = p / p.sum() @ v[where][:, head // 4]
    found = diagnose(call, Answer({"out": out}), "KV-ATTN-021", _claims("float32"))
    assert [match.exhibit.name for match in found] == ["WindowOneTooMany"]


def test_what_a_large_call_leaves_untried_is_said() -> None:
    """Trying every fault on a long prompt would take minutes."""
    call = _long((200, 300))
    out = np.zeros(call.outputs["out"].shape, np.float32)
    assert diagnose(call, Answer({"out": out}), "KV-ATTN-001", _claims("float32")).skipped > 0


def _claims(dtype: str) -> Claims:
    return Claims(arithmetic=Arithmetic(), dtypes=(dtype,), features=tuple(FEATURES))


def _call(dtype: str, variant: dict[str, Any]) -> Call:
    """Random inputs over two requests of unequal length, a chunk of queries in one."""
    case = Case(
        verb="paged_attention", seq_lens=(37, 21), query_lens=(5, 1), num_kv_heads=2, group=3, dtype=dtype
    )
    arrays = {
        "ramp": np.linspace(-1.0, 2.0, case.num_q_heads, dtype=np.float32),
        "random": np.random.default_rng(5).integers(0, 2, 5 * 37 + 21).astype(np.bool_),
    }
    given: dict[str, Any] = {
        name: arrays[value] if isinstance(value, str) else value for name, value in variant.items()
    }
    if "mask" in given:
        given["mask"][4 * 37 : 5 * 37] |= np.arange(37) > 30
    return present(random_problem(case, **given), case, Placement(seed=3), lse=True)


def answer_in_disguise(call: Call, fault: str) -> Answer:
    """Answer a paged call with one fault."""
    t, p = call.tensors, call.params
    q, tables = t["q"].astype(np.float64), t["block_tables"]
    size = t["k_cache"].shape[1]
    keys, values = (
        t[name].astype(np.float64).reshape(-1, *t[name].shape[2:]) for name in ("k_cache", "v_cache")
    )
    out = np.zeros((*q.shape[:2], values.shape[-1]))
    lse = np.full(q.shape[:2], -np.inf)
    for request, n in enumerate(int(n) for n in t["seq_lens"]):
        first, last = (int(x) for x in t["query_start_loc"][request : request + 2])
        blocks = [int(b) for b in tables[request]]
        needed = -(-n // size)
        if fault == "sorted blocks":
            blocks = sorted(blocks[:needed]) + blocks[needed:]
        unit = size // 2 if fault == "half blocks" else size
        slot = [blocks[j // size] * unit + j % size for j in range(min(n + 1, size * len(blocks)))]
        if fault == "consecutive":
            slot = [(blocks[0] * size + j) % len(keys) for j in range(n)]
        for row in range(first, last):
            at = _position(fault, n, last - first, row - first)
            for head in range(q.shape[1]):
                kv = _kv_head(fault, head, q.shape[1], keys.shape[1])
                seen = [j for j in range(len(slot)) if _sees(fault, p, t, at, j, n, row - first, request)]
                scores = [_logit(fault, p, t, q[row, head] @ keys[slot[j], kv], head, at, j) for j in seen]
                cut = _hidden_logits(fault, p, n, seen)
                out[row, head], lse[row, head] = _average(
                    fault,
                    p,
                    t,
                    scores,
                    [values[slot[j], kv] for j in seen],
                    head,
                    q.shape[1] // keys.shape[1],
                    cut,
                )
    outputs = {"out": out.astype(t["q"].dtype)}
    if "lse" in call.outputs:
        outputs["lse"] = _spelled(fault, lse).astype(np.float32)
    return Answer(outputs)


def _position(fault: str, n: int, rows: int, row: int) -> int:
    return row if fault == "top left" else n - rows + row


def _kv_head(fault: str, head: int, num_q_heads: int, num_kv_heads: int) -> int:
    group = num_q_heads // num_kv_heads
    if fault == "dealt heads":
        return head - num_kv_heads * (head // num_kv_heads)
    return head // group


def _sees(fault: str, p: Any, t: Any, at: int, j: int, n: int, row: int, request: int) -> bool:
    end = at + {"one more token": 1, "last token missing": -1, "ahead": 1}.get(fault, 0)
    if fault == "last token missing":
        end = min(at, n - 2)
    if fault == "ahead":
        end = min(end, n - 1)
    if fault == "blind to itself":
        end = at - 1
    window = p.get("window")
    if window is not None:
        reach = window + {"wide window": 1, "narrow window": -1, "no window": 10**6}.get(fault, 0)
        if fault == "two-sided window":
            return bool(abs(j - at) <= reach - 1 and j < n)
        if at - j > reach - 1:
            return False
    chunk = p.get("chunk_size")
    if chunk is not None:
        start = at - chunk + 1 if fault == "sliding chunk" else at - at % chunk
        if j < start:
            return False
    if j > end:
        return False
    if "mask" in t and fault != "no mask":
        rows = np.diff(t["query_start_loc"])
        start = sum(int(r) * int(m) for r, m in zip(rows[:request], t["seq_lens"][:request], strict=True))
        return bool(t["mask"][start + row * n + j])
    return True


def _logit(fault: str, p: Any, t: Any, product: float, head: int, at: int, j: int) -> float:
    scale = p["scale"] ** 2 if fault == "scale squared" else p["scale"]
    s = product * scale
    cap = p.get("softcap")
    if cap is not None and fault != "no cap":
        s = min(max(s, -cap), cap) if fault == "clipped" else cap * math.tanh(s / cap)
    if "alibi_slopes" in t:
        slope = float(t["alibi_slopes"][head])
        s += slope * (at - j) if fault == "rewards distance" else -slope * (at - j)
    return float(s)


def _hidden_logits(fault: str, p: Any, n: int, seen: list[int]) -> list[float]:
    """Return logits of masked positions that still weigh something."""
    return [-p["softcap"]] * (n - len(seen)) if fault == "capped mask" else []


def _average(
    fault: str,
    p: Any,
    t: Any,
    scores: list[float],
    values: list[Array],
    head: int,
    group: int,
    hidden: list[float],
) -> tuple[Array | float, float]:
    if not scores:
        return 0.0, -math.inf
    base = 2.0 if fault == "powers of two" else math.e
    top = max(scores)
    weights = [base ** (s - top) for s in scores]
    total = sum(weights) + sum(base ** (s - top) for s in hidden)
    lse = top * math.log(base) + math.log(sum(weights))
    if "sinks" in t and fault != "no sink":
        sink = float(t["sinks"][head // group * group if fault == "shared sink" else head])
        sink *= p["scale"] if fault == "scaled sink" else 1.0
        total += base ** (sink - top)
        if fault == "sink in lse":
            lse = math.log(math.exp(lse - sink) + 1) + sink
    return sum(w * v for w, v in zip(weights, values, strict=True)) / total, lse


def _spelled(fault: str, lse: Array) -> Array:
    if fault == "bits":
        return lse * math.log2(math.e)
    if fault == "head-major":
        return np.array([lse[i, h] for h in range(lse.shape[1]) for i in range(len(lse))]).reshape(lse.shape)
    return lse
