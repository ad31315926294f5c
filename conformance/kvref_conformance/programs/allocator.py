"""Programs for a block allocator: allocations with names, and whom each block belongs to.

Steps, where a, i, n, s and k are numbers, and every block of an allocation is meant where no i is given:

    allocate a n · rest a        hand out n blocks, or all that are free, as allocation a
    free a i · touch a i · pin a i · unpin a i
    begin s · end s              step s begins; it ends, if it is the oldest in flight
    drain                        everybody lets go, then all blocks are handed out at once, and let go of
    free_twice a i · free_again a i · free_idle k · free_outside a k · touch_outside a k · free_null a
    touch_null a · allocate_negative n       these must be refused

What must be refused is followed by what shows whether it changed anything: the blocks it named are let go of
and counted, or all free blocks are handed out.
"""

from kvref_conformance.cases import Case
from kvref_conformance.claims import Claims
from kvref_conformance.programs.breach import Log
from kvref_conformance.programs.holders import FENCED, FREE
from kvref_conformance.programs.running import Session
from kvref_conformance.programs.step import Step
from kvref_conformance.programs.watched_pool import WatchedPool

#: Step -> how many numbers it takes, at least and at most.
STEPS = {
    name: (least, most)
    for least, most, names in (
        (2, 2, "allocate free_twice free_again free_outside touch_outside"),
        (1, 2, "free touch pin unpin"),
        (1, 1, "rest begin end free_idle free_null touch_null allocate_negative"),
        (0, 0, "drain"),
    )
    for name in names.split()
}


def interpreter(session: Session, case: Case, claims: Claims, log: Log) -> "Allocator":
    """Return what performs the steps of one program."""
    return Allocator(WatchedPool(session, int(case.option("num_blocks")), claims, log), log)


