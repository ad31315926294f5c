"""Selections: for each query token a few slots of its own, in no order, and an indexer to choose them.

A selection is a boolean mask said in slots, so the answer it must give is that of attention under the mask.
Needles stand inside selections and beside them: what is named must be found, what is not must be left alone.
"""

from dataclasses import dataclass, replace

import numpy as np

from kvref.arrays import Array
from kvref.attention.arithmetic import Arithmetic, gamma
from kvref.attention.sparse import NONE, indexer_scores
from kvref_conformance.cases import Case, Level, lattice
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Call, OutputSpec, Scalar
from kvref_conformance.problems import Placement, Problem, cast, place


def choosing_cases(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Return selections below, at and above what contexts hold; at least two heads that can disagree."""
    cases = [replace(case, num_kv_heads=1, group=max(case.group, 2)) for case in lattice(claims, verb, level)]
    return [case.with_options(top_k=(4, 1, 16, 7)[i % 4]) for i, case in enumerate(cases)]


def choose(case: Case, top_k: int) -> Array:
    """Return `top_k` distinct positions for each query token, none later than its own: `[num_tokens, top_k]`.

    In no order. A token with fewer positions than `top_k` gets all of them, then −1.
    """
    rng = np.random.default_rng(case.seed + 41)
    chosen = np.full((case.num_tokens, top_k), NONE)
    for token, t in enumerate(query_positions(case)):
        some = rng.permutation(max(t + 1, 0))[:top_k]
        chosen[token, : len(some)] = some
    return chosen


def query_positions(case: Case) -> list[int]:
    """Return the position of each query token in its request."""
    lengths = zip(case.seq_lens, case.query_lens, strict=True)
    return [t for n, n_q in lengths for t in range(n - n_q, n)]


def over_selection(problem: Problem, positions: Array) -> Problem:
    """Return the problem whose query tokens attend to these positions only (−1: none)."""
    parts = [np.zeros(0, np.bool_)]
    token = 0
    for n, n_q in zip(problem.seq_lens, problem.query_lens, strict=True):
        part = np.zeros((int(n_q), int(n)), np.bool_)
        for row in part:
            row[positions[token][positions[token] >= 0]] = True
            token += 1
        parts.append(part.ravel())
    return problem.but(variant={**problem.variant, "causal": False, "mask": np.concatenate(parts)})


def present_sparse(
    problem: Problem, positions: Array, case: Case, placement: Placement, *, lse: bool = False
) -> Call:
    """Return the call of `sparse_attention` that asks a problem over selected positions."""
    placed = place(problem, case.block_size, placement)
    slots = np.minimum(positions, NONE).astype(np.int32)  # a negative entry stays the one it is
    for token, row in enumerate(positions):
        of = placed.slot_of[problem.request_of(token)]
        slots[token, row >= 0] = of[row[row >= 0]]
    tensors = {"q": problem.q, "k_cache": placed.k_cache, "v_cache": placed.v_cache, "slots": slots}
    params: dict[str, Scalar] = {"scale": problem.variant["scale"]}
    outputs = {"out": OutputSpec(problem.dtype, (*problem.q.shape[:2], problem.v.shape[2]))}
    if lse:
        params["return_lse"] = True
        outputs["lse"] = OutputSpec("float32", problem.q.shape[:2])
    return Call("sparse_attention", tensors, params, outputs)


@dataclass(frozen=True)
class Indexer:
    """The inputs of one `select_topk`, exact in the case's dtype; `weights` are float32."""

    q: Array
    """[num_tokens, num_index_heads, head_dim]"""
    k: Array
    """[sum(seq_lens), head_dim]"""
    weights: Array
    """[num_tokens, num_index_heads]"""
    case: Case

    @property
    def lengths(self) -> dict[str, Array]:
        """`query_start_loc` and `seq_lens`."""
        starts = np.concatenate([[0], np.cumsum(self.case.query_lens)])
        return {
            "query_start_loc": starts.astype(np.int32),
            "seq_lens": np.array(self.case.seq_lens, np.int32),
        }

    @property
    def scores(self) -> Array:
        """The exact scores, `[num_tokens, max(seq_lens)]`, −∞ for what may not be chosen."""
        return indexer_scores(self.q, self.k, self.weights, **self.lengths)

    def present(self, top_k: int) -> Call:
        """Return the call of `select_topk`."""
        tensors = {"q": self.q, "k": self.k, "weights": self.weights, **self.lengths}
        outputs = {"positions": OutputSpec("int32", (self.case.num_tokens, top_k))}
        return Call("select_topk", tensors, {"top_k": top_k}, outputs)

    def score_error(self, arithmetic: Arithmetic) -> Array:
        """Bound how far a kernel's scores may be from the exact ones, `[num_tokens, max(seq_lens)]`.

        A score is a sum over heads of a weight times a dot product, so each of its num_heads · head_dim
        products passes at most head_dim + num_heads + 1 roundings of the format sums are kept in; ReLU does
        not enlarge an error. Scores stored in a narrower format are rounded once more.
        """
        facts = arithmetic.resolve(self.case.dtype)
        size = indexer_scores(np.abs(self.q), np.abs(self.k), np.abs(self.weights), **self.lengths)
        size = np.where(np.isneginf(size), 0.0, size)
        sums = facts.format("accumulate")
        roundings = self.case.head_dim + self.case.num_q_heads + 1
        error = gamma(roundings, sums.roundoff) * size + roundings * self.case.num_q_heads * sums.underflow
        stored = facts.format("scores")
        return np.asarray(error + stored.roundoff * (size + error) + stored.underflow)


def indexer(case: Case, products: Array, weights: Array) -> Indexer:
    """Return an indexer whose head h scores a position by `products [sum(seq_lens), num_index_heads]`.

    Query h is one in channel h and keys hold the products there, so they are exact. `weights` are those of
    every token, `[num_index_heads]`.
    """
    heads = case.num_q_heads
    q = np.zeros((case.num_tokens, heads, case.head_dim))
    q[:, np.arange(heads), np.arange(heads)] = 1
    k = np.zeros((sum(case.seq_lens), case.head_dim))
    k[:, :heads] = products
    every = np.broadcast_to(np.asarray(weights, np.float32), (case.num_tokens, heads)).copy()
    return Indexer(cast(q, case.dtype), cast(k, case.dtype), every, case)
