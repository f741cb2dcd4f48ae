"""Runs of the Python interface: what a search kept and reached, as data frames."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import pandas as pd

from archive.elite import Elite
from evaluator.score import SCORE_SEEDS, error_rows, predictions, score_set
from evolve.api import arguments
from evolve.api.program import Program
from evolve.output.frames import frame
from evolve.plan.forecast import ObservedErrors
from evolve.plan.prediction_rows import STAGES, stage_rows
from evolve.run import folder
from evolve.run.folder import check_data, open_run
from evolve.run.program import of_run
from evolve.run.validations import FILES, SEARCHED, read_figures
from evolve.search.llm import ledger
from evolve.search.llm.ledger import LedgerRow, beyond_budget
from evolve.summary.result import observed_means_ms
from evolve.summary.rows import ELITES, ERRORS, GRID, PROGRAMS, front_rows, grid_rows, program_rows
from evolve.summary.rows import error_rows as run_error_rows
from evolve.summary.searched import Searched
from evolve.validate.rows import VALIDATION, validation_rows
from simulator.common.records import read_by
from simulator.language.complete import complete
from simulator.serving.experiment import Experiment

MOST_ID = 10**12  # more proposals than any run has


class Run:
    """A run, read from its folder when one of its properties is first used; each is kept then.

    An unfinished run is shown as far as it is; load it again to see more. The columns of all frames are explained in
    docs/reference/tables.md.

    >>> run = evolve.load_run(path)
    >>> run.programs[["id", "operator", "verdict"]].head(3)
       id         operator verdict
    0   0  seed:components  scored
    1   1       seed:floor  scored
    2   2     seed:kernels  scored
    """

    def __init__(self, opened: folder.RunFolder) -> None:
        self._run = opened

    @property
    def path(self) -> Path:
        """The run's folder.

        >>> evolve.load_run(path).path == path
        True
        """
        return self._run.path

    @cached_property
    def programs(self) -> pd.DataFrame:
        """A row for each candidate: errors, complexity, parents, operator, and what became of it.

        >>> len(evolve.load_run(path).programs)
        30
        """
        return frame(PROGRAMS, program_rows(self._searched.outcomes, self._searched.archive, self._champion))

    @cached_property
    def front(self) -> pd.DataFrame:
        """The Pareto front, from the simplest program to the largest.

        >>> bool(evolve.load_run(path).front["complexity"].is_monotonic_increasing)
        True
        """
        return frame(ELITES, front_rows(self._searched.archive))

    @cached_property
    def grid(self) -> pd.DataFrame:
        """The cells of the MAP-Elites grid that hold a program.

        >>> list(evolve.load_run(path).grid.columns[:3])
        ['operations_bin', 'features_bin', 'id']
        """
        return frame(GRID, grid_rows(self._searched.archive))

    @cached_property
    def champion(self) -> Program | None:
        """The program that the run's rule chooses; None if nothing could be scored.

        >>> evolve.load_run(path).champion.name.startswith(str(path))
        True
        """
        return self.program(self._champion.id) if self._champion else None

    def program(self, number: int) -> Program:
        """A program by its id in `programs`. Raises InputError if the run has none of that id, or refused it.

        >>> evolve.load_run(path).program(1).features
        ('b.kv_read_us', 'b.weight_read_us', 's.weights_us')
        """
        ident = arguments.whole("number", number, 0, MOST_ID)
        return Program.of(of_run(self._run, self._searched.outcomes, ident))

    @cached_property
    def errors(self) -> pd.DataFrame:
        """The champion's errors on every experiment of the run, fitted or not.

        From the report of a finished run; computed where there is none, as in the shipped one. Raises InputError if the
        run's experiments are then not those that it was made on.

        >>> list(evolve.load_run(path).errors["experiment"])
        ['dense-chat', 'dense-code', 'sparse-chat', 'dense-overloaded']
        """
        report, best = self._searched.report, self._champion
        if best is None:
            return frame(ERRORS, [])
        if report:
            return frame(ERRORS, run_error_rows(report.errors, report.fitted, report.quality, report.observed_ms))
        fitted, others = self._experiments
        every = [*fitted, *others]
        rows = error_rows(best.program, score_set(every))
        observed = {e.id: observed_means_ms(e) for e in every}
        qualities = {e.id: e.quality for e in every}
        return frame(ERRORS, run_error_rows(rows, [e.id for e in fitted], qualities, observed))

    @cached_property
    def stages(self) -> pd.DataFrame:
        """The champion's predictions for every load stage of the run's experiments, with what was observed.

        Raises InputError if the run's experiments are not those that it was made on.

        >>> evolve.load_run(path).stages[["experiment", "stage", "rate_rps"]].head(2)
           experiment  stage  rate_rps
        0  dense-chat      1       5.0
        1  dense-chat      2      10.0
        """
        best = self._champion
        if best is None:
            return frame(STAGES, [])
        every = [e for part in self._experiments for e in part]
        compared = []
        for e, p in zip(every, predictions(complete(best.program), score_set(every, SCORE_SEEDS)), strict=True):
            observed = e.observed.stages if e.observed and e.observed.stages else (None,) * len(e.workload.stages)
            compared.append([ObservedErrors(*pair) for pair in zip(p.predicted.stages, observed, strict=True)])
        return frame(STAGES, stage_rows(every, compared))

    @cached_property
    def validation(self) -> pd.DataFrame:
        """The held-out errors that `evolve validate` measured; no rows if it did not.

        >>> len(evolve.load_run(path).validation)
        0
        """
        file = self.path / FILES[SEARCHED]
        rows = read_by(lambda raw: list(validation_rows(raw)), read_figures(file), file) if file.exists() else []
        return frame(VALIDATION, rows)

    @cached_property
    def ledger(self) -> pd.DataFrame:
        """The requests to language models; no rows for an offline run.

        >>> len(evolve.load_run(path).ledger)
        0
        """
        return frame(LedgerRow, ledger.rows(self._run.calls(), beyond_budget(self._run)))

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @cached_property
    def _searched(self) -> Searched:
        return Searched(self._run, self._run.outcomes())

    @property
    def _champion(self) -> Elite | None:
        return self._searched.best

    @cached_property
    def _experiments(self) -> tuple[list[Experiment], list[Experiment]]:
        """The experiments that the run fits, and the others, which it only predicts."""
        fitted, others = self._run.experiments()
        check_data(self._run, fitted)
        return fitted, others


def load_run(path: str | Path) -> Run:
    """The run in this folder, finished or not. Raises InputError if there is none, or if its files are damaged.

    >>> evolve.load_run("seeds")
    Traceback (most recent call last):
    simulator.common.errors.InputError: seeds: is not a run (no run.json, config.yaml): `evolve list` names the runs
    """
    return Run(open_run(arguments.path("path", path, "the folder of a run")))
