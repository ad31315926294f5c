"""What vLLM's CPU kernel does at the points where engines differ; runs where KVREF_VLLM_PYTHON names vLLM."""

import os
from collections.abc import Iterator

import numpy as np
import pytest
from subject_facts import read

from kvref.attention.bounds import exceeds
from kvref_conformance.cases import Case
from kvref_conformance.claims import Claims
from kvref_conformance.host import Host
from kvref_conformance.oracle import Oracle
from kvref_conformance.probes.records import present_mla, random_records
from kvref_conformance.problems import Placement
from kvref_conformance.runner.target import Target


def opened(subject: str) -> Iterator[Host]:
    """Run a subject in vLLM's own interpreter."""
    if "KVREF_VLLM_PYTHON" not in os.environ:
        pytest.skip("KVREF_VLLM_PYTHON does not name an interpreter with vLLM")
    found = Target(subject=subject, python=os.environ["KVREF_VLLM_PYTHON"]).open()
    yield found
    found.close()


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """The paged kernel."""
    yield from opened("vllm_cpu")


@pytest.fixture(scope="module")
def latent() -> Iterator[Host]:
    """The kernel for latent attention."""
    yield from opened("vllm_mla")


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


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_latent_attention_reads_live_records_only(latent: Host, dtype: str) -> None:
    """NaN in every dead slot changes nothing, and a request without context answers 0."""
    case = Case(
        verb="mla_attention",
        seq_lens=(35, 0, 16),
        query_lens=(1, 1, 1),
        num_kv_heads=1,
        head_dim=576,
        dtype=dtype,
    )
    problem = random_records(case, 0.03125)
    call = present_mla(problem, case, Placement(seed=3, poison=(np.nan, np.nan)))
    expected = Oracle(Claims.from_dict(latent.hello().claims)).attention(problem)
    out = latent.call(call).outputs["out"].astype(np.float64)
    assert not exceeds(out, expected.out, expected.out_bound).any()
    assert (out[1] == 0).all()
