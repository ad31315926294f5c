"""vLLM's block hashes under sha256_cbor, asked in its own interpreter: prints the vectors as JSON.

    python tests/memory/ask_vllm_keys.py > tests/data/vllm_sha256_cbor.json

Each request is a real one, hashed by vLLM's own hasher as it is made and as decoded tokens join it.
"""

import contextlib
import json
import os
import random
import sys
from typing import Any

with contextlib.redirect_stdout(sys.stderr):
    import torch  # type: ignore[import-not-found, unused-ignore]
    import vllm  # type: ignore[import-not-found, unused-ignore]
    from vllm.lora.request import LoRARequest
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256_cbor
    from vllm.v1.core import kv_cache_utils as utils
    from vllm.v1.request import Request


def tokens(count: int, below: int, seed: int) -> list[int]:
    """Token ids drawn from a seed."""
    draw = random.Random(seed)
    return [draw.randrange(below) for _ in range(count)]


def cases() -> list[dict[str, Any]]:
    """Every width of a number, every extra key, alone and together, at the edges of blocks."""
    edges = [0, 23, 24, 255, 256, 65_535, 65_536, 151_935, 2**31 - 1, 2**32 - 1, 2**32, 2**53, 2**63 - 1]
    image, clip = "a" * 64, "clip-é-1"
    plain: list[dict[str, Any]] = [
        {"tokens": edges, "block_size": 1},
        {"tokens": tokens(40, 32_000, 1), "block_size": 16},
        {"tokens": tokens(47, 151_936, 2), "block_size": 16, "prompt": 30},
        {"tokens": tokens(15, 32_000, 3), "block_size": 16},
        {"tokens": tokens(600, 32_000, 4), "block_size": 256},
        {"tokens": tokens(9, 32_000, 5), "block_size": 3, "seed": "0"},
        {"tokens": tokens(9, 32_000, 5), "block_size": 3, "seed": "4294967295"},
    ]
    extras: list[dict[str, Any]] = [
        {"lora": ["sql", "/adapters/sql"]},
        {"lora": ["sql", "/adapters/sql-2"]},
        {"salt": "tenant-7"},
        {"salt": "sql"},
        {"lora": ["x", "y"], "salt": "tenant-7"},
        {"media": [[image, 2, 5]]},
        {"media": [[image, 3, 5]]},
        {"media": [[image, 4, 4], [clip, 8, 1], [image, 9, 6]]},
        {"media": [[image, 0, 16]], "lora": ["sql", "/adapters/sql"], "salt": "s", "prompt": 16},
        {"embeddings": [[float(i), float(-i)] for i in range(12)], "prompt": 12},
        {"embeddings": [[0.5, i / 8] for i in range(6)], "salt": "s", "prompt": 6},
    ]
    return plain + [{"tokens": tokens(18, 32_000, 6), "block_size": 4, **extra} for extra in extras]


def answered(case: dict[str, Any]) -> dict[str, Any]:
    """A case with vLLM's hashes, and its rows of embeddings as bytes."""
    seed = case.get("seed")
    os.environ.pop("PYTHONHASHSEED", None)
    if seed is not None:
        os.environ["PYTHONHASHSEED"] = seed
    utils.init_none_hash(sha256_cbor)
    rows = torch.tensor(case["embeddings"], dtype=torch.float32) if "embeddings" in case else None
    prompt = case.get("prompt", len(case["tokens"]))
    request = Request(
        request_id="0",
        prompt_token_ids=case["tokens"][:prompt],
        sampling_params=SamplingParams(max_tokens=100),
        pooling_params=None,
        prompt_embeds=rows,
        mm_features=[
            MultiModalFeatureSpec(None, "image", digest, PlaceholderRange(offset, length))
            for digest, offset, length in case.get("media", [])
        ],
        lora_request=LoRARequest(case["lora"][0], 1, case["lora"][1]) if "lora" in case else None,
        cache_salt=case.get("salt"),
        block_hasher=utils.get_request_block_hasher(case["block_size"], sha256_cbor),
    )
    for token in case["tokens"][prompt:]:
        request.append_output_token_ids(token)
    if rows is not None:
        case = case | {"embeddings": [row.numpy().tobytes().hex() for row in rows]}
    keys = list(request.block_hashes)
    return case | {
        "none_hash": utils.NONE_HASH.hex(),
        "keys": [key.hex() for key in keys],
        "with_group_3": utils.make_block_hash_with_group_id(keys[-1], 3).hex() if keys else "",
        "of_two_blocks": [key.hex() for key in utils.BlockHashListWithBlockSize(keys, 1, 2)],
        "event_hash": str(utils.maybe_convert_block_hash(keys[-1])) if keys else "",
    }


def main() -> None:
    """Print the vectors."""
    os.environ["VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"] = "1"
    found = [answered(case) for case in cases()]
    head = f'{{"about": "block hashes of vLLM {vllm.__version__} under sha256_cbor, by ask_vllm_keys.py",\n'
    lines = ",\n".join(json.dumps(case) for case in found)
    print(f'{head}"vllm": "{vllm.__version__}",\n"cases": [\n{lines}\n]}}')


main()
