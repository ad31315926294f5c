"""Public reports and the exhibits that show them; and reports whose fault no exhibit here can show.

The subjects here are kernels, block managers and prefix caches. Much that goes wrong with a KV cache goes
wrong in what surrounds them: ring buffers, models, transfers, engines.
"""

from kvref_conformance.museum import all_exhibits

_RING = "rings: a sliding cache without blocks keeps state between calls; a kernel is handed the result"
_TRIM = (
    "models: trimming, resetting or restoring a cache without blocks; neither a kernel nor a block sees it"
)
_LAYERS = "models: which layer has a cache of its own; a kernel sees one layer"
_BATCH = "engines: bookkeeping of rows when a batch changes; a kernel is given the batch as it is"
_GROUPS = "groups: layers with windows or states beside full attention; a prefix cache here has one group"

#: Reports about attention, paging, prefixes and cache interfaces that no exhibit can show -> why.
ELSEWHERE: dict[str, str] = {
    "huggingface/transformers#38046": _RING,
    "huggingface/transformers#31917": _TRIM,
    "huggingface/transformers#47708": _RING,
    "ggml-org/llama.cpp#14081": "rings: holes are counted and cells moved by a defragmenter",
    "ml-explore/mlx-lm#1868": _TRIM,
    "ml-explore/mlx-lm#1776": _TRIM,
    "Blaizzy/mlx-vlm#1715": _RING,
    "EfficientMoE/MoE-Infinity#195": _LAYERS,
    "quic/efficient-transformers#1235": _RING,
    "vllm-project/vllm-ascend#11791": _LAYERS,
    "vllm-project/vllm#48365": _LAYERS,
    "ovg-project/kvcached#417": _LAYERS,
    "ggml-org/llama.cpp#26676": _TRIM,
    "ggml-org/llama.cpp#25297": _RING,
    "ggml-org/llama.cpp#25452": _TRIM,
    "ml-explore/mlx-lm#1141": _BATCH,
    "Blaizzy/mlx-vlm#1890": _BATCH,
    "vllm-project/vllm#6761": "models: loading of scales; a codec is handed a number",
    "vllm-project/vllm#24505": "models: a cache allocated in the dtype of another model's",
    "vllm-project/vllm#41343": "models: keys past what a format holds under a scale of 1; each code is right",
    "openvinotoolkit/openvino#37095": "a scale that encodes, past the largest float16; here they decode",
    "NVIDIA/TensorRT-LLM#16505": "transfers: the dtype of a buffer taken from another pool of blocks",
    "ml-explore/mlx-lm#1494": _TRIM,
    "ModelEngine-Group/unified-cache-management#1059": _GROUPS,
    "NVIDIA/TensorRT-LLM#10183": _GROUPS,
    "vllm-project/vllm#17398": _GROUPS,
    "vllm-project/vllm#33270": _GROUPS,
    "sgl-project/sglang#27586": _GROUPS,
    "sgl-project/sglang#29860": _GROUPS,
    "LMCache/LMCache#727": "tiers: a hit in the engine's blocks that is no multiple of the store's chunks",
    "LMCache/LMCache#875": "tiers: reuse of what is no prefix, beside a hit in the engine",
    "vllm-project/vllm#22726": "engines: one of two entry points does not reset the prefix cache",
}


def by_report() -> dict[str, tuple[str, ...]]:
    """Return the exhibits of every public report that has one, by `owner/repo#number`."""
    found: dict[str, tuple[str, ...]] = {}
    for exhibit in all_exhibits():
        for place in exhibit.seen_in:
            found[place] = (*found.get(place, ()), exhibit.name)
    return found
