"""Checks of the attended set: causal corner, windows, chunks, spans, boolean masks."""


from kvref_conformance.cases import Case, Level, lattice
from kvref_conformance.checks.check import check
from kvref_conformance.claims import Claims
from kvref_conformance.probes.needles import found_where, needles
from kvref_conformance.problems import Problem
from kvref_conformance.trial import Trial


def _with_window(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Windows below, at and above a block, in contexts long enough to leave something outside."""
    cases = lattice(claims, verb, level, min_len=6)
    sizes = [1, 3, 5, 16, 17]
    return [case.with_options(window=sizes[i % len(sizes)]) for i, case in enumerate(cases)]


def _window_edge(case: Case, window: int, *, causal: bool = True) -> tuple[list[list[int]], Problem]:
    """Needles on both sides of the left edge of the last query's window."""
    targets = [[p for p in (n - window, n - 1 - window) if 0 <= p < n] or [n - 1] for n in case.seq_lens]
    found = found_where(case, targets, lambda r, t, p: t - window < p <= t)
    return targets, needles(case, targets, found=found, window=window)


@check("KV-ATTN-020", features=("prefill",))
def causal_corner_is_bottom_right(trial: Trial) -> None:
    """Each query of a chunk finds its own position and does not find the next one."""
    case = trial.case
    targets = [
        sorted({*range(max(n - n_q - 1, 0), n)})
        for n, n_q in zip(case.seq_lens, case.query_lens, strict=True)
    ]
    corner = trial.claims.choice("causal-corner")
    first = [
        0 if corner == "top_left" else n - n_q for n, n_q in zip(case.seq_lens, case.query_lens, strict=True)
    ]

    def sees(request: int, t: int, position: int) -> bool:
        index = t - (case.seq_lens[request] - case.query_lens[request])
        return position <= first[request] + index

    problem = needles(case, targets, found=found_where(case, targets, sees))
    trial.expect_attention(problem, trial.attend(problem))


@check("KV-ATTN-021", features=("window",), cases=_with_window)
def window_holds_exactly_w_tokens(trial: Trial) -> None:
    """Needles at t − W + 1 and t − W: only the first may be found."""
    window = trial.case.option("window") + (trial.claims.choice("window-spelling") == "left")
    _, problem = _window_edge(trial.case, window)
    problem = problem.but(variant={**problem.variant, "window": trial.case.option("window")})
    trial.expect_attention(problem, trial.attend(problem))
