"""SGLang's UnifiedRadixCache for a hybrid model: pages of attention beside Mamba states.

A request runs in a state slot of its own and has a second one to track with: a prefill leaves there the state
after the last whole chunk, counted from where it began, and a decode step the state after a multiple of the
tracking interval. After a prefill the tracked slot is donated to the tree and replaced; what was tracked in
decoding is donated at the end. So a request takes two slots, its tree lock keeps a third, and a donation a
fourth: as in SGLang, a quarter of the slots is the most requests that run. Both the chunk of the model and
the tracking interval are the interval of the contract.

The request is matched as `init_next_round_input` does, with its state copied on write; what a prefill tracks
is asked of `ScheduleBatch`. Several decoded tokens are as many decode steps, the last multiple of which stays
in the one slot. Slot 0 of SGLang is for padding and is not counted: state slot s here is s + 1 there.

Choices: those of RadixCache; several states a request, and what is saved depends on where its steps begin.
Source: SGLang 0.5.23, python/sglang/srt/mem_cache/{unified_radix_cache,memory_pool,allocation,common}.py,
unified_cache/components/mamba.py, allocator/mamba.py, kv_cache_configurator.py (the share of slots),
managers/{schedule_batch,schedule_policy}.py, scheduler_components/batch_result_processor.py; without overlap.
"""

from array import array
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

from kvref.errors import OutOfStatesError, OwnershipError
from kvref_conformance.claims import Claims

try:
    import torch

    import kvref_conformance.subjects.sglang_radix_cache as radix
    from kvref_conformance.subjects.sglang_parts import part

    batches = import_module("sglang.srt.managers.schedule_batch")
    context = import_module("sglang.srt.runtime_context")
    common, unified = part("common"), part("unified_radix_cache")
    sizing = part("kv_cache_configurator")
    COMPONENTS = part("unified_cache.component_type").ComponentType
except ImportError as error:
    raise ImportError(
        "the subject sglang_mamba_cache needs SGLang: pip install --no-deps sglang==0.5.23, and PyTorch"
    ) from error

ZEROS = -1
#: Slots of a pool for each request that may run: the resident ones, and the one that is tracked in.
SLOTS_A_REQUEST = sizing.MAMBA_CACHE_SIZE_MAX_RUNNING_REQUESTS_RATIO + 1


class Req(radix.Req):
    """What the cache, the allocation and the batch read of a request."""

    mamba_branching_seqlen = retraction_backup = None
    skip_radix_cache_insert = False
    host_hit_length = swa_host_hit_length = mamba_host_hit_length = 0

    def __init__(self, rid: str, key: Any) -> None:
        super().__init__(key, 0, None, None)
        self.rid, self.kv = rid, batches.ReqKvInfo()
        self.prefix_len = self.extend_len = self.extend_end = 0
        self.is_in_flight = True
        self.tracked: int | None = None
        """Where the decode steps in flight will have tracked a state."""

    def refresh_fill_ids(self) -> None:
        """Do nothing: tokens join as they are scheduled."""

    def owned_kv_len(self) -> int:
        """Return how far its keys and values go: they count as committed once they are scheduled."""
        return int(self.kv.kv_allocated_len)


