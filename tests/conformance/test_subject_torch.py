"""What PyTorch's attention does at the points where engines differ: the facts its subjects declare."""

import numpy as np
import pytest
from subject_facts import read

from kvref_conformance.host import Host
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.host.subject import load_subject
from kvref_conformance.oracle import Oracle
from kvref_conformance.runner.evaluate import plan
from kvref_conformance.runner.failures import diagnose
from kvref_conformance.runner.shrink import shrink
from kvref_conformance.subjects import BUILT_IN

pytest.importorskip("torch")


@pytest.fixture
def host(request: pytest.FixtureRequest) -> Host:
    """The subject a test names."""
    return InProcessHost(load_subject(BUILT_IN[request.param]))


@pytest.mark.parametrize("host", ["torch"], indirect=True)
def test_is_causal_is_anchored_top_left(host: Host) -> None:
    """Two queries over five keys see positions 0 and 0..1: the oldest, not their own."""
    assert read(host, 5, verb="attention", queries=2).tolist() == [0.0, 0.5]


@pytest.mark.parametrize("host", ["torch"], indirect=True)
def test_negative_scale_with_is_causal_is_no_number(host: Host) -> None:
    """Masked logits are −inf before they are scaled, so a negative scale turns them into +inf (2.13.0)."""
    if not host.hello().version.startswith("2.13.0"):
        pytest.skip("a fact about PyTorch 2.13.0")
    assert np.isnan(read(host, 5, verb="attention", queries=2, scale=-1.0)).all()
    assert np.isfinite(read(host, 5, verb="attention", queries=2, scale=-1.0, causal=False)).all()


@pytest.mark.parametrize("host", ["torch_static_cache"], indirect=True)
@pytest.mark.parametrize("dead", [(np.nan, 0.0), (0.0, np.nan), (np.inf, 0.0), (0.0, np.inf)])
def test_a_masked_slot_must_be_finite(host: Host, dead: tuple[float, float]) -> None:
    """NaN or infinity behind the boolean mask, in a key or in a value, reaches the output."""
    assert np.isnan(read(host, 5, dead=dead)).all()


@pytest.mark.parametrize("host", ["torch_static_cache", "torch_flex"], indirect=True)
def test_a_masked_slot_may_be_loud(host: Host) -> None:
    """Any finite number behind the mask has no effect: what `any_finite` promises."""
    assert read(host, 5, dead=(3e38, 3e38)).tolist() == [2.0]


@pytest.mark.parametrize("host", ["torch_flex"], indirect=True)
def test_flex_hides_dead_keys_but_not_dead_values(host: Host) -> None:
    """A masked score is replaced whatever it was; its value is still multiplied by 0."""
    assert read(host, 5, dead=(np.nan, 0.0)).tolist() == [2.0]
    assert np.isnan(read(host, 5, dead=(0.0, np.nan))).all()


@pytest.mark.parametrize(
    ("requirement", "fault"),
    [("KV-ATTN-012", "values behind a mask were multiplied"), ("KV-ATTN-020", "from the top left corner")],
)
def test_canonical_answers_are_asked_for_by_requirement(requirement: str, fault: str) -> None:
    """Without its declarations torch fails where it differs, and the diagnosis says how."""
    subject = load_subject(BUILT_IN["torch"])
    canonical = subject.claims.canonical()
    host, oracle = InProcessHost(subject), Oracle(canonical)
    asked = plan(("attention",), canonical, "quick")
    check, case = next(each for each in asked if each[0].requirement == requirement)
    found = shrink(check, case, host, oracle)
    assert found.status == "fail"
    assert len(found.case.seq_lens) == 1
    assert fault in " ".join(diagnose(found, canonical))
