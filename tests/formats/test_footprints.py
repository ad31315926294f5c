"""Footprints: the figures that are known, and bytes that are counted where they lie."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref.errors import ArgumentError, FormatError
from kvref.formats.blocks import pack_record
from kvref.formats.footprints import (
    bits_per_value,
    bytes_per_page,
    bytes_per_token,
    bytes_read_per_decode_step,
    footprint,
)
from kvref.formats.format import FORMATS
from kvref.formats.packing import pack, pack_fields
from kvref.formats.records import RECORDS

HEADS = {"num_kv_heads": 8, "head_dim": 128}


def test_golden_figures_are_those_of_the_founding_page() -> None:
    """FP8 is half of bfloat16; NVFP4 is 9/16 of FP8, MXFP4 17/32: 4.5 and 4.25 bits a value."""
    golden = json.loads((Path(__file__).parents[1] / "data" / "golden_formats.json").read_text())
    assert footprint("fp8_e4m3") == Fraction(1, 2) == golden["fp8_over_bf16"]
    assert footprint("nvfp4", over="fp8_e4m3") == Fraction(9, 16) == golden["nvfp4_over_fp8"]
    assert footprint("mxfp4", over="fp8_e4m3") == Fraction(17, 32) == golden["mxfp4_over_fp8"]
    assert (bits_per_value("nvfp4", 128), bits_per_value("mxfp4", 128)) == (Fraction(9, 2), Fraction(17, 4))


@pytest.mark.parametrize(
    ("form", "bits"),
    [
        ("bfloat16", 16),
        ("float32", 32),
        ("int8", 8),
        ("fp8_e4m3_tensor", 8),
        ("fp8_e4m3_token_head", 8 + 32 / 128),
        ("fp8_e4m3_group128", 8 + 32 / 128),
        ("mxfp8_e4m3", 8 + 8 / 32),
        ("mxfp4_group16", 4 + 8 / 16),
        ("nvfp4_token_head", 4 + 8 / 16 + 32 / 128),
        ("int4_token_head", 4 + 32 / 128),
        ("int8_midpoint", 8 + 2 * 16 / 128),
        ("ggml_q8_0", 34 * 8 / 32),
        ("ggml_q4_0", 18 * 8 / 32),
        ("ggml_mxfp4", 17 * 8 / 32),
        ("ggml_nvfp4", 36 * 8 / 64),
    ],
)
def test_bits_of_a_value_are_codes_and_scales(form: str, bits: float) -> None:
    """Written out; 76 bytes a head with a second scale of its own, ggml's blocks by their own size."""
    assert bits_per_value(form, 128) == bits


def test_a_head_of_nvfp4_is_72_bytes() -> None:
    """D/2 + D/16 for each of key and value; with a float32 for each token and head, 76."""
    assert bytes_per_token("nvfp4", num_kv_heads=1, head_dim=128) == 2 * 72
    assert bytes_per_token("nvfp4_token_head", num_kv_heads=1, head_dim=128) == 2 * 76
    assert bytes_per_token("fp8_e4m3", num_kv_heads=61, head_dim=288) == 61 * 576  # as 61 layers of MLA


@given(st.sampled_from(sorted(FORMATS)), st.integers(1, 4), st.sampled_from([128, 256]), st.integers(1, 3))
def test_a_page_is_its_tokens(form: str, heads: int, dim: int, blocks_of_32: int) -> None:
    """Bytes of a page are whole, and block_size times those of a token."""
    size = 32 * blocks_of_32
    page = bytes_per_page(form, block_size=size, num_kv_heads=heads, head_dim=dim)
    assert isinstance(page, int)
    assert page == size * bytes_per_token(form, num_kv_heads=heads, head_dim=dim)


@given(st.sampled_from(sorted(FORMATS)), st.lists(st.integers(0, 99), max_size=4), st.integers(1, 50))
def test_a_step_reads_every_live_slot_once(form: str, seq_lens: list[int], window: int) -> None:
    """Requests add up, and a window bounds each."""
    a_token = bytes_per_token(form, **HEADS)
    assert bytes_read_per_decode_step(form, seq_lens, **HEADS) == a_token * sum(seq_lens)
    windowed = bytes_read_per_decode_step(form, seq_lens, **HEADS, window=window)
    assert windowed == a_token * sum(min(length, window) for length in seq_lens)