class Cache(radix.Cache):
    """A tree with two components, the pages of one, the state slots of the other."""

    def __init__(self, num_blocks: int, block_size: int, num_states: int, snapshot_interval: int) -> None:
        _configure(max(snapshot_interval, block_size), snapshot_interval)
        self._size, self._most = block_size, num_states // SLOTS_A_REQUEST
        tokens = (num_blocks - 1) * block_size
        self._pages = radix.pages_of(tokens, block_size)
        self._rows = radix.pools.HybridReqToTokenPool(
            size=max(num_blocks, radix.ROWS),
            mamba_size=num_states,
            mamba_spec_state_size=0,
            max_context_len=tokens + 1,
            device="cpu",
            enable_memory_saver=False,
            cache_params=_state_params(),
            mamba_layer_ids=[0],
            enable_mamba_extra_buffer=True,
            enable_overlap_schedule=False,
        )
        self._adapters = part("events").KvEventLoraNames()
        self._tree = unified.UnifiedRadixCache(
            radix.params.CacheInitParams(
                disable=False,
                req_to_token_pool=self._rows,
                token_to_kv_pool_allocator=self._pages,
                page_size=block_size,
                kv_event_lora_names=self._adapters,
                enable_mamba_extra_buffer=True,
                tree_components=(COMPONENTS.FULL, COMPONENTS.MAMBA),
                tree_core_backend="rust",
            )
        )
        self._track_grid = context.mamba_track_grid(block_size)
        self._batch = SimpleNamespace(
            model_config=SimpleNamespace(hf_text_config=SimpleNamespace(mamba_chunk_size=snapshot_interval)),
            tree_cache=self._tree,
            req_to_token_pool=self._rows,
        )
        self._reqs: dict[int, Any] = {}

    def admit(
        self, request: int, tokens: Sequence[int], max_new_tokens: int, *, adapter: str = "", salt: str = ""
    ) -> Any:
        """`match_prefix`, the budget of a prefill, `lock`, `alloc_for_extend`, and what the batch tracks."""
        if request in self._reqs:
            raise KeyError(f"request {request} has a Req")
        if len(self._reqs) >= self._most:
            raise OutOfStatesError(f"max_running_requests = {self._most}, and so many run")
        ids = array("q", tokens)
        key = radix.radix_cache.RadixKey(ids, adapter or None, limit=len(ids) - 1, cache_salt=salt or None)
        req = Req(str(request), key)
        found = self._tree.match_prefix(radix.base.MatchPrefixParams(key=key, cow_mamba=True, req=req))
        hit, node = found.device_prefix_len, found.last_device_node
        req.mamba_branching_seqlen = found.mamba_branching_seqlen
        req.kv.cache_protected_len = hit
        req.last_node, req.lock = node, self._tree.lock(node)
        self._adapters.register(req, adapter)
        try:
            self._budget(len(ids) - hit)
            radix.allocation.alloc_req_slots(self._rows, [req], self._tree)
            self._rows.write((req.kv.req_pool_idx, slice(0, hit)), self._tree.path_device_indices(node))
            self._allocate(req, hit, min(hit + max_new_tokens, len(ids)))
        except Exception:
            self._tree.unlock(req.lock)
            common.release_kv_cache(req, self._tree, checkpoint=False)
            raise
        self._reqs[request] = req
        return hit, self.slots(request), *self._prefill(req, hit)

    def extend(self, request: int, tokens: Sequence[int], max_new_tokens: int) -> Any:
        """As of RadixCache; a chunk of a prompt is asked what it tracks, decoded tokens track multiples."""
        req = self._reqs[request]
        self._check_result(request, req)
        start = req.kv.kv_allocated_len
        slots = super().extend(request, tokens, max_new_tokens)
        req.is_in_flight = True
        if not req.is_decoding:
            return slots, *self._prefill(req, start)
        own, stop = int(req.kv.mamba_pool_idx) - 1, req.kv.kv_allocated_len
        req.tracked = stop // self._track_grid * self._track_grid
        if req.tracked <= start:
            req.tracked = None
            return slots, own, own, [], []
        return slots, own, own, [req.tracked], [self._tracking(req, req.kv.mamba_next_track_idx)]

    def commit(self, request: int) -> None:
        """`checkpoint` what was prefilled; note which slot has what was tracked in decoding."""
        req = self._reqs[request]
        req.is_in_flight = False
        if not req.is_decoding:
            self._tree.checkpoint(req, up_to=req.kv.kv_allocated_len)
        elif req.tracked is not None:
            kv, at = req.kv, req.kv.mamba_next_track_idx
            kv.mamba_last_track_idx, kv.mamba_prev_track_seqlen = at, kv.mamba_last_track_seqlen
            kv.mamba_last_track_seqlen, req.tracked = req.tracked, None
            kv.mamba_next_track_idx = self._rows.get_mamba_ping_pong_other_idx(at)

    def finish(self, request: int) -> None:
        """`release_kv_cache` with a checkpoint."""
        req = self._reqs[request]
        self._check_result(request, req)
        req.has_ended = True
        common.release_kv_cache(self._reqs.pop(request), self._tree, checkpoint=True)

    def abort(self, request: int) -> None:
        """`release_kv_cache` without one."""
        common.release_kv_cache(self._reqs.pop(request), self._tree, checkpoint=False)

    def num_free(self) -> int:
        """`available_size` and `full_evictable_size`."""
        return int(self._pages.available_size() + self._tree.full_evictable_size()) // self._size

    def num_free_states(self) -> int:
        """`available_size` of the state slots and `mamba_evictable_size`."""
        return int(self._rows.mamba_allocator.available_size() + self._tree.mamba_evictable_size())

    def _check_result(self, request: int, req: Req) -> None:
        """The scheduler waits for the result of a batch before it touches its requests again."""
        if req.is_in_flight:
            raise OwnershipError(f"request {request} is in a batch whose result is not there")

    def _prefill(self, req: Req, start: int) -> tuple[int, int, list[int], list[int]]:
        """Return what a prefill reads and writes of states."""
        req.prefix_len, req.extend_end = start, req.kv.kv_allocated_len
        req.extend_len = req.extend_end - start
        track = batches.ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend(self._batch, req)
        batches.ScheduleBatch._collect_deferred_mamba_cow_and_clear(self._batch, [req])
        own = int(req.kv.mamba_pool_idx) - 1
        source = own if start else ZEROS
        if self._batch.mamba_cow_src_indices is not None:
            source = int(self._batch.mamba_cow_src_indices[0]) - 1
        if not track.track_mask:
            return source, own, [], []
        return source, own, [req.kv.mamba_last_track_seqlen], [self._tracking(req, track.track_position)]

    def _tracking(self, req: Req, at: int) -> int:
        """Return a state slot that a request tracks in."""
        return int(req.kv.mamba_ping_pong_track_buffer[at]) - 1


