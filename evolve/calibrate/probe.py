"""`evolve probe`: which runs to measure next, so that the predictions that matter become surer.

Targets and candidate runs have one Gaussian of log figures, the means of E2E, TTFT and ITL: see `prior.py`. The
design is that of evaluator.design.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import yaml

from evaluator.design import Joint, choose
from evaluator.intervals import LEVELS, PACES, Disagreement, Residual, able, disagreements, figure_of, scales, slowed
from evaluator.score import MEANS, Prediction, predictions, score_set
from evolve import __version__
from evolve.calibrate.prior import Prior, logs, moved, sizes
from evolve.output.columns import figures, words, wrapped
from evolve.output.printing import note, prose, say_once, show
from evolve.output.table import Table, number
from evolve.output.terminal import command, say, suggest
from evolve.plan.loads import SEED, ProbeRun
from evolve.plan.prediction_intervals import too_narrow
from evolve.run.beyond import outside
from evolve.run.measurements import why_none_completes
from evolve.run.program import Source
from evolve.run.trust import Trust, trust_of
from simulator.common.errors import InputError
from simulator.common.json import JsonObject
from simulator.common.records import derived, fields_to_json, record_class, stored
from simulator.common.text import counted
from simulator.language.ir import Program
from simulator.serving.digests import data_hash
from simulator.serving.experiment import Experiment

LEGEND = """\
The runs that are expected to leave the mean variance of the targets smallest, by a Gaussian of all runs. Its parts: the
differences of near-optimal programs, the standard errors of the constants, and held-out errors. Runs of a deployment
share some of these. Widths after a run are those that `evolve predict` is expected to print after a fit to it."""
NO_HELP = (
    "Nothing here would help: the errors of held-out runs make these intervals wide, not the differences of "
    "near-optimal programs. A fit on a few own runs does not change those errors (docs/search.md)."
)
UNKNOWN = (
    "No run on {gpu} was fitted or held out: how far off predictions on it are is not known, and the widths below are "
    "too narrow. "
)
MEASURE = "First measure {run}, fit the program on it, and probe again with the fitted program."
NARROW = "?: these may be too narrow, for the reasons below."
WORTH = 0.02  # relative fall of the mean width below which measuring is said not to help

Widths = Mapping[str, float | None]  # of the 80 % intervals by figure, in percent of the prediction


@record_class
class ProbeTarget:
    """A run whose figures matter: the widths of its intervals, now and expected once 1, 2, ... runs are fitted;
    warnings: why these may be too narrow."""

    id: str
    before: Widths = stored(key="width_80_pct")
    after: tuple[Widths, ...] = stored(key="expected_pct")
    warnings: tuple[str, ...]

    @derived
    def narrow(self) -> bool:
        return bool(self.warnings)


@record_class
class Probe:
    """The runs to measure, in this order, and their expected effect on the targets.

    saturated: ids of targets in which a queue may grow: no run of these narrows them. lost: the reason why no request
    of a target completes, by id: it has no figures. width_pct: the mean width over targets and figures before, and
    after each run. missing: parts that the covariance lacks. first: by GPU of a target without fitted or held-out
    runs, the chosen run to measure on it before all else; None if none can be run there.
    """

    name: str
    data: str
    candidates: int
    runs: tuple[ProbeRun, ...]
    targets: tuple[ProbeTarget, ...]
    saturated: tuple[str, ...]
    missing: tuple[str, ...]
    lost: Mapping[str, str]
    first: Mapping[str, str | None] = stored(key="measure_first")

    @property
    def width_pct(self) -> list[float]:
        every = [[t.before, *t.after] for t in self.targets]
        steps = zip(*every, strict=True)
        return [float(np.mean([w for widths in step for w in widths.values() if w is not None])) for step in steps]

    @property
    def helps(self) -> bool:
        """True if the runs are expected to narrow the intervals, or one is on a GPU that nobody measured."""
        widths = self.width_pct
        return any(self.first.values()) or (len(widths) > 1 and widths[-1] < (1.0 - WORTH) * widths[0])

    def to_json(self) -> JsonObject:
        about = {"engine": __version__, "seeds": [SEED]}
        return {**about, **fields_to_json(self), "width_80_pct": self.width_pct, "helps": self.helps}


def trusted(source: Source) -> Trust:
    """The data of the program's intervals. Raises InputError if it has none."""
    trust = trust_of(source)
    if trust is None or source.record is None:
        remedy = f"give champion, a run's champion after `{command('validate', 'RUN')}`, or a program fitted from these"
        raise InputError(f"{source.name}: has no intervals that runs could narrow: {remedy}")
    return trust


