"""Transformers' paged cache of continuous batching, under its scheduler's order of calls.

A request is admitted by `search_prefix_match` and `can_store_request_tokens`, and extended by the second.
If there is no room, everything that is cached is evicted and the call made once more, as `prepare_next_batch`
does; if there still is none, the request is reset, which frees its blocks with `no_cache`. When the step has
run, `mark_complete_blocks` is called. Numbers of requests become texts; ids of blocks are counted from behind
the two sectors that are never handed out.

Choices: all that is cached and that nobody holds goes at once.
Source: transformers 5.24.0, generation/continuous_batching: cache.py, scheduler.py, continuous_api.py,
offloading_manager.py, cache_allocators.
"""

from collections.abc import Sequence

from kvref.errors import OutOfBlocksError
from kvref_conformance.claims import Claims

try:
    import torch
    import transformers
    from transformers import LlamaConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig
    from transformers.generation.continuous_batching.cache import PagedAttentionCache
    from transformers.generation.continuous_batching.distributed import DistributedHelper
    from transformers.generation.continuous_batching.requests import RequestState
except ImportError as error:
    raise ImportError(
        "the subject transformers_continuous_cache needs transformers and PyTorch: "
        "pip install transformers==5.24.0 torch==2.13.0"
    ) from error

#: One layer with one head of 32 channels: a block is a sector then, of whatever page size.
MODEL = LlamaConfig(
    num_hidden_layers=1, hidden_size=32, num_attention_heads=1, num_key_value_heads=1, vocab_size=32
)


class Paged:
    """A cache over one group of full attention, and the state of each request."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._cache = PagedAttentionCache(
            MODEL,
            ContinuousBatchingConfig(
                page_size=block_size, num_blocks=num_blocks, max_batch_tokens=64, max_memory_percent=0.9
            ),
            "cpu",
            DistributedHelper(None, None),
            dtype=torch.float32,
        )
        (self._layers,) = self._cache.cache_allocators.values()
        self._first = self._cache.pool.num_reserved_sectors * self._layers.blocks_per_sector
        self._states: dict[int, RequestState] = {}

    def num_free(self) -> int:
        """Count the blocks of free sectors, the free blocks of others, and those cached for nobody."""
        pool, layers = self._cache.pool, self._layers
        free = pool.num_free_sectors * layers.blocks_per_sector + pool.count_free_blocks(layers.index)
        return int(free) + len(layers.ledger.cached_blocks)

    def _slots(self, state: RequestState, start: int, count: int) -> list[int]:
        """`get_write_indices`, as slots: an index counts rows of a block that holds keys and values."""
        size, stride = self._layers.tokens_per_page, self._layers.block_physical_stride
        rows = self._layers.get_write_indices(state.request_id, start, count) if count else []
        return [(row // stride - self._first) * size + row % stride for row in rows]


class Tables(Paged):
    """Requests without contents: what is appended is stored, and nothing is ever complete."""

    def __init__(self, num_blocks: int, block_sizes: Sequence[int]) -> None:
        super().__init__(num_blocks, *block_sizes)

    def add(self, request: int) -> None:
        """Begin a request."""
        if request in self._states:
            raise KeyError(f"request {request} has a state")
        self._states[request] = RequestState(str(request), [])

    def append(self, request: int, num_tokens: int) -> dict[str, list[int]]:
        """`can_store_request_tokens`."""
        state = self._states[request]
        if not self._cache.can_store_request_tokens(state, num_tokens):
            raise OutOfBlocksError("can_store_request_tokens() = False")
        slots = self._slots(state, state.position_offset, num_tokens)
        state.position_offset += num_tokens
        return {"slots": slots, **{f"copy_{name}": [] for name in ("sources", "targets", "counts", "groups")}}

    def free(self, request: int) -> None:
        """`free_blocks`."""
        self._cache.free_blocks(self._states.pop(request).request_id)

    def block_table(self, request: int, group: int) -> list[int]:
        """Return the row of `block_table`."""
        table = self._layers.block_table.get(self._states[request].request_id, [])
        return [block - self._first for block in table]


class Cache(Paged):
    """Requests with contents, whose complete blocks are shared."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self._complete: dict[int, dict[str, int]] = {}

    def admit(self, request: int, tokens: Sequence[int], max_new_tokens: int) -> tuple[int, list[int]]:
        """`search_prefix_match`, then `can_store_request_tokens`."""
        state = RequestState(str(request), list(tokens))
        hit = self._cache.search_prefix_match(state.request_id, state.initial_tokens)
        state.position_offset = hit
        new = min(max_new_tokens, len(tokens) - hit)
        if not self._store(state, new):
            self._cache.free_blocks(state.request_id, no_cache=True)
            raise OutOfBlocksError("can_store_request_tokens() = False")
        self._states[request] = state
        self._schedule(request, new)
        return hit, self.slots(request)

    def extend(self, request: int, tokens: Sequence[int], max_new_tokens: int) -> list[int]:
        """`can_store_request_tokens`, decoded tokens joined."""
        state = self._states[request]
        start, known = state.position_offset, len(state.initial_tokens) + len(state.generated_tokens)
        new = min(max_new_tokens, known + len(tokens) - start)
        if not self._store(state, new):
            raise OutOfBlocksError("can_store_request_tokens() = False")
        state.generated_tokens += tokens
        self._schedule(request, new)
        return self._slots(state, start, new)

    def commit(self, request: int) -> None:
        """`mark_complete_blocks`, with what was counted when the step was scheduled."""
        self._cache.mark_complete_blocks(self._states[request], self._complete.pop(request, {}))

    def slots(self, request: int) -> list[int]:
        """`get_write_indices` of all scheduled tokens."""
        state = self._states[request]
        return self._slots(state, 0, state.position_offset)

    def finish(self, request: int) -> None:
        """`free_blocks`."""
        self._complete.pop(request, None)
        self._cache.free_blocks(self._states.pop(request).request_id)

    def abort(self, request: int) -> None:
        """`free_blocks`, as for a request that is cancelled."""
        self.finish(request)

    def _store(self, state: RequestState, new: int) -> bool:
        if self._cache.can_store_request_tokens(state, new):
            return True
        self._cache.evict_cached_blocks()
        return bool(self._cache.can_store_request_tokens(state, new))

    def _schedule(self, request: int, new: int) -> None:
        state = self._states[request]
        self._complete[request] = self._cache.count_new_complete_blocks(state, new)
        state.position_offset += new


class TransformersContinuousCache:
    """`block_tables` and `prefix_cache` by PagedAttentionCache."""

    claims = Claims(
        name="transformers PagedAttentionCache",
        version=str(transformers.__version__),
        block_sizes=(4, 1, 3, 16),
        choices={"eviction-order": "all_at_once"},
    )
    block_tables = Tables
    prefix_cache = Cache
