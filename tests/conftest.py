"""How the tests run: the same examples every time, and no silent skip where a subject must be there.

`KVREF_REQUIRE_SUBJECTS=1` says that torch, onnx, onnxruntime, jax and the libraries of formats are installed:
a test that skips because one of them is missing then fails the run. `KVREF_HYPOTHESIS=explore` draws new
examples instead of fixed ones.
"""

import os
import re
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "fixed",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", deadline=None, max_examples=500, print_blob=True)
settings.load_profile(os.environ.get("KVREF_HYPOTHESIS", "fixed"))

REQUIRED = ("torch", "onnx", "onnxruntime", "jax", "torchao", "compressed_tensors", "gfloat", "xllamacpp")
_MISSING = re.compile(rf"\b({'|'.join(REQUIRED)}) is not installed|No module named '({'|'.join(REQUIRED)})'")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[pytest.TestReport | None]:
    """Turn a skip for a missing required subject into a failure."""
    report = yield
    return _refuse_skip(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[pytest.CollectReport | None]:
    """Do the same for a module that skips as a whole."""
    report = yield
    return _refuse_skip(report)


def _refuse_skip(report):  # type: ignore[no-untyped-def]  # either kind of report
    reason = str(report.longrepr)
    if os.environ.get("KVREF_REQUIRE_SUBJECTS") == "1" and report.skipped and _MISSING.search(reason):
        report.outcome = "failed"
        report.longrepr = f"must run, but was skipped: {reason}"
    return report
