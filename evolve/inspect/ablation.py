"""`evolve show --ablate`: each part of a program dropped in turn, the rest fitted again, and what that costs.

The constants are fitted again to all runs (in sample). Folds leave out each model, TP degree, architecture and workload
in turn; fits to the rest predict its runs by replay (held out). The held-out error decides: a part that only lowers the
error in sample does not earn its place. The form itself was chosen before, often with these runs in sight, and no refit
takes that back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from archive.score import Errors
from evaluator.fit.fit import fit_set
from evaluator.fit.loss import FitSet
from evaluator.fit.uncertainty import LEAST_CLUSTERS
from evaluator.group_out import KINDS, MOST_PCT, capped, fitted_without, groups
from evaluator.metrics import present
from evaluator.parts import Dropped, dropped_parts
from evaluator.score import MEANS, SCORE_SEEDS, ScoreSet, error_rows, score_set, summarise
from evaluator.statistics import clustered_mean_interval, mean_interval
from evolve import __version__
from evolve.run.data import fittable, nothing_to_fit
from evolve.run.measurements import refuse_absurd
from evolve.run.program import Source
from evolve.run.use import saw
from evolve.search.pool.pool import Pool
from evolve.search.pool.process import WorkerCall, parcel_of
from simulator.common.errors import InputError
from simulator.common.json import JsonObject
from simulator.common.records import fields_to_json, record_class, stored
from simulator.common.text import counted
from simulator.language.ir import Program
from simulator.language.key import key
from simulator.language.measure import constants, operations
from simulator.language.simplify import brief, lean
from simulator.serving.digests import data_hash
from simulator.serving.experiment import Experiment

FOLDS = (*KINDS, "workloads")
MODELS, RUNS = "models", "runs"  # what is resampled; where the runs are all of one kind, each run is a fold of RUNS
# An error may grow by this share of itself for a simpler program: the rule by which searches choose a champion.
NEGLIGIBLE = 0.02
SEED = 24  # of the bootstrap
ACTS = 1e-3  # relative change of a mean latency, without a refit, from which on a part acts on a run
VERDICTS = EARNS, DOES_NOT, UNDECIDED, NEEDED = "earns its place", "does not", "undecided", "needed"


@dataclass(frozen=True, slots=True)
class Measured:
    """A form's errors in percent after its refits. in_sample: on the fitted runs, by their order. held_out: by kind of
    fold, by their order too, each run predicted by the fit that left it out. operations, constants: of the form after
    the fit to all runs, without terms that it set to 0."""

    in_sample: tuple[Errors, ...]
    held_out: Mapping[str, tuple[Errors, ...]]
    operations: int
    constants: int

    @property
    def mean_error(self) -> float:
        return float(np.mean([_size(r) for r in self.in_sample]))

    @property
    def of_runs(self) -> np.ndarray:
        """float64[runs]: each run's held-out error, the mean over the kinds of folds."""
        sizes = np.array([[_size(r) for r in rows] for rows in self.held_out.values()])
        return np.asarray(sizes.mean(axis=0))

    @property
    def by_kind(self) -> dict[str, float]:
        return {kind: float(np.mean([_size(r) for r in rows])) for kind, rows in self.held_out.items()}

    def to_json(self) -> JsonObject:
        scores = {name: summarise(rows) for name, rows in {"in_sample": self.in_sample, **self.held_out}.items()}
        errors = {name: {latency: getattr(score, latency) for latency in MEANS} for name, score in scores.items()}
        held_out = {"held_out_pct": float(self.of_runs.mean()), "by_kind_pct": self.by_kind}
        sizes = {"operations": self.operations, "constants": self.constants}
        return {"mean_error_pct": self.mean_error, **held_out, "mean_abs_error_pct": errors, **sizes}


