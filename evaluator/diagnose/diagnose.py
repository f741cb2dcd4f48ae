"""Where and how a fitted program is wrong, as plain values: what a person or a model needs to propose a better form.

Errors are those of replays under the arrivals that scores are made with. Batch fields are means over the steps that
tokens meet (`typical.py`) at the observed ITL, so that what the program says of a step and what was measured are of one
and the same batch; where no ITL was observed, at the ITL of the replays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from evaluator.assess import Data
from evaluator.diagnose.correlate import Correlation, correlations
from evaluator.fit.meanfield import INPUT, OUTPUT
from evaluator.judge.typical import Typical, typical
from evaluator.metrics import error_pct
from evaluator.score import Errors, errors, predictions
from simulator.bind import Bound, bind
from simulator.experiment.facts import has_curves
from simulator.language.ir import Program
from simulator.language.opcodes import assemble
from simulator.schema import FIELDS, KERNELS

MOST_BATCHES = 4
PARTS = (
    "weight_read_us", "kv_read_us", "decode_gemm_us", "prefill_gemm_us", "prefill_attention_us", "decode_attention_us",
    "logits_us", "allreduce_us",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class StageErrors:
    """Signed errors in percent of a load stage's mean E2E, TTFT, ITL, and the observed means in ms; None where nothing
    was observed or, of the errors, nothing completed. stage: its position, from 0; rate: requests/s."""

    experiment: str
    stage: int
    rate: float
    is_moe: bool
    e2e_pct: float | None
    ttft_pct: float | None
    itl_pct: float | None
    e2e_ms: float | None
    ttft_ms: float | None
    itl_ms: float | None


@dataclass(frozen=True, slots=True)
class Batch:
    """The mean step of a stage. error_pct: of its mean `of`, "itl", or "e2e" where no ITL was observed.

    Requests and tokens of a step are means over the tokens that meet it. step_us: the program's time for it;
    observed_us: the step time that the observed ITL implies, what is left of it without overhead_us, the program's
    times per token and per completion; parts_us: the component fields (PARTS). None where not observed or not finite.
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
class Diagnosis:
    """runs: errors of whole runs; stages: of their load stages; worst: batches of the stages with the largest errors.

    correlations: with "step_us" (step_us - observed_us of the mean step: what another term of step_time would have to
    add or take), "ttft_us" (predicted - observed: that of queueing_time), and "itl_pct", "ttft_pct", "e2e_pct" (those
    of `stages`), in this order, each from the strongest on.
    """

    runs: tuple[Errors, ...]
    stages: tuple[StageErrors, ...]
    correlations: tuple[Correlation, ...]
    worst: tuple[Batch, ...]


@dataclass(frozen=True, slots=True)
class _Point:
    """A load stage: its errors, its row of `Stages.table`, the program on its deployment, its steps if known."""

    errors: StageErrors
    row: np.ndarray
    bound: Bound
    facts: Mapping[str, float]
    steps: Typical | None

    def value(self, scope: str, name: str) -> float | None:
        """A field's value in this stage: the mean of a batch field over its steps, of a request's over its prompts."""
        if scope == "b":
            return None if self.steps is None else self.steps.mean(name)
        if scope == "r":
            return float(self.row[INPUT])
        if name == "reference_step_us":
            return _finite(self.bound.values[self.bound.code.request + 1])
        return self.facts[name]


def diagnose(program: Program, data: Data) -> Diagnosis:
    """What is wrong with `program` at its constants. Deterministic; step times out of range are clamped in replays."""
    code, runs, points = assemble(program), [], list[_Point]()
    for e, prediction in zip(data.score.experiments, predictions(program, data.score), strict=True):
        runs.append(errors(prediction, e))
        bound = bind(code, program.theta, e.facts)
        for i, (stage, made) in enumerate(zip(e.workload.stages, prediction.predicted.stages, strict=True)):
            row, seen = data.fit.stages.table[len(points)], data.fit.stages.observed_ms[len(points)]
            observed = [_finite(x) for x in seen]
            predicted = [made.e2e_ms.mean, made.ttft_ms.mean, made.itl_ms.mean]
            wrong = [error_pct(p, o) for p, o in zip(predicted, observed, strict=True)]
            told = StageErrors(e.id, i, stage.rate, e.facts["is_moe"] > 0, *wrong, *observed)
            pace_ms = predicted[2] if observed[2] is None else observed[2]
            steps = None if pace_ms is None else typical(row, pace_ms * 1e3, e.facts)
            points.append(_Point(told, row, bound, e.facts, steps))
    batches = [_batch(p) for p in points]
    residuals = {
        "step_us": [_excess_us(b) for b in batches],
        "ttft_us": [_late_us(p.errors) for p in points],
        "itl_pct": [p.errors.itl_pct for p in points],
        "ttft_pct": [p.errors.ttft_pct for p in points],
        "e2e_pct": [p.errors.e2e_pct for p in points],
    }
    measured = all(has_curves(p.facts) for p in points)
    fields = {f: [p.value(*f) for p in points] for f in FIELDS if measured or f[1] not in KERNELS}
    return Diagnosis(
        runs=tuple(runs),
        stages=tuple(p.errors for p in points),
        correlations=tuple(c for name, errs in residuals.items() for c in correlations(name, errs, fields)),
        worst=tuple(sorted((b for b in batches if b), key=lambda b: -abs(b.error_pct))[:MOST_BATCHES]),
    )


def _batch(p: _Point) -> Batch | None:
    """The mean step of a stage; None where nothing is known of it."""
    e, steps = p.errors, p.steps
    of, wrong = ("e2e", e.e2e_pct) if e.itl_ms is None else ("itl", e.itl_pct)
    if wrong is None or steps is None:
        return None
    overhead = p.bound.output_token_us() + p.bound.completion_us() / max(p.row[OUTPUT] - 1.0, 1.0)
    return Batch(
        experiment=e.experiment,
        stage=e.stage,
        of=of,
        error_pct=wrong,
        decode_reqs=steps.mean("decode_reqs"),
        prefill_tokens=steps.mean("prefill_tokens"),
        kv_sum=steps.mean("kv_sum"),
        batch_size=steps.mean("batch_size"),
        step_us=_finite(steps.step_us(p.bound)),
        observed_us=None if e.itl_ms is None else _finite(e.itl_ms * 1e3 - overhead),
        overhead_us=_finite(overhead),
        parts_us={name: steps.mean(name) for name in PARTS},
    )


def _excess_us(batch: Batch | None) -> float | None:
    """How much longer the step is predicted than observed."""
    if batch is None or batch.step_us is None or batch.observed_us is None:
        return None
    return batch.step_us - batch.observed_us


def _late_us(stage: StageErrors) -> float | None:
    """How much later the first token is predicted than observed."""
    return None if stage.ttft_pct is None or stage.ttft_ms is None else stage.ttft_pct / 100.0 * stage.ttft_ms * 1e3


def _finite(x: float) -> float | None:
    return float(x) if math.isfinite(x) else None
