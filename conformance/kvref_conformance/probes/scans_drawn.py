"""Drawn problems of recurrent layers: any lengths, heads and widths, any claimed optional arguments together.

Fixed cases change one thing at a time. Here all of them are drawn, and what was drawn stands in the case: a
find can be replayed, and made smaller by hand or by greed.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from kvref_conformance.cases import Case, Option
from kvref_conformance.claims import MINIMUM_GROUPS, Claims
from kvref_conformance.probes.scans import coded
from kvref_conformance.probes.scans_random import VARIANTS, random_scan
from kvref_conformance.problems import cast
from kvref_conformance.scan_cases import OF_CHANNELS, UNGROUPED, chunk_of, is_update, scan_of, widths_of
from kvref_conformance.scan_problems import Pool, ScanProblem, state_dtype

#: Tokens of the longest request that is drawn, and of all of a batch.
LONGEST, TOGETHER = 300, 600
#: How large states begin, beside the usual size.
SIZES = (1.0, 1.0, 0.001, 30.0)


def drawn_scans(claims: Claims, verb: str, seeds: Iterable[int]) -> list[Case]:
    """Return one case for each seed."""
    return [_draw(claims, verb, seed) for seed in seeds]


def drawn_scan(case: Case, claims: Claims) -> ScanProblem:
    """Return the problem of a drawn case: exact, or with everything that rounds."""
    if case.option("exact"):
        return coded(case, claims)
    problem = random_scan(case, claims, str(case.option("with")).split())
    kind = state_dtype(problem, claims)
    return problem.but(initial=cast(case.option("size") * problem.initial, kind).astype(np.float64))


def drawn_pool(case: Case, claims: Claims) -> Pool:
    """Return where the states of a drawn case lie, as far as it is about an update."""
    rng = np.random.default_rng([case.seed, 29])
    padding = rng.integers(0, len(case.seq_lens) + 1, 3) if "padding_rows" in claims.features else ()
    return Pool(
        seed=case.seed,
        poison=float(rng.choice([np.nan, 96.0, 0.1])),
        spare=int(rng.integers(0, 300)),
        gap=int(rng.integers(0, 9)) if "strided" in claims.features else 0,
        padding=tuple(int(before) for before in padding),
        padded_with=np.nan,
    )


def _draw(claims: Claims, verb: str, seed: int) -> Case:
    rng = np.random.default_rng([31, seed])

    def one_of(values: Iterable[Any]) -> Any:
        some = tuple(values)
        return some[int(rng.integers(len(some)))]

    scan = scan_of(verb)
    group = 1 if scan in (*OF_CHANNELS, *UNGROUPED) else one_of((*MINIMUM_GROUPS, 2, 5))
    lens = _update_lens(rng) if is_update(verb) else _lens(rng, chunk_of(claims))
    features = [name for name in VARIANTS[scan] if name in claims.features and rng.random() < 0.5]
    options: dict[str, Option] = {
        **widths_of(claims, verb, int(rng.integers(0, 64))),
        "exact": bool(rng.random() < 0.4),
        "with": " ".join(features),
        "size": one_of(SIZES),
    }
    return Case(
        verb=verb,
        seq_lens=tuple(n + before for n, before in lens),
        query_lens=tuple(n for n, _ in lens),
        num_kv_heads=one_of((1, 2, 3, 4, 5)),
        group=group,
        head_dim=one_of(claims.head_dims),
        dtype=one_of(claims.dtypes),
        seed=seed,
        options=options,
    )


def _lens(rng: np.random.Generator, chunk: int) -> list[tuple[int, int]]:
    """Return tokens, and tokens scanned before, of some requests: around the chunk grid, or anywhere."""
    near = [n for k in range(5) for n in (k * chunk - 1, k * chunk, k * chunk + 1) if 0 <= n <= LONGEST]
    lens: list[tuple[int, int]] = []
    for _ in range(int(rng.choice([1, 2, 3, 5, 9]))):
        any_length = int(rng.integers(0, LONGEST if rng.random() < 0.3 else 9))
        n = int(rng.choice(near)) if rng.random() < 0.5 else any_length
        n = n if sum(m for m, _ in lens) + n <= TOGETHER else 0
        lens.append((n, int(rng.choice([0, 1, 7]))))
    return lens


def _update_lens(rng: np.random.Generator) -> list[tuple[int, int]]:
    return [(1, int(rng.choice([0, 1, 7]))) for _ in range(int(rng.choice([1, 2, 5, 40])))]
