"""The errors of a fitted program as plain values.

Errors come from replays under the arrival seeds of scores. Batch fields are means over the steps that tokens meet
(`stage_steps.py`) at the observed ITL, so that the program's step time and the measured one belong to the same batch.
Without an observed ITL they are taken at the ITL of the replays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from archive.score import Errors
from evaluator.assess import AssessData
from evaluator.diagnose.stage_steps import StageSteps, stage_steps
from evaluator.fit.machine import INPUT, OUTPUT
from evaluator.metrics import error_pct
from evaluator.score import Prediction, errors, predictions
from simulator.clock.bind import Bound, bind
from simulator.language.ir import Program
from simulator.language.opcodes import assemble
from simulator.schema import FIELDS, KERNELS, marked
from simulator.serving.experiment import Experiment
from simulator.serving.facts import has_curves

MOST_BATCHES = 4
COMPONENT_FIELDS = tuple(f.name for f in marked("component"))
# The kernel fields whose sum is b.kernel_us.
SUMMED = tuple(term.removeprefix("b.") for term in FIELDS["b", "kernel_us"].formula.split(" + "))
LEAST_STAGES = 4  # with fewer stages every field correlates with every residual
MOST_FIELDS = 8  # per residual
ALIKE = 0.98  # rank correlation above which these stages cannot tell two fields apart
DIGITS = 9  # significant digits that are ranked: sums in another order must not change ranks

Values = Mapping[tuple[str, str], Sequence[float | None]]  # ("b", "tokens") -> its value in every stage


@dataclass(frozen=True, slots=True)
class StageErrors:
    """Signed errors of a load stage's mean E2E, TTFT, ITL in percent, and the observed means in ms.

    None where nothing was observed; errors are also None where nothing completed. stage: its position, from 0; rate:
    requests/s.
    """

    experiment: str
    stage: int
    rate: float
    is_moe: bool
    e2e_error_pct: float | None
    ttft_error_pct: float | None
    itl_error_pct: float | None
    e2e_ms: float | None
    ttft_ms: float | None
    itl_ms: float | None


@dataclass(frozen=True, slots=True)
class Batch:
    """The mean step of a stage. error_pct: the error of the stage's mean `of`: "itl", or "e2e" without an observed ITL.

    Requests and tokens of a step are means over the tokens that meet it. step_us: the program's time for it;
    observed_us: the step time implied by the observed ITL, which is the ITL less overhead_us, the program's times per
    token and per completion; parts_us: the component fields (COMPONENT_FIELDS). None where not observed or not finite.
    """

    experiment: str
    stage: int
    of: str
    error_pct: float
    decode_reqs: float
    prefill_tokens: float
    kv_sum: float
    batch_size: float
    step_us: float | None
    observed_us: float | None
    overhead_us: float | None
    parts_us: dict[str, float]


@dataclass(frozen=True, slots=True)
class TtftParts:
    """The observed mean TTFT of a run in ms (None: not observed), and what the program's is made of: from arrival to
    the queue, in the queue until a step takes the prompt, and the steps of the prompt."""

    experiment: str
    observed_ms: float | None
    queueing_ms: float
    waiting_ms: float
    prefill_ms: float


@dataclass(frozen=True, slots=True)
class KernelShares:
    """The share of each kernel field in the measured kernels' time of a run's mean step (by field, not those of 0),
    and that step's time by the kernels and as observed, in us."""

    experiment: str
    shares: dict[str, float]
    kernels_us: float
    observed_us: float | None


@dataclass(frozen=True, slots=True)
class Correlation:
    """r: Spearman's rank correlation of `residual`, a signed error, with a field over so many load stages.

    alike: weaker fields with the same or the opposite ranks in these stages.
    """

    residual: str
    field: str
    unit: str
    r: float
    stages: int
    alike: tuple[str, ...]


