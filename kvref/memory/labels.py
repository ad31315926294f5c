"""Labels: one number for everything that the value of a position depends on, namespace and tokens 0 to i.

Two slots hold the same if their labels are equal, so whoever watches a cache keeps labels instead of values.
What stands at a position is its symbol: the token id, or 2^31 and more for a row of a span. With two primes,
P and Q below 2^30, and x for the symbol at position i,

    label(i) = (a, b),   a = (A · a' + x + 1) mod P,   b = (B · b' + x + 1) mod Q,

where (a', b') is label(i − 1), and the seed of the namespace before the first position. A label is written
as the integer a · 2^30 + b. The seed enters as a power of A and of B, so it can be taken out again: that
tells "the same tokens under another salt" from "other tokens".

Labels find faults, they are no keys: who knows the bases can make two prefixes collide.

Realises: KV-BLOCK-021 reads-own-tokens, KV-PREFIX-001 hit-own-prefix.
For porters: `extended` is all of it; the rest is speed, and can be left out.
Source: a slot's content as the chapter "The law" defines it; hashing by polynomials is Rabin and Karp's.
"""

import hashlib
from array import array
from collections.abc import Iterable
from functools import cache

import numpy as np

from kvref.arrays import Array, check_count
from kvref.errors import ArgumentError, LengthError
from kvref.memory.namespace import COMMON, Namespace, check_namespace, written

P, Q = 1073741789, 1073741783
A, B = 987654321, 830113513
#: Token ids lie below, symbols of rows from here on.
ROWS = 1 << 31
_BITS = 30
_LOW = (1 << _BITS) - 1
#: The longest stride: 16 bits of a symbol, a power and so many of them fit the 53 bits of a float64.
_LONGEST = 128
_NO_TOKENS = (bytes, bytearray, set, frozenset, dict)
#: Tokens from which on labels are computed with NumPy: fewer are quicker one by one.
_MANY = 64


def seed(namespace: Namespace) -> int:
    """Return the label before the first position: two residues of a digest of model, adapter and salt."""
    if namespace is COMMON:
        return _COMMON
    digest = hashlib.sha256(b"kvref label 1" + written(namespace)).digest()
    return int.from_bytes(digest[:8]) % P << _BITS | int.from_bytes(digest[8:16]) % Q


def extended(label: int, symbol: int) -> int:
    """Return the label of the next position, which holds `symbol`."""
    return ((label >> _BITS) * A + symbol + 1) % P << _BITS | ((label & _LOW) * B + symbol + 1) % Q


def row_symbol(kind: str, digest: str, row: int) -> int:
    """Return the symbol of one row of a span: 2^31 plus a residue of its content and number."""
    first, step = _content(kind, digest)
    return ROWS + (first + step * row) % ROWS


def without_namespace(label: int, position: int, namespace: Namespace) -> int:
    """Return the label that the same symbols would have in the common namespace."""
    own, common = seed(namespace), seed(COMMON)
    a = (label >> _BITS) + ((common >> _BITS) - (own >> _BITS)) * pow(A, position + 1, P)
    b = (label & _LOW) + ((common & _LOW) - (own & _LOW)) * pow(B, position + 1, Q)
    return a % P << _BITS | b % Q


_COMMON = seed(Namespace())


