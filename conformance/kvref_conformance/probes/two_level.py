"""NVFP4: groups under two scales, at ties of either rounding, and too small or too large for both."""

from dataclasses import replace

import numpy as np

from kvref.arrays import Array
from kvref.formats.casts import encode
from kvref.formats.elements import decode, values
from kvref.formats.format import Format
from kvref.formats.paths import Path
from kvref_conformance.cases import Case
from kvref_conformance.formatted import Reading, Writing, givens
from kvref_conformance.probes import codes, numbers
from kvref_conformance.probes.carriers import WHOLE, Geometry, filled, off_ties, under_global
from kvref_conformance.probes.format_cases import kind_of
from kvref_conformance.problems import cast

#: A global scale that is no power of two and neither is any product with it; and one that is exact.
UNEVEN, EXACT = 0.0123, 0.25
#: Global scales of one call after the other; of float16 inputs, which hold no more.
GIVEN, GIVEN_HALF = (3.7e-7, 0.29, 2.3e-4, 6100.0, 1.7e-8, 71.0), (0.0031, 17.0, 4.3e-5, 0.29)
#: Largest numbers of rows and tensors, and those beyond float16.
PEAKS = (0.013, 0.37, 1.0, 6.0, 77.0, 448.0, 2687.0, 30000.0)
FAR_PEAKS = (1.3e-30, 3e-12, 7e-6, 2.9e9, 1.7e30)
#: What amax / (6 g) may be where the scale is about to vanish, down to nothing.
VANISHING = (0.0, 2.0**-13, 2.0**-11, 2.0**-10, 3 * 2.0**-11, 2.0**-9, 3 * 2.0**-10, 2.0**-8, 2.0**-7, 0.014)
_MIDDLES = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])


def is_nvfp4(kind: Format) -> bool:
    """Say whether a format has two levels of scales."""
    return kind.family == "nvfp4"


def is_given(kind: Format) -> bool:
    """Say whether a format has two levels of scales, and is given the upper one."""
    return kind.name == "nvfp4"


def is_derived(kind: Format) -> bool:
    """Say whether a writer derives the upper scale."""
    return kind.family == "nvfp4" and kind.global_scale != "given"


def hard_to_divide(case: Case, path: Path, g: float = UNEVEN) -> Writing:
    """Return groups under an uneven global scale: maxima near ties of scales, numbers near ties of codes."""
    kind = kind_of(case)
    table = values("e4m3fn")[8:120].astype(np.float64)
    at_ties = numbers.near((table[1:] + table[:-1]) / 2 * 6 * g, case.dtype)
    between = np.random.default_rng(case.seed + 239).uniform(0.01, 20.0, 400) * (g / UNEVEN)
    amax = np.concatenate([at_ties, cast(between, case.dtype)]).astype(np.float64)
    scale = decode(encode(amax / (6 * g), "e4m3fn"), "e4m3fn").astype(np.float64) * g
    groups = filled(amax, 16, case.dtype, case.seed)
    ties = numbers.near((scale[:, None] * _MIDDLES[:4]).reshape(-1), case.dtype).reshape(len(amax), 12)
    groups[:, 2:14] = np.where(np.arange(12) % 2, -ties, ties)
    groups[:, 15] = amax.astype(groups.dtype)
    return _writing(case, path, groups, kind, g)


def given_scales(case: Case) -> tuple[float, ...]:
    """Return global scales far apart, for numbers of a case's dtype."""
    return GIVEN_HALF if case.dtype == "float16" else GIVEN


def exact_numbers(case: Case, path: Path) -> Writing:
    """Return numbers that are codes times scales, under a global scale that is exact."""
    rng = np.random.default_rng(case.seed + 241)
    scales = values("e4m3fn")[np.resize(np.arange(8, 0x7F, 5), 60)].astype(np.float64)
    groups = rng.choice(numbers.both_signs(numbers.magnitudes("e2m1")), (60, 16))
    groups[np.arange(60), rng.integers(0, 16, 60)] = 6.0
    return _writing(case, path, cast(groups * scales[:, None] * EXACT, case.dtype), kind_of(case), EXACT)


