"""Stored bytes and dequantised numbers, held to the declared path; what is wrong is named, and explained.

A code off by one says little. So a message names the number that was encoded, in full precision, and the
answer of another path that would have given the bytes that came back, if there is one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace

import numpy as np

from kvref.arrays import Array
from kvref.errors import FormatError, KVError
from kvref.formats.elements import decode
from kvref.formats.format import Quantized
from kvref.formats.paths import PATHS, Path
from kvref.formats.scaled import acceptable, decoded, dequantize, unpacked
from kvref_conformance.choices import choice_name
from kvref_conformance.contracts import Call, Failed
from kvref_conformance.formatted import Reading, Writing, outputs_of
from kvref_conformance.trial import Result, Trial, bits

#: Answers that are named at most where several would explain an answer.
EXPLANATIONS = 3
#: Ways of giving no answer that are a refusal, where one is due: none of them is a crash.
REFUSALS = ("refused", "error", "unsupported")


def expect_written(trial: Trial, writing: Writing) -> Result | None:
    """Hold a writer to the bytes of the declared path, or to refusing what that path refuses.

    Raises: Violation.
    """
    path = trial.claims.path()
    call = writing.call(path)
    try:
        answers = acceptable(
            writing.x,
            writing.kind,
            scales=writing.scales,
            global_scale=writing.global_scale,
            path=path,
        )
    except FormatError as refused:
        expect_refusal(trial, call, str(refused))
        return None
    result = trial.call(call)
    found = {name: np.asarray(result.answer.outputs[name]) for name in call.outputs}
    wanted = [outputs_of(answer, writing.kind) for answer in answers]
    for name in reversed(found):  # a wrong scale comes before the wrong codes that follow from it
        right = right_elements(writing, path, name, found, wanted)
        if not right.all():
            where = tuple(int(i) for i in np.argwhere(~right)[0])
            told = _told(writing, path, name, where, found, wanted[0])
            told += _as_with(writing, path, found, where)
            count = f"({int((~right).sum())} of {right.size} differ)"
            trial.expect(False, f"{told} {count}", result, where=list(where))
    return result


def expect_read(trial: Trial, reading: Reading, *, signs: bool = False) -> Result:
    """Hold a reader to the numbers of the declared path; `signs`: the sign of zero counts as well.

    Raises: Violation.
    """
    path = trial.claims.path()
    result = trial.call(reading.call(path))
    found, wanted = np.asarray(result.answer.outputs["out"]), reading.numbers(path)
    right = _same(found, wanted) | ((found == wanted) & (not signs))
    if not right.all():
        where = tuple(int(i) for i in np.argwhere(~right)[0])
        trial.expect(
            False,
            f"out{list(where)} = {_exactly(found[where])}, expected {_exactly(wanted[where])}"
            f"{_of_code(reading, where)}{_reads_as(reading, path, found, where, signs)} "
            f"({int((~right).sum())} of {right.size} differ)",
            result,
            where=list(where),
        )
    return result


def expect_refusal(trial: Trial, call: Call, reason: str) -> None:
    """Hold a writer to giving no answer.

    To say that it is not supported is to refuse it.
    Raises: Violation if it answers; Failed if it breaks down.
    """
    try:
        result = trial.call(call)
    except Failed as failed:
        if failed.kind in REFUSALS:
            return
        raise
    trial.expect(False, f"was answered, expected a refusal: {reason}", result)


def right_elements(
    writing: Writing, path: Path, name: str, found: Mapping[str, Array], wanted: list[Mapping[str, Array]]
) -> Array:
    """Say which elements of an output are those of some answer; of packed codes, which single codes.

    What lies under a scale that is NaN means nothing, and NaN is NaN whatever its sign. The global scale of
    zeros is any under which they are read as zeros.
    """
    if name != "codes" or writing.kind.family not in ("mx", "nvfp4"):
        alike = [_same(_one_nan(writing, name, found), _one_nan(writing, name, one)) for one in wanted]
        right = np.asarray(np.any(alike, axis=0))
        if name != "global_scale" or right.all():
            return right
        return right | _scales_zeros(writing, path, found)
    single = _unpacked(writing, found, path)
    alike = [(single == _unpacked(writing, one, path)) | _meaningless(writing, one, path) for one in wanted]
    return np.asarray(np.any(alike, axis=0))


def settled(writing: Writing, path: Path, outputs: Mapping[str, Array]) -> Mapping[str, Array]:
    """Return outputs with one byte for every NaN among scales, and zeros for the codes under them."""
    if writing.kind.family not in ("mx", "nvfp4"):
        return outputs
    lost = _meaningless(writing, outputs, path)
    lost = lost[..., ::2] if writing.kind.packed else lost  # a byte's two codes are of one group
    codes = np.where(lost, np.uint8(0), outputs["codes"])
    return {**outputs, "codes": codes, "scales": _one_nan(writing, "scales", outputs)}


def _one_nan(writing: Writing, name: str, outputs: Mapping[str, Array]) -> Array:
    """Return an output, every NaN among scales as the same byte."""
    tensor = outputs[name]
    if name != "scales" or writing.kind.scale_element != "e4m3fn":
        return tensor
    return np.where(tensor & 0x7F == 0x7F, np.uint8(0x7F), tensor)


def _meaningless(writing: Writing, outputs: Mapping[str, Array], path: Path) -> Array:
    """Say which codes, one each, lie under a scale that is NaN."""
    stored = Quantized(**{**_given(writing), **outputs})
    zeros = np.zeros_like(stored.codes)  # 0 · NaN
    return np.isnan(dequantize(replace(stored, codes=zeros), writing.kind, path=path))


def _scales_zeros(writing: Writing, path: Path, outputs: Mapping[str, Array]) -> Array:
    """Say which global scales stand for zeros alone, and let them be read as zeros."""
    read = dequantize(Quantized(**{**_given(writing), **outputs}), writing.kind, path=path)
    zeros = (writing.x == 0) & (read == 0)
    return np.asarray(zeros.all(axis=None if writing.kind.global_scale == "tensor" else 2)).reshape(
        outputs["global_scale"].shape
    )


def alternatives(path: Path) -> Iterator[tuple[str, str, Path]]:
    """Yield (choice, answer, path) of every path that differs from a path in one decision."""
    for field in fields(Path):
        for answer in PATHS[field.name]:
            if answer != getattr(path, field.name):
                yield choice_name(field.name), answer, replace(path, **{field.name: answer})


def _same(found: Array, wanted: Array) -> Array:
    """Say where two arrays have the same bits, or NaN both."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return np.zeros(found.shape, np.bool_)
    same: Array = (bits(found) == bits(wanted)) | ((found != found) & (wanted != wanted))
    return same


