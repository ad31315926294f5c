"""Tests of the diagnosis of formats: faults are known again in codecs that share nothing with the museum.

The codecs here look at every number of an element for each number they store, one at a time, and the
attention behind them runs token by token in float64. Each fault is written anew.
"""

import math
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from kvref.arrays import Array, dtype_of
from kvref.attention.arithmetic import Arithmetic
from kvref.formats.format import FORMATS, Quantized
from kvref.formats.paths import CANONICAL
from kvref_conformance.cases import Case
from kvref_conformance.claims import FEATURES, Claims
from kvref_conformance.code_problems import present_codes
from kvref_conformance.contracts import Answer, Call
from kvref_conformance.formatted import Reading, Writing
from kvref_conformance.museum.diagnose import diagnose
from kvref_conformance.probes.code_caches import random_codes
from kvref_conformance.problems import Placement

#: The fault of a disguised writer, the exhibit of its class, the requirement it breaks, the format.
WRITERS: list[tuple[str, str, str, str]] = [
    ("sign of nothing", "TinyNegativeIsNaN", "KV-FMT-006", "fp8_e4m3fnuz"),
    ("NaN saturates", "NaNSaturates", "KV-FMT-005", "fp8_e4m3"),
    ("overflow", "OverflowIsNaN", "KV-FMT-003", "fp8_e4m3"),
    ("overflow", "OverflowIsInfinite", "KV-FMT-003", "fp8_e5m2"),
    ("cut off", "MantissaCutOff", "KV-FMT-002", "fp8_e5m2"),
    ("away", "TiesGoAway", "KV-FMT-002", "fp8_e4m3"),
    ("flush", "SubnormalsFlushed", "KV-FMT-004", "fp8_e4m3"),
    ("bfloat16", "ThroughBfloat16", "KV-FMT-007", "fp8_e4m3"),
    ("no scale", "ScaleIgnoredOnWrite", "KV-FMT-020", "fp8_e4m3"),
    ("multiply", "MultipliedOnWrite", "KV-FMT-020", "fp8_e4m3"),
    ("first head", "ScaleOfFirstHead", "KV-FMT-022", "fp8_e4m3"),
    ("reciprocal", "MultipliedByReciprocal", "KV-FMT-021", "fp8_e4m3"),
    ("clamp first", "ClampedBeforeScaling", "KV-FMT-024", "fp8_e4m3"),
    ("all heads", "OneScaleForAllHeads", "KV-FMT-023", "fp8_e4m3_token_head"),
    ("row before", "ScaleOfPreviousToken", "KV-FMT-023", "fp8_e4m3_token_head"),
    ("no abs", "MaximumWithoutAbs", "KV-FMT-025", "fp8_e4m3_token_head"),
    ("240", "LargestOfAnotherFlavour", "KV-FMT-025", "fp8_e4m3_token_head"),
    ("cut off", "IntegersCutOff", "KV-FMT-050", "int8"),
    ("wrap", "IntegersWrap", "KV-FMT-051", "int8"),
    ("ceil", "ExponentRoundedUp", "KV-FMT-030", "mxfp8_e4m3"),
    ("log2", "ExponentFromLogarithm", "KV-FMT-031", "mxfp8_e4m3"),
    ("high first", "HighNibbleFirst", "KV-FMT-070", "mxfp4"),
    ("no six", "SixLeftOut", "KV-FMT-040", "nvfp4"),
    ("1 / g", "GlobalScaleReciprocal", "KV-FMT-041", "nvfp4"),
    ("unrounded", "ScaleNotYetRounded", "KV-FMT-040", "nvfp4"),
]
#: Where each of three heads finds its scale -> the exhibit.
HEADS = {
    (1, 2, 0): "ScaleOfNextHead",
    (2, 0, 1): "ScaleOfPreviousHead",
    (2, 1, 0): "ScalesOfHeadsReversed",
}
#: The same of a disguised reader.
READERS: list[tuple[str, str, str, str]] = [
    ("fnuz", "FnReadAsFnuz", "KV-FMT-001", "fp8_e4m3"),
    ("e4m3", "E5M2ReadAsE4M3", "KV-FMT-001", "fp8_e5m2"),
    ("480", "NaNReadAsNumber", "KV-FMT-001", "fp8_e4m3"),
    ("bytes", "CodesAsNumbers", "KV-FMT-001", "fp8_e4m3"),
    ("no scale", "ScaleIgnoredOnRead", "KV-FMT-020", "fp8_e4m3"),
    ("divide", "DividedOnRead", "KV-FMT-020", "fp8_e4m3"),
    ("twice", "ScaleTwiceOnRead", "KV-FMT-020", "fp8_e4m3"),
    ("first head", "ScaleOfFirstHead", "KV-FMT-022", "fp8_e4m3"),
    ("group after", "ScaleOfNextGroup", "KV-FMT-041", "nvfp4"),
    ("group before", "ScaleOfPreviousGroup", "KV-FMT-041", "nvfp4"),
    ("place after", "GroupScalesOnePlaceOn", "KV-FMT-036", "mxfp8_e4m3"),
    ("place before", "GroupScalesOnePlaceBack", "KV-FMT-036", "mxfp4"),
    ("shift", "ScaleByteShifted", "KV-FMT-036", "mxfp8_e4m3"),
    ("bytes of scales", "ScaleBytesAsNumbers", "KV-FMT-036", "mxfp8_e4m3"),
    ("high first", "HighNibbleFirst", "KV-FMT-070", "mxfp4"),
    ("no global", "GlobalScaleLeftOut", "KV-FMT-041", "nvfp4"),
    ("1 / g", "GlobalScaleReciprocal", "KV-FMT-041", "nvfp4"),
]
#: The same of disguised attention over codes; the variant that it needs.
ATTENTION: list[tuple[str, str, str, str, dict[str, Any]]] = [
    ("swapped", "ScalesSwapped", "KV-FMT-091", "fp8_e4m3", {}),
    ("one scale", "KeyScalesForValues", "KV-FMT-091", "fp8_e4m3", {}),
    ("one scale", "KeyScalesForValues", "KV-FMT-093", "fp8_e4m3", {}),
    ("one scale", "KeyScalesForValues", "KV-FMT-092", "fp8_e4m3_token_head", {}),
    ("other scale", "ValueScalesForKeys", "KV-FMT-090", "fp8_e4m3", {}),
    ("product", "ScalesMultiplied", "KV-FMT-091", "fp8_e4m3", {}),
    ("keys for values", "KeysReadAsValues", "KV-FMT-091", "fp8_e4m3", {}),
    ("no scale", "ScalesDropped", "KV-FMT-090", "fp8_e4m3", {}),
    ("squared", "KeyScaleTwice", "KV-FMT-090", "fp8_e4m3", {}),
    ("by position", "ScaleByPosition", "KV-FMT-092", "fp8_e4m3_token_head", {}),
    ("no sinks", "SinksDroppedUnderFormats", "KV-FMT-094", "fp8_e4m3", {"sinks": True}),
    ("no window", "WindowDroppedUnderFormats", "KV-FMT-094", "fp8_e4m3", {"window": 9}),
    ("wide window", "WindowOneTooMany", "KV-FMT-094", "fp8_e4m3", {"window": 9}),
    ("fnuz", "FnReadAsFnuz", "KV-FMT-090", "fp8_e4m3", {}),
]


