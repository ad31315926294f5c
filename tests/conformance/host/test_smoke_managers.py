"""The first look at a manager: each operation has its turn, and faults are blamed on the right one."""

import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kvref.cli.smoke import smoke as command
from kvref_conformance.claims import Claims
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.host.process import ProcessHost
from kvref_conformance.host.smoke import check_transcript, smoke
from kvref_conformance.host.smoke_managers import CONVERSATIONS
from kvref_conformance.managers import MANAGERS
from kvref_conformance.subjects.lists import Lists

FAKES = Path(__file__).parents[1] / "fakes"


def steps_of(subject: Any) -> dict[str, str]:
    """What was tried, and who is to blame."""
    return {step.name: step.blame for step in smoke(InProcessHost(subject))}


def test_every_operation_has_its_turn() -> None:
    """And is given what it takes."""
    assert set(CONVERSATIONS) == set(MANAGERS)
    for manager, conversation in CONVERSATIONS.items():
        assert {operation for operation, _ in conversation} == set(MANAGERS[manager].operations)


@pytest.mark.parametrize("block_size", [1, 3, 16, 256])
def test_honest_managers_pass(block_size: int) -> None:
    """In blocks of any size, with windows and without."""
    for features in ((), Lists.claims.features):
        claims = Claims(block_sizes=(block_size,), features=features)
        made = type("Subject", (Lists,), {"claims": claims})
        tried = steps_of(made)
        assert set(tried.values()) == {"ok"}
        assert {name for name in tried if "." in name} == {
            f"{manager}.{name}" for manager in MANAGERS for name in MANAGERS[manager].operations
        }


class Odd:
    """Gives a text for blocks, and cannot be opened for prefixes."""

    class block_allocator:
        """An allocator."""

        def __init__(self, num_blocks: int) -> None:
            self.num_blocks = num_blocks

        def allocate(self, count: int) -> str:
            """Give text."""
            return "0"

        def free(self, blocks: list[int]) -> None:
            """Need blocks."""

        def num_free(self) -> int:
            """Raise."""
            raise ZeroDivisionError

    class prefix_cache:
        """A cache without memory."""

        def __init__(self, num_blocks: int, block_size: int) -> None:
            raise MemoryError("no device")

        def reset(self) -> None:
            """Never come to this."""


def test_faults_of_a_manager_are_blamed_on_it() -> None:
    """What needs an answer that never came is left out."""
    assert steps_of(Odd) == {
        "hello": "ok",
        "a verb nobody has": "ok",
        "block_allocator": "ok",
        "block_allocator.allocate": "implementation",
        "block_allocator.num_free": "implementation",
        "prefix_cache": "implementation",
    }


def test_the_lines_of_a_conversation_are_held_to_the_protocol() -> None:
    """A harness that is right from hello to bye has no fault in its transcript."""
    lines: list[tuple[str, bytes]] = []
    program = [sys.executable, "-S", str(FAKES / "stateful.py")]
    with ProcessHost(program, trace=lambda direction, line: lines.append((direction, line))) as host:
        host.hello()
        pool = host.open("block_allocator", num_blocks=2)
        pool.do("allocate", num_blocks=1)
        pool.close()
    assert check_transcript(lines) == []
    opened = next(at for at, (_, line) in enumerate(lines) if b'"open"' in line)
    wrong = lines[opened][1].replace(b'"num_blocks":2', b'"num_blocks":2,"size":3')
    faults = check_transcript([*lines[:opened], ("->", wrong)])
    assert faults == [f"line {opened + 1}: unknown key 'size' in the message to open"]


def test_an_unknown_operation_is_a_fault_of_the_harness(tmp_path: Path) -> None:
    """A misspelt name would never be asked."""
    text = (FAKES / "stateful.py").read_text(encoding="utf-8")
    (tmp_path / "odd.py").write_text(text.replace('block_allocator.num_free"', 'block_allocator.count"', 1))
    with ProcessHost([sys.executable, "-S", str(tmp_path / "odd.py")]) as host:
        (step,) = smoke(host)
    assert step.blame == "harness"
    assert "offers 'block_allocator.count'" in step.detail


def test_the_command_lists_operations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line each, after a hello that names them together."""
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(command, ["lists", "--in-process"])
    assert done.exit_code == 0, done.output
    assert "block_keys (keys)" in done.output
    assert [line.split()[0] for line in done.output.splitlines()][-3:] == [
        "cache_geometry.size",
        "cache_geometry.snapshot",
        "cache_geometry.hybrid_block",
    ]