def _told(
    writing: Writing,
    path: Path,
    name: str,
    where: tuple[int, ...],
    found: Mapping[str, Array],
    wanted: Mapping[str, Array],
) -> str:
    """Say what was found and what was expected at the first place that is wrong."""
    kind = writing.kind
    if name != "codes":
        element = kind.scale_element if name == "scales" else "float32"
        parts = (_spelled(side[name][where], element) for side in (found, wanted))
        return "{}{} = {}, expected {}".format(name, list(where), *parts)
    if kind.family == "ggml":
        return "codes{} = {:#04x}, expected {:#04x}".format(
            list(where), *(side["codes"][where] for side in (found, wanted))
        )
    plain = [_unpacked(writing, side, path) for side in (found, wanted)]
    differ = plain[0] != plain[1]
    if kind.family in ("mx", "nvfp4"):
        differ &= ~_meaningless(writing, wanted, path)
    at = tuple(int(i) for i in np.argwhere(differ)[0])
    codes = (_spelled(side[at], kind.element) for side in plain)
    return "x{} = {} became {}, expected {}".format(list(at), _exactly(writing.x[at]), *codes)


def _unpacked(writing: Writing, outputs: Mapping[str, Array], path: Path) -> Array:
    return unpacked(Quantized(**{**_given(writing), **outputs}), writing.kind, path=path)


def _given(writing: Writing) -> dict[str, Array]:
    """Return the scales that a writing comes with."""
    given = {"scales": writing.scales, "global_scale": writing.global_scale}
    return {name: x for name, x in given.items() if x is not None}


def _as_with(writing: Writing, path: Path, found: Mapping[str, Array], where: tuple[int, ...]) -> str:
    """Name the answers under which a writer would have stored what was found, of one token where it can."""
    small, seen = writing, dict(found)
    alone = writing.kind.group not in ("tensor", "tokens") and writing.kind.global_scale != "tensor"
    if alone and path.scale_layout == "linear" and path.scale_axis == "channels" and len(where) > 1:
        small = writing.part(where[0], 1)
        seen = {name: x[where[0] : where[0] + 1] for name, x in found.items()}
    names = []
    for choice, answer, other in alternatives(path):
        try:
            stored = outputs_of(small.stored(other), small.kind)
        except KVError:
            continue
        if all(_same(x, stored[name]).all() for name, x in seen.items()):
            names.append(f"{choice} = {answer}")
    return _named(names)


def _reads_as(reading: Reading, path: Path, found: Array, where: tuple[int, ...], signs: bool) -> str:
    """Name the answers under which a reader would have returned what was found, of all tokens."""
    names = []
    for choice, answer, other in alternatives(path):
        try:
            numbers = read_by(reading, path, other)
        except KVError:
            continue
        if (
            numbers.shape == found.shape
            and (_same(found, numbers) | ((found == numbers) & (not signs))).all()
        ):
            names.append(f"{choice} = {answer}")
    return _named(names)


def read_by(reading: Reading, stored: Path, read: Path) -> Array:
    """Return what a reader of one path makes of the bytes of another."""
    return decoded(reading.stored(stored), reading.kind, dtype=reading.dtype, path=read)


def _named(names: list[str]) -> str:
    return f"; as with {' or '.join(names[:EXPLANATIONS])}" if names else ""


def _of_code(reading: Reading, where: tuple[int, ...]) -> str:
    """Say which code a number was read from."""
    if reading.kind.family == "ggml" or where[2] >= reading.codes.shape[2]:
        return ""
    return f", of the code {_spelled(reading.codes[where], reading.kind.element)}"


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