@pytest.mark.parametrize(("fault", "exhibit", "requirement", "name"), WRITERS)
def test_writer_is_recognised_in_disguise(fault: str, exhibit: str, requirement: str, name: str) -> None:
    """The same fault in a writer made from scratch is called by its name first."""
    writing = to_write(name)
    call = writing.call(CANONICAL)
    parts = stored(writing, fault)
    found = diagnose(call, Answer(parts), requirement, _claims(name))
    assert [match.exhibit.name for match in found][:1] == [exhibit]


@pytest.mark.parametrize("name", sorted({name for *_, name in WRITERS}))
def test_right_writer_has_no_diagnosis(name: str) -> None:
    """Bytes that are right look like no fault, whoever wrote them."""
    writing = to_write(name)
    right = writing.stored(CANONICAL)
    parts = stored(writing, "none")
    assert all(parts[part].tobytes() == getattr(right, part).tobytes() for part in parts)
    assert list(diagnose(writing.call(CANONICAL), Answer(parts), "KV-FMT-002", _claims(name))) == []


@pytest.mark.parametrize(("fault", "exhibit", "requirement", "name"), READERS)
def test_reader_is_recognised_in_disguise(fault: str, exhibit: str, requirement: str, name: str) -> None:
    """The same fault in a reader made from scratch is called by its name first."""
    reading = to_read(name)
    out = numbers(reading.stored(CANONICAL), name, fault).astype(np.float32)
    found = diagnose(reading.call(CANONICAL), Answer({"out": out}), requirement, _claims(name))
    assert [match.exhibit.name for match in found][:1] == [exhibit]


