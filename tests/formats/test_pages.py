"""Pages: codes and scales of every head where the engines put them, and back in every bit."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm_bytes import ask_vllm

from kvref.errors import ArgumentError, FormatError
from kvref.formats.footprints import bytes_per_page
from kvref.formats.pages import (
    ORDERS,
    PAGES,
    V_SCALE_LAYOUTS,
    PageShape,
    pack_page,
    page_address,
    page_bytes,
    page_of,
    unpack_page,
)
from kvref.formats.paths import PATHS

SMALL = {"block_size": 8, "num_kv_heads": 3, "head_dim": 64}


def random_parts(page: str, shape: PageShape, blocks: int = 2, seed: int = 0) -> dict[str, np.ndarray]:
    """Return parts of random bytes."""
    rng = np.random.default_rng(seed)
    parts = {}
    for part in PAGES[page].parts:
        field = part.field(shape.head_dim)
        extents = (blocks, shape.block_size, shape.num_kv_heads, field.items)
        size = int(np.prod(extents)) * field.dtype.itemsize
        parts[part.name] = np.frombuffer(rng.bytes(size), field.dtype).reshape(extents)
    return parts


def layouts_of(page: str) -> list[str]:
    """Return the layouts that the scales of a page's values may have."""
    return (
        [*V_SCALE_LAYOUTS] if any(p.name == "v_scales" and p.per for p in PAGES[page].parts) else ["linear"]
    )


CASES = [(page, order, layout) for page in PAGES for order in ORDERS for layout in layouts_of(page)]


@pytest.mark.parametrize(("name", "order", "layout"), CASES)
def test_every_item_lies_at_its_address(name: str, order: str, layout: str) -> None:
    """Item by item, against the bytes of packed pages; addresses fill the page and never meet."""
    page, shape = PAGES[name], PageShape(**SMALL, order=order, v_scale_layout=layout)
    parts = random_parts(name, shape)
    raw = pack_page(parts, page, shape)
    assert raw.shape == (2, page_bytes(page, shape))
    seen = np.zeros(raw.shape[1], int)
    for key, part in parts.items():
        size = part.dtype.itemsize
        for slot, head, item in np.ndindex(part.shape[1:]):
            at = page_address(page, shape, key, slot=slot, head=head, item=item)
            seen[at : at + size] += 1
            assert raw[:, at : at + size].tobytes() == part[:, slot, head, item].tobytes()
    assert (seen == 1).all()


@given(
    st.sampled_from(CASES),
    st.integers(0, 2),
    st.integers(1, 3).map(lambda n: 4 * n),
    st.integers(1, 4),
    st.sampled_from([64, 128]),
)
def test_parts_come_back(case: tuple[str, str, str], blocks: int, size: int, heads: int, dim: int) -> None:
    """Every bit of every part, in memory of its own, also of a cache without blocks."""
    name, order, layout = case
    shape = PageShape(block_size=size, num_kv_heads=heads, head_dim=dim, order=order, v_scale_layout=layout)
    parts = random_parts(name, shape, blocks)
    raw = pack_page(parts, PAGES[name], shape)
    back = unpack_page(raw, PAGES[name], shape)
    assert list(back) == [part.name for part in PAGES[name].parts]
    for key, part in parts.items():
        assert back[key].dtype == part.dtype
        assert back[key].shape == part.shape
        assert back[key].tobytes() == part.tobytes()
        assert not np.shares_memory(back[key], raw)