def scale_ties(case: Case, path: Path) -> Writing:
    """Return groups whose scale is at a tie of E4M3, next to it, and past its end, under a global 1."""
    points = numbers.magnitudes("e4m3fn")
    ties = np.concatenate([points[1:], (points[1:] + points[:-1]) / 2, [464.0, 480.0, 600.0, 10000.0]])
    amax = numbers.near(ties * 6, case.dtype).astype(np.float64)
    if case.dtype != "float16":
        amax = np.concatenate([amax, [1e9, 1e30]])
    groups = filled(amax, 16, case.dtype, case.seed)
    return _writing(case, path, groups, kind_of(case), 1.0)


def vanishing(case: Case, path: Path) -> Writing:
    """Return groups whose scale vanishes, or nearly does, beside others, under a global 1."""
    amax = np.concatenate(
        [numbers.near(np.array(VANISHING[1:]) * 6, case.dtype).astype(np.float64), [0.0] * 3]
    )
    amax = np.stack([amax, np.full(len(amax), 6.0)], axis=1).reshape(-1)
    groups = filled(amax, 16, case.dtype, case.seed)
    groups[-2, ::3] = -0.0
    return _writing(case, path, groups, kind_of(case), 1.0)


def peaks(case: Case, path: Path) -> Writing:
    """Return tokens of very different magnitude: a global scale is that of its own row, or the tensor's."""
    return _rows(case, path, PEAKS)


def far_peaks(case: Case, path: Path) -> Writing:
    """Return tokens of such magnitudes, and of some that only dtypes with eight bits of exponent hold."""
    return _rows(case, path, (*PEAKS, *(FAR_PEAKS if case.dtype != "float16" else ())))


def crowded(case: Case, path: Path) -> Writing:
    """Return groups whose numbers crowd near the largest, where 4 is a better place for it than 6."""
    rng = np.random.default_rng(case.seed + 251)
    shares = rng.choice([0.75, 0.8, 0.83, 0.85, 0.5, 0.33, 0.1, -0.82, -0.66], (240, 16))
    shares[np.arange(240), rng.integers(0, 16, 240)] = 1.0
    amax = rng.uniform(0.5, 40.0, (240, 1))
    return _writing(case, path, off_ties(cast(shares * amax, case.dtype)), kind_of(case), 1.0)


def under_global_scales(case: Case, path: Path) -> Reading:
    """Return every code under every finite scale, of either sign, and a global scale that is exact."""
    every, size = np.arange(16, dtype=np.uint8), kind_of(case).size
    finite = np.delete(np.arange(0xFF, dtype=np.uint8), 0x7F)
    reading = codes.with_codes(codes.template(case, path, codes.tokens_for(case, len(finite) * size)), every)
    scales = np.resize(finite, np.asarray(reading.scales).shape)
    return replace(reading, scales=scales, global_scale=np.full_like(np.asarray(reading.global_scale), EXACT))


def operand(path: Path, g: float) -> Array:
    """Return a global scale as a caller of the path passes it."""
    return np.full(1, 1.0 / g if path.nvfp4_operand == "encode" else g, np.float32)


def _writing(case: Case, path: Path, groups: Array, kind: Format, g: float) -> Writing:
    """Return groups under a global scale: given, or derived from one more group in its row or tensor."""
    geometry = _geometry(case, path)
    if is_given(kind):
        return Writing(kind.name, geometry.arrange(groups), global_scale=operand(path, g))
    return Writing(
        kind.name, geometry.arrange(under_global(groups, kind, geometry, WHOLE * g)), **givens(kind)
    )


def _rows(case: Case, path: Path, tops: tuple[float, ...]) -> Writing:
    kind, geometry = kind_of(case), _geometry(case, path)
    maxima = np.repeat(tops, geometry.whole) * np.resize([1.0, 0.3, 0.7], len(tops) * geometry.whole)
    return Writing(kind.name, geometry.arrange(filled(maxima, geometry.size, case.dtype, case.seed)))


def _geometry(case: Case, path: Path) -> Geometry:
    return Geometry.of(kind_of(case), path, case.num_kv_heads, case.head_dim)
