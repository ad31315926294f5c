"""What can be wrong with an input, as exceptions.

Every message has the same three parts: the argument, what was found, what was expected; where a requirement
of the spec decides, its id follows in parentheses. A function that raises has changed nothing.
"""

import reprlib
from typing import Any

_SHORT = reprlib.Repr()
_SHORT.maxother = _SHORT.maxstring = _SHORT.maxlong = 60


def shown(value: Any) -> str:
    """Return a value for a message, however long or deep it is, and whether it can be spelled or not."""
    try:
        text = _SHORT.repr(value)
    except (ValueError, RecursionError):  # an integer of more digits than Python spells; lists without end
        large = isinstance(value, int)
        text = f"an integer of {value.bit_length()} bits" if large else f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


class KVError(ValueError):
    """Base of every error kvref raises about an input."""


class ShapeError(KVError):
    """An array has the wrong rank or the wrong extent along an axis."""


class DTypeError(KVError):
    """An array or a name has a dtype that the operation does not define."""


class LengthError(KVError):
    """`seq_lens`, `query_start_loc` or a quantity derived from them is impossible."""


class BlockTableError(KVError):
    """A block table names a block that the cache does not have, or is too short for a length."""


class SlotMappingError(KVError):
    """A slot mapping names a slot that the cache does not have, or one slot twice."""


class ArgumentError(KVError):
    """A scalar or a name is outside the set that the operation defines."""


class FormatError(KVError):
    """A format cannot hold what it is given, or its scales, bytes or declared path are impossible."""


class OutOfBlocksError(KVError):
    """The pool has fewer free blocks than the operation needs."""


class OutOfStatesError(KVError):
    """Fewer state slots can be had than the operation needs."""


class StateError(KVError):
    """A recurrent state holds what is no number, or a state slot is not there or named twice."""


class UnknownRequestError(KVError):
    """A request is not there, or is added a second time."""


class OwnershipError(KVError):
    """A block is let go by someone who does not hold it, or is none of the pool's blocks."""


class TraceError(KVError):
    """A line of a trace, or the file it is in, is not what the format says."""


class HistoryError(KVError):
    """A line of a history, or the file it is in, is not what the format says."""


class ConfigError(KVError):
    """A model's config contradicts itself, is no config, or leaves open what its cache is."""
