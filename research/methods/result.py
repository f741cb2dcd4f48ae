"""The results of trainings, and the journal of a board's folder that keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from archive.journal import Damaged, read_journal
from evolve.calibrate.steps.figures import StepFigures
from research.methods.entries import Errors
from simulator.common.errors import InputError
from simulator.common.json import JsonObject
from simulator.serving.splits import TEST

IN_SAMPLE = "in sample"


@dataclass(frozen=True, slots=True)
class Task:
    """One training of an entry. predicted: ids of the runs that it predicts and, unless in sample, does not see. text:
    a digest of a program that no release fixes, else ""."""

    name: str
    protocol: str
    kind: str
    fold: str
    predicted: tuple[str, ...]
    text: str = ""


@dataclass(frozen=True)
class Result:
    """The result of a training. errors: of FIGURES in percent by run. cycles: figures of cycles by split, of the
    predicted runs that have any. texts: of its programs by what they are of (see Trained), of all runs for "".

    In sample also: forest, the ensemble that its program reads; features, by run the errors of h1 in percent, on the
    form's features and on raw counts; ns_a_step, of its program. skipped: its errors were not computed, because its
    errors on single steps are too large. failure: why there is no result, "" if there is one.
    """

    task: Task
    constants: int
    times: int
    cpu_s: float
    errors: Mapping[str, Errors]
    cycles: Mapping[str, StepFigures]
    texts: Mapping[str, str]
    forest: JsonObject | None = None
    features: Mapping[str, tuple[float, float]] | None = None
    ns_a_step: float | None = None
    skipped: bool = False
    failure: str = ""

    @property
    def test_mape(self) -> float | None:
        """The mean absolute error of the test cycles in percent, of a training on all runs; None without cycles."""
        test = self.cycles.get(TEST)
        return test.mape_pct if test else None

    def misses_by_more_than(self, limit_pct: float) -> bool:
        """True if its error on test cycles is above the limit."""
        mape = self.test_mape
        return mape is not None and mape > limit_pct

    def without_errors(self) -> Result:
        """The same, skipped."""
        return replace(self, errors={}, skipped=True)

    def to_json(self) -> JsonObject:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Result:
        """The result of a line of the journal."""
        task = Task(**{**raw["task"], "predicted": tuple(raw["task"]["predicted"])})
        cycles = {split: StepFigures(**f) for split, f in raw["cycles"].items()}
        pairs = raw["features"]
        features = None if pairs is None else {name: (pair[0], pair[1]) for name, pair in pairs.items()}
        return cls(**{**raw, "task": task, "cycles": cycles, "features": features})


def read_results(path: Path) -> list[Result]:
    """The results in a journal. Raises InputError if it is damaged."""
    results = list[Result]()
    try:
        for line in read_journal(path):
            results.append(Result.from_json(line))
        return results
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as e:
        good = e.good if isinstance(e, Damaged) else len(results)
        raise InputError(
            f"{path}:{good + 1}: damaged line. Remove it and all later lines; their trainings are repeated."
        ) from None
