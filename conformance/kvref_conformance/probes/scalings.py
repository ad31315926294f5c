"""Scales from the largest magnitude, given or derived: how numbers are divided, and whose scale is whose."""

from collections.abc import Iterator
from dataclasses import replace

import ml_dtypes
import numpy as np

from kvref.arrays import Array, dtype_of
from kvref.formats.elements import FloatElement, element_of, largest
from kvref.formats.format import Format
from kvref.formats.paths import Path
from kvref_conformance.cases import Case
from kvref_conformance.formatted import Reading, Writing, givens
from kvref_conformance.probes import codes, numbers
from kvref_conformance.probes.carriers import Geometry, filled, in_groups
from kvref_conformance.probes.format_cases import kind_of
from kvref_conformance.problems import cast

#: Powers of two, under which every division is exact.
EXACT = (0.25, 8.0)
#: Scales that no power of two is near: a quotient by them hangs on how it is made.
UNEVEN = (0.37, 2.9, 0.06)
#: Largest magnitudes of groups, small ones around every floor there is.
SPREAD = (
    *(1e-38, 3e-38, 1e-30, 1e-12, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 9e-5, 1.1e-4, 4.4e-4, 4.6e-4),
    *(1e-3, 0.02, 0.13, 0.37, 1.0, 2.9, 77.0, 127.0, 448.0, 500.0, 3000.0, 60000.0, 1e9, 1e30, 3e38),
)
#: Rows in which a quotient may come out past the largest number by its last bit.
ROWS = 96


def is_amax(kind: Format) -> bool:
    """Say whether scales are float32 and made from magnitudes, or given."""
    return kind.family == "amax"


def is_derived(kind: Format) -> bool:
    """Say whether a writer takes a float32 scale from magnitudes."""
    return kind.family == "amax" and kind.group != "given"


def has_rows(kind: Format) -> bool:
    """Say whether each token has scales of its own, taken from magnitudes."""
    amax = kind.family == "amax" and kind.group in ("token_head", "channels")
    return amax or kind.family == "mx" or kind.name == "nvfp4"


def is_divided(kind: Format) -> bool:
    """Say whether it is left to the path how numbers are divided by a float32 scale."""
    return kind.family == "amax" or (kind.family == "affine" and kind.name != "int4_token_head")


def under_powers(case: Case, path: Path) -> Writing:
    """Return numbers in the range of the element under the smaller of the exact scales."""
    kind = kind_of(case)
    found = numbers.both_signs(numbers.magnitudes(kind.element)) * EXACT[0]
    return _given(case, cast(found, case.dtype))


def read_under_powers(case: Case, path: Path) -> Reading:
    """Return every code."""
    return codes.every_code(case, path)


def scaled(made: Writing, scale: float) -> Writing:
    """Return the writing under another given scale."""
    return replace(made, scales=np.full(1, scale, np.float32))


def hard_to_divide(case: Case, path: Path) -> Writing:
    """Return numbers whose quotient is near a tie, under each uneven scale in turn.

    16-bit dtypes: every number in range. Where scales are derived, groups have the maxima that give them.
    """
    kind = kind_of(case)
    geometry = Geometry.of(kind, path, case.num_kv_heads, case.head_dim)
    if kind.family == "affine":
        return Writing(kind.name, geometry.arrange(_ranges(geometry.size, kind, case)))
    top = largest(kind.element)
    rows = []
    for scale in UNEVEN:
        found = _near_quotients(kind, scale, case.dtype)
        if kind.group == "given":
            rows.append(in_groups(found, geometry.size))
            continue
        groups = in_groups(found, geometry.size - 1)
        peak = cast(np.full((len(groups), 1), scale * top), case.dtype)
        inside = np.where(np.abs(groups.astype(np.float64)) <= peak.astype(np.float64), groups, peak)
        rows.append(np.concatenate([inside, peak], axis=1))
        if kind.group == "tensor":
            break
    return Writing(kind.name, geometry.arrange(np.concatenate(rows)), **givens(kind))


def own_heads(case: Case, path: Path) -> Writing:
    """Return numbers under given scales, a power of two for each kv head, all different."""
    made = under_powers(case, path)
    return replace(made, scales=per_head(case))


def read_own_heads(case: Case, path: Path) -> Reading:
    """Return every code under such scales."""
    return replace(codes.every_code(case, path), scales=per_head(case))


def per_head(case: Case) -> Array:
    """Return scales `[num_kv_heads]`, 1, 1/4 and 4 for three of them."""
    powers = np.array([0.0, -2.0, 2.0, 4.0, -4.0])
    return np.exp2(np.resize(powers, case.num_kv_heads)).astype(np.float32)


def own_groups(case: Case, path: Path) -> Writing:
    """Return groups whose maximum is the largest number times a power of two, neighbours never alike."""
    kind = kind_of(case)
    geometry = Geometry.of(kind, path, case.num_kv_heads, case.head_dim)
    count = 3 * geometry.whole if not geometry.along_tokens else geometry.whole
    powers = np.exp2(-(np.arange(count) * 5.0 % 9))
    top = largest(kind.element)
    shares = numbers.both_signs(numbers.magnitudes(kind.element)[-64:])
    rng = np.random.default_rng(case.seed + 223)
    groups = rng.choice(shares, (count, geometry.size))
    groups[np.arange(count), rng.integers(0, geometry.size, count)] = top
    return Writing(kind.name, geometry.arrange(cast(groups * powers[:, None], case.dtype)), **givens(kind))


