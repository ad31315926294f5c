"""The reader of the spec: what it finds, what it refuses, and that everybody cites what is there."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvref_conformance import requirements
from kvref_conformance.requirements import (
    SpecError,
    load_requirements,
    read_directives,
    spec_dir,
    spec_version,
)

ROOT = Path(__file__).resolve().parents[2]

#: Topic -> numbers of its requirements: none may vanish, since ids are never reused or renumbered.
ATTENTION_IDS = (
    *range(1, 20),
    *range(20, 29),
    *range(30, 36),
    *range(40, 47),
    *range(50, 56),
    *range(60, 63),
    *range(70, 76),
    *range(80, 86),
    *range(90, 93),
    *range(100, 105),
)
FORMAT_IDS = (
    *range(1, 11),
    *range(20, 27),
    *range(30, 39),
    *range(40, 46),
    *range(50, 56),
    *range(60, 64),
    *range(70, 74),
    80,
    81,
    *range(90, 95),
    100,
)
BLOCK_IDS = (*range(1, 14), *range(20, 35), *range(40, 46))
RNN_IDS = (*range(1, 33),)
PREFIX_IDS = (*range(1, 29), *range(30, 35), *range(40, 47), *range(50, 54))

GOOD = """\
# A chapter

```{req} KV-ATTN-021 some-rule
:level: MUST
:law: transparency
:test: core
:choices: one, two
:source: somewhere

A thing MUST hold,
on two lines.
```
"""


def spec_with(tmp_path: Path, text: str) -> Path:
    """A folder with one chapter."""
    (tmp_path / "chapter.md").write_text(text, encoding="utf-8")
    return tmp_path


def test_every_field_is_read(tmp_path: Path) -> None:
    """A record holds what the chapter says, the sentence joined to one line."""
    found = load_requirements(spec_with(tmp_path, GOOD))["KV-ATTN-021"]
    assert (found.slug, found.level, found.law, found.test) == ("some-rule", "MUST", "transparency", "core")
    assert (found.choices, found.source, found.reason, found.feature) == (("one", "two"), "somewhere", "", "")
    assert found.text == "A thing MUST hold, on two lines."
    assert (found.chapter, found.section, found.title) == ("chapter", "A chapter", "KV-ATTN-021 some-rule")


def test_quoted_directives_are_not_requirements(tmp_path: Path) -> None:
    """A chapter may show what a requirement looks like, inside a longer fence."""
    quoted = f"````markdown\n{GOOD}````\n"
    assert load_requirements(spec_with(tmp_path, quoted)) == {}


@pytest.mark.parametrize(
    ("change", "line", "message"),
    [
        ((":level: MUST", ":level: SHALL"), 3, r"KV-ATTN-021 has level 'SHALL', expected one of MUST"),
        ((":law: transparency", ":law: gravity"), 3, r"has law 'gravity', expected one of transparency"),
        ((":test: core", ":test: maybe"), 3, r"has test 'maybe', expected one of core"),
        ((":level: MUST\n", ""), 3, r"has level None, expected one of MUST"),
        ((":source:", ":origin:"), 3, r"has field 'origin', expected one of level"),
        ((":test: core", ":test: core\n:test: core"), 7, r"field 'test' twice"),
        ((":test: core", ":test: untestable"), 3, r"expected a reason with untestable"),
        ((":test: core", ":test: core\n:reason: none"), 3, r"expected a reason with untestable"),
        (("A thing MUST hold", "A thing holds"), 3, r"says no level in its text, expected MUST, once"),
        (("A thing MUST hold", "It MUST and SHOULD hold"), 3, r"says MUST and SHOULD in its text"),
        (("KV-ATTN-021 some-rule", "KV-ATTN-21 some-rule"), 3, r"expected `KV-<AREA>-<NNN> slug`"),
        (("KV-ATTN-021 some-rule", "KV-PAGE-021 some-rule"), 3, r"AREA one of ATTN"),
        (("KV-ATTN-021 some-rule", "KV-ATTN-021 Some_Rule"), 3, r"a slug of a-z"),
        (("KV-ATTN-021 some-rule", "KV-ATTN-021"), 3, r"requirement 'KV-ATTN-021', expected"),
        (("two lines.\n```", "two lines."), 3, r"a fence without an end, expected a line of ```"),
    ],
)
def test_errors_say_where_what_and_what_instead(
    tmp_path: Path, change: tuple[str, str], line: int, message: str
) -> None:
    """An editor of the spec learns the file, the line, what was found and what was expected."""
    assert change[0] in GOOD
    with pytest.raises(SpecError, match=rf"^chapter\.md:{line}: .*{message}"):
        load_requirements(spec_with(tmp_path, GOOD.replace(*change)))


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("KV-ATTN-021 other-rule", r"chapter\.md:16: KV-ATTN-021 a second time"),
        ("KV-ATTN-022 some-rule", r"chapter\.md:16: slug 'some-rule', taken by KV-ATTN-021"),
    ],
)
def test_ids_and_slugs_are_given_once(tmp_path: Path, second: str, message: str) -> None:
    """An id that meant two rules would let a check of one pass for a check of the other."""
    twice = GOOD + "\n" + GOOD.replace("KV-ATTN-021 some-rule", second)
    with pytest.raises(SpecError, match=message):
        load_requirements(spec_with(tmp_path, twice))


def test_installed_package_reads_its_own_chapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a wheel the chapters lie inside the package; beside a source tree they lie in spec/."""
    assert spec_dir() == ROOT / "spec"
    package = tmp_path / "kvref_conformance"
    (package / "_spec").mkdir(parents=True)
    (package / "_spec" / "VERSION").write_text("7.0.0\n")
    monkeypatch.setattr(requirements, "__file__", str(package / "requirements.py"))
    assert (spec_dir(), spec_version()) == (package / "_spec", "7.0.0")
    (package / "_spec" / "VERSION").unlink()
    with pytest.raises(SpecError, match="no VERSION"):
        spec_dir()


