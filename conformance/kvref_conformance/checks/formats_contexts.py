"""Checks of attention over codes at its extents: long contexts, long prompts, many heads, nothing at all.

A kernel for a quantised cache has splits, tiles and an address of its scales of its own. What it does beside
a block or past a power of two is seen only in a context, or with as many heads, as reach there.
"""

from dataclasses import replace

import numpy as np

from kvref.arrays import Array
from kvref.formats.format import Format
from kvref_conformance.cases import LONG, Case, Level
from kvref_conformance.checks.check import check
from kvref_conformance.claims import Claims
from kvref_conformance.probes.code_caches import APART, ONE, code_needles, random_codes
from kvref_conformance.probes.code_cases import attends, coded
from kvref_conformance.probes.format_cases import kind_of
from kvref_conformance.probes.needles import edges, hunt_in_turn, hunt_near, tile_edges
from kvref_conformance.problems import Problem
from kvref_conformance.trial import Result, Trial

VERB = ("quantized_paged_attention",)
#: Tokens of a kernel's tile, of which contexts end on either side.
ENDS = (64, 128, 256)
#: Query heads for each of 8, of 4 and of 1 kv heads, in turn: kernels take turns over 4 and 8.
GROUPS = ((2, 4), (5, 6), (16, 10))


def _given(kind: Format) -> bool:
    """Formats whose scales are given, one for each head or one for all."""
    return kind.group == "given"


def _own(kind: Format) -> bool:
    """Formats that are given no scale for each head."""
    return attends(kind) and kind.group != "given"


def _of_groups(kind: Format) -> bool:
    """Formats with a scale for each group of channels."""
    return kind.family in ("mx", "nvfp4")


def _ends(case: Case) -> list[Case]:
    """Decoding over contexts that end at a tile and on either side of it."""
    n = ENDS[case.seed % len(ENDS)]
    return [replace(case, seq_lens=(n + 1, n - 1, n), query_lens=(1, 1, 1), num_kv_heads=1)]


