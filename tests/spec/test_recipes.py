"""What case files rest on outside this repository."""

import numpy as np


def test_drawn_integers_do_not_change_with_numpy() -> None:
    """A case file stores a seed; the same seed must mean the same inputs under every NumPy we support.

    NumPy promises the raw bits of PCG64, not what its methods make of them. If these integers ever change,
    the suite has to draw its own.
    """
    drawn = np.random.default_rng(7).integers(-32, 33, 12)
    assert drawn.tolist() == [29, 8, 12, 26, 5, 18, 22, -18, -29, -13, -14, 24]