def test_reader_needs_the_standard_library_alone() -> None:
    """The spec can be read where numpy cannot be installed, by a docs build or a porter's script."""
    code = (
        "import sys; from kvref_conformance.requirements import load_requirements; "
        "load_requirements(); print(sorted(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT / "conformance",
        timeout=60,
    )
    assert "'numpy'" not in done.stdout


@pytest.mark.parametrize(
    ("area", "numbers"),
    [
        ("ATTN", ATTENTION_IDS),
        ("RNN", RNN_IDS),
        ("FMT", FORMAT_IDS),
        ("BLOCK", BLOCK_IDS),
        ("PREFIX", PREFIX_IDS),
    ],
)
def test_no_requirement_is_missing(area: str, numbers: tuple[int, ...]) -> None:
    """Ids are never dropped; a retired requirement stays listed."""
    found = [name for name in load_requirements() if name.startswith(f"KV-{area}-")]
    assert sorted(found) == [f"KV-{area}-{number:03d}" for number in numbers]


def test_every_requirement_is_one_sentence() -> None:
    """One sentence, one way to be wrong: a second sentence would be a second rule under the same id."""
    for requirement in load_requirements().values():
        assert requirement.text.endswith("."), requirement.title
        assert not re.search(r"[.;!?]\s", requirement.text), requirement.title


def test_every_requirement_has_a_source() -> None:
    """A rule without a source is an opinion; decisions of this project say that they are."""
    missing = [r.title for r in load_requirements().values() if not r.source]
    assert missing == []


def test_conformance_requirements_say_which_test_holds_them() -> None:
    """What binds the suite is tested in this repository, or says in words why it cannot be."""
    for requirement in load_requirements().values():
        if requirement.chapter == "conformance":
            assert requirement.test == "untestable", requirement.title
            assert "tests/" in requirement.reason or "review" in requirement.reason, requirement.title


@pytest.mark.parametrize("chapter", ["attention", "formats", "recurrent"])
def test_chapters_read_in_order(chapter: str) -> None:
    """The fences close, and the ids of a chapter rise with its text."""
    ids = [d.argument for d in read_directives(spec_dir() / f"{chapter}.md") if d.name == "req"]
    assert ids == sorted(ids)


def citations() -> Iterator[tuple[str, str, str]]:
    """Every `KV-AREA-NNN slug` in the tree with its file, also where a line breaks between the two."""
    cited = re.compile(r"(KV-[A-Z]+-\d{3})(?:\s+(?:#\s+)?([a-z][a-z0-9]*(?:-[a-z0-9]+)+))?")
    for folder in ("kvref", "conformance", "spec", "docs"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".md", ".cpp", ".h", ".toml") and "_build" not in path.parts:
                text = path.read_text(encoding="utf-8")
                for match in cited.finditer(text):
                    yield str(path.relative_to(ROOT)), match[1], match[2] or ""


def test_citations_name_live_ids_with_their_slugs() -> None:
    """An error or a docstring that cites a rule leads the reader to that rule, under its own name."""
    known = load_requirements()
    wrong = [
        f"{path}: {name} {slug}".rstrip()
        for path, name, slug in citations()
        if name not in known or slug not in ("", known[name].slug)
    ]
    assert wrong == []
