"""Every float32 there is, cast to every float element: 2^32 bit patterns against four other encoders.

    python benchmarks/sweep_float32.py > benchmarks/sweep_float32.md    # 20 minutes on one core
    python benchmarks/sweep_float32.py --smoke                          # some patterns from everywhere

Four oracles, none of which looks at kvref's tables. `runs`: casts to nearest are step functions of the bits,
so the least float32 of each code follows from exact arithmetic, and between two of them the code must not
change. `bitwise`: the second implementation in the suite, which rounds by shifts. `ml_dtypes` and `torch`:
the libraries' own casts. kvref follows the path of each, overflow and NaN included, so nothing is left out
and nothing is clipped. Progress goes to the error stream; the exit status is 1 where something differs.
"""

import argparse
import importlib
import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from fractions import Fraction

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import ml_dtypes  # noqa: E402  # the thread count is read when NumPy loads
import numpy as np  # noqa: E402

from kvref.formats.casts import encode  # noqa: E402
from kvref.formats.paths import CANONICAL, Path  # noqa: E402
from kvref_conformance.claims import Claims  # noqa: E402
from kvref_conformance.subjects.bitwise.floats import Floats  # noqa: E402

PATTERNS, CHUNK = 2**32, 2**20
INFINITE, SIGN = 0x7F800000, 0x80000000

Encoder = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Layout:
    """An element as the sweep knows it: significand, bias, the code of its largest number, what NaN is."""

    mantissa: int
    bias: int
    largest: int
    nan: tuple[int, int]
    """The codes of NaN and of NaN with its sign set, on the canonical path."""
    sign: int = 0x80
    negative_zero: int = 0x80


ELEMENTS = {
    "e4m3fn": Layout(3, 7, 0x7E, (0x7F, 0xFF)),
    "e5m2": Layout(2, 15, 0x7B, (0x7F, 0xFF)),
    "e4m3fnuz": Layout(3, 8, 0x7F, (0x80, 0x80), negative_zero=0),
    "e5m2fnuz": Layout(2, 16, 0x7F, (0x80, 0x80), negative_zero=0),
    "e2m1": Layout(1, 1, 0x7, (0x7, 0x7), sign=0x8, negative_zero=0x8),
}

#: What the libraries do past the largest number and with NaN. Of E2M1 torch has no cast.
ML_DTYPES = Path(
    e4m3_overflow="nan", e5m2_overflow="inf", fnuz_overflow="nan", fp8_nan="quiet", e2m1_nan="flipped_zero"
)
TORCH = Path(e5m2_overflow="inf", fnuz_overflow="nan")


def runs(element: str) -> Encoder:
    """Codes by the bits at which they begin, each found by exact arithmetic."""
    layout = ELEMENTS[element]
    starts = [0, *(_least_bits(code, layout) for code in range(1, layout.largest + 1)), INFINITE + 1]
    codes = np.arange(layout.largest + 1)
    positive = np.append(codes, layout.nan[0])
    negative = np.append(codes | layout.sign, layout.nan[1])
    negative[0] = layout.negative_zero
    edges = np.array([*starts, *(start + SIGN for start in starts), PATTERNS])
    both = np.concatenate([positive, negative]).astype(np.uint8)

    def encoder(patterns: np.ndarray) -> np.ndarray:
        first = int(patterns[0])
        return np.repeat(both, np.diff(np.clip(edges, first, first + len(patterns))))

    return encoder


def bitwise(element: str) -> Encoder:
    """The independent implementation of the suite."""
    codec = Floats()
    codec.claims = Claims()
    step = 2**14  # it works in int64

    def encoder(patterns: np.ndarray) -> np.ndarray:
        parts = (patterns[start : start + step].view(np.float32) for start in range(0, len(patterns), step))
        return np.concatenate([codec.write_float(part, element) for part in parts])

    return encoder


def of_ml_dtypes(element: str) -> Encoder:
    """The cast of ml_dtypes."""
    dtype = getattr(ml_dtypes, "float4_e2m1fn" if element == "e2m1" else f"float8_{element}")
    return lambda patterns: patterns.view(np.float32).astype(dtype).view(np.uint8)


