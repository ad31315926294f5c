"""SGLang's RadixCache over its paged allocator, called as its scheduler calls them.

A request is matched up to its last token but one, its node is locked, its pages are allocated by the
functions of `mem_cache.allocation`, which evict first, and a row of `ReqToTokenPool` says where it lies.
Several decoded tokens are allocated at once, as for speculative decoding. A prompt is put into the tree by
`checkpoint` after each chunk; what is decoded waits for the end. Admission is refused where `PrefillBudget`
says so, a decoded token where `check_decode_capacity` does; the reserve of `PrefillAdder` for tokens to come
is left out. The `Req` is a stand-in with the attributes that are read, and the adapter keeps one for each
request.

Choices: page 0 is never handed out; a node goes as a whole, and one that is split was used in both halves.
Source: SGLang 0.5.23, python/sglang/srt/mem_cache/{radix_cache,allocation,common,prefill_budget}.py,
mem_cache/allocator/{token,paged}.py, managers/{schedule_policy,scheduler,schedule_batch}.py.
"""

from array import array
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from kvref.errors import OutOfBlocksError, OwnershipError
from kvref_conformance.claims import Claims

try:
    import msgspec
    import torch

    from kvref_conformance.subjects.sglang_parts import part

    radix_cache, allocation, base = part("radix_cache"), part("allocation"), part("base_prefix_cache")
    params, pools, allocator = part("cache_init_params"), part("memory_pool"), part("allocator")
except ImportError as error:
    raise ImportError(
        "the subject sglang_radix_cache needs SGLang: pip install --no-deps sglang==0.5.23, and PyTorch"
    ) from error

#: Requests that may be there at one time, at least: a server has thousands.
ROWS = 512


class ReqKv:
    """What a request holds outside the tree, as `ReqKvInfo`."""

    swa_evict_floor = 0

    def __init__(self, hit: int) -> None:
        self.req_pool_idx: int | None = None
        self.cache_protected_len = hit
        self.cache_inserted_len = 0
        self.kv_allocated_len = 0

    @property
    def holds_kv(self) -> bool:
        """Whether it has a row."""
        return self.req_pool_idx is not None

    def get_evicted_seqlen(self, component: Any) -> int:
        """Return 0: there is no window."""
        return 0

    def swa_dead_lo(self, page_size: int) -> int:
        """Return where a window might begin to let go."""
        return self.cache_protected_len


class Req:
    """What the cache reads of a request."""

    priority = session = session_id = kv_rotation_base = None

    def __init__(self, key: Any, hit: int, lock: Any, node: Any) -> None:
        self.kv: Any = ReqKv(hit)
        self.lock, self.last_node = lock, node
        self.extra_key, self.cache_salt = key.extra_key, key.cache_salt
        self.lora_id = key.extra_key
        self.origin_input_ids = key.token_ids
        self.full_untruncated_fill_ids = key.token_ids[:]
        self.has_ended = False

    @property
    def is_decoding(self) -> bool:
        """Whether tokens have joined its prompt."""
        return len(self.full_untruncated_fill_ids) > len(self.origin_input_ids)

    def finished(self) -> bool:
        """Whether its last checkpoint is due."""
        return self.has_ended