@pytest.mark.parametrize("name", sorted({name for *_, name in READERS}))
def test_right_reader_has_no_diagnosis(name: str) -> None:
    """Numbers that are right look like no fault."""
    reading = to_read(name)
    out = numbers(reading.stored(CANONICAL), name, "none").astype(np.float32)
    assert np.array_equal(out, reading.numbers(CANONICAL), equal_nan=True)
    assert list(diagnose(reading.call(CANONICAL), Answer({"out": out}), "KV-FMT-001", _claims(name))) == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("fault", "exhibit", "requirement", "name", "variant"), ATTENTION)
def test_attention_over_codes_is_recognised_in_disguise(
    fault: str, exhibit: str, requirement: str, name: str, variant: dict[str, Any], dtype: str
) -> None:
    """The same fault behind a reader and a kernel made from scratch is called by its name first."""
    call = to_attend(name, dtype, variant)
    found = diagnose(call, Answer({"out": attended(call, fault)}), requirement, _claims(name, dtype))
    assert [match.exhibit.name for match in found][:1] == [exhibit]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_right_attention_over_codes_has_no_diagnosis(dtype: str) -> None:
    """Attention that is right looks like no fault."""
    call = to_attend("fp8_e4m3_token_head", dtype, {"window": 9, "sinks": True})
    answer = Answer({"out": attended(call, "none")})
    assert list(diagnose(call, answer, "KV-FMT-090", _claims("fp8_e4m3_token_head", dtype))) == []


@pytest.mark.parametrize(("heads", "exhibit"), HEADS.items())
def test_scales_of_other_heads_are_recognised(heads: tuple[int, ...], exhibit: str) -> None:
    """Three heads tell the next from the one before, in a writer, a reader, and attention."""
    given, order = np.array([0.375, 2.9, 0.06], np.float32), list(heads)
    plain = to_write("fp8_e4m3")
    writing = replace(plain, x=np.concatenate([plain.x, plain.x[:, :1]], axis=1), scales=given)
    wrote = Answer(stored(replace(writing, scales=given[order]), "none"))
    reading = to_read("fp8_e4m3")
    reading = replace(reading, codes=np.resize(reading.codes, (4, 3, 64)), scales=given)
    other = replace(reading, scales=given[order]).stored(CANONICAL)
    read_as = Answer({"out": numbers(other, "fp8_e4m3", "none").astype(np.float32)})
    call = to_attend("fp8_e4m3", "float32", {}, heads=3)
    moved = {name: call.tensors[name][order] for name in ("k_scales", "v_scales")}
    out = Answer({"out": attended(replace(call, tensors={**call.tensors, **moved}), "none")})
    asked = (
        (writing.call(CANONICAL), wrote, "KV-FMT-022"),
        (reading.call(CANONICAL), read_as, "KV-FMT-022"),
        (call, out, "KV-FMT-091"),
    )
    for question, answer, requirement in asked:
        found = diagnose(question, answer, requirement, _claims("fp8_e4m3"))
        assert [match.exhibit.name for match in found] == [exhibit]


