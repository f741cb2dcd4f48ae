"""Held-out errors: a row for every experiment that a fold holds out, and the result of the fold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from evaluator import baselines
from evaluator.cells import cell_of
from evaluator.fit.fit import fit, fit_set
from evaluator.intervals import BETWEEN, STATISTICS, Residual, disagreements, figure_of
from evaluator.judge import gates
from evaluator.metrics import error_pct, mean, mean_abs
from evaluator.score import MEANS, SCORE_SEEDS, errors, predictions, score_set
from evaluator.statistics import bias
from evolve.run.beyond import factors, outside
from evolve.run.program import Source
from evolve.run.ranges import ranges_of
from evolve.validate.folds import Fold, Winner
from simulator.common.json import JsonObject
from simulator.common.records import to_json
from simulator.language.ir import Program
from simulator.language.measure import constants, features, operations
from simulator.language.opcodes import assemble
from simulator.language.parse import parse
from simulator.serving.experiment import Experiment
from simulator.serving.observations import Observation, Observed

RANKED = ("e2e", "e2e_p99")  # figures by which planners compare runs
BASELINE_FIGURES = dict.fromkeys((*MEANS, *RANKED))
LATER = "_later"  # suffix of figures averaged over the stages after the first, which has the cold starts
FIGURES = (*STATISTICS, *(name + LATER for name in STATISTICS))
ByFigure = Mapping[str, float | None]  # None where nothing was observed, or nothing completes


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A program's errors on one experiment: of FIGURES, and of STATISTICS in each observed load stage."""

    errors: ByFigure
    stages: Sequence[ByFigure] = ()


@dataclass(frozen=True, slots=True)
class Compared:
    """Observed figures of a run or of one of its load stages, our errors, and those of each baseline."""

    name: str
    observed_ms: ByFigure  # of STATISTICS
    errors: ByFigure  # of STATISTICS at least
    baselines: Mapping[str, ByFigure]  # of MEANS and RANKED


@dataclass(frozen=True, slots=True)
class Rival:
    """The errors on one experiment of a program that is compared with ours; its constants are refitted in each fold."""

    label: str
    errors: ByFigure  # of MEANS


@dataclass(frozen=True, slots=True)
class HeldOutRow:
    """The errors on one held-out experiment."""

    kind: str  # of the fold
    fold: str  # its name
    experiment: str  # its id
    model: str
    cell: str  # see evaluator.cells
    workload: str
    tp: int
    moe: bool
    champion: str | None  # key of the fold's program; None if nothing could be scored
    observed: bool  # whether a mean E2E latency was
    observed_ms: ByFigure  # of STATISTICS, over the whole run
    errors: ByFigure  # of FIGURES
    outside: bool  # whether it lies outside the ranges of what the fold fitted (evolve.run.beyond)
    spread: ByFigure  # of STATISTICS, of the fold's ensemble (evaluator.intervals); empty without one
    baselines: Mapping[str, ByFigure]  # of MEANS and RANKED, for each baseline, fitted on the same training experiments
    against: Rival | None = None
    stages: Sequence[Compared] = ()  # its load stages; none where only the last one is held out
    factors_beyond: Mapping[str, float] = field(default_factory=dict)  # of each range (evolve.run.beyond)
    closed: bool = False  # whether its load is a fixed concurrency

    @property
    def whole(self) -> Compared:
        return Compared(self.experiment, self.observed_ms, self.errors, self.baselines)

    @property
    def residual(self) -> Residual:
        fold, ratios = f"{self.kind}{BETWEEN}{self.fold}", log_ratios(self.errors)
        return Residual(fold, self.experiment, ratios, self.spread, self.closed, self.cell)

    def to_json(self) -> JsonObject:
        names = (
            "kind",
            "fold",
            "experiment",
            "model",
            "cell",
            "workload",
            "tp",
            "moe",
            "champion",
            "observed",
            "outside",
        )
        row = {name: getattr(self, name) for name in names} | dict(self.errors)
        row |= {"spread": dict(self.spread), "baselines": to_json(self.baselines)}
        return row | ({"against": {"label": self.against.label, **self.against.errors}} if self.against else {})


@dataclass(frozen=True, slots=True)
class Invariant:
    """An invariant of the gates, checked for the fold's program on the held-out deployments."""

    name: str
    passes: bool
    measured: str


