"""`kvref trace`: rates with their rule, a curve, a picture, and sentences about files that are none."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result
from documents import ROOT

from kvref.cli import main

TRACE = str(ROOT / "tests" / "data" / "traces" / "mooncake_conversation_trace.jsonl.gz")
HASHED = [
    {"timestamp": 0, "input_length": 9, "output_length": 2, "hash_ids": [1, 2, 3]},
    {"timestamp": 500, "input_length": 8, "output_length": 2, "hash_ids": [1, 2]},
    {"timestamp": 2000, "input_length": 9, "output_length": 2, "hash_ids": [1, 2, 3]},
]
LENGTHS = {"TIMESTAMP": "2023-11-16 18:15:46.68", "ContextTokens": 374, "GeneratedTokens": 44}


@pytest.fixture
def small(tmp_path: Path) -> str:
    """A trace of three requests in blocks of 4 tokens."""
    path = tmp_path / "small.jsonl"
    path.write_text("\n".join(map(json.dumps, HASHED)))
    return str(path)


def run(*words: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(main, ["trace", *words])


def data(*words: str) -> dict[str, Any]:
    """Run the command with --json and read what it prints."""
    done = run(*words, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_rates_stand_under_their_rule(small: str) -> None:
    """What the trace is, how hits are counted, and four shares for each capacity."""
    done = run(small, "--block-size", "4", "--capacity", "2", "--capacity", "inf")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == f"{small}: 3 requests in 2 s, 1.5 a second"
    assert lines[1] == "9 input and 2 output tokens a request"
    assert lines[2] == "8 blocks of 4 tokens, 3 different, 0.0% of these asked for once"
    assert (
        lines[4]
        == "plain LRU; hits of prefixes, tail-first touch, partial tails are blocks, over all requests"
    )
    assert [line.split() for line in lines[8:]] == [
        ["2", "0.5000", "0.6154", "0.5000", "0.6296"],
        ["inf", "0.6250", "0.6538", "0.5312", "0.6667"],
    ]


def test_json_has_counts_and_the_exact_curve() -> None:
    """The golden rates, and every capacity at which the curve rises."""
    found = data(TRACE, "--touch", "head_first", "--capacity", "10_000", "--curve")
    (rates,) = found["rates"]
    assert round(rates["of_blocks"], 4) == 0.2112
    assert round(rates["of_input_tokens"], 4) == 0.2153
    assert rates["hit_blocks"] / rates["blocks"] == rates["of_blocks"]
    curve = found["curve"]
    assert curve["capacities"] == sorted(set(curve["capacities"]))
    below = [share for c, share in zip(curve["capacities"], curve["of_blocks"], strict=True) if c <= 10_000]
    assert below[-1] == rates["of_blocks"]
    assert round(curve["of_input_tokens"][-1], 4) == 0.3736


def test_a_profile_replays_the_cache_itself(small: str) -> None:
    """The rule is the profile's, and requests that do not fit are counted."""
    found = data(small, "--block-size", "4", "--profile", "vllm", "--capacity", "2", "--capacity", "inf")
    assert found["cache"] == "chain cache as vllm runs it"
    assert found["rule"].endswith(
        "full blocks only, over all requests; the block of the last token is computed again"
    )
    assert [(rate["capacity"], rate["refused"]) for rate in found["rates"]] == [(2, 2), (None, 0)]
    assert [rate["hit_tokens"] for rate in found["rates"]] == [0, 4 + 8]
    assert (
        "2 requests do not fit"
        in run(small, "--block-size", "4", "--profile", "vllm", "--capacity", "2").stdout
    )


def test_capacities_left_out_are_those_that_matter(small: str) -> None:
    """The usual ones below what the trace needs at most, and one that never evicts."""
    assert [rate["capacity"] for rate in data(small, "--block-size", "4")["rates"]] == [None]
    assert [rate["capacity"] for rate in data(TRACE)["rates"]] == [
        1_000,
        10_000,
        30_000,
        50_000,
        100_000,
        None,
    ]


