"""The figures of who owns which slot, from the reference's own parts."""

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from kvref.cli import main

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "golden_memory.json").read_text(encoding="utf-8"))


def shown(figure: str) -> tuple[dict[str, Any], str]:
    """A figure as data and as lines."""
    runs = [
        CliRunner().invoke(main, ["show", figure, *more], catch_exceptions=False) for more in (["--json"], [])
    ]
    assert [run.exit_code for run in runs] == [0, 0]
    return json.loads(runs[0].output), runs[1].output


def test_paging_is_the_founding_figure() -> None:
    """39 slots reserved and empty in pieces, 3 in blocks; the request that no piece fits gets blocks."""
    data, lines = shown("paging")
    golden = GOLDEN["contiguous_vs_paged"]
    inputs = {"slots", "reserved_per_request", "block_size", "requests", "requests_fit", "tokens_stored"}
    assert {name: data[name] for name in inputs} == golden["inputs"]
    assert {name: data[name] for name in golden["expect"]} == golden["expect"]
    assert data["contiguous_refuses_the_next"].startswith("num_slots = 16, but 0 slots are free")
    assert data["paged_gives_the_next"] == [12, 13, 14, 15]
    assert "111············· 22·············· 3333············" in lines
    assert "111· 22·· 3333 ____" in lines


def test_work_triangle_is_the_founding_figure() -> None:
    """500,500 tokens computed against 1,000; each step names which."""
    data, lines = shown("work-triangle")
    golden = GOLDEN["recompute_vs_cache"]
    assert data["tokens"] == golden["inputs"]["tokens"]
    assert {name: data[name] for name in golden["expect"]} == golden["expect"]
    assert data["steps"][6] == {"step": 7, "no_cache": [0, 7], "cached": [6, 7]}
    assert len(data["steps"]) == 1000
    assert "   3   ■■■        ··■\n" in lines
    assert "500500 computed without a cache, 1000 with one: 500.5 times" in lines