def beyond_the_range(case: Case, path: Path) -> Writing:
    """Return numbers past the largest whose quotients are not, and the other way round.

    Under a given scale of 4, or 1/16 in every second head; where scales are derived, rows whose largest
    quotient may come out past the largest number by its last bit.
    """
    kind = kind_of(case)
    geometry = Geometry.of(kind, path, case.num_kv_heads, case.head_dim)
    if kind.group != "given":
        rng = np.random.default_rng(case.seed + 227)
        count = min(-(-ROWS // geometry.whole) * geometry.whole, 4 * ROWS)
        return Writing(
            kind.name, geometry.arrange(filled(rng.uniform(0.1, 9.0, count), geometry.size, case.dtype, 0))
        )
    top = largest(kind.element)
    shares = np.array([0.01, 0.06, 0.3, 0.7, 1.0, 1.5, 2.2, 3.1, 3.9, 5.0])
    made = _given(case, cast(numbers.both_signs(shares * min(top, 12000.0)), case.dtype))
    scales = np.where(np.arange(case.num_kv_heads) % 2, 0.0625, 4.0).astype(np.float32)
    return replace(made, scales=scales)


def spread_maxima(case: Case, path: Path) -> Writing:
    """Return a token for each of many maxima, from the smallest to the largest of the dtype."""
    kind = kind_of(case)
    geometry = Geometry.of(kind, path, case.num_kv_heads, case.head_dim)
    limits = ml_dtypes.finfo(dtype_of(case.dtype))
    maxima = np.array([x for x in SPREAD if float(limits.smallest_normal) <= x <= float(limits.max)])
    every = np.repeat(maxima, geometry.whole)
    return Writing(kind.name, geometry.arrange(filled(every, geometry.size, case.dtype, case.seed)))


def zero_groups(case: Case, path: Path) -> Writing:
    """Return rows in which every second group is zero, of either sign."""
    kind = kind_of(case)
    geometry = Geometry.of(kind, path, case.num_kv_heads, case.head_dim)
    groups = filled(np.full(4 * geometry.whole, 1.5), geometry.size, case.dtype, case.seed)
    groups[::2] = 0.0
    groups[::4, ::2] = -0.0
    x = geometry.arrange(groups)
    return Writing(kind.name, np.zeros_like(x) if kind.group == "tensor" else x, **givens(kind))


def zero_rows(case: Case, path: Path) -> Writing:
    """Return tokens of which some heads are zero as a whole, under given scales that differ by head.

    Of groups along tokens the first of every head but one is zero as well.
    """
    kind = kind_of(case)
    along = Geometry.of(kind, path, case.num_kv_heads, case.head_dim).along_tokens
    tokens = 64 if along else 7
    rows = filled(np.full(tokens * case.num_kv_heads, 1.5), case.head_dim, case.dtype, case.seed + 229)
    if kind.group == "given":  # whatever the cast does elsewhere, it has codes for these
        rows = cast(np.resize([1.0, -2.0, 0.5, -1.0, 2.0], rows.shape), case.dtype)
    rows[1::3], rows[1::3, ::2] = 0.0, -0.0
    x = rows.reshape(tokens, case.num_kv_heads, case.head_dim)
    if along:
        x[:32, 1:] = 0.0
    scales = {"scales": per_head(case)} if kind.group == "given" else givens(kind)
    return Writing(kind.name, x, **scales)


def token_by_token(made: Writing, path: Path) -> Iterator[Writing]:
    """Yield the writing whole, or each token alone where a scale is the tensor's and groups lie in tokens."""
    kind = made.kind
    along = Geometry.of(kind, path, *made.x.shape[1:]).along_tokens
    if along or "tensor" not in (kind.group, kind.global_scale):
        yield made
        return
    for token in range(made.tokens):
        yield made.part(token, 1)


def _given(case: Case, found: Array) -> Writing:
    """Return numbers in every head alike, since each may have its own scale."""
    width = case.head_dim
    rows = np.resize(found, -(-len(found) // width) * width).reshape(-1, 1, width)
    x = np.ascontiguousarray(np.repeat(rows, case.num_kv_heads, axis=1))
    return Writing(kind_of(case).name, x, np.ones(1, np.float32))


def _near_quotients(kind: Format, scale: float, dtype: str) -> Array:
    """Return numbers of a dtype whose quotient by a scale is near a tie."""
    points = numbers.magnitudes(kind.element)
    if not isinstance(element_of(kind.element), FloatElement):
        points = np.arange(0.0, 128.0)
    most = points[-1] * (min(UNEVEN) if kind.group == "given" else scale)  # under any scale it is in range
    if dtype == "float32":
        found = (points[1:] + points[:-1]) / 2 * scale
        return numbers.both_signs(numbers.near(found[found < most], dtype))
    every = numbers.every_half(dtype)
    with np.errstate(invalid="ignore"):
        size = np.abs(every.astype(np.float64))
    return np.asarray(every[(size >= points[1] * scale / 4) & (size <= most)])


def _ranges(size: int, kind: Format, case: Case) -> Array:
    """Return groups over uneven ranges, the numbers between the ends near ties of their steps."""
    rng = np.random.default_rng(case.seed + 229)
    count = 1500 if size < 64 else 400
    low, high = rng.uniform(-4, 1, (count, 1)), rng.uniform(1.5, 5, (count, 1))
    low, high = (cast(end, case.dtype).astype(np.float64) for end in (low, high))
    levels = 2.0 ** element_of(kind.element).bits - 1
    step = (high - low) / levels
    inner = low + (rng.integers(0, int(levels), (count, size - 2)) + 0.5) * step
    return cast(np.concatenate([low, inner, high], axis=1), case.dtype)
