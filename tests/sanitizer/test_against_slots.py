"""A second opinion: a memory that keeps, for every slot, the whole prefix that wrote it.

The sanitizer compares labels, looks at a block once, and looks again only when somebody changed it. This one
compares everything at every read. Engines that mostly do what is right, and often what is not, are judged by
both: the first wrong read must be found at the same line, and none where there is none.
"""

import random
from collections import Counter

import pytest
from histories import allocate, arrive, compute, decode, free, hit, opened, publish, say

from kvref.memory.history import Event
from kvref.sanitizer.sanitizer import Sanitizer

NUM_BLOCKS = 8
#: What a wrong read or a wrong hit is called.
WRONG = {"KV-BLOCK-021", "KV-PREFIX-001", "KV-PREFIX-005", "KV-PREFIX-009"}

Value = tuple[str, tuple[int, ...]]


class One:
    """A request of the engine."""

    def __init__(self, salt: str, tokens: list[int]) -> None:
        self.salt, self.tokens, self.row, self.computed = salt, tokens, [], 0
        self.row: list[int] = []


class Slots:
    """An engine that logs what it does, and the memory that it does it to."""

    def __init__(self, rng: random.Random, block_size: int) -> None:
        self.rng, self.size = rng, block_size
        self.wild = rng.choice([0.0, 0.02, 0.3])
        """How often it does what no engine should."""
        self.slots: dict[tuple[int, int], Value] = {}
        self.writers: dict[tuple[int, int], int] = {}
        self.requests: dict[int, One] = {}
        self.published: set[int] = set()
        self.names = 0
        self.wrong = False
        """Whether the last event read what another prefix wrote."""

    def step(self) -> Event | None:
        """Do something, or nothing if it makes no sense now."""
        self.wrong = False
        kinds = [self.arrive, self.allocate, self.compute, self.decode, self.publish, self.hit, self.fork]
        kinds += [self.copy, self.replace, self.truncate, self.free, self.preempt, self.discard, self.evict]
        (kind,) = self.rng.choices(kinds, (2, 5, 9, 5, 3, 3, 1, 2, 1, 1, 2, 1, 1, 1))
        return kind()

    def careful(self) -> bool:
        """Whether to do what is right this time."""
        return self.rng.random() >= self.wild

    def any(self) -> tuple[int, One] | None:
        return self.rng.choice(list(self.requests.items())) if self.requests else None

    def refs(self) -> Counter[int]:
        return Counter(block for one in self.requests.values() for block in one.row)

    def value(self, one: One, position: int) -> Value:
        return one.salt, tuple(one.tokens[: position + 1])

    def reads(self, one: One, start: int, stop: int) -> None:
        """Compare every position with what its slot holds."""
        for p in range(start, stop):
            if self.slots.get((one.row[p // self.size], p % self.size)) != self.value(one, p):
                self.wrong = True

    def let_go(self, blocks: list[int]) -> None:
        """What nobody holds and nobody can find is gone."""
        refs = self.refs()
        for block in blocks:
            if not refs[block] and block not in self.published:
                self.empty(block)

    def empty(self, block: int) -> None:
        for slot in range(self.size):
            self.slots.pop((block, slot), None)

    def arrive(self) -> Event:
        self.names += 1
        one = One(
            self.rng.choice(["", "", "s"]), [self.rng.randrange(2) for _ in range(self.rng.randrange(1, 9))]
        )
        self.requests[self.names] = one
        return arrive(self.names, one.tokens, **({"salt": one.salt} if one.salt else {}))

    def allocate(self) -> Event | None:
        found = self.any()
        refs = self.refs()
        blocks = [b for b in range(NUM_BLOCKS) if not refs[b] or not self.careful()]
        if not found or not blocks:
            return None
        name, one = found
        if len(one.row) * self.size > len(one.tokens):
            return None
        block = self.rng.choice(blocks)
        self.empty(block)
        self.published.discard(block)
        one.row.append(block)
        return allocate(name, block)

    def compute(self) -> Event | None:
        rows: list[tuple[int, int, int]] = []
        taken = self.published | {block for block, count in self.refs().items() if count > 1}
        for name, one in self.requests.items():
            stop = min(len(one.tokens), len(one.row) * self.size, one.computed + self.rng.randrange(1, 6))
            shared = {one.row[p // self.size] for p in range(one.computed, stop)} & taken
            if stop > one.computed and self.rng.random() < 0.8 and not (shared and self.careful()):
                rows.append((name, one.computed, stop - one.computed))
        for name, start, count in rows:
            one = self.requests[name]
            for p in range(start, start + count):
                slot = (one.row[p // self.size], p % self.size)
                self.slots[slot], self.writers[slot] = self.value(one, p), name
            one.computed += count
        for name, start, count in rows:
            self.reads(self.requests[name], 0, start + count)
        return compute(*rows) if rows else None

    def decode(self) -> Event | None:
        found = self.any()
        if not found or len(found[1].tokens) > 11 or found[1].computed < len(found[1].tokens):
            return None
        token = self.rng.randrange(2)
        found[1].tokens.append(token)
        return decode((found[0], token))

    def publish(self) -> Event | None:
        found = self.any()
        full = found[1].row[: found[1].computed // self.size] if found else []
        filled = [b for b in full if all((b, slot) in self.slots for slot in range(self.size))]
        self.published.update(filled)
        return publish(*filled) if filled else None

    def hit(self) -> Event | None:
        found = self.any()
        if not found or found[1].row or not self.published:
            return None
        name, one = found
        most = max(0, len(one.tokens) - 1) // self.size
        blocks = [self.rng.choice(sorted(self.published)) for _ in range(self.rng.randrange(1, 3))][:most]
        if self.careful():  # what a cache would find
            blocks = []
            while len(blocks) < most:
                last = (len(blocks) + 1) * self.size - 1
                same = [
                    b
                    for b in sorted(self.published)
                    if self.slots.get((b, self.size - 1)) == self.value(one, last)
                ]
                if not same:
                    break
                blocks.append(same[0])
        if not blocks:
            return None
        one.row, one.computed = blocks, len(blocks) * self.size
        self.reads(one, 0, one.computed)
        return hit(name, one.computed, *blocks)

    def fork(self) -> Event | None:
        found = self.any()
        if not found or len(self.requests) > 4:
            return None
        self.names += 1
        child = One(found[1].salt, found[1].tokens.copy())
        child.row, child.computed = found[1].row.copy(), found[1].computed
        self.requests[self.names] = child
        return say("fork", request=self.names, parent=found[0])

    def copy(self) -> Event | None:
        found, refs = self.any(), self.refs()
        targets = [b for b in range(NUM_BLOCKS) if not refs[b]]
        if not found or not found[1].row or not targets or self.rng.random() < 0.3:
            return None
        name, one = found
        index, target = self.rng.randrange(len(one.row)), self.rng.choice(targets)
        if one.row.count(one.row[index]) > 1:
            return None
        source = one.row[index]
        count = self.size if self.careful() else self.rng.randrange(self.size + 1)
        held = {slot: self.slots[source, slot] for slot in range(count) if (source, slot) in self.slots}
        self.empty(target)
        self.published.discard(target)
        self.slots.update({(target, slot): value for slot, value in held.items()})
        self.writers.update({(target, slot): self.writers[source, slot] for slot in held})
        one.row[index] = target
        self.let_go([source])
        return say("copy", request=name, source=source, target=target, count=count)

    def replace(self) -> Event | None:
        found, refs = self.any(), self.refs()
        blocks = [b for b in range(NUM_BLOCKS) if refs[b] or b in self.published]
        if not found or not found[1].row or not blocks or self.careful():
            return None
        name, one = found
        index, block = self.rng.randrange(len(one.row)), self.rng.choice(blocks)
        if block in one.row:
            return None
        old, one.row[index] = one.row[index], block
        self.let_go([old])
        return say("replace", request=name, index=index, blocks=[block])

    def truncate(self) -> Event | None:
        found = self.any()
        if not found:
            return None
        name, one = found
        count, refs = self.rng.randrange(len(one.tokens) + 1), self.refs()
        for index in range(count // self.size, len(one.row)):
            block = one.row[index]
            for slot in range(self.size) if refs[block] == 1 and block not in self.published else ():
                if index * self.size + slot >= count and self.writers.get((block, slot)) == name:
                    self.slots.pop((block, slot), None)
        one.tokens, one.computed = one.tokens[:count], min(one.computed, count)
        return say("truncate", request=name, count=count)

    def free(self) -> Event | None:
        found = self.any()
        if not found or not found[1].row:
            return None
        name, one = found
        row, one.row, one.computed = one.row, [], 0
        del self.requests[name]
        self.let_go(row)
        self.ending = name
        return free(name)

    def preempt(self) -> Event | None:
        found = self.any()
        if not found or found[1].row:
            return None
        found[1].computed = 0
        return say("preempt", request=found[0])

    def discard(self) -> Event | None:
        refs = self.refs()
        blocks = [b for b in range(NUM_BLOCKS) if not self.careful() or not (refs[b] or b in self.published)]
        if not blocks:
            return None
        block = self.rng.choice(blocks)
        self.empty(block)
        return say("discard", blocks=[block])

    def evict(self) -> Event | None:
        if not self.published:
            return None
        block = self.rng.choice(sorted(self.published))
        self.published.discard(block)
        self.let_go([block])
        return say("evict", blocks=[block])


@pytest.mark.parametrize("block_size", [1, 2, 3, 4])
def test_the_first_wrong_read_is_found_where_it_is(block_size: int) -> None:
    """Neither later, because a block was verified before, nor earlier, because its label was mistaken."""
    outcomes: Counter[str] = Counter()
    for seed in range(120):
        engine = Slots(random.Random(seed), block_size)
        sanitizer = Sanitizer(max_findings=10**6)
        history = [opened(num_blocks=NUM_BLOCKS, block_size=block_size)]
        sanitizer.feed(1, history[0])
        while len(history) < 120 and not engine.wrong:
            event = engine.step()
            if event is not None:
                history.append(event)
                sanitizer.feed(len(history), event)
                sanitizer.check_invariants()
        lines = [finding.line for finding in sanitizer.findings if finding.requirement in WRONG]
        assert lines[:1] == ([len(history)] if engine.wrong else []), (
            seed,
            history[-1],
            sanitizer.findings[-3:],
        )
        outcomes["wrong" if engine.wrong else "clean"] += 1
    assert min(outcomes.values()) > 10, outcomes
