"""Inputs on which every form is exact: what is equal in real numbers is equal in bits."""

import numpy as np
import pytest

from kvref.recurrent.mamba import selective_scan
from kvref.recurrent.ssd import ssd_scan

FORMS = [(dtype, chunk_size) for dtype in (np.float32, np.float64) for chunk_size in (None, 1, 5, 64)]


@pytest.mark.parametrize(("dtype", "chunk_size"), FORMS, ids=lambda x: getattr(x, "__name__", str(x)))
@pytest.mark.parametrize("mamba2", [False, True], ids=["selective_scan", "ssd_scan"])
def test_mamba_counts(mamba2: bool, dtype: type, chunk_size: int | None) -> None:
    """A channel that never forgets adds up its inputs, and one that forgets holds the last (KV-RNN-017)."""
    rng = np.random.default_rng(6)
    n = 70
    x, dt = rng.integers(-8, 9, n).astype(float), rng.choice([0.0, 0.5, 1.0], n)
    kept, expected = np.zeros(2), []
    for t in range(n):
        kept = np.array([kept[0], kept[1] if dt[t] == 0 else 0.0]) + dt[t] * x[t]
        expected.append(kept)
    inputs = np.stack([x, x], 1), np.stack([dt, dt], 1), np.array([0.0, -2000.0])
    ones = np.ones((n, 1))
    if mamba2:
        arrays = (inputs[0][:, :, None], inputs[1], inputs[2], ones[:, None], ones[:, None])
    else:
        arrays = (inputs[0], inputs[1], inputs[2][:, None], ones, ones)
    scan = (ssd_scan if mamba2 else selective_scan)(
        *(a.astype(dtype) for a in arrays), query_start_loc=[0, n], chunk_size=chunk_size, dtype=dtype
    )
    assert scan.out.reshape(n, 2).tolist() == np.array(expected).tolist()
    assert scan.state.reshape(2).tolist() == kept.tolist()


@pytest.mark.parametrize("mamba2", [False, True], ids=["selective_scan", "ssd_scan"])
@pytest.mark.parametrize("chunk_size", [None, 16])
def test_no_step_changes_nothing(mamba2: bool, chunk_size: int | None) -> None:
    """With dt = 0 a token neither forgets nor writes, so it can pad a request (KV-RNN-009, KV-RNN-020)."""
    state = np.arange(1.0, 13.0).reshape((1, 2, 2, 3) if mamba2 else (1, 4, 3))
    x, dt, A = (
        (np.ones((40, 2, 2)), np.zeros((40, 2)), -np.ones(2))
        if mamba2
        else (np.ones((40, 4)), np.zeros((40, 4)), -np.ones((4, 3)))
    )
    ones = np.ones((40, 1, 3) if mamba2 else (40, 3))
    scan = (ssd_scan if mamba2 else selective_scan)(
        x, dt, A, ones, ones, query_start_loc=[0, 40], initial_state=state, chunk_size=chunk_size
    )
    assert scan.state.tolist() == state.tolist()
