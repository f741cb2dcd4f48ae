"""What a sensitivity finds: how each figure of an experiment moves with each setting of its engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from evolve import __version__
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
    """What is predicted with a setting at `value`, all others being the experiment's own.

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
    """What a setting does: `points` with other values than its `own`.

    elasticity, by intervals.FIGURES: d log(figure) / d log(setting) between the lowest and the highest possible value,
    its own among them; None for a switch, and where a figure is 0 or missing.
    """

    setting: str
    own: int | bool
    points: tuple[SensitivityPoint, ...]
    elasticity: Mapping[str, Change | None] | None


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """How the latencies of one experiment move with each setting of its engine. `figures_ms`, `fails` and `outside` are
    those of its own settings, as in Point."""

    experiment: str
    figures_ms: Mapping[str, float | None]
    fails: tuple[str, ...]
    outside: tuple[str, ...] | None
    effects: tuple[Effect, ...]

    def to_json(self) -> JsonObject:
        return asdict(self)


@dataclass(frozen=True)
class Sensitivities:
    """What `evolve sensitivity` finds for a program, averaged over arrival `seeds`.

    data: hash of the experiments as their file has them. drawn: whether any requests differ between seeds. warnings:
    what to know about the program.
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


def value_text(value: int | bool) -> str:
    """A value of a setting as a user says it: 64, on, off."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