class Cache:
    """A tree, an allocator and the rows of requests."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._size = block_size
        tokens = (num_blocks - 1) * block_size
        self._pages = pages_of(tokens, block_size)
        rows = max(num_blocks, ROWS)  # requests share blocks, so there may be more of them
        self._rows = pools.ReqToTokenPool(rows, tokens + 1, "cpu", enable_memory_saver=False)
        self._adapters = part("events").KvEventLoraNames()
        self._tree = self.tree(
            kv_event_lora_names=self._adapters,
            disable=False,
            req_to_token_pool=self._rows,
            token_to_kv_pool_allocator=self._pages,
            page_size=block_size,
            enable_kv_cache_events=True,
        )
        self._reqs: dict[int, Any] = {}

    def tree(self, **given: Any) -> Any:
        """Return a tree over the pools."""
        return radix_cache.RadixCache(params.CacheInitParams(**given))

    def admit(
        self, request: int, tokens: Sequence[int], max_new_tokens: int, *, adapter: str = "", salt: str = ""
    ) -> tuple[int, list[int]]:
        """`match_prefix`, `lock`, the budget of a prefill, `alloc_for_extend`."""
        if request in self._reqs:
            raise KeyError(f"request {request} has a Req")
        ids = array("q", tokens)
        key = radix_cache.RadixKey(ids, adapter or None, limit=len(ids) - 1, cache_salt=salt or None)
        found = self._tree.match_prefix(base.MatchPrefixParams(key=key))
        hit, node = found.device_prefix_len, found.last_device_node
        req = Req(key, hit, self._tree.lock(node), node)
        self._adapters.register(req, adapter)
        try:
            self._budget(len(ids) - hit)
            (req.kv.req_pool_idx,) = self._rows.alloc([req])
            self._rows.write((req.kv.req_pool_idx, slice(0, hit)), self._tree.path_device_indices(node))
            self._allocate(req, hit, min(hit + max_new_tokens, len(ids)))
        except Exception:
            self._tree.unlock(req.lock)
            if req.kv.holds_kv:
                self._rows.free(req)
            raise
        self._reqs[request] = req
        return hit, self.slots(request)

    def extend(self, request: int, tokens: Sequence[int], max_new_tokens: int) -> list[int]:
        """The budget of a prefill, or `check_decode_capacity`; then pages for the new tokens."""
        req = self._reqs[request]
        start = req.kv.kv_allocated_len
        stop = min(start + max_new_tokens, len(req.full_untruncated_fill_ids) + len(tokens))
        if tokens:
            pages = self._new_pages(start, stop)
            if not self._pages.check_decode_capacity(num_tokens=pages * self._size, tree_cache=self._tree):
                raise OutOfBlocksError("check_decode_capacity() = False")
        else:
            self._budget(self._new_pages(start, stop) * self._size)
        req.full_untruncated_fill_ids += array("q", tokens)
        self._allocate(req, start, stop)
        return self.slots(request)[start:]

    def commit(self, request: int) -> None:
        """`checkpoint` what was prefilled; decoded tokens wait for the end."""
        req = self._reqs[request]
        if not req.is_decoding:
            self._tree.checkpoint(req, up_to=req.kv.kv_allocated_len)

    def slots(self, request: int) -> list[int]:
        """Return the row of a request."""
        kv = self._reqs[request].kv
        return [int(slot) for slot in self._rows.req_to_token[kv.req_pool_idx, : kv.kv_allocated_len]]

    def finish(self, request: int) -> None:
        """`release_kv_cache` with a checkpoint."""
        req = self._reqs[request]
        req.has_ended = True
        self._tree.checkpoint(req, up_to=req.kv.kv_allocated_len)
        self.abort(request)

    def abort(self, request: int) -> None:
        """`release_kv_cache` without a checkpoint, as for a request that is retracted."""
        req = self._reqs.pop(request)
        self._tree.free_kv_row(req.kv, [(req.kv.cache_protected_len, req.kv.kv_allocated_len)])
        self._tree.unlock(req.lock)
        self._rows.free(req)

    def num_free(self) -> int:
        """`available_size` and `evictable_size`, in pages."""
        return int(self._pages.available_size() + self._tree.evictable_size()) // self._size

    def reset(self) -> None:
        """`flush_cache`, which the scheduler refuses unless it is idle."""
        if self._reqs:
            raise OwnershipError("the scheduler is not idle")
        self._tree.reset()
        self._rows.clear()
        self._pages.clear()

    def take_events(self) -> str:
        """`take_events`, in msgspec's own JSON."""
        return str(msgspec.json.encode(self._tree.take_events()), "utf-8")

    def _new_pages(self, start: int, stop: int) -> int:
        return -(-stop // self._size) + -start // self._size

    def _budget(self, num_tokens: int) -> None:
        """Ask for room to prefill so many tokens, with the prefix of the request locked."""
        budget = self._pages.create_prefill_budget(self._tree)
        fits = budget.can_allocate_prefill(
            paged_input=budget.ceil_paged_tokens(num_tokens),
            extend_input_len=num_tokens,
            max_new_tokens=0,
            chunk_limit=None,
        )
        if not fits:
            raise OutOfBlocksError("can_allocate_prefill() = False")

    def _allocate(self, req: Req, start: int, stop: int) -> None:
        """Let positions of a request have slots, and write them into its row."""
        if self._size == 1:
            slots = allocation.alloc_token_slots(self._tree, stop - start)
        else:
            row = self._rows.req_to_token[req.kv.req_pool_idx]
            before, behind = torch.tensor([start]), torch.tensor([stop])
            slots = allocation.alloc_paged_token_slots_extend(
                tree_cache=self._tree,
                prefix_lens=before,
                prefix_lens_cpu=before,
                seq_lens=behind,
                seq_lens_cpu=behind,
                last_loc=row[start - 1 : start].long() if start else torch.tensor([-1]),
                extend_num_tokens=stop - start,
            )
        self._rows.write((req.kv.req_pool_idx, slice(start, stop)), slots)
        req.kv.kv_allocated_len = stop


def pages_of(num_tokens: int, page_size: int) -> Any:
    """Return the allocator of so many tokens, in pages."""
    given = {"dtype": torch.float32, "device": "cpu", "kvcache": None, "need_sort": False}
    if page_size == 1:
        return allocator.TokenToKVPoolAllocator(num_tokens, **given)
    return allocator.PagedTokenToKVPoolAllocator(num_tokens, page_size=page_size, **given)


class SglangRadixCache:
    """`prefix_cache` by RadixCache."""

    claims = Claims(
        name="SGLang RadixCache",
        version=version("sglang"),
        block_sizes=(4, 1, 3, 16),
        features=("adapter", "salt", "events"),
        choices={"null-block": "reserved", "eviction-order": "lru_node_renewed"},
    )
    prefix_cache = Cache
