"""Groups under a shared exponent: maxima at which its rules part, special numbers, heads that groups cut."""

from dataclasses import replace

import ml_dtypes
import numpy as np

from kvref.arrays import Array, dtype_of
from kvref.formats.elements import element_of, largest
from kvref.formats.format import FORMATS, Format
from kvref.formats.paths import Path
from kvref_conformance.cases import Case, Level
from kvref_conformance.claims import ALL_DTYPES, Claims
from kvref_conformance.formatted import Reading, Writing, givens, is_split
from kvref_conformance.probes import codes, numbers
from kvref_conformance.probes.carriers import Geometry, anchors, filled, in_groups, with_anchors
from kvref_conformance.probes.format_cases import HEADS, format_case, kind_of, with_tokens
from kvref_conformance.problems import cast

#: Fractions of a binade at which one of the rules goes over to the next exponent, for one of the elements.
FRACTIONS = (1.0, 1.5, 1.625, 1.75, 1.875, 1.9375)
#: Scales that are NaN between scales that are not, as each is stored.
_NAN_SCALES = {
    "e8m0": (0x7F, 0xFF, 0x80, 0x7E, 0xFF, 0xFF, 0x81),
    "e4m3fn": (0x38, 0x7F, 0x40, 0x30, 0x7F, 0x7F, 0x48),
    "float32": (1.0, np.nan, 2.0, 0.5, np.nan, np.nan, 4.0),
}
#: By this path groups run over heads; it says what an answer that is not due would look like.
FLATTENED = Path(mx_span="flattened")


def is_mx(kind: Format) -> bool:
    """Say whether groups share an exponent."""
    return kind.family == "mx"


def has_own_scales(kind: Format) -> bool:
    """Say whether scales are stored for each token or group, and a NaN among them is one group's."""
    return kind.family in ("mx", "nvfp4") or (
        kind.family == "amax" and kind.group in ("token_head", "channels")
    )


def maxima(case: Case, path: Path) -> Writing:
    """Return groups with maxima at and next to every place where a rule goes over, in many binades."""
    kind = kind_of(case)
    top, power = largest(kind.element), anchors(kind)[0]
    near = [*(fraction * power for fraction in FRACTIONS), top, top * np.sqrt(0.5), top * np.sqrt(2.0)]
    points = [*near, numbers.overflow_edge(kind.element), 2 * power]
    found = [numbers.near(np.array(points) * 2.0**k, case.dtype) for k in range(-14, 3, 4)]
    return _filling(case, path, _in_range(np.concatenate([*found, _extremes(case.dtype)]), case.dtype))


def below_powers(case: Case, path: Path) -> Writing:
    """Return groups whose maximum is the number below a power of two, for every power."""
    limits = ml_dtypes.finfo(dtype_of(case.dtype))
    powers = np.exp2(np.arange(float(limits.minexp) + 1, float(limits.maxexp)))
    below = numbers.near(powers, case.dtype).reshape(-1, 3)[:, 0]
    return _filling(case, path, below)


def under_shared_scales(case: Case, path: Path) -> Writing:
    """Return numbers of the element and their neighbours, in groups of many scales; some past the largest.

    Among the scales are the two smallest, where the dtype has numbers for them.
    """
    kind, geometry = kind_of(case), _geometry(case, path)
    power, top = anchors(kind)[0], largest(kind.element)
    near = numbers.both_signs(numbers.near(numbers.magnitudes(kind.element)[1:], case.dtype)).astype(
        np.float64
    )
    inside = with_anchors(in_groups(near[np.abs(near) <= power], geometry.size - 1), (power,))
    past = numbers.both_signs(np.linspace(top, 2 * power, 41)[1:-1])
    beyond = in_groups(np.concatenate([past, near[np.abs(near) > power]]), geometry.size)
    groups = np.concatenate([inside, beyond])
    groups = groups * np.exp2(-(np.arange(len(groups)) * 5.0 % 7))[:, None]
    if case.dtype != "float16":
        groups = np.concatenate([groups, inside * 2.0**-127, beyond[:2] * 2.0**-126])
    return Writing(kind.name, geometry.arrange(cast(groups, case.dtype)))