def chance(correlations: Iterable[Correlation]) -> float:
    """The |r| below which any of these correlations may be chance, at 5 %.

    For independent ranks r is about normal with variance 1/(n - 1); 5 % lie beyond 1.96 deviations.
    """
    fewest = min(c.stages for c in correlations)
    return float(min(1.96 / (fewest - 1) ** 0.5, 1.0))


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """runs: errors of whole runs; stages: of their load stages; worst: batches of the stages with the largest errors.
    ttft: of whole runs. shares: of runs whose GPU has measured kernels.

    correlations: for each residual in this order, from the strongest down. "step_us": step_us - observed_us of the mean
    step, which another term of step_time would have to change. "ttft_us": predicted - observed, likewise for
    queueing_time. "itl_error_pct", "ttft_error_pct", "e2e_error_pct": as in `stages`.
    """

    runs: tuple[Errors, ...]
    stages: tuple[StageErrors, ...]
    correlations: tuple[Correlation, ...]
    worst: tuple[Batch, ...]
    ttft: tuple[TtftParts, ...]
    shares: tuple[KernelShares, ...]


@dataclass(frozen=True, slots=True)
class _Point:
    """A load stage: its errors, its row of `Stages.table`, the program on its deployment, its steps if known."""

    errors: StageErrors
    row: np.ndarray
    bound: Bound
    facts: Mapping[str, float]
    steps: StageSteps | None

    def value(self, scope: str, name: str) -> float | None:
        """A field's value in this stage: the mean of a batch field over its steps, of a request field over prompts."""
        if scope == "b":
            return None if self.steps is None else self.steps.mean(name)
        if scope == "r":
            return float(self.row[INPUT])
        if name == "reference_step_us":
            return _finite(self.bound.values[self.bound.code.request + 1])
        return self.facts[name]


def diagnose(program: Program, data: AssessData) -> Diagnosis:
    """The errors of `program` at its constants. Deterministic; replays clamp step times that are out of range."""
    code, runs, ttft, points = assemble(program), [], [], list[_Point]()
    stage_rows = data.fit.stages_at(np.flatnonzero(~data.fit.in_steps).tolist())
    for e, prediction, rows in zip(data.score.experiments, predictions(program, data.score), stage_rows, strict=True):
        runs.append(errors(prediction, e))
        ttft.append(_ttft_parts(e, prediction))
        bound = bind(code, program.theta, e.facts)
        for i, (stage, replayed) in enumerate(zip(e.workload.stages, prediction.predicted.stages, strict=True)):
            row, observed_ms = data.fit.stages.table[rows[i]], data.fit.stages.observed_ms[rows[i]]
            observed = [_finite(x) for x in observed_ms]
            predicted = [replayed.e2e_ms.mean, replayed.ttft_ms.mean, replayed.itl_ms.mean]
            errors_pct = [error_pct(p, o) for p, o in zip(predicted, observed, strict=True)]
            stage_errors = StageErrors(e.id, i, stage.level, e.facts["is_moe"] > 0, *errors_pct, *observed)
            pace_ms = predicted[2] if observed[2] is None else observed[2]
            steps = None if pace_ms is None else stage_steps(row, pace_ms * 1e3, e.facts)
            points.append(_Point(stage_errors, row, bound, e.facts, steps))
    batches = [_batch(p) for p in points]
    residuals = {
        "step_us": [_step_residual_us(b) for b in batches],
        "ttft_us": [_ttft_residual_us(p.errors) for p in points],
        "itl_error_pct": [p.errors.itl_error_pct for p in points],
        "ttft_error_pct": [p.errors.ttft_error_pct for p in points],
        "e2e_error_pct": [p.errors.e2e_error_pct for p in points],
    }
    measured = all(has_curves(p.facts) for p in points)
    fields = {f: [p.value(*f) for p in points] for f in FIELDS if measured or f[1] not in KERNELS}
    return Diagnosis(
        runs=tuple(runs),
        stages=tuple(p.errors for p in points),
        correlations=tuple(c for name, values in residuals.items() for c in correlations(name, values, fields)),
        worst=tuple(sorted((b for b in batches if b), key=lambda b: -abs(b.error_pct))[:MOST_BATCHES]),
        ttft=tuple(ttft),
        shares=tuple(_shares(points, batches)),
    )


def _ttft_parts(experiment: Experiment, prediction: Prediction) -> TtftParts:
    observed, parts = experiment.observed.summary if experiment.observed else None, prediction.components
    observed_ms = observed.ttft_ms.mean if observed else None
    return TtftParts(experiment.id, observed_ms, parts["queueing"], parts["waiting"], parts["prefill_steps"])


