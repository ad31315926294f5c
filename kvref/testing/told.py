"""What a failed assert about codes says: where, of which number, which code, and what would explain it.

A code off by one says little. So a message names the number that was encoded and what each code stands for,
and the answer of another path that would have given everything that came back, if there is one.

Realises: KV-CONF-004 named-choices.
For porters: not needed; this is the edge to other people's tests.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvref.arrays import Array
from kvref.errors import KVError
from kvref.formats.elements import decode
from kvref.formats.format import Format, Quantized
from kvref.formats.paths import Path
from kvref.formats.scaled import acceptable, decoded, dequantize, unpacked

Outputs = Mapping[str, Array]


@dataclass(frozen=True)
class Writes:
    """Numbers that were quantised, and the scales that came with them."""

    kind: Format
    x: Array
    given: Outputs

    def answers(self, path: Path) -> list[Outputs]:
        """Return everything that a writer of a path may store. Raises: KVError."""
        from kvref_conformance.formatted import outputs_of

        answers = acceptable(self.x, self.kind, **self.given, path=path)
        return [outputs_of(answer, self.kind) for answer in answers]

    def right(self, path: Path, name: str, found: Outputs, wanted: Sequence[Outputs]) -> Array:
        """Say which elements of one output are right; of packed codes, which single codes."""
        from kvref_conformance.bytes_judged import right_elements
        from kvref_conformance.formatted import Writing

        own = {part: x.astype(np.float32) for part, x in self.given.items()}
        writing = Writing(self.kind.name, self.x, **own)
        return right_elements(writing, path, name, found, list(wanted))

    def stored(self, outputs: Outputs) -> Quantized:
        """Return all that is stored, the given scales with it."""
        own = {part: x.astype(np.float32) for part, x in self.given.items()}
        return Quantized(**{**own, **outputs})

    def gives(self, path: Path, found: Outputs) -> bool:
        """Say whether a writer of a path may have stored all of this."""
        wanted = self.answers(path)
        form = all(found[n].shape == x.shape and found[n].dtype == x.dtype for n, x in wanted[0].items())
        return form and all(self.right(path, name, found, wanted).all() for name in found)


@dataclass(frozen=True)
class Reads:
    """Bytes that were dequantised."""

    kind: Format
    stored: Quantized

    def right(self, found: Array, wanted: Array) -> Array:
        """Say which numbers have the right bits, or are NaN as they should be."""
        from kvref_conformance.trial import bits

        same = (bits(found) == bits(wanted)) | ((found != found) & (wanted != wanted))
        signed = self.kind.family != "ggml" and self.kind.element.startswith("e")
        return np.asarray(same | ((found == wanted) & (not signed)))

    def gives(self, path: Path, found: Array) -> bool:
        """Say whether a reader of a path gets these numbers."""
        numbers = decoded(self.stored, self.kind, dtype=found.dtype.name, path=path)
        return numbers.shape == found.shape and bool(self.right(found, numbers).all())


def told_form(writes: Writes, path: Path, name: str, found: Outputs, like: Array) -> str:
    """Say that an output has another dtype or shape."""
    dtype, shape = found[name].dtype, list(found[name].shape)
    told = f"{name} has dtype {dtype} and shape {shape}, expected {like.dtype} and {list(like.shape)}"
    return told + _explained(path, lambda other: writes.gives(other, found))


def told_written(writes: Writes, path: Path, name: str, right: Array, found: Outputs, wanted: Outputs) -> str:
    """Say which output is wrong first, where, and what would explain all outputs."""
    count = f"({int((~right).sum())} of {right.size} differ)"
    if name == "codes":
        told, token = _told_code(writes, path, right, found, wanted)
    else:
        where = _first(~right)
        element = writes.kind.scale_element if name == "scales" else "float32"
        was, due = (_spelled(side[name][where], element) for side in (found, wanted))
        told, token = (
            f"{name}: {_place(writes.kind, path, where)}: {was} was stored, expected {due}",
            where[0],
        )
    tests: list[Callable[[Path], bool]] = [lambda other: writes.gives(other, found)]
    if _alone(writes.kind, path) and writes.kind.global_scale != "tensor":
        few = replace(writes, x=writes.x[token : token + 1])
        part = {output: x[token : token + 1] for output, x in found.items()}
        tests.insert(0, lambda other: few.gives(other, part))  # a token is quick, and most paths fail on it
    return f"{told} {count}{_explained(path, *tests)}"


def told_read(reads: Reads, path: Path, right: Array, found: Array, wanted: Array) -> str:
    """Say which number is wrong first, the code it was read from, and what would explain all numbers."""
    where, kind = _first(~right), reads.kind
    code = ""
    if kind.family != "ggml":
        single = unpacked(reads.stored, kind, path=path)[where]
        code = f"the code {_spelled(single, kind.element)} was read as "
    told = f"{_channel(where)}: {code}{_exactly(found[where])}, expected {_exactly(wanted[where])}"
    count = f"({int((~right).sum())} of {right.size} differ)"
    return f"{told} {count}{_explained(path, lambda other: reads.gives(other, found))}"


def _told_code(writes: Writes, path: Path, right: Array, found: Outputs, wanted: Outputs) -> tuple[str, int]:
    """Say what a number became, and of which token it is."""
    kind, sides = writes.kind, (writes.stored(found), writes.stored(wanted))
    if kind.family == "ggml":
        return _told_byte(writes, right, *sides)
    where, codes = _first(~right), [side.codes for side in sides]
    if kind.packed:
        codes = [unpacked(side, kind, path=path) for side in sides]
        if right.shape != codes[0].shape:  # judged byte by byte
            where = _first(codes[0] != codes[1])
    was, due = (_spelled(code[where], kind.element) for code in codes)
    return f"{_channel(where)}: {_exactly(writes.x[where])} became {was}, expected {due}", where[0]


def _told_byte(writes: Writes, right: Array, found: Quantized, wanted: Quantized) -> tuple[str, int]:
    """Say which byte of a block is wrong, and the first number of its vector that is read differently."""
    where, kind = _first(~right), writes.kind
    was, due = (int(side.codes[where]) for side in (found, wanted))
    told = f"token {where[0]}, head {where[1]}, byte {where[2]}: {was:#04x}, expected {due:#04x}"
    numbers = [dequantize(side, kind)[where[:2]] for side in (found, wanted)]
    differ = (numbers[0] != numbers[1]) & ~(np.isnan(numbers[0]) & np.isnan(numbers[1]))
    if differ.any():
        channel = int(np.flatnonzero(differ)[0])
        read, right_read = (_exactly(side[channel]) for side in numbers)
        x = _exactly(writes.x[(*where[:2], channel)])
        told += f"; channel {channel}: {x} is stored as {read}, expected {right_read}"
    return told, where[0]


def _explained(path: Path, *tests: Callable[[Path], bool]) -> str:
    """Name the single answers under which everything that came back would be right."""
    from kvref_conformance.bytes_judged import EXPLANATIONS, alternatives

    found = alternatives(path)
    names = [
        f"{name} = {answer}" for name, answer, other in found if all(_holds(test, other) for test in tests)
    ]
    return f"\nas with {' or '.join(names[:EXPLANATIONS])}" if names else ""


def _holds(test: Callable[[Path], bool], path: Path) -> bool:
    """Run a test of a path that may be impossible for what was given."""
    try:
        return test(path)
    except KVError:
        return False


def _alone(kind: Format, path: Path) -> bool:
    """Say whether a token is stored by itself, as a row of every output."""
    whole = kind.group in ("tensor", "tokens") or path.scale_axis == "tokens"
    return not whole and path.scale_layout == "linear"


def _first(wrong: Array) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(wrong)[0])


def _channel(where: tuple[int, ...]) -> str:
    return f"token {where[0]}, head {where[1]}, channel {where[2]}"


def _place(kind: Format, path: Path, where: tuple[int, ...]) -> str:
    """Say whose scale stands in a place."""
    if len(where) == 1:
        return f"number {where[0]}"
    if path.scale_layout != "linear" and kind.family in ("mx", "nvfp4"):
        return f"row {where[0]}, column {where[1]} of the layout"
    if kind.group == "tokens" or (path.scale_axis == "tokens" and len(where) == 3):
        first = where[0] * kind.size
        return f"tokens {first} to {first + kind.size - 1}, head {where[1]}, channel {where[2]}"
    group = f", group {where[2]}" if len(where) > 2 else ""
    return f"token {where[0]}, head {where[1]}{group}"


def _spelled(value: np.generic, element: str) -> str:
    """Return a code with what it stands for, or a number that is no code."""
    if element.startswith("float"):
        return _exactly(value)
    try:
        number = float(decode(np.array([value], np.uint8), element)[0])
    except KVError:
        return f"{int(value):#04x} (no code of {element})"
    return f"{int(value):#04x} ({number:g})"


def _exactly(value: np.generic) -> str:
    """Return a number in decimal and, where that does not say all, in hexadecimal."""
    number = float(value)
    short = f"{number:.9g}"
    return short if float(f"{number:.6g}") == number or number != number else f"{short} ({number.hex()})"
