"""A prefix cache that is asked and watched: every answer is held to the shadow beside it.

The shadow follows the subject: slots are its own, and the shadow only knows what was written into each. Three
things are looked at after every operation: the slots of every request, the count of free blocks, the events.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvref_conformance.cases import Case
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Failed
from kvref_conformance.programs.breach import Log, Names
from kvref_conformance.programs.cells import Cell, Cells
from kvref_conformance.programs.hits import copied_tail, judge_hit
from kvref_conformance.programs.ledger import Ledger
from kvref_conformance.programs.live import Live, Told
from kvref_conformance.programs.looks import look_at_count, look_at_slots
from kvref_conformance.programs.mirror import Mirror
from kvref_conformance.programs.order import Order
from kvref_conformance.programs.prompts import Prompt
from kvref_conformance.programs.running import Session, attempt
from kvref_conformance.programs.tails import Tails
from kvref_conformance.programs.watched import Watched
from kvref_conformance.programs.writes import judge_writes


class WatchedCache(Watched):
    """One session, the shadow of its memory, and what is published."""

    counted = "KV-PREFIX-022"

    def __init__(self, session: Session, case: Case, claims: Claims, log: Log) -> None:
        self.session, self.claims, self.log = session, claims, log
        self.block_size = case.block_size
        self.num_blocks = int(case.option("num_blocks"))
        self.null = claims.choice("null-block") == "reserved"
        self.capacity = self.num_blocks - self.null
        weak = "hash_bits" in case.options
        self.cells = Cells(weak=weak)
        self.ledger = Ledger.under(claims, case.block_size, self.capacity)
        each_copy = claims.choice("event-copies") == "each_copy"
        tells = "events" in claims.features and not weak  # a key that collides has no one meaning
        self.mirror = Mirror(self.ledger, log, tells, each_copy)
        self.drift = 0
        """By how much the subject's count of free blocks was off, last time."""
        self.order = Order(claims.choice("eviction-order"), self.capacity, case.block_size)
        self.live: dict[int, Live] = {}
        self.tails = Tails(case.block_size, claims.choice("tail-block") == "keyed")
        self.twice: set[int] = set()
        """Ends of blocks that two requests computed at one time."""
        self.told = Told()
        self.names = Names()
        self.eager = claims.choice("publish-time") == "scheduled"
        look_at_count(self, "KV-PREFIX-022")

    @property
    def free(self) -> int:
        """How many blocks no request holds."""
        return self.capacity - len(self.held())

    def held(self, but: int | None = None) -> set[int]:
        """Return the blocks that requests hold."""
        return {self.block(s) for name, one in self.live.items() if name != but for s in one.slots}

    def block(self, slot: int) -> int:
        """Return the block of a slot."""
        return slot // self.block_size

    def blocks_of(self, num_tokens: int) -> int:
        """Count the blocks of so many tokens."""
        return -(-num_tokens // self.block_size)

    def admit(self, request: int, prompt: Prompt, most: int) -> None:
        """Admit a request and judge its hit and its new slots. Raises: Stop if they cannot be followed."""
        count = len(prompt.tokens)
        self.mirror.predict(prompt)
        due = self.order.expected(self, request, prompt, most)
        arguments: dict[str, Any] = {"request": request, "tokens": prompt.tokens, "max_new_tokens": most}
        answer = attempt(self.session, "admit", **arguments, **prompt.given.arguments())
        said = f"admit(request {request}, {count} tokens, max_new_tokens {most})"
        if isinstance(answer, Failed):
            self._refused(said, answer, self.needed(prompt))
            if not self.told.far:  # its number may be another's
                self.must_not("KV-PREFIX-019", "slots", request=request)
            return
        hit, slots = answer["num_cached_tokens"], answer["slots"]
        said = f"{said} hits {hit} tokens"
        if self.blocks_of(count) > self.capacity:
            self.stop(f"{said}: {count} tokens in {self.capacity} blocks", "KV-PREFIX-027")
        self.tails.admitted(prompt, hit, self.ledger.due(prompt))
        copying = copied_tail(self, request, prompt, hit, slots)
        judge_hit(self, said, prompt, hit, slots[: max(hit, 0)])
        if not 0 <= hit <= count or len(slots) != hit + min(most, count - hit):
            told = hit + min(most, count - hit)
            self.stop(f"{said} and gives {len(slots)} slots, expected {told}", "KV-PREFIX-026")
        self.mirror.compare(said, hit)
        if not self.order.follow(due, hit):
            order = self.claims.choice("eviction-order")
            also = ["KV-PREFIX-019"] if self.told.refused_admission else []
            self.log.breach(f"{said}, expected {due}: {order} is declared", "KV-PREFIX-024", *also)
        self.live[request] = Live(prompt, hit, slots[:hit], copying=copying)
        self._schedule(request, said, slots[hit:])

    def extend(self, request: int, tokens: list[int], most: int) -> None:
        """Let tokens join a request, schedule more, and judge the slots. Raises: Stop, as `admit`."""
        self.order.lose()
        one = self.live[request]
        total = len(one.prompt.tokens) + len(tokens)
        stop = min(len(one.slots) + most, total)
        said = f"extend(request {request}, {len(tokens)} tokens, max_new_tokens {most})"
        answer = attempt(self.session, "extend", request=request, tokens=tokens, max_new_tokens=most)
        if isinstance(answer, Failed):
            self._refused(said, answer, self.blocks_of(stop) - self.blocks_of(len(one.slots)))
            self.told.never.update(one.prompt.continued(tokens))
            return
        one.prompt.add(tokens)
        self.told.never.difference_update(one.prompt.labels[len(one.prompt.labels) - len(tokens) :])
        if len(answer["slots"]) != stop - len(one.slots):
            due = stop - len(one.slots)
            self.stop(f"{said} gives {len(answer['slots'])} slots, expected {due}", "KV-PREFIX-026")
        self._schedule(request, said, answer["slots"])

    def commit(self, request: int) -> None:
        """Let what is scheduled be computed. Raises: Stop if that is refused."""
        self.must("KV-PREFIX-026", "commit", request=request)
        one = self.live[request]
        self.order.commit(request)
        self.cells.commit(one.pending, request)
        one.pending, one.copying = [], False
        if self.claims.choice("publish-time") != "finished":
            self.ledger.publish(one.prompt, one.slots, request)
        self.look("KV-PREFIX-022")

    def end(self, request: int, operation: str) -> None:
        """Finish or abort a request. Raises: Stop if that is refused."""
        self.must("KV-PREFIX-022", operation, request=request)
        one = self.live.pop(request)
        self.order.end(request, operation)
        if operation == "abort":
            self.cells.abort(one.slots, one.prompt)
            self.ledger.unkept |= self.eager and bool(one.pending)
        if operation == "finish":
            self.ledger.publish(one.prompt, one.slots, request, finished=True)
            self.mirror.owed = max(self.mirror.owed, self.ledger.copies(one.prompt, self.cells))
            self.tails.finished(one.prompt)
        self.ledger.end(request)
        self.look("KV-PREFIX-022")

    def reset(self) -> None:
        """Reset the cache, or ask for it while requests hold blocks. Raises: Stop if the answer is wrong."""
        if self.live:
            self.told.refused_reset = True
            self.must_not("KV-PREFIX-015", "reset")
            return
        self.must("KV-PREFIX-015", "reset")
        self.cells.reset()
        self.ledger.reset()
        self.order.begin()
        self.told = Told()
        self.look("KV-PREFIX-015")
        self.mirror.expect_empty()
        self.tails.known.clear()

    def finish(self) -> None:
        """Hold the whole of what was seen to what is declared, when all is over."""
        self.mirror.piled = 0
        self.mirror.take(self.session)
        self.tails.judge(self.log)
        self.mirror.judge_copies()

    def look(self, counts: str) -> None:
        """Look at slots, count and events; `counts` is the requirement that a wrong count breaches."""
        if self._unseen:
            return
        for request in self.live:
            look_at_slots(self, request, counts)
        look_at_count(self, counts)
        if not self.live:
            self.twice.clear()
        self.mirror.take(self.session)

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """Look at nothing until all of something is done, and take no events."""
        self.mirror.piled += 1
        with super().unseen():
            yield
            self.mirror.piled -= 1

    def is_there(self, label: int) -> bool:
        """Say whether a block still holds the prefix that a label ends."""
        entry = self.ledger.entries.get(label)
        return entry is not None and any(self.cells.holds(slot, label) for slot in entry.slots)

    def is_twice(self, prompt: Prompt, at: int) -> bool:
        """Say whether two requests computed the block of a position at one time."""
        end = at // self.block_size * self.block_size + self.block_size - 1
        return end < len(prompt.labels) and prompt.labels[end] in self.twice

    def _schedule(self, request: int, said: str, slots: list[int]) -> None:
        one = self.live[request]
        judge_writes(self, said, request, slots)
        start = len(one.slots)
        self.give_out({self.block(slot) for slot in slots} - {self.block(slot) for slot in one.slots})
        for at, slot in enumerate(slots, start):
            self.write(slot, one.prompt, at, request, written=self.eager)
        one.slots += slots
        one.pending = list(slots)
        self._note_twice(request, one, start)
        if self.eager:
            self.ledger.publish(one.prompt, one.slots, request)
        self.log.note(said, "in", self.names.names(dict.fromkeys(map(self.block, one.slots))))
        self.look("KV-PREFIX-022")

    def give_out(self, blocks: set[int]) -> None:
        """Note that blocks are given out: what they held is lost."""
        size = self.block_size
        self.cells.give_out(slot for b in blocks for slot in range(b * size, b * size + size))
        self.ledger.given_out += len(blocks)
        self.names.forget(blocks)

    def write(self, slot: int, prompt: Prompt, at: int, request: int, *, written: bool) -> None:
        """Let a position of a request be written to a slot, now or when its step is committed."""
        cell = Cell(prompt.labels[at], prompt, at, request, self.log.step, self.cells.epoch, written)
        self.cells.schedule(slot, cell)

    def _note_twice(self, request: int, one: Live, start: int) -> None:
        for end in self.ledger.ends(len(one.slots)):
            own = one.prompt.labels[end]
            for other, two in self.live.items():
                theirs = other != request and max(start, two.hit) <= end < len(two.slots)
                if theirs and two.prompt.labels[end] == own and two.slots[end] != one.slots[end]:
                    self.twice.add(own)

    def needed(self, prompt: Prompt) -> int:
        """Count the free blocks with which an admission must succeed."""
        spare = self.claims.choice("full-hit") == "last_token" or self.claims.choice("tail-block") == "keyed"
        shared = self.ledger.shared(prompt, self.cells, self.held())
        return self.blocks_of(len(prompt.tokens)) - shared + spare

    def _refused(self, said: str, answer: Failed, needed: int) -> None:
        if needed <= self.free and not self.told.far:
            also = ["KV-PREFIX-015"] if self.cells.epoch else []
            also += ["KV-PREFIX-019"] if self.told.refused_admission else []
            said = f"{said}: {answer}; {self.free} blocks are free and {needed} enough"
            self.stop(said, "KV-PREFIX-018", *also)
        self.log.note(said, "is refused")
        self.told.refused_admission = True
        self.order.refuse()
        self.look("KV-PREFIX-019")
