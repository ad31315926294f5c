"""A config from a file: JSON with bounds, before anything in it is believed.

Config files come from strangers. So the size is looked at before the file is read, the depth before it is
parsed, and a key that is there twice is refused: a parser would keep the last and another reader the first.

Realises: KV-SIZE-017 absurd-config-refused.
For porters: bounds first, then the parser; duplicate keys are an error in every object.
Source: RFC 8259, section 4, on names that are not unique.
"""

import json
from pathlib import Path
from typing import Any, NoReturn

from kvref.errors import ConfigError, shown
from kvref.planning.config_keys import ABSURD, MAX_DEPTH

#: A config is short. The largest known here has 0.2 MB, a block for each of 80 layers.
MAX_BYTES = 4 * 2**20


def read_config(path: str | Path) -> dict[str, Any]:
    """Return the config in a file.

    Raises: ConfigError if there is no such file, or it is no JSON object, too long, too deep, or names a key
    twice.
    """
    place = Path(path)
    try:
        with place.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(f"config file {shown(str(path))} cannot be read ({error})") from None
    return parse_config(content, shown(str(path)))


def parse_config(content: bytes | str, name: str = "config") -> dict[str, Any]:
    """Return the config in a text.

    Raises: ConfigError as `read_config`.
    """
    if len(content) > MAX_BYTES:
        _refuse(name, f"has more than {MAX_BYTES} bytes, expected a config")
    try:
        text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
    except UnicodeDecodeError as error:
        _refuse(name, f"has a byte at {error.start} that is no UTF-8, expected JSON")
    _check_depth(name, text)
    try:
        found = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        _refuse(name, f"line {error.lineno}, column {error.colno}: {error.msg}, expected JSON")
    except ConfigError as error:
        _refuse(name, str(error))
    except (ValueError, RecursionError) as error:  # an integer of more digits than Python reads
        _refuse(name, f"cannot be read ({error})")
    if not isinstance(found, dict):
        _refuse(name, f"is {shown(found)}, expected an object")
    return found


def _check_depth(name: str, text: str) -> None:
    """Count brackets outside of strings, so that no parser has to follow them down."""
    depth, inside, skip = 0, False, False
    for letter in text:
        if skip:
            skip = False
        elif inside:
            skip, inside = letter == "\\", letter != '"'
        elif letter == '"':
            inside = True
        elif letter in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                _refuse(name, f"is nested deeper than {MAX_DEPTH}, expected a config")
        elif letter in "]}":
            depth -= 1


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ConfigError(f"names {shown(key)} twice, expected each key once")
        found[key] = value
    return found


def _no_number(word: str) -> float:
    """Infinity is what some classes write for a limit of time steps; NaN is no value of anything."""
    if word == "NaN":
        raise ConfigError("holds NaN, expected numbers")
    return float(word.replace("Infinity", "inf"))


def _refuse(name: str, what: str) -> NoReturn:
    raise ConfigError(f"{name} {what} ({ABSURD})")
