"""SGLang's radix cache under a seeded load: records the events of its recorder, and what it answers.

    python tests/sanitizer/record_sglang.py tests/data/kv_events

Prompts are inserted, matched, locked and evicted, under salts and adapters, in both formats that SGLang
publishes. Of SGLang only the tree and its event recorder are imported; the rest is stood in for, so no GPU
library has to be there. Needs SGLang's wheel (`pip install --no-deps sglang==0.5.23`), torch and msgspec.
"""

import gzip
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import random
import sys
import types
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

#: Modules of SGLang that the tree names and never calls on these runs.
UNUSED = (
    "mem_cache.allocator",
    "mem_cache.memory_pool",
    "mem_cache.unified_cache",
    "observability",
    "runtime_context",
    "environ",
    "utils.common",
    "utils.network",
)


class Nothing(type):
    """A class whose every attribute is another such class, and whose objects do nothing when called."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing(name, (), {"__getattr__": lambda self, attribute: lambda *a, **k: None})

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        made: Any = object.__new__
        return made(cls)


class StandIn(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        return getattr(Nothing("StandIn", (), {}), name)


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules that are stood in for."""

    names = tuple(f"sglang.srt.{name}" for name in UNUSED)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        found = any(name == own or name.startswith(own + ".") for own in self.names)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if found else None

    def create_module(self, spec: Any) -> types.ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing."""


def module(name: str) -> Any:
    """Import a module of SGLang without the packages above it."""
    if "sglang" not in sys.modules:
        folder = Path(str(importlib.metadata.distribution("sglang").locate_file("sglang")))
        for package in ("sglang", "sglang.srt", "sglang.srt.utils", "sglang.srt.disaggregation"):
            made = types.ModuleType(package)
            made.__path__ = [str(folder.parent / package.replace(".", "/"))]
            sys.modules[package] = made
        sys.meta_path.insert(0, StandIns())
    return importlib.import_module(f"sglang.srt.{name}")


radix, base, init = (
    module(f"mem_cache.{name}") for name in ("radix_cache", "base_prefix_cache", "cache_init_params")
)
recorder, published = module("mem_cache.events"), module("disaggregation.kv_events")
msgspec, torch = importlib.import_module("msgspec"), importlib.import_module("torch")

#: Adapter -> the id that SGLang puts at the end of a request's extra key.
ADAPTERS = {"sql": "5" * 32, "law": "7" * 32}


class Pages:
    """A pool of pages."""

    device = "cpu"

    def __init__(self, num_pages: int, size: int) -> None:
        self.size, self.free = size, list(range(num_pages))

    def free_segment(self, slots: Any, start_pos: int = 0) -> None:
        self.free += [int(slot) // self.size for slot in slots[:: self.size]]

    def slots(self, pages: list[int]) -> Any:
        return torch.tensor([p * self.size + at for p in pages for at in range(self.size)], dtype=torch.int64)


class Cache:
    """A tree over pages, whose events are written down."""

    def __init__(self, size: int, *, dynamo: bool, num_pages: int = 40) -> None:
        self.size, self.pages, self.seq = size, Pages(num_pages, size), 0
        names = recorder.KvEventLoraNames()
        for name, own in ADAPTERS.items():
            names.register(SimpleNamespace(extra_key=own, lora_id=own), name)
        self.tree = radix.RadixCache(
            init.CacheInitParams(
                disable=False,
                req_to_token_pool=None,
                token_to_kv_pool_allocator=self.pages,
                page_size=size,
                eviction_policy="lru",
                enable_kv_cache_events=True,
                dynamo_kv_event_format=dynamo,
                kv_event_lora_names=names,
            )
        )
        self.lines: list[bytes] = []
        self.locks: list[Any] = []

    def drain(self) -> None:
        events = self.tree.kv_events.take()
        if events:
            batch = published.KVEventBatch(ts=self.seq / 64, events=events, attn_dp_rank=0)
            head = f'{{"seq":{self.seq},"batch":'.encode()
            self.lines.append(head + msgspec.json.encode(batch) + b"}")
            self.seq += 1

    def match(self, tokens: list[int], space: dict[str, str]) -> Any:
        """Ask the tree, and write down what it answers: all it holds, the last token too."""
        found = self.tree.match_prefix(base.MatchPrefixParams(key=key(tokens, space)))
        said = {name: space[name] for name in ("lora_name", "cache_salt") if name in space}
        asked = {"token_ids": tokens, "num_cached_tokens": int(found.device_prefix_len), "limit": len(tokens)}
        if "extra_key" not in space:  # events do not tell it, so nobody can ask a mirror for it
            self.lines.append(msgspec.json.encode({"lookup": asked | said}))
        return found

    def insert(self, tokens: list[int], space: dict[str, str]) -> None:
        whole = tokens[: len(tokens) // self.size * self.size]
        if not whole:
            return
        number = len(whole) // self.size
        short = number - len(self.pages.free)
        if short > 0:
            self.tree.evict(base.EvictParams(num_tokens=short * self.size))
        if number > len(self.pages.free):
            return
        own = [self.pages.free.pop() for _ in range(number)]
        put = base.InsertParams(key=key(whole, space), value=self.pages.slots(own), priority=0)
        present = self.tree.insert(put).prefix_len // self.size
        self.pages.free += own[:present]

    def reset(self, num_pages: int = 40) -> None:
        self.tree.reset()
        self.locks.clear()
        self.pages.free = list(range(num_pages))


def key(tokens: list[int], space: dict[str, str]) -> Any:
    """Tokens in a namespace, as SGLang's requests have them."""
    name = space.get("lora_name")
    extra = space.get("extra_key", ADAPTERS[name] if name else None)
    return radix.RadixKey(array("q", tokens), extra_key=extra, cache_salt=space.get("cache_salt"))


