"""Everything the sanitizer knows between two events, and how a breach becomes a finding.

Memory is bounded by the blocks that were ever touched and by the tokens of live requests, whatever the length
of the history; `Limits` says how many of each a history may have before it is refused.

Realises: KV-BLOCK-004 counts-add-up, KV-BLOCK-005 last-holder.
For porters: one record a block, one a live request, and lines instead of events kept.
Source: the definition.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from kvref.errors import HistoryError
from kvref.memory.history import Event, expanded
from kvref.sanitizer.findings import Fact, Finding, in_order
from kvref.sanitizer.opened import ahead, sizes, windows
from kvref.sanitizer.requests import Request
from kvref.sanitizer.shadow import Block, Flight, Name, Written
from kvref.sanitizer.tables import Tables

#: How many ended requests are remembered, for messages about them.
_REMEMBERED = 4096


@dataclass(frozen=True)
class Limits:
    """The most a history may have of each at one time, so that a small file cannot fill the memory."""

    blocks: int = 1 << 22
    requests: int = 1 << 18
    tokens: int = 1 << 28
    """Tokens of live requests, 4 bytes each."""
    entries: int = 1 << 24
    """Entries of tables."""
    places: int = 1 << 20
    """Places in tiers, and snapshots."""
    flights: int = 1 << 14
    """Steps and transfers in flight."""


class EnoughFound(Exception):
    """As many findings as were asked for."""


class State(Tables):
    """The shadow of one pool and of all that use it."""

    def __init__(
        self,
        opened: Event,
        *,
        max_findings: int = 100,
        max_wait: int | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.max_findings = max_findings
        self.findings: list[Finding] = []
        self.num_blocks: int = opened["num_blocks"]
        super().__init__(sizes(opened))
        self.single = self.sizes[0] if len(self.sizes) == 1 else 0
        """The block size where there is one group, else 0."""
        self.stride = next(
            (s for s in (self.sizes[0], 128, 96, 80, 64) if s <= 128 and not self.sizes[0] % s), 128
        )
        self.windows = windows(opened, len(self.sizes))
        self.first = int(opened.get("null_block", False))
        if self.num_blocks <= self.first:
            raise HistoryError("open.num_blocks = 1, expected one besides the null block")
        self.scheduled = opened.get("publish") == "scheduled"
        self.ahead = ahead(opened)
        self.max_wait: int | None = max_wait if max_wait is not None else opened.get("max_wait")
        self.tiers: dict[str, int] = opened.get("tiers", {})

        self.ended: OrderedDict[Name, Fact] = OrderedDict()
        self.held = 0
        self.tokens = self.entries = 0
        self.flights: dict[tuple[str, Name], Flight] = {}
        self.step: Flight | None = None
        """The step that began last."""
        self.stepped = False
        """Whether the history says where steps begin and end."""
        self.active = False
        """Whether something was computed since the last step ended."""
        self.steps = 0
        """How many have ended."""
        self.next_look = 0 if self.max_wait is None else self.max_wait + 1
        """The first number of steps at which a request can have starved."""
        self.cells: dict[tuple[str, Name], tuple[tuple[Written, ...], int]] = {}
        self.stored: dict[str, int] = {}
        self.dropped: OrderedDict[tuple[str, Name], int] = OrderedDict()
        self.snapshots: dict[Name, tuple[int, int, Name, int]] = {}
        """Snapshot -> its label, its number of tokens, whose it is, and the line."""
        self.recurrent = False
        """Whether the history tells of recurrent states."""
        self.was_reset = 0
        """Where everything published was forgotten last."""
        self.closed = 0

    @property
    def capacity(self) -> int:
        """How many blocks there are to hand out."""
        return self.num_blocks - self.first

    def report(self, requirement: str, line: int, message: str, facts: Iterable[Fact | None] = ()) -> None:
        """Note a breach; facts without a line did not happen and are left out.

        Raises: EnoughFound.
        """
        self.findings.append(Finding(requirement, line, message, in_order(facts)))
        if len(self.findings) >= self.max_findings:
            raise EnoughFound

    def block(self, block: int, line: int, doing: str, who: Name | None = None) -> Block | None:
        """Return the record of a block; report one that the pool does not have, and return None."""
        known = self.blocks.get(block)
        if known is not None:
            return known
        if self.first <= block < self.num_blocks:
            if len(self.blocks) >= self.limits.blocks:
                raise HistoryError(f"more than {self.limits.blocks} blocks are used, expected at most that")
            self.blocks[block] = known = Block()
            return known
        doing = doing if who is None else f"{doing} of request {who}"
        if block == 0:
            self.report("KV-BLOCK-008", line, f"{doing} names block 0, the null block, which nobody holds")
        else:
            last = self.num_blocks - 1
            self.report(
                "KV-BLOCK-007",
                line,
                f"{doing} names block {block}, but the pool has blocks {self.first} to {last}",
            )
        return None

    def entry(self, block: int, line: int, doing: str, who: Name) -> Block | None:
        """Return the record of a block for an entry of a table, which may be none, or the null block."""
        return None if block < self.first else self.block(block, line, doing, who)

    def request(self, name: Name, line: int, doing: str) -> Request | None:
        """Return a request that has not ended; report one that has, or never began, and return None."""
        request = self.requests.get(name)
        if request is not None and not request.ended:
            return request
        fact = (request.ended, f"request {name} {request.how}") if request else self.ended.get(name)
        if fact is None:
            message = f"{doing} of request {name}, which has not begun, or has ended and let go of everything"
        else:
            message = f"{doing} of request {name}, which had ended"
        self.report("KV-BLOCK-033", line, message, [fact])
        return None

    def group(self, event: Event) -> int:
        """Return the group an event names."""
        group: int = event.get("group", 0)
        if group >= len(self.sizes):
            raise HistoryError(f"{event['event']}.group = {group}, expected 0 to {len(self.sizes) - 1}")
        return group

    def begin(self, request: Request) -> None:
        """Let a request be known."""
        if len(self.requests) >= self.limits.requests:
            raise HistoryError(f"more than {self.limits.requests} requests are live, expected at most that")
        self.requests[request.name] = request
        self.ended.pop(request.name, None)
        self.count_tokens(len(request.symbols))

    def count_tokens(self, count: int) -> None:
        """Count tokens of live requests.

        Raises: HistoryError if there are more than the limit.
        """
        self.tokens += count
        if self.tokens > self.limits.tokens:
            raise HistoryError(
                f"live requests have more than {self.limits.tokens} tokens, expected at most that"
            )

    def count_entries(self, count: int) -> None:
        """Count entries of tables.

        Raises: HistoryError if there are more than the limit.
        """
        self.entries += count
        if self.entries > self.limits.entries:
            raise HistoryError(f"tables have more than {self.limits.entries} entries, expected at most that")

    def forget(self, request: Request) -> None:
        """Forget a request that has ended and holds nothing."""
        if request.ended and not request.holds:
            self.tokens -= len(request.symbols)
            self.entries -= sum(map(len, request.tables))
            del self.requests[request.name]
            self.ended[request.name] = (request.ended, f"request {request.name} {request.how}")
            if len(self.ended) > _REMEMBERED:
                self.ended.popitem(last=False)

    def hold(self, block: Block, who: Name, line: int) -> None:
        """Let a block have one more holder."""
        self.held += not block.refs
        block.refs += 1
        block.holder, block.held, block.owner = who, line, None

    def let_go(self, block: Block, request: Request, line: int) -> None:
        """Let a request hold a block no longer, and keep of its labels what others can ask for."""
        block.refs -= 1
        request.holds -= 1
        block.owner = None
        block.freed, block.freed_by = line, request.name
        if not block.refs:
            self.held -= 1
            block.disputed = False
        if request.step is not None and not request.step.done:
            block.wait_for(request.step)  # also if others hold it: they may let go of it before the step ends
        block.settle(request.labels, keep=bool(block.refs or block.published))

    def tick(self, line: int) -> None:
        """Count a step in which something was computed, and report who has waited for too many of them."""
        if not self.active:
            return
        self.active = False
        self.steps += 1
        if self.max_wait is None or self.steps < self.next_look:
            return
        oldest = self.steps
        for request in self.requests.values():
            if request.ended or request.starved:
                continue
            waited = self.steps - request.progress
            if waited > self.max_wait:
                request.starved = True
                message = (
                    f"request {request.name} has waited for {waited} steps in which others were computed, "
                    f"expected at most {self.max_wait}"
                )
                arrived = (request.line, f"request {request.name} arrived")
                self.report("KV-BLOCK-041", line, message, [arrived, *request.facts()])
            else:
                oldest = min(oldest, request.progress)
        self.next_look = oldest + self.max_wait + 1


def ids(event: Event, field: str = "blocks") -> list[int]:
    """Return the block ids, or slots, of an event.

    Raises: HistoryError if there are too many for one event.
    """
    blocks: list[int] = event[field]
    if len(blocks) == 1 and type(blocks[0]) is int:
        return blocks
    try:
        return expanded(blocks)
    except HistoryError as error:
        raise HistoryError(f"{event['event']}.{field}: {error}") from None
