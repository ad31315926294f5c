"""Steps of an allocator's program that must be refused, and steps that may be.

These must be refused, where k counts from the end of the pool, or before its beginning if it is negative:

    free_twice a i · unpin_twice a i         once more than it is held, or pinned, in one call
    free_again a i · free_idle k             what nobody holds: it was let go of, or is the k-th free block
    free_outside a k · touch_outside a k · pin_outside a k · unpin_outside a k
    free_null a · touch_null a · pin_null a · unpin_null a
    free_alias a i · touch_alias a i · pin_alias a i · unpin_alias a i
                                 ids whose last 8 or 16 bits are a block's
    allocate_negative n

Before and after each of these all free blocks are handed out and let go of. If that works before and not
after, the step has changed what it must not; the blocks that it named are let go of and counted as well.

These may be refused, and whoever does them has to do them right:

    allocate_none · free_none · touch_none · pin_none · unpin_none
                                 no blocks at all
    free_together a i · touch_together a i n a block named as often as it is held, or n times, in one call
    unpin_together a i · pin_together a i n  the same of pins
    touch_idle a k · pin_idle a k            the k-th free block is held, or pinned, as allocation a
    touch_waiting a i            a block that waits for a step is held again
    free_pinned a i · touch_pinned a i       a pinned block that no request holds
"""

from typing import Any

from kvref_conformance.contracts import Failed
from kvref_conformance.managers import MAX_LIST
from kvref_conformance.programs.breach import Stop
from kvref_conformance.programs.holders import FENCED, FREE, PINNED, Held
from kvref_conformance.programs.lots import Lots
from kvref_conformance.programs.running import attempt
from kvref_conformance.programs.watched_pool import WatchedPool

_EVERY = ("free", "touch", "pin", "unpin")
#: Step -> how many numbers it takes.
ODD = {
    **{f"{operation}_{how}": 2 for how in ("outside", "alias") for operation in _EVERY},
    **{f"{operation}_null": 1 for operation in _EVERY},
    **dict.fromkeys(("free_twice", "unpin_twice", "free_again", "free_together"), 2),
    **dict.fromkeys(("touch_idle", "pin_idle", "touch_waiting", "free_pinned", "touch_pinned"), 2),
    **dict.fromkeys(("free_idle", "allocate_negative"), 1),
    **dict.fromkeys(("allocate_none", *(f"{operation}_none" for operation in _EVERY)), 0),
    "unpin_together": 2,
    **dict.fromkeys(("touch_together", "pin_together"), 3),
}
#: Bits that an id may be cut to. Counts of more than 32 bits are asked nowhere: whoever takes one at its word
#: takes all memory there is. An id is only looked up.
WIDTHS = (8, 16, 32)


