"""Ordinary writings and readings: random numbers in any format, for rules that hold whatever is computed."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from kvref.arrays import Array
from kvref.formats.format import FORMATS, Format
from kvref.formats.paths import Path
from kvref.formats.scaled import acceptable
from kvref_conformance.bytes_judged import right_elements
from kvref_conformance.cases import Case
from kvref_conformance.claims import Claims
from kvref_conformance.code_problems import present_codes
from kvref_conformance.contracts import Call
from kvref_conformance.formatted import Reading, Writing, givens, outputs_of
from kvref_conformance.probes import codes
from kvref_conformance.probes.carriers import Geometry
from kvref_conformance.probes.code_caches import code_needles
from kvref_conformance.probes.code_cases import attends
from kvref_conformance.probes.format_cases import format_case, format_cases, kind_of, places_of, with_tokens
from kvref_conformance.probes.random import dyadic
from kvref_conformance.problems import Placement
from kvref_conformance.trial import Result

#: Tokens of a specimen, and of the longest group along tokens.
TOKENS, LONGEST = 5, 32
#: A given scale far from 1, and no power of two.
SCALE = 0.37


def some_numbers(case: Case, path: Path) -> Writing:
    """Return bell-shaped numbers, as many tokens as the case has or whole groups need."""
    kind, tokens = kind_of(case), case.seq_lens[0] if case.seq_lens[0] > 1 else TOKENS
    if Geometry.of(kind, path, case.num_kv_heads, case.head_dim).along_tokens:
        tokens = -(-tokens // LONGEST) * LONGEST
    x = dyadic(np.random.default_rng(case.seed + 307), (tokens, case.num_kv_heads, case.head_dim), case.dtype)
    return Writing(kind.name, x, **givens(kind, scale=SCALE))


def many_numbers(case: Case, path: Path) -> Writing:
    """Return bell-shaped numbers of 40 tokens, or of two groups along tokens."""
    return some_numbers(with_tokens(case, 40), path)


def some_codes(case: Case, path: Path) -> Reading:
    """Return what a writer stores of bell-shaped numbers."""
    return codes.written_by(some_numbers(case, path), path, case.dtype)


def _any(kind: Format) -> bool:
    return True


written_cases = format_cases(some_numbers, _any)
read_cases = format_cases(some_codes, _any)


def formatted_call(verb: str, claims: Claims) -> Call:
    """Return a small call of a verb that names a format: the first that is claimed."""
    path, name = claims.path(), claims.formats[0]
    head_dim, heads = next(iter(places_of(name, claims)), (claims.head_dims[0], 1))
    case = format_case(verb, name, claims.dtypes[0], heads, head_dim)
    if verb == "quantize_kv":
        return some_numbers(case, path).call(path)
    if verb == "dequantize_kv":
        return some_codes(case, path).call(path)
    name = next((name for name in claims.formats if attends(FORMATS[name]) and places_of(name, claims)), name)
    case = replace(
        format_case(verb, name, claims.dtypes[0], *places_of(name, claims)[0][::-1]),
        query_lens=(1,),
        block_size=claims.block_sizes[0],
    )
    return present_codes(
        code_needles(case, np.zeros((1, case.num_q_heads), np.int64), path), case, Placement(seed=1)
    )


def wrong_bytes(writing: Writing, path: Path, result: Result) -> Mapping[str, Array]:
    """Say of each output which elements are not what a writer of the path stores."""
    answers = acceptable(
        writing.x, writing.kind, scales=writing.scales, global_scale=writing.global_scale, path=path
    )
    found = {name: np.asarray(x) for name, x in result.answer.outputs.items()}
    wanted = [outputs_of(answer, writing.kind) for answer in answers]
    return {name: ~right_elements(writing, path, name, found, wanted) for name in found}


def wrong_numbers(reading: Reading, path: Path, result: Result) -> Mapping[str, Array]:
    """Say which numbers are not what a reader of the path gets."""
    found = np.asarray(result.answer.outputs["out"])
    return {"out": found != reading.numbers(path)}
