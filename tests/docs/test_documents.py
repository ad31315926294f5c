"""What the documents claim about commands, files and outputs is so."""

import ast
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest
from documents import DOCS, EXAMPLES, READ_HERE, ROOT, Block, blocks, kvref, run

from kvref.cli import main
from kvref_conformance.requirements import load_requirements
from kvref_conformance.runner.known_failures import load_known_failures

SESSIONS = [block for document in READ_HERE for block in blocks(document) if block.language == "console"]
PAGES = [*READ_HERE, *(str(path.relative_to(ROOT)) for path in sorted(DOCS.rglob("*.md")))]


def where(block: Block) -> str:
    """A block for the names of tests."""
    return f"{block.document}:{block.line}"


@pytest.mark.parametrize("session", SESSIONS, ids=where)
def test_shown_output_is_what_the_command_prints(session: Block, examples: Path) -> None:
    """Each line that is shown begins a line of the output, in order; … stands for any number of lines."""
    first, *shown = session.text.splitlines()
    program, *words = shlex.split(first.removeprefix("$ "))
    done = run(kvref(*words) if program == "kvref" else [sys.executable, *words], examples)
    printed = iter(done.stdout.splitlines())
    for line in shown:
        found = line == "…" or any(actual.startswith(line) for actual in printed)
        assert found, f"{where(session)} shows {line!r}, printed was:\n{done.stdout}{done.stderr}"


def test_two_commands_set_up_a_fresh_machine() -> None:
    """The release script installs and tests by the README's own words."""
    shown = [
        line for block in blocks("README.md") if block.language == "sh" for line in block.text.splitlines()
    ]
    assert [line for line in shown if line.startswith("python3 -m venv")] == [
        "python3 -m venv .venv && .venv/bin/pip install -q . && .venv/bin/kvref check",
        "python3 -m venv .venv && .venv/bin/pip install -q -e '.[test]' && .venv/bin/pytest -n 2",
    ]


def test_readme_shows_the_subject_that_is_run() -> None:
    """The subject in the README is the example, word for word."""
    shown = next(block for block in blocks("README.md") if block.language == "python")
    assert shown.text == (EXAMPLES / "my_subject.py").read_text(encoding="utf-8")


def test_readme_shows_the_assert_that_is_run() -> None:
    """The one line of the README stands in the example test."""
    shown = [block for block in blocks("README.md") if block.language == "python"][1]
    example = (EXAMPLES / "test_my_kernel.py").read_text(encoding="utf-8")
    assert [line for line in shown.text.split("\n") if line and line not in example] == []


@pytest.mark.parametrize(
    "block",
    [b for page in PAGES for b in blocks(page) if b.language in ("python", "toml")],
    ids=where,
)
def test_code_is_code(block: Block, tmp_path: Path) -> None:
    """Python parses, and a file of known failures is one."""
    if block.language == "python":
        ast.parse(block.text)
        return
    assert tomllib.loads(block.text)
    path = tmp_path / "known.toml"
    path.write_text(block.text, encoding="utf-8")
    assert load_known_failures(path, load_requirements())


@pytest.mark.parametrize(
    "block", [b for page in PAGES for b in blocks(page) if b.language == "sh"], ids=where
)
def test_shown_commands_are_commands(block: Block) -> None:
    """Every `kvref` line that a reader may type has options and arguments that exist."""
    for line in block.text.splitlines():
        for part in line.split("&&"):
            words = shlex.split(part)
            if words and Path(words[0]).name == "kvref":
                command = main.commands[words[1]]
                command.make_context(words[1], words[2:], resilient_parsing=False)


@pytest.mark.parametrize("page", PAGES)
def test_links_to_files_of_the_repository_lead_somewhere(page: str) -> None:
    """A reader who clicks finds the file, and the heading in it."""
    text = re.sub(
        r"^```.*?^```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    for target in re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", text):
        assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"


@pytest.mark.parametrize("page", PAGES)
def test_ids_in_the_documents_are_live(page: str) -> None:
    """A page that explains a requirement explains one that exists, by its own slug."""
    spec = load_requirements()
    text = (ROOT / page).read_text(encoding="utf-8")
    for identity, slug in re.findall(r"(KV-[A-Z]+-\d{3})(?: ([a-z0-9]+(?:-[a-z0-9]+)+))?", text):
        assert identity in spec, f"{page} cites {identity}"
        assert slug in ("", spec[identity].slug), f"{page} cites {identity} {slug}"
