"""Alterations: one call of an attending verb, and the same call with one of its inputs replaced.

Who keeps answers under a key that misses an input gives the old answer to the altered call. Contents are
random, so that every input moves every row.
"""

from dataclasses import replace

import numpy as np

from kvref_conformance.cases import Case
from kvref_conformance.contracts import Call
from kvref_conformance.probes.random import random_problem
from kvref_conformance.probes.specimens import Specimen, wrong_attention
from kvref_conformance.problems import Placement, Problem, present

#: The call before anything is altered.
UNALTERED = ""


def alterations(case: Case, *, lse: bool, turn: int = 0) -> dict[str, Specimen]:
    """Return the call and its alterations, by what is altered; another `turn` has other contents."""
    problem = random_problem(replace(case, seed=case.seed + 4001 + turn))
    where = Placement(seed=case.seed + 1)
    altered = {
        UNALTERED: problem,
        "the queries": problem.but(q=-problem.q),
        "the keys": problem.but(k=-problem.k),
        "the values": problem.but(v=-problem.v),
        # a quarter, not the negative: some kernels take positive scales only, and that is another matter
        "the scale": problem.but(variant={"scale": problem.variant["scale"] / 4}),
    }
    found = {
        what: Specimen(present(other, case, where, lse=lse), wrong_attention(other))
        for what, other in altered.items()
    }
    if case.verb == "paged_attention":
        found |= _metadata(problem, found[UNALTERED].call, case)
    return found


def _metadata(problem: Problem, call: Call, case: Case) -> dict[str, Specimen]:
    """Alter the lengths, then the tables, of a paged call whose caches stay as they are."""
    altered = {}
    b, request = case.block_size, int(np.argmax(problem.seq_lens))
    start, n = int(problem.context_start_loc[request]), int(problem.seq_lens[request])
    if n > int(problem.query_lens[request]):
        rows = np.delete(np.arange(len(problem.k)), start + n - 1)
        lens = problem.seq_lens - (np.arange(len(problem.seq_lens)) == request)
        shorter = problem.but(k=problem.k[rows], v=problem.v[rows], seq_lens=lens)
        tensors = {**call.tensors, "seq_lens": lens.astype(np.int32)}
        altered["the lengths"] = Specimen(replace(call, tensors=tensors), wrong_attention(shorter))
    if n >= 2 * b:
        rows = np.arange(len(problem.k))
        rows[start : start + b] += b  # the second block twice
        tables = call.tensors["block_tables"].copy()
        tables[request, 0] = tables[request, 1]
        other = problem.but(k=problem.k[rows], v=problem.v[rows])
        tensors = {**call.tensors, "block_tables": tables}
        altered["the block tables"] = Specimen(replace(call, tensors=tensors), wrong_attention(other))
    return altered
