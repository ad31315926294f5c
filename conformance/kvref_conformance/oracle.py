"""The right answer to a problem, and how far from it an honest kernel may be.

The reference answers in float64; the bound follows from the arithmetic the subject declares; the subject's
choices turn the canonical answer into the one it has promised. Nothing here has a tolerance to pick.

Realises: KV-CONF-004 named-choices.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref.attention.arithmetic import Format
from kvref.attention.batch import Batch
from kvref.attention.bounds import Bound, dense_bound
from kvref.attention.masks import Variant, VariantArgs, attended
from kvref.attention.merge import State
from kvref_conformance.claims import Claims
from kvref_conformance.code_problems import code_bound
from kvref_conformance.problems import Problem
from kvref_conformance.remembered import Remembered
from kvref_conformance.scan_oracle import ExpectedScan, exactly, within
from kvref_conformance.scan_problems import ScanProblem


@dataclass(frozen=True)
class Expected:
    """What must come back: the exact state and the componentwise bound around it."""

    out: Array
    lse: Array
    out_bound: Array
    lse_bound: Array
    exact: Array
    """[num_tokens, num_q_heads] booleans: where a needle is found, so that no rounding is left."""


@dataclass
class Oracle:
    """Answers problems under one subject's claims, and keeps the answers for when they are asked again."""

    claims: Claims
    _known: Remembered[Expected] = field(default_factory=Remembered, repr=False)
    _scans: Remembered[ExpectedScan] = field(default_factory=Remembered, repr=False)

    def attention(self, problem: Problem) -> Expected:
        """Return the expected answer to a problem."""
        key = _digest(problem, self.claims)
        return self._known.answer(key, lambda: _solve(problem, self.claims))

    def scan(self, problem: ScanProblem, *, bounded: bool = True) -> ExpectedScan:
        """Return the answer to a recurrent problem in which nothing rounds but the output, as `exactly`."""
        key = _digest_of_scan(problem, self.claims, f"exactly {bounded}")
        return self._scans.answer(key, lambda: exactly(problem, self.claims, bounded=bounded))

    def scan_within(self, problem: ScanProblem) -> ExpectedScan:
        """Return the answer to any recurrent problem, and the bound around it."""
        key = _digest_of_scan(problem, self.claims, "within")
        return self._scans.answer(key, lambda: within(problem, self.claims))


def with_choices(problem: Problem, claims: Claims) -> Problem:
    """Return the canonical problem whose answer a subject with these choices must give."""
    variant = dict(problem.variant)
    if claims.choice("window-spelling") == "left" and variant.get("window") is not None:
        variant["window"] += 1
    if claims.choice("causal-corner") == "top_left" and variant.get("causal", True):
        variant = _from_top_left(problem, variant)
    return problem.but(variant=variant)


def _from_top_left(problem: Problem, variant: dict[str, Any]) -> dict[str, Any]:
    """Say a top-left variant as an explicit mask: query i of a request stands at position i."""
    rules = Variant(**variant)
    spans = None if rules.span_ids is None else np.asarray(rules.span_ids)
    parts = []
    for request, (n, n_q) in enumerate(zip(problem.seq_lens, problem.query_lens, strict=True)):
        start = problem.context_start_loc[request]
        own = None if spans is None else spans[start : start + n]
        parts.append(attended(rules, np.arange(n_q), int(n), own).ravel())
    mask = np.concatenate([*parts, np.zeros(0, np.bool_)])
    if rules.mask is not None:
        mask &= np.asarray(rules.mask)
    return {**variant, "causal": False, "window": None, "chunk_size": None, "span_ids": None, "mask": mask}


def _solve(problem: Problem, claims: Claims) -> Expected:
    canonical = with_choices(problem, claims)
    arguments: VariantArgs = canonical.variant  # type: ignore[assignment]  # a Mapping with the same keys
    if canonical.codes is not None:
        state, bound = code_bound(canonical, arguments, claims)
    else:
        state, bound = dense_bound(
            canonical.q,
            canonical.k,
            canonical.v,
            query_start_loc=canonical.query_start_loc,
            seq_lens=canonical.seq_lens,
            arithmetic=claims.arithmetic.resolve(problem.dtype),
            **arguments,
        )
    lse, lse_bound = _spell_lse(state, bound, problem, claims)
    exact = _finds(canonical)
    return Expected(state.out, lse, np.where(exact[..., None], 0.0, bound.out), lse_bound, exact)


def _finds(problem: Problem) -> Array:
    """Say for each query token and head whether the needle it hunts is in its attended set."""
    found = np.zeros(problem.q.shape[:2], np.bool_)
    if problem.hunts is None:
        return found
    arguments: VariantArgs = problem.variant  # type: ignore[assignment]  # a Mapping with the same keys
    batch = Batch.of(problem.q, problem.query_start_loc, problem.seq_lens, arguments)
    for request, rows, queries in batch.by_request(None):
        allowed = batch.allowed(request, queries)
        hunted = problem.hunts[rows]
        if allowed.shape[1]:
            found[rows] = np.take_along_axis(allowed, np.maximum(hunted, 0), axis=1) & (hunted >= 0)
    return found


def _spell_lse(state: State, bound: Bound, problem: Problem, claims: Claims) -> tuple[Array, Array]:
    """Turn the canonical lse (nats, without the sink, −inf if empty) into the declared spelling."""
    lse, slack = state.lse, bound.lse
    if claims.arithmetic.working == "float64":  # it comes back as float32 all the same
        slack = slack + np.where(np.isinf(lse), 0.0, Format.of("float32").rounded(np.abs(lse)))
    if claims.choice("lse-sink") == "included" and problem.variant.get("sinks") is not None:
        lse = np.logaddexp(lse, np.asarray(problem.variant["sinks"], np.float64))
        slack = np.where(np.isneginf(state.lse), np.spacing(np.abs(lse).astype(np.float32)), slack)
    if claims.choice("lse-base") == "2":
        lse = lse / np.log(2.0)
        slack = slack / np.log(2.0) + 2.0**-24 * np.abs(np.where(np.isinf(lse), 0.0, lse))
    if claims.choice("empty-row-lse") == "+inf":
        lse = np.where(np.isneginf(lse), np.inf, lse)
    return lse, slack


def _digest(problem: Problem, claims: Claims) -> bytes:
    code = "" if problem.codes is None else problem.codes.format
    arrays = {"q": problem.q, "k": problem.k, "v": problem.v}
    arrays |= {"seq_lens": problem.seq_lens, "query_lens": problem.query_lens}
    given = {name: np.asarray(value) for name, value in problem.variant.items() if value is not None}
    said = repr((code, sorted(problem.variant), sorted(claims.choices.items()), claims.arithmetic))
    return _digest_of_arrays(said, arrays | given)


def _digest_of_scan(problem: ScanProblem, claims: Claims, rule: str) -> bytes:
    said = repr((rule, problem.verb, problem.dtype, sorted(problem.params.items()), claims.scan_arithmetic))
    arrays = {**problem.inputs, "lens": problem.lens, "initial": problem.initial}
    return _digest_of_arrays(said, arrays)


def _digest_of_arrays(said: str, arrays: Mapping[str, Array]) -> bytes:
    state = blake2b(said.encode(), digest_size=16)
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        state.update(f"{name}{array.shape}{array.dtype}".encode())
        state.update(array.tobytes())
    return state.digest()
