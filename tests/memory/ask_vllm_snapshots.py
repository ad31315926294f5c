"""vLLM's KVCacheManager for a hybrid model on drawn programs, asked in its own interpreter: prints JSON.

    python tests/memory/ask_vllm_snapshots.py > tests/data/vllm_hybrid_manager.json

Two groups, full attention and Mamba in mode "align", share one pool of blocks. A step is [operation,
request, …]: admit with tokens and the most to schedule, extend with decoded tokens and the most, finish, and
step, which says that all that was scheduled is done. What is recorded: hit, junction, where the step ends and
both rows of an admission; where it ends and both rows of an extension; null where the manager refused; and
how many blocks are free after the step. Where a step ends is asked of the scheduler.
"""

import contextlib
import json
import random
import sys
from types import SimpleNamespace
from typing import Any

with contextlib.redirect_stdout(sys.stderr):
    import torch  # type: ignore[import-not-found, unused-ignore]
    import vllm  # type: ignore[import-not-found, unused-ignore]
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256_cbor
    from vllm.v1.core import kv_cache_utils as utils
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        MambaSpec,
        SlidingWindowSpec,
    )
    from vllm.v1.request import Request

NUM_BLOCKS, BLOCK_SIZE, PROGRAMS, STEPS = 16, 4, 24, 80
PROMPT, HITS = 41, 160


def program(seed: int) -> list[list[Any]]:
    """Steps of requests whose prompts share stems, on a pool that is too small for all of them."""
    draw = random.Random(seed)
    stems = [[draw.randrange(3) for _ in range(24)] for _ in range(3)]
    steps: list[list[Any]] = []
    live: list[int] = []
    for number in range(STEPS):
        kind = draw.choice(["admit", "admit", "extend", "extend", "extend", "finish", "step", "step"])
        if kind == "step":
            steps.append(["step", 0])
        elif kind == "admit" or not live:
            tokens = draw.choice(stems)[: draw.randrange(1, 25)] + [draw.randrange(3)] * draw.randrange(5)
            steps.append(["admit", number, tokens, draw.choice([3, 5, 9, 100, 100])])
            live.append(number)
        elif kind == "extend":
            decoded = [draw.randrange(3) for _ in range(draw.choice([0, 1, 1, 1, 3]))]
            steps.append(["extend", draw.choice(live), decoded, draw.choice([1, 5, 100])])
        else:
            steps.append(["finish", live.pop(draw.randrange(len(live)))])
    return steps