def test_bytes_are_those_of_the_arrays_that_hold_them() -> None:
    """32 tokens of KIVI, packed as KIVI packs them, with a scale and a zero for each group."""
    codes = np.zeros((32, 8, 128), np.uint8)
    for bits in (2, 4):
        groups = np.zeros((1, 8, 128), np.float32)
        keys = pack_fields(codes, bits, 0).nbytes + 2 * groups.nbytes
        assert bytes_per_page(f"kivi_k{bits}", block_size=32, **HEADS) == 2 * keys
        groups = np.zeros((32, 8, 128 // 32), np.float32)
        values = pack_fields(codes, bits, -1).nbytes + 2 * groups.nbytes
        assert bytes_per_page(f"kivi_v{bits}", block_size=32, **HEADS) == 2 * values
    scales = np.zeros((32, 8, 128 // 32), np.uint8)
    assert bytes_per_page("mxfp4", block_size=32, **HEADS) == 2 * (pack(codes).nbytes + scales.nbytes)


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_records_take_the_bytes_of_their_blocks(name: str) -> None:
    """A record has one vector; its share of what rounds a block up is a fraction of a token."""
    record = RECORDS[name]
    parts = {
        f.name: np.zeros((1, 64, f.items), f.dtype)
        for f in record.fields
        if f.element not in ("zero", "unset")
    }
    block = pack_record(parts, record).nbytes
    assert bytes_per_token(name) == record.bytes
    assert bytes_per_page(name, block_size=64) == block
    assert bytes_per_token(name, block_size=64) == Fraction(block, 64)
    assert bytes_read_per_decode_step(name, [100, 28]) == 128 * record.bytes


def test_a_small_block_of_deepseek_v4_is_mostly_its_round_up() -> None:
    """Three tokens of 584 bytes take 2304: 768 a token, 184 of which are nobody's."""
    assert bytes_per_page("deepseek_v4", block_size=3) == 2304
    assert bytes_per_token("deepseek_v4", block_size=3) == 768
    assert bytes_per_token("deepseek_v4", block_size=7) == Fraction(4608, 7)


def test_values_may_be_narrower_than_keys() -> None:
    """192 channels of keys and 128 of values."""
    assert bytes_per_token("nvfp4", num_kv_heads=4, head_dim=192, v_head_dim=128) == 4 * (108 + 72)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: bits_per_value("fp8", 128), FormatError, "form = 'fp8', expected one of float32"),
        (lambda: bits_per_value("deepseek_v4", 128), FormatError, "form = deepseek_v4, a record"),
        (lambda: bits_per_value("nvfp4", 72), FormatError, "head_dim = 72, expected a multiple of 16"),
        (lambda: bits_per_value("ggml_nvfp4", 96), FormatError, "head_dim = 96, expected a multiple of 64"),
        (lambda: bytes_per_token("nvfp4"), ArgumentError, "head_dim = None"),
        (lambda: bytes_per_token("deepseek_v4", head_dim=512), FormatError, "a record of one vector"),
        (lambda: bytes_per_token("deepseek_v4", num_kv_heads=2), FormatError, "a record of one vector"),
        (
            lambda: bytes_per_page("kivi_k4", block_size=16, **HEADS),
            FormatError,
            "block_size = 16, expected a multiple of 32, the group of kivi_k4",
        ),
        (
            lambda: bits_per_value("int4_token_head", 65),
            FormatError,
            "head_dim = 65, expected a multiple of 2",
        ),
        (lambda: bytes_read_per_decode_step("int8", [-1], **HEADS), ArgumentError, "seq_lens = -1"),
        (lambda: bytes_read_per_decode_step("int8", [1], **HEADS, window=0), ArgumentError, "window = 0"),
    ],
)
def test_what_has_no_footprint_is_refused(call: Any, error: type[Exception], says: str) -> None:
    """Names that are none, heads a record does not have, groups that are cut."""
    with pytest.raises(error, match=says):
        call()
