"""The known-failures file: strict about what it says, and unable to grow old."""

from pathlib import Path

import pytest

from kvref.errors import ArgumentError
from kvref_conformance.report.model import RequirementResult
from kvref_conformance.requirements import load_requirements
from kvref_conformance.runner.known_failures import KnownFailure, load_known_failures, settle

GOOD = """\
# why our build is green

[[known_failure]]
id = "KV-ATTN-021"
kind = "bug"
reason = "the window kernel is being rewritten"

[[known_failure]]
id = "KV-ATTN-030"
kind = "wontfix"
reason = "lse is not offered in base e"
url = "https://example.org/1"
"""


def load(tmp_path: Path, text: str) -> list[KnownFailure]:
    """Write a file and read it."""
    path = tmp_path / "known_failures.toml"
    path.write_text(text, encoding="utf-8")
    return load_known_failures(path, load_requirements())


def test_an_entry_is_an_id_a_kind_and_a_reason(tmp_path: Path) -> None:
    """Each entry remembers its line, which is the line to delete one day."""
    first, second = load(tmp_path, GOOD)
    assert (first.id, first.kind, first.url, first.line) == ("KV-ATTN-021", "bug", "", 3)
    assert (second.id, second.url, second.line) == ("KV-ATTN-030", "https://example.org/1", 8)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.replace("KV-ATTN-021", "KV-ATTN-999"), "KV-ATTN-999"),
        (GOOD.replace("KV-ATTN-030", "KV-ATTN-021"), ":8: KV-ATTN-021 again, first on line 3"),
        (GOOD.replace('"bug"', '"flaky"'), "flaky"),
        (GOOD.replace('kind = "bug"\n', ""), "lacks 'kind'"),
        (GOOD + 'since = "2026"\n', "since"),
        (GOOD.replace('"the window kernel is being rewritten"', '" "'), "reason is empty"),
        (GOOD.replace('"bug"', "3"), "other than text"),
        ("[known_failure]\nid = 1\n", "known_failure"),
        ("title = 1\n", "title"),
        ("[[known_failure", "not TOML"),
    ],
)
def test_what_is_not_an_entry_is_an_error(tmp_path: Path, text: str, said: str) -> None:
    """A warning would be overlooked, and a misspelt id would hide a failure."""
    with pytest.raises(ArgumentError) as caught:
        load(tmp_path, text)
    assert said in str(caught.value)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    """No file is not an empty file."""
    with pytest.raises(ArgumentError, match=r"none\.toml cannot be read"):
        load_known_failures(tmp_path / "none.toml", [])


def result(requirement: str, area: str, failed: int) -> RequirementResult:
    """Return what one requirement gave in one area."""
    return RequirementResult(
        requirement=requirement,
        slug="",
        level="MUST",
        area=area,
        ring="core",
        cases=4,
        failed=failed,
        margin=0.0,
    )


def test_an_entry_passes_only_if_it_ran_and_failed_nowhere(tmp_path: Path) -> None:
    """One area that still fails keeps the entry; an area that was not run says nothing."""
    entries = load(tmp_path, GOOD)
    ran = [result("KV-ATTN-021", "attention", 0), result("KV-ATTN-021", "paged_attention", 1)]
    assert [entry.outcome for entry in settle(entries, ran)] == ["fails", "not run"]
    ran = [result("KV-ATTN-021", "attention", 0), result("KV-ATTN-030", "attention", 0)]
    assert [entry.outcome for entry in settle(entries, ran)] == ["passes", "passes"]