def probe(
    source: Source, trust: Trust, targets: Sequence[Experiment], offered: Sequence[ProbeRun], count: int
) -> Probe:
    """Up to `count` runs of those offered. Runs in which a queue may grow are not chosen.

    Targets of which no request completes are none. Raises InputError if none is left, or if a queue may grow in every
    target.
    """
    program, members = source.complete, trust.programs
    doubts = disagreements(program, members, [*targets, *(c.experiment for c in offered)], SEED)
    lost = _without_figures(program, targets)
    aims = [e for e, d in zip(targets, doubts, strict=False) if d.saturated == 0.0 and e.id not in lost]
    runs = [c for c, d in zip(offered, doubts[len(targets) :], strict=True) if d.saturated == 0.0]
    if len(lost) == len(targets):
        ident, why = next(iter(lost.items()))
        problem = f"no request of any target completes in the replay, as of {ident}: {why}"
        raise InputError(f"{problem}: there is nothing to narrow: correct the engine's settings or the load")
    if not aims:
        raise InputError("a queue may grow in every target, and no calm run narrows that: give targets of lower rates")
    if not runs:
        raise InputError("no run can be measured: the deployment serves none of the loads without a queue: see --tp")
    every = [*aims, *(c.experiment for c in runs)]
    data = score_set(every, [SEED])
    ours = predictions(program, data)
    shifted, missing = moved(source)
    deviations = [
        logs(ours, [predictions(p, data) for p in programs])
        for programs in (able(members, every), [slowed(program, factor) for factor in PACES], shifted)
    ]
    prior = Prior.of(deviations, sizes(trust.outside or trust.inside), every, len(aims))
    unknown = _unmeasured(source, aims)
    chosen = _unmeasured_first(unknown, runs, prior.joint(), count)
    found = []
    for i, (e, p) in enumerate(zip(aims, ours, strict=False)):
        spreads = [prior.spread(chosen[:n])[i] for n in range(len(chosen) + 1)]
        beyond = source.record is None or bool(outside(source.record.all_ranges, e, p))
        now, then = (t.class_of(beyond, Disagreement({}, 0.0)) for t in (trust, replace(trust, data="own")))
        closed = e.workload.closed
        for of_class in (now, then):
            if not trust.residuals(of_class, closed):
                raise InputError(
                    f"{source.name}: none of its held-out runs lies {of_class} what its fold fitted, so the interval "
                    f"of {e.id} is unknown: `{command('validate', 'RUN')}` with all kinds of folds"
                )
        widths = [_widths(trust.residuals(then if n else now, closed), p, spread) for n, spread in enumerate(spreads)]
        narrow = too_narrow(trust, source.record, e, p, now) if source.record else ()
        found.append(ProbeTarget(e.id, widths[0], tuple(widths[1:]), tuple(narrow)))
    queued = tuple(e.id for e in targets if e not in aims and e.id not in lost)
    planned = tuple(runs[i] for i in chosen)
    first = {gpu: next((r.experiment.id for r in planned if r.experiment.hardware == gpu), None) for gpu in unknown}
    return Probe(source.name, data_hash(targets), len(runs), planned, tuple(found), queued, missing, lost, first)


def _unmeasured(source: Source, targets: Sequence[Experiment]) -> list[str]:
    known = source.record.all_gpus if source.record else ()
    return [gpu for gpu in dict.fromkeys(e.hardware for e in targets) if known and gpu not in known]


def _unmeasured_first(gpus: Sequence[str], runs: Sequence[ProbeRun], joint: Joint, count: int) -> list[int]:
    """The runs to measure: one on each of these GPUs, if there is any, then those that the design chooses."""
    chosen = choose(joint, count)
    first = []
    for gpu in gpus:
        on = [i for i, run in enumerate(runs) if run.experiment.hardware == gpu]
        best = [i for i in chosen if i in on] or sorted(on, key=lambda i: (float(joint.posterior([i]).mean()), i))
        first += best[:1]
    return [*first, *(i for i in chosen if i not in first)][:count]