@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e5m2"])
def test_hints_speak_of_the_format_at_hand(name: str) -> None:
    """What is said of shared exponents is not said of plain FP8, nor NaN of what became infinite."""
    writing = to_write(name)
    answer = Answer(stored(writing, "overflow"))
    said = [m.sentence for m in diagnose(writing.call(CANONICAL), answer, "KV-FMT-003", _claims(name))]
    became = "NaN" if name == "fp8_e4m3" else "infinite"
    assert len(said) == 1
    assert said[0].startswith(f"numbers past the largest became {became}")


def test_unknown_fault_has_no_diagnosis() -> None:
    """Bytes that are wrong in a new way are not forced into an old one."""
    writing = to_write("fp8_e4m3")
    codes = stored(writing, "none")["codes"] ^ 0x10
    assert list(diagnose(writing.call(CANONICAL), Answer({"codes": codes}), "", _claims("fp8_e4m3"))) == []


def test_declared_answers_are_no_fault() -> None:
    """A ceiling that is declared is none; the same bytes are one where the rule of the standard is due."""
    writing = to_write("mxfp4")
    claims = replace(_claims("mxfp4"), choices={"nibble-order": "high_first", "mx-scale": "ceil"})
    parts = stored(writing, "ceil, high first")
    assert list(diagnose(writing.call(claims.path()), Answer(parts), "KV-FMT-030", claims)) == []
    answer = Answer(stored(writing, "ceil"))
    undeclared = diagnose(writing.call(CANONICAL), answer, "KV-FMT-030", _claims("mxfp4"))
    assert [match.exhibit.name for match in undeclared][:1] == ["ExponentRoundedUp"]


def _claims(name: str, dtype: str = "float32") -> Claims:
    return Claims(arithmetic=Arithmetic(), dtypes=(dtype,), features=tuple(FEATURES), formats=(name,))


def to_write(name: str) -> Writing:
    """Return numbers in which every fault shows: ties, all magnitudes, both signs, NaN where it is stored."""
    rng = np.random.default_rng(11)
    kind, heads = FORMATS[name], 2
    x = rng.standard_normal((4, heads, 64)) * np.array([0.3, 2.0, 40.0, 900.0])[:, None, None]
    x[:, :, :16] = np.round(x[:, :, :16] * 4) / 4
    x[:, :, 16] *= 1e-4
    x[:, :, 17] = [[-1e-9, 2e-3], [-0.0, 17.03], [-700.0, 16.97], [0.0, -2e4]]
    x[0, :, :32] = -np.abs(x[0, :, :32])
    x = x.astype(np.float32)
    if kind.family == "mx":
        x[1, 0] = np.minimum(x[1, 0], np.float32(1)) * 0.1
        x[1, 0, 3], x[1, 0, 35] = np.nextafter(np.float32(8), np.float32(0)), 7.99
    if name == "fp8_e5m2":
        x[3, 0, 60:62] = 3e4, -1e5  # past the largest
    if kind.group == "given" and name != "int8":
        x[2, 1, 40:42] = np.nan, -np.nan
        x[:, 0, 20:24] = np.array([17.0, 19.0, 1.0625, -21.0], np.float32) * np.float32(0.375)  # ties
        x[0, 1, 20:52] = np.arange(8.5, 16.5, 0.25, np.float32) * np.float32(2.9)  # and numbers next to some
    scales = np.array([0.375, 2.9], np.float32) if kind.group == "given" else None
    second = np.array([0.011], np.float32) if kind.global_scale == "given" else None
    return Writing(name, x, scales, second)


