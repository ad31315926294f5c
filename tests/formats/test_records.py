"""Records: every field at its address, whole blocks there and back, and what is no block of a record."""

import base64
import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm_bytes import ask_vllm

from kvref.errors import ArgumentError, FormatError
from kvref.formats.blocks import pack_record, unpack_record
from kvref.formats.elements import decode, element_of
from kvref.formats.packing import pack, unpack
from kvref.formats.records import (
    GGML_BLOCKS,
    PADS,
    RECORDS,
    Field,
    Record,
    as_fnuz,
    block_bytes,
    field_address,
    record_of,
)

ALL = {**RECORDS, **GGML_BLOCKS}
WRITTEN_BY_VLLM = ("deepseek_v4", "deepseek_v41", "deepseek_v41_nvfp4", "indexer_fp8", "indexer_mxfp4")


def random_parts(record: Record, lead: tuple[int, ...], seed: int = 0) -> dict[str, np.ndarray]:
    """Return parts of random bytes, every NaN and padding pattern included."""
    rng = np.random.default_rng(seed)
    parts = {}
    for field in record.fields:
        if field.element not in PADS:
            size = int(np.prod(lead)) * field.bytes
            parts[field.name] = np.frombuffer(rng.bytes(size), field.dtype).reshape(*lead, field.items)
    return parts


#: Slots of two blocks of four into which vLLM writes five tokens.
SLOTS = np.array([5, 0, 3, 6, 1])
#: Element -> the first code of every group that vLLM is given, and the first code that none may have.
GROUPS = {"e4m3fn": (0x7D, 0x7E), "e2m1": (0x6, 0x7)}


