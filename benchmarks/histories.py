"""Histories of a small engine over the reference's own prefix cache, for benchmarks and tests.

The engine serves prompts that share beginnings, some of them under another adapter. Each step computes what
is scheduled of every running request, a chunk of a prompt or one token, and decodes a token for those that
are through their prompt. When blocks run out, the request that arrived last is preempted. What it does, it
logs: a step of sixteen requests takes some ten lines.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from kvref.errors import OutOfBlocksError
from kvref.memory.namespace import COMMON, Namespace
from kvref.memory.prefix_cache import PrefixCache
from kvref.sanitizer.recorder import Recorder

CHUNK = 256
NAMESPACES = (COMMON, COMMON, COMMON, Namespace(adapter="a", salt="s"))


@dataclass
class Running:
    """One request of the engine."""

    name: int
    tokens: list[int]
    namespace: Namespace
    outputs: int
    """How many tokens it will decode."""
    computed: int = 0
    scheduled: int = 0
    published: int = 0
    known: int = 0
    """How many of its tokens the cache has been told."""
    row: list[int] = field(default_factory=list)


class Engine:
    """Serves drawn requests until told to stop; `log` has no `close` of its own."""

    def __init__(
        self, log: Recorder, rng: random.Random, *, num_blocks: int, block_size: int, batch: int
    ) -> None:
        self.log, self.rng, self.batch, self.block_size = log, rng, batch, block_size
        self.cache = PrefixCache(num_blocks, "kvref", block_size)
        self.documents = [[rng.randrange(50000) for _ in range(rng.randrange(20, 500))] for _ in range(12)]
        self.running: list[Running] = []
        self.waiting: list[Running] = []
        self.arrived = self.steps = self.events = 0

    def say(self, what: Callable[..., None], *args: object, **named: object) -> None:
        """Log one event and count it."""
        what(*args, **named)
        self.events += 1

    def serve(self, num_events: int) -> None:
        """Serve requests until about that many events are logged, then finish those that are there."""
        while self.events < num_events:
            if len(self.running) + len(self.waiting) < self.batch:
                self.arrive()
            self.step()
        while self.running or self.waiting:
            self.step()

    def arrive(self) -> None:
        """Let a request arrive: a document or a part of it, a question, and how long its answer will be."""
        rng, document = self.rng, self.rng.choice(self.documents)
        prompt = document[: rng.randrange(1, len(document))] if rng.random() < 0.3 else document.copy()
        prompt += [rng.randrange(50000) for _ in range(rng.randrange(1, 40))]
        new = Running(self.arrived, prompt, rng.choice(NAMESPACES), rng.randrange(1, 200))
        self.arrived += 1
        self.say(self.log.request, new.name, new.tokens, new.namespace)
        self.waiting.append(new)

    def step(self) -> None:
        """Run one step: admit who fits, schedule all, compute, publish, decode."""
        self.say(self.log.begin, self.steps)
        while self.waiting and self.admit(self.waiting[0]):
            self.running.append(self.waiting.pop(0))
        for one in list(self.running):
            if one in self.running and one.scheduled == one.computed:
                self.schedule(one)
        rows = [one for one in self.running if one.scheduled > one.computed]
        names, starts = [one.name for one in rows], [one.computed for one in rows]
        counts = [one.scheduled - one.computed for one in rows]
        self.say(self.log.compute, names, starts, counts if max(counts, default=1) > 1 else None)
        self.say(self.log.end, self.steps, num_free=self.cache.num_free)
        self.steps += 1
        for one in rows:
            self.cache.commit(one.name)
            one.computed = one.scheduled
            self.publish(one)
        self.decode([one for one in rows if one.computed == len(one.tokens)])

    def admit(self, one: Running) -> bool:
        """Admit a request and say what it hit; whether there was room."""
        try:
            given = self.cache.admit(one.name, one.tokens, namespace=one.namespace, max_new_tokens=CHUNK)
        except OutOfBlocksError:
            return False
        hit = given.num_cached_tokens
        one.row = [slot // self.block_size for slot in given.slots[:: self.block_size]]
        one.known = len(one.tokens)
        one.computed, one.scheduled, one.published = hit, len(given.slots), hit // self.block_size
        if hit:
            self.say(self.log.hit, one.name, hit, one.row[: one.published])
        if one.row[one.published :]:
            self.say(self.log.allocate, one.name, one.row[one.published :])
        return True

    def schedule(self, one: Running) -> None:
        """Give a request the slots of its next tokens, if it takes the blocks of others."""
        while one in self.running:
            try:
                slots = self.cache.extend(one.name, one.tokens[one.known :], max_new_tokens=CHUNK)
            except OutOfBlocksError:
                self.preempt(self.running[-1])
                continue
            one.known = len(one.tokens)
            blocks = list(dict.fromkeys(slot // self.block_size for slot in slots))
            one.scheduled += len(slots)
            if new := [block for block in blocks if block != one.row[-1]]:
                one.row += new
                self.say(self.log.allocate, one.name, new)
            return

    def preempt(self, one: Running) -> None:
        """Take a request's blocks; it will be admitted again with all its tokens."""
        self.cache.abort(one.name)
        self.running.remove(one)
        self.waiting.insert(0, one)
        self.say(self.log.free, one.name)
        self.say(self.log.preempt, one.name)

    def publish(self, one: Running) -> None:
        """Say which blocks can be found from now on."""
        full = one.computed // self.block_size
        if full > one.published:
            self.say(self.log.publish, one.row[one.published : full], request=one.name)
            one.published = full

    def decode(self, rows: list[Running]) -> None:
        """Let requests have one token more, or end."""
        going = [one for one in rows if one.outputs]
        tokens = [self.rng.randrange(50000) for _ in going]
        if going:
            self.say(self.log.decode, [one.name for one in going], tokens)
        for one, token in zip(going, tokens, strict=True):
            one.tokens.append(token)
            one.outputs -= 1
        for one in rows:
            if one not in going:
                self.cache.finish(one.name)
                self.running.remove(one)
                self.say(self.log.finish, one.name)
                self.say(self.log.free, one.name)