@dataclass(frozen=True, slots=True)
class ProgramPart:
    """The cost of dropping a part. kind, method, text: see evaluator.parts.Dropped; measured: the form without it,
    None if no step is left (verdict NEEDED).

    difference_pct: of the held-out errors, without it less with it, the mean over runs; interval_pct, by_model_pct:
    its 95 % interval, runs or whole models resampled; None for fewer than two. acts_on: models whose latencies it
    changes.
    """

    kind: str
    method: str
    text: str
    measured: Measured | None
    verdict: str
    difference_pct: float | None = None
    interval_pct: tuple[float, float] | None = None
    by_model_pct: tuple[float, float] | None = None
    acts_on: tuple[str, ...] = ()


@record_class
class Ablation:
    """The ablation of a program of this name and key on these runs.

    seen: how many of them the form was chosen or fitted with, None if that is unknown. form_of: the program that this
    one is a refit of, None if it is none. folds: by kind, how many. full: the whole form, fitted again as the others
    are. resampled: what the intervals that decide resample.
    """

    name: str
    key: str
    data: str
    runs: tuple[str, ...]
    models: tuple[str, ...]
    seen: int | None
    form_of: str | None = stored(hidden=True)
    folds: Mapping[str, int]
    resampled: str
    full: Measured
    parts: tuple[ProgramPart, ...]

    @property
    def hindsight(self) -> str:
        fitted = f"{self.seen or 0} of these {len(self.runs)} runs"
        if self.form_of is not None:
            return (
                f"The form is that of {self.form_of}, its constants fitted on {fitted}. Only constants are held out "
                "here, so its parts look better than on new kinds of runs."
            )
        if self.seen == 0:
            return "The program has no record of these runs, but its form may have been chosen with others like them."
        known = f"The form was chosen with {fitted} in sight"
        if self.seen is None:
            known = "It is not known with which runs this form was chosen"
        return f"{known}: only its constants are held out, so its parts look better here than on new kinds of runs."

    def interval_pct(self, part: ProgramPart) -> tuple[float, float] | None:
        """The interval of the part's difference that decides, see `resampled`."""
        return part.by_model_pct if self.resampled == MODELS else part.interval_pct

    def to_json(self) -> JsonObject:
        named = {"engine": __version__, "seeds": list(SCORE_SEEDS), "negligible_pct": 100.0 * NEGLIGIBLE}
        return {**named, **fields_to_json(self), "hindsight": self.hindsight}


_Data = tuple[FitSet, ScoreSet, Mapping[str, Sequence[Sequence[int]]]]


def ablate(source: Source, experiments: Sequence[Experiment], pool: Pool) -> Ablation:
    """The cost of dropping each part of the program, on the runs that can be fitted.

    Raises InputError if there are fewer than two such runs.
    """
    fitted = fittable(experiments)
    if not fitted:
        raise InputError(nothing_to_fit(experiments))
    if len(fitted) < 2:
        raise InputError(
            f"{fitted[0].id} is the only run that can be fitted, and an ablation leaves runs out: give "
            "experiments with several"
        )
    refuse_absurd(fitted)
    folds, parts = runs_left_out(fitted), dropped_parts(source.program)
    forms = [source.complete, *(part.program for part in parts if part.program)]
    results = iter(_carried_out(forms, fitted, folds, pool))
    full, unchanged = next(results)
    models = tuple(e.model for e in fitted)
    record = source.record
    return Ablation(
        name=source.name,
        key=key(source.complete),
        data=data_hash(fitted),
        runs=tuple(e.id for e in fitted),
        models=tuple(dict.fromkeys(models)),
        seen=None if record is None else sum(saw(record, e) is True for e in fitted),
        form_of=record.fitted_from if record else None,
        folds={kind: len(of_kind) for kind, of_kind in folds.items()},
        resampled=MODELS if _by_model(models) else RUNS,
        full=full,
        parts=tuple(
            _part(part, full, unchanged, *next(results), models)
            if part.program
            else ProgramPart(part.kind, part.method, part.text, None, NEEDED)
            for part in parts
        ),
    )


