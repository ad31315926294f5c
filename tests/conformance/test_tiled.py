"""Tests of the built-in subject: an implementation of its own, right in every area it claims."""

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import kvref_conformance.subjects.tiled as tiled
from kvref.arrays import dtype_of
from kvref_conformance.checks import TOPICS
from kvref_conformance.checks.check import Check
from kvref_conformance.claims import FEATURES
from kvref_conformance.contracts import FORMATTED, RECURRENT, VERBS
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.host.subject import verbs_of
from kvref_conformance.oracle import Oracle
from kvref_conformance.runner.evaluate import evaluate
from kvref_conformance.subjects.tiled import Tiled

SOURCES = sorted(Path(tiled.__file__).parent.glob("*.py"))
ALLOWED = ("kvref.arrays", "kvref.attention.arithmetic")  # a dtype table; the record of declared facts
SUITE = ("kvref_conformance.claims", "kvref_conformance.subjects.tiled")


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.stem))
def test_shares_no_line_with_the_reference(source: Path) -> None:
    """Two implementations with a common part would agree on that part's faults."""
    imported = [
        node.module or ""
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.ImportFrom)
    ]
    ours = [name for name in imported if name.startswith("kvref")]
    assert all(name in ALLOWED or name.startswith(SUITE) for name in ours), ours


def _module(topic: str) -> object:
    return import_module(f"kvref_conformance.checks.{topic}")


def _asks_kernels(topic: str) -> bool:
    """Say whether a topic is not about formats or scans, which other subjects have, or managers alone."""
    if topic.startswith(("formats_", "recurrent_")) or find_spec(f"kvref_conformance.checks.{topic}") is None:
        return False
    checks = [value for value in vars(_module(topic)).values() if isinstance(value, Check)]
    return any(verb in VERBS for check in checks for verb in check.verbs)


def test_offers_the_whole_contract_of_kernels() -> None:
    """An exhibit can stand for any verb and any feature only if the subject it breaks has them."""
    assert verbs_of(Tiled()) == tuple(verb for verb in VERBS if verb not in (*FORMATTED, *RECURRENT))
    assert Tiled.claims.features == tuple(FEATURES)


@pytest.mark.parametrize("topic", [topic for topic in TOPICS if _asks_kernels(topic)])
def test_passes_every_check(topic: str) -> None:
    """What the untouched implementation fails would be a false alarm of the suite."""
    host, oracle = InProcessHost(Tiled), Oracle(Tiled.claims)
    checks = [value for value in vars(_module(topic)).values() if isinstance(value, Check)]
    found = [
        evaluate(check, case, host, oracle)
        for check in checks
        for verb in verbs_of(Tiled())
        if check.applies(verb, Tiled.claims)
        for case in check.cases(Tiled.claims, verb, "quick")
    ]
    assert found
    assert [(e.check, e.case, e.message) for e in found if e.status == "fail"] == []


def test_a_short_context_has_splits_and_rescales() -> None:
    """The suite's contexts are a few blocks long; the code of a long one has to run on them all the same."""
    splits = Tiled().split_tiles(2 * 16 + 3)
    assert len(splits) > 1
    assert all(len(tiles) > 1 for tiles in splits)
    assert np.concatenate([at for tiles in splits for at in tiles]).tolist() == list(range(35))


def test_probabilities_are_rounded_to_the_input_dtype() -> None:
    """The claims say so, and the suite infers it: a weight of 1 + 2^-9 is no bfloat16."""
    weights = np.array([[1 + 2.0**-9]], np.float32)
    assert Tiled().rounded(weights, dtype_of("bfloat16")).tolist() == [[1.0]]
    assert Tiled().rounded(weights, dtype_of("float32")).tolist() == weights.tolist()