def of_torch(element: str) -> Encoder:
    """The cast of torch.

    Raises: ImportError if it is not installed; AttributeError if it has no such dtype.
    """
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    dtype = getattr(torch, f"float8_{element}")
    return lambda patterns: torch.from_numpy(patterns.view(np.float32)).to(dtype).view(torch.uint8).numpy()


ORACLES: dict[str, tuple[Callable[[str], Encoder], Path]] = {
    "runs": (runs, CANONICAL),
    "bitwise": (bitwise, CANONICAL),
    "ml_dtypes": (of_ml_dtypes, ML_DTYPES),
    "torch": (of_torch, TORCH),
}


def sweep(element: str, oracle: str, chunks: Iterator[np.ndarray]) -> tuple[int, int, int | None]:
    """Return how many patterns were compared, how many codes differ, and the first that does."""
    build, path = ORACLES[oracle]
    expected, compared, different, first = build(element), 0, 0, None
    for patterns in chunks:
        with np.errstate(all="ignore"):
            wrong = encode(patterns.view(np.float32), element, path) != expected(patterns)
        compared, different = compared + len(patterns), different + int(np.count_nonzero(wrong))
        if first is None and wrong.any():
            first = int(patterns[np.argmax(wrong)])
        print(f"\r{element} {oracle} {compared:>12,}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return compared, different, first


def main() -> int:
    """Print the log; return 1 if a code differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="16 patterns in 2 million")
    smoke = parser.parse_args().smoke
    total = 0
    print("# Every float32\n\n    python benchmarks/sweep_float32.py\n")
    print(
        f"{_versions()}.\nA mismatch is a code that differs from the oracle's, NaN included. kvref's path:\n"
    )
    for oracle, (_, path) in ORACLES.items():
        print(f"- `{oracle}`: {_answers(path)}")
    print()
    print("| element | oracle | patterns | mismatches | seconds |\n|---|---|---:|---:|---:|")
    for element in ELEMENTS:
        for oracle in ORACLES:
            start = time.perf_counter()
            try:
                compared, different, first = sweep(element, oracle, _chunks(smoke))
            except (ImportError, AttributeError) as error:
                print(f"| {element} | {oracle} | 0 | has no such cast: {error} | |")
                continue
            found = f"{different}" if first is None else f"{different}, the first at {first:#010x}"
            took = time.perf_counter() - start
            print(f"| {element} | {oracle} | {compared} | {found} | {took:.0f} |", flush=True)
            total += different
    print(f"\n{total} mismatches")
    return int(total > 0)


def _least_bits(code: int, layout: Layout) -> int:
    """Return the bits of the least float32 that rounds to a code: halfway from the last, or just past it."""
    halfway = (_value(code - 1, layout) + _value(code, layout)) / 2
    exact = np.float32(float(halfway))
    assert Fraction(float(exact)) == halfway, "a tie has few bits"
    return int(exact.view(np.uint32)) + code % 2  # a tie belongs to the even code


def _value(code: int, layout: Layout) -> Fraction:
    exponent, mantissa = divmod(code, 2**layout.mantissa)
    fraction = Fraction(mantissa, 2**layout.mantissa)
    if exponent == 0:
        return fraction * Fraction(2) ** (1 - layout.bias)
    return (1 + fraction) * Fraction(2) ** (exponent - layout.bias)


def _chunks(smoke: bool) -> Iterator[np.ndarray]:
    """All patterns in order; or a few on both sides of numbers with few bits, where ties and limits are."""
    if not smoke:
        yield from (np.arange(start, start + CHUNK, dtype=np.uint32) for start in range(0, PATTERNS, CHUNK))
    for middle in range(2**21, PATTERNS, 2**21) if smoke else ():
        yield np.arange(middle - 8, middle + 8, dtype=np.uint32)


def _answers(path: Path) -> str:
    """Name what a path answers otherwise than the canonical one."""
    names = [field.name for field in fields(path)]
    other = [name for name in names if getattr(path, name) != getattr(CANONICAL, name)]
    return ", ".join(f"{name} {getattr(path, name)}" for name in other) or "canonical"


def _versions() -> str:
    found = []
    for name in ("numpy", "ml_dtypes", "torch"):
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{name} missing")
    return f"Python {platform.python_version()}, {', '.join(found)}"


if __name__ == "__main__":
    sys.exit(main())
