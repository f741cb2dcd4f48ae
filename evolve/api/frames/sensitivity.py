"""Frames of sensitivities: a row for each value of a setting of the engine of each experiment."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from evaluator.intervals import FIGURES
from evolve.output.columns import flag, frame, number, several, text
from evolve.plan.sensitivity_result import Change, Effect, Sensitivities, SensitivityPoint, value_text

SENSITIVITY = (
    text("experiment", "its id", paper=True),
    text("setting", "setting of the engine", paper=True),
    text("own", "its value in the experiment: a whole number, on or off", paper=True),
    text("value", "its value here", paper=True),
    text("impossible", "why there can be no such deployment; missing: there can"),
    *(number(f"{name}_ms", f"predicted {name.replace('_', ' ')}{'' if '_' in name else ' mean'}") for name in FIGURES),
    *(
        column
        for name in FIGURES
        for column in (
            number(f"{name}_change_pct", "change against the setting's own value, percent", paper=name == "e2e"),
            number(f"{name}_change_se_pct", "its standard error over arrival seeds; missing: a single one"),
            number(f"{name}_elasticity", "elasticity over all values of the setting; missing: a switch", paper=True),
            number(f"{name}_elasticity_se", "its standard error over arrival seeds"),
        )
    ),
    several("fails", "why the deployment does not keep up, as in a sweep"),
    flag("outside_fit", "whether it lies beyond the fitted runs; missing: these are unknown"),
    several("outside", "where, a line each"),
)


def sensitivity(result: Sensitivities) -> pd.DataFrame:
    """A row for each experiment, setting and value: what is predicted, and how it changes."""

    def rows() -> Iterator[dict[str, object]]:
        for of_one in result.experiments:
            for effect in of_one.effects:
                for point in effect.points:
                    yield {"experiment": of_one.experiment, **_row(effect, point)}

    return frame(SENSITIVITY, rows())


def _row(effect: Effect, point: SensitivityPoint) -> dict[str, object]:
    values: dict[str, object] = {
        "setting": effect.setting, "own": value_text(effect.own), "value": value_text(point.value),
        "impossible": point.impossible, "fails": point.fails,
        "outside_fit": None if point.outside is None else bool(point.outside), "outside": point.outside or (),
    }  # fmt: skip
    for name in FIGURES:
        values[f"{name}_ms"] = (point.figures_ms or {}).get(name)
        values |= _change(f"{name}_change", "_pct", (point.change_pct or {}).get(name))
        values |= _change(f"{name}_elasticity", "", (effect.elasticity or {}).get(name))
    return values


def _change(name: str, unit: str, change: Change | None) -> dict[str, object]:
    return {f"{name}{unit}": change.mean, f"{name}_se{unit}": change.standard_error} if change else {}
