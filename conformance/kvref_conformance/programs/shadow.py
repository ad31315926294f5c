"""Labels of prefixes: what a slot should hold, in one number.

A label stands for what a slot should hold: a function of the namespace and of all tokens up to a position,
and of nothing else. Labels here are chained hashes of 64 bits. They share no line with the reference's.
"""

from collections.abc import Hashable, Iterable
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