def runs_left_out(fitted: Sequence[Experiment]) -> dict[str, list[list[int]]]:
    """The positions of the runs that each fold leaves out, by kind of fold; each run in turn if they are all of one
    kind."""
    several = {kind: list(of_kind.values()) for kind, of_kind in groups(fitted, FOLDS).items()}
    return several or {RUNS: [[i] for i in range(len(fitted))]}


def verdict(differences_pct: np.ndarray, interval_pct: tuple[float, float] | None, full_pct: float) -> str:
    """The verdict on a part by its cost in the held-out error of each run, and the interval of the mean.

    Undecided if no run shows the part, or if the interval has both no cost and one that matters.
    """
    if interval_pct is None or not differences_pct.any():
        return UNDECIDED
    low, high = interval_pct
    if high <= NEGLIGIBLE * full_pct:
        return DOES_NOT
    return EARNS if low > 0.0 else UNDECIDED


def _by_model(models: Sequence[str]) -> bool:
    """True if intervals resample whole models, because runs of a model share their errors."""
    return len(set(models)) >= LEAST_CLUSTERS


def _part(
    part: Dropped,
    full: Measured,
    unchanged: Sequence[Errors],
    measured: Measured,
    bare: Sequence[Errors],
    models: Sequence[str],
) -> ProgramPart:
    """The cost of a part; `unchanged` and `bare`: errors of the program and of the form without it, not refitted."""
    differences = measured.of_runs - full.of_runs
    of_runs = mean_interval(differences.tolist(), SEED)
    of_models = clustered_mean_interval(differences.tolist(), models, SEED)
    decides = of_models if _by_model(models) else of_runs
    acts = [m for m, a, b in zip(models, unchanged, bare, strict=True) if _apart(a, b)]
    found = verdict(differences, decides, float(full.of_runs.mean()))
    mean, acts_on = float(differences.mean()), tuple(dict.fromkeys(acts))
    return ProgramPart(part.kind, part.method, part.text, measured, found, mean, of_runs, of_models, acts_on)


def _size(errors: Errors) -> float:
    """The mean absolute error over the latencies, none above MOST_PCT, and as large where nothing completes."""
    known = present([getattr(capped(errors), name) for name in MEANS])
    return sum(known) / len(known) if known else MOST_PCT


def _apart(one: Errors, other: Errors) -> bool:
    pairs = [(getattr(one, name), getattr(other, name)) for name in MEANS]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    return len(known) < sum(a is not None for a, _ in pairs) or any(abs(b - a) > ACTS * (100.0 + a) for a, b in known)


def _carried_out(
    forms: Sequence[Program], fitted: Sequence[Experiment], folds: Mapping[str, Sequence[Sequence[int]]], pool: Pool
) -> list[tuple[Measured, tuple[Errors, ...]]]:
    """The errors of each form. The data go to the workers once."""
    fits = 1 + sum(map(len, folds.values()))
    text = f"{counted(len(fitted), 'run')} are prepared for {counted(len(forms), 'form')} in {fits} fits each ..."
    pool.line.show(text)
    data = parcel_of(fit_set(fitted), score_set(fitted), folds)
    return pool.all_of([WorkerCall(_measured, (form,), parcel=data) for form in forms], "forms")


def _measured(data: _Data, form: Program) -> tuple[Measured, tuple[Errors, ...]]:
    fit, score, folds = data
    whole = fitted_without(form, fit)
    held_out = {}
    for kind, of_kind in folds.items():
        rows = dict[int, Errors]()
        for held in of_kind:
            train = fit.subset([i for i in range(len(fit.experiments)) if i not in held])
            rows |= zip(held, error_rows(fitted_without(form, train), score.subset(held)), strict=True)
        held_out[kind] = tuple(rows[i] for i in range(len(rows)))
    short = brief(lean(whole))
    measured = Measured(tuple(error_rows(whole, score)), held_out, operations(short), constants(short))
    return measured, tuple(error_rows(form, score))
