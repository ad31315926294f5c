"""Histories in few words, for tests: one function an event, and what the sanitizer finds in them."""

import io
import json
from typing import Any

from hypothesis import strategies as st

from kvref.memory.events import EVENTS
from kvref.memory.fields import SCHEMA
from kvref.memory.history import Event
from kvref.sanitizer.findings import Finding
from kvref.sanitizer.lines import Loads
from kvref.sanitizer.sanitizer import Report, sanitize

PROMPT = list(range(100, 110))


def opened(**changed: Any) -> Event:
    """The first line: eight blocks of four."""
    first = {"event": "open", "schema": SCHEMA, "num_blocks": 8, "block_size": 4} | changed
    return {name: value for name, value in first.items() if value is not None}


def say(event: str, **fields: Any) -> Event:
    """Any event."""
    return {"event": event, **fields}


def arrive(request: int | str, tokens: list[int] = PROMPT, **namespace: Any) -> Event:
    """A request with its prompt."""
    return say("request", request=request, tokens=tokens, **namespace)


def allocate(request: int | str, *blocks: int, **more: Any) -> Event:
    """Blocks join a table."""
    return say("allocate", request=request, blocks=list(blocks), **more)


def compute(*rows: tuple[int | str, int, int], **more: Any) -> Event:
    """Rows (request, start, count) of a step."""
    names, starts, counts = ([row[i] for row in rows] for i in range(3))
    return say("compute", requests=names, starts=starts, counts=counts, **more)


def decode(*rows: tuple[int | str, int]) -> Event:
    """Rows (request, token)."""
    return say("decode", requests=[name for name, _ in rows], tokens=[token for _, token in rows])


def publish(*blocks: int, **more: Any) -> Event:
    """Blocks can be found."""
    return say("publish", blocks=list(blocks), **more)


def hit(request: int | str, count: int, *blocks: int, **more: Any) -> Event:
    """Published blocks join a table."""
    return say("hit", request=request, count=count, blocks=list(blocks), **more)


def free(request: int | str, *blocks: int) -> Event:
    """A request lets go of some blocks, or of all."""
    return say("free", request=request, **({"blocks": list(blocks)} if blocks else {}))


def cached(request: int | str = 1, **namespace: Any) -> list[Event]:
    """A request of ten tokens that came, published blocks 0 and 1, and went."""
    return [
        arrive(request, **namespace),
        allocate(request, 0, 1, 2),
        compute((request, 0, 10)),
        publish(0, 1),
        say("finish", request=request),
        free(request),
    ]


def judge(*events: Event, loads: Loads | None = None, **options: Any) -> Report:
    """What the sanitizer says; a first line is put before the events if they have none."""
    if not events or events[0]["event"] != "open":
        events = (opened(), *events)
    text = "\n".join(json.dumps(event) for event in events)
    return sanitize(io.BytesIO(text.encode()), name="history", loads=loads, **options)


def found(*events: Event, **options: Any) -> list[tuple[str, int]]:
    """Requirements and lines of all findings."""
    return [(finding.requirement, finding.line) for finding in judge(*events, **options).findings]


def only(*events: Event, **options: Any) -> Finding:
    """The one finding there is."""
    (finding,) = judge(*events, **options).findings
    return finding


def stubborn(raw: bytes) -> Any:
    """A parser with words of its own, which makes a float of a large integer, as orjson does."""

    def integer(digits: str) -> int | float:
        return int(digits) if len(digits) < 19 else float(digits) if len(digits) < 300 else int("")

    try:
        return json.loads(raw.decode(), parse_constant=int, parse_int=integer)
    except ValueError:
        raise ValueError("it is not what I like") from None


_NAMES = st.sampled_from([1, 2, "a"])
_COUNT = st.integers(0, 12)
_BLOCKS = st.lists(st.integers(-1, 6), max_size=4)
_TOKENS = st.lists(st.integers(0, 3), max_size=10)

#: Field -> values of it that mean something in a pool of six blocks.
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "request": _NAMES,
    "parent": _NAMES,
    "tokens": _TOKENS,
    "salt": st.sampled_from(["", "s"]),
    "adapter": st.sampled_from(["", "a"]),
    "spans": st.sampled_from([[], [{"kind": "media", "digest": "d", "offset": 1, "length": 2}]]),
    "count": _COUNT,
    "start": _COUNT,
    "blocks": _BLOCKS,
    "slots": st.lists(st.integers(-1, 24), max_size=6),
    "index": st.integers(0, 3),
    "source": st.integers(0, 6),
    "target": st.integers(0, 6),
    "snapshot": _NAMES,
    "snapshots": st.lists(_NAMES, max_size=2),
    "tier": st.sampled_from(["host", "disk"]),
    "keys": st.lists(_NAMES, max_size=3),
    "step": st.integers(0, 2),
    "transfer": st.integers(0, 2),
    "kind": st.sampled_from(["send", "receive"]),
    "failed": st.booleans(),
    "num_free": st.integers(0, 6),
}


@st.composite
def _line(draw: st.DrawFn) -> Event:
    kind = draw(st.sampled_from([kind for kind in EVENTS if kind not in ("open", "close")]))
    fields = EVENTS[kind]
    event: Event = {"event": kind}
    if kind in ("compute", "decode"):
        rows = draw(st.lists(st.tuples(_NAMES, _COUNT, _COUNT), max_size=3))
        event["requests"] = [name for name, _, _ in rows]
        event["starts" if kind == "compute" else "tokens"] = [start for _, start, _ in rows]
        if kind == "compute":
            event["counts"] = [count for _, _, count in rows]
        return event
    for name in fields.required:
        event[name] = draw(VALUES[name])
    for name in fields.optional:
        if name in VALUES and draw(st.booleans()):
            event[name] = draw(VALUES[name])
    return event


#: Any well-formed event but the first and the last, over few names and few blocks.
LINES = _line()
