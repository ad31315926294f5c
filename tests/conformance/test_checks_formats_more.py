"""Faults that small, round or even inputs do not show, each seen by the requirement it breaks.

Many tokens and odd numbers of them, one head and four and eight, scales far from 1, rows of padding, ranges
below a floor, products past the end of a dtype, and a second call that remembers the first.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from kvref.arrays import Array
from kvref_conformance.claims import ALL_DTYPES, Claims
from kvref_conformance.formatted import FORMATS
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.oracle import Oracle
from kvref_conformance.probes.many_tokens import SIZES, TOKENS, sized_cases
from kvref_conformance.runner.evaluate import Evidence, evaluate, plan
from kvref_conformance.subjects.bitwise import Bitwise
from kvref_conformance.subjects.bitwise.coded import Coded
from kvref_conformance.subjects.bitwise.kinds import Kind

Failing = Callable[..., list[Evidence]]
WRITE, READ = ("quantize_kv",), ("dequantize_kv",)


def of(*formats: str, dtypes: tuple[str, ...] = ALL_DTYPES, widths: tuple[int, ...] = (64, 128)) -> Claims:
    """Claims of some formats."""
    return Claims(name="faulty", formats=formats, dtypes=dtypes, head_dims=widths, block_sizes=(16,))


class ScaleHeldInFloat16(Bitwise):
    """Scales past the largest float16 become it."""

    claims = of("fp8_e4m3")

    def given_scales(self, scales: Array, x: Array) -> Array:
        return np.minimum(super().given_scales(scales, x), np.float32(65504))


class ScaleHasAFloor(Bitwise):
    """Given scales are raised to 1e-6, as derived ones are elsewhere."""

    claims = of("int8")

    def given_scales(self, scales: Array, x: Array) -> Array:
        return np.maximum(super().given_scales(scales, x), np.float32(1e-6))


class ScalesOfHeadsInBfloat16(Bitwise):
    """One scale for all is kept as it is; those of heads are a tensor of the model's dtype."""

    claims = of("fp8_e4m3")

    def given_scales(self, scales: Array, x: Array) -> Array:
        kept = scales if len(scales) == 1 else scales.astype(ml_dtypes.bfloat16)
        return super().given_scales(kept.astype(np.float32), x)


class FourScalesAtMost(Bitwise):
    """The scales of heads are loaded as one vector of four."""

    claims = of("fp8_e5m2")

    def given_scales(self, scales: Array, x: Array) -> Array:
        return super().given_scales(scales[np.arange(len(scales)) % 4], x)


class ReciprocalForHeads(Bitwise):
    """Divides by one scale, and multiplies by the reciprocals of many."""

    claims = of("fp8_e4m3")

    def divided(self, x: Array, scales: Array) -> Array:
        if scales.size == 1:
            return super().divided(x, scales)
        return np.asarray(x.astype(np.float32) * (np.float32(1) / scales))


class TinyInputsFlushed(Bitwise):
    """Subnormal numbers are zero before they are divided."""

    claims = of("fp8_e4m3")

    def divided(self, x: Array, scales: Array) -> Array:
        wide = x.astype(np.float32)
        return super().divided(np.where(np.abs(wide) < 2.0**-126, wide * 0, wide), scales)


class ScaleOfTheFirstCall(Bitwise):
    """The scale is read once, when the kernel is made."""

    claims = of("fp8_e4m3")
    first: Array | None = None

    def dequantize_kv(self, codes: Array, **options: Any) -> Array:
        if self.first is None:
            self.first = options["scales"].copy()
        if options["scales"].shape == (1,) and options["scales"][0] > 1000 * self.first[0]:
            options["scales"] = self.first[:1]
        return super().dequantize_kv(codes, **options)


class InfinityUnderAScale(Bitwise):
    """An infinity is NaN unless the scale is 1."""

    claims = of("fp8_e4m3")

    def quantize_kv(self, x: Array, **options: Any) -> Any:
        codes = super().quantize_kv(x, **options)
        lost = np.isinf(x.astype(np.float32)) & (options["scales"][0] != 1)
        return np.where(lost, np.uint8(0x7F), codes)


class NaNUnderAScale(Bitwise):
    """A NaN is the largest number unless the scale is 1."""

    claims = of("fp8_e4m3")

    def quantize_kv(self, x: Array, **options: Any) -> Any:
        codes = super().quantize_kv(x, **options)
        lost = np.isnan(x.astype(np.float32)) & (options["scales"][0] != 1)
        return np.where(lost, np.uint8(0x7E), codes)


