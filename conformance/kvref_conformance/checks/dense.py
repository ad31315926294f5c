"""Checks of the formula itself: weights, heads, the range of logits, rows that attend to nothing."""

from dataclasses import replace
from itertools import combinations

import numpy as np

from kvref.attention.bounds import exceeds
from kvref_conformance.cases import Case, Level, Option, lattice, prompt_cases
from kvref_conformance.checks.check import check
from kvref_conformance.claims import Claims
from kvref_conformance.probes.drawn import VARIANTS, drawn_problem
from kvref_conformance.probes.needles import coded_values, edges, hunt_in_turn, needles
from kvref_conformance.probes.random import random_problem
from kvref_conformance.problems import cast
from kvref_conformance.trial import Trial

#: The value of each variant of which two are asked together.
MIDDLE: dict[str, Option] = {
    "causal": False,
    "window": 3,
    "chunk_size": 4,
    "softcap": 5.0,
    "sinks": 2.0,
    "alibi": 0.0625,
    "spans": 3,
    "mask": 0.5,
    "v_head_dim": 32,
}


def _with_empty(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Batches with a context without tokens: first, in the middle, last; with a request without queries.

    Where a request may bring several query tokens, another batch has one with more of them than context.
    """
    cases = []
    for i, case in enumerate(lattice(claims, verb, level, prefill=False)):
        lens = list(case.seq_lens[:2])
        lens.insert(i % 3, 0)
        lens.append(case.block_size + 1)
        cases.append(replace(case, seq_lens=tuple(lens), query_lens=(1, 1, 1, 0)))
    if "prefill" not in claims.features:
        return cases
    some = cases[:1] if level == "quick" else cases
    longer = [replace(case, seq_lens=(4, 3, case.block_size + 2), query_lens=(2, 5, 1)) for case in some]
    return [*cases, *longer]


def _long(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Contexts long enough for several tiles of any kernel, decode only."""
    return lattice(claims, verb, level, prefill=False, min_len=290)


def _ramps(claims: Claims, verb: str, level: Level) -> list[Case]:
    return [case.with_options(step=(0.25, -0.25)[i % 2]) for i, case in enumerate(_long(claims, verb, level))]


def _loud(claims: Claims, verb: str, level: Level) -> list[Case]:
    sizes = (-65536.0, -256.0, 65536.0, 256.0)
    return [case.with_options(logit=sizes[i % 4]) for i, case in enumerate(lattice(claims, verb, level))]


def _widths(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Values half, two thirds and twice as wide as keys."""
    cases = lattice(claims, verb, level)
    shares = ((1, 2), (2, 3), (2, 1))
    widths = [case.head_dim * shares[i % 3][0] // shares[i % 3][1] // 8 * 8 for i, case in enumerate(cases)]
    return [case.with_options(v_head_dim=width) for case, width in zip(cases, widths, strict=True)]


def _pairs(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Every two claimed variants, over two short contexts."""
    chunks = "prefill" in claims.features
    cases = lattice(claims, verb, level)
    pairs = list(combinations([VARIANTS[name] for name in VARIANTS if name in claims.features], 2))
    return [
        replace(
            cases[i % len(cases)],
            seq_lens=(21, 10),
            query_lens=(4, 1) if chunks else (1, 1),
            options={"scale": 0.09375, "probe": "random", **{name: MIDDLE[name] for name, _ in pair}},
        )
        for i, pair in enumerate(pairs)
    ]


def _with_only(case: Case, name: str) -> Case:
    kept = ("scale", "probe", name)
    return replace(case, options={key: value for key, value in case.options.items() if key in kept})


def _ordinary(claims: Claims, verb: str, level: Level) -> list[Case]:
    """The lattice, and a prompt of several tiles of queries."""
    return [*lattice(claims, verb, level), *prompt_cases(claims, verb, level)]


@check("KV-ATTN-001", ring="numeric", cases=_ordinary)
def output_is_the_weighted_mean(trial: Trial) -> None:
    """Bell-shaped random inputs: every component within the bound of the declared arithmetic."""
    problem = random_problem(trial.case)
    trial.expect_attention(problem, trial.attend(problem))


@check("KV-ATTN-002", ring="numeric")
def scale_multiplies_once(trial: Trial) -> None:
    """Two keys a fixed score apart, so that the ratio of their weights reads out the scale."""
    case = trial.case
    scale = 0.1  # no low precision holds it
    problem = random_problem(case, scale=scale)
    keys, queries = np.zeros_like(problem.k), np.zeros_like(problem.q)
    position = np.concatenate([np.arange(n) for n in case.seq_lens] + [np.zeros(0)])
    keys[..., 0] = (position % 2)[:, None]
    queries[..., 0] = 16.0  # scores 0 and 16, weights apart by exp(16 · scale) = 5
    values = np.ones_like(problem.v) + np.asarray((position % 2 * 63)[:, None, None]).astype(problem.v.dtype)
    probe = problem.but(q=queries, k=keys, v=values.astype(problem.v.dtype))
    trial.expect_attention(probe, trial.attend(probe))


@check("KV-ATTN-003")
def query_head_reads_its_own_kv_head(trial: Trial) -> None:
    """Every value of kv head g is g + 1, so whatever the weights, head h answers h // group + 1."""
    case = trial.case
    wide = replace(case, num_kv_heads=(5, 2, 3)[case.seed % 3])
    problem = random_problem(wide)
    owner = np.arange(wide.num_kv_heads) + 1.0
    values = np.broadcast_to(owner[None, :, None], problem.v.shape)
    problem = problem.but(v=cast(values, case.dtype))
    trial.case = wide
    result = trial.attend(problem)
    expected = np.broadcast_to(np.repeat(owner, wide.group)[None, :, None], result.out.shape)
    trial.expect_equal("kv head read by out", result, np.rint(result.out), expected)


@check("KV-ATTN-004", ring="numeric")
def weights_sum_to_one(trial: Trial) -> None:
    """Every value is 1, so every output is 1: the weights are a mean, neither more nor less."""
    problem = random_problem(trial.case)
    problem = problem.but(v=np.ones_like(problem.v))
    trial.expect_attention(problem, trial.attend(problem))


@check("KV-ATTN-005", ring="numeric", cases=_loud)
def any_finite_logit_is_legal(trial: Trial) -> None:
    """All logits far below or above zero: no sentinel, no overflow, the same weights as around zero."""
    case = trial.case
    logit = trial.case.option("logit")
    size = 2.0 ** np.ceil(np.log2(abs(logit)) / 2)  # q·k = ± size² in one channel
    values = coded_values(case)
    problem = random_problem(case, scale=abs(logit) / size**2)
    queries, keys = np.zeros_like(problem.q), np.zeros_like(problem.k)
    queries[..., 1], keys[..., 1] = size, np.sign(logit) * size
    probe = problem.but(q=queries, k=keys, v=values)
    trial.expect_attention(probe, trial.attend(probe))


@check("KV-ATTN-006", ring="numeric", cases=_ramps)
def rising_and_falling_scores_are_rescaled(trial: Trial) -> None:
    """Scores rise or fall by 1/4 a token over hundreds of tokens: each tile has a new maximum, or none."""
    case, step = trial.case, trial.case.option("step")
    problem = random_problem(case, scale=1.0)
    queries, keys = np.zeros_like(problem.q), np.zeros_like(problem.k)
    position = np.concatenate([np.arange(n) for n in case.seq_lens] + [np.zeros(0)]).astype(np.int64)
    queries[..., 0], queries[..., 1] = step * 16, step
    keys[..., 0], keys[..., 1] = (position // 16)[:, None], (position % 16)[:, None]
    probe = problem.but(q=queries, k=keys, v=coded_values(case))
    trial.expect_attention(probe, trial.attend(probe))


@check("KV-ATTN-007", cases=_with_empty)
def empty_row_answers_zero(trial: Trial) -> None:
    """Rows without context, or before the start of their context, answer 0 exactly, with the declared lse."""
    case = trial.case
    lse = "lse" in trial.claims.features
    problem = needles(case, hunt_in_turn(case, edges(case)))
    result = trial.attend(problem, lse=lse)
    empty = np.isinf(trial.oracle.attention(problem).lse).all(axis=1)
    trial.expect_equal("out of an empty row", result, result.out[empty], np.zeros_like(result.out[empty]))
    if lse:
        sign = 1.0 if trial.claims.choice("empty-row-lse") == "+inf" else -1.0
        expected = np.full_like(result.lse[empty], sign * np.inf)
        trial.expect_equal("lse of an empty row", result, result.lse[empty], expected)


@check("KV-ATTN-007", features=("mask",))
def row_without_permission_answers_zero(trial: Trial) -> None:
    """A mask that forbids everything to the last token of each request: it answers 0 exactly."""
    case = trial.case
    rows = [np.ones((n_q, n), np.bool_) for n, n_q in zip(case.seq_lens, case.query_lens, strict=True)]
    for row in rows:
        row[-1:, 1:] = False
    some = random_problem(case, mask=np.concatenate([row.ravel() for row in rows]))
    expected = trial.oracle.attention(some)
    if exceeds(trial.attend(some).out, expected.out, expected.out_bound).any():
        return  # a fault of the mask, and the check of its own rule says so
    for row in rows:
        row[-1:] = False
    problem = random_problem(case, mask=np.concatenate([row.ravel() for row in rows]))
    result = trial.attend(problem)
    last = np.cumsum(case.query_lens)[np.array(case.query_lens) > 0] - 1
    trial.expect_equal("out of an empty row", result, result.out[last], np.zeros_like(result.out[last]))


@check("KV-ATTN-008", ring="numeric")
def zero_vector_is_a_token(trial: Trial) -> None:
    """Half of the keys are zero, a third of the values, and every query: each weighs as much as any other."""
    case = trial.case
    problem = random_problem(case)
    keys, values = problem.k.copy(), coded_values(case)
    keys[1::2], values[2::3] = 0, 0
    keys[:1] = 0
    problem = problem.but(q=np.zeros_like(problem.q), k=keys, v=values)
    trial.expect_attention(problem, trial.attend(problem))


@check("KV-ATTN-009", features=("value_width",), cases=_widths)
def value_width_is_its_own(trial: Trial) -> None:
    """Values half, two thirds and twice as wide as keys: needles come back whole."""
    case = trial.case
    problem = needles(case, hunt_in_turn(case, edges(case)), v_head_dim=case.option("v_head_dim"))
    trial.expect_attention(problem, trial.attend(problem))


@check("KV-ATTN-001", ring="numeric", cases=_pairs)
def variants_do_not_disturb_each_other(trial: Trial) -> None:
    """Two variants that are each right alone, asked for in one call: it is the formula with both."""
    case = trial.case
    names = [name for name in case.options if name not in ("scale", "probe")]
    for name in names:
        alone = drawn_problem(_with_only(case, name))
        expected = trial.oracle.attention(alone)
        if exceeds(trial.attend(alone).out, expected.out, expected.out_bound).any():
            return  # a fault of that variant, and the check of its own rule says so
    problem = drawn_problem(case)
    trial.expect_attention(problem, trial.attend(problem))
