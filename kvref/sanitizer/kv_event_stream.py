"""A stream of KV-cache events from its first message to its last, held against the prefix model.

    sanitize_kv_events("events.jsonl.gz", copies="each")

A publisher numbers its batches. One that is missing leaves a hole, behind which what its source holds is not
known; one that comes again is passed over; numbers that begin again with a later time are a new engine, whose
cache is empty.

Realises: KV-PREFIX-046 mirror-equals.
For porters: a subscriber that joined late has missed something, whatever the numbers say.
Source: vLLM, ZmqEventPublisher: at least once, in order, numbered from 0.
"""

from pathlib import Path
from typing import BinaryIO

from kvref.errors import ArgumentError, HistoryError, shown
from kvref.sanitizer.kv_event_files import Reading
from kvref.sanitizer.kv_event_findings import Hole, KVEventReport
from kvref.sanitizer.kv_event_kinds import Lookup, Source
from kvref.sanitizer.kv_event_lookups import look_up
from kvref.sanitizer.kv_event_meanings import Point
from kvref.sanitizer.kv_event_rules import Rules
from kvref.sanitizer.kv_event_scheme import VllmScheme
from kvref.sanitizer.kv_events import Message, read_messages, worded
from kvref.sanitizer.lines import Loads
from kvref.sanitizer.mirror import Limits, Mirror
from kvref.sanitizer.state import EnoughFound

#: How often a key is told: once, or once for each copy.
COPIES = ("once", "each")
_HOLES = 100


class KVEvents:
    """Judges the messages of one stream, one after another."""

    def __init__(
        self,
        name: str = "events",
        *,
        copies: str = "once",
        scheme: VllmScheme | None = None,
        max_findings: int = 100,
        limits: Limits | None = None,
    ) -> None:
        if copies not in COPIES:
            raise ArgumentError(f"copies = {shown(copies)}, expected one of {', '.join(COPIES)}")
        self.report = KVEventReport(name, copies=copies)
        self.mirror = Mirror(each_copy=copies == "each", limits=limits)
        self._rules = Rules(self.mirror, self.report, scheme=scheme, max_findings=max_findings)
        self._last: dict[Source, tuple[int, float | None]] = {}

    def feed(self, line: int, message: Message) -> None:
        """Judge the next message.

        Raises: HistoryError if it is malformed, or too much is held; EnoughFound.
        """
        report = self.report
        report.messages += 1
        if not self._in_turn(line, message):
            report.repeated += 1
            return
        for number, event in message.read():
            point = Point(line, number)
            if isinstance(event, Lookup):
                report.lookups += 1
                look_up(self._rules, point, message.source, event)
            else:
                report.events += 1
                self._rules.happen(point, message.source, event)

    def _in_turn(self, line: int, message: Message) -> bool:
        """Compare the number of a batch with the one before; return whether it is new."""
        seq, source = message.seq, message.source
        if seq is None:
            return True
        last, then = self._last.get(source, (-1, None))
        if seq <= last:
            if message.time is None or then is None or message.time <= then:
                return False
            self.mirror.clear(source, Point(line, 0))
            self._rules.uncertain.pop(source, None)
            last = -1
        if seq > last + 1:
            hole = Hole(line, source, last + 1, seq - 1)
            self._rules.uncertain[source] = (line, hole.told())
            if len(self.report.holes) < _HOLES:
                self.report.holes.append(hole)
        self._last[source] = (seq, message.time)
        if len(self._last) > self.mirror.limits.places:
            raise HistoryError(
                f"more than {self.mirror.limits.places} workers and ranks, expected at most that"
            )
        return True


def sanitize_kv_events(
    source: str | Path | BinaryIO,
    *,
    name: str | None = None,
    copies: str = "once",
    scheme: VllmScheme | None = None,
    max_findings: int = 100,
    loads: Loads | None = None,
) -> KVEventReport:
    """Judge a stream of events, by its path or as a stream of bytes, JSON lines or msgpack, plain or gzip.

    Raises: HistoryError naming file, line and field if it is malformed; OSError if there is no such file.
    """
    if isinstance(source, str | Path):
        with Path(source).open("rb") as stream:
            return sanitize_kv_events(
                stream,
                name=name or str(source),
                copies=copies,
                scheme=scheme,
                max_findings=max_findings,
                loads=loads,
            )
    at = Reading(name or "events")
    judged = KVEvents(at.name, copies=copies, scheme=scheme, max_findings=max_findings)
    try:
        for message in read_messages(source, at, loads):
            judged.report.unit = at.unit
            try:
                judged.feed(at.number, message)
            except HistoryError as error:
                raise worded(error, at) from None
    except EnoughFound:
        judged.report.complete = False
    if not judged.report.messages:
        raise HistoryError(f"{at.name}:1: no message, expected a batch of events, an event or a lookup")
    return judged.report