def test_nvfp4_pages_are_four_arrays_of_torch() -> None:
    """[K | K scales | V | V scales], each permuted to heads first; V's scales through a view of 4 × 4."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    shape = PageShape(**SMALL, v_scale_layout="interleaved")
    parts = random_parts("nvfp4", shape)
    ours = pack_page(parts, PAGES["nvfp4"], shape)
    tensors = {key: torch.tensor(part).permute(0, 2, 1, 3) for key, part in parts.items()}
    turns = tensors["v_scales"].reshape(2, 3, 2, 4, 4, 1).permute(0, 1, 2, 4, 5, 3)
    memory = [tensors["k_codes"], tensors["k_scales"], tensors["v_codes"], turns]
    theirs = torch.cat([tensor.reshape(2, -1) for tensor in memory], dim=1)
    assert (ours == theirs.numpy()).all()


def test_pools_of_trtllm_are_the_same_arrays_apart() -> None:
    """Codes of keys and values in one pool, their scales in another."""
    shape = PageShape(**SMALL, v_scale_layout="interleaved")
    parts = random_parts("nvfp4", shape)
    together = pack_page(parts, PAGES["nvfp4"], shape)
    codes = pack_page({k: parts[k] for k in ("k_codes", "v_codes")}, PAGES["nvfp4_codes"], shape)
    scales = pack_page({k: parts[k] for k in ("k_scales", "v_scales")}, PAGES["nvfp4_scales"], shape)
    k, s = codes.shape[1] // 2, scales.shape[1] // 2
    apart = np.concatenate([codes[:, :k], scales[:, :s], codes[:, k:], scales[:, s:]], axis=1)
    assert (apart == together).all()


def test_only_scales_of_values_take_turns() -> None:
    """A reader that expects the other layout gets every code right and V scales of other tokens."""
    linear, turns = PageShape(**SMALL), PageShape(**SMALL, v_scale_layout="interleaved")
    parts = random_parts("nvfp4", linear)
    wrong = unpack_page(pack_page(parts, PAGES["nvfp4"], turns), PAGES["nvfp4"], linear)
    for key, part in parts.items():
        assert (wrong[key] == part).all() == (key != "v_scales")


@pytest.mark.parametrize("name", ["nvfp4", "fp8_token_head"])
def test_the_other_order_is_another_page(name: str) -> None:
    """Where four heads and four slots look alike, the length says nothing and every number is another's."""
    extents = {"block_size": 4, "num_kv_heads": 4, "head_dim": 64}
    hnd, nhd = PageShape(**extents), PageShape(**extents, order="nhd")
    parts = random_parts(name, hnd)
    swapped = unpack_page(pack_page(parts, PAGES[name], hnd), PAGES[name], nhd)
    for key, part in parts.items():
        assert swapped[key].tobytes() == np.ascontiguousarray(part.swapaxes(1, 2)).tobytes()


def addresses(view: dict[str, Any], itemsize: int) -> np.ndarray:
    """Return the byte of every element of a view."""
    at = np.indices(view["shape"])
    return itemsize * (view["offset"] + sum(s * i for s, i in zip(view["strides"], at, strict=True)))


@pytest.mark.parametrize("order", ORDERS)
def test_nvfp4_addresses_are_those_of_views_in_vllm(order: str) -> None:
    """vLLM cuts its pages into strided views of codes and scales."""
    page, shape = PAGES["nvfp4"], PageShape(**SMALL, order=order)
    for kv in "kv":
        for part, view in zip(("codes", "scales"), ask_vllm()["views"][f"nvfp4 {order} {kv}"], strict=True):
            theirs = addresses(view, 1)  # [block, head, slot, item] or [block, slot, head, item]
            theirs = theirs if order == "nhd" else theirs.swapaxes(1, 2)
            for block, slot, head, item in np.ndindex(theirs.shape):
                ours = page_address(page, shape, f"{kv}_{part}", slot=slot, head=head, item=item)
                assert theirs[block, slot, head, item] == block * page_bytes(page, shape) + ours


@pytest.mark.parametrize("order", ORDERS)
def test_token_head_addresses_are_those_of_views_in_vllm(order: str) -> None:
    """A float32 scale behind the codes of each slot and head, of keys and then of values."""
    page, shape = PAGES["fp8_token_head"], PageShape(**SMALL, order=order)
    for kv, view in zip("kv", ask_vllm()["views"][f"token_head {order}"], strict=True):
        theirs = addresses(view, 4)  # [block, slot, head]
        for block, slot, head in np.ndindex(theirs.shape):
            ours = page_address(page, shape, f"{kv}_scales", slot=slot, head=head, item=0)
            assert theirs[block, slot, head] == block * page_bytes(page, shape) + ours


