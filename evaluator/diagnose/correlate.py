"""Which fields go along with a residual over the load stages, by rank: Spearman's correlation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from simulator.schema import FIELDS

LEAST_STAGES = 4  # with fewer, every field goes along with every residual
MOST_FIELDS = 8  # of a residual
ALIKE = 0.98  # rank correlation of fields that these stages cannot tell apart
DIGITS = 9  # what differs less is equal: sums in another order must not give ranks

Values = Mapping[tuple[str, str], Sequence[float | None]]  # ("b", "tokens") -> its value in every stage


@dataclass(frozen=True, slots=True)
class Correlation:
    """How `residual`, a signed error, goes along with a field over so many load stages: r, Spearman's rank correlation.
    alike: weaker ones with the same ranks there, or the opposite ones."""

    residual: str
    field: str
    unit: str
    r: float
    stages: int
    alike: tuple[str, ...]


def correlations(residual: str, errors: Sequence[float | None], fields: Values) -> list[Correlation]:
    """The strongest first, one of those that are alike; none where fewer than LEAST_STAGES have an error.

    Only fields that vary over the stages with an error and are known in all of them.
    """
    known = [i for i, error in enumerate(errors) if error is not None]
    ours = _rounded(errors, known)
    columns = {field: _rounded(values, known) for field, values in fields.items()}
    varying = [field for field, column in columns.items() if len(set(column)) > 1 and not np.isnan(column).any()]
    if len(known) < LEAST_STAGES or len(set(ours)) == 1 or not varying:
        return []
    r = np.corrcoef(rankdata([ours, *(columns[field] for field in varying)], axis=1)).round(DIGITS)
    to_error, mutual, names = r[0, 1:], r[1:, 1:], [".".join(field) for field in varying]
    found: list[Correlation] = []
    left = sorted(range(len(varying)), key=lambda j: -abs(to_error[j]))
    while left and len(found) < MOST_FIELDS:
        first, *others = left
        alike = [j for j in others if abs(mutual[first, j]) > ALIKE]
        left = [j for j in others if j not in alike]
        unit, same = FIELDS[varying[first]].unit, tuple(names[j] for j in alike)
        found.append(Correlation(residual, names[first], unit, float(to_error[first]), len(known), same))
    return found


def _rounded(values: Sequence[float | None], which: Sequence[int]) -> list[float]:
    return [float("nan") if (x := values[i]) is None else float(f"{x:.{DIGITS}g}") for i in which]