def nothing(case: Case, path: Path) -> Writing:
    """Return groups of zeros, and of numbers too small for most scales, between others."""
    tiny = [x for x in (1e-12, 3e-11, 9e-11, 2e-10, 1e-8) if case.dtype != "float16"] or [6e-8]
    maximum = np.resize([0.0, 1.0, *tiny, 0.0, 0.0, 77.0], 24)
    return _filling(case, path, cast(maximum, case.dtype))


def with_nan(case: Case, path: Path) -> Writing:
    """Return groups that hold a NaN, in each place of a group, some an infinity as well, between others."""
    return _with_one(case, path, (np.nan, -np.nan), also=np.inf)


def with_infinity(case: Case, path: Path) -> Writing:
    """Return groups that hold an infinity, in each place of a group, between others."""
    return _with_one(case, path, (np.inf, -np.inf))


def every_scale(case: Case, path: Path) -> Reading:
    """Return every code under every scale byte but NaN, the smallest among them."""
    return _under(case, path, np.arange(0xFF, dtype=np.uint8))


def nan_scales(case: Case, path: Path) -> Reading:
    """Return codes of which some groups have a scale of NaN, and their neighbours have none."""
    return _under(case, path, np.array(_NAN_SCALES[kind_of(case).scale_element]))


def split_heads(case: Case, path: Path) -> Writing:
    """Return heads of very different magnitude."""
    rng = np.random.default_rng(case.seed + 233)
    x = rng.integers(-31, 32, (6, case.num_kv_heads, case.head_dim)) / 8.0
    x[..., 0] = 4.0
    x *= np.exp2(-4.0 * np.arange(case.num_kv_heads))[:, None]
    return Writing(case.option("format"), cast(x, case.dtype))


def split_cases(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Return widths that groups do not divide, where the claims have one: to be refused, or flattened."""
    path, found = claims.path(), []
    dtypes = [dtype for dtype in claims.dtypes if dtype in ALL_DTYPES]
    for i, name in enumerate(claims.formats):
        kind = FORMATS[name]
        if not is_mx(kind) or path.scale_axis == "tokens":
            continue
        split = {d: n for d in claims.head_dims for n in HEADS[::-1] if is_split(kind, n, d)}
        for head_dim, heads in split.items():
            for dtype in dtypes[:1] if level == "quick" else dtypes:
                found.append(with_tokens(format_case(verb, name, dtype, heads, head_dim, seed=i), 6))
    return found


def _geometry(case: Case, path: Path) -> Geometry:
    return Geometry.of(kind_of(case), path, case.num_kv_heads, case.head_dim)


def _filling(case: Case, path: Path, maximum: Array) -> Writing:
    kind, geometry = kind_of(case), _geometry(case, path)
    groups = filled(maximum.astype(np.float64), geometry.size, case.dtype, case.seed)
    return Writing(kind.name, geometry.arrange(groups), **givens(kind))


def _with_one(case: Case, path: Path, special: tuple[float, ...], also: float | None = None) -> Writing:
    """Return groups of which every second one has a special number, each in another place."""
    kind, geometry = kind_of(case), _geometry(case, path)
    groups = filled(np.full(4 * geometry.size, 3.0), geometry.size, case.dtype, case.seed)
    for i in range(0, len(groups), 2):
        groups[i, i // 2 % geometry.size] = special[i // 2 % len(special)]
        if also is not None and i % 6 == 0:
            groups[i, (i // 2 + 5) % geometry.size] = also
    return Writing(kind.name, geometry.arrange(groups), **givens(kind))


def _under(case: Case, path: Path, some: Array) -> Reading:
    """Return every code under each of some scales."""
    kind = kind_of(case)
    every = 2 ** element_of(kind.element).bits
    size = kind.size or case.head_dim
    groups = np.repeat(some, -(-every // size))
    reading = codes.template(case, path, codes.tokens_for(case, len(groups) * size))
    reading = codes.with_codes(reading, np.arange(every, dtype=np.uint8))
    scales = np.asarray(reading.scales)
    return replace(reading, scales=np.resize(groups, scales.shape).astype(scales.dtype))


def _extremes(dtype: str) -> Array:
    limits = ml_dtypes.finfo(dtype_of(dtype))
    least = [limits.smallest_subnormal, limits.smallest_normal, limits.max]
    return np.array([float(x) for x in least]).astype(dtype_of(dtype))


def _in_range(found: Array, dtype: str) -> Array:
    return found[np.isfinite(found.astype(np.float64)) & (found.astype(np.float64) > 0)]
