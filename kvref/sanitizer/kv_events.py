"""KV-cache events: what vLLM, SGLang and Dynamo publish about their caches, read one message after another.

A message is one of

    [ts, [event, …], rank]                          a batch of vLLM or SGLang, as msgspec writes it
    {"events": [event, …], "data_parallel_rank": n} the same with names
    {"batch": …, "worker": name, "seq": n}          a batch with its number, from whoever recorded it
    {"type": "BlockStored", …}                      an event alone
    {"event_id": n, "data": {…}, "dp_rank": n}      an event of Dynamo
    {"worker_id": n, "event": {"event_id": …}}      the same as its router has it
    {"lookup": {…}}                                 what the cache answered, for the mirror to be held to

A publisher numbers its batches, and a subscriber may miss some, or get some again. `seq` keeps the number.

Realises: KV-PREFIX-046 mirror-equals.
For porters: write `{"seq": …, "batch": …}`, or nobody can tell a stream with a hole from one without.
Source: vLLM, vllm/distributed/kv_events.py (ZmqEventPublisher); SGLang, srt/disaggregation/kv_events.py;
ai-dynamo-runtime 1.6.1.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from kvref.errors import HistoryError, shown
from kvref.sanitizer.kv_event_fields import LARGEST, Name, name_of, number_of, wrong
from kvref.sanitizer.kv_event_files import Reading, messages
from kvref.sanitizer.kv_event_forms import event_of
from kvref.sanitizer.kv_event_kinds import Event, Source
from kvref.sanitizer.lines import Loads, standard

_RANKS = ("data_parallel_rank", "attn_dp_rank", "dp_rank", "rank")


@dataclass(slots=True)
class Message:
    """One message: who sent it, which of theirs it is, and what it tells."""

    source: Source
    seq: int | None
    time: float | None
    events: list[Any]

    def read(self) -> Iterator[tuple[int, Event]]:
        """Read its events, each with its number from 1.

        Raises: HistoryError.
        """
        for number, raw in enumerate(self.events, 1):
            try:
                event = event_of(raw)
            except HistoryError as error:
                raise HistoryError(f"event {number}: {error}") from None
            yield number, event


def read_messages(stream: BinaryIO, at: Reading, loads: Loads | None = None) -> Iterator[Message]:
    """Read the messages of a stream, plain or gzip, JSON or msgpack; `at` says where the last one stood.

    Raises: HistoryError naming the file, the line and the field.
    """
    for raw in messages(stream, at, loads):
        try:
            message = message_of(raw)
        except HistoryError as error:
            raise worded(error, at) from None
        yield message


def worded(error: HistoryError, at: Reading) -> HistoryError:
    """Return an error of the last message that says where it is, in the words that Python's parser leads to.

    Another one may have made a float of an integer that is too large, and the message would show that.
    """
    try:
        for _ in message_of(standard(at.raw)).read() if at.raw else ():
            pass
    except HistoryError as exact:
        return at.told(exact)
    except (ValueError, RecursionError):
        pass
    return at.told(error)


def message_of(raw: Any) -> Message:
    """Read a message; its events are read one by one, when they are asked for.

    Raises: HistoryError.
    """
    if type(raw) is list:
        return _batch(raw, "", None)
    if type(raw) is not dict:
        raise HistoryError(f"{shown(raw)}, expected a batch of events, an event or a lookup")
    worker: Name = name_of("worker", raw.get("worker", ""))
    if "batch" in raw or "events" in raw:
        seq = raw.get("seq")
        numbered = None if seq is None else number_of("seq", seq)
        return _batch(raw.get("batch", raw), worker, numbered)
    if "worker_id" in raw:
        event, tier = raw.get("event"), raw.get("storage_tier")
        if type(event) is not dict:
            raise wrong("event", event, "an object with event_id and data")
        source = Source(name_of("worker_id", raw["worker_id"]), _rank(event))
        return Message(source, None, None, [{**event, "storage_tier": tier}])
    if any(name in raw for name in ("data", "type", "lookup")):
        return Message(Source(worker, _rank(raw)), None, None, [raw])
    expected = "one with batch, events, type, data or lookup"
    raise HistoryError(f"an object with {shown(sorted(map(str, raw)))}, expected {expected}")


def _batch(raw: Any, worker: Name, seq: int | None) -> Message:
    if type(raw) is dict:
        time, events, rank = raw.get("ts"), raw.get("events"), _rank(raw)
    elif type(raw) is list and len(raw) >= 2:
        time, events, rank = raw[0], raw[1], _rank({"rank": raw[2]} if len(raw) > 2 else {})
    else:
        raise HistoryError(f"a batch of {shown(raw)}, expected [ts, events, rank]")
    if time is not None and type(time) not in (int, float):
        raise wrong("ts", time, "a number of seconds")
    if type(events) is not list:
        raise wrong("events", events, "a list of events")
    return Message(Source(worker, rank), seq, time, events)


def _rank(raw: dict[str, Any]) -> int | None:
    for name in _RANKS:
        if raw.get(name) is not None:
            return number_of(name, raw[name], 0, LARGEST)
    return None
