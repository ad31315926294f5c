"""SGLang's radix cache, asked in an interpreter that can import its wheel: prints what it answered as JSON.

    python tests/memory/ask_sglang.py > tests/data/sglang_radix.json

Two kinds of run. `trees`: random matches, inserts, locks and evictions of the tree alone, each policy.
`caches`: requests that overlap, in chunks, through its `checkpoint`, with a pool of pages beside it. Of
SGLang only what the tree needs is imported; the rest is stood in for, so no GPU library has to be there.
"""

import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import random
import sys
import types
from array import array
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

#: Modules of SGLang that the tree names and never calls on these runs.
UNUSED = ("allocator", "memory_pool", "events", "unified_cache")
UNUSED_ELSEWHERE = ("observability", "runtime_context", "environ", "utils.common")
POLICIES = ("lru", "lfu", "fifo", "mru", "filo", "slru", "priority")


class Nothing(type):
    """A class whose every attribute is another such class, and whose objects do nothing when called."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing(name, (), {"__getattr__": lambda self, attribute: lambda *a, **k: None})

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        return object.__new__(cls)


class StandIn(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        return getattr(Nothing("StandIn", (), {}), name)


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules that are stood in for."""

    def __init__(self) -> None:
        self.names = [f"sglang.srt.mem_cache.{name}" for name in UNUSED]
        self.names += [f"sglang.srt.{name}" for name in UNUSED_ELSEWHERE]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        found = any(name == own or name.startswith(own + ".") for own in self.names)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if found else None

    def create_module(self, spec: Any) -> types.ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing."""


def radix_module() -> Any:
    """Import SGLang's radix cache without the packages above it."""
    folder = Path(str(importlib.metadata.distribution("sglang").locate_file("sglang")))
    for name, path in (
        ("sglang", folder),
        ("sglang.srt", folder / "srt"),
        ("sglang.srt.utils", folder / "srt/utils"),
    ):
        package = types.ModuleType(name)
        package.__path__ = [str(path)]
        sys.modules[name] = package
    sys.meta_path.insert(0, StandIns())
    return importlib.import_module("sglang.srt.mem_cache.radix_cache")


radix = radix_module()
torch = importlib.import_module("torch")
base = importlib.import_module("sglang.srt.mem_cache.base_prefix_cache")
init = importlib.import_module("sglang.srt.mem_cache.cache_init_params")


