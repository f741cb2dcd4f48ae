"""The errors of a program on the experiments that it was scored on, as plain values."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

DIGITS = 6  # significant digits of errors in a journal


class Errors(NamedTuple):
    """Signed errors of an experiment's mean E2E, TTFT and ITL in percent; None where not observed."""

    experiment: str
    e2e: float | None
    ttft: float | None
    itl: float | None

    @property
    def figures(self) -> tuple[float | None, float | None, float | None]:
        """(E2E, TTFT, ITL)."""
        return self[1:]


@dataclass(frozen=True, slots=True)
class CellErrors:
    """The errors in percent of each cell of runs (evaluator.cells), (name, error), in order."""

    cells: tuple[tuple[str, float], ...]

    @property
    def mean(self) -> float:
        """The mean over cells, NaN without any."""
        errors = [error for _, error in self.cells]
        return sum(errors) / len(errors) if errors else math.nan

    def above(self, other: CellErrors) -> tuple[float, float]:
        """(mean difference to another program over the cells that both have, its standard error), paired.

        >>> a, b = (CellErrors((("x", e), ("y", f))) for e, f in ((3.0, 5.0), (2.0, 3.0)))
        >>> a.above(b)
        (1.5, 0.5)
        """
        theirs = dict(other.cells)
        pairs = [error - theirs[name] for name, error in self.cells if name in theirs]
        if not pairs:
            return math.nan, math.nan
        mean = sum(pairs) / len(pairs)
        if len(pairs) < 2:
            return mean, math.inf
        variance = sum((d - mean) ** 2 for d in pairs) / (len(pairs) - 1)
        return mean, math.sqrt(variance / len(pairs))

    def rounded(self) -> CellErrors:
        return CellErrors(tuple((name, float(f"{error:.{DIGITS}g}")) for name, error in self.cells))


@dataclass(frozen=True, slots=True)
class Score:
    """Mean absolute errors over experiments in percent, None for a latency that was never observed.

    - rows: the signed errors of every experiment that was replayed; of the others, a row of mean absolute errors for
      each cell (evaluator.cells).
    - mean_error: the mean of `e2e`, `ttft` and `itl` by evaluator.cells.WEIGHTS, of those that were observed (NaN if
      none).
    - worst3: the mean of the three largest E2E errors (the mean error without any E2E).
    - worst_e2e: the largest absolute E2E error of any experiment, NaN if E2E was never observed. It follows from
      `rows` and is kept because every choice of a champion asks for it.
    - ttft_p99: the mean absolute error of the 99th percentile of TTFT over the replayed experiments that observed one.
    """

    rows: tuple[Errors, ...]
    e2e: float | None
    ttft: float | None
    itl: float | None
    mean_error: float
    worst3: float
    ttft_p99: float | None = None
    worst_e2e: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        worst = max([abs(row.e2e) for row in self.rows if row.e2e is not None], default=float("nan"))
        object.__setattr__(self, "worst_e2e", worst)

    def rounded(self) -> Score:
        """The score with its errors rounded to DIGITS significant digits, because the last bits are only noise.

        >>> Score((Errors("chat", 1.23456789, None, 2.0),), 1.23456789, None, 2.0, 1.61728394, 1.23456789).rounded()
        Score(rows=(Errors(experiment='chat', e2e=1.23457, ttft=None, itl=2.0),), \
e2e=1.23457, ttft=None, itl=2.0, mean_error=1.61728, worst3=1.23457, ttft_p99=None)
        """
        rows = tuple(Errors(row.experiment, *map(rounded, row.figures)) for row in self.rows)
        means = map(rounded, (self.e2e, self.ttft, self.itl, self.mean_error, self.worst3, self.ttft_p99))
        return Score(rows, *means)  # type: ignore[arg-type]


def rounded(error: float | None) -> float | None:
    """The error with DIGITS significant digits."""
    return None if error is None else float(f"{error:.{DIGITS}g}")
