"""Programs for a block allocator: allocations with names, and whom each block belongs to.

Steps, where a, i, n, s and k are numbers, and every block of an allocation is meant where no i is given:

    allocate a n · rest a        hand out n blocks, or all that are free, as allocation a
    free a i · touch a i · pin a i · unpin a i
    free_often a i n · touch_often a i n · pin_often a i n · unpin_often a i n
                                 the same n times, one call after the other
    begin s · end s              step s begins; it ends, and each before it
    end_again s                  a step is ended that has ended: this may be refused, and ends no other
    drain                        everybody lets go, then all blocks are handed out at once, and let go of

`odd_calls` has the steps that must be refused, and those that may be. A step is passed over if the subject
does not offer its operation.
"""

from kvref_conformance.cases import Case
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Failed
from kvref_conformance.managers import MAX_LIST
from kvref_conformance.programs.breach import Log
from kvref_conformance.programs.lots import Lots
from kvref_conformance.programs.odd_calls import ODD, OddCalls
from kvref_conformance.programs.running import Session, attempt
from kvref_conformance.programs.step import Step
from kvref_conformance.programs.watched_pool import WatchedPool

#: Step -> how many numbers it takes, at least and at most.
STEPS = {
    "allocate": (2, 2),
    "rest": (1, 1),
    **dict.fromkeys(("free", "touch", "pin", "unpin"), (1, 2)),
    **dict.fromkeys(("free_often", "touch_often", "pin_often", "unpin_often"), (3, 3)),
    **dict.fromkeys(("begin", "end", "end_again"), (1, 1)),
    "drain": (0, 0),
}


def interpreter(session: Session, case: Case, claims: Claims, log: Log) -> "Allocator":
    """Return what performs the steps of one program."""
    return Allocator(WatchedPool(session, int(case.option("num_blocks")), claims, log), log)


class Allocator:
    """Performs the steps of one program on one allocator."""

    def __init__(self, pool: WatchedPool, log: Log) -> None:
        self.pool, self.holders, self.log = pool, pool.holders, log
        self.lots = Lots(self.holders)
        self.odd = OddCalls(pool, self.lots)
        self.tickets: dict[int, int] = {}
        """Step in flight -> the number that the subject gave it."""
        self.ended: dict[int, int] = {}
        """The same for steps that have ended."""

    def perform(self, step: Step) -> bool:
        """Perform a step, or pass it over."""
        try:
            done = self._perform(step.name, *step.numbers)
        except Failed as failed:
            if failed.kind != "unsupported":
                raise
            return False
        if done:
            self.lots.pass_on()
            self.log.note(step, "then", self.holders.num_free, "are free")
        return done

    def _perform(self, name: str, *numbers: int) -> bool:
        if name in ODD:
            return ODD[name] == len(numbers) and self.odd.perform(name, *numbers)
        least, most = STEPS.get(name, (1, 0))
        return least <= len(numbers) <= most and bool(getattr(self, name)(*numbers))

    def finish(self) -> None:
        """Ask nothing more: `drain` is a step."""

    def allocate(self, lot: int, count: int) -> bool:
        """Hand out blocks, or ask for more than there are."""
        if not self.lots.may_begin(lot) or count < 1:
            return False
        if count > self.holders.num_free:
            self.pool.allocate_too_many(lot, count)
        else:
            self.lots.held[lot] = self.pool.allocate(lot, count)
        return True

    def rest(self, lot: int) -> bool:
        """Hand out all free blocks."""
        return self.allocate(lot, self.holders.num_free)

    def free(self, lot: int, at: int | None = None) -> bool:
        """Let go of blocks once."""
        blocks = self.lots.in_requests(lot, at)
        if blocks:
            self.pool.let_go(blocks)
        return bool(blocks)

    def touch(self, lot: int, at: int | None = None) -> bool:
        """Hold blocks once more."""
        blocks = self.lots.in_requests(lot, at)
        if blocks:
            self.pool.must("touch", "KV-BLOCK-005", blocks=blocks)
            self.holders.touch(blocks)
            self.pool.count("KV-BLOCK-004")
        return bool(blocks)

    def free_often(self, lot: int, at: int, times: int) -> bool:
        """Let go of a block several times."""
        return 0 < times <= MAX_LIST and all(self.free(lot, at) for _ in range(times))

    def touch_often(self, lot: int, at: int, times: int) -> bool:
        """Hold a block several times more."""
        return 0 < times <= MAX_LIST and all(self.touch(lot, at) for _ in range(times))

    def pin_often(self, lot: int, at: int, times: int) -> bool:
        """Pin a block several times more."""
        return 0 < times <= MAX_LIST and all(self.pin(lot, at) for _ in range(times))

    def unpin_often(self, lot: int, at: int, times: int) -> bool:
        """Take several pins of a block back."""
        return 0 < times <= MAX_LIST and all(self.unpin(lot, at) for _ in range(times))

    def pin(self, lot: int, at: int | None = None) -> bool:
        """Pin blocks once."""
        blocks = self.lots.in_requests(lot, at)
        if blocks:
            self.pool.must("pin", "KV-BLOCK-012", blocks=blocks)
            self.holders.pin(blocks)
            self.pool.count("KV-BLOCK-004")
        return bool(blocks)

    def unpin(self, lot: int, at: int | None = None) -> bool:
        """Take one pin back, where it is clear for which steps a block that is free then has to wait."""
        blocks = [block for block in self.lots.own(lot, at) if self.holders.may_unpin(block)][:MAX_LIST]
        if blocks:
            self.pool.must("unpin", "KV-BLOCK-012", blocks=blocks)
            self.pool.order.put(self.holders.unpin(blocks))
            self.pool.count("KV-BLOCK-004", "KV-BLOCK-012")
        return bool(blocks)

    def begin(self, step: int) -> bool:
        """Begin a step."""
        if step in self.tickets:
            return False
        self.tickets[step] = self.pool.must("begin_step", "KV-BLOCK-011")["step"]
        self.holders.steps.append(step)
        self.pool.count("KV-BLOCK-004")
        return True

    def end(self, step: int) -> bool:
        """End a step, and each before it."""
        if step not in self.holders.steps:
            return False
        self.pool.must("end_step", "KV-BLOCK-011", step=self.tickets[step])
        self.pool.order.put(self.holders.end(step))
        for begun in [begun for begun in self.tickets if begun not in self.holders.steps]:
            self.ended[begun] = self.tickets.pop(begun)
        self.pool.count("KV-BLOCK-004", "KV-BLOCK-011")
        return True

    def end_again(self, step: int) -> bool:
        """End a step that has ended, unless its number is that of another by now."""
        if step not in self.ended or self.ended[step] in self.tickets.values():
            return False
        attempt(self.pool.session, "end_step", step=self.ended[step])
        self.pool.count("KV-BLOCK-004", "KV-BLOCK-011")
        self.pool.all_can_be_had("KV-BLOCK-011", f"after step {step}, which had ended, was ended again")
        return True

    def drain(self) -> bool:
        """Let everybody let go, and hand out the whole capacity at once."""
        for step in list(self.holders.steps):
            self.end(step)
        for lot in list(self.lots.held):
            while self.unpin(lot) or self.free(lot):
                pass
        self.pool.all_can_be_had("KV-BLOCK-009", "everybody has let go")
        return True
