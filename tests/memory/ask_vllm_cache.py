"""vLLM's KVCacheManager on drawn programs, asked in its own interpreter: prints what it did as JSON.

    python tests/memory/ask_vllm_cache.py > tests/data/vllm_kv_cache_manager.json

A step is [operation, request, …]: admit with tokens and the most to schedule, extend with decoded tokens and
the most, finish. What is recorded: hit and blocks of an admission, blocks of an extension, or null where the
manager refused, and how many blocks are free after the step.
"""

import contextlib
import json
import random
import sys
from typing import Any

with contextlib.redirect_stdout(sys.stderr):
    import torch  # type: ignore[import-not-found, unused-ignore]
    import vllm  # type: ignore[import-not-found, unused-ignore]
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256_cbor
    from vllm.v1.core import kv_cache_utils as utils
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.request import Request

NUM_BLOCKS, BLOCK_SIZE, PROGRAMS, STEPS = 12, 4, 12, 60


def program(seed: int) -> list[list[Any]]:
    """Steps of requests whose prompts share stems, on a pool that is too small for all of them."""
    draw = random.Random(seed)
    stems = [[draw.randrange(3) for _ in range(16)] for _ in range(3)]
    steps: list[list[Any]] = []
    live: list[int] = []
    for number in range(STEPS):
        kind = draw.choice(["admit", "admit", "extend", "finish", "finish"])
        if kind == "admit" or not live:
            tokens = draw.choice(stems)[: draw.randrange(1, 17)] + [draw.randrange(3)] * draw.randrange(4)
            steps.append(["admit", number, tokens, draw.choice([3, 100, 100])])
            live.append(number)
        elif kind == "extend":
            decoded = [draw.randrange(3) for _ in range(draw.randrange(1, 6))]
            steps.append(["extend", draw.choice(live), decoded, draw.choice([1, 100])])
        else:
            steps.append(["finish", live.pop(draw.randrange(len(live)))])
    return steps


class Manager:
    """One manager and the requests it has admitted."""

    def __init__(self) -> None:
        spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=8, dtype=torch.float16)
        config = KVCacheConfig(NUM_BLOCKS, [], [KVCacheGroupSpec(["layer"], spec)])
        self.manager = KVCacheManager(config, 4096, BLOCK_SIZE, BLOCK_SIZE)
        self.hasher = utils.get_request_block_hasher(BLOCK_SIZE, sha256_cbor)
        self.live: dict[int, Any] = {}

    def admit(self, number: int, tokens: list[int], most: int) -> Any:
        """Look up, allocate, and say what was found."""
        request = Request(str(number), tokens, SamplingParams(max_tokens=99), None, block_hasher=self.hasher)
        blocks, hit, *_ = self.manager.get_computed_blocks(request)
        count = min(most, len(tokens) - hit)
        if self.manager.allocate_slots(request, count, hit, blocks) is None:
            return None
        request.num_computed_tokens = hit + count
        self.live[number] = request
        return [hit, self.blocks(number)]

    def extend(self, number: int, decoded: list[int], most: int) -> Any:
        """Schedule what is not computed, then let decoded tokens join and schedule those."""
        request = self.live.get(number)
        if request is None:
            return None
        behind = request.num_tokens - request.num_computed_tokens
        count = min(most, behind + len(decoded))
        needed = -(-(request.num_computed_tokens + count) // BLOCK_SIZE) - len(self.blocks(number))
        if needed > self.manager.block_pool.get_num_free_blocks():
            return None
        for token in decoded:
            request.append_output_token_ids(token)
        assert self.manager.allocate_slots(request, count) is not None
        request.num_computed_tokens += count
        return self.blocks(number)

    def finish(self, number: int) -> None:
        """Free a request."""
        if number in self.live:
            self.manager.free(self.live.pop(number))

    def blocks(self, number: int) -> list[int]:
        """The block ids of a request."""
        return list(self.manager.get_block_ids(str(number))[0])


def main() -> None:
    """Print the programs and what came of them."""
    utils.init_none_hash(sha256_cbor)
    programs = []
    for seed in range(PROGRAMS):
        manager, steps = Manager(), []
        for name, *arguments in program(seed):
            found = getattr(manager, name)(*arguments)
            steps.append([name, *arguments, found, manager.manager.block_pool.get_num_free_blocks()])
        programs.append(steps)
    lines = ",\n".join(json.dumps(steps) for steps in programs)
    about = f"KVCacheManager of vLLM {vllm.__version__} on drawn programs, by ask_vllm_cache.py"
    print(f'{{"about": "{about}",\n"num_blocks": {NUM_BLOCKS}, "block_size": {BLOCK_SIZE},')
    print(f'"programs": [\n{lines}\n]}}')


main()
