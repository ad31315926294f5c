"""Checks of attention over codes: faults that show only at some head, length, code, scale or variant."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from kvref.arrays import Array
from kvref_conformance.contracts import FORMATTED
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.oracle import Oracle
from kvref_conformance.probes.code_cases import coded, pairs_first
from kvref_conformance.probes.code_readouts import key_rows, keys_weighed, value_tokens, values_read_out
from kvref_conformance.runner.evaluate import evaluate, plan
from kvref_conformance.subjects.bitwise import Bitwise

VERB = FORMATTED[2]
FEW = ("prefill", "lse", "window", "softcap", "sinks")


def claims(
    *formats: str, features: tuple[str, ...] = FEW, dtypes: tuple[str, ...] = ("float32", "bfloat16")
) -> Any:
    """The claims of an ordinary kernel."""
    return replace(Bitwise.claims, formats=formats, features=features, dtypes=dtypes, head_dims=(64, 128))


class Attends(Bitwise):
    """Attends over codes and does nothing else."""

    claims = claims("fp8_e4m3")
    quantize_kv: Any = None
    dequantize_kv: Any = None


def without(*names: str) -> Any:
    """A subject that claims every feature and passes over some arguments."""

    class Without(Attends):
        claims = replace(Bitwise.claims, formats=("fp8_e4m3",), dtypes=("float32",))

        def quantized_paged_attention(self, *tensors: Array, **options: Any) -> Any:
            kept = {name: x for name, x in options.items() if name not in names}
            return super().quantized_paged_attention(*tensors, **kept)

    return Without


def reading(change: Callable[[Array], Array], *formats: str, **more: Any) -> Any:
    """A subject that changes the numbers of a cache before it attends to them."""

    class Reading(Attends):
        def numbers(self, *parts: Any) -> Array:
            return change(super().numbers(*parts))

    Reading.claims = claims(*(formats or ("fp8_e4m3",)), **more)
    return Reading


def answering(wrong: Callable[..., Any], *formats: str, **more: Any) -> Any:
    """A subject whose answer is zero in the calls for which `wrong` holds."""

    class Answering(Attends):
        def quantized_paged_attention(self, q: Array, k: Array, v: Array, **options: Any) -> Any:
            answer = super().quantized_paged_attention(q, k, v, **options)
            if not wrong(q, k, v, **options):
                return answer
            return (answer[0] * 0, *answer[1:]) if isinstance(answer, tuple) else answer * 0

    Answering.claims = claims(*(formats or ("fp8_e4m3",)), **more)
    return Answering


class WrapsScales(Attends):
    """Knows four scales."""

    def given_scales(self, scales: Array, x: Array) -> Array:
        return np.asarray(scales, np.float32)[np.arange(len(scales)) & 3][:, None]


class OneHeadScaled(Attends):
    """Gives the one scale of a cache to one head."""

    claims = claims("fp8_e4m3", dtypes=("float32",))

    def numbers(self, cache: Array, format: str, scales: Any, second: Any, dtype: Any) -> Array:
        found = super().numbers(cache, format, scales, second, dtype).copy()
        if scales is not None and scales.shape == (1,):
            found[:, :, 1:] /= scales[0]
        return found


class TurnsHeads(Attends):
    """Takes heads in reverse where they come by fours."""

    claims = claims("nvfp4")

    def in_order_of_slots(self, scales: Array | None) -> Array | None:
        if scales is not None and scales.ndim == 4 and scales.shape[2] % 4 == 0:
            return scales[:, :, ::-1]
        return super().in_order_of_slots(scales)


class ZeroByteIsZero(Attends):
    """Reads the smallest power as zero."""

    claims = claims("mxfp8_e4m3")

    def smallest_power(self) -> int:
        return 0


class NaNByteIsNumber(Attends):
    """Reads the byte 0xFF as infinity."""

    claims = claims("mxfp8_e4m3")

    def nan_power(self) -> int:
        return 0x7F800000


class HighBytesAreAlike(Attends):
    """Reads bytes above 0x90 as 0x90."""

    claims = claims("mxfp8_e4m3")

    def read_power(self, codes: Array) -> Array:
        return super().read_power(np.minimum(codes, 0x90))


class FlushesKeys(Attends):
    """Flushes the subnormal numbers of the element."""

    def read_float(self, codes: Array, element: str) -> Array:
        found = super().read_float(codes, element)
        return np.where(np.abs(found) < 2.0**-6, np.float32(0), found)


class ClipsSinks(Attends):
    """Clips sinks to what they usually are."""

    def quantized_paged_attention(self, *tensors: Array, sinks: Array | None = None, **options: Any) -> Any:
        kept = None if sinks is None else np.clip(sinks, -3, 4)
        return super().quantized_paged_attention(*tensors, sinks=kept, **options)


class WindowsUpToBlocks(Attends):
    """Has windows smaller than a block."""

    def quantized_paged_attention(self, *tensors: Array, window: int | None = None, **options: Any) -> Any:
        kept = None if window is None or window >= 16 else window
        return super().quantized_paged_attention(*tensors, window=kept, **options)


class FillsEmptyRows(Attends):
    """Leaves sevens where a request has no context."""

    def quantized_paged_attention(self, *tensors: Array, **options: Any) -> Any:
        answer = super().quantized_paged_attention(*tensors, **options)
        for part in answer if isinstance(answer, tuple) else (answer,):
            for request in np.flatnonzero(options["seq_lens"] == 0):
                part[options["query_start_loc"][request] : options["query_start_loc"][request + 1]] = 7
        return answer


class NeedsQueries(Attends):
    """Raises if nobody asks."""

    def quantized_paged_attention(self, q: Array, *tensors: Array, **options: Any) -> Any:
        if not len(q):
            raise IndexError("no queries")
        return super().quantized_paged_attention(q, *tensors, **options)


class RoundsValues(Attends):
    """Rounds values, and not keys, to the dtype of q."""

    claims = claims("fp8_e4m3", dtypes=("bfloat16",))

    def in_order_of_slots(self, scales: Array | None) -> Array | None:
        self.values_come = True
        return super().in_order_of_slots(scales)

    def numbers(self, *parts: Any) -> Array:
        found = super().numbers(*parts)
        if not vars(self).pop("values_come", False):
            return found
        return found.astype(ml_dtypes.bfloat16).astype(np.float32)


def _longer(n: int) -> Callable[..., bool]:
    return lambda q, k, v, **options: bool(options["seq_lens"].max(initial=0) > n)


def _group(q: Array, k: Array) -> int:
    return q.shape[1] // k.shape[2]


MANY = ("fp8_e4m3", "fp8_e5m2", "int8", "int8_token_head", "nvfp4", "mxfp4", "mxfp8_e4m3", "ggml_q8_0")
FAULTS: list[tuple[str, Any, str]] = [
    ("alibi", without("alibi_slopes"), "KV-FMT-094"),
    ("mask", without("mask"), "KV-FMT-094"),
    ("spans", without("span_ids"), "KV-FMT-094"),
    ("chunks", without("chunk_size"), "KV-FMT-094"),
    ("causal", without("causal"), "KV-FMT-094"),
    ("window of a block", WindowsUpToBlocks, "KV-FMT-094"),
    ("large sinks", ClipsSinks, "KV-FMT-094"),
    ("cap in a window", answering(lambda *_, **o: "window" in o and "softcap" in o), "KV-FMT-094"),
    ("window with sinks", answering(lambda *_, **o: "window" in o and "sinks" in o), "KV-FMT-094"),
    (
        "width of values",
        answering(lambda q, k, v, **_: k.shape[3] != v.shape[3], features=("prefill", "value_width")),
        "KV-FMT-094",
    ),
    (
        "strides",
        answering(lambda q, k, v, **_: not k.flags.c_contiguous, features=("prefill", "strided")),
        "KV-ATTN-019",
    ),
    ("long context", answering(_longer(128)), "KV-FMT-090"),
    ("very long context", answering(_longer(2048)), "KV-FMT-090"),
    ("eight heads", WrapsScales, "KV-FMT-022"),
    ("heads by fours", TurnsHeads, "KV-FMT-071"),
    ("one scale", OneHeadScaled, "KV-FMT-020"),
    ("group of 8", answering(lambda q, k, v, **_: _group(q, k) == 8), "KV-FMT-090"),
    (
        "group of 7 in one format",
        answering(lambda q, k, v, *, format, **_: format == "fp8_e4m3" and _group(q, k) == 7, *MANY),
        "KV-FMT",
    ),
    (
        "width of 128 in one format",
        answering(lambda q, k, v, *, format, **_: format == "nvfp4" and q.shape[2] == 128, *MANY),
        "KV-FMT",
    ),
    (
        "width and block",
        answering(lambda q, k, v, **_: k.shape[1] == 32 and k.shape[3] == 64),
        "KV-FMT",
    ),
    ("NaN is zero", reading(lambda x: np.where(np.isnan(x), np.float32(0), x)), "KV-FMT-090"),
    ("NaN byte", NaNByteIsNumber, "KV-FMT-037"),
    ("zero byte", ZeroByteIsZero, "KV-FMT-090"),
    ("high bytes", HighBytesAreAlike, "KV-FMT-090"),
    ("subnormal codes", FlushesKeys, "KV-FMT-090"),
    ("past 65504", reading(lambda x: np.clip(x, -65504, 65504)), "KV-FMT-090"),
    ("below 2^-14", reading(lambda x: np.where(np.abs(x) < 2.0**-14, np.float32(0), x)), "KV-FMT-090"),
    ("empty rows", FillsEmptyRows, "KV-ATTN-007"),
    ("no queries", NeedsQueries, "KV-ATTN-007"),
    ("rounded values", RoundsValues, "KV-FMT-090"),
]


@pytest.fixture(scope="module")
def known() -> Oracle:
    """Right answers, shared by all subjects."""
    return Oracle(Attends.claims)


def failed(subject: Any, requirement: str, known: Oracle) -> bool:
    """Whether some case of a requirement fails."""
    host, oracle = InProcessHost(subject), replace(known, claims=subject.claims)
    return any(
        evaluate(check, case, host, oracle).status == "fail"
        for check, case in plan((VERB,), subject.claims, "quick")
        if check.requirement.startswith(requirement)
    )


@pytest.mark.parametrize(("subject", "requirement"), [x[1:] for x in FAULTS], ids=[x[0] for x in FAULTS])
def test_a_fault_in_a_corner_is_seen(subject: Any, requirement: str, known: Oracle) -> None:
    """What is wrong in one corner of the domain is asked there, at level quick."""
    assert failed(subject, requirement, known)


@pytest.mark.parametrize(
    ("formats", "choices"),
    [
        (("fp8_e4m3",), {"attend-values": "input"}),
        (("nvfp4", "mxfp4_group16"), {"v-scale-layout": "interleaved"}),
        (("ggml_q4_0",), {}),
    ],
)
def test_an_honest_kernel_passes(formats: tuple[str, ...], choices: dict[str, str], known: Oracle) -> None:
    """No check of attention over codes fails the built-in subject, whatever it declares."""

    class Honest(Attends):
        pass

    Honest.claims = replace(Bitwise.claims, formats=formats, choices=choices)
    assert not failed(Honest, "KV", known)


def test_two_answers_meet_soon() -> None:
    """In as many rows as it takes, and hardly more, every two values of two axes stand beside each other."""
    lengths = (4, 3, 3, 3)
    rows = pairs_first(lengths)[:20]
    for a in range(4):
        for b in range(a):
            assert len({(row[a], row[b]) for row in rows}) == lengths[a] * lengths[b]


@pytest.mark.parametrize("name", MANY)
def test_every_code_is_looked_at(name: str) -> None:
    """Values read out, and keys weighed, hold every code of the element between them."""
    (case,) = coded(0)(claims(name, dtypes=("float32",)), VERB, "quick")[:1]
    path = Bitwise.claims.path()
    two = replace(case, num_kv_heads=2, group=1).with_options(size=0)
    values = replace(two, seq_lens=(1,) * value_tokens(two, path), query_lens=(1,) * value_tokens(two, path))
    problem = values_read_out(values, path)
    assert problem.codes is not None
    assert len(np.unique(problem.codes.values.codes)) >= 256 or name == "nvfp4" or name == "mxfp4"
    keys = replace(two, group=16)
    keys = replace(keys, seq_lens=(2,) * key_rows(keys), query_lens=(1,) * key_rows(keys))
    weighed = keys_weighed(keys, path)
    looked = (weighed.q != 0).sum(axis=2)
    assert (looked == 1).all()