def test_the_curve_is_drawn(small: str, tmp_path: Path) -> None:
    """One picture without any library: both weights, inside the frame, the name escaped."""
    plot = tmp_path / "a<b.svg"
    assert run(small, "--block-size", "4", "--curve", "--plot", str(plot)).exit_code == 0
    picture = ElementTree.parse(plot).getroot()
    paths = picture.findall(".//{*}path")
    assert [path.get("class") for path in paths] == ["blocks", "tokens"]
    assert all(str(path.get("d")).startswith("M62.0 ") for path in paths)
    texts = [text.text for text in picture.findall(".//{*}text")]
    assert texts[0] == "small.jsonl: plain LRU"
    assert "capacity in blocks of 4 tokens" in texts
    run(TRACE, "--plot", str(plot))
    assert plot.stat().st_size < 40_000


def test_a_trace_of_lengths_is_described(tmp_path: Path) -> None:
    """It has no hit rates, and an option that asks for some is an error."""
    path = tmp_path / "lengths.jsonl"
    path.write_text(json.dumps(LENGTHS))
    done = run(str(path))
    assert done.exit_code == 0
    assert done.stdout.splitlines()[1:] == [
        "374 input and 44 output tokens a request",
        "lengths alone: which requests share blocks is not in it, so there are no hit rates",
    ]
    assert data(str(path))["trace"]["asked_for_once"] is None
    for asked in (["--curve"], ["--capacity", "5"], ["--profile", "vllm"], ["--warm-up", "0.5"]):
        done = run(str(path), *asked)
        assert done.exit_code == 2
        assert "tells lengths alone, expected a trace with hash_ids" in done.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--capacity", "0"], "'0', expected a number of blocks from 1, or inf"),
        (["--capacity", "1e3"], "'1e3', expected a number of blocks from 1, or inf"),
        (["--capacity", "9" * 400], "expected a number of blocks from 1, or inf"),
        (["--profile", "huhu"], "profile = 'huhu', expected a Profile or one of"),
        (["--profile", "llama.cpp"], "keeps one prefix in each slot"),
        (["--profile", "vllm", "--tail", "keyed"], "--tail with --profile would be ignored"),
        (["--profile", "vllm", "--plot", "a.svg"], "--plot with --profile would be ignored"),
        (["--plot", "a.png"], "plot file 'a.png', expected a name that ends in .svg"),
        (["--plot", "/nowhere/a.svg"], "plot file '/nowhere/a.svg' cannot be written"),
        (["--block-size", "0"], "0 is not in the range x>=1"),
        (["--block-size", "512"], "small.jsonl:1: input_length = 9 and 3 hash_ids, expected 1 ids"),
        (["--warm-up", "1"], "1.0 is not in the range 0<=x<1"),
        (["--warm-up", "nan"], "warm_up = nan, expected a share of requests"),
    ],
)
def test_what_is_wrong_is_said(small: str, words: list[str], message: str) -> None:
    """Exit code 2, a sentence, no traceback."""
    size = [] if "--block-size" in words else ["--block-size", "4"]
    done = run(small, *size, *words)
    assert done.exit_code == 2
    assert message in done.output
    assert "Traceback" not in done.output


def test_a_place_that_takes_no_picture_is_named(small: str, tmp_path: Path) -> None:
    """A full disk is no fault of the suite."""
    full = tmp_path / "full.svg"
    full.symlink_to("/dev/full")
    done = run(small, "--block-size", "4", "--plot", str(full))
    assert (done.exit_code, "Traceback" in done.output) == (2, False)
    assert "full.svg' cannot be written: No space left on device" in done.output


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    """A download that broke off ends in exit code 2 as well."""
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(Path(TRACE).read_bytes()[:10_000])
    done = run(str(path))
    assert done.exit_code == 2
    assert f"{path}: the gzip stream is truncated after" in done.output
