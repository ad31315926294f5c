"""Tests of the built-in subject of recurrent layers, and of the reference as one: right in all they claim."""

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvref_conformance.subjects.scanned as scanned
from kvref.recurrent.arithmetic import ScanArithmetic
from kvref_conformance.checks import TOPICS
from kvref_conformance.claims import FEATURES, Claims
from kvref_conformance.contracts import RECURRENT, VERBS
from kvref_conformance.host.subject import verbs_of
from kvref_conformance.subjects.reference_scans import ReferenceScans
from kvref_conformance.subjects.scanned import Scanned

RECURRENT_TOPICS = [topic for topic in TOPICS if topic.startswith("recurrent_")]
SOURCES = sorted(Path(scanned.__file__).parent.glob("*.py"))
ALLOWED = ("kvref.arrays", "kvref.recurrent.arithmetic")  # the array type; the record of declared facts
SUITE = ("kvref_conformance.claims", "kvref_conformance.subjects.scanned")


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.stem))
def test_shares_no_line_with_the_reference(source: Path) -> None:
    """Two implementations with a common part would agree on that part's faults."""
    imported = [
        node.module or ""
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
    ]
    ours = [name for name in imported if name.startswith("kvref")]
    assert all(name in ALLOWED or name.startswith(SUITE) for name in ours), ours


def test_offers_every_verb_and_feature_of_recurrent_layers() -> None:
    """An exhibit can stand for any verb and any feature only if the subject it breaks has them."""
    assert verbs_of(Scanned()) == verbs_of(ReferenceScans()) == RECURRENT
    optional = {argument.feature for verb in RECURRENT for argument in VERBS[verb].arguments} - {None}
    assert optional | {"padding_rows", "channel_gate", "strided", "value_width"} == set(
        Scanned.claims.features
    )
    assert set(Scanned.claims.features) <= set(FEATURES)


@pytest.mark.parametrize("subject", [Scanned, ReferenceScans])
@pytest.mark.parametrize("topic", [*RECURRENT_TOPICS, "calls"])
def test_passes_every_check(failing: Any, subject: Any, topic: str) -> None:
    """What an untouched implementation fails would be a false alarm of the suite."""
    assert [(e.check, e.case, e.message) for e in failing(topic, subject())] == []


class TokenByToken(Scanned):
    """The same through the step of an update."""

    stepwise = True


class InChunksOfThree(Scanned):
    """Chunks so short that every request has many."""

    chunk = 3
    claims = replace(Scanned.claims, scan_arithmetic=ScanArithmetic(chunk_size=3, running_sums=False))


class ValuesFirst(Scanned):
    """States held the other way round, as declared."""

    claims = replace(Scanned.claims, choices={"state-layout": "value_key"})


class Narrow(Scanned):
    """The operands of every product rounded to bfloat16, and the state too, at the end of a call."""

    claims = replace(
        Scanned.claims,
        dtypes=("bfloat16",),
        scan_arithmetic=ScanArithmetic(
            chunk_size=16, running_sums=False, products="bfloat16", state="bfloat16"
        ),
    )


class Plain(Scanned):
    """Nothing optional, a width that is no power of four, and no scale of its own."""

    claims = Claims(head_dims=(32,), scan_arithmetic=Scanned.claims.scan_arithmetic)


VARIANTS = (TokenByToken, InChunksOfThree, ValuesFirst, Narrow, Plain)
#: All topics, but that calls so large that they take long are made of two variants.
TRIED = [
    (subject, topic)
    for subject in VARIANTS
    for topic in RECURRENT_TOPICS
    if topic != "recurrent_extents" or subject in (InChunksOfThree, Narrow)
]


@pytest.mark.parametrize(("subject", "topic"), TRIED)
def test_honest_variants_pass(failing: Any, subject: Any, topic: str) -> None:
    """Another chunk size, form, layout or format of the state is no fault where it is declared."""
    assert [(e.check, e.case, e.message) for e in failing(topic, subject())] == []


def test_decays_between_tokens_lose_nothing_behind_a_large_one() -> None:
    """A difference of running sums around −1000 would round a decay of 2^-20 away."""
    decay = np.array([[[-1000.0], [-(2.0**-20)], [-(2.0**-20)]]], np.float32)
    apart = scanned.ragged.between(decay)[0, :, :, 0]
    assert apart[2, 0] == np.exp(np.float32(-(2.0**-19)))
    assert apart[0].tolist() == [1.0, 0.0, 0.0]
