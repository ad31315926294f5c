"""What ONNX Runtime and onnx.reference do where engines differ: the facts their subjects declare."""

import numpy as np
import pytest
from subject_facts import read

from kvref_conformance.contracts import Failed
from kvref_conformance.host import Host
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.host.subject import load_subject
from kvref_conformance.subjects import BUILT_IN

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.fixture
def host(request: pytest.FixtureRequest) -> Host:
    """The subject a test names."""
    return InProcessHost(load_subject(BUILT_IN[request.param]))


@pytest.mark.parametrize("host", ["onnxruntime"], indirect=True)
def test_gqa_refuses_a_request_without_context(host: Host) -> None:
    """`seqlens_k` is the index of the last token, and there is none: the operator says so."""
    with pytest.raises(Failed, match="total_sequence_length must be positive, got 0"):
        read(host, 0)


@pytest.mark.parametrize("host", ["onnxruntime"], indirect=True)
@pytest.mark.parametrize("dead", [(np.nan, np.nan), (np.inf, -np.inf)])
def test_gqa_never_reads_past_the_length(host: Host, dead: tuple[float, float]) -> None:
    """What follows the context in the shared buffer may hold any bits."""
    assert read(host, 5, dead=dead).tolist() == [2.0]


@pytest.mark.parametrize("host", ["onnxruntime"], indirect=True)
def test_gqa_multiplies_values_outside_the_window(host: Host) -> None:
    """A value before the window has weight 0 and is multiplied all the same; a key there is not looked at."""
    assert read(host, 20, window=3, killed=(0, 1), dead=(np.nan, 0.0)).tolist() == [18.0]
    assert np.isnan(read(host, 20, window=3, killed=(0, 1), dead=(0.0, np.nan))).all()


@pytest.mark.parametrize("host", ["onnxruntime_attention"], indirect=True)
def test_attention_24_of_the_runtime_hides_dead_keys_but_not_dead_values(host: Host) -> None:
    """Past nonpad_kv_seqlen a key may be NaN, a value may not."""
    assert read(host, 5, dead=(np.nan, 0.0)).tolist() == [2.0]
    assert np.isnan(read(host, 5, dead=(0.0, np.nan))).all()


@pytest.mark.parametrize("host", ["onnx_reference"], indirect=True)
@pytest.mark.parametrize("dead", [(np.nan, 0.0), (0.0, np.nan)])
def test_attention_24_of_the_reference_needs_finite_dead_slots(host: Host, dead: tuple[float, float]) -> None:
    """A bias of −inf is added to what is past nonpad_kv_seqlen, and NaN plus a bias is NaN."""
    assert np.isnan(read(host, 5, dead=dead)).all()


@pytest.mark.parametrize("host", ["onnx_reference", "onnxruntime_attention"], indirect=True)
def test_attention_24_takes_a_request_without_context(host: Host) -> None:
    """A buffer of which nothing is live answers 0."""
    assert read(host, 0).tolist() == [0.0]
