"""The requirements of the spec, read from its chapters.

A chapter is Markdown. A requirement is a fenced directive in it: an id and a slug, fields, one sentence. The
same reader serves the other directives of the spec (choices, tables), so whatever the spec states in a form
that a program can compare, a test compares.

Realises: KV-CONF-019 one-source.
For porters: the grammar is a fence of three or more backticks, `{name} argument`, `:field: value` lines, a
blank line, text. The standard library is enough to read it.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

AREAS = ("ATTN", "RNN", "FMT", "BLOCK", "PREFIX", "SNAP", "SCHED", "ENGINE", "TIER", "SIZE", "CONF")
LEVELS = ("MUST", "SHOULD", "MAY")
LAWS = ("transparency", "isolation", "conservation", "progress", "fidelity")
TESTS = ("core", "numeric", "fuzz", "untestable")
REQUIRED_FIELDS = ("level", "law", "test")
FIELDS = (*REQUIRED_FIELDS, "choices", "feature", "reason", "source")

_ID = re.compile(rf"KV-(?:{'|'.join(AREAS)})-\d{{3}}")
_SLUG = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_FENCE = re.compile(r"(`{3,})\s*(?:\{(?P<name>[a-z]+)\}\s*(?P<argument>.*))?")
_FIELD = re.compile(r":(?P<name>[a-z]+):\s*(?P<value>.*)")
_HEADING = re.compile(r"(#+)\s+(?P<title>.+)")


class SpecError(ValueError):
    """A chapter breaks the grammar: the message has the file, the line, what was found, what was expected."""


@dataclass(frozen=True)
class Directive:
    """One fenced directive of a chapter."""

    name: str
    argument: str
    fields: Mapping[str, str]
    body: tuple[str, ...]
    """The lines after the fields, outer blank lines removed."""
    section: str
    """The nearest heading above."""
    path: Path
    line: int

    def error(self, found: str, expected: str) -> SpecError:
        """Return the error that says what is wrong with this directive, and where."""
        return SpecError(f"{self.path.name}:{self.line}: {found}, expected {expected}")


@dataclass(frozen=True)
class Requirement:
    """One rule of the spec: a sentence that an implementation can fail."""

    id: str
    slug: str
    level: str
    law: str
    test: str
    """The ring that decides it: core, numeric, fuzz; or untestable, and then `reason` says why."""
    choices: tuple[str, ...]
    source: str
    reason: str
    feature: str
    """The feature whose claim brings the requirement into force; empty if every claim does."""
    text: str
    chapter: str
    section: str

    @property
    def title(self) -> str:
        """Return id and slug, as messages and docstrings cite them."""
        return f"{self.id} {self.slug}"


def spec_dir() -> Path:
    """Return the folder of the chapters, in a source tree or in an installed package.

    Raises: SpecError if neither is there.
    """
    package = Path(__file__).resolve().parent
    for folder in (package / "_spec", package.parents[1] / "spec"):
        if (folder / "VERSION").is_file():
            return folder
    raise SpecError(f"no VERSION in {package / '_spec'}, expected the chapters there or in spec/ of the tree")


def spec_version() -> str:
    """Return the version of the spec, which every verdict names.

    Raises: SpecError if it is not three numbers.
    """
    path = spec_dir() / "VERSION"
    version = path.read_text(encoding="utf-8").strip()
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise SpecError(f"{path.name}:1: version {version!r}, expected MAJOR.MINOR.PATCH")
    return version


def chapters(folder: Path | None = None) -> list[Path]:
    """Return the chapter files, in alphabetical order."""
    return sorted((folder or spec_dir()).glob("*.md"))


def load_requirements(folder: Path | None = None) -> dict[str, Requirement]:
    """Read every requirement of the spec, by id, in the order of the chapters.

    Raises: SpecError naming file, line, what was found and what was expected.
    """
    found: dict[str, Requirement] = {}
    slugs: dict[str, str] = {}
    for path in chapters(folder):
        for directive in read_directives(path):
            if directive.name != "req":
                continue
            requirement = _requirement(directive)
            if requirement.id in found:
                first = found[requirement.id]
                raise directive.error(
                    f"{requirement.id} a second time (the first is in {first.chapter})", "every id once"
                )
            if requirement.slug in slugs:
                raise directive.error(
                    f"slug {requirement.slug!r}, taken by {slugs[requirement.slug]}", "every slug once"
                )
            found[requirement.id] = requirement
            slugs[requirement.slug] = requirement.id
    return found


def read_directives(path: Path) -> Iterator[Directive]:
    """Yield the directives of one chapter; fenced code, and directives quoted inside it, are skipped.

    Raises: SpecError if a fence is never closed, or a field is given twice.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    section = ""
    at = 0
    while at < len(lines):
        heading = _HEADING.fullmatch(lines[at])
        fence = _FENCE.match(lines[at])
        if heading:
            section = heading["title"].strip()
        if fence is None:
            at += 1
            continue
        end = _closing(lines, at, fence[1], path)
        if fence["name"]:
            fields, body = _split(lines[at + 1 : end], path, at + 2)
            argument = fence["argument"].strip()
            yield Directive(fence["name"], argument, fields, body, section, path, at + 1)
        at = end + 1


