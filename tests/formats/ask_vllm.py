"""What vLLM does with the bytes of a cache, asked in its own interpreter: JSON in, JSON out.

vLLM's writers are Triton kernels. Triton's interpreter runs them without a GPU, once vLLM is told that
Triton is there. Its casts to 8 bits round ties away and lose a carry, so what is written must be numbers that
need no rounding. The one instruction that makes a byte of two E2M1 codes is replaced; where the byte goes is
vLLM's own doing.
"""

import base64
import json
import os
import sys
from types import SimpleNamespace
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"
import torch  # type: ignore[import-not-found, unused-ignore]
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
import vllm.triton_utils as there

there.HAS_TRITON, there.triton, there.tl = True, triton, tl

from vllm.models.deepseek_v4.common.ops import cache_utils  # noqa: E402
from vllm.models.deepseek_v41.common.ops import fused_compress_quant_cache, indexer_k_store  # noqa: E402
from vllm.utils.torch_utils import nvfp4_split_data_scale  # noqa: E402
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend, TritonAttentionImpl  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVQuantMode, MLAAttentionSpec  # noqa: E402

BLOCK, TOKENS, SLOTS = 4, 5, (5, 0, 3, 6, 1)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def e2m1_pair(low, high):  # type: ignore[no-untyped-def]
    """Two E2M1 codes, rounded to nearest even, the first one low."""
    return e2m1(low) | e2m1(high) << 4


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def e2m1(x):  # type: ignore[no-untyped-def]
    """The E2M1 code nearest to a number."""
    a = tl.abs(x)
    code = (a > 0.25).to(tl.uint8) + (a >= 0.75).to(tl.uint8) + (a > 1.25).to(tl.uint8)
    code += (a >= 1.75).to(tl.uint8) + (a > 2.5).to(tl.uint8) + (a >= 3.5).to(tl.uint8) + (a > 5).to(tl.uint8)
    return code | ((x < 0).to(tl.uint8) << 3)


def raw(x: Any) -> str:
    """The bytes of a tensor."""
    return base64.b64encode(x.contiguous().view(torch.uint8).numpy().tobytes()).decode()


def bfloat16(text: str) -> Any:
    """The numbers of a list of tokens."""
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.bfloat16).view(TOKENS, -1)


def view(x: Any) -> dict[str, Any]:
    """Where the elements of a view lie, in units of its dtype."""
    return {"shape": list(x.shape), "strides": list(x.stride()), "offset": x.storage_offset()}


def empty(record: int, multiple: int = 1) -> Any:
    """Two blocks of records, filled with a byte."""
    size = -(-BLOCK * record // multiple) * multiple
    return torch.full((2, size), 0xAA, dtype=torch.uint8)


def written(numbers: dict[str, str]) -> dict[str, str]:
    """Blocks that vLLM's writers filled with numbers, by record; none if there are no numbers."""
    if not numbers:
        return {}
    slots, positions = torch.tensor(SLOTS), torch.zeros(TOKENS, dtype=torch.int64)
    still = torch.cat([torch.ones(1, 32), torch.zeros(1, 32)], dim=1)  # cos and sin of position 0
    fused_compress_quant_cache._fp32x2_to_fp4x2 = indexer_k_store._fp32x2_to_fp4x2 = e2m1_pair
    blocks = {}
    cache = empty(584, 576)
    cache_utils.quantize_and_insert_k_cache(bfloat16(numbers["deepseek_v4"]), cache, slots, block_size=BLOCK)
    blocks["deepseek_v4"] = raw(cache)
    for name, record in (("deepseek_v41", 528), ("deepseek_v41_nvfp4", 288)):
        cache = empty(record, 512)
        rows = cache.as_strided((2, BLOCK, record), (cache.stride(0), record, 1))
        x = bfloat16(numbers[name])
        fused_compress_quant_cache.rope_quant_insert(x, positions, still, rows, slots, 1)
        blocks[name] = raw(cache)
    for name, record in (("indexer_fp8", 132), ("indexer_mxfp4", 68)):
        cache = empty(record).view(2, BLOCK, record)
        ones = torch.ones(
            1, 128, dtype=torch.bfloat16
        )  # normalised as they are, so that the weight is the key
        for at, weight in enumerate(bfloat16(numbers[name])):
            indexer_k_store.indexer_k_norm_rope_store(
                ones, positions[:1], still, weight, 0.0, cache, slots[at : at + 1], 1, record == 68
            )
        blocks[name] = raw(cache)
    return blocks


def sizes() -> dict[str, int]:
    """Bytes of blocks as vLLM's own arithmetic has them."""
    found = {}
    for name, record, multiple in (
        ("deepseek_v4", 584, 576),
        ("deepseek_v41", 528, 512),
        ("deepseek_v41_nvfp4", 288, 512),
        ("fp8_ds_mla", 656, None),
        ("nvfp4_ds_mla", 352, None),
    ):
        found[name] = MLAAttentionSpec(
            block_size=64,
            num_kv_heads=1,
            head_size=512,
            dtype=torch.uint8,
            state_content_bytes=record,
            alignment=multiple,
        ).page_size_bytes
    for name in ("fp8_token_head", "int8_token_head", "int4_token_head"):
        mode = KVQuantMode[name.replace("_token", "_per_token").upper()]
        spec = FullAttentionSpec(
            block_size=16, num_kv_heads=8, head_size=128, dtype=torch.uint8, kv_quant_mode=mode
        )
        found[name] = TritonAttentionBackend.customize_spec(spec).page_size_bytes
    return found


def views() -> dict[str, Any]:
    """Views of codes and scales inside pages of 2 blocks, 3 heads of 64 channels, 8 slots."""
    found: dict[str, Any] = {}
    for order, dims in (("hnd", (3, 8)), ("nhd", (8, 3))):
        cell = 64 // 2 + 64 // 16
        side = 3 * 8 * cell
        pages = torch.zeros(2, 2 * side, dtype=torch.uint8)
        for kv in range(2):
            inside = pages.as_strided((2, *dims, cell), (2 * side, dims[1] * cell, cell, 1), kv * side)
            codes, scales = nvfp4_split_data_scale(inside)
            found[f"nvfp4 {order} {'kv'[kv]}"] = [view(codes), view(scales)]
        cells = torch.zeros(2, *dims, 2 * (64 + 4), dtype=torch.uint8)
        logical = cells if order == "hnd" else cells.transpose(1, 2)
        holder = SimpleNamespace(_k_scale_cache=None, _v_scale_cache=None)
        TritonAttentionImpl._ensure_scale_caches(holder, logical)
        found[f"token_head {order}"] = [view(holder._k_scale_cache), view(holder._v_scale_cache)]
    return found


json.dump({"sizes": sizes(), "views": views(), "written": written(json.load(sys.stdin))}, sys.stdout)