def to_read(name: str) -> Reading:
    """Return every code, under scales that are no powers of two and all different."""
    kind = FORMATS[name]
    codes = np.resize(np.arange(16 if kind.packed else 256), (4, 2, 64)).astype(np.uint8)
    if kind.family == "amax":
        return Reading(name, codes, "float32", np.array([0.37, 2.9], np.float32))
    scales = np.random.default_rng(13).integers(100, 150, (4, 2, 64 // kind.size)).astype(np.uint8)
    if kind.family == "nvfp4":
        return Reading(name, codes, "float32", scales & 0x7F, None, np.array([0.011], np.float32))
    scales[0, 0, 0], scales[1, 1, 1] = 0x00, 0xFF
    return Reading(name, codes, "float32", scales)


def to_attend(name: str, dtype: str, variant: dict[str, Any], heads: int = 2) -> Call:
    """Return random codes over two requests of unequal length, a chunk of queries in one."""
    case = Case(
        verb="quantized_paged_attention",
        seq_lens=(37, 21),
        query_lens=(5, 1),
        num_kv_heads=heads,
        group=3,
        dtype=dtype,
        options={"format": name},
    )
    rules = dict(variant)
    if "sinks" in rules:
        rules["sinks"] = np.linspace(-1.0, 2.0, case.num_q_heads, dtype=np.float32)
    return present_codes(random_codes(case, CANONICAL, **rules), case, Placement(seed=3))


#: Element -> mantissa bits, bias, the code of the largest number, the sign bit.
LAYOUT = {
    "e4m3fn": (3, 7, 0x7E, 0x80),
    "e5m2": (2, 15, 0x7B, 0x80),
    "e4m3fnuz": (3, 8, 0x7F, 0x80),
    "e2m1": (1, 1, 0x7, 0x8),
}


def magnitude(code: int, element: str) -> float:
    """Return what a code without its sign stands for, and what the codes after the last would."""
    bits, bias, *_ = LAYOUT[element]
    exponent, mantissa = divmod(code, 2**bits)
    if exponent == 0:
        return math.ldexp(mantissa, 1 - bias - bits)
    return math.ldexp(2**bits + mantissa, exponent - bias - bits)


def code_of(x: float, element: str, fault: str) -> int:
    """Return the code of a number, found by looking at all of them."""
    bits, _, last, sign = LAYOUT[element]
    bit = sign if math.copysign(1.0, x) < 0 else 0
    if math.isnan(x):
        return 0x80 if element == "e4m3fnuz" else bit | (last if fault == "NaN saturates" else 0x7F)
    size = abs(x)
    if fault == "bfloat16":
        size = float(np.float32(size).astype(ml_dtypes.bfloat16))
    if fault == "flush" and size < magnitude(2**bits, element):
        size = 0.0
    table = [magnitude(code, element) for code in range(last + 2)]
    code = max(c for c, number in enumerate(table) if number <= size)
    if code <= last and fault != "cut off":
        down, up = size - table[code], table[code + 1] - size
        even = code % 2 == 0 and fault != "away"
        code += not (down < up or (down == up and even))
    if code > last:
        code = last + 1 if fault == "overflow" else last
    if code == 0 and element == "e4m3fnuz" and fault != "sign of nothing":
        return 0
    return code | bit


def integer_of(x: float, fault: str) -> int:
    """Return the byte of an integer."""
    whole = int(x) if fault == "cut off" else round(x)
    return (whole if fault == "wrap" else min(max(whole, -128), 127)) % 256


def stored(writing: Writing, fault: str) -> dict[str, Array]:
    """Store numbers one at a time, with a fault."""
    kind, x = writing.kind, writing.x
    codes = np.zeros(x.shape, np.uint8)
    size = kind.size or x.shape[2]
    rows = [(t, h, g) for t in range(len(x)) for h in range(x.shape[1]) for g in range(x.shape[2] // size)]
    scales = np.zeros((len(x), x.shape[1], x.shape[2] // size), np.float32)
    for t, h, g in rows:
        own = x[t, h, g * size : (g + 1) * size]
        with np.errstate(all="ignore"):
            scales[t, h, g], quotients = scaled(writing, own, (t, h), fault)
        for i, quotient in enumerate(quotients):
            number = float(quotient)
            integer = kind.element == "int8"
            code = integer_of(number, fault) if integer else code_of(number, kind.element, fault)
            codes[t, h, g * size + i] = code
    parts = {"codes": codes}
    if kind.packed:
        first, second = codes[..., 0::2], codes[..., 1::2]
        parts["codes"] = second | first << 4 if "high first" in fault else first | second << 4
    if kind.group == "token_head":
        parts["scales"] = scales[..., 0]
    elif kind.family != "amax":
        parts["scales"] = scales.astype(np.uint8)
    return parts


def scaled(writing: Writing, own: Array, at: tuple[int, int], fault: str) -> tuple[Any, Array]:
    """Return the scale of some numbers as it is stored, and their quotients."""
    kind, (token, head) = writing.kind, at
    one, amax = np.float32(1), np.abs(own).max()
    if kind.group == "given":
        assert writing.scales is not None
        s = writing.scales[0 if fault == "first head" else head]
        if fault == "clamp first":
            own = np.clip(own, np.float32(-448), np.float32(448))
        if fault == "multiply":
            return s, own * s
        return s, own if fault == "no scale" else own * (one / s) if fault == "reciprocal" else own / s
    if kind.group == "token_head":
        if fault == "no abs":
            amax = max(own.max(), np.float32(0))
        elif fault == "all heads":
            amax = np.abs(writing.x[token]).max()
        elif fault == "row before":
            amax = np.abs(writing.x[token - 1, head]).max()
        s = amax / np.float32(240 if fault == "240" else 448)
        return s, own / s
    if kind.family == "mx":
        _, _, last, _ = LAYOUT[kind.element]
        fraction, exponent = math.frexp(amax)
        exponent -= 1
        if "ceil" in fault:
            exponent += fraction > 0.5
        elif fault == "log2":
            exponent = math.floor(np.float32(math.log2(amax)))
        exponent -= math.frexp(magnitude(last, kind.element))[1] - 1
        return exponent + 127, own / np.float32(2.0**exponent)
    assert writing.global_scale is not None
    passed = writing.global_scale[0]
    second = one / passed if fault == "1 / g" else passed
    wanted = amax / (np.float32(1 if fault == "no six" else 6) * second)
    byte = code_of(float(wanted), "e4m3fn", "")
    s = np.float32(magnitude(byte, "e4m3fn"))
    divisor = wanted if fault == "unrounded" and s else s
    return byte, own / (divisor * second) if s else np.zeros_like(own)


def numbers(found: Quantized, name: str, fault: str) -> Array:
    """Read codes one at a time, with a fault; float64."""
    kind = FORMATS[name]
    codes = found.codes
    if kind.packed:
        halves = codes & 0xF, codes >> 4
        if fault == "high first":
            halves = halves[::-1]
        codes = np.stack(halves, axis=-1).reshape(*codes.shape[:-1], -1)
    element = {"fnuz": "e4m3fnuz", "e4m3": "e4m3fn"}.get(fault, kind.element)
    table = [read(code, element, fault) for code in range(256)]
    out = np.zeros(codes.shape)
    for t, h, d in np.ndindex(codes.shape):
        out[t, h, d] = times(table[codes[t, h, d]], found, kind.name, (t, h, d), fault)
    return out


def read(code: int, element: str, fault: str) -> float:
    """Return what a code stands for."""
    _, _, last, sign = LAYOUT[element]
    if fault == "bytes":
        return float(code)
    size, number = code % sign, magnitude(code % sign, element)
    if element == "e5m2" and size == 0x7C:
        number = math.inf
    elif (size > last and fault != "480") or (element == "e4m3fnuz" and code == sign):
        return math.nan
    return -number if code & sign else number


def times(number: float, found: Quantized, name: str, at: tuple[int, int, int], fault: str) -> float:
    """Return a number under its scales, the product rounded to float32 as it is formed."""
    (t, h, d), kind, x = at, FORMATS[name], np.float32(number)
    assert found.scales is not None
    with np.errstate(all="ignore"):
        if kind.family == "amax":
            given = found.scales[0 if fault == "first head" else h % len(found.scales)]
            s = given if kind.group == "given" else found.scales[t, h]
            if fault == "no scale":
                return number
            return float(x / s if fault == "divide" else x * s * s if fault == "twice" else x * s)
        place = np.ravel_multi_index((t, h, d // kind.size), found.scales.shape)
        step = (fault.endswith("after")) - (fault.endswith("before"))
        if fault.startswith("group"):
            step = (place + step) % found.scales.shape[2] - place % found.scales.shape[2]
        byte = int(found.scales.reshape(-1)[(place + step) % found.scales.size])
        if kind.family == "mx":
            return float(x * power(byte, fault))
        assert found.global_scale is not None
        product = x * np.float32(read(byte, "e4m3fn", ""))
        g = found.global_scale[0]
        return float(product if fault == "no global" else product / g if fault == "1 / g" else product * g)


def power(byte: int, fault: str) -> Any:
    """Return the scale of a byte of E8M0."""
    if fault == "bytes of scales":
        return np.float32(byte)
    if fault == "shift":
        return np.array([byte << 23], np.uint32).view(np.float32)[0]
    return np.float32(np.nan if byte == 255 else math.ldexp(1.0, byte - 127))


def attended(call: Call, fault: str) -> Array:
    """Attend over codes, token by token in float64, with a fault."""
    t, p, name = call.tensors, call.params, str(call.params["format"])
    q, size = t["q"].astype(np.float64), t["k_cache"].shape[1]
    k, v = t["k_scales"], t["v_scales"]
    if fault == "swapped":
        k, v = v, k
    elif fault == "one scale":
        v = k
    elif fault == "other scale":
        k = v
    elif fault == "product":
        k = v = k * v
    elif fault == "squared":
        k = k * k
    elif fault == "keys for values":
        v = k
    out = np.zeros((*q.shape[:2], q.shape[2]))
    for request, n in enumerate(int(n) for n in t["seq_lens"]):
        first, last = (int(i) for i in t["query_start_loc"][request : request + 2])
        at = np.arange(n)
        where = t["block_tables"][request, at // size], at % size
        own = (at // size, at % size) if fault == "by position" else where
        keys, values = (
            numbers(Quantized(cache[where], s if s.ndim == 1 else s[own]), name, fault)
            for cache, s in (
                (t["k_cache"], k),
                (t["k_cache" if fault == "keys for values" else "v_cache"], v),
            )
        )
        for row in range(first, last):
            position = n - (last - first) + row - first
            seen = at[(at <= position) & _in_window(at, position, p, fault)]
            for head in range(q.shape[1]):
                kv = head // (q.shape[1] // keys.shape[1])
                scores = keys[seen, kv] @ q[row, head] * p["scale"]
                if "sinks" in t and fault != "no sinks":
                    scores = np.append(scores, np.float64(t["sinks"][head]))
                weights = np.exp(scores - scores.max())
                out[row, head] = weights[: len(seen)] @ values[seen, kv] / weights.sum()
    return out.astype(dtype_of(str(call.outputs["out"].dtype)))


def _in_window(at: Array, position: int, params: Any, fault: str) -> Array:
    if "window" not in params or fault == "no window":
        return np.ones(at.shape, np.bool_)
    window = int(params["window"]) + (fault == "wide window")
    return np.asarray(at > position - window)
