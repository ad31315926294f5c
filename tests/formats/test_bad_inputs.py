"""Bad inputs: whatever is passed by mistake is refused, with the argument, what it was and what is wanted."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from kvref.attention.quantized import quantized_paged_attention
from kvref.errors import ArgumentError, DTypeError, FormatError, KVError, ShapeError
from kvref.formats import blocks, casts, elements, exponents, footprints, loss, packing, pages, records
from kvref.formats.format import FORMATS, Quantized
from kvref.formats.ggml import quantize_row
from kvref.formats.paths import Path
from kvref.formats.scaled import acceptable, decoded, dequantize, quantize

X = np.arange(2 * 2 * 64, dtype=np.float32).reshape(2, 2, 64) / 64
ONE = np.ones(1, np.float32)
STORED = quantize(X, "fp8_e4m3", scales=ONE)
CODES = np.arange(16, dtype=np.uint8)
RECORD = records.record_of("deepseek_v4")
RAW = np.zeros(records.block_bytes(RECORD, 4), np.uint8)
PAGE, SHAPE = pages.page_of("nvfp4"), pages.PageShape(block_size=8, num_kv_heads=3, head_dim=64)

Case = tuple[Callable[[], Any], type[KVError], str]


def attend(**changes: Any) -> Any:
    """Attend to one token of ones, but for what is changed."""
    cache = np.full((1, 4, 1, 64), 0x38, np.uint8)
    asked: dict[str, Any] = {
        "format": "fp8_e4m3",
        "block_tables": [[0]],
        "query_start_loc": [0, 1],
        "seq_lens": [1],
        "k_scales": ONE,
        "v_scales": ONE,
        "scale": 1.0,
    }
    return quantized_paged_attention(np.ones((1, 2, 64), np.float32), cache, cache, **{**asked, **changes})


def tell(*cases: Case) -> pytest.MarkDecorator:
    """Return the parameters of a test of refusals, each called by what is said."""
    return pytest.mark.parametrize(("call", "kind", "said"), cases, ids=[case[2] for case in cases])


def expect(call: Callable[[], Any], kind: type[KVError], said: str) -> None:
    """Expect a refusal in these words."""
    with pytest.raises(kind) as caught:
        call()
    assert said in str(caught.value)


@tell(
    (lambda: exponents.cast([1.0], rounding="x"), FormatError, "rounding = 'x', expected one of nearest"),
    (lambda: exponents.cast([1.0], zero=1), FormatError, "zero = 1, expected one of smallest, nan"),
    (lambda: exponents.cast([1.0], negative=None), FormatError, "negative = None, expected one of"),
    (lambda: exponents.cast([1.0], overflow="inf"), FormatError, "overflow = 'inf', expected one of nan"),
    (lambda: elements.values([1]), FormatError, "element = [1], expected one of e4m3fn"),
    (lambda: elements.largest(None), FormatError, "element = None, expected one of e4m3fn"),
    (lambda: Path(fp8_nan=["signed"]), FormatError, "path.fp8_nan = ['signed'], expected one of signed"),
    (lambda: Path.of(None), FormatError, "answers = None, expected an object"),
    (lambda: Path.of(["fp8_nan"]), FormatError, "answers = ['fp8_nan'], expected an object"),
    (lambda: Path.of({1: "signed"}), FormatError, "path holds 1, expected names among e4m3_overflow"),
    (lambda: Path.of({"fp8-nan": "quiet", "fp8_nan": "quiet"}), FormatError, "'fp8_nan' in two spellings"),
)
def test_words_are_known_or_refused(call: Callable[[], Any], kind: type[KVError], said: str) -> None:
    """A word that is not looked at would pass for its default."""
    expect(call, kind, said)


@pytest.mark.parametrize("path", [None, {}, "canonical", Path])
@pytest.mark.parametrize(
    "call",
    [
        lambda path: quantize(X, "fp8_e4m3", scales=ONE, path=path),
        lambda path: acceptable(X, "fp8_e4m3", scales=ONE, path=path),
        lambda path: dequantize(STORED, "fp8_e4m3", path=path),
        lambda path: decoded(STORED, "fp8_e4m3", path=path),
        lambda path: loss.loss_bound(X, STORED, "fp8_e4m3", path=path),
        lambda path: casts.encode([1.0], "e4m3fn", path),
        lambda path: casts.code_of(1.0, "e4m3fn", path),
        lambda path: quantize_row(X, "q8_0", path),
        lambda path: attend(path=path),
    ],
)
def test_paths_are_paths(call: Callable[[Any], Any], path: Any) -> None:
    """Not their names, not a mapping, not the class, and not nothing."""
    expect(lambda: call(path), FormatError, f"path = {path!r}, expected a Path")


@pytest.mark.parametrize("element", ["e4m3fn", "int8"])
@pytest.mark.parametrize(
    ("x", "said"),
    [
        (None, "x = None, expected a real number"),
        ("1", "x = '1', expected a real number"),
        (True, "x = True, expected a real number"),
        (np.bool_(True), "x = np.True_, expected a real number"),
        (1j, "x = 1j, expected a real number"),
        (np.complex64(1), "expected a real number"),
        (np.longdouble(1), "expected a real number within the range of float64"),
        (np.array([1.0]), "x = array([1.]), expected a real number"),
        (np.ma.masked, "x = masked, expected a real number"),
        (10**400, "x = an integer of 1329 bits, expected a real number within the range of float64"),
        (Fraction(10**400), "expected a real number within the range of float64"),
    ],
)
def test_one_number_is_one_real_number(x: Any, said: str, element: str) -> None:
    """The definition of a cast takes what has an exact value, and nothing else."""
    expect(lambda: casts.code_of(x, element), ArgumentError, said)


@pytest.mark.parametrize(
    "x",
    [
        3,
        3.0,
        Fraction(3),
        np.int8(3),
        np.float16(3),
        np.float32(3),
        np.array(3.0),
        ml_dtypes.bfloat16(3),
        ml_dtypes.float8_e4m3fnuz(3),
    ],
)
def test_one_number_may_be_of_any_library(x: Any) -> None:
    """An element of an array is passed as naturally as a float."""
    assert casts.code_of(x, "e4m3fn") == 0x44
    assert casts.code_of(x, "int8") == 3


@tell(
    (lambda: elements.value_of(1.5, "e4m3fn"), FormatError, "code = 1.5, expected an integer from 0 to 255"),
    (lambda: elements.value_of("1", "e2m1"), FormatError, "code = '1', expected an integer from 0 to 15"),
    (lambda: elements.value_of(True, "e2m1"), FormatError, "code = True, expected an integer"),
    (lambda: packing.nibble_place(-1), ArgumentError, "index = -1, expected an integer >= 0"),
    (lambda: packing.nibble_place(1.5), ArgumentError, "index = 1.5, expected an integer"),
    (lambda: packing.pack(CODES, "split", 2.0), FormatError, "size = 2.0, expected an even number"),
    (lambda: packing.unpack(CODES, "split", True), FormatError, "size = True, expected an even number"),
    (lambda: packing.pack_fields(CODES, 4, 0.5), FormatError, "axis = 0.5, but codes has shape [16]"),
    (lambda: packing.arranged_shape(-1, 4, "linear"), ArgumentError, "rows = -1, expected an integer >= 0"),
    (lambda: packing.arranged_shape(4, 4.0, "linear"), ArgumentError, "columns = 4.0, expected an integer"),
    (
        lambda: packing.scale_address("a", 0, "linear", rows=4, columns=4),
        FormatError,
        "scale ['a', 0], expected one inside [4, 4]",
    ),
    (
        lambda: packing.scale_address(1.0, 0, "interleaved", rows=4, columns=4),
        FormatError,
        "scale [1.0, 0], expected one inside [4, 4]",
    ),
    (
        lambda: records.field_address(RECORD, 4, "codes", slot=1.5, item=0),
        FormatError,
        "slot = 1.5, item = 0, expected integers below 4 and 448 in codes",
    ),
    (
        lambda: records.field_address(RECORD, "a", "codes", slot=0, item=0),
        ArgumentError,
        "block_size = 'a', expected an integer",
    ),
    (
        lambda: pages.page_address(PAGE, SHAPE, "k_codes", slot=0, head=1.0, item=0),
        FormatError,
        "slot = 0, head = 1.0, item = 0, expected integers below 8, 3 and 32",
    ),
    (
        lambda: footprints.bytes_read_per_decode_step("nvfp4", 5, head_dim=128),
        ArgumentError,
        "seq_lens = 5, expected a list of lengths",
    ),
    (lambda: records.Field("x", "e4m3fn", -1), ArgumentError, "count = -1, expected an integer >= 1"),
)
def test_places_and_counts_are_integers(call: Callable[[], Any], kind: type[KVError], said: str) -> None:
    """Half a slot has no address, and arithmetic gives it one."""
    expect(call, kind, said)


def test_integers_of_numpy_are_not_too_narrow() -> None:
    """A row of uint8 times the columns overflows uint8, and no address does."""
    narrow = np.uint8(200)
    assert packing.scale_address(narrow, 1, "linear", rows=256, columns=8) == 1601
    assert packing.nibble_place(narrow) == (100, 0)
    assert elements.value_of(narrow, "int8") == -56.0


@tell(
    (lambda: blocks.pack_record(None, RECORD), FormatError, "parts is a NoneType, expected an object"),
    (lambda: blocks.pack_record({}, "deepseek_v4"), FormatError, "record = 'deepseek_v4', expected a Record"),
    (lambda: records.block_bytes("deepseek_v4", 4), FormatError, "record = 'deepseek_v4', expected a Record"),
    (lambda: records.as_fnuz(None), FormatError, "record = None, expected a Record"),
    (lambda: pages.pack_page(None, PAGE, SHAPE), FormatError, "parts is a NoneType, expected an object"),
    (lambda: pages.page_bytes("nvfp4", SHAPE), FormatError, "page = 'nvfp4', expected a Page"),
    (
        lambda: pages.unpack_page(RAW, PAGE, (8, 3, 64)),
        FormatError,
        "shape = (8, 3, 64), expected a PageShape",
    ),
    (
        lambda: blocks.unpack_record(RAW, RECORD, block_size=4, written=np.ones(3, np.bool_)),
        ShapeError,
        "written has shape [3], expected [4]",
    ),
    (
        lambda: blocks.unpack_record(RAW, RECORD, block_size=4, written=np.ones(4, np.int32)),
        DTypeError,
        "written has dtype int32, expected bool",
    ),
    (
        lambda: footprints.bytes_per_token("nvfp4", head_dim=128, block_size=16),
        FormatError,
        "block_size = 16, expected none: blocks of nvfp4 are not rounded up",
    ),
)
def test_bytes_are_laid_out_by_what_says_so(call: Callable[[], Any], kind: type[KVError], said: str) -> None:
    """A name is no record, and an argument that a form has no use for is a misunderstanding."""
    expect(call, kind, said)


@tell(
    (lambda: dequantize(None, "fp8_e4m3"), DTypeError, "q is a NoneType, expected a Quantized"),
    (lambda: decoded((CODES, ONE), "fp8_e4m3"), DTypeError, "q is a tuple, expected a Quantized"),
    (lambda: loss.loss_bound(X, None, "mxfp4"), DTypeError, "q is a NoneType, expected a Quantized"),
    (
        lambda: dequantize(Quantized(STORED.codes, [1.0]), "fp8_e4m3"),
        DTypeError,
        "scales is a list, expected",
    ),
    (
        lambda: dequantize(Quantized(STORED.codes, ONE, ONE), "fp8_e4m3"),
        FormatError,
        "zeros was passed, expected none: fp8_e4m3 has no zeros",
    ),
    (
        lambda: decoded(Quantized(STORED.codes, ONE, None, ONE), "fp8_e4m3"),
        FormatError,
        "global_scale was passed, expected none: fp8_e4m3 has no global_scale",
    ),
    (
        lambda: decoded(Quantized(np.zeros((1, 1, 34), np.uint8), ONE), "ggml_q8_0"),
        FormatError,
        "scales was passed, expected none: ggml_q8_0 has no scales",
    ),
    (
        lambda: loss.loss_bound(X, Quantized(np.zeros((1, 1, 33), np.uint8)), "ggml_q8_0"),
        FormatError,
        "codes has shape [1, 1, 33], expected a multiple of 34 bytes",
    ),
    (lambda: attend(k_global_scale=ONE), FormatError, "global_scale was passed, expected none"),
    *(
        (
            lambda dtype=dtype: decoded(STORED, "fp8_e4m3", dtype=dtype),
            DTypeError,
            f"dtype = {dtype!r}, expected one of float32, bfloat16, float16, float64",
        )
        for dtype in ("int32", "bool", "float8_e4m3fn", None, np.float32, ["float32"])
    ),
    *(
        (
            lambda dtype=dtype: quantize(X.astype(dtype), "fp8_e4m3", scales=ONE),
            DTypeError,
            f"x has dtype {np.dtype(dtype)}, expected float32, float16 or bfloat16",
        )
        for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, np.float64, np.int8)
    ),
)
def test_what_is_stored_is_what_the_format_stores(
    call: Callable[[], Any], kind: type[KVError], said: str
) -> None:
    """A part too many is of another format, and so, likely, are the codes."""
    expect(call, kind, said)


@tell(
    (lambda: quantize(masked(X), "fp8_e4m3", scales=ONE), DTypeError, "x is a MaskedArray"),
    (lambda: quantize(X, "fp8_e4m3", scales=masked(ONE)), DTypeError, "scales is a MaskedArray"),
    (
        lambda: casts.encode(masked(ONE), "e4m3fn"),
        DTypeError,
        "x is a MaskedArray, expected an array without",
    ),
    (lambda: elements.decode(masked(CODES), "e4m3fn"), DTypeError, "codes is a MaskedArray"),
    (lambda: attend(k_scales=masked(ONE)), DTypeError, "k_scales is a MaskedArray"),
)
def test_masks_are_not_dropped(call: Callable[[], Any], kind: type[KVError], said: str) -> None:
    """NumPy reads through a mask what is meant to be no number."""
    expect(call, kind, said)


def masked(x: Any) -> Any:
    """Return an array of which the first number is masked."""
    return np.ma.array(x, mask=np.arange(x.size).reshape(x.shape) == 0)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("shape", [(0, 2, 128), (32, 0, 128)])
def test_nothing_is_read_and_written(name: str, shape: tuple[int, int, int]) -> None:
    """No tokens and no heads are batches as well."""
    kind = FORMATS[name]
    given = {"scales": ONE} if kind.group == "given" else {}
    given |= {"global_scale": ONE} if kind.global_scale == "given" else {}
    x = np.zeros(shape, np.float32)
    stored = quantize(x, name, **given)
    assert dequantize(stored, name).shape == decoded(stored, name).shape == shape
    assert loss.loss_bound(x, stored, name).shape == loss.loss_of_codes(stored, name).shape == shape