def exact_parts(record: Record) -> dict[str, np.ndarray]:
    """Return parts of five tokens from which vLLM's rule, amax over the largest, finds just these scales.

    The first code of a group is 416 of 448 or 4 of 6, so that a power of two above amax / largest is the
    scale; with NVFP4's scales it is 6, and amax / 6 the scale. No code is −0.
    """
    rng = np.random.default_rng(0)
    parts = {}
    for field in record.fields:
        if field.name == "codes":
            top, end = GROUPS[field.element]
            if record.name == "deepseek_v41_nvfp4":
                top, end = 0x7, 0x8
            scales = next(f.count for f in record.fields if f.name == "scales")
            codes = rng.integers(0, end, (5, scales, field.count // scales), np.uint8)
            half = 2 ** (field.bits - 1)
            codes[(codes > 0) & rng.integers(0, 2, codes.shape, bool)] += half
            codes[..., 0] = top
            parts["codes"] = codes.reshape(5, field.count)
        elif field.name == "scales":
            exponents = rng.integers(-6, 7, (5, field.count))
            parts["scales"] = {
                "float32": np.exp2(exponents).astype(np.float32),
                "e8m0": (127 + exponents).astype(np.uint8),
                "e4m3fn": rng.integers(0x08, 0x7F, exponents.shape, np.uint8),
            }[field.element]
        elif field.name == "rope":
            parts["rope"] = rng.standard_normal((5, field.count)).astype(ml_dtypes.bfloat16)
    return parts


def numbers_of(parts: dict[str, np.ndarray], record: Record) -> np.ndarray:
    """Return the bfloat16 numbers of parts, which they hold exactly."""
    elements = {field.name: field.element for field in record.fields}
    scales = parts["scales"]
    if scales.dtype == np.uint8:
        scales = decode(scales, elements["scales"])
    values = decode(parts["codes"], elements["codes"]).reshape(*scales.shape, -1) * scales[..., None]
    narrow = values.astype(ml_dtypes.bfloat16)
    assert (narrow.astype(np.float32) == values).all()
    return np.concatenate([narrow.reshape(5, -1), *([parts["rope"]] if "rope" in parts else [])], axis=-1)


def numbers_for_vllm() -> str:
    """Return what vLLM is given to write, record by record."""
    numbers = {name: numbers_of(exact_parts(RECORDS[name]), RECORDS[name]) for name in WRITTEN_BY_VLLM}
    return json.dumps({name: base64.b64encode(x.tobytes()).decode() for name, x in numbers.items()})


@pytest.mark.parametrize(
    ("name", "row", "block"),
    [
        ("fp8_ds_mla", 512 + 4 * 4 + 64 * 2, 64 * 656),
        ("nvfp4_ds_mla", 256 + 64 + 32, 64 * 352),
        ("deepseek_v4", 448 + 64 * 2 + 7 + 1, 65 * 576),
        ("deepseek_v41", 512 + 16, 66 * 512),
        ("deepseek_v41_nvfp4", 256 + 32, 36 * 512),
        ("deepseek_v4_mxfp4", 224 + 14 + 2 + 128, 64 * 368),
        ("deepseek_v4_int4", 224 + 14 + 2 + 128, 64 * 368),
        ("indexer_fp8", 128 + 4, 64 * 132),
        ("indexer_mxfp4", 64 + 4, 64 * 68),
        ("ggml_q8_0", 34, 64 * 34),
        ("ggml_q4_0", 18, 64 * 18),
        ("ggml_mxfp4", 17, 64 * 17),
        ("ggml_nvfp4", 36, 64 * 36),
    ],
)
def test_records_have_the_bytes_their_engines_document(name: str, row: int, block: int) -> None:
    """656, 352, 584, 528, 288, 368, 132, 68; and 64 records of 584 bytes round up to 65 times 576."""
    assert record_of(name).bytes == row
    assert block_bytes(record_of(name), 64) == block


@pytest.mark.parametrize(
    "name", ["deepseek_v4", "deepseek_v41", "deepseek_v41_nvfp4", "fp8_ds_mla", "nvfp4_ds_mla"]
)
def test_blocks_have_the_bytes_vllm_allocates(name: str) -> None:
    """vLLM's own arithmetic of pages."""
    assert block_bytes(RECORDS[name], 64) == ask_vllm()["sizes"][name]


def test_ggml_blocks_have_the_bytes_gguf_lists() -> None:
    """Elements and bytes of a block, from the format's own table."""
    gguf = pytest.importorskip("gguf")
    kinds = {kind.name: size for kind, size in gguf.GGML_QUANT_SIZES.items()}
    for record in GGML_BLOCKS.values():
        kind = record.name.removeprefix("ggml_").upper()
        if kind in kinds:
            codes = next(field for field in record.rows if field.name == "codes")
            assert kinds[kind] == (codes.count, record.bytes)


@pytest.mark.parametrize("record", ALL.values(), ids=lambda record: record.name)
@pytest.mark.parametrize("block_size", [1, 3])
def test_every_item_lies_at_its_address(record: Record, block_size: int) -> None:
    """Item by item, against the bytes of packed blocks; addresses fill the record and never meet."""
    parts = random_parts(record, (2, block_size))
    raw = pack_record(parts, record)
    assert raw.shape == (2, block_bytes(record, block_size))
    seen = np.zeros(raw.shape[1], int)
    for field in record.fields:
        for slot in range(block_size):
            for item in range(field.items):
                at = field_address(record, block_size, field.name, slot=slot, item=item)
                size = field.dtype.itemsize
                seen[at : at + size] += 1
                found = np.ascontiguousarray(raw[:, at : at + size])
                if field.element in PADS:
                    assert not found.any()
                else:
                    assert found.tobytes() == parts[field.name][:, slot, item].tobytes()
    assert (seen[: block_size * record.bytes] == 1).all()
    assert not seen[block_size * record.bytes :].any()


@given(st.sampled_from(sorted(ALL)), st.lists(st.integers(0, 2), max_size=2), st.integers(1, 5))
def test_parts_come_back(name: str, lead: list[int], block_size: int) -> None:
    """Every bit of every part, in memory of its own, whatever fills the pads nobody writes."""
    record = ALL[name]
    parts = random_parts(record, (*lead, block_size))
    raw = pack_record(parts, record)
    fill = raw[..., block_size * record.bytes :]
    fill[...] = 0xAA
    back = unpack_record(raw, record, block_size=block_size)
    assert back.keys() == parts.keys()
    for key, part in parts.items():
        assert back[key].dtype == part.dtype
        assert back[key].shape == part.shape
        assert back[key].tobytes() == part.tobytes()
        assert not np.shares_memory(back[key], raw)


def test_flashmla_rows_are_those_of_views_in_torch() -> None:
    """FlashMLA's test helper writes through views of one allocation; its pages have a row to spare."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    rng = np.random.default_rng(0)
    pages = torch.zeros(3, 5, 656, dtype=torch.uint8)[:, :4]
    codes = torch.tensor(rng.integers(0, 256, (3, 4, 512), np.uint8))
    scales = torch.tensor(rng.standard_normal((3, 4, 4), np.float32))
    rope = torch.tensor(rng.standard_normal((3, 4, 64), np.float32)).to(torch.bfloat16)
    pages[..., :512] = codes
    pages[..., 512:528].view(torch.float32)[:] = scales
    pages[..., 528:].view(torch.bfloat16)[:] = rope
    raw = pages.reshape(3, 4 * 656).numpy()
    parts = unpack_record(raw, RECORDS["fp8_ds_mla"], block_size=4)
    assert (parts["codes"] == codes.numpy()).all()
    assert (parts["scales"] == scales.numpy()).all()
    assert (parts["rope"].view(np.uint16) == rope.view(torch.uint16).numpy()).all()
    assert (pack_record(parts, RECORDS["fp8_ds_mla"]) == raw).all()


def test_deepseek_v4_blocks_are_those_of_views_in_torch() -> None:
    """Data of every token first, then eight bytes a token of which the last is a pad, then the round-up."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    rng = np.random.default_rng(1)
    size = 64
    block = torch.zeros(2, -(-size * 584 // 576) * 576, dtype=torch.uint8)
    data = block[:, : size * 576].view(2, size, 576)
    tail = block[:, size * 576 : size * 584].view(2, size, 8)
    codes = torch.tensor(rng.integers(0, 256, (2, size, 448), np.uint8))
    rope = torch.tensor(rng.standard_normal((2, size, 64), np.float32)).to(torch.bfloat16)
    scales = torch.tensor(rng.integers(0, 256, (2, size, 7), np.uint8))
    data[..., :448] = codes
    data[..., 448:].view(torch.bfloat16)[:] = rope
    tail[..., :7] = scales
    parts = unpack_record(block.numpy(), RECORDS["deepseek_v4"], block_size=size)
    assert (parts["codes"] == codes.numpy()).all()
    assert (parts["scales"] == scales.numpy()).all()
    assert (parts["rope"].view(np.uint16) == rope.view(torch.uint16).numpy()).all()
    assert (pack_record(parts, RECORDS["deepseek_v4"]) == block.numpy()).all()


def test_scales_of_nvfp4_ds_mla_are_a_transposed_matrix() -> None:
    """vLLM: scale s lies at byte 8 (s mod 4) + s div 4, an 8 × 4 matrix stored as 4 × 8."""
    parts = random_parts(RECORDS["nvfp4_ds_mla"], (1, 2))
    raw = pack_record(parts, RECORDS["nvfp4_ds_mla"]).reshape(2, 352)
    for s in range(32):
        assert (raw[:, 320 + 8 * (s & 3) + (s >> 2)] == parts["scales"][0, :, s]).all()
    assert (raw[:, 320:].reshape(2, 4, 8) == parts["scales"].reshape(2, 8, 4).swapaxes(1, 2)).all()


@pytest.mark.parametrize("name", WRITTEN_BY_VLLM)
def test_blocks_that_vllm_writes_hold_what_it_was_given(name: str) -> None:
    """vLLM's kernels get numbers that are code · scale, and leave those codes and scales, bit for bit."""
    record = RECORDS[name]
    raw = np.frombuffer(base64.b64decode(ask_vllm(numbers_for_vllm())["written"][name]), np.uint8).reshape(
        2, -1
    )
    live = np.isin(np.arange(8), SLOTS)
    parts = unpack_record(raw, record, block_size=4, written=live.reshape(2, 4))
    for key, expected in exact_parts(record).items():
        found = parts[key].reshape(8, -1)
        if found.shape[1] != expected.shape[1]:
            found = unpack(found)
        assert found[SLOTS].tobytes() == expected.tobytes()
        assert (np.ascontiguousarray(parts[key].reshape(8, -1)[~live]).view(np.uint8) == 0xAA).all()


def test_two_records_of_one_length_hold_other_numbers() -> None:
    """368 bytes may be E2M1 or integers: a reader that goes by the length reads −0 as −8."""
    mx, integers = RECORDS["deepseek_v4_mxfp4"], RECORDS["deepseek_v4_int4"]
    assert mx.bytes == integers.bytes
    raw = pack_record(random_parts(mx, (1, 1)), mx)
    assert (unpack_record(raw, integers, block_size=1)["codes"] == raw[:, None, :224]).all()
    code = np.array([0x8], np.uint8)
    assert decode(code, mx.rows[0].element) == 0
    assert decode(code, integers.rows[0].element) == -8


@pytest.mark.parametrize("name", ["fp8_ds_mla", "deepseek_v4", "indexer_fp8"])
def test_fnuz_is_another_record_of_the_same_bytes(name: str) -> None:
    """The flavour is declared, and a name of 8 bits does not say it: the same byte is half as much."""
    record = RECORDS[name]
    other = as_fnuz(record)
    assert other.name == f"{name}_fnuz"
    assert other.bytes == record.bytes
    assert {f.element for f in other.fields} == {
        "e4m3fnuz" if f.element == "e4m3fn" else f.element for f in record.fields
    }
    parts = random_parts(record, (1, 2))
    assert (pack_record(parts, other) == pack_record(parts, record)).all()
    with pytest.raises(FormatError, match=f"record {name}_fnuz has no field of e4m3fn"):
        as_fnuz(other)


def test_every_field_names_an_element() -> None:
    """Nothing is left to a dtype: 8 and 4 bits are codes of a named element."""
    for record in ALL.values():
        for field in record.fields:
            assert field.bits == (8 * field.dtype.itemsize if field.dtype != np.uint8 else field.bits)
            if field.dtype == np.uint8 and field.element not in PADS:
                assert element_of(field.element).bits == field.bits


def test_ggml_rows_are_blocks_one_after_the_other() -> None:
    """A head of 128 in q8_0 is four blocks of 34 bytes; gguf decodes what `pack_record` made."""
    gguf = pytest.importorskip("gguf")
    rng = np.random.default_rng(0)
    scales = rng.uniform(0.5, 2, (6, 4, 1)).astype(np.float16)
    codes = rng.integers(0, 256, (6, 4, 32), np.uint8)
    raw = pack_record({"scales": scales, "codes": codes}, GGML_BLOCKS["ggml_q8_0"])
    assert raw.shape == (6, 4 * 34)
    found = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType.Q8_0)
    assert (found == (scales.astype(np.float32) * codes.view(np.int8)).reshape(6, 128)).all()
    nibbles = rng.integers(0, 16, (6, 4, 32), np.uint8)
    parts = {"scales": np.full((6, 4, 1), 0x80, np.uint8), "codes": pack(nibbles, "split", 32)}
    raw = pack_record(parts, GGML_BLOCKS["ggml_mxfp4"])
    found = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType.MXFP4)
    assert (found == 2 * decode(nibbles, "e2m1").reshape(6, 128)).all()


def test_a_pad_that_must_be_zero_is_held_to_it_where_a_slot_is_written() -> None:
    """A dead slot may hold anything; a live one with a byte in its pad was written by something else."""
    record = RECORDS["deepseek_v4"]
    raw = pack_record(random_parts(record, (2, 3)), record)
    raw[1, field_address(record, 3, "pad", slot=2, item=0)] = 0x3C
    with pytest.raises(FormatError, match=r"holds 0x3c in the pad of slot \[1, 2\], expected 0x00"):
        unpack_record(raw, record, block_size=3)
    unpack_record(raw, record, block_size=3, written=np.array([[1, 1, 1], [1, 1, 0]], bool))
    with pytest.raises(FormatError, match="in the pad of slot"):
        unpack_record(raw, record, block_size=3, written=np.array([[0, 0, 0], [0, 0, 1]], bool))
    unset = RECORDS["deepseek_v4_mxfp4"]
    raw = pack_record(random_parts(unset, (1, 1)), unset)
    raw[0, 238:240] = 0x3C
    unpack_record(raw, unset, block_size=1)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: unpack_record(np.zeros((2, 584), np.uint8), RECORDS["fp8_ds_mla"], block_size=1),
            r"raw is uint8 \[2, 584\], expected uint8 \[..., 656\] for blocks of 1 tokens of fp8_ds_mla",
        ),
        (
            lambda: unpack_record(np.zeros(64 * 584, np.uint8), RECORDS["deepseek_v4"], block_size=64),
            r"raw is uint8 \[37376\], expected uint8 \[..., 37440\]",
        ),
        (
            lambda: unpack_record(np.zeros(656, np.int8), RECORDS["fp8_ds_mla"], block_size=1),
            r"raw is int8 \[656\], expected uint8",
        ),
        (lambda: pack_record({}, RECORDS["indexer_fp8"]), "parts has , expected codes, scales"),
        (lambda: record_of("fp8"), "record = 'fp8', expected one of fp8_ds_mla"),
        (lambda: as_fnuz(RECORDS["indexer_mxfp4"]), "indexer_mxfp4 has no field of e4m3fn"),
        (lambda: Field("codes", "e2m1", 3), "codes has 3 elements of 4 bits"),
        (lambda: Field("codes", "e4m3fn", 10, columns=4), "codes has 10 elements .* in 4 columns"),
        (lambda: Field("codes", "fp8", 8), "element = 'fp8'"),
        (
            lambda: field_address(RECORDS["deepseek_v4"], 4, "k", slot=0, item=0),
            "field = 'k', expected one of codes, rope, scales, pad",
        ),
        (
            lambda: field_address(RECORDS["deepseek_v4"], 4, "scales", slot=4, item=0),
            "slot = 4, item = 0, expected integers below 4 and 7 in scales",
        ),
        (
            lambda: field_address(RECORDS["deepseek_v4"], 4, "scales", slot=0, item=7),
            "slot = 0, item = 7",
        ),
    ],
)
def test_what_is_no_block_of_a_record_is_refused(call: Any, says: str) -> None:
    """Bytes of another record, of a block without its round-up, signed bytes, names that are none."""
    with pytest.raises(FormatError, match=says):
        call()


@pytest.mark.parametrize(
    "change",
    [
        {"scales": np.zeros((1, 2, 4), np.float64)},
        {"scales": np.zeros((1, 2, 3), np.float32)},
        {"scales": np.zeros((1, 3, 4), np.float32)},
        {"codes": np.zeros((1, 2, 512), np.int8)},
        {"rope": np.zeros((1, 2, 64), np.float16)},
        {"codes": np.zeros(512, np.uint8)},
    ],
)
def test_parts_that_do_not_fit_are_refused(change: dict[str, np.ndarray]) -> None:
    """The dtype of a field is part of the record: bytes of float16 rope are no bfloat16."""
    record = RECORDS["fp8_ds_mla"]
    (name,) = change
    fits = {field.name: field.element for field in record.fields}[name]
    with pytest.raises(FormatError, match=rf"{name} is .* for {fits} of fp8_ds_mla|codes is .* \[512\]"):
        pack_record({**random_parts(record, (1, 2)), **change}, record)
    with pytest.raises(ArgumentError, match="block_size = 0"):
        block_bytes(record, 0)
