"""What a newcomer leaves out or misspells is named, with what was probably meant."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvref.cli import main
from kvref_conformance.nearest import meant

SUBJECTS = '''\
"""Subjects of somebody who tries the suite for the first time."""


class Pool:
    def __init__(self, num_blocks=4):
        self.left = list(range(num_blocks))

    def free(self, blocks):
        self.left += blocks

    def num_free(self):
        return len(self.left)


class Alloc(Pool):
    def alloc(self, num_blocks):
        return [self.left.pop() for _ in range(num_blocks)]


class Nothing:
    def __init__(self, num_blocks):
        pass

    def alloc(self, num_blocks):
        pass


class Answers(Pool):
    def allocate(self, num_blocks):
        if num_blocks > len(self.left):
            raise ValueError("no blocks")
        return [self.left.pop() for _ in range(num_blocks)]

    def free(self, blocks):
        self.left += blocks
        return True


class Subject:
    claims = {"name": "newcomer"}
    block_allocator = Alloc


class Empty(Subject):
    block_allocator = Nothing


class Opened(Subject):
    block_allocator = Pool()


class Misspelt(Subject):
    claims = {"features": ["slat"]}


class Answering(Subject):
    block_allocator = Answers


class Near:
    def block_alocator(self):
        pass
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with these subjects, which is the working directory."""
    (tmp_path / "newcomer.py").write_text(SUBJECTS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def kvref(*words: str) -> Result:
    """Run the command line in this process."""
    return CliRunner().invoke(main, list(words), catch_exceptions=False)


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        (
            "newcomer.py",
            "no method of the contract itself, expected newcomer.py:Subject or newcomer.py:E",
        ),
        (
            "newcomer.py:Empty",
            "block_allocator has none of its operations (block_allocator.alloc, did you",
        ),
        ("newcomer.py:Empty", "expected some of allocate, free, touch, pin"),
        ("newcomer.py:Opened", "block_allocator is an object (Pool), expected a class or a function"),
        ("newcomer.py:Misspelt", "'slat', did you mean salt?"),
        ("newcomer.py:Near", "block_alocator, did you mean block_allocator?"),
    ],
)
@pytest.mark.parametrize("where", [(), ("--in-process",)], ids=["apart", "here"])
def test_what_was_meant_is_said(folder: Path, subject: str, said: str, where: tuple[str, ...]) -> None:
    """No verdict, and a sentence that says what to write."""
    result = kvref("check", subject, "--no-finds", *where)
    assert result.exit_code in (2, 3)
    assert said in result.output


def test_a_misspelt_operation_is_noted(folder: Path) -> None:
    """The others are offered, so the run goes on; the note stands before it."""
    result = kvref("check", "newcomer.py:Subject", "--no-finds", "--in-process")
    assert "note: the subject has block_allocator.alloc, did you mean allocate?" in result.output
    smoked = kvref("smoke", "newcomer.py:Subject", "--in-process")
    assert "newcomer, offers block_allocator (free, num_free)" in smoked.output
    assert smoked.exit_code == 1


def test_one_wrong_form_is_told_once(folder: Path) -> None:
    """What is given in the wrong form fails every requirement that needs it, for one reason."""
    result = kvref("check", "newcomer.py:Answering", "--no-finds", "--in-process")
    assert result.output.count("free gave True (bool), expected None") == 1
    assert result.output.count(": the same as KV-BLOCK-001") > 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("spec", "KV-BLOCK-24"), "did you mean KV-BLOCK-024?"),
        (("spec", "free-ordr"), "did you mean free-order?"),
        (("museum", "ForkUncounted"), "did you mean ForkNotCounted?"),
        (("check", "tild"), "did you mean tiled?"),
        (("check", "--area", "block_table"), "did you mean block_tables?"),
    ],
)
def test_near_names_are_named(words: tuple[str, ...], said: str) -> None:
    """Exit code 2, and the name that is there."""
    result = kvref(*words)
    assert result.exit_code == 2
    assert said in result.output


def test_far_names_are_not() -> None:
    """A guess that is none would mislead."""
    assert meant("hello", ("allocate", "free")) == ""
    assert meant("", ("allocate",)) == ""
    assert meant(7, ("allocate",)) == ""
    assert meant("int3", ("int8",)) == ""
    assert meant("free", ("free",)) == ""


def test_an_event_stream_is_not_taken_for_a_history(folder: Path) -> None:
    """The option that reads it is named."""
    (folder / "events.jsonl").write_text('{"type": "AllBlocksCleared"}\n')
    (folder / "batch.jsonl").write_text('[0.5, [{"type": "AllBlocksCleared"}]]\n')
    for name in ("events.jsonl", "batch.jsonl"):
        result = kvref("sanitize", name)
        assert result.exit_code == 2
        assert "--kv-events" in result.output
