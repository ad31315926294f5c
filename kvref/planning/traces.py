"""Traces: the requests of a real service, as files tell them and as arrays to compute with.

`read_requests` yields one checked request after the other; `Trace.read` gathers them. In a `Trace` the ids of
blocks are renumbered from 0 in the order of their first appearance, so that they index arrays.

Ids must be ids of prefixes (`kvref.planning.trace_ids`). A trace that counts chunks wherever they stand would
give hit rates of prefixes that are wrong; it is refused.

For porters: `Trace` is three flat arrays; a request's blocks are `blocks[starts[r] : starts[r + 1]]`.
Source: the formats' own descriptions, see `kvref.planning.trace_lines`.
"""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from kvref.arrays import Array, check_count, check_word
from kvref.errors import TraceError
from kvref.planning.trace_files import as_path, lines_of
from kvref.planning.trace_ids import PrefixIds
from kvref.planning.trace_lines import (
    LENGTHS_FIELDS,
    UNITS,
    Place,
    TraceRequest,
    comma_fields,
    hashed_request,
    lengths_request,
    object_of,
    shown,
)

#: Tokens of a block in the traces of Mooncake.
MOONCAKE_BLOCK = 512
#: The most blocks, and the most requests, that are gathered: about 100 bytes each are needed.
MAX_BLOCKS = 2**25

Tail = Literal["keyed", "full_blocks"]


@dataclass(frozen=True, eq=False)
class Trace:
    """The requests of a trace, in order of arrival."""

    name: str
    """The file it was read from."""
    block_size: int
    """Tokens of a block."""
    tail: Tail
    """Whether a partial last block of an input has an id (keyed) or not (full_blocks)."""
    timestamps: Array
    """[num_requests] milliseconds, never less than the one before."""
    input_lengths: Array
    """[num_requests] tokens."""
    output_lengths: Array
    """[num_requests] tokens."""
    starts: Array
    """[num_requests + 1] where in `blocks` a request begins; all 0 if the trace tells lengths alone."""
    blocks: Array
    """[num_blocks] ids of prefixes, numbered from 0 as they first appear."""

    @classmethod
    def read(cls, path: Path | str, *, block_size: int = MOONCAKE_BLOCK, unit: str = "ms") -> "Trace":
        """Read a trace file.

        `unit` is that of timestamps that are plain numbers: ms or s.
        Raises: TraceError, ArgumentError (as `read_requests`).
        """
        requests = read_requests(path, block_size=block_size, unit=unit)
        return cls.of(requests, name=str(path), block_size=block_size)

    @classmethod
    def of(cls, requests: Iterable[TraceRequest], *, name: str, block_size: int) -> "Trace":
        """Gather requests.

        Raises: TraceError if an id stands for two prefixes, or there is no request at all, or more than
        `MAX_BLOCKS` blocks or requests; ArgumentError if `block_size` is no count.
        """
        check_count("block_size", block_size)
        ids = PrefixIds(name, block_size)
        blocks, starts, lengths, times = array("q"), array("q", [0]), array("q"), array("d")
        tail: Tail = "full_blocks"
        for request in requests:
            blocks.extend(ids.numbered(request))
            starts.append(len(blocks))
            times.append(request.timestamp)
            lengths.extend((request.input_length, request.output_length))
            if len(blocks) - starts[-2] > request.input_length // block_size:
                tail = "keyed"
            if max(len(blocks), len(times)) > MAX_BLOCKS:
                Place(name, request.line).refuse(f"more than {MAX_BLOCKS} blocks or requests, expected fewer")
        if not times:
            raise TraceError(f"{name} holds no request, expected at least one")
        both = np.array(lengths, np.int64).reshape(-1, 2)
        return cls(
            name, block_size, tail, np.array(times), both[:, 0].copy(), both[:, 1].copy(),
            np.array(starts, np.int64), np.array(blocks, np.int64),
        )  # fmt: skip

    @property
    def num_requests(self) -> int:
        """How many requests there are."""
        return len(self.timestamps)

    @property
    def num_distinct(self) -> int:
        """How many different blocks there are: a cache of so many never evicts."""
        return int(self.blocks.max(initial=-1)) + 1

    @property
    def num_asked_once(self) -> int:
        """How many blocks only one request asks for: no cache makes them hit."""
        return int(np.count_nonzero(np.bincount(self.blocks) == 1))

    @property
    def has_blocks(self) -> bool:
        """Whether the trace tells which blocks requests share."""
        return len(self.blocks) > 0

    def request_of_blocks(self) -> Array:
        """Return the request of each entry of `blocks`, [num_blocks]."""
        return np.repeat(np.arange(self.num_requests), np.diff(self.starts))

    def tokens_of_blocks(self) -> Array:
        """Return how many tokens each entry of `blocks` holds; only a tail is not full. [num_blocks]"""
        at = np.arange(len(self.blocks)) - np.repeat(self.starts[:-1], np.diff(self.starts))
        rest = np.repeat(self.input_lengths, np.diff(self.starts)) - at * self.block_size
        tokens: Array = np.minimum(rest, self.block_size)
        return tokens

    def full_blocks(self) -> "Trace":
        """Return the trace without the ids of partial last blocks."""
        full = self.tokens_of_blocks() == self.block_size
        counts = np.bincount(self.request_of_blocks()[full], minlength=self.num_requests)
        _, renumbered = _in_order_of_appearance(self.blocks[full])
        return replace(
            self,
            tail="full_blocks",
            starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            blocks=renumbered,
        )


