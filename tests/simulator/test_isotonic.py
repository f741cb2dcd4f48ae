"""The regression that makes curves of measured kernels rise, against scipy's, to the bit."""

from __future__ import annotations

import numpy as np
import scipy
from hypothesis import given
from hypothesis import strategies as st

from simulator.kernels.roofline import isotonic

VALUES = st.one_of(st.floats(-1e6, 1e6), st.integers(-3, 3).map(float))  # of the whole numbers many are equal


@given(st.lists(VALUES, min_size=1, max_size=40))
def test_pooled_neighbours_are_those_of_scipy(values: list[float]) -> None:
    ours = isotonic(np.array(values))
    assert ours.tobytes() == scipy.optimize.isotonic_regression(values).x.tobytes()
    assert (np.diff(ours) >= 0.0).all()