@pytest.mark.parametrize("name", ["fp8_token_head", "int8_token_head", "int4_token_head"])
def test_pages_have_the_bytes_vllm_allocates(name: str) -> None:
    """vLLM's own arithmetic of pages."""
    shape = PageShape(block_size=16, num_kv_heads=8, head_dim=128)
    assert page_bytes(PAGES[name], shape) == ask_vllm()["sizes"][name]


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("nvfp4", "nvfp4"),
        ("fp8_token_head", "fp8_e4m3_token_head"),
        ("int8_token_head", "int8_token_head"),
        ("int4_token_head", "int4_token_head"),
    ],
)
def test_pages_have_the_bytes_of_their_format(name: str, format: str) -> None:
    """A page is its tokens: codes and scales of both sides, and nothing else."""
    extents = {"block_size": 16, "num_kv_heads": 8, "head_dim": 128}
    assert page_bytes(PAGES[name], PageShape(**extents)) == bytes_per_page(format, **extents)


def test_a_scale_for_each_slot_and_head_costs_eight_bytes() -> None:
    """vLLM's budget: two float32 for each slot and head beside the page of 8-bit codes."""
    shape = PageShape(block_size=16, num_kv_heads=8, head_dim=128)
    assert page_bytes(PAGES["fp8_token_head"], shape) == 2 * 16 * 8 * 128 + 2 * 16 * 8 * 4


def test_answers_of_a_shape_are_those_of_a_path() -> None:
    """A declared path names the layout of V's scales as this module does."""
    assert PATHS["v_scale_layout"] == V_SCALE_LAYOUTS


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: page_of("fp8"), "page = 'fp8', expected one of nvfp4"),
        (lambda: PageShape(**SMALL, order="HND"), "order = 'HND', expected one of hnd, nhd"),
        (lambda: PageShape(**SMALL, v_scale_layout="swizzled"), "v_scale_layout = 'swizzled'"),
        (
            lambda: page_bytes(PAGES["nvfp4"], PageShape(block_size=4, num_kv_heads=1, head_dim=72)),
            "head_dim = 72, expected a multiple of 16 for k_scales",
        ),
        (
            lambda: unpack_page(np.zeros((2, 100), np.uint8), PAGES["nvfp4"], PageShape(**SMALL)),
            r"raw is uint8 \[2, 100\], expected uint8 \[num_blocks, 1728\] for nvfp4 of 8 slots, 3 heads",
        ),
        (
            lambda: unpack_page(np.zeros((2, 1728), np.int8), PAGES["nvfp4"], PageShape(**SMALL)),
            "raw is int8",
        ),
        (
            lambda: page_address(PAGES["nvfp4"], PageShape(**SMALL), "q", slot=0, head=0, item=0),
            "part = 'q', expected one of k_codes, k_scales, v_codes, v_scales",
        ),
        (
            lambda: page_address(PAGES["nvfp4"], PageShape(**SMALL), "k_codes", slot=0, head=3, item=0),
            "slot = 0, head = 3, item = 0, expected integers below 8, 3 and 32 in k_codes",
        ),
        (lambda: pack_page({}, PAGES["nvfp4"], PageShape(**SMALL)), "parts has , expected k_codes"),
    ],
)
def test_what_is_no_page_is_refused(call: Any, says: str) -> None:
    """Other extents, other bytes, names that are none."""
    with pytest.raises(FormatError, match=says):
        call()
    with pytest.raises(ArgumentError, match="block_size = 0"):
        PageShape(**{**SMALL, "block_size": 0})


def test_parts_that_do_not_fit_are_refused() -> None:
    """A block too many, heads and slots exchanged, a page that four tokens do not fill."""
    shape = PageShape(**SMALL)
    parts = random_parts("nvfp4", shape)
    with pytest.raises(
        FormatError, match=r"v_codes is uint8 \[2, 3, 8, 32\], expected uint8 \[num_blocks, 8"
    ):
        pack_page({**parts, "v_codes": parts["v_codes"].swapaxes(1, 2)}, PAGES["nvfp4"], shape)
    with pytest.raises(FormatError, match=r"parts have \[2, 2, 1, 2\] blocks"):
        pack_page({**parts, "v_codes": parts["v_codes"][:1]}, PAGES["nvfp4"], shape)
    odd = PageShape(block_size=6, num_kv_heads=3, head_dim=64, v_scale_layout="interleaved")
    with pytest.raises(FormatError, match=r"scales of one head are \[6, 4\], expected multiples of 4 tokens"):
        pack_page(random_parts("nvfp4", odd), PAGES["nvfp4"], odd)