class UnreadPast128(Bitwise):
    """Reads as many tokens as a tile has."""

    claims = of("fp8_e4m3", "int8_token_head", "nvfp4", "ggml_q4_0", "int4_token_head", "kivi_v4")

    def read(self, *stored: Any, **options: Any) -> Array:
        found = super().read(*stored, **options).copy()
        found[128:] = 0
        return found


class LastOfAnOddNumber(Bitwise):
    """Reads tokens in pairs."""

    claims = of("mxfp8_e4m3")

    def read(self, *stored: Any, **options: Any) -> Array:
        found = super().read(*stored, **options).copy()
        found[len(found) // 2 * 2 or 1 :] = 0
        return found


class UnwrittenPast1024(Bitwise):
    """Writes as many tokens as a block of threads has threads."""

    claims = of("mxfp4", "int8_token_head", "ggml_q8_0", "int8_midpoint", dtypes=("float32",))

    def write(self, *given: Any) -> Coded:
        coded = super().write(*given)
        codes = coded.codes.copy()
        codes[1024:] = 0
        return coded._replace(codes=codes)


class OneHeadHasNoAxis(Bitwise):
    """Drops the axis of heads where there is one head."""

    claims = of("int8_token_head")

    def quantize_kv(self, x: Array, **options: Any) -> Any:
        codes, scales = super().quantize_kv(x, **options)
        return codes, scales[:, 0] if scales.shape[1] == 1 else scales


class FourHeadsReversed(Bitwise):
    """Takes scales for a vector, whose ends are the other way round, where heads fill one."""

    claims = of("nvfp4")

    def quantize_kv(self, x: Array, **options: Any) -> Any:
        codes, scales = super().quantize_kv(x, **options)
        return codes, np.ascontiguousarray(scales[:, ::-1]) if x.shape[1] % 4 == 0 else scales


class MaximumOf64Tokens(Bitwise):
    """The largest magnitude of a tensor is looked for in the first tile."""

    claims = of("fp8_e4m3_tensor", "nvfp4_tensor")

    def own_scales(self, groups: Array, kind: Kind) -> Array:
        return super().own_scales(groups[:64] if kind.group == "tensor" else groups, kind)

    def own_global(self, x: Array, kind: Kind) -> Array:
        return super().own_global(x[:64], kind)


class FirstGroupForAll(Bitwise):
    """Reads every group of tokens with the scales of the first."""

    claims = of("kivi_k4", "kivi_k2")

    def dequantize_kv(self, codes: Array, **options: Any) -> Array:
        options["scales"] = np.broadcast_to(options["scales"][:1], options["scales"].shape)
        return super().dequantize_kv(codes, **options)


class GlobalScaleOfPaddingIsNaN(Bitwise):
    """A row of zeros has 0 / 0 for its global scale."""

    claims = of("nvfp4_token_head", "nvfp4_tensor")

    def own_global(self, x: Array, kind: Kind) -> Array:
        found = super().own_global(x, kind)
        return np.where(found == 0, np.float32(np.nan), found)


class GlobalScaleWithinBounds(Bitwise):
    """Global scales are kept between 1e-4 and 100."""

    claims = of("nvfp4")

    def decode_scale(self, passed: Array) -> Array:
        return np.clip(passed, np.float32(1e-4), np.float32(100))


class GroupScaleHasNoSign(Bitwise):
    """The top bit of a group's scale is not looked at."""

    claims = of("nvfp4")

    def read_nvfp4(self, codes: Array, kind: Kind, scales: Array, g: Array, dtype: np.dtype[Any]) -> Array:
        return super().read_nvfp4(codes, kind, scales & np.uint8(0x7F), g, dtype)


class FloorForConstantsAlone(Bitwise):
    """The least scale is there for ranges of zero, and not for those that are nearly that."""

    claims = of("int4_token_head")

    def quantize_kv(self, x: Array, **options: Any) -> Any:
        low, high = x.astype(np.float32).min(axis=-1), x.astype(np.float32).max(axis=-1)
        codes, scales = super().quantize_kv(x, **options)
        own = (high - low) / np.float32(15)
        return codes, np.where((own > 0) & (own < 1e-6), own, scales).astype(np.float32)


class LargeBlocksClamped(Bitwise):
    """Numbers past a million are that before their block is written."""

    claims = of("ggml_q8_0", "ggml_q4_0")

    def write(self, x: Array, *rest: Any) -> Coded:
        return super().write(np.clip(x.astype(np.float32), -1e6, 1e6).astype(x.dtype), *rest)


class SaturatesInFloat16(Bitwise):
    """What a float16 does not hold becomes its largest number."""

    claims = of("fp8_e4m3", "int8_token_head", "ggml_q8_0", "kivi_v2", dtypes=("float16",))

    def read(self, *stored: Any, **options: Any) -> Array:
        return np.clip(super().read(*stored, **options), np.float16(-65504), np.float16(65504))


class OnePathOfOneWidth(Bitwise):
    """At one width float16 is made from bfloat16."""

    claims = of("fp8_e4m3", "nvfp4", widths=(64, 80, 128))

    def dequantize_kv(self, codes: Array, *, format: str, dtype: str, **options: Any) -> Array:
        width = codes.shape[2] * (2 if FORMATS[format].packed else 1)
        by = "bfloat16" if (width, dtype) == (128, "float16") else dtype
        found = super().dequantize_kv(codes, format=format, dtype=by, **options)
        return found.astype(np.float16) if by != dtype else found


class OneStretchOfFloats(Bitwise):
    """A few float32 numbers around 0.2934 have the code after theirs."""

    claims = of("fp8_e4m3", dtypes=("float32",))

    def write_float(self, x: Array, element: str, *, saturate: bool = False) -> Array:
        found = super().write_float(x, element, saturate=saturate)
        return (found + ((x > 0.293) & (x < 0.2945))).astype(np.uint8)


FAULTS = [
    (ScaleHeldInFloat16, "formats_scales", "KV-FMT-021", WRITE),
    (ScaleHeldInFloat16, "formats_bytes", "KV-FMT-081", READ),
    (ScaleHasAFloor, "formats_scales", "KV-FMT-021", WRITE),
    (ScaleHasAFloor, "formats_bytes", "KV-FMT-081", READ),
    (ScalesOfHeadsInBfloat16, "formats_scales", "KV-FMT-021", WRITE),
    (ScalesOfHeadsInBfloat16, "formats_bytes", "KV-FMT-081", READ),
    (FourScalesAtMost, "formats_scales", "KV-FMT-021", WRITE),
    (FourScalesAtMost, "formats_bytes", "KV-FMT-073", READ),
    (ReciprocalForHeads, "formats_scales", "KV-FMT-021", WRITE),
    (TinyInputsFlushed, "formats_scales", "KV-FMT-021", WRITE),
    (ScaleOfTheFirstCall, "formats_bytes", "KV-FMT-081", READ),
    (InfinityUnderAScale, "formats_elements", "KV-FMT-003", WRITE),
    (NaNUnderAScale, "formats_elements", "KV-FMT-005", WRITE),
    (UnreadPast128, "formats_bytes", "KV-FMT-073", READ),
    (LastOfAnOddNumber, "formats_bytes", "KV-FMT-073", READ),
    (UnwrittenPast1024, "formats_bytes", "KV-FMT-073", WRITE),
    (OneHeadHasNoAxis, "formats_bytes", "KV-FMT-073", WRITE),
    (FourHeadsReversed, "formats_bytes", "KV-FMT-073", WRITE),
    (MaximumOf64Tokens, "formats_bytes", "KV-FMT-073", WRITE),
    (FirstGroupForAll, "formats_bytes", "KV-FMT-073", READ),
    (GlobalScaleOfPaddingIsNaN, "formats_scales", "KV-FMT-026", WRITE),
    (GlobalScaleWithinBounds, "formats_micro", "KV-FMT-040", WRITE),
    (GroupScaleHasNoSign, "formats_micro", "KV-FMT-041", READ),
    (FloorForConstantsAlone, "formats_integers", "KV-FMT-052", WRITE),
    (LargeBlocksClamped, "formats_integers", "KV-FMT-06", WRITE),
    (SaturatesInFloat16, "formats_bytes", "KV-FMT-081", READ),
    (OnePathOfOneWidth, "formats_bytes", "KV-FMT-073", READ),
    (OneStretchOfFloats, "formats_elements", "KV-FMT-010", WRITE),
]


@pytest.mark.parametrize(("faulty", "topic", "requirement", "verbs"), FAULTS)
def test_a_fault_of_larger_inputs_is_seen(
    failing: Failing, faulty: Any, topic: str, requirement: str, verbs: tuple[str, ...]
) -> None:
    """In every format that claims the fault, at level quick."""
    found = failing(topic, faulty, requirement, verbs=verbs)
    assert {one.case.option("format") for one in found} == set(faulty.claims.formats)


@pytest.mark.parametrize("operand", ["decode", "encode"])
@pytest.mark.parametrize(("guard", "fails"), [(1.0, False), (2.0**-20, False), (np.nan, True), (0.0, None)])
def test_the_global_scale_of_zeros_is_any_that_reads_as_zeros(
    failing: Failing, operand: str, guard: float, fails: bool | None
) -> None:
    """A tensor that nobody has written to: 0 is the rule's scale, and NaN where it is divided by."""

    class Guarded(Bitwise):
        claims = replace(of("nvfp4_tensor", "nvfp4_token_head"), choices={"nvfp4-operand": operand})

        def own_global(self, x: Array, kind: Kind) -> Array:
            found = super().own_global(x, kind)
            zeros = (x == 0).all(axis=None if kind.global_scale == "tensor" else 2)
            return np.where(np.reshape(zeros, found.shape), np.float32(guard), found)

    found = failing("formats_scales", Guarded, "KV-FMT-026", verbs=WRITE)
    assert bool(found) == ((operand == "encode") if fails is None else fails)


def test_to_say_that_a_width_is_not_supported_is_to_refuse_it() -> None:
    """A writer of groups of 32 has no other word for heads of 80 channels than this one."""

    class Says(Bitwise):
        claims = of("mxfp4", "mxfp8_e4m3", widths=(80, 128))

        def quantize_kv(self, x: Array, **options: Any) -> Any:
            if x.shape[2] % 32:
                raise NotImplementedError("head_dim must be a multiple of 32")
            return super().quantize_kv(x, **options)

    host, oracle = InProcessHost(Says), Oracle(Says.claims)
    found = [
        evaluate(check, case, host, oracle)
        for check, case in plan(WRITE, Says.claims, "quick")
        if check.requirement == "KV-FMT-038"
    ]
    assert [one.status for one in found] == ["pass", "pass"]


def test_a_call_without_tokens_may_be_refused_and_not_be_answered_with_some(failing: Failing) -> None:
    """Nobody has to have an answer to it, but one token out of none would be written somewhere."""

    class Refuses(Bitwise):
        claims = of("nvfp4")

        def quantize_kv(self, x: Array, **options: Any) -> Any:
            if not len(x):
                raise ValueError("no tokens")
            return super().quantize_kv(x, **options)

    class Rounds(Refuses):
        def quantize_kv(self, x: Array, **options: Any) -> Any:
            return super().quantize_kv(x if len(x) else np.zeros((1, *x.shape[1:]), x.dtype), **options)

    assert failing("formats_bytes", Refuses, "KV-FMT-073", verbs=WRITE) == []
    assert failing("formats_bytes", Rounds, "KV-FMT-073", verbs=WRITE)


@pytest.mark.parametrize("names", [("fp8_e4m3",), ("mxfp4", "nvfp4", "mxfp8_e5m2"), ("kivi_k4", "kivi_k2")])
def test_every_family_meets_every_size_dtype_and_width(names: tuple[str, ...]) -> None:
    """At level quick by its formats together, at level full each format on its own."""
    claims = of(*names, widths=(64, 80, 128, 256))
    for level in ("quick", "full"):
        cases = sized_cases(claims, READ[0], level)  # type: ignore[arg-type]  # a level
        for name in names:
            mine = [case for case in cases if case.option("format") == name]
            whole = [-(-tokens // 32) * 32 if "_k" in name else tokens for tokens, _ in SIZES]
            assert set(whole) <= {case.option(TOKENS) for case in mine}
            kin = [case for case in cases if _kin(case.option("format")) == _kin(name)]
            met = mine if level == "full" else kin
            widths = {case.head_dim for case in met}
            assert len({(case.dtype, case.head_dim) for case in met}) == 3 * len(widths)
            assert widths >= {64, 128, 256}


def _kin(name: str) -> tuple[str, str]:
    return FORMATS[name].family, FORMATS[name].group
