"""The shadow of a memory: for every slot, the label of the prefix that wrote it, who wrote it, and when.

A label stands for what a slot should hold: a function of the namespace and of all tokens up to a position,
and of nothing else. Labels here are chained hashes of 64 bits. They share no line with the reference's.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b


def root(*namespace: str) -> int:
    """Return the label before the first token: a function of everything but tokens."""
    return _hashed(*(part for text in namespace for part in (str(len(text)), text)))


def label(previous: int, token: Hashable) -> int:
    """Return the label of a position, from the label before it and what stands there."""
    return _hashed(str(previous), str(token))


def labels(previous: int, tokens: Iterable[Hashable]) -> list[int]:
    """Return the labels of consecutive positions."""
    found = []
    for token in tokens:
        previous = label(previous, token)
        found.append(previous)
    return found


def _hashed(*words: str) -> int:
    return int.from_bytes(blake2b("\0".join(words).encode(), digest_size=8).digest(), "big")


@dataclass(frozen=True)
class Written:
    """What a slot holds."""

    label: int
    request: int
    position: int
    """Where in the request that wrote it."""
    step: int
    """Which step of the program wrote it."""

    def __str__(self) -> str:
        return f"what request {self.request} wrote at position {self.position}, in step {self.step}"


@dataclass
class ShadowMemory:
    """Slots by any name; one that was never written holds nothing."""

    _slots: dict[Hashable, Written] = field(default_factory=dict)

    def write(self, slot: Hashable, written: Written) -> None:
        """Overwrite a slot."""
        self._slots[slot] = written

    def read(self, slot: Hashable) -> Written | None:
        """Return what a slot holds; None if it was never written."""
        return self._slots.get(slot)

    def copy(self, source: Hashable, target: Hashable) -> None:
        """Overwrite a slot with what another holds, never written included."""
        written = self._slots.get(source)
        if written is None:
            self._slots.pop(target, None)
        else:
            self._slots[target] = written

    def erase(self, slots: Iterable[Hashable]) -> None:
        """Let slots hold nothing."""
        for slot in slots:
            self._slots.pop(slot, None)

    def differs(self, slot: Hashable, expected: int) -> str:
        """Say in words what a slot holds, if that is not the expected label; empty if it is."""
        written = self._slots.get(slot)
        if written is None:
            return "what nobody has written"
        return "" if written.label == expected else str(written)
