"""The search for programs that a manager fails: it repeats, it divides, and what it finds can be replayed."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kvref.cli.check import check as command
from kvref_conformance.cases import Case
from kvref_conformance.claims import Claims
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.runner.casefile import load_case
from kvref_conformance.runner.finds import FINDS_EACH, Finds
from kvref_conformance.runner.fuzz import fuzz
from kvref_conformance.runner.fuzz_programs import ProgramSearch, Shard
from kvref_conformance.runner.replay import replay
from kvref_conformance.runner.suite import Settings
from kvref_conformance.subjects.lists import Lists
from kvref_conformance.subjects.lists.allocator import ListAllocator


class Forgetful(ListAllocator):
    """Forgets every holder but the last: a block is free when the first lets go."""

    def hold(self, block: int) -> None:
        """Take no note."""


class Raising(ListAllocator):
    """Fails on an allocation of three blocks, with an error that is no refusal."""

    def allocate(self, num_blocks: int) -> list[int]:
        """Divide by zero."""
        return super().allocate(
            num_blocks // (3 - num_blocks) * (3 - num_blocks) if num_blocks != 3 else 1 // 0
        )


def offering(allocator: Any) -> Any:
    """A subject that offers one allocator and no features."""
    return type(
        "Subject", (), {"block_allocator": allocator, "claims": Claims(choices={"free-order": "fifo"})}
    )


def search(subject: Any, folder: Path, *, seed: int = 1, limit: int = 6000, shard: Shard = Shard()) -> Finds:  # noqa: B008
    """Search without a clock: `limit` operations."""
    settings = Settings(areas=("block_allocator",))
    host = InProcessHost(subject)
    return fuzz(host, settings, seconds=1, seed=seed, out=folder, limit=limit, shard=shard, now=lambda: 0.0)


def test_the_same_seed_finds_the_same(tmp_path: Path) -> None:
    """Programs are drawn from the seed and a number, so the files are the same, byte for byte."""
    one, other = tmp_path / "one", tmp_path / "other"
    found = search(offering(Forgetful), one)
    assert found.saved
    assert found.to_dict() == search(offering(Forgetful), other).to_dict()
    assert [f.read_bytes() for f in sorted(one.iterdir())] == [
        f.read_bytes() for f in sorted(other.iterdir())
    ]


def test_a_find_is_short_and_is_replayed_under_its_requirement(tmp_path: Path) -> None:
    """Three steps show it: hold twice, let go once, and the block is free."""
    found = search(offering(Forgetful), tmp_path)
    path = next(path for path in sorted(tmp_path.iterdir()) if path.name.startswith("KV-BLOCK-005"))
    case = load_case(path)
    assert str(case.case.option("program")).count(";") == 2
    again = replay(case, InProcessHost(offering(Forgetful)), Settings())
    assert again.found.status == "fail"
    assert again.found.message == case.message
    assert case.message in found.messages
    assert replay(case, InProcessHost(offering(ListAllocator)), Settings()).found.status == "pass"


def test_a_requirement_is_found_three_times_and_no_more(tmp_path: Path) -> None:
    """After that it is known to be broken; the search goes on for others."""
    found = search(offering(Forgetful), tmp_path, limit=20_000)
    names = [name.rpartition("-")[0] for name in found.saved]
    assert max(names.count(name) for name in names) <= FINDS_EACH
    assert len(set(names)) > 1
    assert found.operations >= 20_000


def test_shards_divide_a_seed(tmp_path: Path) -> None:
    """Together they try what one alone would, and no two try the same."""
    every = [program for _, program in itertools.islice(programs(Shard(1, 1)), 12)]
    parts = [[program for _, program in itertools.islice(programs(Shard(i, 3)), 4)] for i in (1, 2, 3)]
    assert [program for turn in zip(*parts, strict=True) for program in turn] == every
    whole = search(offering(ListAllocator), tmp_path, limit=3000)
    part = search(offering(ListAllocator), tmp_path, limit=1000, shard=Shard(2, 3))
    assert part.cases < whole.cases


def programs(shard: Shard) -> Any:
    """Yield (number, program) as a search draws them."""
    host = InProcessHost(Lists)
    hello = host.hello()
    drawing = ProgramSearch(host, Claims.from_dict(hello.claims), hello.verbs, Finds(1), Path())
    for index in itertools.count(shard.number - 1, shard.of):
        yield index, drawing.draw(1, index)


def test_what_is_drawn_lies_within_the_claims() -> None:
    """Block sizes are claimed ones, and a case can be written to a file and read back."""
    for _, case in itertools.islice(programs(Shard()), 60):
        assert case.block_size in Lists.claims.block_sizes
        assert Case.from_dict(json.loads(json.dumps(case.to_dict()))) == case


@pytest.mark.parametrize("area", ["block_allocator", "block_tables"])
def test_an_honest_manager_is_left_alone(area: str, tmp_path: Path) -> None:
    """No program breaches anything on the built-in managers: what is found on others is theirs."""
    settings = Settings(areas=(area,))
    host = InProcessHost(Lists)
    found = fuzz(host, settings, seconds=1, seed=3, out=tmp_path, limit=20_000, now=lambda: 0.0)
    assert (found.saved, found.outside) == ([], 0)
    assert found.operations >= 20_000


def test_an_error_that_is_no_refusal_is_found(tmp_path: Path) -> None:
    """A division by zero where an allocation must succeed."""
    found = search(offering(Raising), tmp_path)
    assert any("ZeroDivisionError" in message for message in found.messages)


def test_the_command_divides_and_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--shard` says which part of a seed is tried; a find is exit code 1."""
    (tmp_path / "mine.py").write_text(
        "from kvref_conformance.subjects.lists.allocator import ListAllocator\n"
        "class Forgetful(ListAllocator):\n"
        "    def hold(self, block):\n"
        "        pass\n"
        "class Subject:\n"
        "    block_allocator = Forgetful\n"
    )
    monkeypatch.chdir(tmp_path)
    options = [
        "mine.py:Subject",
        "--in-process",
        "--fuzz",
        "1",
        "--seed",
        "4",
        "--shard",
        "2/5",
        "--out",
        "f",
    ]
    done = CliRunner().invoke(command, [*options, "--json"])
    assert done.exit_code == 1, done.output
    told = json.loads(done.stdout)
    assert told["operations"] > 0
    assert {path.name for path in (tmp_path / "f").iterdir()} == set(told["saved"])


@pytest.mark.parametrize("shard", ["0/3", "4/3", "1", "a/b", "1/0", "-1/2"])
def test_a_shard_that_is_none_is_refused(shard: str) -> None:
    """It would search nothing, or everything."""
    done = CliRunner().invoke(command, ["--fuzz", "1", f"--shard={shard}"])
    assert done.exit_code == 2
    assert "expected I/N with I from 1 to N" in done.output
