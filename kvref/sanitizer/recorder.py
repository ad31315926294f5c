"""A recorder of histories for engines in Python: one method an event, one line each.

    with Recorder("history.jsonl", num_blocks=1024, block_size=16) as log:
        log.request(7, prompt)
        log.allocate(7, blocks)
        log.compute([7], starts=[0], counts=[len(prompt)])

The file ends with `close` if the block ends without an exception; a history that was cut short has no such
line, and is not asked whether all was let go. Threads may log at once, and their lines stand in the order in
which they came. A process that was forked from the one that records cannot log, and changes nothing.

For porters: every method is a line of JSON; another language needs no more than a print.
Source: the events of `kvref.memory.events`.
"""

import contextlib
import gzip
import json
import os
import threading
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from kvref.errors import HistoryError, shown
from kvref.memory.events import EVENTS
from kvref.memory.fields import SCHEMA
from kvref.memory.history import Event, check, compressed
from kvref.memory.namespace import COMMON, Namespace
from kvref.sanitizer.shadow import Name

Ints = Iterable[int]


class Recorder:
    """Writes a history to a file, gzip if its name ends in `.gz`; fields are those of the event `open`.

    Raises: HistoryError if an event is not well formed, or comes after the end; OSError, and then no more is
    written.
    """

    def __init__(
        self, path: str | Path, *, num_blocks: int, block_size: int | None = None, **opened: Any
    ) -> None:
        first = {"schema": SCHEMA, "num_blocks": num_blocks, "block_size": block_size, **opened}
        line = _line("open", first)
        self._file: IO[str] = _opened(Path(path))
        self._lock, self._process = threading.Lock(), os.getpid()
        self._file.write(line)
        _OPEN.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        with contextlib.suppress(OSError):  # what was raised before says more
            self._file.close()

    def log(self, event: str, **fields: Any) -> None:
        """Log any event by its name; fields that are None are left out."""
        line = _line(event, fields)
        with self._lock:
            self._write(line)

    def flush(self) -> None:
        """Let everything that was logged be in the file."""
        with self._lock:
            if not self._file.closed:
                self._file.flush()

    def close(self, *, num_free: int | None = None) -> None:
        """Log that the engine has let go of all that nobody needs, and close the file; once is enough."""
        line = _line("close", {"num_free": num_free})
        with self._lock:
            if not self._file.closed and self._process == os.getpid():
                self._write(line)
                self._file.close()

    def request(self, request: Name, tokens: Ints, namespace: Namespace = COMMON) -> None:
        """Log that a request arrives with its prompt and namespace."""
        texts = {
            name: getattr(namespace, name) or None for name in ("model", "adapter", "adapter_version", "salt")
        }
        spans = [vars(span) for span in namespace.spans] or None
        self.log("request", request=request, tokens=list(tokens), spans=spans, **texts)

    def tokens(self, request: Name, tokens: Ints) -> None:
        """Log tokens that join one request."""
        self.log("tokens", request=request, tokens=list(tokens))

    def decode(self, requests: Sequence[Name], tokens: Ints) -> None:
        """Log one token for each request of a batch."""
        self.log("decode", requests=list(requests), tokens=list(tokens))

    def truncate(self, request: Name, count: int) -> None:
        """Log that a request keeps its first tokens."""
        self.log("truncate", request=request, count=count)

    def fork(self, parent: Name, child: Name) -> None:
        """Log that a request begins with the tokens and all blocks of another."""
        self.log("fork", request=child, parent=parent)

    def preempt(self, request: Name) -> None:
        """Log that a request waits again."""
        self.log("preempt", request=request)

    def finish(self, request: Name) -> None:
        """Log that a request has all its tokens."""
        self.log("finish", request=request)

    def abort(self, request: Name) -> None:
        """Log that a request ends before that."""
        self.log("abort", request=request)

    def allocate(self, request: Name, blocks: Ints, *, group: int | None = None) -> None:
        """Log that free blocks join the end of a table."""
        self.log("allocate", request=request, blocks=compressed(blocks), group=group)

    def free(self, request: Name, blocks: Ints | None = None) -> None:
        """Log that a request lets go of some of its blocks, or of all."""
        self.log("free", request=request, blocks=None if blocks is None else compressed(blocks))

    def copy(
        self, source: int, target: int, count: int, *, request: Name | None = None, group: int | None = None
    ) -> None:
        """Log that the first slots of a block are copied; a request now has the target instead."""
        self.log("copy", source=source, target=target, count=count, request=request, group=group)

    def replace(self, request: Name, index: int, blocks: Ints, *, group: int | None = None) -> None:
        """Log that entries of a table become other blocks."""
        self.log("replace", request=request, index=index, blocks=compressed(blocks), group=group)

    def compute(
        self,
        requests: Sequence[Name],
        starts: Ints,
        counts: Ints | None = None,
        *,
        step: Name | None = None,
    ) -> None:
        """Log that a step computes tokens of each request, one if not told, and reads what they attend to."""
        many = None if counts is None else list(counts)
        self.log("compute", requests=list(requests), starts=list(starts), counts=many, step=step)

    def write(self, request: Name, start: int, count: int, **where: Any) -> None:
        """Log that tokens are computed and written; `blocks` or `slots` say where a kernel was told to."""
        self.log("write", request=request, start=start, count=count, **where)

    def read(self, request: Name, start: int, count: int, *, blocks: Ints | None = None) -> None:
        """Log that tokens are read."""
        listed = None if blocks is None else compressed(blocks)
        self.log("read", request=request, start=start, count=count, blocks=listed)

    def hit(
        self, request: Name, count: int, blocks: Ints, *, start: int | None = None, group: int | None = None
    ) -> None:
        """Log that published blocks join a table; `count` is in tokens."""
        self.log("hit", request=request, count=count, blocks=compressed(blocks), start=start, group=group)

    def publish(self, blocks: Ints, *, request: Name | None = None, count: int | None = None) -> None:
        """Log that blocks can be found from now on."""
        self.log("publish", blocks=compressed(blocks), request=request, count=count)

    def evict(self, blocks: Ints) -> None:
        """Log that blocks can no longer be found."""
        self.log("evict", blocks=compressed(blocks))

    def reset(self) -> None:
        """Log that nothing can be found any more."""
        self.log("reset")

    def begin(self, step: Name) -> None:
        """Log that a step begins."""
        self.log("begin", step=step)

    def end(self, step: Name, *, num_free: int | None = None) -> None:
        """Log that a step ends."""
        self.log("end", step=step, num_free=num_free)

    def _write(self, line: str) -> None:
        if self._process != os.getpid():
            raise HistoryError("a forked process logs, expected it to open a history of its own")
        if self._file.closed:
            raise HistoryError("an event comes after the file was closed, expected nothing")
        try:
            self._file.write(line)
        except OSError:
            with contextlib.suppress(OSError):  # a part of the line may be there: nothing may follow it
                self._file.close()
            raise

    def _let_go(self) -> None:
        """Let what this process has not written yet go nowhere: its parent will write it."""
        self._lock = threading.Lock()
        if not self._file.closed:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._file.fileno())
            os.close(nowhere)


def _forked() -> None:
    for recorder in list(_OPEN):
        recorder._let_go()


_OPEN = weakref.WeakSet[Recorder]()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _line(event: str, fields: dict[str, Any]) -> str:
    if event not in EVENTS:
        raise HistoryError(f"event = {shown(event)}, expected one of {', '.join(EVENTS)}")
    said: Event = {"event": event} | {name: value for name, value in fields.items() if value is not None}
    try:
        check(said)
    except HistoryError:
        said = json.loads(json.dumps(said, default=_plain))  # NumPy's integers become Python's
        check(said)
    return json.dumps(said, separators=(",", ":")) + "\n"


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise HistoryError(f"{type(value).__name__} in an event, expected texts, integers and lists of them")


def _opened(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "wt", encoding="utf-8", compresslevel=1, newline="\n")
    return path.open("w", encoding="utf-8", newline="\n")
