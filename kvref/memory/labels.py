"""Labels: one number for everything that the value of a position depends on, namespace and tokens 0 to i.

Two slots hold the same if their labels are equal, so whoever watches a cache keeps labels instead of values.
What stands at a position is its symbol: the token id, or 2^31 and more for a row of a span. With two primes,
P and Q below 2^31, and x for the symbol at position i,

    label(i) = (a, b),   a = (A · a' + x + 1) mod P,   b = (B · b' + x + 1) mod Q,

where (a', b') is label(i − 1), and the seed of the namespace before the first position. A label is written
as the integer a · 2^31 + b. The seed enters as a power of A and of B, so it can be taken out again: that
tells "the same tokens under another salt" from "other tokens".

Labels find faults, they are no keys: who knows the bases can make two prefixes collide.

Realises: KV-BLOCK-021 reads-own-tokens, KV-PREFIX-001 hit-own-prefix.
For porters: `extended` is all of it; the rest is speed, and can be left out.
Source: a slot's content as the chapter "The law" defines it; hashing by polynomials is Rabin and Karp's.
"""

import hashlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np

from kvref.arrays import Array
from kvref.errors import ArgumentError
from kvref.memory.namespace import COMMON, Namespace, written

P, Q = 2147483647, 2147483629
A, B = 1583458089, 784588716
#: Token ids lie below, symbols of rows from here on.
ROWS = 1 << 31
_LOW = (1 << 31) - 1
#: Tokens that are labelled in one go: longer runs go in pieces, shorter than 96 are quicker one by one.
_RUN, _SHORT = 4096, 96


def seed(namespace: Namespace) -> int:
    """Return the label before the first position: two residues of a digest of model, adapter and salt."""
    digest = hashlib.sha256(b"kvref label 1" + written(namespace)).digest()
    return int.from_bytes(digest[:8]) % P << 31 | int.from_bytes(digest[8:16]) % Q


def extended(label: int, symbol: int) -> int:
    """Return the label of the next position, which holds `symbol`."""
    return ((label >> 31) * A + symbol + 1) % P << 31 | ((label & _LOW) * B + symbol + 1) % Q


def row_symbol(kind: str, digest: str, row: int) -> int:
    """Return the symbol of one row of a span: 2^31 plus a residue of its content and number."""
    content = hashlib.sha256(
        b"kvref row 1" + len(kind).to_bytes(4) + kind.encode() + digest.encode()
    ).digest()
    first, step = int.from_bytes(content[:8]) % P, 1 + int.from_bytes(content[8:16]) % (P - 1)
    return ROWS + (first + step * row) % P


def without_namespace(label: int, position: int, namespace: Namespace) -> int:
    """Return the label that the same symbols would have in the common namespace."""
    own, common = seed(namespace), seed(COMMON)
    a = ((label >> 31) + ((common >> 31) - (own >> 31)) * pow(A, position + 1, P)) % P
    b = ((label & _LOW) + ((common & _LOW) - (own & _LOW)) * pow(B, position + 1, Q)) % Q
    return a << 31 | b


def labels_after(label: int, symbols: "array[int]") -> Array:
    """Return the labels [len(symbols)] of a run that follows `label`, as int64; equals folding `extended`."""
    x = np.frombuffer(symbols, np.uint32).astype(np.uint64) + np.uint64(1)
    parts = []
    for low in range(0, len(x), _RUN):
        part = x[low : low + _RUN]
        a = _residues(part, label >> 31, A, P)
        b = _residues(part, label & _LOW, B, Q)
        parts.append(a << np.uint64(31) | b)
        label = int(parts[-1][-1])
    return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, np.int64)