class Pages:
    """A pool of pages; what the tree frees is noted in the order of its nodes."""

    device = "cpu"

    def __init__(self, num_pages: int, size: int) -> None:
        self.size, self.free, self.noted = size, list(range(num_pages)), list[list[int]]()

    def free_segment(self, slots: Any, start_pos: int = 0) -> None:
        pages = [int(slot) // self.size for slot in slots[:: self.size]]
        self.noted.append(pages)
        self.free += pages

    def slots(self, pages: Sequence[int]) -> Any:
        return torch.tensor(
            [page * self.size + at for page in pages for at in range(self.size)], dtype=torch.int64
        )


def new_tree(policy: str, pages: Pages, rows: Any = None) -> Any:
    """A tree over pages."""
    return radix.RadixCache(
        init.CacheInitParams(
            disable=False,
            req_to_token_pool=rows,
            token_to_kv_pool_allocator=pages,
            page_size=pages.size,
            eviction_policy=policy,
        )
    )


def key(text: str, space: str = "") -> Any:
    """A text as tokens, one a letter."""
    return radix.RadixKey(array("q", map(ord, text)), extra_key=space or None)


def drawn(rng: random.Random, known: list[str]) -> str:
    """A text that often begins like one that came before."""
    start = rng.choice(known)[: rng.randrange(24)] if known and rng.random() < 0.8 else ""
    text = start + "".join(rng.choice("ab") for _ in range(rng.randrange(1, 14)))
    known.append(text)
    return text


def tree_run(policy: str, size: int, seed: int, count: int = 160) -> list[list[Any]]:
    """Random operations on a tree, each with what SGLang answered."""
    rng, pages = random.Random(f"{seed} {size}"), Pages(0, size)
    tree, steps, known = new_tree(policy, pages), list[list[Any]](), list[str]()
    locks: list[tuple[int, Any]] = []
    given = 0
    for at in range(count):
        kind = rng.choices(("match", "insert", "lock", "unlock", "evict"), (30, 40, 12, 8, 10))[0]
        space = rng.choice(("", "", "x"))
        if kind in ("match", "lock"):
            text = drawn(rng, known)
            found = tree.match_prefix(base.MatchPrefixParams(key=key(text, space)))
            if kind == "lock" and found.device_prefix_len:
                tree.inc_lock_ref(found.last_device_node)
                locks.append((at, found.last_device_node))
            steps.append([kind, text, space, found.device_prefix_len // size])
        elif kind == "insert":
            text, priority = drawn(rng, known), rng.randrange(3)
            number = len(text) // size
            own = range(given, given + number)
            given += number
            counted = rng.choice((0, 0, len(text) // 2 // size * size))
            put = base.InsertParams(
                key=key(text, space), value=pages.slots(own), priority=priority, inserted_len=counted
            )
            present = tree.insert(put).prefix_len // size if number else 0
            steps.append([kind, text, space, own.start, priority, counted // size, present])
        elif kind == "unlock" and locks:
            which, node = locks.pop(rng.randrange(len(locks)))
            tree.dec_lock_ref(node)
            steps.append([kind, which])
        elif kind == "evict":
            number, pages.noted = rng.randrange(1, 5), []
            tree.evict(base.EvictParams(num_tokens=number * size))
            steps.append([kind, number, [page for node in pages.noted for page in reversed(node)]])
        else:
            steps.append(["none"])
        steps[-1] += [tree.evictable_size() // size, tree.protected_size() // size]
    return steps


class Rows:
    """A row of slots a request, as wide as it needs."""

    def __init__(self, count: int, width: int) -> None:
        self.req_to_token = torch.zeros((count, width), dtype=torch.int64)

    def write(self, where: Any, slots: Any) -> None:
        self.req_to_token[where] = slots


class Server:
    """What SGLang's scheduler does around its tree: match, lock, allocate, checkpoint, release."""

    def __init__(self, policy: str, num_pages: int, size: int) -> None:
        self.pages, self.rows = Pages(num_pages, size), Rows(64, 512)
        self.tree, self.size = new_tree(policy, self.pages, self.rows), size
        self.live: dict[int, Any] = {}
        self.evicted = 0

    @property
    def available(self) -> int:
        return len(self.pages.free) + self.tree.evictable_size() // self.size

    def allocate(self, number: int) -> Any:
        short = number - len(self.pages.free)
        if short > 0:
            gone = self.tree.evict(base.EvictParams(num_tokens=short * self.size))
            self.evicted += gone.num_tokens_evicted // self.size
        taken = [self.pages.free.pop() for _ in range(number)]
        return self.pages.slots(taken)

    def admit(self, name: int, text: str, most: int) -> int:
        """SGLang's prefill batch: match all but the last token, lock, schedule a chunk."""
        found = self.tree.match_prefix(base.MatchPrefixParams(key=key(text[:-1])))
        hit, node = found.device_prefix_len, found.last_device_node
        kv = SimpleNamespace(
            req_pool_idx=name, cache_protected_len=hit, cache_inserted_len=0, swa_evict_floor=0
        )
        self.live[name] = SimpleNamespace(
            kv=kv,
            extra_key=None,
            cache_salt=None,
            priority=0,
            lock=self.tree.lock(node),
            last_node=node,
            full_untruncated_fill_ids=array("q", map(ord, text)),
            origin_input_ids=array("q", map(ord, text)),
            scheduled=hit,
            held=hit,
        )
        self.rows.write((name, slice(0, hit)), self.tree.path_device_indices(node))
        self.schedule(name, most)
        return int(hit)

    def schedule(self, name: int, most: int) -> None:
        request = self.live[name]
        stop = min(len(request.full_untruncated_fill_ids), request.scheduled + most)
        number = -(-stop // self.size) - request.held // self.size
        self.rows.write((name, slice(request.held, request.held + number * self.size)), self.allocate(number))
        request.held += number * self.size
        request.scheduled = stop

    def checkpoint(self, name: int) -> None:
        self.tree.checkpoint(self.live[name], up_to=self.live[name].scheduled)

    def release(self, name: int, keep: bool) -> None:
        """SGLang's release: the tree keeps what it can key, and the rest of the row is freed."""
        if keep:
            self.checkpoint(name)
        request = self.live.pop(name)
        row = self.rows.req_to_token[name, request.kv.cache_protected_len : request.held]
        self.pages.free_segment(row)
        self.tree.unlock(request.lock)


def cache_run(policy: str, size: int, seed: int, count: int = 150) -> list[list[Any]]:
    """Random requests that overlap; a decoded text is its request's alone until it ends."""
    rng = random.Random(f"{seed} {size} {policy}")
    server, steps, known, names = Server(policy, 24, size), list[list[Any]](), list[str](), iter(range(10**6))
    pending: set[int] = set()
    own = iter(range(0x4E00, 0x9000))  # letters no other request has
    for _ in range(count):
        name = rng.choice(list(server.live)) if server.live else -1
        request = server.live.get(name)
        kind = rng.choices(("admit", "commit", "extend", "finish", "abort"), (25, 30, 25, 15, 5))[0]
        if kind == "admit" and len(server.live) < 4:
            text, most, name = drawn(rng, known), rng.randrange(1, 20), next(names) % 64
            if -(-len(text) // size) > server.available or name in server.live:
                continue
            hit = server.admit(name, text, most)
            pending.add(name)
            steps.append([kind, name, text, most, hit])
        elif request is None or kind == "admit":
            continue
        elif kind == "commit" and name in pending:
            pending.discard(name)
            if request.scheduled <= len(request.origin_input_ids):
                server.checkpoint(name)  # a chunk of the prompt; outputs wait for the end
            steps.append([kind, name])
        elif kind == "extend" and name not in pending:
            rest = len(request.full_untruncated_fill_ids) - request.scheduled
            text = "" if rest else "".join(chr(next(own)) for _ in range(rng.randrange(1, 6)))
            most = rng.randrange(1, 12)
            if -(-most // size) + 1 > server.available or len(request.full_untruncated_fill_ids) > 200:
                continue
            request.full_untruncated_fill_ids += array("q", map(ord, text))
            server.schedule(name, most)
            pending.add(name)
            steps.append([kind, name, text, most])
        elif kind == "finish" and name not in pending:
            server.release(name, keep=True)
            known.append("".join(map(chr, request.full_untruncated_fill_ids[: request.scheduled])))
            steps.append([kind, name])
        elif kind == "abort":
            pending.discard(name)
            server.release(name, keep=False)
            steps.append([kind, name])
        else:
            continue
        steps[-1] += [server.evicted, server.available]
    return steps


def main() -> None:
    """Print all runs."""
    out: dict[str, Any] = {
        "source": f"SGLang {importlib.metadata.version('sglang')}, srt/mem_cache/radix_cache.py, "
        "by tests/memory/ask_sglang.py",
        "trees": [
            {"policy": policy, "size": size, "steps": tree_run(policy, size, seed)}
            for policy in POLICIES
            for size, seed in ((1, 1), (2, 2), (4, 3))
        ],
        "caches": [
            {"policy": policy, "size": size, "num_blocks": 24, "steps": cache_run(policy, size, seed)}
            for policy in POLICIES[:6]
            for size, seed in ((1, 1), (4, 2))
        ],
    }
    print(json.dumps(out, separators=(",", ":"), ensure_ascii=True))


if __name__ == "__main__":
    main()
