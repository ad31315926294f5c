"""The history checker: replays what an engine did against shadow memory, and says where a law was broken.

    for line, event in events(stream, name):
        sanitizer.feed(line, event)

Every event changes the shadow as the engine's own memory was changed, right or wrong, and a breach is told
where it shows first: which requirement, at which line, whose block, and the earlier lines that led to it.

Realises: KV-BLOCK-042 history-wellformed, KV-BLOCK-044 no-leak.
For porters: replay what happened, not what should have; a checker that repairs its shadow loses the thread.
Source: Jepsen and Porcupine, which check recorded histories against a model.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

from kvref.errors import HistoryError
from kvref.memory.history import Event
from kvref.sanitizer import compute, life, pool, prefix, transfers
from kvref.sanitizer.findings import Finding
from kvref.sanitizer.lines import Loads, events
from kvref.sanitizer.state import EnoughFound, Limits, State

Handler = Callable[[State, int, Event], None]


def _again(state: State, line: int, event: Event) -> None:
    """`open`, which only the first line may be."""
    raise HistoryError("open comes again, expected it on the first line alone")


def _close(state: State, line: int, event: Event) -> None:
    """`close`: whatever nobody needs has been let go."""
    state.closed = line
    transfers.count_free(state, line, event)
    for request in [r for r in state.requests.values() if r.ended and r.holds]:
        blocks = [b for table in request.tables for b in table if b >= 0]
        listed = ", ".join(map(str, blocks[:8])) + ", …" * (len(blocks) > 8)
        message = f"request {request.name} {request.how} and still holds {len(blocks)} blocks: {listed}"
        facts = [*request.facts(), *state.blocks[blocks[0]].facts(blocks[0], "allocated", "published")]
        state.report("KV-BLOCK-044", line, message, facts)
    pinned = [(b, known) for b, known in state.blocks.items() if known.pins]
    for block, known in pinned:
        state.report(
            "KV-BLOCK-044", line, f"block {block} is still pinned", known.facts(block, "pinned", "freed")
        )
    for flight in state.flights.values():
        if flight.what == "transfer":
            blocks = list(flight.blocks)
            message = f"{flight.title} has not ended, and {len(blocks)} blocks wait for it"
            state.report("KV-BLOCK-044", line, message, [flight.told()])


#: Event -> what it does to the shadow.
HANDLERS: MappingProxyType[str, Handler] = MappingProxyType(
    {
        "open": _again,
        "request": life.arrive,
        "tokens": life.tokens,
        "decode": life.decode,
        "truncate": life.truncate,
        "fork": life.fork,
        "preempt": life.preempt,
        "finish": life.finish,
        "abort": life.abort,
        "allocate": pool.allocate,
        "free": pool.free,
        "pin": pool.pin,
        "unpin": pool.unpin,
        "copy": pool.copy,
        "replace": pool.replace,
        "compute": compute.compute,
        "write": compute.write,
        "read": compute.read,
        "publish": prefix.publish,
        "evict": prefix.evict,
        "hit": prefix.hit,
        "reset": prefix.reset,
        "snapshot": prefix.snapshot,
        "restore": prefix.restore,
        "discard": transfers.discard,
        "store": transfers.store,
        "load": transfers.load,
        "drop": transfers.drop,
        "begin": transfers.begin,
        "end": transfers.end,
        "close": _close,
    }
)


@dataclass(frozen=True)
class Report:
    """What a history showed."""

    name: str
    events: int
    findings: tuple[Finding, ...]
    closed: bool
    """Whether the history ends with `close`: if not, what is held at its end may or may not be leaked."""
    complete: bool
    """Whether all of it was read; it is not where as many findings as asked for came first."""

    def as_json(self) -> dict[str, Any]:
        """Return the report for a program."""
        findings = [finding.as_json() for finding in self.findings]
        return vars(self) | {"findings": findings}


class Sanitizer:
    """Judges the events of one history, one after another.

    `max_wait` is how many steps a request may wait while others compute, whatever the history says of it.
    """

    def __init__(
        self, *, max_findings: int = 100, max_wait: int | None = None, limits: Limits | None = None
    ) -> None:
        self._given = {"max_findings": max_findings, "max_wait": max_wait, "limits": limits}
        self._state: State | None = None
        self.events = self.line = 0

    def feed(self, line: int, event: Event) -> None:
        """Judge the next event, one that `kvref.memory.history.check` accepts.

        Raises: HistoryError if it cannot stand here; EnoughFound at as many findings as were asked for.
        """
        self.feed_all([(line, event)])

    def feed_all(self, events: Iterable[tuple[int, Event]]) -> None:
        """Judge events, each with the number of its line.

        Raises: as `feed`, with the number of the line in `line`.
        """
        state, handlers = self._state, HANDLERS
        for self.line, event in events:
            self.events += 1
            kind = event["event"]
            if state is not None and not state.closed:
                handlers[kind](state, self.line, event)
            elif state is not None:
                raise HistoryError(f"{kind} comes after close, expected nothing")
            elif kind != "open":
                raise HistoryError(f"the first event is {kind}, expected open")
            else:
                self._state = state = State(event, **self._given)  # type: ignore[arg-type]

    def check_invariants(self) -> None:
        """Assert that counts equal holders and that tails are what they are taken for, of all there is."""
        state = self._state
        if state is None:
            return
        tables = {r.name: [b for table in r.tables for b in table if b >= 0] for r in state.requests.values()}
        entries = Counter(block for row in tables.values() for block in row)
        for block, known in state.blocks.items():
            assert known.refs - known.pins == entries[block], f"block {block} is not held once an entry"
        for request in state.requests.values():
            assert request.holds == len(tables[request.name]), f"request {request.name} holds another number"
            assert request.computed <= len(request.symbols) + state.ahead, "more is computed than there is"
            tail = request.tail
            if tail is not None and tail.owner is request and request.computed <= request.tail_stop:
                assert tail.refs == 1, "a tail is shared"
                assert not tail.published, "a tail is published"
                assert tail.main is not None, "a tail was never written"
                assert tail.main.base + tail.main.hi == request.computed, "a tail is written elsewhere"
                assert tail.ends_at(tail.main.hi), "something lies behind a tail"
        entries_of_tables = sum(len(table) for r in state.requests.values() for table in r.tables)
        waiting = sum(len(flight.blocks) for flight in state.flights.values())
        assert state.entries == entries_of_tables + waiting, "entries are miscounted"
        assert state.held == sum(1 for k in state.blocks.values() if k.refs), "held blocks are miscounted"
        assert state.tokens == sum(len(r.symbols) for r in state.requests.values()), "tokens are miscounted"

    @property
    def findings(self) -> list[Finding]:
        """What was found so far."""
        return [] if self._state is None else self._state.findings

    @property
    def closed(self) -> bool:
        """Whether the history was closed."""
        return self._state is not None and bool(self._state.closed)


def sanitize(
    source: str | Path | BinaryIO,
    *,
    name: str | None = None,
    max_findings: int = 100,
    max_wait: int | None = None,
    loads: Loads | None = None,
) -> Report:
    """Judge a history, by its path or as a stream of bytes, plain or gzip.

    Raises: HistoryError naming file, line and field if it is no history; OSError if there is no such file.
    """
    if isinstance(source, str | Path):
        with Path(source).open("rb") as stream:
            return sanitize(
                stream, name=name or str(source), max_findings=max_findings, max_wait=max_wait, loads=loads
            )
    name = name or "history"
    sanitizer = Sanitizer(max_findings=max_findings, max_wait=max_wait)
    complete = True
    try:
        sanitizer.feed_all(events(source, name, loads))
    except EnoughFound:
        complete = False
    except HistoryError as error:
        known = str(error).startswith(f"{name}:")
        raise error if known else HistoryError(f"{name}:{sanitizer.line}: {error}") from None
    if not sanitizer.events:
        raise HistoryError(f"{name}:1: no event, expected open")
    return Report(name, sanitizer.events, tuple(sanitizer.findings), sanitizer.closed, complete)
