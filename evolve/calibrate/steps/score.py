"""`evolve fit --score-steps`: a program's step time against the measured time of scheduler steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from evaluator.fit.steps import check_recorded
from evolve import __version__
from evolve.calibrate.steps.estimate import ASSUMED
from evolve.calibrate.steps.figures import GROUPS, Grouped, StepFigures, grouped
from evolve.calibrate.steps.sources import Sources
from evolve.calibrate.steps.targets import ESTIMATED, NEIGHBOUR, Targets, cycle_targets, duration_targets, together
from evolve.output.columns import figures, words
from evolve.output.printing import prose, show
from evolve.output.table import Row, Table, number, row, section
from evolve.output.terms import legend
from evolve.run.data import experiments_of
from evolve.run.program import Source
from simulator.clock.bind import bind
from simulator.common.errors import InputError
from simulator.common.json import JsonObject
from simulator.language.ir import Program
from simulator.language.key import key
from simulator.language.opcodes import assemble
from simulator.language.unparse import unparse
from simulator.serving.bundled import FILES
from simulator.serving.digests import data_hash, measurement_digest
from simulator.serving.splits import SPLITS

TARGETS = {"cycle": cycle_targets, "duration": duration_targets}
LABELS = {
    "cycle": "cycle time, the start of a step to that of the next",
    "duration": "CPU time of schedule(), not the step's cost",
}
LEGEND = """\
phase and load: of the batch (load: requests in it, the same bins for all runs); split: of the sampled step, the first
60 % of a run's are train, the next 20 % valid; own batch: that of the measured step, neighbour's: of the one after;
evidence: how sure the batch is, as `evolve ingest` found it from journeys, or estimated from a summary."""
_FIGURES = (
    *figures(".2f", "MAPE"),
    *figures(".3f", "r"),
    *figures("+.2f", "bias"),
    *figures(".0f", "predicted us", "observed us"),
)


@dataclass(frozen=True, slots=True)
class FittedOn:
    """The runs that the program was fitted on, by id: on their steps, and on their mean latencies; None if unknown."""

    steps_of: tuple[str, ...] | None
    means_of: tuple[str, ...] | None


@dataclass(frozen=True)
class RunScore:
    """The figures of one run, and the steps that they rest on."""

    targets: Targets
    grouped: Grouped

    @property
    def id(self) -> str:
        return self.targets.run.experiment.id

    def to_json(self) -> JsonObject:
        t, s = self.targets, self.targets.run.steps
        return {
            "id": self.id,
            "file": s.file,
            "steps_digest": s.digest(),
            "asynchronous": t.run.asynchronous,
            "rows": len(s.step_id),
            "sampled": int(s.sampled.sum()),
            "mended": dict(s.counts),
            "candidates": t.candidates,
            "usable": t.usable,
            "dropped": t.dropped,
            **self.grouped.to_json(),
            "steps": {name: t.splits[name] for name in SPLITS},
        }


@dataclass(frozen=True)
class StepScores:
    """A program's figures on `split` of the runs, one by one and over all. target: what is measured, a key of TARGETS.

    assumed: what the figures rest on beyond the tables, a line each. left_out: what became of the other tables.
    """

    source: Source
    data: str
    target: str
    split: str
    fitted: FittedOn
    runs: tuple[RunScore, ...]
    overall: Grouped
    assumed: tuple[str, ...]
    left_out: tuple[str, ...]

    @property
    def candidates(self) -> int:
        return sum(run.targets.candidates for run in self.runs)

    @property
    def usable(self) -> int:
        return sum(run.targets.usable for run in self.runs)

    def to_json(self) -> JsonObject:
        return {
            "engine": __version__,
            "data": self.data,
            "seeds": [],
            "name": self.source.name,
            "program": unparse(self.source.complete),
            "key": key(self.source.complete),
            "target": self.target,
            "target_is": LABELS[self.target],
            "split": self.split,
            "fitted": asdict(self.fitted),
            "experiments": [run.to_json() for run in self.runs],
            "overall": {"candidates": self.candidates, "usable": self.usable, **self.overall.to_json()},
            "assumed": list(self.assumed),
            "left_out": list(self.left_out),
        }


def predicted_us(program: Program, targets: Targets) -> np.ndarray:
    """float64[rows]: the program's step time on each batch, on the run's deployment."""
    code = assemble(program)
    check_recorded(code, targets.raw)
    return bind(code, program.theta, targets.run.experiment.facts).steps_us(targets.raw)


def score_steps(source: Source, sources: Sources, target: str = "cycle", split: str = "all") -> StepScores:
    """The figures of every run and over all of them.

    Raises InputError if no step is left, or a prediction is not finite.
    """
    targets = [TARGETS[target](run).of(split) for run in sources.runs]
    if not any(len(t.step) for t in targets):
        dropped = sum((Counter(t.dropped) for t in targets), Counter[str]())
        reasons = ", ".join(f"{why} ({n})" for why, n in dropped.items()) or "no two consecutive steps were sampled"
        files = ", ".join(run.steps.file for run in sources.runs)
        raise InputError(f"no usable step of split {split} in {files}: {reasons}")
    predictions = [predicted_us(source.complete, t) for t in targets]
    for t, p in zip(targets, predictions, strict=True):
        if not np.isfinite(p).all():
            step = int(t.step[~np.isfinite(p)][0])
            raise InputError(
                f"{source.name}: step_time is not finite on step {step} of {t.run.experiment.id}: change the program"
            )
    data = data_hash([run.experiment for run in sources.runs])
    runs = tuple(RunScore(t, _grouped([t], [p])) for t, p in zip(targets, predictions, strict=True))
    overall, assumed = _grouped(targets, predictions), tuple(_assumed(targets))
    fitted = fitted_on(source, sources)
    return StepScores(source, data, target, split, fitted, runs, overall, assumed, sources.left_out)


def fitted_on(source: Source, sources: Sources) -> FittedOn:
    """Which of these runs the program was fitted on, by its record."""
    record = source.record
    if record is None:
        return FittedOn(None, None)
    steps = set(record.steps.runs.values()) if record.steps else set()
    # Runs are recognised by what was measured, as their names may differ. The record of a run's program has no digests:
    # its experiments are taken as the shipped ones of that name.
    digests = record.measured or {e.id: measurement_digest(e) for e in experiments_of(FILES)}
    means = {digests[name] for name in record.fitted if digests.get(name)}
    return FittedOn(
        tuple(run.experiment.id for run in sources.runs if run.steps.digest() in steps),
        tuple(run.experiment.id for run in sources.runs if measurement_digest(run.experiment) in means),
    )


def _grouped(targets: Sequence[Targets], predictions: Sequence[np.ndarray]) -> Grouped:
    columns = ("observed_us", "raw", "split", "batch", "evidence")
    return grouped(np.concatenate(predictions), {name: together(targets, name) for name in columns})


def _assumed(targets: Sequence[Targets]) -> list[str]:
    ids: dict[str, list[str]] = {}
    for t in targets:
        if t.run.assumed:
            ids.setdefault(t.run.assumed, []).append(t.run.experiment.id)
    lines = [f"{assumption} ({', '.join(runs)})." for assumption, runs in ids.items()]
    estimated = sum(int((t.evidence == ESTIMATED).sum()) for t in targets)
    if estimated:
        moved = sum(t.moved for t in targets)
        nearest = f"; in {moved} the workload does not allow the length that the blocks give: the nearest was taken"
        lines.append(f"{ASSUMED} {estimated} batches were estimated{nearest if moved else ''}.")
    neighbours = sum(int((t.batch == NEIGHBOUR).sum()) for t in targets)
    if neighbours:
        lines.append(
            f"{neighbours} cycles measure a step whose batch is not known. The sampled step's own, a step later, is "
            "used instead (neighbour's batch)."
        )
    return lines


def print_score(scores: StepScores, explain: bool = False, verbose: bool = False) -> None:
    """Print a row per run and the data behind the figures; with `verbose` also the kinds of steps."""
    runs = scores.runs
    what = "cycles" if scores.target == "cycle" else "sampled steps"
    only = "" if scores.split == "all" else f", split {scores.split} only"
    rows = [row(r.id, r.targets.candidates, r.targets.usable, *_values(r.grouped.all)) for r in runs]
    if len(runs) > 1:
        overall = scores.candidates, scores.usable, *_values(scores.overall.all)
        rows = [*section(rows), row(f"all {len(runs)} runs", *overall, style="bold")]
    title = f"step_time of {scores.source.name} against the {LABELS[scores.target]}{only}"
    show(Table.of(title, [words("run"), figures("d", what, "usable", "scored"), _FIGURES], rows))
    if verbose:
        _print_groups(scores)
    if explain:
        legend("MAPE", "bias", also=f"r: Pearson's correlation of predicted and observed. {LEGEND}")
    for text in [*_dropped(runs, what), *scores.left_out, *scores.assumed, _in_sample(scores.fitted)]:
        prose(f"- {text}", "dim")


def _print_groups(scores: StepScores) -> None:
    runs, rows = scores.runs, list[Row]()
    for name in GROUPS:
        members = scores.overall.by[name]
        counts = {member: sum(member in r.grouped.by[name] for r in runs) for member in members}
        rows += section(row(name, member, counts[member], *_values(f)) for member, f in members.items())
    columns = [words("by"), words("kind", names=True), figures("d", "runs", "steps"), _FIGURES]
    show(Table.of(f"By kind of step, over all {len(runs)} runs", columns, rows))
    if len(runs) > 1:
        for name in GROUPS:
            members = scores.overall.by[name]
            cells = ([r.id, *(_short(r.grouped.by[name].get(m)) for m in members)] for r in runs)
            show(Table.of(f"MAPE in percent (steps) by {name}", [words("run"), figures("", *members)], cells))


def _values(f: StepFigures) -> tuple[object, ...]:
    return f.steps, f.mape_pct, f.pearson_r, f.bias_pct, f.mean_predicted_us, f.mean_observed_us


def _short(f: StepFigures | None) -> str:
    return "-" if f is None else f"{number(f.mape_pct, 1, signed=False)} ({f.steps})"


def _dropped(runs: Sequence[RunScore], what: str) -> list[str]:
    """Why rows and steps were dropped or moved, a line for each run."""

    def listed(counts: Mapping[str, int]) -> str:
        return ", ".join(f"{n} {why}" for why, n in counts.items())

    lines = []
    for r in runs:
        if r.targets.dropped:
            lines.append(f"{r.id}: of its {what} not usable: {listed(r.targets.dropped)}")
        if r.targets.run.steps.counts:
            lines.append(f"{r.id}: in its table {listed(r.targets.run.steps.counts)}")
    return lines


def _in_sample(fitted: FittedOn) -> str:
    if fitted.steps_of is None:
        return "Nothing was fitted on these steps here; there is no record of what the program was fitted on."
    also = ""
    if fitted.means_of:
        also = f" The mean latencies of {', '.join(fitted.means_of)} were, of the same runs."
    if not fitted.steps_of:
        return f"Nothing was fitted on these steps.{also}"
    return f"Fitted on the train split of the steps of {', '.join(fitted.steps_of)}: see valid and test.{also}"
