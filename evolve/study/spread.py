"""A figure over several seeds: median and quartiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def spread(values: Sequence[float | None]) -> dict[str, Any]:
    """Median and quartiles (`low`, `high`; linear interpolation) of the `values`, None where one of them is missing."""
    known = [float("inf") if v is None else v for v in values]
    whole = bool(known) and bool(np.isfinite(known).all())
    low, median, high = (float(np.percentile(known, q)) if whole else None for q in (25, 50, 75))
    return {"median": median, "low": low, "high": high, "values": list(values)}


def spelled(figure: dict[str, Any]) -> str:
    """`1.42 [1.31-1.60]`: median and quartiles; the median alone where there is one value."""
    if figure["median"] is None:
        return "-"
    middle = f"{figure['median']:.2f}"
    return middle if len(figure["values"]) < 2 else f"{middle} [{figure['low']:.2f}-{figure['high']:.2f}]"