class Labels:
    """The symbols of one request, and the label of every position of it.

    Labels are computed when they are asked for, and kept at the end of every `stride` tokens.
    """

    __slots__ = ("_ends", "namespace", "stride", "symbols")

    def __init__(
        self, namespace: Namespace = COMMON, tokens: Iterable[int] = (), *, stride: int = 16
    ) -> None:
        self.namespace = namespace
        self.stride = stride
        self.symbols = array("I")
        self._ends = array("q", [seed(namespace)])
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self.symbols)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens; at positions of a span its rows stand in their place.

        Raises: ArgumentError if a token is no integer from 0 to 2^31 − 1.
        """
        start = len(self.symbols)
        try:
            new = array("I", tokens)
        except (TypeError, OverflowError) as error:
            raise ArgumentError(f"tokens: {error}, expected integers from 0 to {_LOW}") from None
        if new and max(new) > _LOW:
            raise ArgumentError(f"tokens holds {max(new)}, expected integers from 0 to {_LOW}")
        for span in self.namespace.spans:
            for at in range(max(start, span.offset), min(start + len(new), span.stop)):
                new[at - start] = row_symbol(span.kind, span.digest, at - span.offset)
        self.symbols.extend(new)

    def cut(self, num_tokens: int) -> None:
        """Keep the first tokens alone."""
        del self.symbols[num_tokens:]
        del self._ends[1 + num_tokens // self.stride :]

    def copy(self) -> "Labels":
        """Return an equal one that goes its own way."""
        new = Labels(self.namespace, stride=self.stride)
        new.symbols, new._ends = self.symbols[:], self._ends[:]
        return new

    def label(self, position: int) -> int:
        """Return label(position); the seed of the namespace for position −1; −1 past the last token."""
        whole, rest = divmod(position + 1, self.stride)
        if position >= len(self.symbols):
            return -1
        if whole >= len(self._ends):
            self._reach(whole)
        label = self._ends[whole]
        if rest:
            for symbol in self.symbols[whole * self.stride : position + 1]:
                label = extended(label, symbol)
        return label

    def piece(self, start: int, stop: int) -> "Piece":
        """Keep the labels of positions start to stop − 1 apart from the rest."""
        stop = min(stop, len(self.symbols))
        start = min(start, stop)
        return Piece(
            self.namespace, start, self.label(start - 1), self.label(stop - 1), self.symbols[start:stop]
        )

    def _reach(self, end: int) -> None:
        """Label up to the given multiple of the stride."""
        first = len(self._ends) - 1
        run = self.symbols[first * self.stride : end * self.stride]
        if len(run) >= _SHORT:
            self._ends.frombytes(labels_after(self._ends[-1], run)[self.stride - 1 :: self.stride].tobytes())
            return
        a, b = self._ends[-1] >> 31, self._ends[-1] & _LOW
        for at, symbol in enumerate(run, 1):
            a, b = (a * A + symbol + 1) % P, (b * B + symbol + 1) % Q
            if at % self.stride == 0:
                self._ends.append(a << 31 | b)


@dataclass(frozen=True, slots=True)
class Piece:
    """The symbols of a few positions of a request that may be gone, and the labels around them."""

    namespace: Namespace
    start: int
    before: int
    """The label of the position before the first."""
    last: int
    symbols: "array[int]"

    def __len__(self) -> int:
        return self.start + len(self.symbols)

    def label(self, position: int) -> int:
        """Return label(position), or −1 if the position is not one of the piece."""
        count = position + 1 - self.start
        if not 0 < count <= len(self.symbols):
            return -1
        if count == len(self.symbols):
            return self.last
        label = self.before
        for symbol in self.symbols[:count]:
            label = extended(label, symbol)
        return label

    def piece(self, start: int, stop: int) -> "Piece":
        """Return a part of the piece."""
        low, high = max(start, self.start), min(stop, len(self))
        before = self.before if low <= self.start else self.label(low - 1)
        part = self.symbols[low - self.start : high - self.start]
        return Piece(self.namespace, low, before, self.label(high - 1), part)


def _residues(x: Array, start: int, base: int, prime: int) -> Array:
    """Return h(i) = base^(i + 1) · (start + Σ x(j) · base^−(j + 1)) mod prime for up to `_RUN` symbols."""
    powers, inverses = _powers(base, prime), _powers(pow(base, -1, prime), prime)
    p = np.uint64(prime)
    sums = np.cumsum(x % p * inverses[: len(x)] % p)  # below 2^12 · 2^31
    found: Array = (sums + np.uint64(start)) % p * powers[: len(x)] % p
    return found


@cache
def _powers(base: int, prime: int) -> Array:
    """Return base^1 to base^_RUN modulo a prime, as uint64."""
    powers = np.empty(_RUN, np.uint64)
    power = 1
    for at in range(_RUN):
        power = power * base % prime
        powers[at] = power
    return powers
