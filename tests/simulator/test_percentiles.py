"""The figures of many requests, against numpy's, to the bit."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simulator.experiment.observations import statistic

LATENCIES = st.one_of(
    st.lists(st.integers(0, 10**12), min_size=1, max_size=50), st.lists(st.floats(0.0, 1e9), min_size=1, max_size=50)
)


@given(LATENCIES)
def test_percentiles_are_those_of_numpy(values: list[int] | list[float]) -> None:
    found = statistic(np.array(values), 1e3)
    p50, p90, p99 = np.percentile(values, (50, 90, 99))
    assert (found.p50, found.p90, found.p99) == (float(p50) / 1e3, float(p90) / 1e3, float(p99) / 1e3)
