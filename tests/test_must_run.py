"""The switch that forbids silent skips works in both directions."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

TESTS = """
import pytest
def test_subject():
    pytest.skip("torch is not installed; the oracle is torch")
def test_other():
    pytest.skip("g++ is not installed")
"""


@pytest.mark.parametrize(("required", "failed", "skipped"), [("1", 1, 1), ("0", 0, 2)])
def test_skip_for_a_missing_subject_fails_only_where_it_must_run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, required: str, failed: int, skipped: int
) -> None:
    """With KVREF_REQUIRE_SUBJECTS=1 the skip for torch is a failure; other skips stay skips."""
    monkeypatch.setenv("KVREF_REQUIRE_SUBJECTS", required)
    pytester.makeconftest((Path(__file__).parent / "conftest.py").read_text())
    pytester.makepyfile(TESTS)
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(failed=failed, skipped=skipped)