def read_requests(
    path: Path | str, *, block_size: int = MOONCAKE_BLOCK, unit: str = "ms"
) -> Iterator[TraceRequest]:
    """Yield the requests of a trace file, gzip or plain, one line at a time.

    The first line tells the format: JSON with `hash_ids`, or JSON or comma-separated text with
    `ContextTokens`. Timestamps of the latter, which are dates, become milliseconds since the first.
    Raises: TraceError with file, line and field if a line is not what the format says, if ids and
    input_length do not go together at this block size, or if time goes back. ArgumentError.
    """
    check_count("block_size", block_size)
    check_word("unit", unit, UNITS)
    path = as_path(path)
    kind, tail, before = "", "", 0.0
    zero: float | None = None
    for number, text in lines_of(path):
        place = Place(str(path), number)
        if not kind:
            kind = _kind(place, text)
            if kind == "comma":
                continue
        fields = comma_fields(place, text) if kind == "comma" else object_of(place, text)
        if kind == "hashed":
            request = hashed_request(place, fields, unit)
            tail = _checked_tail(place, request, block_size, tail)
        else:
            request = lengths_request(place, fields)
            zero = request.timestamp if zero is None else zero
            request = request._replace(timestamp=request.timestamp - zero)
        if request.timestamp < before:
            place.refuse(
                f"timestamp {request.timestamp:g} ms is before {before:g} ms of the line above, "
                "expected requests in order of arrival"
            )
        before = request.timestamp
        yield request


def _kind(place: Place, text: str) -> str:
    if [cell.strip() for cell in text.split(",")] == list(LENGTHS_FIELDS):
        return "comma"
    fields = object_of(place, text)
    if "hash_ids" in fields:
        return "hashed"
    if "ContextTokens" in fields:
        return "lengths"
    names = ", ".join(map(shown, fields))[:80] or "no field"
    return place.refuse(f"hash_ids or ContextTokens is missing; the line has {names}")


def _checked_tail(place: Place, request: TraceRequest, block_size: int, so_far: str) -> str:
    """Return whether partial tails have ids, as far as it is known; ids and length must go together."""
    ids, tokens = len(request.hash_ids or ()), request.input_length
    full, rest = divmod(tokens, block_size)
    if ids not in (full, full + (rest > 0)):
        place.refuse(
            f"input_length = {tokens} and {ids} hash_ids, expected {full + (rest > 0)} ids"
            f"{f' (or {full} of full blocks)' if rest else ''} of {block_size} tokens{_hint(ids, tokens)}"
        )
    if rest == 0:
        return so_far
    found = "full_blocks" if ids == full else "keyed"
    if so_far and so_far != found:
        place.refuse(
            f"{ids} hash_ids for {tokens} tokens: the partial last block "
            f"{'has no id here' if ids == full else 'has an id here'}, unlike above; expected one rule"
        )
    return found


def _hint(ids: int, tokens: int) -> str:
    """Say what would fit: another block size, or a length that counts blocks."""
    if ids == tokens:
        return "; input_length seems to count blocks, expected tokens"
    if ids < 2:
        return ""
    least, most = tokens // (ids + 1) + 1, (tokens - 1) // (ids - 1)
    if most < least:
        return ""  # fewer tokens than ids
    likely = 1 << most.bit_length() - 1
    return f"; they fit block sizes {least} to {most}{f', such as {likely}' if least <= likely else ''}"


def _in_order_of_appearance(ids: Array) -> tuple[int, Array]:
    """Return how many different ids there are, and the ids renumbered as they first appear."""
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return len(first), rank[inverse]