class Allocator:
    """Performs the steps of one program on one allocator."""

    def __init__(self, pool: WatchedPool, log: Log) -> None:
        self.pool, self.holders, self.log = pool, pool.holders, log
        self.lots: dict[int, list[int]] = {}
        """Allocation -> its blocks, until all of them are free."""
        self.past: dict[int, list[int]] = {}
        """Allocation -> the blocks it had, once they were free."""
        self.tickets: dict[int, int] = {}
        """Step -> the number that the subject gave it."""

    def perform(self, step: Step) -> bool:
        """Perform a step, or pass it over."""
        least, most = STEPS.get(step.name, (1, 0))
        if not least <= len(step.numbers) <= most or not getattr(self, step.name)(*step.numbers):
            return False
        for lot in list(self.lots):
            if not any(self.holders.state(block) != FREE for block in self._own(lot)):
                self.past[lot] = self.lots.pop(lot)
        self.log.note(step, "then", self.holders.num_free, "are free")
        return True

    def finish(self) -> None:
        """Ask nothing more: `drain` is a step."""

    def allocate(self, lot: int, count: int) -> bool:
        """Hand out blocks, or ask for more than there are."""
        if lot in self.lots or lot < 0 or count < 1:
            return False
        if count > self.holders.num_free:
            self.pool.allocate_too_many(lot, count)
        else:
            self.lots[lot] = self.pool.allocate(lot, count)
        return True

    def rest(self, lot: int) -> bool:
        """Hand out all free blocks."""
        return self.allocate(lot, self.holders.num_free)

    def free(self, lot: int, at: int | None = None) -> bool:
        """Let go of blocks once."""
        blocks = self._held(lot, at)
        if blocks:
            self.pool.let_go(blocks)
        return bool(blocks)

    def touch(self, lot: int, at: int | None = None) -> bool:
        """Hold blocks once more."""
        blocks = self._held(lot, at)
        if blocks:
            self.pool.must("KV-BLOCK-005", "touch", blocks=blocks)
            self.holders.touch(blocks)
            self.pool.count("KV-BLOCK-004")
        return bool(blocks)

    def pin(self, lot: int, at: int | None = None) -> bool:
        """Pin blocks once."""
        blocks = self._held(lot, at)
        if blocks:
            self.pool.must("KV-BLOCK-012", "pin", blocks=blocks)
            self.holders.pin(blocks)
            self.pool.count("KV-BLOCK-004")
        return bool(blocks)

    def unpin(self, lot: int, at: int | None = None) -> bool:
        """Take one pin back, unless that would free a block while a step is in flight."""
        own = [block for block in self._own(lot, at) if self.holders.blocks[block].pins]
        blocks = [block for block in own if self.holders.blocks[block].holders or not self.holders.steps]
        if blocks:
            self.pool.must("KV-BLOCK-012", "unpin", blocks=blocks)
            self.pool.order.put(self.holders.unpin(blocks))
            self.pool.count("KV-BLOCK-004", "KV-BLOCK-012")
        return bool(blocks)

    def begin(self, step: int) -> bool:
        """Begin a step."""
        if step in self.tickets:
            return False
        self.tickets[step] = self.pool.must("KV-BLOCK-011", "begin_step")["step"]
        self.holders.steps.append(step)
        self.pool.count("KV-BLOCK-004")
        return True

    def end(self, step: int) -> bool:
        """End the oldest step."""
        if self.holders.steps[:1] != [step]:
            return False
        self.pool.must("KV-BLOCK-011", "end_step", step=self.tickets.pop(step))
        self.pool.order.put(self.holders.end(step))
        self.pool.count("KV-BLOCK-004")
        return True

    def drain(self) -> bool:
        """Let everybody let go, and hand out the whole capacity at once."""
        for step in list(self.holders.steps):
            self.end(step)
        for lot in list(self.lots):
            while self.unpin(lot) or self.free(lot):
                pass
        self.pool.all_can_be_had("KV-BLOCK-009", "everybody has let go")
        return True

    def free_twice(self, lot: int, at: int) -> bool:
        """Free a block once more than it is held, in one call."""
        blocks = [block for block in self._held(lot, at) if not self.holders.blocks[block].pins]
        for block in blocks:
            times = self.holders.blocks[block].holders + 1
            self.pool.must_not("KV-BLOCK-006", "free", blocks=[block] * times)
        self.pool.prove_held("KV-BLOCK-006", blocks)
        return bool(blocks)

    def free_again(self, lot: int, at: int) -> bool:
        """Free a block that its allocation has let go of and that nobody holds."""
        had = self.lots.get(lot, self.past.get(lot, []))
        if not 0 <= at < len(had) or self.holders.state(had[at]) not in (FREE, FENCED):
            return False
        self.pool.must_not("KV-BLOCK-006", "free", blocks=[had[at]])
        self.pool.all_can_be_had("KV-BLOCK-006", f"after block {had[at]} was freed again, and refused")
        return True

    def free_idle(self, k: int) -> bool:
        """Free one of the blocks that nobody holds, the k-th by its id; most were never handed out."""
        own = range(int(self.pool.null), self.pool.num_blocks)
        idle = [block for block in own if self.holders.state(block) == FREE]
        if not 0 <= k < len(idle):
            return False
        self.pool.must_not("KV-BLOCK-006", "free", blocks=[idle[k]])
        self.pool.all_can_be_had("KV-BLOCK-006", f"after block {idle[k]} was freed, which nobody holds")
        return True

    def free_outside(self, lot: int, k: int) -> bool:
        """Free an id before or behind the pool, after blocks of the pool."""
        return self._foreign("free", lot, k if k < 0 else self.pool.num_blocks + k)

    def touch_outside(self, lot: int, k: int) -> bool:
        """Touch an id before or behind the pool, after blocks of the pool."""
        return self._foreign("touch", lot, k if k < 0 else self.pool.num_blocks + k)

    def free_null(self, lot: int) -> bool:
        """Free the null block, after others."""
        return self.pool.null and self._foreign("free", lot, 0)

    def touch_null(self, lot: int) -> bool:
        """Touch the null block, after others."""
        return self.pool.null and self._foreign("touch", lot, 0)

    def allocate_negative(self, count: int) -> bool:
        """Ask for fewer blocks than none."""
        if count > 0:
            self.pool.must_not("KV-BLOCK-013", "allocate", num_blocks=-count)
            self.pool.all_can_be_had("KV-BLOCK-013", f"after allocate({-count}) was refused")
        return count > 0

    def _foreign(self, operation: str, lot: int, block: int) -> bool:
        blocks = self._held(lot)
        self.pool.must_not("KV-BLOCK-007", operation, blocks=[*blocks, block])
        self.pool.prove_held("KV-BLOCK-007", blocks)
        return True

    def _own(self, lot: int, at: int | None = None) -> list[int]:
        """Return the blocks of an allocation that are not free and still its own."""
        blocks = self.lots.get(lot, [])
        if at is not None:
            blocks = blocks[at : at + 1] if at >= 0 else []
        return [b for b in blocks if b in self.holders.blocks and self.holders.blocks[b].owner == lot]

    def _held(self, lot: int, at: int | None = None) -> list[int]:
        return [block for block in self._own(lot, at) if self.holders.blocks[block].holders]
