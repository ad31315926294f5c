"""An allocator under watch: every call is held to what the shadow of the pool allows.

A breach after which subject and shadow would only part further ends the program.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Failed
from kvref_conformance.managers import MAX_LIST
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
        self.null, self.has_pins = has_null(claims), "pin" in claims.features
        self.holders = Holders(num_blocks - self.null)
        self.order = FreeOrder(claims.choice("free-order"), self.holders.capacity)
        self._free_count = FreeCount(session, num_blocks, claims, log)

    def must(self, operation: str, *requirements: str, **arguments: Any) -> Mapping[str, Any]:
        """Do what must succeed. Raises: Stop if it does not, which breaches the requirements."""
        answer = attempt(self.session, operation, **arguments)
        if isinstance(answer, Failed):
            self.stop(f"{_call(operation, arguments)}: {answer}", *requirements)
        return answer

    def must_not(self, operation: str, *requirements: str, **arguments: Any) -> None:
        """Do what must be refused and change no count. Raises: Stop if it is not refused."""
        if not is_refused(self.session, operation, **arguments):
            self.stop(f"{_call(operation, arguments)} was not refused", *requirements)
        self.count(*requirements)

    def allocate(self, owner: int, count: int) -> list[int]:
        """Hand out blocks that are free, in pieces that one answer can hold. Raises: Stop if one is wrong."""
        handed_out: list[int] = []
        for piece in pieces(range(count)):
            blocks = self._allocate(owner, len(piece), ("KV-BLOCK-003", *self._also_refused(count)))
            self.holders.take(blocks, owner)
            handed_out += blocks
        self.count("KV-BLOCK-004")
        return handed_out

    def allocate_too_many(self, owner: int, count: int) -> None:
        """Ask for more blocks than are free. Raises: Stop if they are handed out."""
        answer = attempt(self.session, "allocate", num_blocks=count)
        if not isinstance(answer, Failed):
            self._handed_out(answer["blocks"], owner, count)  # some of them have holders
            raise Stop
        self.count("KV-BLOCK-002")
        self.all_can_be_had("KV-BLOCK-002", f"after allocate({count}) was refused", "KV-BLOCK-002")

    def let_go(self, blocks: list[int]) -> list[int]:
        """Let go of held blocks once each; return those that are free now."""
        shared = ["KV-BLOCK-005"] if any(self.holders.state(block) == SHARED for block in blocks) else []
        freed = []
        for piece in pieces(blocks):
            self.must("free", "KV-BLOCK-009", *shared, blocks=piece)
            freed += self.holders.let_go(piece)
        self.order.put(freed)
        self.count("KV-BLOCK-004", *shared)
        return freed

    def prove_held(self, requirement: str, blocks: Sequence[int]) -> None:
        """Let go of blocks as often as they are held: after a refusal that changed nothing, this works.

        Pins are taken back first, where it is clear what a block waits for.
        """
        for block in blocks:
            while block in self.holders.blocks and self.holders.may_unpin(block):
                self.must("unpin", requirement, blocks=[block])
                self.order.put(self.holders.unpin([block]))
                self.count(requirement)
            for _ in range(self.holders.blocks[block].holders if block in self.holders.blocks else 0):
                self.must("free", requirement, blocks=[block])
                self.order.put(self.holders.let_go([block]))
                self.count(requirement)
        # Whoever hands out what waits for a step breaks that rule alone.
        waits = any(self.holders.state(block) == FENCED for block in blocks)
        self.all_can_be_had(requirement, "when all this was let go of", *(() if waits else (requirement,)))

    def all_can_be_had(self, requirement: str, when: str, *also: str) -> None:
        """Hand out all free blocks, ask for one more, and let go: none is missing, and none is somebody's.

        A block that is somebody's breaches `also` beside what keeps it his.
        """
        blocks: list[int] = []
        for piece in pieces(range(self.holders.num_free)):
            given = self._allocate(NOBODY, len(piece), (requirement,), f"{when}: ", also)
            self.holders.take(given, NOBODY)
            blocks += given
        more = attempt(self.session, "allocate", num_blocks=1)
        if not isinstance(more, Failed):
            self._handed_out(more["blocks"], NOBODY, 1, f"{when}: ", also)  # nobody's block is left
        if blocks:
            self.let_go(blocks)

    def count(self, *requirements: str) -> None:
        """Hold the number of free blocks to the shadow's; what waits for a step may count or not."""
        free = self.holders.num_free
        self._free_count.check(*requirements, low=free, high=free + self.holders.num_fenced)

    def stop(self, message: str, *requirements: str) -> NoReturn:
        """Write breaches down and end the program."""
        self.log.breach(message, *requirements)
        raise Stop

    def _allocate(
        self,
        owner: int,
        count: int,
        requirements: tuple[str, ...],
        when: str = "",
        also: tuple[str, ...] = (),
    ) -> list[int]:
        """Hand blocks out; a refusal breaches `requirements`, a block that is not free `also` more."""
        free = self.holders.num_free
        answer = attempt(self.session, "allocate", num_blocks=count)
        if isinstance(answer, Failed):
            self.stop(f"{when}allocate({count}) with {free} blocks free: {answer}", *requirements)
        return self._handed_out(answer["blocks"], owner, count, when, also)

    def _also_refused(self, count: int) -> list[str]:
        """Return what else a refusal breaches: of the whole capacity, with nobody holding any of it."""
        if self.holders.blocks or count < self.holders.capacity:
            return []
        fresh = not self.order.seen
        return ["KV-BLOCK-008" if fresh and not self.null else "KV-BLOCK-009"]

    def _handed_out(
        self, blocks: list[int], owner: int, count: int, when: str = "", also: tuple[str, ...] = ()
    ) -> list[int]:
        """Hold blocks that were handed out to what may be. Raises: Stop."""
        said = f"{when}allocate({count}) = {_short(blocks)}"
        if len(set(blocks)) != count or len(blocks) != count:
            self.stop(f"{said}, expected {count} different blocks", "KV-BLOCK-001", *also)
        for block in blocks:
            if self.null and block == 0:
                self.stop(f"{said} holds the null block", "KV-BLOCK-008", *also)
            if not 0 <= block < self.num_blocks:
                beyond = f"{said} holds block {block}, which the pool does not have"
                self.stop(beyond, "KV-BLOCK-001", *also)
            if (state := self.holders.state(block)) != FREE:
                requirement, why = _NOT_YET.get(state, ("KV-BLOCK-001", "which has a holder"))
                whose = self.holders.blocks[block].owner
                lost = f"allocation {owner} writes over what allocation {whose} wrote"
                self.stop(f"{said} holds block {block}, {why}: {lost}", requirement, *also)
        if wrong := self.order.take(blocks):
            self.log.breach(f"{said}: {wrong}, {self.order.order} is declared", "KV-BLOCK-010")
        return blocks


def pieces(blocks: Sequence[int]) -> Iterator[list[int]]:
    """Yield a list in pieces of which one call can pass each."""
    for first in range(0, len(blocks), MAX_LIST):
        yield list(blocks[first : first + MAX_LIST])


def _call(operation: str, arguments: Mapping[str, Any]) -> str:
    """Return a call as a message shows it."""
    return f"{operation}({', '.join(map(_short, arguments.values()))})"


def _short(value: Any) -> str:
    """Spell an argument; of a long list its first entries."""
    if isinstance(value, list) and len(value) > 12:
        return f"[{', '.join(map(str, value[:8]))}, … {len(value)} in all]"
    return str(value)
