"""The right answer to a problem, and how far from it an honest kernel may be.

The reference answers in float64; the bound follows from the arithmetic the subject declares; the subject's
choices turn the canonical answer into the one it has promised. Nothing here has a tolerance to pick.

Realises: KV-CONF-004 named-choices.
"""

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
    """Answers problems under one subject's claims, each problem once."""

    claims: Claims
    _known: dict[bytes, Expected] = field(default_factory=dict, repr=False)

    def attention(self, problem: Problem) -> Expected:
        """Return the expected answer to a problem."""
        key = _digest(problem, self.claims)
        if key not in self._known:
            self._known[key] = _solve(problem, self.claims)
        return self._known[key]


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
    state = blake2b(b"" if problem.codes is None else problem.codes.format.encode(), digest_size=16)
    arrays = [problem.q, problem.k, problem.v, problem.seq_lens, problem.query_lens]
    for name in sorted(problem.variant):
        value = problem.variant[name]
        state.update(name.encode())
        if value is not None:
            arrays.append(np.asarray(value))
    for array in arrays:
        state.update(f"{array.shape}{array.dtype}".encode())
        state.update(np.ascontiguousarray(array).view(np.uint8).tobytes() if array.ndim else array.tobytes())
    state.update(repr((sorted(claims.choices.items()), claims.arithmetic)).encode())
    return state.digest()
