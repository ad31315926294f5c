"""What the libraries of formats answer where they differ, a row for each, as they are without the suite."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from subject_hosts import OF_FORMATS, opened

from kvref.arrays import Array
from kvref_conformance.claims import Claims
from kvref_conformance.formatted import Reading, Writing
from kvref_conformance.host import Host

INF, NAN = np.inf, np.nan
ABOVE_464 = float(np.nextafter(np.float32(464), np.float32(INF)))


def written(
    host: Host, format: str, numbers: list[float], dtype: str = "float32", **given: Any
) -> dict[str, Array]:
    """Return what a writer stores for one token and head whose first of 64 channels are some numbers."""
    claims = Claims.from_dict(host.hello().claims)
    x = np.zeros((1, 1, 64), np.float32)
    x[0, 0, : len(numbers)] = numbers
    half = dtype == "bfloat16" or "float32" not in claims.dtypes
    given = {name: np.array([value], np.float32) for name, value in given.items()}
    answer = host.call(
        Writing(format, x.astype(ml_dtypes.bfloat16 if half else np.float32), **given).call(claims.path())
    )
    return {name: np.asarray(tensor) for name, tensor in answer.outputs.items()}


def bytes_of(text: str) -> list[int]:
    """Return the integers of hexadecimal codes."""
    return [int(code, 16) for code in text.split()]


#: Of E4M3: 464, the number after it, 480, 1e30, inf, −inf, NaN, −0, 2^-10, the number after it, 3 · 2^-10.
E4M3 = (464.0, ABOVE_464, 480.0, 1e30, INF, -INF, NAN, -0.0, 2.0**-10, 1.0001 * 2**-10, 3 * 2.0**-10)


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("ml_dtypes_casts", "7e 7f 7f 7f 7f ff 7f 80 00 01 02"),
        ("jax_casts", "7e 7f 7f 7f 7f ff 7f 80 00 01 02"),
        ("torch_casts", "7e 7e 7e 7e 7e fe 7f 80 00 01 02"),
        ("onnx_quantize", "7e 7e 7e 7e 7e fe 7f 80 00 01 02"),
        ("onnxruntime_quantize", "7e 7e 7e 7e 7e fe 7f 80 00 01 02"),
        ("onnxruntime_unsaturated", "7e 7f 7e 7f 7f ff 7f 80 00 01 02"),  # 480 is no NaN
        ("compressed_tensors_kv", "7e 7e 7e 7e 7e fe 7f 80 00 01 02"),
        ("gfloat", "7e 7e 7e 7e 7e fe ff 80 00 01 02"),
        ("vllm_cpu_fp8", "7e 7e 7e 7e 7e fe 7e 00 00 00 01"),  # rounds toward zero
    ],
)
def test_e4m3(hosts: dict[str, Host], name: str, codes: str) -> None:
    """Saturated or NaN past the range; half the smallest number is a tie to zero."""
    found = written(opened(hosts, name), "fp8_e4m3", list(E4M3), scales=1.0)["codes"]
    assert found[0, 0, : len(E4M3)].tolist() == bytes_of(codes)


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("ml_dtypes_casts", "7b 7c 7c 7c 7e"),
        ("jax_casts", "7b 7c 7c 7c 7e"),
        ("torch_casts", "7b 7c 7c 7c 7f"),
        ("onnx_quantize", "7b 7b 7b 7b 7e"),
        ("onnxruntime_quantize", "7b 7b 7b 7b 7f"),
        ("onnxruntime_unsaturated", "7b 7f 7c 7c 7f"),  # 61440 is no infinity
        ("gfloat", "7b 7b 7b 7b ff"),
        ("vllm_cpu_fp8", "7b 7b 7b 7b 7b"),
    ],
)
def test_e5m2(hosts: dict[str, Host], name: str, codes: str) -> None:
    """The tie at 61440 belongs to overflow, which is infinity or the largest number; NaN has three codes."""
    numbers = [61439.996, 61440.0, 1e30, INF, NAN]
    found = written(opened(hosts, name), "fp8_e5m2", numbers, scales=1.0)["codes"]
    assert found[0, 0, :5].tolist() == bytes_of(codes)


@pytest.mark.parametrize(
    ("name", "dtype", "number", "code"),
    [
        ("torch_casts", "float32", 0.08212891221046448, 0x0F),
        ("onnxruntime_quantize", "float32", 0.08212891221046448, 0x0F),
        ("jax_casts", "float32", 0.08212891221046448, 0x0E),  # multiplies by 1 / 2.9
        ("torch_casts", "bfloat16", 3.4375, 0x39),
        ("torch_casts_in_place", "bfloat16", 3.4375, 0x3A),  # 1.1853 is 1.1875 in bfloat16, a tie
    ],
)
def test_division(hosts: dict[str, Host], name: str, dtype: str, number: float, code: int) -> None:
    """Quotients by 2.9 that are near a tie."""
    found = written(opened(hosts, name), "fp8_e4m3", [number], dtype, scales=2.9)["codes"]
    assert found[0, 0, 0] == code


@pytest.mark.parametrize(
    ("name", "format", "exponents"),
    [
        ("torchao_mx", "mxfp4", (0, 0, 0, 0, 0, 0, 1)),
        ("torchao_mx_ceil", "mxfp4", (0, 1, 1, 1, 1, 1, 1)),
        ("torchao_mx_even", "mxfp4", (0, 0, 0, 0, 1, 1, 1)),
        ("torchao_mx_rceil", "mxfp4", (0, 0, 0, 1, 1, 1, 1)),
        ("compressed_tensors_mx", "mxfp4", (0, 0, 0, 0, 1, 1, 1)),
        ("modelopt_mxfp4", "mxfp4", (0, 0, 0, 1, 1, 1, 1)),
        ("gfloat", "mxfp4", (0, 0, 0, 0, 0, 0, 1)),
        ("sglang_mx16", "mxfp4_group16", (0, 0, 0, 1, 1, 1, 1)),
    ],
)
def test_exponents_of_mxfp4(
    hosts: dict[str, Host], name: str, format: str, exponents: tuple[int, ...]
) -> None:
    """Largest magnitudes of 4, 5, 6, 6.5, 7, 7.75 and 8."""
    host = opened(hosts, name)
    scales = [
        written(host, format, [amax])["scales"].reshape(-1)[0] - 127 for amax in (4, 5, 6, 6.5, 7, 7.75, 8)
    ]
    assert tuple(scales) == exponents


@pytest.mark.parametrize(
    ("name", "exponents"),
    [
        ("torchao_mx", (0, 0, 0, 0, 1)),
        ("torchao_mx_ceil", (1, 1, 1, 1, 1)),
        ("torchao_mx_even", (0, 0, 0, 1, 1)),
        ("torchao_mx_rceil", (0, 1, 1, 1, 1)),
        ("compressed_tensors_mx", (1, 1, 1, 1, 1)),  # one mantissa bit, as for E2M1
        ("gfloat", (0, 0, 0, 0, 1)),
    ],
)
def test_exponents_of_mxfp8(hosts: dict[str, Host], name: str, exponents: tuple[int, ...]) -> None:
    """Largest magnitudes of 448, 450, 494, 496 and 512."""
    host = opened(hosts, name)
    scales = [written(host, "mxfp8_e4m3", [a])["scales"][0, 0, 0] - 127 for a in (448, 450, 494, 496, 512)]
    assert tuple(scales) == exponents


#: In a group whose scale is 1: the seven ties of E2M1, then zeros of both signs and numbers that become zero.
E2M1 = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.0, -0.125, 0.125, 6.0]


@pytest.mark.parametrize(
    ("name", "format", "codes"),
    [
        ("torchao_mx", "mxfp4", "0 2 2 4 4 6 6 8 8 0"),
        ("compressed_tensors_mx", "mxfp4", "0 2 2 4 4 6 6 0 8 0"),
        ("gfloat", "mxfp4", "0 2 2 4 4 6 6 8 8 0"),
        ("modelopt_mxfp4", "mxfp4", "0 1 2 3 4 5 6 8 8 0"),
        ("sglang_mx16", "mxfp4_group16", "1 2 3 4 5 6 7 0 8 0"),
        ("torchao_nvfp4", "nvfp4", "0 2 2 4 4 6 6 8 8 0"),
        ("compressed_tensors_nvfp4", "nvfp4", "0 2 2 4 4 6 6 0 8 0"),
        ("modelopt_nvfp4", "nvfp4", "0 2 2 4 4 6 6 0 8 0"),
    ],
)
def test_e2m1(hosts: dict[str, Host], name: str, format: str, codes: str) -> None:
    """Ties go three ways, zeros four."""
    given = {"global_scale": 1.0} if format == "nvfp4" else {}
    found = written(opened(hosts, name), format, E2M1, **given)["codes"]
    pairs = found[0, 0, :5]
    assert np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(-1).tolist() == bytes_of(codes)


def test_modelopt_stores_zero_as_minus_zero(hosts: dict[str, Host]) -> None:
    """The sign of 0 is neither 1 nor −1, and is taken for that of a negative number (0.47.0)."""
    assert written(opened(hosts, "modelopt_mxfp4"), "mxfp4", [6.0, 0.0])["codes"][0, 0, 0] == 0x87


@pytest.mark.parametrize("name", ["ggml", "ggml_vector"])
def test_ggml_mxfp4(hosts: dict[str, Host], name: str) -> None:
    """Ties go toward zero, no code is −0, and halves of a block share bytes."""
    numbers = [*E2M1, *[0.0] * 5, 1.0]
    block = written(opened(hosts, name), "ggml_mxfp4", numbers)["codes"][0, 0, :17]
    assert block[0] == 127
    assert block[1:11].tolist() == bytes_of("20 01 02 03 04 05 06 00 00 00")


def test_ggml_codes_of_q8_0_depend_on_the_processor(hosts: dict[str, Host]) -> None:
    """The portable code rounds half away from zero, the vector code half to even."""
    numbers = [127.0, 0.5, 1.5, 2.5, -0.5, -2.5]
    found = {
        name: written(opened(hosts, name), "ggml_q8_0", numbers)["codes"][0, 0, 2:8].view(np.int8).tolist()
        for name in ("ggml", "ggml_vector")
    }
    assert found == {"ggml": [127, 1, 2, 3, -1, -3], "ggml_vector": [127, 0, 2, 2, 0, -2]}


@pytest.mark.parametrize(
    ("name", "scales"),
    [
        ("torchao_nvfp4", "08 08 38"),
        ("torchao_nvfp4_tiled", "08 08 38"),
        ("compressed_tensors_nvfp4", "20 20 38"),
        ("modelopt_nvfp4", "38 01 38"),
    ],
)
def test_scales_of_small_nvfp4_groups(hosts: dict[str, Host], name: str, scales: str) -> None:
    """A group of zeros, one whose scale is 2^-11, and one whose scale is 1: no two libraries agree."""
    numbers = [0.0] * 16 + [6 * 2.0**-11] + [0.0] * 15 + [6.0]
    found = written(opened(hosts, name), "nvfp4", numbers, global_scale=1.0)["scales"]
    assert found.reshape(-1)[:3].tolist() == bytes_of(scales)


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("onnx_quantize", [0, 2, 2, 0, -128, 127, -128]),  # past 2^31 it wraps
        ("onnxruntime_quantize", [0, 2, 2, 0, 127, 127, -128]),
        ("compressed_tensors_kv", [0, 2, 2, 0, 127, 127, -128]),
        ("onnxruntime_int8", [0, 2, 2, 0, 127, 127, -128]),
    ],
)
def test_int8(hosts: dict[str, Host], name: str, codes: list[int]) -> None:
    """Ties to even, and both ends."""
    found = written(opened(hosts, name), "int8", [0.5, 1.5, 2.5, -0.5, 3e9, 200.0, -200.0], scales=1.0)[
        "codes"
    ]
    assert found[0, 0, :7].view(np.int8).tolist() == codes


def test_vllm_rounds_halves_of_integers_away(hosts: dict[str, Host]) -> None:
    """A largest magnitude of 127, or a range of 15 from zero on, makes a scale of 1."""
    found = written(opened(hosts, "vllm_int8"), "int8_token_head", [127.0, 0.5, 1.5, 2.5, -0.5])
    assert found["scales"][0, 0] == 1
    assert found["codes"][0, 0, :5].view(np.int8).tolist() == [127, 1, 2, 3, -1]
    found = written(opened(hosts, "vllm_int4"), "int4_token_head", [15.0, 0.5, 1.5, 2.5])
    assert found["codes"][0, 0, :2].tolist() == [0x1F, 0x32]


@pytest.mark.parametrize(
    ("name", "format", "number"),
    [
        ("torchao_mx", "mxfp4", NAN),
        ("gfloat", "mxfp4", NAN),
        ("compressed_tensors_mx", "mxfp4", INF),  # 2^128, as bfloat16 has it
        ("modelopt_mxfp4", "mxfp4", INF),
        ("sglang_mx16", "mxfp4_group16", INF),
    ],
)
def test_scale_that_is_nan(hosts: dict[str, Host], name: str, format: str, number: float) -> None:
    """The byte 0xFF is NaN; a reader that raises 2 to it has infinity."""
    host = opened(hosts, name)
    claims = Claims.from_dict(host.hello().claims)
    size = int(format.removeprefix("mxfp4_group") if "group" in format else 32)
    shape = (1, 64 // size) if claims.choice("mx-span") == "flattened" else (1, 1, 64 // size)
    scales = np.full(shape, 127, np.uint8)
    scales[..., 0] = 0xFF
    dtype = claims.dtypes[-1]
    reading = Reading(format, np.full((1, 1, 64), 2, np.uint8), dtype, scales=scales)
    out = np.asarray(host.call(reading.call(claims.path())).outputs["out"]).astype(np.float64)
    assert np.array_equal(out[0, 0, [0, 63]], [number, 1.0], equal_nan=True)


def test_every_subject_has_a_row() -> None:
    """Each adapter of a format library is asked something here."""
    with open(__file__, encoding="utf-8") as file:
        text = file.read()
    assert [name for name in OF_FORMATS if f'"{name}"' not in text] == []
