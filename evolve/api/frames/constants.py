"""Frames of constants: those of a program, with how well its fit determined them, and what a fit changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

import pandas as pd

from evaluator.score import MEANS, Errors
from evolve.calibrate.result import ConstantChange
from evolve.inspect.show import Description
from evolve.output.columns import flag, frame, mapping, number, text

_METHOD = text("method", "the method that it is of", paper=True)
_NAME = text("name", "its name", paper=True)
_ERROR = number("standard_error", "standard error of the value, in its unit; missing: none is known", paper=True)
_BOUND = text("bound", "the bound that the fit stopped at: `low` or `high`")
_IDENTIFIED = flag("identified", "whether the fitted runs decide it", paper=True)

CONSTANTS = (
    _METHOD,
    _NAME,
    number("value", "its value, in `unit`", paper=True),
    text("unit", "its unit; missing: any", paper=True),
    flag("annotated", "whether the text gives the unit; otherwise it was found"),
    number("low", "the least that it may be"),
    number("high", "the most that it may be; missing: no limit"),
    text("enters", "how it enters its method: `affine` or `otherwise`"),
    number(
        "deviations", "of a factor of a measured kernel, its distance from 1 in standard deviations of such factors"
    ),
    _ERROR,
    _BOUND,
    _IDENTIFIED,
)
ERRORS = (
    text("experiment", "its id", paper=True),
    *(number(f"{x}_error_pct", f"signed error of the mean {x.upper()} after the fit", paper=True) for x in MEANS),
    *(number(f"before_{x}_error_pct", f"signed error of the mean {x.upper()} before the fit") for x in MEANS),
)
FITTED = (
    text("model", "the model that it is for; missing: all of them"),
    _METHOD,
    _NAME,
    number("before", "value before the fit", paper=True),
    number("after_steps", "value after the fit to single steps; missing without one"),
    number("after", "value after the fit", paper=True),
    _ERROR,
    number("standard_error_before", "standard error of the value before the fit"),
    number("moved", "the change in standard errors, those before and after taken together", paper=True),
    _BOUND,
    number("determined", "the share of its information that comes from the runs, not from the prior"),
    _IDENTIFIED,
    flag("held", "whether the fit left it as it was"),
    flag("shown", "whether fitted runs depend on it, as far as that is known"),
    mapping("correlated", "how its error correlates with those of other constants, by `method.name`, from -1 to 1"),
)


def constants(description: Description) -> pd.DataFrame:
    """The constants of a program in the order of its text."""
    certainty = description.certainty or {}

    def rows() -> Iterable[dict[str, object]]:
        for c in description.constants:
            sure = certainty.get(f"{c.method}.{c.name}")
            known = {n: getattr(sure, n) for n in ("standard_error", "bound", "identified")} if sure else {}
            yield {**asdict(c), **known}

    return frame(CONSTANTS, rows())


def fitted(changes: Iterable[ConstantChange]) -> pd.DataFrame:
    """The constants of a fit, before and after."""
    return frame(FITTED, map(asdict, changes))


def errors(before: Iterable[Errors], after: Iterable[Errors]) -> pd.DataFrame:
    """The errors on every fitted experiment, after and before the fit."""

    def row(old: Errors, new: Errors) -> dict[str, object]:
        errors_after = {f"{x}_error_pct": getattr(new, x) for x in MEANS}
        errors_before = {f"before_{x}_error_pct": getattr(old, x) for x in MEANS}
        return {"experiment": new.experiment, **errors_after, **errors_before}

    return frame(ERRORS, map(row, before, after))
