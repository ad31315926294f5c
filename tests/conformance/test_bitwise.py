"""Tests of the built-in codec: the reference's answers from other operations, under every declared path."""

import ast
from dataclasses import replace
from importlib import import_module
from pathlib import Path as File

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvref_conformance.subjects.bitwise as bitwise
from kvref.arrays import Array, dtype_of
from kvref.errors import FormatError
from kvref.formats.casts import encode
from kvref.formats.elements import ELEMENTS, decode
from kvref.formats.exponents import scale_of
from kvref.formats.format import FORMATS, Quantized
from kvref.formats.paths import PATHS, Path
from kvref.formats.scaled import decoded, quantize
from kvref_conformance.checks import TOPICS
from kvref_conformance.checks.check import Check
from kvref_conformance.choices import choice_name
from kvref_conformance.claims import ALL_FORMATS
from kvref_conformance.contracts import FORMATTED
from kvref_conformance.formatted import outputs_of
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.host.subject import verbs_of
from kvref_conformance.oracle import Oracle
from kvref_conformance.runner.evaluate import evaluate
from kvref_conformance.subjects.bitwise import Bitwise
from kvref_conformance.subjects.bitwise.floats import FIELDS
from kvref_conformance.subjects.bitwise.kinds import KINDS

SOURCES = sorted(File(bitwise.__file__).parent.glob("*.py"))
ALLOWED = ("kvref.arrays", "kvref.errors", "kvref.attention.arithmetic")
SUITE = ("kvref_conformance.claims", "kvref_conformance.subjects.")
#: Decisions about bare casts to float elements.
CASTS = tuple(name for name in PATHS if name.startswith(("e4m3_", "e5m2_", "fnuz_", "fp8_", "e2m1_")))
ANSWERS = [(name, answer) for name in CASTS for answer in PATHS[name] if answer != "refuse"]
DTYPES = ("float32", "bfloat16", "float16")


def under(**answers: str) -> Bitwise:
    """Return the codec under some declared answers."""
    made = Bitwise()
    made.claims = replace(
        Bitwise.claims, choices={choice_name(name): answer for name, answer in answers.items()}
    )
    return made


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.stem))
def test_shares_no_line_with_the_reference(source: File) -> None:
    """Two codecs with a common part would agree on that part's faults."""
    imported = [
        node.module or ""
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.ImportFrom)
    ]
    ours = [name for name in imported if name.startswith("kvref")]
    assert all(name in ALLOWED or name.startswith(SUITE) for name in ours), ours


def test_offers_the_verbs_of_formats_with_every_format() -> None:
    """An exhibit can stand for any of them only if the subject it breaks has them."""
    assert verbs_of(Bitwise()) == FORMATTED
    assert Bitwise.claims.formats == ALL_FORMATS
    assert tuple(KINDS) == ALL_FORMATS


@pytest.mark.parametrize("topic", [topic for topic in TOPICS if topic.startswith("formats_")])
def test_passes_every_check(topic: str) -> None:
    """What the untouched codec fails would be a false alarm of the suite."""
    host, oracle = InProcessHost(Bitwise), Oracle(Bitwise.claims)
    module = import_module(f"kvref_conformance.checks.{topic}")
    found = [
        evaluate(check, case, host, oracle)
        for check in vars(module).values()
        if isinstance(check, Check)
        for verb in FORMATTED
        if check.applies(verb, Bitwise.claims)
        for case in check.cases(Bitwise.claims, verb, "quick")
    ]
    assert found
    assert [(e.check, e.case, e.message) for e in found if e.status == "fail"] == []


@pytest.mark.parametrize("element", FIELDS)
def test_every_code_is_read_alike(element: str) -> None:
    """Tables by definition, and words put together from fields: the same bits, NaN aside."""
    codes = np.arange(2 ** ELEMENTS[element].bits, dtype=np.uint8)
    by_table, by_bits = decode(codes, element), Bitwise().read_float(codes, element)
    nan = np.isnan(by_table)
    assert np.array_equal(nan, np.isnan(by_bits))
    assert np.array_equal(by_table[~nan].view(np.uint32), by_bits[~nan].view(np.uint32))


def test_every_power_of_two_is_read_alike() -> None:
    """All bytes of E8M0, both special ends among them."""
    codes = np.arange(256, dtype=np.uint8)
    assert np.array_equal(scale_of(codes), Bitwise().read_power(codes), equal_nan=True)


@pytest.mark.parametrize("element", FIELDS)
@pytest.mark.parametrize(("decision", "answer"), ANSWERS)
def test_every_number_is_cast_alike(element: str, decision: str, answer: str) -> None:
    """All halves, and float32 drawn by their bits, under each answer to each decision about casts."""
    path, codec = Path(**{decision: answer}), under(**{decision: answer})
    words = np.random.default_rng(len(element)).integers(0, 2**32, 200_000, dtype=np.uint64)
    halves = np.arange(2**16, dtype=np.uint16)
    for numbers in (
        words.astype(np.uint32).view(np.float32),
        halves.view(np.float16),
        halves.view(ml_dtypes.bfloat16),
    ):
        with np.errstate(invalid="ignore"):
            wide = numbers.astype(np.float32)
        wrong = encode(numbers, element, path) != codec.write_float(wide, element)
        assert not wrong.any(), f"{numbers[wrong][:4]}"


