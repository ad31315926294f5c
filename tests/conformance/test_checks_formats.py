"""Checks of formats: the reference passes by every path, and small faults of writers and readers are seen."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from kvref.arrays import Array
from kvref.formats.format import FORMATS
from kvref_conformance.cases import smaller
from kvref_conformance.checks import all_checks
from kvref_conformance.claims import ALL_FORMATS
from kvref_conformance.contracts import FORMATTED
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.oracle import Oracle
from kvref_conformance.probes.code_caches import code_needles
from kvref_conformance.probes.code_cases import coded_cases
from kvref_conformance.probes.format_cases import places_of
from kvref_conformance.probes.needles import hunt_near
from kvref_conformance.problems import cast
from kvref_conformance.runner.evaluate import Evidence, plan
from kvref_conformance.runner.shrink import shrink
from kvref_conformance.subjects.reference import Reference

Failing = Callable[..., list[Evidence]]
TOPICS = (
    *("formats_elements", "formats_scales", "formats_micro", "formats_integers", "formats_bytes"),
    *("formats_attend", "formats_contexts", "formats_readout", "formats_variants"),
)


def only(*formats: str, **rest: Any) -> Any:
    """The claims of the reference, narrowed to some formats."""
    return replace(Reference.claims, formats=formats, **rest)


class ThroughBfloat16(Reference):
    """Rounds to bfloat16 before it rounds to the element."""

    claims = only("fp8_e4m3", "mxfp8_e4m3")

    def quantize_kv(self, x: Array, **rest: Any) -> Any:
        return super().quantize_kv(x.astype(ml_dtypes.bfloat16), **rest)


class Truncates(Reference):
    """Rounds towards zero, as a cast of an integer does."""

    claims = only("int8")

    def quantize_kv(self, x: Array, *, scales: Array, **rest: Any) -> Any:
        spread = scales.reshape(1, -1, 1)
        whole = np.trunc(np.clip(x.astype(np.float32) / spread, -128, 127)).astype(np.int64)
        return whole.astype(np.uint8)


class FlushesSubnormals(Reference):
    """Stores what is below the smallest normal number as zero."""

    claims = only("fp8_e5m2")

    def quantize_kv(self, x: Array, **rest: Any) -> Any:
        (codes,) = super().quantize_kv(x, **rest)
        return np.where(codes & 0x7C, codes, codes & 0x80)


class DividesWhereItMultiplies(Reference):
    """Takes the scale for its reciprocal, on the way in and on the way out."""

    claims = only("fp8_e4m3")

    def quantize_kv(self, x: Array, *, scales: Array, **rest: Any) -> Any:
        return super().quantize_kv(x, scales=1 / scales, **rest)

    def dequantize_kv(self, codes: Array, *, scales: Array, **rest: Any) -> Any:
        return super().dequantize_kv(codes, scales=1 / scales, **rest)


class FirstHeadsScale(Reference):
    """Uses the first scale for every head."""

    claims = only("fp8_e4m3")

    def quantize_kv(self, x: Array, *, scales: Array, **rest: Any) -> Any:
        return super().quantize_kv(x, scales=scales[:1], **rest)


class ClampsTooEarly(Reference):
    """Clamps to the range of the element before it divides."""

    claims = only("fp8_e4m3")

    def quantize_kv(self, x: Array, **rest: Any) -> Any:
        return super().quantize_kv(np.clip(x, -448, 448).astype(x.dtype), **rest)


class ShiftsScaleBytes(Reference):
    """Makes a float of a scale byte by shifting it into the exponent: 0x00 becomes 0, 0xFF infinity."""

    claims = only("mxfp4")

    def dequantize_kv(self, codes: Array, *, scales: Array, **rest: Any) -> Any:
        x = super().dequantize_kv(codes, scales=np.full_like(scales, 0x7F), **rest)
        factor = (scales.astype(np.uint32) << 23).view(np.float32)
        with np.errstate(all="ignore"):
            return (x * np.repeat(factor, 32, axis=-1)).astype(x.dtype)


class SwapsNibbles(Reference):
    """Puts the first of two codes high."""

    claims = only("nvfp4")

    def quantize_kv(self, x: Array, **rest: Any) -> Any:
        codes, *others = super().quantize_kv(x, **rest)
        return (codes >> 4 | codes << 4, *others)


class TransposesScales(Reference):
    """Lays scales out by heads first."""

    claims = only("mxfp8_e4m3")

    def quantize_kv(self, x: Array, **rest: Any) -> Any:
        codes, scales = super().quantize_kv(x, **rest)
        return codes, np.ascontiguousarray(scales.transpose(1, 0, 2)).reshape(scales.shape)


class KeysScalesForBoth(Reference):
    """Reads values with the scales of keys."""

    claims = only("fp8_e4m3", "nvfp4_token_head")

    def quantized_paged_attention(self, *caches: Array, **rest: Any) -> Any:
        for name in ("scales", "global_scale"):
            if f"k_{name}" in rest:
                rest[f"v_{name}"] = rest[f"k_{name}"]
        return super().quantized_paged_attention(*caches, **rest)


class ScalesByPosition(Reference):
    """Finds codes through the table, and scales as if blocks were in order."""

    claims = only("fp8_e4m3_token_head", "mxfp8_e4m3")

    def quantized_paged_attention(self, *caches: Array, k_scales: Array, v_scales: Array, **rest: Any) -> Any:
        moved = (np.roll(part, 1, axis=0) for part in (k_scales, v_scales))
        keys, values = moved
        return super().quantized_paged_attention(*caches, k_scales=keys, v_scales=values, **rest)


class ReadsDeadSlots(Reference):
    """Multiplies what is masked by zero: NaN in a slot that nobody attends to spreads."""

    claims = only("fp8_e4m3")

    def quantized_paged_attention(self, q: Array, k_cache: Array, v_cache: Array, **rest: Any) -> Any:
        answer = super().quantized_paged_attention(q, k_cache, v_cache, **rest)
        leak = np.where((v_cache == 0x7F).any(), np.nan, 0.0).astype(q.dtype)
        if isinstance(answer, tuple):
            return (answer[0] + leak, *answer[1:])
        return answer + leak


class WindowIgnored(Reference):
    """Has no window in its kernel for codes."""

    claims = only("fp8_e4m3")

    def quantized_paged_attention(self, *caches: Array, window: int | None = None, **rest: Any) -> Any:
        return super().quantized_paged_attention(*caches, **rest)


FAULTS = [
    (ThroughBfloat16, "formats_elements", "KV-FMT-007"),
    (Truncates, "formats_integers", "KV-FMT-050"),
    (FlushesSubnormals, "formats_elements", "KV-FMT-004"),
    (DividesWhereItMultiplies, "formats_scales", "KV-FMT-020"),
    (FirstHeadsScale, "formats_scales", "KV-FMT-022"),
    (ClampsTooEarly, "formats_scales", "KV-FMT-024"),
    (ShiftsScaleBytes, "formats_micro", "KV-FMT-036"),
    (ShiftsScaleBytes, "formats_micro", "KV-FMT-037"),
    (SwapsNibbles, "formats_bytes", "KV-FMT-070"),
    (TransposesScales, "formats_bytes", "KV-FMT-071"),
    (KeysScalesForBoth, "formats_attend", "KV-FMT-091"),
    (ScalesByPosition, "formats_attend", "KV-FMT-092"),
    (ReadsDeadSlots, "formats_attend", "KV-FMT-093"),
    (WindowIgnored, "formats_variants", "KV-FMT-094"),
]


@pytest.mark.parametrize("level", ["quick", "full"])
@pytest.mark.parametrize("topic", TOPICS)
def test_the_reference_is_what_the_chapter_says(failing: Failing, topic: str, level: str) -> None:
    """A check that the reference fails would be a false alarm."""
    subject = Reference if level == "quick" else narrowed()
    assert failing(topic, subject, level=level, verbs=FORMATTED) == []


def narrowed() -> Any:
    """The reference with one format of each kind, so that level full stays short."""

    class Narrow(Reference):
        claims = only(
            *("fp8_e4m3", "int8_token_head", "fp8_e4m3_group128", "mxfp8_e5m2", "mxfp4", "nvfp4"),
            *("nvfp4_token_head", "int4_token_head", "kivi_k2", "kivi_v4", "ggml_q4_0", "ggml_nvfp4"),
        )

    return Narrow


@pytest.mark.parametrize(("faulty", "topic", "requirement"), FAULTS)
def test_a_fault_is_seen_by_the_check_of_its_rule(
    failing: Failing, faulty: Any, topic: str, requirement: str
) -> None:
    """One small fault, and the check of the rule it breaks sees it."""
    verbs = tuple(verb for verb in FORMATTED if verb in vars(faulty))
    found = failing(topic, faulty, requirement, verbs=verbs)
    assert found
    assert all(one.message for one in found)


def test_other_rules_stay_quiet(failing: Failing) -> None:
    """A fault in one rule is not reported under every other."""
    failed = {e.requirement for e in failing("formats_elements", FlushesSubnormals, verbs=("quantize_kv",))}
    assert failed == {"KV-FMT-004", "KV-FMT-008", "KV-FMT-009", "KV-FMT-010"}
    failed = {e.requirement for e in failing("formats_elements", ThroughBfloat16, verbs=("quantize_kv",))}
    assert {"KV-FMT-003", "KV-FMT-005", "KV-FMT-006", "KV-FMT-008"}.isdisjoint(failed)


def test_a_message_says_what_was_encoded_and_by_which_answer(failing: Failing) -> None:
    """The number in full precision, the code that came, the code that was due, and whose code it would be."""

    class ToNaN(Reference):
        claims = only("fp8_e4m3", dtypes=("float32",))

        def quantize_kv(self, x: Array, **rest: Any) -> Any:
            (codes,) = super().quantize_kv(x, **rest)
            sign = np.where(np.signbit(x), 0x80, 0).astype(np.uint8)
            return np.where(np.abs(x.astype(np.float32) / rest["scales"]) > 464, 0x7F | sign, codes)

    (found,) = failing("formats_elements", ToNaN, "KV-FMT-003", verbs=("quantize_kv",))
    assert "became 0x7f (nan), expected 0x7e (448); as with e4m3-overflow = nan" in found.message
    assert "464.000031" in found.message
    assert "0x1.d000020000000p+8" in found.message


def test_a_refusal_is_due_where_the_path_refuses(failing: Failing) -> None:
    """Who declares that constant groups are refused, and stores them, has not done what was declared."""

    class Stores(Reference):
        claims = only("kivi_v4", choices={"constant-group": "nan"})

        def quantize_kv(self, x: Array, **rest: Any) -> Any:
            return Reference.quantize_kv(Reference(), x, **rest)

    found = failing("formats_integers", Stores, "KV-FMT-055", verbs=("quantize_kv",))
    assert found
    assert all("expected a refusal" in one.message for one in found)


def test_a_failing_case_shrinks_to_one_token() -> None:
    """What is left is the number that was cast wrongly, and those of its vector."""
    host, oracle = InProcessHost(FlushesSubnormals), Oracle(FlushesSubnormals.claims)
    (check,) = (check for check in all_checks() if check.name == "every_half_has_its_code")
    case = check.cases(FlushesSubnormals.claims, "quantize_kv", "quick")[0]
    assert case.seq_lens[0] > 200
    assert shrink(check, case, host, oracle).case.seq_lens == (1,)
    assert all(other.seq_lens[0] < case.seq_lens[0] for other in smaller(case))


@pytest.mark.parametrize("verb", FORMATTED)
def test_every_claimed_format_dtype_and_width_is_exercised(verb: str) -> None:
    """A format, a dtype or a width that no case visits would be believed (KV-CONF-003)."""
    cases = [case for check, case in plan((verb,), Reference.claims, "quick") if "format" in case.options]
    held = [name for name in ALL_FORMATS if verb != FORMATTED[2] or FORMATS[name].group != "tokens"]
    held = [name for name in held if verb != FORMATTED[2] or not FORMATS[name].zeros]
    assert {case.option("format") for case in cases} == set(held)
    assert {case.dtype for case in cases} == set(Reference.claims.dtypes)
    assert {case.head_dim for case in cases} == set(Reference.claims.head_dims)


@pytest.mark.parametrize("name", ALL_FORMATS)
def test_one_format_alone_can_be_claimed(name: str) -> None:
    """A subject of one format gets its cases, in every dtype and width, and no other's."""
    claims = only(name)
    for verb in FORMATTED[:2]:
        cases = [case for _, case in plan((verb,), claims, "quick")]
        assert {case.option("format") for case in cases} == {name}
        assert {case.dtype for case in cases} == set(claims.dtypes)
        assert {case.head_dim for case in cases} >= {width for width, _ in places_of(name, claims)}


def test_needles_over_codes_are_exact() -> None:
    """The reference finds each needle to the bit, so a check of them has no tolerance."""
    oracle = Oracle(Reference.claims)
    for case in coded_cases(Reference.claims, FORMATTED[2], "quick"):
        problem = code_needles(case, hunt_near(case, 0, -1, -3), Reference.claims.path())
        assert (cast(problem.v, problem.dtype).astype(np.float64) == problem.v).all()
        expected = oracle.attention(problem)
        assert expected.exact.mean() > 0.5
        assert (expected.out_bound[expected.exact] == 0).all()