class Labels:
    """The symbols of one request, and the label of every position of it.

    Labels are computed when they are asked for, and kept at the end of every `stride` tokens, at most 128.
    A piece of it knows the positions from `start` on.
    Raises: ArgumentError if the stride is no count or too large, or a token is none.
    """

    __slots__ = ("_ends", "namespace", "start", "stride", "symbols")

    def __init__(
        self, namespace: Namespace = COMMON, tokens: Iterable[int] = (), *, stride: int = 16
    ) -> None:
        self.namespace = check_namespace(namespace)
        self.stride = check_count("stride", stride)
        if stride > _LONGEST:
            raise ArgumentError(f"stride = {stride}, expected at most {_LONGEST}")
        self.start = 0
        self.symbols = array("I")
        self._ends = array("q", [seed(namespace)])
        self.extend(tokens)

    def __len__(self) -> int:
        return self.start + len(self.symbols)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens; at positions of a span its rows stand in their place.

        Raises: ArgumentError if a token is no integer from 0 to 2^31 − 1.
        """
        start = len(self)
        if isinstance(tokens, _NO_TOKENS):
            raise ArgumentError(f"tokens is a {type(tokens).__name__}, expected a list of integers")
        try:
            new = array("I", tokens)
        except (TypeError, OverflowError) as error:
            raise ArgumentError(f"tokens: {error}, expected integers from 0 to {ROWS - 1}") from None
        if new and max(new) >= ROWS:
            raise ArgumentError(f"tokens holds {max(new)}, expected integers from 0 to {ROWS - 1}")
        for span in self.namespace.spans:
            first, step = _content(span.kind, span.digest)
            for at in range(max(start, span.offset), min(start + len(new), span.stop)):
                new[at - start] = ROWS + (first + step * (at - span.offset)) % ROWS
        self.symbols.extend(new)

    def cut(self, num_tokens: int) -> None:
        """Keep the first tokens alone.

        Raises: LengthError if there are fewer, or a piece does not know where they end; ArgumentError.
        """
        if not self.start <= check_count("num_tokens", num_tokens, minimum=0) <= len(self):
            raise LengthError(f"num_tokens = {num_tokens}, expected {self.start} to {len(self)}")
        del self.symbols[num_tokens - self.start :]
        del self._ends[1 + (num_tokens - self.start) // self.stride :]

    def copy(self) -> "Labels":
        """Return an equal one that goes its own way."""
        return self._part(self.start, self.symbols[:], self._ends[:])

    def piece(self, start: int, stop: int) -> "Labels":
        """Keep positions start to stop − 1 apart from the rest, and those before them back to a stride."""
        first = min(max(0, start - self.start), len(self.symbols)) // self.stride
        symbols = self.symbols[first * self.stride : max(0, stop - self.start)]
        last = first + len(symbols) // self.stride
        if last >= len(self._ends):
            self._reach()
        return self._part(self.start + first * self.stride, symbols, self._ends[first : last + 1])

    def label(self, position: int) -> int:
        """Return label(position), the seed for position −1, and −1 for one that is not known."""
        count = position + 1 - self.start
        whole, rest = divmod(count, self.stride)
        if not rest and 0 <= whole < len(self._ends):
            return self._ends[whole]
        if not 0 <= count <= len(self.symbols):
            return -1
        if whole >= len(self._ends):
            self._reach()
        label = self._ends[whole]
        if rest:
            for symbol in self.symbols[count - rest : count]:
                label = extended(label, symbol)
        return label

    def symbol(self, position: int) -> int:
        """Return the symbol of a position, and −1 for one that is not known."""
        at = position - self.start
        return self.symbols[at] if 0 <= at < len(self.symbols) else -1

    def _part(self, start: int, symbols: "array[int]", ends: "array[int]") -> "Labels":
        part = Labels.__new__(Labels)
        part.namespace, part.stride, part.start = self.namespace, self.stride, start
        part.symbols, part._ends = symbols, ends
        return part

    def _reach(self) -> None:
        """Label every stride that is complete: many in one go cost less than one after another."""
        stride, first = self.stride, len(self._ends) - 1
        run = self.symbols[first * stride : len(self.symbols) // stride * stride]
        a, b = self._ends[-1] >> _BITS, self._ends[-1] & _LOW
        if len(run) < _MANY:
            for at, symbol in enumerate(run, 1):
                a, b = (a * A + symbol + 1) % P, (b * B + symbol + 1) % Q
                if at % stride == 0:
                    self._ends.append(a << _BITS | b)
            return
        over_a, over_b = pow(A, stride, P), pow(B, stride, Q)
        for to_a, to_b in _strides(run, stride).tolist():
            a, b = (a * over_a + to_a) % P, (b * over_b + to_b) % Q
            self._ends.append(a << _BITS | b)


def _content(kind: str, digest: str) -> tuple[int, int]:
    """Return the residue of a content's first row, and the odd step to the next."""
    raw = hashlib.sha256(b"kvref row 1" + len(kind).to_bytes(4) + kind.encode() + digest.encode()).digest()
    return int.from_bytes(raw[:8]) % ROWS, int.from_bytes(raw[8:16]) % ROWS | 1


def _strides(symbols: "array[int]", stride: int) -> Array:
    """Return for each stride Σ (x(j) + 1) · base^(stride − 1 − j) modulo each prime: int64 [strides, 2]."""
    powers, ones, primes = _powers(stride)
    x = np.frombuffer(symbols, np.uint32).reshape(-1, stride)
    high = ((x >> 16).astype(np.float64) @ powers).astype(np.int64) % primes  # exact: below 2^16 · 2^30 · 2^7
    low = ((x & 0xFFFF).astype(np.float64) @ powers).astype(np.int64)
    found: Array = ((high << 16) + low + ones) % primes
    return found


@cache
def _powers(stride: int) -> tuple[Array, Array, Array]:
    """Return base^(stride − 1) to base^0 modulo both primes, float64 [stride, 2]; their sums; the primes."""
    powers = np.array(
        [[pow(base, e, prime) for base, prime in ((A, P), (B, Q))] for e in range(stride - 1, -1, -1)]
    )
    return powers.astype(np.float64), powers.sum(0), np.array([P, Q])
