"""How well a fit determined constants: columns of tables, and sentences."""

from __future__ import annotations

from collections.abc import Mapping

from evaluator.fit.uncertainty import IDENTIFIED
from evolve.output.columns import NUMBER, Column
from evolve.run.records import ConstantRecord
from simulator.common.text import counted

TOGETHER = 0.8  # correlation of the errors of two constants from which they are hard to tell apart


def two_digits(value: float) -> str:
    """A figure with two significant digits.

    >>> two_digits(1234.0), two_digits(0.00123)
    ('1200', '0.0012')
    """
    return f"{float(format(value, '.2g')):g}"


CERTAINTY = (
    Column("standard error", NUMBER, format=two_digits, missing=""),
    Column("by the data", head="by the data", wraps=True),
)


def said_by_data(constant: ConstantRecord) -> str:
    """How far the data determine a constant, in words."""
    if constant.held:
        return "held"
    if constant.bound:
        return f"at its {'lower' if constant.bound == 'low' else 'upper'} bound"
    if constant.identified:
        return "identified"
    decided = constant.standard_error is not None and (constant.data_share or 0.0) > IDENTIFIED
    return "smaller than its error" if decided else "NOT identified"


def hard_to_tell_apart(correlated: Mapping[str, Mapping[str, float]], every: bool = True) -> list[str]:
    """A line if the errors of any two constants, by `method.name`, correlate by TOGETHER or more.

    every: name all such pairs; otherwise the one that correlates most, and how many others there are.

    >>> hard_to_tell_apart({"f.a": {"f.b": -0.97, "f.c": 0.2}, "f.b": {"f.a": -0.97}})
    ['hard to tell apart: f.a and f.b (errors correlate by -0.97): the runs say more of both together than of each']
    >>> hard_to_tell_apart({"f.a": {"f.b": 0.3}})
    []
    """
    pairs = {frozenset((one, other)): r for one, others in correlated.items() for other, r in others.items()}
    by_size = sorted(pairs.items(), key=lambda pair: -abs(pair[1]))
    close = [f"{' and '.join(sorted(pair))} ({r:+.2f})" for pair, r in by_size if abs(r) >= TOGETHER]
    if not close:
        return []
    first = close[0].replace("(", "(errors correlate by ")
    if not every and close[1:]:
        return [f"hard to tell apart: {first}, and {counted(len(close) - 1, 'more pair')}"]
    return [f"hard to tell apart: {', '.join([first, *close[1:]])}: the runs say more of both together than of each"]
