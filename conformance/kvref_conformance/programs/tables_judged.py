"""Block tables, judged: after every step, what requests read, what they hold, and what is free.

The first step that shows a breach is the last one, unless only the count is wrong: tables and shadow would be
those of two different states.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Failed
from kvref_conformance.programs.appends import (
    Appended,
    copies_of,
    out_of_form,
    out_of_place,
    reachable,
    short_copies,
)
from kvref_conformance.programs.breach import Log, Names, Stop
from kvref_conformance.programs.counting import FreeCount, has_null
from kvref_conformance.programs.running import Session, attempt, is_refused
from kvref_conformance.programs.sharing import Sharing
from kvref_conformance.programs.watched_tables import NULL, Misread, WatchedTables


class TablesJudged:
    """A session on block tables, and what its requests should hold and read."""

    def __init__(self, session: Session, opens: Mapping[str, Any], claims: Claims, log: Log) -> None:
        self.session, self.log = session, log
        self.num_blocks: int = opens["num_blocks"]
        sizes: list[int] = opens["block_sizes"]
        self.groups = range(len(sizes))
        self.watched = WatchedTables(session, sizes, (NULL, 0) if has_null(claims) else (NULL,))
        self.count = FreeCount(session, self.num_blocks, claims, log)
        self.sharing = Sharing(self.count.capacity, sizes, opens.get("windows", [0] * len(sizes)))
        self._names = Names()
        self._cut: set[int] = set()
        """Requests that were cut back into a block that another one holds."""
        self._refused: dict[int, str] = {}
        """Requests of which something was refused since their last append, and what that must not breach."""
        self._told = False
        """Whether this step has shown a breach, counts aside."""

    def stop(self, message: str, *requirements: str) -> NoReturn:
        """Write breaches down and end the program."""
        self.log.breach(message, *requirements)
        raise Stop

    def must(self, requirement: str, operation: str, **arguments: int) -> None:
        """Do what must succeed. Raises: Stop if it does not."""
        answer = attempt(self.session, operation, **arguments)
        if isinstance(answer, Failed):
            self.stop(f"{operation}({', '.join(map(str, arguments.values()))}): {answer}", requirement)

    def begin(self, request: int, parent: int | None = None) -> None:
        """Let a request begin, with the tokens of its parent."""
        self.watched.tokens[request] = [] if parent is None else list(self.watched.tokens[parent])

    def end(self, request: int) -> None:
        """Let a request end: asking for its table must be refused."""
        del self.watched.tokens[request]
        self._cut.discard(request)
        self._refused.pop(request, None)
        if not is_refused(self.session, "block_table", request=request, group=0):
            self.stop(f"request {request} has a table after free({request})", "KV-BLOCK-033")

    def cut_back(self, request: int, count: int) -> None:
        """Let a request have only its first tokens."""
        del self.watched.tokens[request][count:]
        if any(self.sharing.is_shared(request, group) for group in self.groups):
            self._cut.add(request)

    def forked(self, parent: int, child: int) -> None:
        """Hold the tables of a new child to its parent's."""
        self.watched.ask()
        child_has, parent_has = (self.watched.tables[request] for request in (child, parent))
        if child_has != parent_has:
            message = (
                f"after fork({parent}, {child}) the child has blocks {child_has}, its parent {parent_has}"
            )
            self._tell(message, "KV-BLOCK-023")

    def appended(self, request: int, num_tokens: int, answer: Mapping[str, Any], *, fits: bool) -> None:
        """Make the copies, write the new tokens, and hold all that an append changed to what it should.

        One that does not fit and was not refused is judged by where it writes. Raises: Stop.
        """
        appended = Appended(
            request,
            self.sharing.num_tokens[request],
            num_tokens,
            answer["slots"],
            copies_of(answer),
            {
                g: self.watched.tables[request][g][-1]
                for g in self.groups
                if self.sharing.is_shared(request, g)
            },
        )
        for message, requirements in out_of_form(appended, answer, self.watched.block_sizes, self.num_blocks):
            self.stop(message, *requirements)
        for copy in appended.copies:
            self.watched.memory.copy(*copy)
        self.sharing.append(request, num_tokens)
        self.watched.grow(request, num_tokens, self.log.step)
        self.watched.ask()
        refused_before = self.refused_before(request)
        for message, requirements in out_of_place(appended, self.watched):
            self._tell(message, *requirements, *refused_before)
        for check in (reachable, short_copies):
            for message, requirements in check(appended, self.watched):
                self._tell(message, *requirements)
        self._check_blocks(appended)
        for group in self.groups:
            self.watched.write(request, group, appended.start, appended.slots(group))
        self._refused.pop(request, None)
        self._read_after(appended)
        self._cut.discard(request)
        if fits:
            self._settle("KV-BLOCK-032", request)
        elif self._told:
            raise Stop

    def refused(self, request: int, said: str) -> None:
        """Hold the state after an append that was refused to the state before it."""
        groups = ["KV-BLOCK-031"] if len(self.groups) > 1 else []
        self.unchanged(f"after {said}, was refused,", "KV-BLOCK-028", *groups)
        self.note_refusal(request, "KV-BLOCK-028")

    def note_refusal(self, request: int, requirement: str) -> None:
        """Remember that something was refused of a request: its next append shows whether that changed it."""
        self._refused[request] = requirement

    def refused_before(self, request: int) -> list[str]:
        """Return what the next append of a request breaches besides, if it goes wrong."""
        return [self._refused[request]] if request in self._refused else []

    def unchanged(self, said: str, *requirements: str) -> None:
        """Hold tables and count to those before. Raises: Stop."""
        before = self.watched.tables
        self.watched.ask()
        for request, rows in self.watched.tables.items():
            if rows != before[request]:
                message = f"{said} request {request} has blocks {rows}, before {before[request]}"
                self._tell(message, *requirements)
        self._close(*requirements)

    def after_step(self, requirement: str, request: int | None = None) -> None:
        """Read every request, and hold what it holds and what is free to what is due after a step.

        `requirement` is that of the step, `request` the one it was about. Raises: Stop.
        """
        self.watched.ask()
        for misread in self._misread():
            also = [requirement] if misread.request == request else []
            self._tell(str(misread), "KV-BLOCK-021", *also)
        self._settle(requirement, request)

    def as_told(self, requests: Sequence[int]) -> str:
        """Return the tables of requests, with blocks named by when they appeared."""
        null = self.watched.null
        rows = [row for request in requests for row in self.watched.tables.get(request, [])]
        named = [["-" if block in null else str(self._names.name(block)) for block in row] for row in rows]
        return " ".join(f"[{','.join(row)}]" for row in named)

    def _read_after(self, appended: Appended) -> None:
        """Read every request after an append; what is misread beside shared blocks was theirs to keep."""
        for misread in self._misread():
            also = ["KV-BLOCK-024"] if misread.group in appended.tails else []
            if also and misread.request != appended.request and appended.request in self._cut:
                also.append("KV-BLOCK-027")
            self._tell(str(misread), "KV-BLOCK-021", *also)

    def _misread(self) -> list[Misread]:
        return [
            misread
            for reader in self.sharing.rows
            for misread in self.watched.misread(
                reader, [self.sharing.num_pruned(reader, group) for group in self.groups]
            )
        ]

    def _check_blocks(self, appended: Appended) -> None:
        """Hold the blocks that are written to those of the pool. Raises: Stop."""
        for group in self.groups:
            size = self.watched.block_sizes[group]
            for block in dict.fromkeys(slot // size for slot in appended.slots(group)):
                if block in self.watched.null:
                    self.stop(f"{appended} writes into the null block", "KV-BLOCK-008")
                if not 0 <= block < self.num_blocks:
                    message = f"{appended} writes into block {block}, which the pool does not have"
                    self.stop(message, "KV-BLOCK-020")

    def _settle(self, requirement: str, request: int | None) -> None:
        """Hold the lengths of all tables, and the count, to what is due."""
        for reader in self.sharing.rows:
            right_before = True
            for group in self.groups:
                if fault := self._unfit(reader, group):
                    message, own = fault
                    also = [requirement] if reader == request else []
                    also += ["KV-BLOCK-031"] if group and right_before else []
                    self._tell(message, own, *also)
                    right_before = False
        self._close("KV-BLOCK-004", requirement)

    def _unfit(self, request: int, group: int) -> tuple[str, str] | None:
        """Return in words how a table differs from what its tokens need, and the requirement."""
        row, due = self.watched.tables[request][group], self.sharing.rows[request][group]
        there = [block not in self.watched.null for block in row]
        needs = [block is not None for block in due]
        while needs and not needs[-1]:  # nor has the table what stands behind its last block
            needs.pop()
        if there == needs:
            return None
        tokens = f"{self.sharing.num_tokens[request]} tokens in blocks of {self.watched.block_sizes[group]}"
        message = f"request {request} has blocks {row} for {tokens}, expected {sum(needs)}"
        if False in needs or False in there:
            return f"{message} after {needs.count(False)} pruned", "KV-BLOCK-030"
        return message, "KV-BLOCK-032"

    def _tell(self, message: str, *requirements: str) -> None:
        self.log.breach(message, *requirements)
        self._told = True

    def _close(self, *requirements: str) -> None:
        """Count what is free, let blocks that are in no table be new ones, and end if anything was told."""
        self.count.check(*requirements, low=self.sharing.num_free)
        self._names.keep(self.watched.blocks())
        if self._told:
            raise Stop
