"""A failing case as a file: a few numbers that bring the failure back.

The file holds a recipe, not tensors, and says what was seen and under which version of the spec. It is read
strictly, because such files travel between people: an unknown field is an error, sizes are limited before
anything is allocated, and nothing in it is a path.

Realises: KV-CONF-008 case-files.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from kvref.errors import ArgumentError
from kvref_conformance.cases import PROGRAM, Case
from kvref_conformance.checks import all_checks
from kvref_conformance.checks.check import Check
from kvref_conformance.claims import ALL_DTYPES
from kvref_conformance.foreign_text import read_text
from kvref_conformance.managers import AREAS, MANAGERS, Parameter
from kvref_conformance.runner.known_steps import check_program

SCHEMA = "kvref-case/1"
MAX_BYTES = 2**18
#: Characters of one text of a case: a program is the longest.
MAX_TEXT = 2**16
_DTYPES = (*ALL_DTYPES, "float64")
#: The largest number beside a program: the blocks of a pool.
MAX_OPTION = 2**20
#: Managers that a case may open at once.
MAX_SESSIONS = 16
#: Elements of the largest tensor a case may describe: 2^28 float32 numbers are 1 GiB.
MAX_ELEMENTS = 2**28


@dataclass(frozen=True, kw_only=True)
class CaseFile:
    """One failing case, with what was seen there."""

    spec_version: str
    requirement: str
    slug: str
    check: str
    case: Case
    subject: str
    subject_version: str
    message: str
    kind: str
    """Empty where the answer was wrong; crash, timeout, error, … where there was none."""

    def to_json(self) -> str:
        """Return the file's text."""
        data = {"schema": SCHEMA, **{f.name: getattr(self, f.name) for f in fields(self)}}
        data["case"] = self.case.to_dict()
        return json.dumps(data, indent=1, ensure_ascii=False, default=_plain) + "\n"

    def find_check(self) -> Check:
        """Return the check the file names.

        Raises: ArgumentError if the suite has none of that name for that requirement.
        """
        named = [check for check in all_checks() if check.name == self.check]
        for check in named:
            if check.requirement == self.requirement:
                return check
        raise ArgumentError(
            f"check = {self.check!r} for {self.requirement}, expected a check of this version of the suite"
            + (f" ({self.check} belongs to {named[0].requirement})" if named else "")
        )


def load_case(path: Path) -> CaseFile:
    """Read a case file.

    Raises: ArgumentError naming the field, what was found and what was expected.
    """
    return parse_case(read_text(path, MAX_BYTES))


def parse_case(text: str) -> CaseFile:
    """Read the text of a case file.

    Raises: ArgumentError naming the field, what was found and what was expected.
    """
    try:
        data = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except ArgumentError:
        raise
    except (ValueError, RecursionError):
        raise ArgumentError(f"a case file holds {text[:40]!r}, expected a JSON object") from None
    names = [f.name for f in fields(CaseFile)]
    if not isinstance(data, dict) or set(data) != {"schema", *names}:
        unexpected = (
            sorted(set(data) ^ {"schema", *names}) if isinstance(data, dict) else [type(data).__name__]
        )
        raise ArgumentError(
            f"a case file differs at {unexpected[0]!r}, expected the fields schema, {', '.join(names)}"
        )
    if data.pop("schema") != SCHEMA:
        raise ArgumentError(f"schema is another one, expected {SCHEMA!r}")
    for name in names:
        if name != "case" and not isinstance(data[name], str):
            raise ArgumentError(f"{name} = {data[name]!r:.80}, expected text")
    case = read_case(data.pop("case"))
    return CaseFile(case=case, **data)