def _tiles(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Each format at the ends of one tile, and one of each kind of format over thousands of tokens."""
    cases = coded(16, vary=_ends)(claims, verb, level)
    kinds: dict[tuple[str, str], Case] = {}
    for case in cases:
        kind = kind_of(case)
        kinds.setdefault((kind.family, kind.group), case)
    return [*cases, *(replace(case, seq_lens=(LONG + 5, 70), query_lens=(1, 1)) for case in kinds.values())]


def _prompts(claims: Claims, verb: str, level: Level) -> list[Case]:
    """A prompt of several tiles of queries, and one after a context, in two formats; beyond quick in each."""
    each = list({case.option("format"): case for case in coded(17)(claims, verb, level)}.values())
    some = each[:: max(len(each) // 2, 1)][:2] if level == "quick" else each
    return [replace(case, seq_lens=(150, 7, 170), query_lens=(150, 2, 131), num_kv_heads=1) for case in some]


def _brief(case: Case) -> list[Case]:
    """A context that fills a block, and one that does not."""
    return [replace(case, seq_lens=(min(case.block_size, 16) + 3, 5), query_lens=(1, 1))]


def _crowded(case: Case) -> list[Case]:
    """Eight kv heads and four, by turns one; and as many as slots of a block where blocks are small."""
    turn = case.seed % 2
    heads = [(8, GROUPS[0][turn]), (4, GROUPS[1][turn])]
    heads += [(1, GROUPS[2][turn])] if case.seed % 3 == 0 else []
    heads += [(case.block_size, 1)] if case.block_size in (4, 8, 16) and turn else []
    lens = (min(case.block_size, 16) + 1, 5)
    return [replace(case, seq_lens=lens, query_lens=(1, 1), num_kv_heads=h, group=g) for h, g in heads]


def _shared(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Each format in every claimed dtype, with several heads."""
    cases = {case.option("format"): case for case in coded(18, _given)(claims, verb, "quick")}
    return [
        replace(
            case, seq_lens=(19, 6), query_lens=(1, 1), num_kv_heads=(3, 4, 2)[i % 3], dtype=dtype, group=1 + i
        )
        for case in cases.values()
        for i, dtype in enumerate(claims.dtypes)
    ]


def _hollow(claims: Claims, verb: str, level: Level) -> list[Case]:
    """A context without tokens first, in the middle or last, and a request without queries.

    Where a request may bring several query tokens, one that has more of them than context; and a call in
    which no request brings any.
    """
    found = []
    for i, case in enumerate(coded(19)(claims, verb, level)):
        lens = [case.block_size + 1, 2]
        lens.insert(i % 3, 0)
        found.append(replace(case, seq_lens=(*lens, 3), query_lens=(1, 1, 1, 0)))
        if "prefill" in claims.features:
            found.append(replace(case, seq_lens=(4, 3, 0), query_lens=(2, 5, 2)))
    unasked = [replace(case, seq_lens=(3, 5), query_lens=(0, 0)) for case in found[:1]]
    return [*found, *unasked]


@check("KV-FMT-090", verbs=VERB, cases=_tiles)
def codes_are_found_across_tiles(trial: Trial) -> None:
    """Contexts that end around a kernel's tiles, and one of thousands of tokens, over codes."""
    case = trial.case
    problem = code_needles(case, hunt_in_turn(case, tile_edges(case)), trial.claims.path())
    trial.expect_attention(problem, _ask(trial, problem))


@check("KV-FMT-090", verbs=VERB, features=("prefill",), cases=_prompts)
def prompts_over_codes_find_themselves(trial: Trial) -> None:
    """Prompts of several tiles of queries: those around each tile find their own position, and none later."""
    case = trial.case
    hunts = hunt_near(case, 0, 1)
    hunts[_within_tiles(case)] = -1
    problem = code_needles(case, hunts, trial.claims.path())
    trial.expect_attention(problem, _ask(trial, problem))


@check("KV-FMT-090", ring="numeric", verbs=VERB, features=("lse",), cases=coded(20, vary=_brief))
def the_lse_is_that_of_the_numbers(trial: Trial) -> None:
    """The log of the weights over random codes, whose scales count in it."""
    problem = random_codes(trial.case, trial.claims.path(), scale=0.125)
    result = trial.attend(problem, lse=True)
    expected = trial.oracle.attention(problem)
    trial.expect_within("lse", result, result.lse, expected.lse, expected.lse_bound)


@check("KV-FMT-020", ring="numeric", verbs=VERB, cases=_shared)
def one_scale_serves_all_heads(trial: Trial) -> None:
    """A scale of keys and one of values for the whole cache, which has several heads."""
    problem = random_codes(trial.case, trial.claims.path(), ONE)
    trial.expect_attention(problem, _ask(trial, problem))


@check("KV-FMT-022", ring="numeric", verbs=VERB, cases=coded(21, _given, _crowded))
def every_head_is_read_with_its_own_scale(trial: Trial) -> None:
    """Eight kv heads, four, one: no two of the given scales are alike, and none is a power of two."""
    problem = random_codes(trial.case, trial.claims.path(), APART)
    trial.expect_attention(problem, _ask(trial, problem))


@check("KV-FMT-092", verbs=VERB, cases=coded(22, _own, _crowded))
def slots_of_many_heads_have_their_own_scales(trial: Trial) -> None:
    """Needles under as many heads as slots, and under eight, four or one."""
    problem = code_needles(trial.case, hunt_near(trial.case, 0, -1, -2, -5), trial.claims.path())
    trial.expect_attention(problem, _ask(trial, problem))


@check("KV-FMT-071", verbs=VERB, cases=coded(23, _of_groups, _crowded))
def scales_of_many_heads_lie_where_declared(trial: Trial) -> None:
    """The same for scales that may take turns by fours, where heads come by fours as well."""
    problem = code_needles(trial.case, hunt_near(trial.case, -1, 0, -3, -4), trial.claims.path())
    trial.expect_attention(problem, _ask(trial, problem))


@check("KV-ATTN-007", verbs=VERB, cases=_hollow)
def empty_row_over_codes_answers_zero(trial: Trial) -> None:
    """Rows without context, or before the start of theirs, answer 0 exactly, with the declared lse."""
    case, lse = trial.case, "lse" in trial.claims.features
    problem = code_needles(case, hunt_in_turn(case, edges(case)), trial.claims.path())
    result = _ask(trial, problem)
    empty = np.isinf(trial.oracle.attention(problem).lse).all(axis=1)
    trial.expect_equal("out of an empty row", result, result.out[empty], np.zeros_like(result.out[empty]))
    if lse:
        sign = 1.0 if trial.claims.choice("empty-row-lse") == "+inf" else -1.0
        expected = np.full_like(result.lse[empty], sign * np.inf)
        trial.expect_equal("lse of an empty row", result, result.lse[empty], expected)


def _within_tiles(case: Case) -> Array:
    """Say which query tokens are neither the first nor the last of a tile of 64, nor the last of all."""
    rows = np.concatenate([np.arange(n) for n in case.query_lens] + [np.zeros(0, np.int64)])
    last = np.repeat(case.query_lens, case.query_lens) - 1 == rows
    return np.asarray((rows % 64 > 0) & (rows % 64 < 63) & ~last)


def _ask(trial: Trial, problem: Problem) -> Result:
    return trial.attend(problem, lse="lse" in trial.claims.features)