@dataclass(frozen=True, slots=True)
class FoldResult:
    """The result of a fold."""

    fold: Fold
    fitted: Sequence[str]  # ids of the training experiments
    mean_abs_error_pct: ByFigure
    bias_pct: ByFigure
    winner: Winner | None
    gates: Sequence[Invariant]

    def to_json(self) -> JsonObject:
        champion = None
        if (w := self.winner) is not None:
            of_form = {"operations": operations(w.program), "constants": constants(w.program)}
            counts = {"candidates": w.candidates, **of_form, "fields": list(features(w.program))}
            named = {"key": w.key, "id": w.id, "text": w.text}
            champion = {**named, **counts, "fitted_mean_abs_error_pct": dict(w.trained)}
        fold = self.fold
        return {
            "kind": fold.kind,
            "name": fold.name,
            "folder": fold.folder,
            "held_out": [e.id for e in fold.held],
            "last_stage_only": fold.last_stage,
            "champion": champion,
            **{name: to_json(getattr(self, name)) for name in ("fitted", "mean_abs_error_pct", "bias_pct", "gates")},
        }


@dataclass(frozen=True, slots=True)
class Unfitted:
    """The errors of the run's champion on an experiment that the run does not fit, an overloaded one above all."""

    experiment: str
    quality: str
    completed: tuple[int | None, int | None]  # requests, predicted and observed
    failed: tuple[int | None, int | None]  # requests, predicted and observed
    errors: ByFigure  # of MEANS

    def to_json(self) -> JsonObject:
        pairs = {"completed": self.completed, "failed": self.failed}
        counts = {name: dict(zip(("predicted", "observed"), pair, strict=True)) for name, pair in pairs.items()}
        return {"experiment": self.experiment, "quality": self.quality, **counts, **self.errors}


def held_out_errors(program: Program, held: Sequence[Experiment], last_stage: bool) -> list[HeldOut]:
    """The errors on each experiment: (predicted - observed)/observed, percent.

    Predictions are averaged over the arrival seeds of reports. With `last_stage`, each experiment is replayed whole but
    only its last stage is compared.
    """
    rows = list[HeldOut]()
    for prediction, e in zip(predictions(program, score_set(held)), held, strict=True):
        predicted, observed = prediction.predicted, e.observed or Observed(None, ())
        if last_stage:
            later: dict[str, float | None] = {name: None for name in FIGURES if name.endswith(LATER)}
            rows.append(HeldOut(_errors([predicted.stages[-1]], list(observed.stages[-1:])) | later))
            continue
        whole = _errors([s for s in (predicted.summary,) if s], [s for s in (observed.summary,) if s])
        after_first = _errors(predicted.stages[1:], observed.stages[1:])
        stages = [_errors([p], [o]) for p, o in zip(predicted.stages, observed.stages, strict=False)]
        rows.append(HeldOut(whole | {name + LATER: value for name, value in after_first.items()}, stages))
    return rows


def observed_figures(observed: Observation | None) -> dict[str, float | None]:
    """The observed figures of STATISTICS of a run or of a load stage in ms."""
    return {name: figure_of(observed, name) for name in STATISTICS}


def log_ratios(errors_pct: ByFigure) -> dict[str, float | None]:
    """log(observed / predicted) of each of STATISTICS, from its error in percent."""
    known = {name: errors_pct[name] for name in STATISTICS}
    return {name: None if e is None else -math.log1p(e / 100.0) for name, e in known.items()}


def _errors(predicted: Sequence[Observation], observed: Sequence[Observation]) -> dict[str, float | None]:
    """The error of each statistic, averaged over these observations first; None if one is missing or there are none."""

    def average(observations: Sequence[Observation], latency: str, statistic: str) -> float | None:
        return mean([getattr(getattr(o, latency), statistic) for o in observations]) if observations else None

    return {
        name: error_pct(average(predicted, *where), average(observed, *where)) for name, where in STATISTICS.items()
    }


