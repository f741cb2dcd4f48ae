"""The results of a sensitivity: how far each figure of an experiment moves with each setting of its engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field

from evaluator.intervals import FIGURES
from evolve import __version__
from evolve.output.columns import flag, number, several, text
from simulator.common.json import JsonObject
from simulator.language.ir import Program
from simulator.language.key import key
from simulator.language.unparse import unparse


@dataclass(frozen=True, slots=True)
class Change:
    """A mean over arrival seeds, and its standard error; None from a single seed. The seeds are paired: each compares
    replays of the same arrivals."""

    mean: float
    standard_error: float | None


@dataclass(frozen=True, slots=True)
class SensitivityPoint:
    """The prediction with a setting at `value`, and the experiment's own values of all others.

    `impossible` says why there can be no such deployment; nothing else is known then. figures_ms and change_pct are by
    intervals.FIGURES: means over arrival seeds, and changes in percent against the setting's own value; None where no
    request completes. fails: why the deployment does not keep up (sweep_result.QUEUE, LOST, NOTHING). outside: where it
    lies beyond the fitted runs, a line each; None if these are unknown. also: other settings that change with this one,
    as vLLM does not start without.
    """

    value: int | bool
    impossible: str | None = None
    figures_ms: Mapping[str, float | None] | None = None
    change_pct: Mapping[str, Change | None] | None = None
    fails: tuple[str, ...] = ()
    outside: tuple[str, ...] | None = None
    also: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of a setting: `points` with other values than its `own`.

    elasticity, by intervals.FIGURES: d log(figure) / d log(setting) between the lowest and the highest possible value,
    its own among them; None for a switch, and where a figure is 0 or missing.
    """

    setting: str
    own: int | bool
    points: tuple[SensitivityPoint, ...]
    elasticity: Mapping[str, Change | None] | None


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The effects of each engine setting on one experiment.

    figures_ms, fails, outside: under its own settings, as in SensitivityPoint.
    """

    experiment: str
    figures_ms: Mapping[str, float | None]
    fails: tuple[str, ...]
    outside: tuple[str, ...] | None
    effects: tuple[Effect, ...]

    def to_json(self) -> JsonObject:
        return asdict(self)


@dataclass(frozen=True)
class Sensitivities:
    """The sensitivities of a program, averaged over arrival `seeds`.

    data: hash of the experiments as their file has them. drawn: True if any requests differ between seeds. warnings:
    about the program.
    """

    name: str
    program: Program
    data: str
    seeds: tuple[int, ...]
    drawn: bool
    experiments: tuple[Sensitivity, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> JsonObject:
        return {
            "engine": __version__,
            "data": self.data,
            "seeds": list(self.seeds),
            "program": unparse(self.program),
            "key": key(self.program),
            "experiments": [sensitivity.to_json() for sensitivity in self.experiments],
            "warnings": list(self.warnings),
        }


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


def sensitivity_rows(result: Sensitivities) -> Iterator[dict[str, object]]:
    """The rows of SENSITIVITY: one for each experiment, setting and value."""
    for of_one in result.experiments:
        for effect in of_one.effects:
            for point in effect.points:
                yield {"experiment": of_one.experiment, **_row(effect, point)}


def _row(effect: Effect, point: SensitivityPoint) -> dict[str, object]:
    values: dict[str, object] = {
        "setting": effect.setting,
        "own": value_text(effect.own),
        "value": value_text(point.value),
        "impossible": point.impossible,
        "fails": point.fails,
        "outside_fit": None if point.outside is None else bool(point.outside),
        "outside": point.outside or (),
    }
    for name in FIGURES:
        values[f"{name}_ms"] = (point.figures_ms or {}).get(name)
        values |= _change(f"{name}_change", "_pct", (point.change_pct or {}).get(name))
        values |= _change(f"{name}_elasticity", "", (effect.elasticity or {}).get(name))
    return values


def _change(name: str, unit: str, change: Change | None) -> dict[str, object]:
    return {f"{name}{unit}": change.mean, f"{name}_se{unit}": change.standard_error} if change else {}


def value_text(value: int | bool) -> str:
    """A value of a setting as a user says it: 64, on, off."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