def run(seed: int, size: int, spaces: list[dict[str, str]], *, dynamo: bool, count: int = 120) -> list[bytes]:
    """Random operations in some namespaces."""
    rng, cache, known = random.Random(seed), Cache(size, dynamo=dynamo), list[list[int]]()
    for number in range(count):
        start = rng.choice(known)[: rng.randrange(40)] if known and rng.random() < 0.8 else []
        tokens = start + [rng.randrange(100, 40_000) for _ in range(rng.randrange(1, 16))]
        known.append(tokens)
        space = rng.choice(spaces)
        cache.drain()
        found = cache.match(tokens, space)
        if found.device_prefix_len and rng.random() < 0.2:
            cache.tree.inc_lock_ref(found.last_device_node)
            cache.locks.append(found.last_device_node)
        if cache.locks and rng.random() < 0.25:
            cache.tree.dec_lock_ref(cache.locks.pop(rng.randrange(len(cache.locks))))
        cache.insert(tokens, space)
        if rng.random() < 0.1:
            cache.tree.evict(base.EvictParams(num_tokens=size * rng.randrange(1, 6)))
        if number % 50 == 49:
            cache.reset()
    cache.drain()
    return cache.lines


def save(path: Path, lines: list[bytes]) -> None:
    """Write a file, the same bytes each time."""
    with path.open("wb") as plain, gzip.GzipFile("", "wb", 9, plain, mtime=0) as file:
        file.write(b"\n".join(lines) + b"\n")


def main() -> None:
    """Record all runs."""
    folder = Path(sys.argv[1])
    told = [{}, {"lora_name": "sql"}, {"lora_name": "law"}, {"cache_salt": "tenant-7"}]
    untold = [{}, {"extra_key": "a"}]
    save(folder / "sglang-told.jsonl.gz", run(1, 4, told, dynamo=False))
    save(folder / "sglang-told-dynamo.jsonl.gz", run(2, 4, told, dynamo=True))
    save(folder / "sglang-extra-key.jsonl.gz", run(3, 4, untold, dynamo=False, count=60))
    save(folder / "sglang-extra-key-dynamo.jsonl.gz", run(3, 4, untold, dynamo=True, count=60))
    print(json.dumps({"sglang": importlib.metadata.version("sglang")}), file=sys.stderr)


if __name__ == "__main__":
    main()
