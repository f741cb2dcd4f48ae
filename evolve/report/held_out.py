"""The held-out errors of a program, by run and kind of fold, from what `evolve validate` keeps with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluator.intervals import STATISTICS
from evaluator.metrics import mean_abs, present
from evaluator.score import MEANS
from evaluator.statistics import clustered_interval, median_abs
from evolve.output.columns import figures, integers, words
from evolve.output.table import PASS_PCT
from evolve.report.dimension import MEAN_ERRORS, Exhibit
from evolve.report.subject import Subject
from evolve.run.trust import INSIDE, OUTSIDE, Trust
from evolve.run.validations import FILES, SEARCHED, read_figures
from evolve.validate.held_out import Compared, observed_figures
from simulator.common.records import read_by, reader_of
from simulator.serving.experiment import Experiment

SEED = 0  # of bootstraps


@dataclass(frozen=True, slots=True)
class HeldOutRuns:
    """The errors of one held-out prediction: of STATISTICS, signed, in percent; None where nothing was observed.

    kind, fold: of what was held out with it. outside: whether the run lies outside the ranges of what the fold fitted.
    """

    kind: str
    fold: str
    experiment: Experiment
    outside: bool
    errors: Mapping[str, float | None]

    @property
    def compared(self) -> Compared:
        summary = self.experiment.observed.summary if self.experiment.observed else None
        return Compared(self.experiment.id, observed_figures(summary), self.errors, {})


@dataclass(frozen=True, slots=True)
class BaselineHeldOut:
    """The mean absolute errors in percent of a baseline fitted in the folds of one kind, over so many runs."""

    kind: str
    name: str
    e2e: float | None
    ttft: float | None
    itl: float | None
    over: int


@dataclass(frozen=True, slots=True)
class HeldOutFigures:
    """Absolute errors in percent over `runs` predictions; None where nothing was observed.

    worst: the largest, signed, and in which experiment. interval: of the mean, by bootstrap of whole models.
    """

    runs: int
    mean: float | None
    median: float | None
    worst: float | None
    worst_in: str | None
    interval: tuple[float, float] | None


def held_out(trust: Trust | None, experiments: Sequence[Experiment]) -> tuple[HeldOutRuns, ...]:
    """The held-out predictions of these experiments; of no others is known what they are."""
    by_id = {e.id: e for e in experiments}
    return tuple(
        HeldOutRuns(r.kind, r.held_out, by_id[r.experiment], name == OUTSIDE, {f: r.error_pct(f) for f in STATISTICS})
        for name in (INSIDE, OUTSIDE)
        for r in (trust.residuals(name) if trust else ())
        if r.experiment in by_id
    )


def means_of(rows: Iterable[HeldOutRuns], figures: Sequence[str] = MEANS) -> dict[str, float | None]:
    """The mean absolute errors in percent of these predictions."""
    rows = list(rows)
    return {name: mean_abs([row.errors[name] for row in rows]) for name in figures}


def figures_of(rows: Sequence[tuple[Experiment, float | None]]) -> HeldOutFigures:
    values = [error for _, error in rows]
    known = [(error, e.id) for e, error in rows if error is not None]
    worst, name = max(known, key=lambda pair: abs(pair[0]), default=(None, None))
    spread = clustered_interval(values, [e.model for e, _ in rows], SEED)
    return HeldOutFigures(len(present(values)), mean_abs(values), median_abs(values), worst, name, spread)


def over_the_limits(means: Mapping[str, float | None]) -> list[str]:
    """Those of E2E, TTFT and ITL whose error is beyond the limits of a run (PASS_PCT)."""
    return [name for name in MEANS if (value := means.get(name)) is not None and abs(value) > PASS_PCT[name]]


def by_fold(rows: Sequence[HeldOutRuns], kind: str, title: str, repeat: Sequence[str]) -> Exhibit:
    """The errors of each fold of a kind, a row each. `repeat`: the commands that compute them again."""
    of_kind = [row for row in rows if row.kind == kind]
    cells = []
    for fold in dict.fromkeys(row.fold for row in of_kind):
        members = [row for row in of_kind if row.fold == fold]
        f = figures_of([(row.experiment, row.errors["e2e"]) for row in members])
        cells.append([fold, f.runs, *means_of(members).values(), f.worst, f.worst_in])
    columns = [words("without"), integers("runs"), MEAN_ERRORS, figures("+.1f", "worst E2E"), words("worst run")]
    return Exhibit.of(title, columns, cells, *repeat)


def baselines_held_out(subject: Subject) -> tuple[BaselineHeldOut, ...]:
    """The baselines of the run's last validation, if it has one and the program is its champion.

    Raises InputError if its file is damaged.
    """
    if subject.run is None or subject.trust is None:
        return ()
    path = subject.run.path / FILES[SEARCHED]
    try:
        raw = read_figures(path)
    except OSError:
        return ()
    return read_by(_baselines, raw, path)


def _baselines(raw: Mapping[str, Any]) -> tuple[BaselineHeldOut, ...]:
    rows = [row | {"kind": kind} for kind, of_kind in raw["summary"].items() for row in of_kind["baselines"]]
    baselines: tuple[BaselineHeldOut, ...] = reader_of(tuple[BaselineHeldOut, ...])(rows)
    return baselines
