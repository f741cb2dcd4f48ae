"""`evolve drift`: whether new runs still are as a program predicts, and if not, what brings them back.

Residuals are log(observed / predicted) of the mean TTFT and ITL of each load stage; without an ITL, of TTFT and E2E.
They are divided by the program's errors on held-out runs (evaluator.intervals) and the noise of one draw of arrivals.
New runs drift if that is more than held-out runs were off. This is a predictive failure test (Chow 1960, Econometrica
28:591): its denominator is the held-out error instead of the residuals of a fit.

Runs of a model share their error, so models are the independent observations: the shift is the mean over models, by
Student's t with the degrees of freedom of the held-out runs; the spread is what models and load stages differ from it,
by Fisher's F. Errors of stages that are shared by the run make the second test reject less often than stated.

Then the constants are fitted again to the new runs: those before the queue (alpha), those of the step (beta), and all.
The least refit whose residuals are noise again is the verdict; if none is, the form no longer fits.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from evaluator.fit.fit import fit_scoped, fit_set
from evaluator.fit.loss import FitSet
from evaluator.fit.problem import problem_of
from evaluator.intervals import Disagreement, disagreements, figure_of, scales, waiting_share
from evaluator.metrics import LATENCIES, WAITING
from evaluator.score import MEANS, SCORE_SEEDS, Prediction, ScoreSet, predictions, score_set
from evolve import __version__
from evolve.calibrate.drift_tests import (
    ALONE,
    FIRST,
    LEVEL,
    PACE,
    ChannelTest,
    StageResidual,
    blind,
    channel_tests,
    least_shifts_pct,
    more_than_chance,
)
from evolve.calibrate.error_scale import IN_SAMPLE, Yardstick, yardstick
from evolve.output.terminal import command
from evolve.plan.prediction_intervals import class_of, prediction_intervals
from evolve.plan.warnings import outside_intervals
from evolve.run.data import fittable, why_not_fitted
from evolve.run.measurements import refuse_absurd, why_none_completes
from evolve.run.program import CHAMPION, Source
from evolve.run.records import Record
from evolve.run.selectors import positions
from evolve.run.trust import Trust, trust_of
from simulator.clock.run import HostileStep
from simulator.common.errors import InputError
from simulator.common.json import JsonObject
from simulator.common.records import derived, fields_to_json
from simulator.common.text import listed
from simulator.language.ir import Program
from simulator.language.key import key
from simulator.language.unparse import unparse
from simulator.serving.digests import data_hash
from simulator.serving.experiment import Experiment

NONE, FORM, CANNOT_TELL = "no drift found", "form no longer fits", "cannot tell"
ALPHA, BETA, BOTH = "recalibrate alpha", "recalibrate beta", "recalibrate alpha and beta"
REFITS: dict[str, tuple[str, ...]] = {ALPHA: ("alpha",), BETA: ("beta",), BOTH: ("alpha", "beta")}  # words of --only
FEW = 3  # ids that a message lists


@dataclass(frozen=True, slots=True)
class Refit:
    """The errors after a refit to the new runs. verdict: that of this refit, if it is the least that is enough;
    constants: by `method.name`, before and after; enough: no test rejects."""

    verdict: str
    constants: Mapping[str, tuple[float, float]]
    tests: tuple[ChannelTest, ...]
    program: str

    @derived
    def enough(self) -> bool:
        return not any(t.rejects for t in self.tests)


@dataclass(frozen=True)
class Drift:
    """The verdict on drift of a program from the runs `used`.

    left_out: by id of a run, why it was not used. scale: of a Yardstick, what residuals are divided by;
    freedom: its degrees of freedom. refits: none if there is no drift. undecided: what these runs cannot show. alone:
    where no test rejects, by run and latency the observed means outside the intervals of `evolve predict`, as residuals
    in percent.
    """

    name: str
    key: str
    data: str
    used: tuple[str, ...]
    left_out: Mapping[str, str]
    scale: str
    freedom: int
    residuals: tuple[StageResidual, ...]
    tests: tuple[ChannelTest, ...]
    refits: tuple[Refit, ...]
    verdict: str
    undecided: tuple[str, ...]
    alone: Mapping[str, Mapping[str, float]]

    @derived
    def drifted(self) -> bool:
        return self.verdict not in (NONE, CANNOT_TELL)

    @derived
    def least_shift_pct(self) -> dict[str, float | None]:
        """By channel, the smallest shift that these runs would show, percent of what is predicted."""
        return least_shifts_pct(self.residuals, self.tests)

    def next_command(self, file: str) -> str | None:
        """The command to continue with, for the experiments file that the runs are from; None without a drift."""
        if not self.drifted:
            return None
        if self.verdict == FORM:
            return command("run", "--experiments", file, "--start", self.name)
        only = ["--only", REFITS[self.verdict][0]] if self.verdict != BOTH else []
        ids = ["--id", ",".join(self.used)] if self.left_out else []
        return command("fit", self.name, "--experiments", file, *ids, *only, "--out", "recalibrated.py")

    def to_json(self) -> JsonObject:
        return {"engine": __version__, "seeds": list(SCORE_SEEDS), "level": LEVEL, **fields_to_json(self)}


def drift(source: Source, experiments: Sequence[Experiment]) -> Drift:
    """Test whether the program predicts these runs as well as others, and find the smallest refit that helps.

    Left out are overloaded runs, runs in which a queue may grow, and runs of which no request completes. Raises
    InputError if no run is left, or if nothing says how far off the program may be.
    """
    offered = fittable(experiments)
    left_out = {e.id: why_not_fitted(e) for e in experiments if e not in offered}
    if not offered:
        raise _none_left(left_out)
    if source.record is None:
        raise InputError(
            f"{source.name}: has no record of how far off it was where it was fitted: fit it first, "
            f"`{command('fit', source.name, '--out', 'mine.py')}`"
        )
    refuse_absurd(offered)
    program, trust = source.complete, trust_of(source)
    predicted = predictions(program, score_set(offered))
    doubts = disagreements(program, trust.programs if trust else (), offered, SCORE_SEEDS[0])
    kept = []
    for i, (e, p, doubt) in enumerate(zip(offered, predicted, doubts, strict=True)):
        if why := why_none_completes(p):
            left_out[e.id] = f"no request of it completes in the replay: {why}"
        elif doubt.saturated > 0.0 or waiting_share(p) > WAITING:
            left_out[e.id] = "a queue may grow in it, and then latencies depend on how long the load lasts"
        else:
            kept.append(i)
    if not kept:
        raise _none_left(left_out)
    runs = [offered[i] for i in kept]
    measure = yardstick(source.record, trust, runs, [predicted[i] for i in kept], [doubts[i] for i in kept])
    check = _Check(fit_set(runs), score_set(runs), measure)
    residuals = check.residuals([predicted[i] for i in kept])
    tests = channel_tests(residuals, measure.freedom)
    refits = _refits(program, check) if any(t.rejects for t in tests) else ()
    found, alone = verdict(tests, refits), dict[str, dict[str, float]]()
    if found == NONE:
        if trust:
            rows = ((e, predicted[i], doubts[i]) for e, i in zip(runs, kept, strict=True))
            alone = {e.id: off for e, p, doubt in rows if (off := _outside(source.record, trust, e, p, doubt))}
        doubtful = more_than_chance(len(alone), len(runs))
        if measure.of == IN_SAMPLE:
            doubtful = any(t.p < ALONE for t in tests)
        if not tests or blind(residuals, tests) or doubtful:
            found = CANNOT_TELL
    return Drift(
        name=source.name,
        key=key(program),
        data=data_hash(runs),
        used=tuple(e.id for e in runs),
        left_out=left_out,
        scale=measure.of,
        freedom=measure.freedom,
        residuals=residuals,
        tests=tests,
        refits=refits,
        verdict=found,
        undecided=tuple(_undecided(residuals, tests, CHAMPION in (source.name, source.record.fitted_from))),
        alone=alone,
    )


def _outside(record: Record, trust: Trust, e: Experiment, p: Prediction, doubt: Disagreement) -> dict[str, float]:
    """log(observed / predicted) in percent of the means outside the intervals of `evolve predict`, by latency."""
    residuals = trust.residuals(class_of(trust, record, e, p, doubt), e.workload.closed)
    intervals = prediction_intervals(p, doubt, scales(residuals, e.workload.closed))
    beyond = outside_intervals(e.observed.summary if e.observed else None, intervals)
    ours = {name: figure_of(p.predicted.summary, name) or math.nan for name in intervals}
    return {name: 100.0 * math.log(mean / ours[name]) for name, mean, *_ in beyond}


def _none_left(left_out: Mapping[str, str]) -> InputError:
    """The error that no run is left to compare with, by id of a run why it was left out."""
    by_reason: dict[str, list[str]] = {}
    for name, why in left_out.items():
        by_reason.setdefault(why, []).append(name)
    reasons = [f"{listed(names, FEW)}: {why}" for why, names in by_reason.items()]
    return InputError(
        f"no run can show drift ({'; '.join(reasons)}): give clean runs with observed means, whose rate "
        "the engine keeps up with, under the settings that it had"
    )


@dataclass(frozen=True)
class _Check:
    fit: FitSet
    score: ScoreSet
    measure: Yardstick

    def residuals(self, predicted: Sequence[Prediction]) -> tuple[StageResidual, ...]:
        """The residuals of every load stage. A latency that is not predicted, as nothing completes, has none."""
        rows, stages = list[StageResidual](), self.fit.stages
        for i, (e, prediction) in enumerate(zip(self.fit.experiments, predicted, strict=True)):
            (rows_of_run,) = self.fit.stages_at([i])
            for j, (stage, at) in enumerate(zip(prediction.predicted.stages, rows_of_run, strict=True)):
                ours = np.array([getattr(stage, name).mean or np.nan for name in LATENCIES], dtype=float)
                with np.errstate(invalid="ignore", divide="ignore"):
                    ratio = np.log(stages.observed_ms[at] / ours)
                # one draw of arrivals was observed, the prediction is the mean over several
                noise = self.fit.noise[at] * math.sqrt(1.0 + 1.0 / len(self.score.loads[i]))
                scale = np.hypot(self.measure.sizes[i], noise)
                rows.append(StageResidual(e.id, e.model, j, e.workload.stages[j].level, _known(ratio), _known(scale)))
        return tuple(rows)


def _known(values: np.ndarray) -> dict[str, float | None]:
    return {name: float(x) if math.isfinite(x) else None for name, x in zip(MEANS, values, strict=True)}


def verdict(tests: Sequence[ChannelTest], refits: Sequence[Refit]) -> str:
    """The verdict: the least refit that is enough, or that none is.

    A refit of alpha is no answer to a pace that is off: an engine's delay before the queue does not slow its steps.
    """
    if not any(t.rejects for t in tests):
        return NONE
    slower = any(t.rejects and t.channel == PACE for t in tests)
    return next((r.verdict for r in refits if r.enough and not (slower and r.verdict == ALPHA)), FORM)


def refitted(program: Program, data: FitSet, free: Collection[int]) -> Program:
    """The program with the constants at the positions `free` fitted to these runs, from the values that they have.

    Raises HostileStep if a step's time is out of range.
    """
    held = [i for i in range(len(program.theta)) if i not in free]
    return fit_scoped(problem_of(program, data, held, fitted_before=True)).programs[0]


def _refits(program: Program, check: _Check) -> tuple[Refit, ...]:
    """The errors after each refit, the smallest refit first; without refits whose constants the program lacks."""
    refits = []
    for name, words in REFITS.items():
        with suppress(InputError, HostileStep):
            fitted = refitted(program, check.fit, positions(program, words, "--only"))
            tests = channel_tests(check.residuals(predictions(fitted, check.score)), check.measure.freedom)
            refits.append(Refit(name, _moved(program, fitted), tests, unparse(fitted)))
    return tuple(refits)


def _moved(before: Program, after: Program) -> dict[str, tuple[float, float]]:
    names = [f"{f.name}.{c.name}" for f in before.functions for c in f.constants]
    pairs = zip(names, before.theta, after.theta, strict=True)
    return {name: (old, new) for name, old, new in pairs if old != new}


def _undecided(residuals: Sequence[StageResidual], tests: Sequence[ChannelTest], of_champion: bool) -> list[str]:
    """A line for each limit of these runs. of_champion: True if the program is the champion or fitted from it."""
    channels = {t.channel for t in tests}
    lines = []
    if FIRST not in channels:
        lines.append("no TTFT could be compared: whether alpha holds is undecided")
    if PACE not in channels:
        lines.append("neither ITL nor E2E could be compared: whether beta holds is undecided")
    if unseen := blind(residuals, tests):
        elsewhere = "" if of_champion else ", or from the shipped champion"
        lines.append(
            f"{' and '.join(unseen)}: not even times that double would be seen, so little is known of how far "
            f"off the program is: fit it on more runs{elsewhere}"
        )
    if len({r.model for r in residuals}) == 1:
        lines.append("one model: an error of this model alone cannot be told from a drift of its size or less")
    if max(r.stage for r in residuals) == 0:
        lines.append("no run has several load stages: whether the form still fits all loads is hardly shown")
    return lines
