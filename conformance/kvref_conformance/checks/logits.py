"""Checks of what shapes a logit or reports the weights: softcap, sinks, ALiBi, and the lse."""

from typing import Any

import numpy as np

from kvref.attention.bounds import exceeds
from kvref_conformance.cases import Case, Level, lattice
from kvref_conformance.checks.check import check
from kvref_conformance.claims import Claims
from kvref_conformance.probes.random import random_problem
from kvref_conformance.problems import Problem
from kvref_conformance.trial import Trial

#: The first slope: about 2 to the power −½, of more digits than bfloat16 has.
SLOPE = 1449 / 2048


def _long(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Contexts long enough to be split, decode only."""
    return lattice(claims, verb, level, prefill=False, min_len=290)


def _with_empty(claims: Claims, verb: str, level: Level) -> list[Case]:
    """A context without tokens between two others."""
    cases = lattice(claims, verb, level, prefill=False)
    return [
        Case(**{**case.__dict__, "seq_lens": (case.seq_lens[0], 0, 2), "query_lens": (1, 1, 1)})
        for case in cases
    ]


def _flat(case: Case, logit: float, **variant: Any) -> Problem:
    """Every pair scores `logit`; every value is 1."""
    problem = random_problem(case, **{"scale": 1.0, **variant})
    queries, keys = np.zeros_like(problem.q), np.zeros_like(problem.k)
    queries[..., 0], keys[..., 0] = logit, 1
    return problem.but(q=queries, k=keys, v=np.ones_like(problem.v))


def _sinks(case: Case, low: float, high: float) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """One sink a query head, in no order that a mix-up of heads would keep; exact in every dtype."""
    ramp = (np.rint(8 * np.linspace(low, high, case.num_q_heads)) / 8).astype(np.float32)
    return ramp[np.argsort(np.arange(case.num_q_heads) * 5 % 7, kind="stable")]


@check("KV-ATTN-030", ring="numeric", features=("lse",))
def lse_is_the_natural_log(trial: Trial) -> None:
    """Equal logits of 2 over n tokens: the lse is 2 + ln n in nats."""
    problem = _flat(trial.case, 2.0)
    result = trial.attend(problem, lse=True)
    expected = trial.oracle.attention(problem)
    trial.expect_within("lse", result, result.lse, expected.lse, expected.lse_bound)


@check("KV-ATTN-034", ring="numeric", features=("lse",))
def lse_belongs_to_its_token_and_head(trial: Trial) -> None:
    """Every (token, head) scores its own number, so a transposed lse is seen at once."""
    case = trial.case
    problem = _flat(case, 1.0)
    queries = np.zeros_like(problem.q)
    queries[..., 0] = (np.arange(case.num_tokens * case.num_q_heads) % 61).reshape(case.num_tokens, -1)
    problem = problem.but(q=queries)
    result = trial.attend(problem, lse=True)
    expected = trial.oracle.attention(problem)
    trial.expect_within("lse", result, result.lse, expected.lse, expected.lse_bound)


@check("KV-ATTN-035", ring="numeric", features=("lse", "sinks"))
def lse_leaves_the_sink_out(trial: Trial) -> None:
    """A sink that outweighs the context: the lse is still that of the context alone."""
    problem = _flat(trial.case, 1.0, sinks=_sinks(trial.case, 9.0, 12.0))
    result = trial.attend(problem, lse=True)
    expected = trial.oracle.attention(problem)
    trial.expect_within("lse", result, result.lse, expected.lse, expected.lse_bound)


@check("KV-ATTN-040", ring="numeric", features=("softcap",))
def softcap_is_cap_times_tanh(trial: Trial) -> None:
    """Logits up to a few times the cap: both the straight and the flat part of tanh are used."""
    problem = random_problem(trial.case, softcap=7.5)
    trial.expect_attention(problem, trial.attend(problem))


@check("KV-ATTN-041", ring="numeric", features=("sinks",))
def sink_takes_its_share_of_the_weight(trial: Trial) -> None:
    """All values are 1 and scale is 1, so the output is what the sink left over."""
    count = float(np.log(np.mean([n for n in trial.case.seq_lens if n])))
    sink = np.rint(8 * (1.0 + count)) / 8  # exact in every dtype: sinks are parameters in the model's
    problem = _flat(trial.case, 1.0, sinks=np.full(trial.case.num_q_heads, sink, np.float32))
    trial.expect_attention(problem, trial.attend(problem))


@check("KV-ATTN-042", ring="numeric", features=("sinks",))
def sink_belongs_to_its_query_head(trial: Trial) -> None:
    """Sinks from negligible to dominant, one each query head: the output spells them."""
    problem = _flat(trial.case, 1.0, sinks=_sinks(trial.case, -3.0, 9.0))
    trial.expect_attention(problem, trial.attend(problem))


@check("KV-ATTN-043", ring="numeric", features=("sinks",), cases=_long)
def sink_counts_once_however_the_context_is_split(trial: Trial) -> None:
    """A long context with a dominant sink: counted once a split, it would halve the output."""
    problem = _flat(trial.case, 1.0, sinks=np.full(trial.case.num_q_heads, 8.0, np.float32))
    trial.expect_attention(problem, trial.attend(problem))


@check("KV-ATTN-044", ring="numeric", features=("alibi",))
def alibi_bias_grows_with_distance(trial: Trial) -> None:
    """Equal scores, so the weights are those of the bias: slope times distance, a slope each query head."""
    case = trial.case
    slopes = SLOPE * 2.0 ** -(np.arange(case.num_q_heads) % 8).astype(np.float32)
    problem = random_problem(case, alibi_slopes=slopes)
    problem = problem.but(q=np.zeros_like(problem.q))
    # a bias counted from elsewhere moves all logits of a row alike: only the lse tells
    trial.expect_attention(problem, trial.attend(problem, lse="lse" in trial.claims.features))


@check("KV-ATTN-045", ring="numeric", features=("sinks",))
def sink_is_not_scaled(trial: Trial) -> None:
    """The scale is 1/16, then the soft cap is 2: a scaled or capped sink would lose nearly all its weight."""
    case = trial.case
    sinks = np.full(case.num_q_heads, 6.0, np.float32)
    problem = _flat(case, 16.0, scale=0.0625, sinks=sinks)
    trial.expect_attention(problem, trial.attend(problem))
    if "softcap" in trial.claims.features:
        alone = _flat(case, 1.0, softcap=2.0)
        expected = trial.oracle.attention(alone)
        if exceeds(trial.attend(alone).out, expected.out, expected.out_bound).any():
            return  # a fault of the soft cap, and the check of its own rule says so
        capped = _flat(case, 1.0, softcap=2.0, sinks=sinks)
        trial.expect_attention(capped, trial.attend(capped))


@check("KV-ATTN-046", features=("sinks",), cases=_with_empty)
def sink_alone_answers_zero(trial: Trial) -> None:
    """A row with a sink and no token answers 0 exactly: the sink has no value."""
    case = trial.case
    lse = "lse" in trial.claims.features
    problem = _flat(case, 1.0, sinks=_sinks(case, 0.5, 4.0))
    result = trial.attend(problem, lse=lse)
    trial.expect_equal("out of the empty row", result, result.out[1], np.zeros_like(result.out[1]))
    if lse and trial.claims.choice("lse-sink") == "excluded":
        sign = 1.0 if trial.claims.choice("empty-row-lse") == "+inf" else -1.0
        trial.expect_equal(
            "lse of the empty row", result, result.lse[1], np.full_like(result.lse[1], sign * np.inf)
        )