def rows_of(fold: Fold, winner: Winner | None, train: Sequence[Experiment], against: Source | None) -> list[HeldOutRow]:
    """A row for every experiment that the fold holds out.

    `train`: the fold's training experiments. `against`: a program to compare with ours, refitted on them.
    """
    ours = [HeldOut(dict.fromkeys(FIGURES)) for _ in fold.held]
    spreads: list[ByFigure] = [{} for _ in fold.held]
    lies_outside = [False for _ in fold.held]
    beyond: list[Mapping[str, float]] = [{} for _ in fold.held]
    if winner:
        program, ranges = winner.program, ranges_of(train)
        ours = held_out_errors(program, fold.held, fold.last_stage)
        once = predictions(program, score_set(fold.held, SCORE_SEEDS[:1]))
        lies_outside = [bool(outside([ranges], e, p)) for e, p in zip(fold.held, once, strict=True)]
        beyond = [factors([ranges], e, p) for e, p in zip(fold.held, once, strict=True)]
        if winner.ensemble is not None:
            others = [parse(text) for text in winner.ensemble]
            found = disagreements(program, others, fold.held, SCORE_SEEDS[0], last_stage=fold.last_stage)
            spreads = [d.spread for d in found]
    answers: dict[str, dict[str, HeldOut]] = {e.id: {} for e in fold.held}
    for task in baselines.tasks(train, fold.held):
        rows = held_out_errors(baselines.program_of(task), task.predicted, fold.last_stage) if task.predicted else []
        for e, found_there in zip(task.predicted, rows, strict=True):
            answers[e.id][task.name] = found_there
    theirs: dict[str, Rival] = {}
    if against is not None:
        program = fit(against.complete, fit_set(train), allow_hostile=True).program
        label = f"{against.name}, form refitted"
        rows = held_out_errors(program, fold.held, fold.last_stage)
        theirs = {e.id: Rival(label, _only(row, MEANS)) for e, row in zip(fold.held, rows, strict=True)}
    found_rows = []
    each = zip(fold.held, ours, lies_outside, beyond, spreads, strict=True)
    for e, row, is_outside, factors_beyond, spread in each:
        summary = e.observed.summary if e.observed else None
        of_run = e.id, e.model, cell_of(e), e.workload.name, e.engine.tensor_parallel, bool(e.facts["is_moe"])
        about = fold.kind, fold.name, *of_run
        observed = bool(summary and summary.e2e_ms.mean), observed_figures(summary)
        known = {name: _only(answer, BASELINE_FIGURES) for name, answer in answers[e.id].items()}
        stages = _stages(e, row, answers[e.id])
        rival = theirs.get(e.id)
        champion = winner.key if winner else None
        held = HeldOutRow(*about, champion, *observed, row.errors, is_outside, spread, known, rival, stages)
        found_rows.append(replace(held, factors_beyond=factors_beyond, closed=e.workload.closed))
    return found_rows


def _only(row: HeldOut, names: Iterable[str]) -> dict[str, float | None]:
    return {name: row.errors[name] for name in names}


def _stages(e: Experiment, ours: HeldOut, baselines: Mapping[str, HeldOut]) -> list[Compared]:
    observed = e.observed.stages if e.observed else ()
    stages = []
    for i, (stage, errors_pct) in enumerate(zip(observed, ours.stages, strict=False)):
        theirs = {name: row.stages[i] for name, row in baselines.items()}
        stages.append(Compared(f"{e.id}, stage {i + 1}", observed_figures(stage), errors_pct, theirs))
    return stages


def result_of(fold: Fold, winner: Winner | None, train: Sequence[Experiment], rows: Sequence[HeldOutRow]) -> FoldResult:
    judged: list[gates.Gate] = []
    if winner:
        program = winner.program
        judged = gates.judge(assemble(program), program.theta, gates.deployments_of(fold.held))
    return FoldResult(
        fold,
        [e.id for e in train],
        {name: mean_abs([r.errors[name] for r in rows]) for name in FIGURES},
        {name: bias([r.errors[name] for r in rows]) for name in FIGURES},
        winner,
        [Invariant(g.name, g.passes, g.measured or g.complaint) for g in judged],
    )


def never_fitted(champion: str, experiments: Sequence[Experiment]) -> list[Unfitted]:
    """The errors of a run's champion, a program text, on experiments that the run does not fit."""
    rows = []
    for prediction, e in zip(predictions(parse(champion), score_set(experiments)), experiments, strict=True):
        predicted, observed = prediction.predicted.summary, e.observed.summary if e.observed else None
        completed = predicted.completed if predicted else None, observed.completed if observed else None
        failed = predicted.failed if predicted else None, observed.failed if observed else None
        figures = {name: getattr(errors(prediction, e), name) for name in MEANS}
        rows.append(Unfitted(e.id, e.quality, completed, failed, figures))
    return rows
