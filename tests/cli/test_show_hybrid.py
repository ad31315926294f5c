"""The figure of a hybrid model, from the reference's own caches."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvref.cli import main

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "golden_hybrid.json").read_text(encoding="utf-8"))


def run(*arguments: str) -> str:
    """What the command prints."""
    result = CliRunner().invoke(main, ["show", "hybrid", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_hybrid_is_the_founding_figure() -> None:
    """3,072 tokens reused and 628 of the shared computed again; blocks alone 3,696 and 4."""
    data, golden = json.loads(run("--json")), GOLDEN["hybrid_prefix_cache"]
    assert {name: data[name] for name in golden["inputs"]} == golden["inputs"]
    assert {name: data[name] for name in golden["expect"]} == golden["expect"]
    assert data["junction_reuse"] == 3696


def test_lines_say_what_is_reused() -> None:
    """The drawing ends where the numbers do."""
    lines = run().splitlines()
    assert lines[0] == "two prompts of 6144 tokens that part after 3700; blocks of 16, a snapshot every 768"
    assert "both hit       " + "■" * 32 + " 3072, 628 of the shared tokens again" in lines
    assert "snapshots              ▲       ▲       ▲       ▲       ▲       ▲       ▲       ▲" in lines


@pytest.mark.parametrize(("interval", "reuse"), [(16, 3696), (64, 3648), (1536, 3072), (4096, 0), (9999, 0)])
def test_interval_decides(interval: int, reuse: int) -> None:
    """The nearest multiple before the prompts part is reused; one that ends no block is none."""
    assert json.loads(run("--interval", str(interval), "--json"))["hybrid_reuse"] == reuse


def test_interval_goes_with_hybrid() -> None:
    """It says nothing of another figure."""
    result = CliRunner().invoke(main, ["show", "paging", "--interval", "5"])
    assert result.exit_code == 2
    assert "--interval 5 says nothing of paging" in result.output