@st.composite
def answers(draw: st.DrawFn) -> dict[str, str]:
    """Draw a path: most often a few decisions that are not canonical, sometimes all of them."""
    few = draw(st.lists(st.sampled_from(sorted(PATHS)), max_size=3, unique=True))
    names = draw(st.sampled_from([few, sorted(PATHS)]))
    return {name: draw(st.sampled_from(PATHS[name])) for name in names}


def numbers(seed: int, tokens: int, heads: int, width: int, dtype: str) -> Array:
    """Return numbers that formats find hard: ties, zeros, constants, magnitudes far apart, any bits."""
    rng = np.random.default_rng(seed)
    shape = (tokens, heads, width)
    x = rng.standard_normal(shape)
    kind = seed % 8
    if kind == 1:
        x *= 10.0 ** rng.integers(-12, 6, (tokens, heads, 1))
    elif kind == 2:
        x = np.round(x * 4) / 4
    elif kind == 3:
        x = np.broadcast_to(np.round(rng.standard_normal((tokens, heads, 1))), shape).copy()
    elif kind == 4:
        x *= np.exp2(rng.integers(-40, 20, (tokens, heads, width // 16)).repeat(16, axis=2))
    elif kind == 5:
        x = np.where(rng.random(shape) < 0.5, np.copysign(0.0, x), x)
    elif kind == 6:
        words = rng.integers(0, 2**32, shape, dtype=np.uint64).astype(np.uint32).view(np.float32)
        x = np.where(np.isfinite(words), words, 0.0)
    with np.errstate(all="ignore"):
        found = x.astype(np.float32).astype(dtype_of(dtype))
        if kind == 7:
            places = rng.integers(0, found.size, 3)
            found.reshape(-1)[places] = rng.choice([np.inf, -np.inf, np.nan, -np.nan], 3)
        else:
            found = np.where(np.isfinite(found.astype(np.float32)), found, np.zeros(1, found.dtype))
    return found


def given_to(name: str, seed: int, heads: int) -> dict[str, Array]:
    """Return the scales that a format is given."""
    rng = np.random.default_rng(seed + 1)
    kind = FORMATS[name]
    found = {}
    if kind.group == "given":
        found["scales"] = rng.uniform(1e-3, 3, rng.choice([1, heads])).astype(np.float32)
    if kind.global_scale == "given":
        found["global_scale"] = (rng.uniform(0.5, 1, 1) * 10.0 ** rng.integers(-4, 1)).astype(np.float32)
    return found


def same_bits(a: Array, b: Array) -> bool:
    """Whether two arrays have the same bits, or NaN both."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    words = [np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}") for x in (a, b)]
    return bool(((words[0] == words[1]) | ((a != a) & (b != b))).all())


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=30)
@given(
    path=answers(), seed=st.integers(0, 10_000), dtype=st.sampled_from(DTYPES), out=st.sampled_from(DTYPES)
)
def test_every_path_gives_the_same_bytes_and_numbers(
    name: str, path: dict[str, str], seed: int, dtype: str, out: str
) -> None:
    """Whatever is declared, two codecs that share nothing store the same, refuse the same and read the same.

    Where a division is left open, what is stored may differ, and what is read of it may not.
    """
    heads = 1 + seed % 3
    x = numbers(seed, 32, heads, 128, dtype)
    given_scales, codec = given_to(name, seed, heads), under(**path)
    with np.errstate(all="ignore"):
        try:
            stored = quantize(x, name, path=Path(**path), **given_scales)
        except FormatError:
            with pytest.raises(FormatError):
                codec.quantize_kv(x, format=name, **given_scales)
            return
        answer = codec.quantize_kv(x, format=name, **given_scales)
        parts = answer if isinstance(answer, tuple) else (answer,)
        wanted = outputs_of(stored, FORMATS[name])
        assert len(parts) == len(wanted)
        if "approximate" not in path.values():
            for (part, right), found in zip(wanted.items(), parts, strict=True):
                assert same_bits(right, found), part
        _reads_alike(name, stored, codec, path, out)


def _reads_alike(name: str, stored: Quantized, codec: Bitwise, path: dict[str, str], out: str) -> None:
    parts = {part: getattr(stored, part) for part in ("scales", "zeros", "global_scale")}
    named = {part: x for part, x in parts.items() if x is not None}
    read = codec.dequantize_kv(stored.codes, format=name, dtype=out, **named)
    assert same_bits(decoded(stored, name, dtype=out, path=Path(**path)), read)
