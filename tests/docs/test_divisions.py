"""The tables of divisions: each cell, run as NumPy, gives the bytes that the reference stores."""

import re

import numpy as np
import pytest
from documents import ROOT

from kvref.arrays import Array, dtype_of, narrow
from kvref.formats.casts import encode
from kvref.formats.elements import decode
from kvref.formats.packing import unpack
from kvref.formats.paths import PATHS, Path
from kvref.formats.scaled import quantize


def rows(page: str) -> dict[str, list[str]]:
    """Answer -> the expressions of its row, of the one table of the page's section on division."""
    text = (ROOT / page).read_text(encoding="utf-8").split("## How it is divided")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    cells = [[re.findall("`([^`]+)`", cell)[0] for cell in line.strip("| ").split(" | ")] for line in lines]
    return {answer: expressions for answer, *expressions in cells}


NVFP4, FP8 = rows("docs/formats/nvfp4.md"), rows("docs/formats/fp8-e4m3.md")


def numbers(dtype: str) -> Array:
    """Numbers of many sizes, enough for every order of operations to show."""
    drawn = np.random.default_rng(4).normal(size=(256, 4, 128)) * 2.0 ** np.arange(-2, 2).reshape(1, 4, 1)
    return drawn.astype(np.float32).astype(dtype_of(dtype))


def test_every_answer_has_a_row() -> None:
    """In the order of the choices."""
    assert tuple(NVFP4) == PATHS["nvfp4_division"]
    assert tuple(FP8) == PATHS["scale_division"]


@pytest.mark.parametrize("operand", PATHS["nvfp4_operand"])
@pytest.mark.parametrize("answer", NVFP4)
def test_row_of_nvfp4(answer: str, operand: str) -> None:
    """Scales and codes, whichever of g and G is stored."""
    given = np.array([1.5 if operand == "encode" else 0.7], np.float32)
    x = numbers("bfloat16").astype(np.float32)  # few bits, so that quotients lie on ties
    stored = quantize(x, "nvfp4", global_scale=given, path=Path(nvfp4_division=answer, nvfp4_operand=operand))
    inverse = np.float32(1) / given
    g, big = (inverse, given) if operand == "encode" else (given, inverse)
    groups = x.reshape(256, 4, 8, 16)
    names = {"A": np.abs(groups).max(axis=-1, keepdims=True), "x": groups, "g": g, "G": big}
    before, number = NVFP4[answer]
    scales = encode(eval(before, names), "e4m3fn")
    names["s"] = decode(scales, "e4m3fn")
    encoded = eval(number, names)
    assert encoded.dtype == np.float32
    assert np.array_equal(stored.scales, scales[..., 0])
    codes = encode(encoded, "e2m1").reshape(x.shape)
    assert np.array_equal(unpack(stored.codes, "low_first", 128), codes)
    canonical = quantize(x, "nvfp4", global_scale=given, path=Path(nvfp4_operand=operand))
    assert np.array_equal(stored.codes, canonical.codes) == (answer in ("divide", "approximate"))


@pytest.mark.parametrize("answer", FP8)
def test_row_of_fp8(answer: str) -> None:
    """Codes of bfloat16 numbers under a scale that is no power of two."""
    x, s = numbers("bfloat16"), np.array([0.06], np.float32)
    stored = quantize(x, "fp8_e4m3", scales=s, path=Path(scale_division=answer))
    names = {"x": x.astype(np.float32), "s": s, "narrow": lambda y: narrow(y, x.dtype).astype(np.float32)}
    assert np.array_equal(stored.codes, encode(eval(FP8[answer][0], names), "e4m3fn"))
    canonical = quantize(x, "fp8_e4m3", scales=s)
    assert np.array_equal(stored.codes, canonical.codes) == (answer in ("divide", "approximate"))