class Manager:
    """One manager and the requests it has admitted."""

    def __init__(self) -> None:
        full = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=8, dtype=torch.float16)
        states = MambaSpec(
            block_size=BLOCK_SIZE, shapes=((8, 8),), dtypes=(torch.float16,), mamba_cache_mode="align"
        )
        groups = [KVCacheGroupSpec(["attention"], full), KVCacheGroupSpec(["mamba"], states)]
        self.manager = KVCacheManager(KVCacheConfig(NUM_BLOCKS, [], groups), 4096, BLOCK_SIZE, BLOCK_SIZE)
        self.hasher = utils.get_request_block_hasher(BLOCK_SIZE, sha256_cbor)
        self.live: dict[int, Any] = {}
        self.scheduled: set[int] = set()

    def admit(self, number: int, tokens: list[int], most: int) -> Any:
        """Look up, allocate, and say what was found."""
        request = Request(str(number), tokens, SamplingParams(max_tokens=99), None, block_hasher=self.hasher)
        blocks, hit, junction = self.manager.get_computed_blocks(request)
        request.shared_prefix_boundary = junction
        count = self.split(request, min(most, len(tokens) - hit), hit, most)
        if self.manager.allocate_slots(request, count, hit, blocks) is None:
            return None
        request.num_computed_tokens = hit + count
        self.live[number] = request
        self.scheduled.add(number)
        return [hit, junction, hit + count, *self.rows(number)]

    def extend(self, number: int, decoded: list[int], most: int) -> Any:
        """Let decoded tokens join once the last step is done, and schedule the next."""
        request = self.live.get(number)
        if request is None or number in self.scheduled:
            return None
        known = request.num_tokens
        for token in decoded:
            request.append_output_token_ids(token)
        count = request.num_tokens - request.num_computed_tokens
        count = self.split(request, min(most, count), 0, most) if count else 0
        if not count:
            return None if known == request.num_tokens else 1 / 0
        if self.manager.allocate_slots(request, count) is None:
            self.forget(request, known)
            return None
        request.num_computed_tokens += count
        self.scheduled.add(number)
        return [request.num_computed_tokens, *self.rows(number)]

    def finish(self, number: int) -> None:
        """Free a request whose steps are done."""
        if number in self.live and number not in self.scheduled:
            self.manager.free(self.live.pop(number))

    def step(self, _: int) -> None:
        """What was scheduled is done."""
        self.scheduled.clear()
        self.manager.new_step_starts()

    def split(self, request: Any, count: int, hit: int, most: int) -> int:
        """How many tokens the scheduler lets a step have."""
        scheduler = SimpleNamespace(
            cache_config=SimpleNamespace(block_size=BLOCK_SIZE),
            block_size=BLOCK_SIZE,
            hash_block_size=BLOCK_SIZE,
            mamba_partial_cache_hit=False,
            use_eagle_block_drop=False,
            mamba_has_prefill_checkpoint_blocks=False,
            mamba_prefill_checkpoint_alignment=None,
            mamba_shared_prefix_checkpoint=False,
            max_num_scheduled_tokens=most,
            scheduler_config=SimpleNamespace(long_prefill_token_threshold=0),
        )
        found: int = Scheduler._mamba_block_aligned_split(scheduler, request, count, hit)
        return found

    def forget(self, request: Any, known: int) -> None:
        """Take back tokens that joined in vain."""
        count = known - request.num_prompt_tokens
        del request._output_token_ids[count:], request._all_token_ids[known:]
        del request.block_hashes[known // BLOCK_SIZE :]

    def rows(self, number: int) -> list[list[int]]:
        """The block ids of a request, group by group; 0 is null."""
        return [list(row) for row in self.manager.get_block_ids(str(number))]


def joint_hit(draw: random.Random) -> dict[str, Any]:
    """The hit of a prompt of which some blocks and states were evicted."""
    large = draw.choice([BLOCK_SIZE, 2 * BLOCK_SIZE])
    window, sizes = draw.choice([2, 3, 4, 5, 6, 9, 13]), [large, BLOCK_SIZE, large]
    kinds = {"num_kv_heads": 1, "head_size": 8, "dtype": torch.float16}
    groups = [
        KVCacheGroupSpec(["attention"], FullAttentionSpec(block_size=sizes[0], **kinds)),
        KVCacheGroupSpec(["window"], SlidingWindowSpec(block_size=sizes[1], sliding_window=window, **kinds)),
        KVCacheGroupSpec(
            ["mamba"],
            MambaSpec(
                block_size=sizes[2], shapes=((8, 8),), dtypes=(torch.float16,), mamba_cache_mode="align"
            ),
        ),
    ]
    manager = KVCacheManager(KVCacheConfig(200, [], groups), 4096, max(sizes), BLOCK_SIZE)
    hasher = utils.get_request_block_hasher(BLOCK_SIZE, sha256_cbor)
    first, again = (
        Request(name, list(range(PROMPT)), SamplingParams(max_tokens=9), None, block_hasher=hasher)
        for name in "ab"
    )
    manager.get_computed_blocks(first)
    ids: dict[tuple[int, int], int] = {}
    while first.num_computed_tokens < PROMPT:
        count = min(max(sizes), PROMPT - first.num_computed_tokens)
        assert manager.allocate_slots(first, count) is not None
        first.num_computed_tokens += count
        for group, row in enumerate(manager.get_block_ids("a")):
            ids.update({(group, at): block for at, block in enumerate(row) if block})
        manager.new_step_starts()
    manager.free(first)
    share = draw.choice([0.1, 0.3, 0.5])
    gone = sorted(place for place in ids if draw.random() < share * (1 if place[0] == 2 else 0.5))
    manager.evict_blocks({ids[place] for place in gone})
    _, hit, _ = manager.get_computed_blocks(again)
    return {"window": window, "block_sizes": sizes, "gone": [list(place) for place in gone], "hit": hit}


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
    about = f"KVCacheManager of vLLM {vllm.__version__}, full attention and Mamba in mode align"
    print(f'{{"about": "{about}",\n"num_blocks": {NUM_BLOCKS}, "block_size": {BLOCK_SIZE},')
    print(f'"programs": [\n{lines}\n],')
    draw = random.Random(0)
    lines = ",\n".join(json.dumps(joint_hit(draw)) for _ in range(HITS))
    print(f'"prompt": {PROMPT}, "hits": [\n{lines}\n]}}')


main()
