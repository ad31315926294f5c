"""Checks of variants over codes: whatever may be asked of attention is asked where the cache is quantised.

Kernels for quantised caches are others than the plain ones, and what one of them forgot is right everywhere
else. Each claimed variant is asked of each format, over short contexts; every two claimed ones together.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from kvref_conformance.cases import Case, Level, Option
from kvref_conformance.checks.check import check
from kvref_conformance.claims import Claims
from kvref_conformance.probes.code_caches import code_needles, random_codes
from kvref_conformance.probes.code_cases import coded, holds
from kvref_conformance.probes.drawn import VARIANTS, variant_of
from kvref_conformance.probes.format_cases import kind_of
from kvref_conformance.probes.needles import edges, hunt_in_turn, hunt_near
from kvref_conformance.problems import VIEWS, Placement, Problem
from kvref_conformance.trial import Result, Trial

VERB = ("quantized_paged_attention",)
#: Contexts that fill a block and some of the next, and what of them is asked.
SHORT, ASKED = (21, 10), (4, 1)
#: What each variant is set to, in turn: of one token, within a block, past it, past the context; caps that
#: bend and caps that hardly do; sinks that nobody notices and sinks that take all.
SETTINGS: dict[str, tuple[Option, ...]] = {
    "causal": (False,),
    "window": (9, 1, 17, 1000),
    "chunk_size": (4, 16, 7),
    "softcap": (1.5, 0.5, 30.0),
    "sinks": (1.5,),
    "alibi": (0.0625, 0.5),
    "spans": (3, 6),
    "mask": (0.5,),
}
#: Sinks in no order of heads: from far below the scores to far above them.
SINKS = (2.0, -6.0, 9.0, 0.5, 5.0, -2.0, 30.0, 1.0, 7.0, 3.5, -1.0)
#: The option that says how wide values are.
WIDTH = "v_head_dim"


def _short(case: Case) -> Case:
    """Return a case over short contexts; a query before the last sees less of them than the last."""
    chunks = any(n > 1 for n in case.query_lens)
    return replace(case, seq_lens=SHORT, query_lens=ASKED if chunks else (1, 1))


def _set(name: str) -> Callable[[Case], Sequence[Case]]:
    """Return what gives a case a variant, its settings by turns."""
    settings = SETTINGS[name]
    return lambda case: [_short(case).with_options(**{name: settings[case.seed % len(settings)]})]


def _windows(case: Case) -> list[Case]:
    """Two windows for each case, of which one ends within a context of several blocks."""
    wide = case.with_options(window=(case.block_size + 1, case.block_size - 1 or 1, 9)[case.seed % 3])
    return [wide, *_set("window")(case)]


def _widths(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Values half as wide as keys, twice, or as wide and a half, whichever the format can have."""
    found = []
    for i, case in enumerate(coded(13)(claims, verb, level)):
        widths = [case.head_dim * 3 // 2, case.head_dim * 2, case.head_dim // 2]
        fitting = [w for w in widths if w % 8 == 0 and holds(kind_of(case), claims.path(), w)]
        if fitting:
            found.append(_short(case).with_options(**{WIDTH: fitting[i % len(fitting)]}))
    return found


def _pairs(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Every two claimed variants, in one format each; beyond level quick in every format."""
    points = coded(14)(claims, verb, "quick" if level == "quick" else "full")
    names = [VARIANTS[feature][0] for feature in VARIANTS if feature in claims.features]
    pairs = list(combinations([name for name in names if name != WIDTH], 2))
    formats = list(dict.fromkeys(str(point.option("format")) for point in points))
    own = {name: [point for point in points if point.option("format") == name] for name in formats}
    return [
        _short(own[name][i % len(own[name])]).with_options(**{part: SETTINGS[part][0] for part in pair})
        for i, pair in enumerate(pairs)
        for name in ([formats[i % len(formats)]] if level == "quick" and formats else formats)
    ]


def _far(claims: Claims, verb: str, level: Level) -> list[Case]:
    """One small case: its memory is almost all untouched."""
    size = min(claims.block_sizes, key=lambda b: abs(b - 16))
    own = replace(claims, block_sizes=(size,))
    return [
        replace(case, seq_lens=(size + 1, 3), query_lens=(1, 1), num_kv_heads=2, group=3)
        for case in coded(15)(own, verb, "quick")[:1]
    ]


@check("KV-FMT-094", ring="numeric", verbs=VERB, features=("window",), cases=coded(5, vary=_windows))
def windows_act_on_codes(trial: Trial) -> None:
    """Windows of one token, of less and more than a block, and wider than the context."""
    _hold(trial)


@check("KV-FMT-094", ring="numeric", verbs=VERB, features=("softcap",), cases=coded(6, vary=_set("softcap")))
def soft_caps_act_on_codes(trial: Trial) -> None:
    """Soft caps that bend the scores of random codes."""
    _hold(trial)


@check("KV-FMT-094", ring="numeric", verbs=VERB, features=("sinks",), cases=coded(7, vary=_set("sinks")))
def sinks_act_on_codes(trial: Trial) -> None:
    """A sink for each head over random codes, from far below their scores to far above."""
    _hold(trial)


@check("KV-FMT-094", ring="numeric", verbs=VERB, features=("alibi",), cases=coded(8, vary=_set("alibi")))
def slopes_act_on_codes(trial: Trial) -> None:
    """A slope for each head over random codes."""
    _hold(trial)


@check("KV-FMT-094", ring="numeric", verbs=VERB, features=("mask",), cases=coded(9, vary=_set("mask")))
def masks_act_on_codes(trial: Trial) -> None:
    """A mask with holes over random codes."""
    _hold(trial)


@check("KV-FMT-094", ring="numeric", verbs=VERB, features=("spans",), cases=coded(10, vary=_set("spans")))
def spans_act_on_codes(trial: Trial) -> None:
    """Spans that reach beyond their query, over random codes."""
    _hold(trial)


@check(
    "KV-FMT-094",
    ring="numeric",
    verbs=VERB,
    features=("chunk_size",),
    cases=coded(11, vary=_set("chunk_size")),
)
def chunks_act_on_codes(trial: Trial) -> None:
    """Chunks that do and do not divide a block, over random codes."""
    _hold(trial)


@check(
    "KV-FMT-094", ring="numeric", verbs=VERB, features=("non_causal",), cases=coded(12, vary=_set("causal"))
)
def the_future_counts_in_codes(trial: Trial) -> None:
    """With causal=False every query sees the whole of its context of random codes."""
    _hold(trial)


@check("KV-FMT-094", ring="numeric", verbs=VERB, features=("value_width",), cases=_widths)
def values_of_codes_have_their_own_width(trial: Trial) -> None:
    """Values narrower or wider than keys: their codes and scales have other extents."""
    _hold(trial)


@check("KV-FMT-094", ring="numeric", verbs=VERB, cases=_pairs)
def variants_over_codes_do_not_disturb_each_other(trial: Trial) -> None:
    """Two variants asked for in one call."""
    _hold(trial)


@check("KV-ATTN-019", verbs=VERB, features=("strided",), cases=coded(15, vary=lambda case: [_short(case)]))
def strides_of_codes_are_honoured(trial: Trial) -> None:
    """Caches of codes with a gap after every block, another for values, and with heads before offsets."""
    case = trial.case
    problem = code_needles(case, hunt_in_turn(case, edges(case)), trial.claims.path())
    dense = trial.attend(problem, Placement(seed=case.seed))
    for view in VIEWS:
        result = trial.attend(problem, Placement(seed=case.seed, view=view))
        trial.expect_same(f"the caches are views with {view}", problem, result, dense)


@check("KV-ATTN-018", verbs=VERB, features=("strided",), cases=_far)
def codes_beyond_two_to_the_32(trial: Trial) -> None:
    """Blocks of codes 2^30 bytes apart: offsets that 31 bits do not hold, one that 32 bits take for small."""
    case = trial.case
    problem = code_needles(case, hunt_near(case, 0, -1, -case.block_size), trial.claims.path())
    near = Placement(seed=case.seed, tables=np.array([[4, 2, 0], [3, 0, 0]]), num_blocks=5)
    far = replace(near, block_stride=2**30 + 64)
    what = "blocks of codes lie 2^30 bytes apart"
    trial.expect_same(what, problem, trial.attend(problem, far), trial.attend(problem, near))


def _hold(trial: Trial) -> None:
    """Hold an answer under the variants of a case to the bound, its lse as well where that is claimed."""
    case, path = trial.case, trial.claims.path()
    variant: dict[str, Any] = variant_of(case)
    if "sinks" in variant:
        variant["sinks"] = np.resize(SINKS, case.num_q_heads).astype(np.float32)
    problem = random_codes(case, path, **variant)
    trial.expect_attention(problem, _ask(trial, problem))


def _ask(trial: Trial, problem: Problem) -> Result:
    return trial.attend(problem, lse="lse" in trial.claims.features)
