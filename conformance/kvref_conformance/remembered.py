"""Answers that took long to find, kept while there is room.

A search asks the oracle new problems for hours, and a suite asks the same few again and again. So what was
asked last is kept, up to so many bytes, unless it is as large as hundreds of others.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Generic, TypeVar

import numpy as np

T = TypeVar("T")

#: Bytes of answers that are kept, and of one that is.
ROOM, LARGEST = 2**28, 2**22


class Remembered(Generic[T]):
    """Answers by key: dataclasses of arrays, those asked longest ago forgotten first."""

    def __init__(self, room: int = ROOM, largest: int = LARGEST) -> None:
        self.room, self.largest = room, largest
        self._answers: OrderedDict[bytes, T] = OrderedDict()
        self._held = 0

    def __len__(self) -> int:
        """Count the answers that are kept."""
        return len(self._answers)

    def answer(self, key: bytes, find: Callable[[], T]) -> T:
        """Return the answer of a key, found now or before; its arrays are not to be written."""
        if key in self._answers:
            self._answers.move_to_end(key)
            return self._answers[key]
        found = find()
        size = _num_bytes(found)
        if size <= self.largest:
            self._answers[key] = found
            self._held += size
        while self._held > self.room:
            self._held -= _num_bytes(self._answers.popitem(last=False)[1])
        return found


def _num_bytes(answer: Any) -> int:
    return sum(np.asarray(getattr(answer, part.name)).nbytes for part in fields(answer))