def _closing(lines: list[str], start: int, fence: str, path: Path) -> int:
    for at in range(start + 1, len(lines)):
        ticks = lines[at].rstrip()
        if set(ticks) == {"`"} and len(ticks) >= len(fence):
            return at
    raise SpecError(f"{path.name}:{start + 1}: a fence without an end, expected a line of {fence}")


def _split(lines: list[str], path: Path, first_line: int) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Separate the leading fields from the body."""
    fields: dict[str, str] = {}
    at = 0
    while at < len(lines) and (match := _FIELD.fullmatch(lines[at].rstrip())):
        if match["name"] in fields:
            raise SpecError(f"{path.name}:{first_line + at}: field {match['name']!r} twice, expected it once")
        fields[match["name"]] = match["value"].strip()
        at += 1
    body = lines[at:]
    while body and not body[0].strip():
        del body[0]
    while body and not body[-1].strip():
        del body[-1]
    return MappingProxyType(fields), tuple(body)


def _requirement(directive: Directive) -> Requirement:
    """Check one requirement and return its record."""
    parts = directive.argument.split()
    if len(parts) != 2 or not _ID.fullmatch(parts[0]) or not _SLUG.fullmatch(parts[1]):
        raise directive.error(
            f"requirement {directive.argument!r}",
            f"`KV-<AREA>-<NNN> slug` with AREA one of {', '.join(AREAS)} and a slug of a-z, 0-9 and hyphens",
        )
    fields = directive.fields
    where = parts[0]
    for name in fields:
        if name not in FIELDS:
            raise directive.error(f"{where} has field {name!r}", f"one of {', '.join(FIELDS)}")
    for name, allowed in (("level", LEVELS), ("law", LAWS), ("test", TESTS)):
        if fields.get(name) not in allowed:
            raise directive.error(f"{where} has {name} {fields.get(name)!r}", f"one of {', '.join(allowed)}")
    if (fields["test"] == "untestable") != bool(fields.get("reason")):
        raise directive.error(
            f"{where} has test {fields['test']!r} and reason {fields.get('reason', '')!r}",
            "a reason with untestable, and with nothing else",
        )
    text = " ".join(line.strip() for line in directive.body if line.strip())
    stated = re.findall(r"\b(MUST|SHOULD|MAY)\b", text)
    if stated != [fields["level"]]:
        raise directive.error(
            f"{where} says {' and '.join(stated) or 'no level'} in its text", f"{fields['level']}, once"
        )
    return Requirement(
        id=parts[0],
        slug=parts[1],
        level=fields["level"],
        law=fields["law"],
        test=fields["test"],
        choices=tuple(name.strip() for name in fields.get("choices", "").split(",") if name.strip()),
        source=fields.get("source", ""),
        reason=fields.get("reason", ""),
        feature=fields.get("feature", ""),
        text=text,
        chapter=directive.path.stem,
        section=directive.section,
    )
