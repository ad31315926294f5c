"""An allocator under watch: every call is held to what the shadow of the pool allows.

A breach after which subject and shadow would only part further ends the program.
"""

from collections.abc import Mapping
from typing import Any

from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Failed
from kvref_conformance.programs.breach import Log, Stop
from kvref_conformance.programs.counting import FreeCount, has_null
from kvref_conformance.programs.holders import FENCED, FREE, PINNED, SHARED, FreeOrder, Holders
from kvref_conformance.programs.running import Session, attempt, is_refused

#: State of a block -> the requirement that it is not handed out in it, and why.
_NOT_YET = {
    FENCED: ("KV-BLOCK-011", "which a step in flight may still write"),
    PINNED: ("KV-BLOCK-012", "which is pinned"),
    SHARED: ("KV-BLOCK-005", "which not every holder has let go of"),
}
#: The owner of what is handed out only to see whether it can be.
NOBODY = -1


class WatchedPool:
    """A session on an allocator of `num_blocks` blocks, and who holds which."""

    def __init__(self, session: Session, num_blocks: int, claims: Claims, log: Log) -> None:
        self.session, self.num_blocks, self.log = session, num_blocks, log
        self.null = has_null(claims)
        self.holders = Holders(num_blocks - self.null)
        self.order = FreeOrder(claims.choice("free-order"), self.holders.capacity)
        self._free_count = FreeCount(session, num_blocks, claims, log)

    def must(self, requirement: str, operation: str, **arguments: Any) -> Mapping[str, Any]:
        """Do what must succeed. Raises: Stop if it does not."""
        answer = attempt(self.session, operation, **arguments)
        if isinstance(answer, Failed):
            self.log.breach(f"{_call(operation, arguments)}: {answer}", requirement)
            raise Stop
        return answer

    def must_not(self, requirement: str, operation: str, **arguments: Any) -> None:
        """Do what must be refused and change no count. Raises: Stop if it is not refused."""
        if not is_refused(self.session, operation, **arguments):
            self.log.breach(f"{_call(operation, arguments)} was not refused", requirement)
            raise Stop
        self.count(requirement)

    def allocate(self, owner: int, count: int) -> list[int]:
        """Hand out blocks that are free. Raises: Stop if blocks or refusal are wrong."""
        answer = attempt(self.session, "allocate", num_blocks=count)
        if isinstance(answer, Failed):
            message = f"allocate({count}) with {self.holders.num_free} blocks free: {answer}"
            self.log.breach(message, "KV-BLOCK-003", *self._also_refused(count))
            raise Stop
        blocks = self._handed_out(answer["blocks"], owner, count)
        self.holders.take(blocks, owner)
        self.count("KV-BLOCK-004")
        return blocks

    def allocate_too_many(self, owner: int, count: int) -> None:
        """Ask for more blocks than are free. Raises: Stop if they are handed out."""
        answer = attempt(self.session, "allocate", num_blocks=count)
        if not isinstance(answer, Failed):
            self._handed_out(answer["blocks"], owner, count)  # some of them have holders
            raise Stop
        self.count("KV-BLOCK-002")
        self.all_can_be_had("KV-BLOCK-002", f"after allocate({count}) was refused")

    def let_go(self, blocks: list[int]) -> list[int]:
        """Let go of held blocks once each; return those that are free now."""
        shared = any(self.holders.state(block) == SHARED for block in blocks)
        self.must("KV-BLOCK-009", "free", blocks=blocks)
        freed = self.holders.let_go(blocks)
        self.order.put(freed)
        self.count("KV-BLOCK-004", *(["KV-BLOCK-005"] if shared else []))
        return freed

    def prove_held(self, requirement: str, blocks: list[int]) -> None:
        """Let go of blocks as often as they are held: after a refusal that changed nothing, this works."""
        for block in blocks:
            for _ in range(self.holders.blocks[block].holders):
                self.must(requirement, "free", blocks=[block])
                self.order.put(self.holders.let_go([block]))
                self.count(requirement)

    def all_can_be_had(self, requirement: str, when: str) -> None:
        """Hand out all free blocks at once, and let go of them."""
        count = self.holders.num_free
        if not count:
            return
        answer = attempt(self.session, "allocate", num_blocks=count)
        if isinstance(answer, Failed):
            self.log.breach(f"{when}: allocate({count}) with {count} blocks free: {answer}", requirement)
            raise Stop
        blocks = self._handed_out(answer["blocks"], NOBODY, count)
        self.holders.take(blocks, NOBODY)
        self.let_go(blocks)

    def count(self, *requirements: str) -> None:
        """Hold the number of free blocks to the shadow's; what waits for a step may count or not."""
        free = self.holders.num_free
        self._free_count.check(*requirements, low=free, high=free + self.holders.num_fenced)

    def _also_refused(self, count: int) -> list[str]:
        """Return what else a refusal breaches: of the whole capacity, with nobody holding any of it."""
        if self.holders.blocks or count < self.holders.capacity:
            return []
        fresh = not self.order.seen
        return ["KV-BLOCK-008" if fresh and not self.null else "KV-BLOCK-009"]

    def _handed_out(self, blocks: list[int], owner: int, count: int) -> list[int]:
        """Hold blocks that were handed out to what may be."""
        said = f"allocate({count}) = {blocks}"
        if len(set(blocks)) != count or len(blocks) != count:
            self._stop(f"{said}, expected {count} different blocks", "KV-BLOCK-001")
        for block in blocks:
            if self.null and block == 0:
                self._stop(f"{said} holds the null block", "KV-BLOCK-008")
            if not 0 <= block < self.num_blocks:
                self._stop(f"{said} holds block {block}, which the pool does not have", "KV-BLOCK-001")
            if (state := self.holders.state(block)) != FREE:
                requirement, why = _NOT_YET.get(state, ("KV-BLOCK-001", "which has a holder"))
                whose = self.holders.blocks[block].owner
                lost = f"allocation {owner} writes over what allocation {whose} wrote"
                self._stop(f"{said} holds block {block}, {why}: {lost}", requirement)
        if wrong := self.order.take(blocks):
            self.log.breach(f"{said}: {wrong}, {self.order.order} is declared", "KV-BLOCK-010")
        return blocks

    def _stop(self, message: str, requirement: str) -> None:
        self.log.breach(message, requirement)
        raise Stop


def _call(operation: str, arguments: Mapping[str, Any]) -> str:
    """Return a call as a message shows it."""
    return f"{operation}({', '.join(map(str, arguments.values()))})"
