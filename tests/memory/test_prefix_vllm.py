"""The profile `vllm` against vLLM's KVCacheManager: the same blocks for the same requests, step by step."""

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kvref.errors import OutOfBlocksError, UnknownRequestError
from kvref.memory.prefix_cache import PrefixCache

RECORDED = Path(__file__).parents[1] / "data" / "vllm_kv_cache_manager.json"
SCRIPT = Path(__file__).parent / "ask_vllm_cache.py"


@cache
def recorded() -> dict[str, Any]:
    """Programs, and what vLLM 0.32.0 did."""
    found: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return found


def done(cache: PrefixCache, name: str, request: int, arguments: list[Any]) -> Any:
    """Do one step; return the hit and the blocks, or None where it was refused."""
    size = cache.block_size
    try:
        if name == "admit":
            tokens, most = arguments
            admission = cache.admit(request, tokens, max_new_tokens=most)
            return [admission.num_cached_tokens, [slot // size for slot in admission.slots[::size]]]
        if name == "extend":
            tokens, most = arguments
            cache.extend(request, tokens, max_new_tokens=most)
            return [slot // size for slot in cache.slots(request)[::size]]
        cache.commit(request)
        cache.finish(request)
    except (OutOfBlocksError, UnknownRequestError):
        pass
    return None


@pytest.mark.parametrize("number", range(12))
def test_blocks_are_those_of_vllm(number: int) -> None:
    """Hits, ids of blocks, refusals and free blocks; so the order in which blocks go is the same too."""
    cache = PrefixCache(recorded()["num_blocks"], "vllm", recorded()["block_size"])
    for name, request, *arguments, found, num_free in recorded()["programs"][number]:
        assert (done(cache, name, request, arguments), cache.num_free) == (found, num_free)
        cache.check_invariants()


def test_programs_hit_evict_and_refuse() -> None:
    """What a program never does cannot disagree."""
    steps = [step for program in recorded()["programs"] for step in program]
    admitted = [found for name, *_, found, _ in steps if name == "admit"]
    assert len(recorded()["programs"]) == 12
    assert sum(found is None for found in admitted) > 20
    assert sum(found is not None and found[0] > 0 for found in admitted) > 50
    assert sum(name == "extend" and found is not None for name, *_, found, _ in steps) > 50


def test_vllm_still_does_so() -> None:
    """The record is what the script prints, asked now."""
    if "KVREF_VLLM_PYTHON" not in os.environ:
        pytest.skip("KVREF_VLLM_PYTHON does not name an interpreter with vLLM")
    command = [os.environ["KVREF_VLLM_PYTHON"], str(SCRIPT)]
    answer = subprocess.run(command, capture_output=True, check=False, text=True, timeout=600)
    assert answer.returncode == 0, answer.stderr[-2000:]
    assert json.loads(answer.stdout)["programs"] == recorded()["programs"]
