"""The groups into which vLLM cuts the layers of a model, asked in its own interpreter: prints JSON.

    python -P tests/planning/ask_vllm_groups.py > tests/data/vllm_groups.json

A layer is [kind, KV heads, dim of a head, window or null], or ["state", bytes of both parts]; a case has a
block size, a context, and how many layers there are of each. What comes back is, for each group, how many
layers it has, the bytes of their pages, the tokens of a block, and the most blocks that a request of that
context takes while it decodes.
"""

import contextlib
import json
import sys
from types import SimpleNamespace
from typing import Any

with contextlib.redirect_stdout(sys.stderr):
    import torch  # type: ignore[import-not-found, unused-ignore]
    from vllm.v1.core import kv_cache_utils as utils
    from vllm.v1.kv_cache_interface import (
        ChunkedLocalAttentionSpec,
        FullAttentionSpec,
        MambaSpec,
        MLAAttentionSpec,
        SlidingWindowSpec,
    )

CONTEXT = 32768
#: Heads, dims, windows and bytes of states by the models' descriptions; states in bfloat16 and float32.
CASES: dict[str, tuple[int, list[tuple[int, list[Any]]]]] = {
    "gpt-oss-20b": (16, [(12, ["full", 8, 64, None]), (12, ["window", 8, 64, 128])]),
    "gpt-oss-120b": (16, [(18, ["full", 8, 64, None]), (18, ["window", 8, 64, 128])]),
    "Gemma-3-27B": (16, [(10, ["full", 16, 128, None]), (52, ["window", 16, 128, 1024])]),
    "Gemma-4-31B": (16, [(10, ["full", 4, 512, None]), (50, ["window", 16, 256, 1024])]),
    "Step-3.7-Flash": (16, [(12, ["full", 8, 128, None]), (33, ["window", 8, 128, 512])]),
    "Llama-4-Maverick": (16, [(12, ["full", 8, 128, None]), (36, ["chunked", 8, 128, 8192])]),
    "Llama-3.1-8B": (16, [(32, ["full", 8, 128, None])]),
    "Kimi-K3 on 8 ranks": (
        768,
        [(24, ["latent", 1, 576, None]), (69, ["state", 12 * 128 * 128 * 4 + 3 * 12 * 128 * 3 * 2])],
    ),
    "Qwen3.5-27B": (
        784,
        [(16, ["full", 4, 256, None]), (48, ["state", 48 * 128 * 128 * 4 + (32 + 48) * 128 * 3 * 2])],
    ),
    "12 and 13": (16, [(12, ["full", 3, 24, None]), (13, ["window", 3, 24, 40])]),
    "5 and 8": (16, [(5, ["full", 3, 24, None]), (8, ["window", 3, 24, 40])]),
    "4 and 6": (16, [(4, ["full", 3, 24, None]), (6, ["window", 3, 24, 40])]),
}


def spec_of(block_size: int, page: int, layer: list[Any]) -> Any:
    """One layer as vLLM describes it."""
    if layer[0] == "state":
        return MambaSpec(
            block_size=block_size, shapes=((layer[1] // 4,),), dtypes=(torch.float32,), page_size_padded=page,
            mamba_cache_mode="align",
        )  # fmt: skip
    kind, heads, dim, window = layer
    given = {"block_size": block_size, "num_kv_heads": heads, "head_size": dim, "dtype": torch.bfloat16}
    if kind == "latent":
        return MLAAttentionSpec(**given)
    if kind == "window":
        return SlidingWindowSpec(**given, sliding_window=window)
    if kind == "chunked":
        return ChunkedLocalAttentionSpec(**given, attention_chunk_size=window)
    return FullAttentionSpec(**given)


def groups_of(block_size: int, layers: list[tuple[int, list[Any]]]) -> list[list[int]]:
    """Layers, bytes of pages, tokens of a block and blocks of a request, for each group."""
    attending = [one for _, one in layers if one[0] != "state"]
    wide = [(1 if one[0] == "latent" else 2) * one[1] * one[2] * 2 * block_size for one in attending]
    specs = {
        f"layer {kind}.{i}": spec_of(block_size, max(wide), one)
        for kind, (count, one) in enumerate(layers)
        for i in range(count)
    }
    if utils.is_kv_cache_spec_uniform(specs):
        groups = utils._get_kv_cache_groups_uniform_spec(specs)
    else:
        groups = utils._get_kv_cache_groups_uniform_page_size(utils.unify_kv_cache_spec_page_size(specs))
    config = SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=CONTEXT),
        cache_config=SimpleNamespace(mamba_cache_mode="align"),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1, prefill_context_parallel_size=1),
        max_in_flight_tokens=1,
    )
    return [
        [
            len(group.layer_names),
            group.kv_cache_spec.page_size_bytes,
            group.kv_cache_spec.block_size,
            -(-group.kv_cache_spec.max_memory_usage_bytes(config) // group.kv_cache_spec.page_size_bytes),
        ]
        for group in groups
    ]


def main() -> None:
    """Print the cases and what vLLM makes of them."""
    with contextlib.redirect_stdout(sys.stderr):
        import vllm  # type: ignore[import-not-found, unused-ignore]

        found = {name: [block, groups_of(block, layers)] for name, (block, layers) in CASES.items()}
    about = f"vLLM {vllm.__version__}: groups of layers, by ask_vllm_groups.py"
    lines = ",\n".join(f'  "{name}": {json.dumps(groups)}' for name, groups in found.items())
    print(f'{{"about": "{about}", "context": {CONTEXT},\n "cases": {{\n{lines}\n }}}}')


main()
