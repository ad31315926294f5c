"""SGLang's MambaRadixCache on drawn programs, taken out of its wheel: prints what it did as JSON.

    python tests/memory/ask_sglang_states.py sglang-0.5.6-py3-none-any.whl > tests/data/sglang_states.json

The class is the wheel's own; what it imports of SGLang is stood in for, a key being a tuple of tokens. A
step is [number, operation, …, answer]: match with a prompt, which is answered by slots and state; insert with
a prompt, its slots and a state; lock and unlock with the number of the step that matched; evict and
evict_states with how many, answered by what was freed, in order.
"""

import json
import random
import sys
import types
import zipfile
from types import SimpleNamespace
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

SOURCE = "sglang/srt/mem_cache/mamba_radix_cache.py"
PROGRAMS, STEPS = 24, 120


class Pool:
    """Stands for both pools: notes what is freed."""

    device = "cpu"

    def __init__(self) -> None:
        self.freed: list[int] = []

    def free(self, places: Any) -> None:
        """Note places."""
        self.freed += places.tolist()


def agreeing(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """How many tokens two keys share from their first."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def cache_class(wheel: str) -> Any:
    """The class, with stand-ins for what it imports."""
    modules = {
        "allocator": {"TokenToKVPoolAllocator": Pool},
        "base_prefix_cache": {"BasePrefixCache": object, "MatchResult": SimpleNamespace},
        "radix_cache": {
            "RadixKey": tuple,
            "_key_match_page_size1": agreeing,
            "get_child_key": lambda key: key[0],
        },
    }
    for name in ("sglang", "sglang.srt", "sglang.srt.mem_cache"):
        sys.modules[name] = types.ModuleType(name)
    for name, held in modules.items():
        module = types.ModuleType(name)
        vars(module).update(held)
        sys.modules[f"sglang.srt.mem_cache.{name}"] = module
    module = types.ModuleType("mamba_radix_cache")
    with zipfile.ZipFile(wheel) as archive:
        exec(compile(archive.read(SOURCE), SOURCE, "exec"), vars(module))
    return vars(module)["MambaRadixCache"]


class Tree:
    """One cache, and the nodes that were matched."""

    def __init__(self, cache: Any) -> None:
        self.slots, self.states = Pool(), Pool()
        params = SimpleNamespace(
            req_to_token_pool=SimpleNamespace(mamba_pool=self.states),
            token_to_kv_pool_allocator=self.slots,
            page_size=1,
            disable=False,
            enable_metrics=False,
        )
        self.cache = cache(params)
        self.nodes: dict[int, Any] = {}

    def match(self, number: int, tokens: list[int]) -> Any:
        """The slots of the hit, and its state."""
        found = self.cache.match_prefix(tuple(tokens))
        node = self.nodes[number] = found.last_device_node
        return [found.device_indices.tolist(), None if node.mamba_value is None else int(node.mamba_value[0])]

    def insert(self, number: int, tokens: list[int], slots: list[int], state: int) -> Any:
        """How many tokens were known, and whether the state was."""
        places = torch.tensor(slots), torch.tensor([state])
        return list(self.cache.insert(tuple(tokens), *places))

    def lock(self, number: int, at: int) -> None:
        """Lock what was matched."""
        self.cache.inc_lock_ref(self.nodes[at])

    def unlock(self, number: int, at: int) -> None:
        """Unlock it again."""
        self.cache.dec_lock_ref(self.nodes[at])

    def evict(self, number: int, count: int) -> Any:
        """Evict slots."""
        self.cache.evict(count)
        return self.freed()

    def evict_states(self, number: int, count: int) -> Any:
        """Evict states."""
        self.cache.evict_mamba(count)
        return self.freed()

    def freed(self) -> list[list[int]]:
        """What was freed since the last time."""
        freed, self.slots.freed, self.states.freed = [self.slots.freed, self.states.freed], [], []
        return freed


def run(cache: Any, seed: int) -> list[list[Any]]:
    """One program: prompts that share stems, locks that are let go of, evictions."""
    draw, tree = random.Random(seed), Tree(cache)
    stems = [[draw.randrange(3) for _ in range(20)] for _ in range(3)]
    steps: list[list[Any]] = []
    places, locked = 0, list[int]()
    for number in range(STEPS):
        tokens = draw.choice(stems)[: draw.randrange(1, 20)] + [draw.randrange(3)] * draw.choice(
            [0, 0, 0, 1, 2]
        )
        kind = draw.choice(
            ["match", "match", "insert", "insert", "insert", "lock", "unlock", "evict", "evict_states"]
        )
        if kind == "lock":
            kind = "match"
            locked.append(number)
        step: list[Any] = [kind, tokens]
        if kind == "insert":
            step += [list(range(places, places + len(tokens))), number]
            places += len(tokens)
        elif kind == "unlock":
            if not locked:
                continue
            step = [kind, locked.pop(draw.randrange(len(locked)))]
        elif kind != "match":
            step = [kind, draw.randrange(1, 8 if kind == "evict" else 3)]
        answer = getattr(tree, kind)(number, *step[1:])
        steps.append([number, *step, answer])
        if number in locked and kind == "match":
            tree.lock(number, number)
            steps.append([number, "lock", number, None])
    return steps


def main() -> None:
    """Print the programs and what came of them."""
    cache = cache_class(sys.argv[1])
    lines = ",\n".join(json.dumps(run(cache, seed)) for seed in range(PROGRAMS))
    print(f'{{"about": "MambaRadixCache of SGLang 0.5.6 on drawn programs",\n"programs": [\n{lines}\n]}}')


main()
