"""A search for failing cases outside the fixed ones: seeded, bounded by time, and never a verdict.

Each step takes a fixed case of some check and changes its lengths, heads, width, block size, dtype and seed
within the claims. A failure is made small, tried on an honest implementation, and saved as a case file.
Managers are searched by drawn programs instead (`fuzz_programs`); a subject with both has its time divided.

Realises: KV-CONF-021 fuzz-never-decides.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from kvref.errors import ArgumentError
from kvref_conformance.cases import Case
from kvref_conformance.checks.check import Check
from kvref_conformance.claims import MINIMUM_GROUPS, Claims
from kvref_conformance.host import Host
from kvref_conformance.managers import AREAS, MANAGERS
from kvref_conformance.oracle import Oracle
from kvref_conformance.requirements import load_requirements
from kvref_conformance.runner.casefile import MAX_ELEMENTS, save_case
from kvref_conformance.runner.evaluate import evaluate, plan
from kvref_conformance.runner.failures import case_file
from kvref_conformance.runner.finds import FINDS_EACH, Finds
from kvref_conformance.runner.fuzz_programs import ProgramSearch, Shard
from kvref_conformance.runner.honest import honest_under
from kvref_conformance.runner.shrink import shrink
from kvref_conformance.runner.suite import Settings

#: Tokens a case may grow to: a search is many small questions.
LONGEST = 192
#: Every program and every case of a seed.
WHOLE = Shard()


def fuzz(
    host: Host,
    settings: Settings,
    *,
    seconds: float,
    seed: int,
    out: Path,
    limit: int | None = None,
    shard: Shard = WHOLE,
    now: Callable[[], float] = time.monotonic,
) -> Finds:
    """Search until the time is spent, or `limit` cases of verbs and `limit` operations of managers.

    What fails is saved under `out`. The cases follow from the seed and the shard; only how many are tried
    depends on the time.
    Raises: Failed if the subject cannot be asked; ArgumentError if it offers nothing that is asked for, or a
    find cannot be saved.
    """
    hello = host.hello()
    claims = settings.claims(Claims.from_dict(hello.claims))
    offered = settings.verbs(hello.verbs)
    if not offered:
        asked = ", ".join(settings.areas or AREAS)
        raise ArgumentError(f"{hello.name} offers {', '.join(hello.verbs) or 'no verb'}, expected {asked}")
    finds = Finds(seed)
    areas = [name for name in offered if "." not in name]
    verbs = tuple(area for area in areas if area not in MANAGERS)
    began = now()
    until = began + seconds * len(verbs) / len(areas)
    if verbs:
        start = plan(verbs, claims, "full", rings=(*settings.rings, "fuzz"))
        _search_cases(start, host, Oracle(claims), finds, out, shard, until, limit, now)
    if len(verbs) < len(areas):
        search = ProgramSearch(host, claims, offered, finds, out)
        search.search(seed, began + seconds, shard=shard, limit=limit, now=now)
    return finds


def _search_cases(
    start: Sequence[tuple[Check, Case]],
    host: Host,
    oracle: Oracle,
    finds: Finds,
    out: Path,
    shard: Shard,
    until: float,
    limit: int | None,
    now: Callable[[], float],
) -> None:
    """Change fixed cases of verbs until the time or `limit` cases are spent."""
    rng = random.Random(finds.seed if shard == WHOLE else f"{finds.seed}/{shard.number}")
    claims, honest = oracle.claims, honest_under(oracle)
    spent: dict[str, int] = {}
    while start and now() < until and (limit is None or finds.cases < limit):
        check, case = rng.choice(start)
        case = mutate(case, claims, rng)
        finds.cases += 1
        if spent.get(check.requirement, 0) >= FINDS_EACH:
            continue
        found = _try(check, case, host, oracle)
        if found is None or (found == "fail" and not honest(check, case)):
            finds.outside += 1
        elif found == "fail":
            spent[check.requirement] = spent.get(check.requirement, 0) + 1
            _save(check, case, host, oracle, finds, out)


def mutate(case: Case, claims: Claims, rng: random.Random) -> Case:
    """Return a case like this one with a few numbers changed, all within the claims."""
    decode_only = all(n_q <= 1 for n_q in case.query_lens)
    for _ in range(rng.randint(1, 4)):
        case = _changed(case, claims, rng, decode_only)
    tokens = sum(case.seq_lens) + case.num_tokens
    return case if tokens * case.num_q_heads * case.head_dim < MAX_ELEMENTS // 64 else replace(case, group=1)


def _changed(case: Case, claims: Claims, rng: random.Random, decode_only: bool) -> Case:
    what = rng.choice(("length", "length", "query", "heads", "width", "block", "dtype", "seed", "request"))
    at = rng.randrange(len(case.seq_lens)) if case.seq_lens else 0
    if what == "length" and case.seq_lens:
        grid = case.block_size * rng.randint(0, 4)
        longer = rng.choice((grid - 1, grid, grid + 1, rng.randint(0, LONGEST)))
        n = max(min(longer, LONGEST), min(case.seq_lens[at], 1))
        return _with_lengths(case, at, n, min(case.query_lens[at], n))
    if what == "query" and case.seq_lens and not decode_only:
        return _with_lengths(
            case, at, case.seq_lens[at], rng.randint(min(1, case.seq_lens[at]), case.seq_lens[at])
        )
    if what == "heads":
        return replace(case, group=rng.choice((*MINIMUM_GROUPS, 2, 4, 5)), num_kv_heads=rng.randint(1, 4))
    if what == "width" and case.head_dim in claims.head_dims:
        return replace(case, head_dim=rng.choice(claims.head_dims))
    if what == "block" and case.block_size in claims.block_sizes:
        return replace(case, block_size=rng.choice(claims.block_sizes))
    if what == "dtype":
        return replace(case, dtype=rng.choice(claims.dtypes))
    if what == "request" and 0 < len(case.seq_lens) < 5:
        lens, queries = [*case.seq_lens, case.seq_lens[at]], [*case.query_lens, case.query_lens[at]]
        return replace(case, seq_lens=tuple(lens), query_lens=tuple(queries))
    return replace(case, seed=rng.randrange(2**20))


def _with_lengths(case: Case, at: int, n: int, n_q: int) -> Case:
    def put(values: Sequence[int], value: int) -> tuple[int, ...]:
        return (*values[:at], value, *values[at + 1 :])

    return replace(case, seq_lens=put(case.seq_lens, n), query_lens=put(case.query_lens, n_q))


def _try(check: Check, case: Case, host: Host, oracle: Oracle) -> str | None:
    """Return pass or fail, or None where the check was not made for such a case."""
    try:
        return evaluate(check, case, host, oracle).status
    except Exception:
        return None


def _save(check: Check, case: Case, host: Host, oracle: Oracle, finds: Finds, out: Path) -> None:
    found = shrink(check, case, host, oracle, honest=honest_under(oracle))
    if found.status == "pass":
        return
    requirement = load_requirements().get(check.requirement)
    saved = case_file(found, requirement.slug if requirement else "", host.hello())
    finds.saved.append(save_case(out, saved).name)
    finds.messages.append(saved.message)