class OddCalls:
    """Performs these steps on one allocator."""

    def __init__(self, pool: WatchedPool, lots: Lots) -> None:
        self.pool, self.holders, self.lots = pool, pool.holders, lots

    def perform(self, name: str, *numbers: int) -> bool:
        """Perform a step, or pass it over."""
        operation, _, how = name.partition("_")
        if operation in ("pin", "unpin") and not self.pool.has_pins:
            return False
        done: bool = getattr(self, how)(operation, *numbers)
        return done

    def twice(self, operation: str, lot: int, at: int) -> bool:
        """Let go of a block, or of its pins, once more than it is held, in one call that names others, too.

        Whether a pin is a holder that `free` may let go of is open, so pinned blocks are not freed here.
        """
        blocks = self.lots.own(lot, at)
        if operation == "free":
            blocks = [b for b in self.lots.in_requests(lot, at) if not self.holders.blocks[b].pins]
        held = [self.holders.blocks[block] for block in blocks]
        times = sum(one.holders if operation == "free" else one.pins for one in held) + 1
        if not blocks or times > MAX_LIST:
            return False
        others = [b for b in self._may_name(operation, lot) if b not in blocks][: MAX_LIST - times]
        self._before(operation)
        self.pool.must_not(operation, "KV-BLOCK-006", blocks=[*blocks * (times - 1), *others, *blocks])
        self.pool.prove_held("KV-BLOCK-006", [*blocks, *others])
        return True

    def again(self, operation: str, lot: int, at: int) -> bool:
        """Free a block that its allocation has let go of and that nobody holds."""
        blocks = [b for b in self.lots.had(lot, at) if self.holders.state(b) in (FREE, FENCED)]
        if blocks:
            self._before(operation)
            self.pool.must_not(operation, "KV-BLOCK-006", blocks=blocks)
            after = f"after block {blocks[0]} was freed again, and refused"
            self.pool.all_can_be_had("KV-BLOCK-006", after, "KV-BLOCK-006")
        return bool(blocks)

    def idle(self, operation: str, *numbers: int) -> bool:
        """Free one of the blocks that nobody holds, the k-th by its id; or hold it, which may be refused."""
        *lots, k = numbers
        own = range(int(self.pool.null), self.pool.num_blocks)
        idle = [block for block in own if self.holders.state(block) == FREE]
        if not 0 <= k < len(idle) or not all(map(self.lots.may_begin, lots)):
            return False
        if self.pool.order.seen or not lots:  # what was never handed out is asked as it is
            self._before(operation)
        if lots:
            self._hold_idle(operation, lots[0], idle[k])
            return True
        self.pool.must_not(operation, "KV-BLOCK-006", blocks=[idle[k]])
        after = f"after block {idle[k]} was freed, which nobody holds"
        self.pool.all_can_be_had("KV-BLOCK-006", after, "KV-BLOCK-006")
        return True

    def outside(self, operation: str, lot: int, k: int) -> bool:
        """Name an id before or behind the pool, after blocks of the pool."""
        return self._foreign(operation, lot, k if k < 0 else self.pool.num_blocks + k)

    def null(self, operation: str, lot: int) -> bool:
        """Name the null block, after others."""
        return self.pool.null and self._foreign(operation, lot, 0)

    def alias(self, operation: str, lot: int, at: int) -> bool:
        """Name ids that are a block's if they are cut to fewer bits."""
        blocks = self._may_name(operation, lot, at)
        aliases = [block + 2**width for block in blocks for width in WIDTHS]
        foreign = [block for block in aliases if block >= self.pool.num_blocks]
        if foreign:
            self._before(operation)
            for block in foreign:
                self.pool.must_not(operation, "KV-BLOCK-007", blocks=[block])
            self.pool.prove_held("KV-BLOCK-007", blocks)
        return bool(foreign)

    def negative(self, operation: str, count: int) -> bool:
        """Ask for fewer blocks than none."""
        if count > 0:
            self._before(operation)
            self.pool.must_not(operation, "KV-BLOCK-013", num_blocks=-count)
            after = f"after allocate({-count}) was refused"
            self.pool.all_can_be_had("KV-BLOCK-013", after, "KV-BLOCK-013")
        return count > 0

    def none(self, operation: str) -> bool:
        """Name no block, or ask for none."""
        self._before(operation)
        named: dict[str, Any] = {"num_blocks": 0} if operation == "allocate" else {"blocks": []}
        answer = attempt(self.pool.session, operation, **named)
        if not isinstance(answer, Failed) and answer.get("blocks"):
            self.pool.stop(f"allocate(0) = {answer['blocks']}, expected no block", "KV-BLOCK-001")
        self.pool.count("KV-BLOCK-004")
        self.pool.all_can_be_had("KV-BLOCK-005", f"after {operation} of no blocks", "KV-BLOCK-005")
        return True

    def together(self, operation: str, lot: int, at: int, times: int = 0) -> bool:
        """Name a block several times in one call."""
        known = self.holders.blocks
        if operation == "unpin":
            own = [block for block in self.lots.pinned(lot, at) if self.holders.may_unpin(block)]
            blocks = [block for block in own for _ in range(known[block].pins)]
        else:
            own = self.lots.in_requests(lot, at)
            more = max(times, 0)
            blocks = [b for b in own for _ in range(known[b].holders if operation == "free" else more)]
        if not 2 <= len(blocks) <= MAX_LIST:
            return False
        self._before(operation)
        if not isinstance(attempt(self.pool.session, operation, blocks=blocks), Failed):
            self._together(operation, blocks)
        kept, returns = (
            ("KV-BLOCK-012",) * 2 if operation in ("pin", "unpin") else ("KV-BLOCK-005", "KV-BLOCK-009")
        )
        self.pool.count("KV-BLOCK-004", kept)
        self.pool.all_can_be_had(returns, f"after {operation} of block {blocks[0]}, named often")
        return True

    def _together(self, operation: str, blocks: list[int]) -> None:
        """Note what one call has done that named blocks several times."""
        if operation == "touch":
            self.holders.touch(blocks)
        elif operation == "pin":
            self.holders.pin(blocks)
        else:
            free = self.holders.let_go if operation == "free" else self.holders.unpin
            self.pool.order.put(free(blocks))

    def waiting(self, operation: str, lot: int, at: int) -> bool:
        """Hold a block again that waits for a step."""
        blocks = [block for block in self.lots.own(lot, at) if self.holders.state(block) == FENCED]
        if not blocks:
            return False
        self._before(operation)
        if not isinstance(attempt(self.pool.session, operation, blocks=blocks), Failed):
            self.holders.blocks.update({block: Held(lot) for block in blocks})
        self.pool.count("KV-BLOCK-004")
        self.pool.all_can_be_had("KV-BLOCK-011", f"after {operation} of block {blocks[0]}, which waited")
        return True

    def pinned(self, operation: str, lot: int, at: int) -> bool:
        """Hold a block again that only pins hold; or free it: where that is done, nothing can be judged."""
        blocks = [block for block in self.lots.own(lot, at) if self.holders.state(block) == PINNED]
        if not blocks:
            return False
        self._before(operation)
        refused = isinstance(attempt(self.pool.session, operation, blocks=blocks), Failed)
        if not refused and operation == "touch":
            self.holders.touch(blocks)
        self.pool.count("KV-BLOCK-004", "KV-BLOCK-012")
        self.pool.all_can_be_had("KV-BLOCK-012", f"after {operation} of block {blocks[0]}, which is pinned")
        if not refused and operation == "free":
            raise Stop
        return True

    def _before(self, operation: str) -> None:
        """See that all is well before a step is held to have changed nothing."""
        self.pool.all_can_be_had("KV-BLOCK-003", f"before {operation} is called")

    def _hold_idle(self, operation: str, lot: int, block: int) -> None:
        if not isinstance(attempt(self.pool.session, operation, blocks=[block]), Failed):
            self.pool.order.leave(block)
            pins = int(operation == "pin")
            self.holders.blocks[block] = Held(lot, holders=1 - pins, pins=pins)
            self.lots.held[lot] = [block]
        self.pool.count("KV-BLOCK-004")
        requirement = "KV-BLOCK-012" if operation == "pin" else "KV-BLOCK-001"
        self.pool.all_can_be_had(requirement, f"after {operation} of block {block}, which was free")

    def _foreign(self, operation: str, lot: int, block: int) -> bool:
        blocks = self._may_name(operation, lot)
        self._before(operation)
        self.pool.must_not(operation, "KV-BLOCK-007", blocks=[*blocks, block])
        self.pool.prove_held("KV-BLOCK-007", blocks)
        return True

    def _may_name(self, operation: str, lot: int, at: int | None = None) -> list[int]:
        return self.lots.pinned(lot, at) if operation == "unpin" else self.lots.in_requests(lot, at)
