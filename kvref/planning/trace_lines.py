"""One line of a trace as a request: what each published format puts there, and what is wrong with a line.

Hashed (Mooncake, and others with its fields): a JSON object with `timestamp`, `input_length` and
`output_length` in tokens, and `hash_ids`, one id for each block of the input. An id stands for the whole
prefix up to the end of its block. A partial last block has an id of its own (`tail` keyed) or none
(`tail` full_blocks).

Lengths (Azure): `TIMESTAMP`, `ContextTokens`, `GeneratedTokens`, as JSON or as comma-separated text.
Nothing in it says which requests share a prefix.

For porters: check before use that ids and length go together; a trace that is read with the wrong block size
gives hit rates that look right.
Source: github.com/kvcache-ai/Mooncake (FAST25-release/traces) and github.com/Azure/AzurePublicDataset.
"""

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple, NoReturn

from kvref.errors import TraceError

#: Unit of a timestamp -> how many milliseconds it is.
UNITS = {"ms": 1, "s": 1000}
#: No length and no id needs more bits.
MAX_LENGTH, MAX_ID = 2**31 - 1, 2**64 - 1

LENGTHS_FIELDS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class TraceRequest(NamedTuple):
    """One request of a trace."""

    line: int
    """Line of the file, from 1."""
    timestamp: float
    """Milliseconds since the trace's zero."""
    input_length: int
    """Tokens of the prompt."""
    output_length: int
    """Tokens of the answer."""
    hash_ids: tuple[int, ...] | None
    """One id for each block of the prompt; None if the trace tells lengths alone."""


class Place(NamedTuple):
    """Where in which file something is said."""

    file: str
    """The file."""
    line: int
    """Its line, from 1."""

    def refuse(self, what: str) -> NoReturn:
        """Raise a TraceError that begins with the place."""
        raise TraceError(f"{self.file}:{self.line}: {what}")

    def tokens(self, fields: Mapping[str, Any], name: str, minimum: int = 0) -> int:
        """Return a field that is a number of tokens.

        Raises: TraceError if it is missing or is no integer of the possible ones.
        """
        value = self.field(fields, name)
        if type(value) is not int or not minimum <= value <= MAX_LENGTH:
            self.refuse(f"{name} = {shown(value)}, expected whole tokens from {minimum} to {MAX_LENGTH}")
        return value

    def field(self, fields: Mapping[str, Any], name: str) -> Any:
        """Return a field.

        Raises: TraceError if it is missing.
        """
        if name not in fields:
            self.refuse(f"{name} is missing; the line has {', '.join(map(shown, fields)) or 'no field'}")
        return fields[name]


def object_of(place: Place, text: str) -> dict[str, Any]:
    """Return the JSON object of a line.

    Raises: TraceError if the line is no JSON object, names a field twice, or is nested without end.
    """
    try:
        found = json.loads(text, object_pairs_hook=lambda pairs: _unique(place, pairs))
    except json.JSONDecodeError as error:
        place.refuse(f"column {error.colno}: {error.msg}, expected one JSON object a line")
    except RecursionError:
        place.refuse("the JSON is nested too deeply, expected one flat object")
    except TraceError:
        raise
    except ValueError as error:  # an integer with more digits than Python converts
        place.refuse(f"the JSON holds a number that cannot be read ({error})")
    if not isinstance(found, dict):
        place.refuse(f"the line is {shown(found)}, expected one JSON object")
    return found


def hashed_request(place: Place, fields: Mapping[str, Any], unit: str) -> TraceRequest:
    """Return the request of a line with hash ids.

    Raises: TraceError that names the field.
    """
    ids = _hash_ids(place, place.field(fields, "hash_ids"))
    return TraceRequest(
        place.line,
        _timestamp(place, place.field(fields, "timestamp"), unit),
        place.tokens(fields, "input_length", 1),
        place.tokens(fields, "output_length"),
        ids,
    )


def lengths_request(place: Place, fields: Mapping[str, Any]) -> TraceRequest:
    """Return the request of a line with lengths alone; its timestamp counts from 1970.

    Raises: TraceError that names the field.
    """
    said = place.field(fields, "TIMESTAMP")
    try:
        moment = datetime.fromisoformat(said)
    except (TypeError, ValueError):
        place.refuse(f"TIMESTAMP = {shown(said)}, expected a date and a time such as 2023-11-16 18:15:46.68")
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return TraceRequest(
        place.line,
        moment.timestamp() * 1000,
        place.tokens(fields, "ContextTokens"),
        place.tokens(fields, "GeneratedTokens"),
        None,
    )


def comma_fields(place: Place, text: str) -> dict[str, Any]:
    """Return the fields of a line of comma-separated text with the columns of `LENGTHS_FIELDS`.

    Raises: TraceError if it has more or fewer columns.
    """
    cells = [cell.strip() for cell in text.split(",")]
    if len(cells) != len(LENGTHS_FIELDS):
        place.refuse(f"the line has {len(cells)} columns, expected {', '.join(LENGTHS_FIELDS)}")
    when, *counts = cells
    return dict(zip(LENGTHS_FIELDS, [when, *map(_int_or_text, counts)], strict=True))


def shown(value: Any) -> str:
    """Return a value as an error spells it, shortened."""
    if isinstance(value, int) and abs(value) >= 2**128:
        return f"an integer of {value.bit_length()} bits"
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except RecursionError:  # read at the very limit of nesting
        return f"a {type(value).__name__} of many levels"
    return text if len(text) <= 60 else text[:59] + "…"


def _timestamp(place: Place, value: Any, unit: str) -> float:
    if isinstance(value, str):
        place.refuse(f"timestamp = {shown(value)} is text, expected a number of {unit}")
    if type(value) not in (int, float) or not 0 <= value < 2**53:
        place.refuse(f"timestamp = {shown(value)}, expected a number of {unit} from 0 to 2^53")
    if unit == "ms" and value != math.floor(value):
        place.refuse(
            f"timestamp = {value!r} has a fraction, expected whole milliseconds: "
            "if the trace counts seconds, say so (unit s)"
        )
    return float(value * UNITS[unit])


def _hash_ids(place: Place, ids: Any) -> tuple[int, ...]:
    if isinstance(ids, dict):
        place.refuse(
            "hash_ids is an object, of chunks wherever they stand; expected one list of ids of prefixes"
        )
    if not isinstance(ids, list):
        place.refuse(f"hash_ids = {shown(ids)}, expected a list of integers")
    if not all(type(i) is int and 0 <= i <= MAX_ID for i in ids):
        at = next(at for at, i in enumerate(ids) if type(i) is not int or not 0 <= i <= MAX_ID)
        place.refuse(f"hash_ids[{at}] = {shown(ids[at])}, expected an integer from 0 to 2^64 - 1")
    return tuple(ids)


def _unique(place: Place, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = [name for name, _ in pairs]
        place.refuse(
            f"field {shown(next(n for n in names if names.count(n) > 1))} stands twice, expected once"
        )
    return fields


def _int_or_text(cell: str) -> int | str:
    return int(cell) if cell.isascii() and cell.isdigit() and len(cell) < 20 else cell
