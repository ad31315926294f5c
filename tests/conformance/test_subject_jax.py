"""What JAX's reference for ragged paged attention does at the points where engines differ."""

import numpy as np
import pytest
from subject_facts import read

from kvref_conformance.host import Host
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.host.subject import load_subject
from kvref_conformance.subjects import BUILT_IN

pytest.importorskip("jax")


@pytest.fixture
def host() -> Host:
    """The subject in this process."""
    return InProcessHost(load_subject(BUILT_IN["jax"]))


def test_nothing_past_the_length_is_read(host: Host) -> None:
    """Gathered blocks are cut to kv_lens before anything is computed."""
    assert read(host, 5, dead=(np.nan, np.nan)).tolist() == [2.0]


def test_values_outside_the_window_are_multiplied(host: Host) -> None:
    """Inside the context, a position before the window has weight 0 and must be finite."""
    assert read(host, 20, window=3).tolist() == [18.0]
    assert np.isnan(read(host, 20, window=3, killed=(0, 1), dead=(0.0, np.nan))).all()
    assert np.isnan(read(host, 20, window=3, killed=(0, 1), dead=(np.nan, 0.0))).all()