def read_case(data: Any) -> Case:
    """Read a case from JSON values, its size checked before anything is built from it.

    Raises: ArgumentError naming the field, what was found and what was expected.
    """
    case = Case.from_dict(data)
    if not isinstance(case.verb, str) or case.verb not in AREAS:
        raise ArgumentError(f"case.verb = {case.verb!r:.80}, expected one of {', '.join(AREAS)}")
    if not isinstance(case.dtype, str) or case.dtype not in _DTYPES:
        raise ArgumentError(f"case.dtype = {case.dtype!r:.80}, expected one of {', '.join(_DTYPES)}")
    if not isinstance(case.options, Mapping) or len(case.options) > 64:
        raise ArgumentError(f"case.options = {case.options!r:.80}, expected an object of at most 64 numbers")
    for name, value in case.options.items():
        if (
            not isinstance(value, int | float | str)
            or abs(value if not isinstance(value, str) else 0) > 2**40
        ):
            raise ArgumentError(
                f"case.options[{name!r:.40}] = {value!r:.80}, expected a number, text or boolean"
            )
        if isinstance(value, str) and len(value) > MAX_TEXT:
            raise ArgumentError(
                f"case.options[{name!r:.40}] has {len(value)} characters, expected at most {MAX_TEXT}"
            )
    if case.verb in MANAGERS:
        _check_program(case)
    elif case.block_size < 1:
        raise ArgumentError(f"case.block_size = {case.block_size}, expected at least 1")
    tokens = max(sum(case.seq_lens), case.num_tokens) + case.block_size * (len(case.seq_lens) + 8)
    elements = tokens * case.num_q_heads * case.head_dim
    if elements > MAX_ELEMENTS:
        raise ArgumentError(f"case describes {elements} elements a tensor, expected at most {MAX_ELEMENTS}")
    return case


def _check_program(case: Case) -> None:
    """Check that a case about a manager has a program and small numbers beside it."""
    if not isinstance(case.options.get(PROGRAM), str) or case.seq_lens:
        raise ArgumentError(f"case of {case.verb} has no program, expected one among its options, no lengths")
    for name, value in case.options.items():
        if not isinstance(value, str) and not abs(value) <= MAX_OPTION:
            raise ArgumentError(f"case.options[{name!r:.40}] = {value}, expected at most {MAX_OPTION}")
    if case.block_size < 1:
        raise ArgumentError(f"case.block_size = {case.block_size}, expected at least 1")
    for parameter in MANAGERS[case.verb].opens:
        if parameter.name in case.options:
            _check_opening(parameter, case.options[parameter.name])
        elif parameter.name == "num_blocks":
            raise ArgumentError(f"case.options has no num_blocks, expected it of {case.verb}")
    sessions = case.options.get("sessions", 1)
    if type(sessions) is not int or not 1 <= sessions <= MAX_SESSIONS:
        raise ArgumentError(
            f"case.options['sessions'] = {sessions!r:.40}, expected 1 to {MAX_SESSIONS} managers"
        )
    check_program(case.verb, str(case.options[PROGRAM]))


def _check_opening(parameter: Parameter, value: Any) -> None:
    """Check a number that a manager is opened with, or a list of them, written as text with commas."""
    least = 0 if parameter.name == "windows" else 1
    if parameter.kind == "int":
        numbers, due = [value], "an integer"
    else:
        numbers = [int(n) if n.isdecimal() else n for n in str(value).split(",")]
        due = "integers with commas between them"
    if not all(type(n) is int and least <= n <= MAX_OPTION for n in numbers):
        raise ArgumentError(
            f"case.options[{parameter.name!r}] = {value!r:.40}, expected {due} from {least} to {MAX_OPTION}"
        )


def save_case(folder: Path, found: CaseFile) -> Path:
    """Write a case under the first free name `<requirement>-<number>.json` of a folder.

    The folder is made if need be; a file with the same text already there is left as it is.
    Raises: ArgumentError if no name is free, or the folder cannot be written.
    """
    text = found.to_json()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(1, 10_000):
            path = folder / f"{found.requirement}-{number:04d}.json"
            try:
                with path.open("x", encoding="utf-8") as file:
                    file.write(text)
            except FileExistsError:
                if path.read_text(encoding="utf-8") == text:
                    return path
                continue
            return path
    except OSError as error:
        raise ArgumentError(f"{folder} cannot hold case files: {error.strerror}") from None
    raise ArgumentError(f"{folder.name} holds 9999 cases of {found.requirement}, expected a free name")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ArgumentError("a case file gives one field twice, expected it once")
    return found


def _no_constant(found: str) -> float:
    raise ArgumentError(f"a case file holds {found}, expected finite numbers")


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} has no JSON form")