def _shares(points: Sequence[_Point], batches: Sequence[Batch | None]) -> Iterator[KernelShares]:
    """The kernels' shares in each run's mean step: that of its stage with the most time in kernels."""
    busiest: dict[str, KernelShares] = {}
    for p, batch in zip(points, batches, strict=True):
        if p.steps is None or not has_curves(p.facts):
            continue
        kernels_us = p.steps.mean("kernel_us")
        times_us = {name: p.steps.mean(name) for name in SUMMED}
        shares = {name: us / kernels_us for name, us in times_us.items() if us > 0.0}
        before = busiest.get(p.errors.experiment)
        if before is None or kernels_us > before.kernels_us:
            observed_us = batch.observed_us if batch else None
            busiest[p.errors.experiment] = KernelShares(p.errors.experiment, shares, kernels_us, observed_us)
    yield from busiest.values()


def _batch(p: _Point) -> Batch | None:
    """The mean step of a stage; None if it has no error or no known steps."""
    e, steps = p.errors, p.steps
    of, error = ("e2e", e.e2e_error_pct) if e.itl_ms is None else ("itl", e.itl_error_pct)
    if error is None or steps is None:
        return None
    overhead = p.bound.output_token_us() + p.bound.completion_us() / max(p.row[OUTPUT] - 1.0, 1.0)
    return Batch(
        experiment=e.experiment,
        stage=e.stage,
        of=of,
        error_pct=error,
        decode_reqs=steps.mean("decode_reqs"),
        prefill_tokens=steps.mean("prefill_tokens"),
        kv_sum=steps.mean("kv_sum"),
        batch_size=steps.mean("batch_size"),
        step_us=_finite(steps.step_us(p.bound)),
        observed_us=None if e.itl_ms is None else _finite(e.itl_ms * 1e3 - overhead),
        overhead_us=_finite(overhead),
        parts_us={name: steps.mean(name) for name in COMPONENT_FIELDS},
    )


def _step_residual_us(batch: Batch | None) -> float | None:
    if batch is None or batch.step_us is None or batch.observed_us is None:
        return None
    return batch.step_us - batch.observed_us


def _ttft_residual_us(stage: StageErrors) -> float | None:
    return (
        None
        if stage.ttft_error_pct is None or stage.ttft_ms is None
        else stage.ttft_error_pct / 100.0 * stage.ttft_ms * 1e3
    )


def _finite(x: float) -> float | None:
    return float(x) if math.isfinite(x) else None


def correlations(residual: str, errors: Sequence[float | None], fields: Values) -> list[Correlation]:
    """The fields that correlate most with a residual, from the strongest down, one for each set of alike fields.

    Considers fields that are known in all stages with an error and vary over them. Empty with fewer than LEAST_STAGES
    such stages.
    """
    stages = [i for i, error in enumerate(errors) if error is not None]
    target = _rounded(errors, stages)
    columns = {field: _rounded(values, stages) for field, values in fields.items()}
    varying = [field for field, column in columns.items() if len(set(column)) > 1 and not np.isnan(column).any()]
    if len(stages) < LEAST_STAGES or len(set(target)) == 1 or not varying:
        return []
    r = np.corrcoef(scipy.stats.rankdata([target, *(columns[field] for field in varying)], axis=1)).round(DIGITS)
    to_error, mutual, names = r[0, 1:], r[1:, 1:], [".".join(field) for field in varying]
    strongest: list[Correlation] = []
    left = sorted(range(len(varying)), key=lambda j: -abs(to_error[j]))
    while left and len(strongest) < MOST_FIELDS:
        first, *others = left
        alike = [j for j in others if abs(mutual[first, j]) > ALIKE]
        left = [j for j in others if j not in alike]
        unit, same = FIELDS[varying[first]].unit, tuple(names[j] for j in alike)
        strongest.append(Correlation(residual, names[first], unit, float(to_error[first]), len(stages), same))
    return strongest


def _rounded(values: Sequence[float | None], stages: Sequence[int]) -> list[float]:
    return [float("nan") if (x := values[i]) is None else float(f"{x:.{DIGITS}g}") for i in stages]