def _without_figures(program: Program, targets: Sequence[Experiment]) -> dict[str, str]:
    """By id, why no request of a target completes; those of which one does are left out."""
    every = predictions(program, score_set(targets, [SEED]))
    return {e.id: why for e, p in zip(targets, every, strict=True) if (why := why_none_completes(p))}


def _widths(residuals: Sequence[Residual], prediction: Prediction, spread: np.ndarray) -> Widths:
    by_figure = scales(residuals)
    widths: dict[str, float | None] = {}
    for name, value in zip(MEANS, spread, strict=True):
        half = by_figure[name].half_width(value, LEVELS[0]) if name in by_figure else None
        known = half is not None and figure_of(prediction.predicted.summary, name) is not None
        widths[name] = 100.0 * (math.exp(half) - math.exp(-half)) if known and half is not None else None
    return widths


def print_probe(result: Probe, out: Path | None, explain: bool = False) -> None:
    """Print the runs in order with the load generator's settings, and the widths of the targets' intervals."""
    for gpu, first in result.first.items():
        remedy = MEASURE.format(run=first) if first else f"Have a run on it chosen first: give --hardware {gpu}."
        prose(UNKNOWN.format(gpu=gpu) + remedy, "bold")
    if not result.helps and not result.first:
        prose(NO_HELP, "bold")
    show(_runs_table(result))
    for run in result.runs if result.helps else ():
        prose(f"{run.experiment.id}, config.yaml of inference-perf:", "bold")
        say(yaml.safe_dump(run.load_generator, sort_keys=False, allow_unicode=True))
    lengths = {r.experiment.id: r.spec.engine.max_model_len for r in result.runs}
    say_once({name: [f"start vLLM with --max-model-len {n}"] if n else [] for name, n in lengths.items()})
    show(_targets_table(result))
    if any(t.narrow for t in result.targets):
        note(NARROW)
    before, after = result.width_pct[0], result.width_pct[-1]
    prose(
        f"Mean width: {before:.1f} % before, {after:.1f} % expected after {counted(len(result.runs), 'run')}.", "bold"
    )
    for text in result.saturated:
        prose(f"- {text}: a queue may grow in it, which no run without a queue tells: not a target")
    for text, why in result.lost.items():
        prose(f"- {text}: no request of it completes in the replay, {why}: not a target")
    for text in result.missing:
        prose(f"- not counted: {text}")
    say_once({t.id: t.warnings for t in result.targets})
    if explain:
        note(LEGEND)
    if out:
        prose(f"Written: {out}. Before it can be fitted, the measured means go under `observed` in it.")
        suggest(command("fit", result.name, "--experiments", str(out), "--out", "mine.py"))


def _runs_table(result: Probe) -> Table:
    rows = []
    for run in result.runs:
        e, (prompt, answer) = run.experiment, run.lengths
        load = run.rate, prompt, answer, e.workload.stages[0].duration_s
        rows.append([e.id, e.model, e.engine.tensor_parallel, e.workload.name, *load, run.gpu_minutes])
    columns = [words("run"), wrapped("model"), figures("d", "TP"), words("workload"), figures("g", "requests/s")]
    columns += [figures("d", "prompt tokens", "output tokens"), figures(".0f", "seconds"), figures("g", "GPU minutes")]
    which = "Runs to measure, in this order" if result.helps else "Most informative runs, though not informative enough"
    return Table.of(f"{which}, of {counted(result.candidates, 'possible run')}", columns, rows)


def _targets_table(result: Probe) -> Table:
    def cells(t: ProbeTarget) -> list[str]:
        texts = (" / ".join(number(widths[name], 1, signed=False) for name in MEANS) for widths in (t.before, *t.after))
        return [f"{text} ?" if t.narrow else text for text in texts]

    rows = [[t.id, *cells(t)] for t in result.targets]
    after = [f"after {counted(n, 'run')}" for n in range(1, len(result.runs) + 1)]
    title = "Widths of 80 % intervals in percent of the prediction: E2E / TTFT / ITL mean"
    return Table.of(title, [words("target"), figures("", "before", *after)], rows)