def _configure(chunk: int, interval: int) -> None:
    """Let the cache read of the server's arguments what a model with such a chunk has, and the interval."""
    mamba = SimpleNamespace(
        enable_mamba_extra_buffer=True,
        enable_mamba_extra_buffer_lazy=False,
        enable_int8_mamba_checkpoint=False,
        mamba_max_states_per_path=-1,
        mamba_track_interval=interval,
    )
    context._CONTEXT._config_bags = {
        "exec": SimpleNamespace(mamba=mamba),
        "serving": SimpleNamespace(strip_thinking_cache=False),
        "spec": SimpleNamespace(speculative_algorithm=None),
    }
    context.get_parallel().override_permanently(dcp_enabled=False)
    context._CONTEXT._server_args = SimpleNamespace(_mamba_cache_chunk_size=chunk)


def _state_params() -> Any:
    """Return the shapes of a state that is as small as can be."""
    return SimpleNamespace(
        shape=SimpleNamespace(conv=[(1, 1)], temporal=(1, 1, 1)),
        dtype=SimpleNamespace(conv=torch.float32, temporal=torch.float32),
        is_kda=False,
    )


class SglangMambaCache:
    """`snapshot_cache` by UnifiedRadixCache with a Mamba component."""

    claims = Claims(
        name="SGLang UnifiedRadixCache, hybrid",
        version=version("sglang"),
        block_sizes=(4, 1, 3, 16),
        features=("adapter", "salt"),
        choices={
            "null-block": "reserved",
            "eviction-order": "lru_node_renewed",
            "running-states": "several",
            "snapshot-saves": "unspecified",
        },
    )
    snapshot_cache = Cache
