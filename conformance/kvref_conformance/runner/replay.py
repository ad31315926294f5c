"""One case once more: what it was, what the subject was given, what it read, what came back."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from kvref.arrays import Array, dtype_name, write_raw
from kvref.errors import ArgumentError
from kvref_conformance.cases import PROGRAM
from kvref_conformance.claims import Claims
from kvref_conformance.foreign_text import one_line, printable
from kvref_conformance.host import Host
from kvref_conformance.journal import lines_of
from kvref_conformance.oracle import Oracle
from kvref_conformance.report.model import Picture
from kvref_conformance.requirements import load_requirements, spec_version
from kvref_conformance.runner.casefile import CaseFile
from kvref_conformance.runner.evaluate import Evidence, evaluate
from kvref_conformance.runner.failures import diagnose, draw_failure, program_lines
from kvref_conformance.runner.suite import Settings

#: Entries of an integer tensor that are printed.
SHOWN = 24


@dataclass(frozen=True)
class Replay:
    """A case file, and what its case gives now."""

    case: CaseFile
    found: Evidence
    as_if: tuple[str, ...]
    picture: Picture | None
    claims: Claims

    def to_json(self) -> str:
        """Return the replay as JSON text."""
        tensors = {name: _summary(x) for name, x in self._tensors().items()}
        data = {**self.found.to_dict(), "as_if": self.as_if, "tensors": tensors}
        data["params"] = dict(self.found.call.params) if self.found.call else {}
        if self.found.journal:
            data["journal"] = lines_of(self.found.journal)
        return json.dumps(data, indent=1, ensure_ascii=False, default=_plain) + "\n"

    def show(self, console: Console) -> None:
        """Print the requirement, the case, the tensors, what was read, and what was found."""
        case, found = self.case, self.found
        requirement = load_requirements().get(case.requirement)
        lines = [f"{case.requirement} {case.slug}", f"  {requirement.text}" if requirement else ""]
        if case.spec_version != spec_version():
            lines.append(f"  found under spec {case.spec_version}; this is {spec_version()}")
        spelled = "" if PROGRAM in case.case.options else json.dumps(case.case.to_dict(), ensure_ascii=False)
        lines.append(f"check {case.check} at {spelled or case.case.verb}")
        if found.call is not None:
            lines += [f"  {name} = {value}" for name, value in found.call.params.items()]
        lines += [f"  {name}: {_summary(x)}" for name, x in self._tensors().items()]
        if PROGRAM in case.case.options:
            lines += [f"  {line}" for line in program_lines(found, self.claims, full=True)]
        else:
            lines += [f"    {line}" for line in lines_of(found.journal)]
        if self.picture is not None:
            lines += _reading(self.picture)
        for line in lines:
            if line:
                console.print(Text(printable(line)), soft_wrap=True)
        word = "FAIL" if found.status == "fail" else "PASS"
        kind = f"{found.failure}: " if found.failure else ""
        console.print(
            Text(f"{word}  {kind}{found.message}", "red" if word == "FAIL" else "green"), soft_wrap=True
        )
        for sentence in self.as_if:
            console.print(Text(f"      as if: {sentence}"), soft_wrap=True)

    def keep(self, folder: Path) -> None:
        """Write every tensor of the failing call as raw little-endian bytes, and `index.json` beside them.

        Raises: ArgumentError if the folder cannot be written.
        """
        try:
            self._keep(folder)
        except OSError as error:
            raise ArgumentError(f"{folder} cannot hold tensors: {error.strerror}") from None

    def _keep(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        index: dict[str, Any] = {}
        for name, x in self._tensors().items():
            write_raw(folder / f"{name}.bin", x)
            index[name] = {"file": f"{name}.bin", "dtype": dtype_name(x), "shape": list(x.shape)}
        params = dict(self.found.call.params) if self.found.call else {}
        text = json.dumps({"verb": self.case.case.verb, "params": params, "tensors": index}, indent=1)
        (folder / "index.json").write_text(text + "\n", encoding="utf-8")

    def _tensors(self) -> dict[str, Array]:
        given = dict(self.found.call.tensors) if self.found.call else {}
        back = self.found.answer.outputs if self.found.answer else {}
        return {**given, **{(name if name not in given else f"{name}_after"): x for name, x in back.items()}}


def replay(case: CaseFile, host: Host, settings: Settings) -> Replay:
    """Ask a subject one case again.

    Raises: Failed if it cannot be asked; ArgumentError if the suite has no such check, the check was not
    made for such a case, or the subject does not offer the verb.
    """
    hello = host.hello()
    if case.case.verb not in hello.verbs:
        raise ArgumentError(f"the case asks {case.case.verb}, which {hello.name} does not offer")
    claims = settings.claims(Claims.from_dict(hello.claims))
    check = case.find_check()
    try:
        found = evaluate(check, case.case, host, Oracle(claims))
    except Exception as error:
        raise ArgumentError(
            f"check {check.name} was not made for this case: {type(error).__name__}: {one_line(str(error))}"
        ) from error
    failed = found.status == "fail"
    return Replay(
        case,
        found,
        diagnose(found, claims) if failed else (),
        draw_failure(found, host, claims) if failed else None,
        claims,
    )


def _reading(picture: Picture) -> list[str]:
    table = sorted(
        (index, block) for block, request, index, _ in picture.owners if request == picture.request
    )
    lines = [f"  token {picture.token}, head {picture.head} of request {picture.request}:"]
    if table:
        lines.append(f"    block table  {', '.join(str(block) for _, block in table)}")
    lines.append(f"    should read  {_slots(picture.should)}")
    if picture.read:
        lines.append(f"    reads        {_slots(picture.read)}")
    return lines


def _slots(slots: tuple[int, ...]) -> str:
    """Spell sorted slots as ranges."""
    if not slots:
        return "no slot"
    starts = [s for s in slots if s - 1 not in slots]
    ends = [s for s in slots if s + 1 not in slots]
    spans = [str(a) if a == b else f"{a}…{b}" for a, b in zip(starts, ends, strict=True)]
    return f"{'slot' if len(slots) == 1 else 'slots'} {', '.join(spans)}"


def _summary(x: Array) -> str:
    form = f"{dtype_name(x)} {list(x.shape)}"
    if not x.size:
        return form
    if np.issubdtype(x.dtype, np.integer) or x.dtype == np.bool_:
        shown = " ".join(str(int(value)) for value in x.ravel()[:SHOWN])
        return f"{form} = {shown}{' …' if x.size > SHOWN else ''}"
    wide = x.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    odd = x.size - finite.size
    extent = f"{finite.min():.4g} … {finite.max():.4g}" if finite.size else "nothing finite"
    return f"{form} in {extent}" + (f", {odd} not finite" if odd else "")


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} has no JSON form")
