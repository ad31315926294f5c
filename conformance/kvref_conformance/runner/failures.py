"""From the failing cases of a requirement to one failure that a person can work with.

The smallest failing case is made smaller still, drawn, and saved as a file that replays it. The diagnosis
looks at a large failing case first, where few faults agree, and keeps what also explains the small one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kvref_conformance.cases import PROGRAM, opening
from kvref_conformance.checks import all_checks
from kvref_conformance.checks.check import Check
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import RECURRENT
from kvref_conformance.foreign_text import one_line
from kvref_conformance.host import Hello, Host
from kvref_conformance.journal import lines_of
from kvref_conformance.oracle import Oracle
from kvref_conformance.programs.shrinking import steps_of
from kvref_conformance.report.model import Failure, Picture
from kvref_conformance.requirements import spec_version
from kvref_conformance.runner.casefile import CaseFile, save_case
from kvref_conformance.runner.evaluate import Evidence, evaluate
from kvref_conformance.runner.honest import honest_under
from kvref_conformance.runner.patience import NOT_RUN
from kvref_conformance.runner.readmap import picture
from kvref_conformance.runner.shrink import shrink
from kvref_conformance.runner.stepwise import by_step, calls_of, lines_of_step

#: Failures of one run that are diagnosed; a subject that is wrong everywhere needs no fortieth diagnosis.
DIAGNOSES = 16
#: Larger failing cases that may rule out a fault which explains the smallest one.
WITNESSES = 4


@dataclass
class Examiner:
    """Looks into the failures of one subject."""

    host: Host
    hello: Hello
    oracle: Oracle
    smallest: bool
    """Whether to make failures small, draw and diagnose them; that calls the subject again."""
    finds: Path | None
    """Folder for the files that replay failures; None: write none."""
    replay_command: Callable[[str], str]
    _diagnosed: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    """Requirement, and area where that matters -> what its failure looks like."""

    def examine(self, failing: Sequence[Evidence], slug: str) -> Failure:
        """Return the failure of one requirement in one area."""
        ran = [found for found in failing if found.failure != NOT_RUN]
        if not ran or not self.smallest:
            return self._record(min(failing, key=lambda found: found.case.size()), slug)
        found = min(ran, key=lambda found: found.case.size())
        if found.failure == "timeout":  # to ask again costs the whole time limit again
            return self._record(found, slug)
        smaller = shrink(
            check_of(found), found.case, self.host, self.oracle, honest=honest_under(self.oracle)
        )
        if smaller.status == "pass":
            return self._record(
                replace(found, message=f"{_first_line(found)} (not again when asked once more)"), slug
            )
        return self._record(
            smaller,
            slug,
            self._as_if(smaller, ran),
            drawn=draw_failure(smaller, self.host, self.oracle.claims),
        )

    def _as_if(self, small: Evidence, ran: Sequence[Evidence]) -> tuple[str, ...]:
        """Return the faults that explain the smallest case and, as far as any does, larger ones as well."""
        area = small.case.verb if small.case.verb in RECURRENT else ""  # these have little in common
        name = (small.requirement, area)
        if name not in self._diagnosed and len(self._diagnosed) < DIAGNOSES:
            faults = diagnose(small, self.oracle.claims)
            for other in sorted(ran, key=lambda found: found.case.size(), reverse=True)[:WITNESSES]:
                if len(faults) < 2:
                    break
                again = evaluate(check_of(other), other.case, self.host, self.oracle)
                also = diagnose(again, self.oracle.claims)
                faults = tuple(fault for fault in faults if fault in also) or faults
            self._diagnosed[name] = faults
        return self._diagnosed.get(name, ())

    def _replay(self, finds: Path, name: str) -> str:
        """Return the command for one file; an absolute path is of this machine, and only its name is told."""
        return self.replay_command(str((Path(finds.name) if finds.is_absolute() else finds) / name))

    def _record(
        self, found: Evidence, slug: str, as_if: tuple[str, ...] = (), *, drawn: Picture | None = None
    ) -> Failure:
        name = None
        if self.finds is not None:
            saved = case_file(found, slug, self.hello)
            name = save_case(self.finds, saved).name
        return Failure(
            message=_first_line(found),
            kind=found.failure,
            check=found.check,
            case=found.case.to_dict(),
            as_if=as_if,
            find=name,
            replay=None if self.finds is None or name is None else self._replay(self.finds, name),
            picture=drawn,
            program=program_lines(found, self.oracle.claims),
        )


def case_file(found: Evidence, slug: str, hello: Hello) -> CaseFile:
    """Return the file that replays a piece of evidence."""
    return CaseFile(
        spec_version=spec_version(),
        requirement=found.requirement,
        slug=slug,
        check=found.check,
        case=found.case,
        subject=hello.name,
        subject_version=hello.version,
        message=_first_line(found),
        kind=found.failure,
    )


def diagnose(found: Evidence, claims: Claims) -> tuple[str, ...]:
    """Return the sentences of the museum's faults that give the same answer on this input."""
    if found.journal and found.status == "fail":
        from kvref_conformance.museum.diagnose_managers import diagnose_manager

        return tuple(m.sentence for m in diagnose_manager(check_of(found), found, claims))
    from kvref_conformance.museum.diagnose import diagnose as match

    if found.status == "pass" or found.call is None or found.answer is None:
        return ()
    return tuple(m.sentence for m in match(found.call, found.answer, found.requirement, claims))


def program_lines(found: Evidence, claims: Claims, *, full: bool = False) -> tuple[str, ...]:
    """Return the program of a failing case, a step a line, the one that shows the failure marked.

    Beside each step stand the operations that it called; if `full`, below it, with all that they gave. A
    failure that shows when all steps are done is marked after them. Empty where the case has no program.
    """
    if PROGRAM not in found.case.options:
        return ()
    steps, shown = steps_of(found.case), found.detail.get("step")
    entries = by_step(found.case, found.journal, claims)
    width = max((len(step) for step in steps), default=0)
    lines = [] if entries is None or not full else [f"        {line}" for line in lines_of_step(entries[0])]
    for at, step in enumerate(steps):
        own = [] if entries is None else entries[at + 1]
        beside = "" if full else calls_of(own)
        line = f"{'>' if at == shown else ' '} {at:>3}  {step:<{width}}   {beside}".rstrip()
        lines += [line, *(f"          {more}" for more in lines_of_step(own) if full)]
    opened = ", ".join(f"{name} = {value}" for name, value in opening(found.case).items())
    first = f"      {found.case.verb} with {opened}" if opened else f"      {found.case.verb}"
    ended = [f">      {found.detail['operation']}"] if "operation" in found.detail else []
    if isinstance(shown, int) and shown >= len(steps):
        ended = [">      at the end"]
    if full and entries is None:
        ended += [f"  {line}" for line in lines_of(found.journal)]
    return (first, *lines, *ended)


def draw_failure(found: Evidence, host: Host, claims: Claims) -> Picture | None:
    """Return the cache of a failing input with what was read; None where there is nothing to draw."""
    call = found.call
    if call is None or "q" not in call.tensors or not call.tensors["q"].size:
        return None
    where = found.detail.get("where", [])
    token, head = (where[0], where[1]) if len(where) >= 2 else (0, 0)
    return picture(call, None if found.failure else host, claims, int(token), int(head))


def check_of(found: Evidence) -> Check:
    """Return the check that a piece of evidence is from."""
    return next(c for c in all_checks() if (c.requirement, c.name) == (found.requirement, found.check))


def _first_line(found: Evidence) -> str:
    return one_line(found.message) or found.failure
