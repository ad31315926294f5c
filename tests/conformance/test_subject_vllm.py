"""What vLLM's CPU kernel does at the points where engines differ; runs where KVREF_VLLM_PYTHON names vLLM."""

import os
from collections.abc import Iterator

import numpy as np
import pytest
from subject_facts import read

from kvref_conformance.host import Host
from kvref_conformance.runner.target import Target


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """The subject in vLLM's own interpreter."""
    if "KVREF_VLLM_PYTHON" not in os.environ:
        pytest.skip("KVREF_VLLM_PYTHON does not name an interpreter with vLLM")
    found = Target(subject="vllm_cpu", python=os.environ["KVREF_VLLM_PYTHON"]).open()
    yield found
    found.close()


def test_a_row_without_context_is_left_unwritten(host: Host) -> None:
    """The output keeps what it held; an engine that reuses its buffers returns an older answer."""
    assert np.isnan(read(host, 0)).all()


def test_softcap_overflows_far_beyond_the_cap(host: Host) -> None:
    """The tangent goes through exp: a logit of 80 caps is capped, one of 100 is no number (0.32.0)."""
    if host.hello().version != "0.32.0":
        pytest.skip("a fact about vLLM 0.32.0")
    assert read(host, 5, logit=80.0, softcap=1.0).tolist() == [2.0]
    assert np.isnan(read(host, 5, logit=100.0, softcap=1.0)).all()
    assert np.isnan(read(host, 5, logit=-100.0, softcap=1.0)).all()


def test_dead_values_must_be_finite(host: Host) -> None:
    """What follows the context in its last block has weight 0 and is multiplied all the same."""
    assert read(host, 5, dead=(np.nan, 0.0)).tolist() == [2.0]
    assert np.isnan(read(host, 5, dead=(0.0, np.nan))).all()
