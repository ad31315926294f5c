"""Every script in benchmarks/ that measures runs, and the committed sweep found nothing."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ELEMENTS = ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e2m1")


def smoke(script: str) -> str:
    """Run a script on small inputs and return what it prints."""
    command = [sys.executable, str(ROOT / "benchmarks" / script), "--smoke"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(table: str) -> list[list[str]]:
    """Return the cells of a Markdown table, without its head."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_paged_reader_takes_turns_with_torch() -> None:
    """Both at one batch, then one request at two lengths: the cost is per token."""
    pytest.importorskip("torch", reason="torch is not installed; it is the peer")
    printed = smoke("paged_decode.py")
    assert len(re.findall(r"^  \S.* ms +[\d.]+x$", printed, re.MULTILINE)) >= 3
    assert len(re.findall(r"us/token$", printed, re.MULTILINE)) == 2


def test_formats_do_the_work_of_their_peers() -> None:
    """Speed is compared with libraries that end with the same bytes; one that is missing says so."""
    table = rows(smoke("formats.py"))
    assert len(table) > 10
    for *_, ratio, equal in table:
        assert equal == "100.0000%" or ratio.startswith("skipped: No module named")


def test_traces_find_the_hits_of_a_plain_lru() -> None:
    """The curve and the replay are compared with a simulation that ends with the same hits."""
    table = rows(smoke("traces.py"))
    assert {row[0].split(",")[0] for row in table} >= {
        "every capacity at once",
        "one capacity through the cache",
    }
    assert {row[-1] for row in table} == {"yes", "other rule"}


def test_caches_hit_what_their_peers_hit() -> None:
    """Each peer finds the same hits and evictions, or says that it is not there; the cost is per token."""
    peers, growth = smoke("memory.py").split("| cached blocks")
    for *_, ratio, found in rows(peers):
        assert ratio.startswith("skipped: ") or re.fullmatch(r"[\d,]+(, [\d,]+)?", found)
    assert [len(row) for row in rows(f"| cached blocks{growth}")] == [3, 3]


def test_scans_take_turns_with_their_peers() -> None:
    """Each scan has a peer that does the same work, or that is not there; the cost is per token."""
    peers, growth = smoke("recurrent.py").split("\n\n| tokens")
    table = rows(peers)
    assert [row[0] for row in table] == ["gated_delta_rule", "kimi_delta_attention", "ssd_scan"]
    for *_, ratio, apart in table:
        assert ratio.startswith("skipped: ") or float(ratio) > 0 <= float(apart)
    assert len(rows(f"| tokens{growth}")) == 2


def test_the_sanitizer_reads_a_clean_history() -> None:
    """Timed with each parser that is installed, and nothing is found in what the reference did."""
    table = rows(smoke("sanitizer.py").split("\n\n8 a step: ")[0])
    assert {row[1] for row in table} >= {"json"}
    assert all(int(row[2].replace(",", "")) >= 3000 for row in table)


def test_sweep_of_a_few_patterns_finds_nothing() -> None:
    """On both sides of numbers with few bits every oracle agrees, NaN and infinities included."""
    printed = smoke("sweep_float32.py")
    assert printed.endswith("\n0 mismatches\n")
    assert {row[0] for row in rows(printed)} == set(ELEMENTS)


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("oracle", ["runs", "bitwise", "ml_dtypes", "torch"])
def test_committed_sweep_saw_every_float32_and_no_mismatch(element: str, oracle: str) -> None:
    """2^32 patterns each; torch has no cast to E2M1."""
    log = (ROOT / "benchmarks" / "sweep_float32.md").read_text()
    (found,) = [row for row in rows(log) if row[:2] == [element, oracle]]
    if (element, oracle) == ("e2m1", "torch"):
        assert found[2] == "0"
        assert found[3].startswith("has no such cast")
    else:
        assert found[2:4] == [str(2**32), "0"]


def test_committed_sweep_names_its_versions() -> None:
    """A library's cast may change with its version, as torch's did."""
    log = (ROOT / "benchmarks" / "sweep_float32.md").read_text()
    assert re.search(r"Python 3[\d.]+, numpy \d[\d.]+, ml_dtypes \d[\d.]+, torch \d", log)
    assert log.endswith("\n0 mismatches\n")
