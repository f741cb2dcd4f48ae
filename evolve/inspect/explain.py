"""`evolve show --explain`: what a program's predictions are made of, what its terms mean, and where they come from.

The terms of step_time are shown in steps that a run has: those that the tokens of each load stage meet
(evaluator.diagnose). Steps of decodes alone are apart from steps that also carry prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from evaluator.diagnose.stage_steps import StageSteps, stage_steps
from evaluator.parts import FactorPart
from evaluator.score import SCORE_SEEDS, Prediction, predictions, score_set
from evaluator.sensitivity import Traffic, term_contributions, traffic_of
from evolve import __version__
from evolve.inspect.provenance import Provenance, provenance
from evolve.inspect.readings import Reading, readings
from evolve.inspect.step_shares import term_times_us
from evolve.run.program import Source
from evolve.run.use import exactly, fitted_by_predecessor, fitted_share
from simulator.clock.bind import deployments_in_order
from simulator.common.json import JsonObject
from simulator.common.records import derived, to_json
from simulator.language.ir import Program
from simulator.language.key import key
from simulator.language.unparse import unparse
from simulator.schema import DECODE_REQS, KV_SUM, PREFILL_REQS, PREFILL_TOKENS
from simulator.serving.digests import data_hash
from simulator.serving.experiment import Experiment

DECODE, MIXED = "decode", "with prefill"
# method -> the part of a request's E2E (evaluator.metrics.PARTS) that is its delay alone
DELAYS = {"queueing_time": "queueing", "output_token_time": "per_token", "completion_time": "completion"}


@dataclass(frozen=True, slots=True)
class Step:
    """A mean step of a load stage: DECODE, of decodes alone, or MIXED, with prompts.

    share: of the stage's tokens that such steps produce. Requests and tokens of the batch are means, so they need not
    be whole. step_us: the program's time for it. us: what each term of step_time adds, in the order of
    `Explanation.terms`; together they are step_us.
    """

    stage: int
    kind: str
    share: float
    decode_reqs: float
    prefill_tokens: float
    kv_sum: float
    step_us: float
    us: tuple[float, ...]

    @derived
    def percent(self) -> tuple[float, ...]:
        return tuple(100.0 * us / self.step_us if self.step_us else 0.0 for us in self.us)


@dataclass(frozen=True, slots=True)
class RunParts:
    """The parts of the mean E2E that is predicted for an experiment.

    fitted_share: how much of it the program was fitted on, None if unknown. fitted_by_predecessor: whether a program
    from which it was fitted was fitted on it. e2e_ms: predicted, and observed if it was, means. parts_ms: predicted, by
    part of a request (evaluator.metrics.PARTS), which add up to the mean E2E; observed_parts_ms likewise, empty where
    no traces showed them. terms_pct: the share of every term, in the order of `Explanation.terms`, of the mean E2E at
    the predicted batches. They add up to 100, and those of a delay to its part. steps: empty where no request
    completes.
    """

    id: str
    fitted_share: float | None
    fitted_by_predecessor: bool
    e2e_ms: float | None
    observed_e2e_ms: float | None
    parts_ms: Mapping[str, float]
    observed_parts_ms: Mapping[str, float]
    terms_pct: tuple[float, ...]
    steps: tuple[Step, ...]

    def to_json(self) -> JsonObject:
        share, total = self.fitted_share, sum(self.parts_ms.values())
        fitted = {"fitted": exactly(share), "fitted_share": share, "fitted_before": self.fitted_by_predecessor}
        parts_pct = {name: 100.0 * ms / total if total else 0.0 for name, ms in self.parts_ms.items()}
        same = ("e2e_ms", "observed_e2e_ms", "parts_ms", "observed_parts_ms", "terms_pct", "steps")
        kept = {name: to_json(getattr(self, name)) for name in same}
        return {"id": self.id, **fitted, **kept, "parts_pct": parts_pct}


@dataclass(frozen=True)
class Explanation:
    """A program with readings of its terms, its provenance, and what its predictions are made of."""

    name: str
    program: Program
    data: str
    seeds: tuple[int, ...]
    terms: tuple[Reading, ...]
    provenance: Provenance
    runs: tuple[RunParts, ...]

    @property
    def step_terms(self) -> tuple[Reading, ...]:
        """The terms of step_time, in the order of `Step.us`."""
        return tuple(t for t in self.terms if t.method == "step_time")

    def to_json(self) -> JsonObject:
        about = {"engine": __version__, "data": self.data, "seeds": list(self.seeds), "name": self.name}
        program = {"program": unparse(self.program), "key": key(self.program), "terms": to_json(self.terms)}
        return {**about, **program, "provenance": to_json(self.provenance), "experiments": to_json(self.runs)}


def explain(source: Source, experiments: Sequence[Experiment], seeds: Sequence[int] = SCORE_SEEDS) -> Explanation:
    """The explanation of a program on these experiments; parts of the E2E are means over the arrival seeds.

    Raises InputError for a damaged journal of its run, and for a deployment without the measured kernels that the
    program reads.
    """
    program = source.complete
    predicted = predictions(program, score_set(experiments, seeds))
    traffic = traffic_of(experiments, seeds[0])
    terms = readings(program)
    shares = term_contributions(program, traffic)
    steps = _steps(program, experiments, predicted, traffic)
    runs = []
    for e, p, of_terms, of_stages in zip(experiments, predicted, shares, steps, strict=True):
        ours, theirs = p.predicted.summary, e.observed.summary if e.observed else None
        use = fitted_share(source.record, e), fitted_by_predecessor(source.record, e)
        e2e_ms = ours.e2e_ms.mean if ours else None, theirs.e2e_ms.mean if theirs else None
        terms_pct = _terms_pct(terms, of_terms, p.components)
        runs.append(RunParts(e.id, *use, *e2e_ms, p.components, _observed_parts(e), terms_pct, of_stages))
    about = source.name, program, data_hash(experiments), tuple(seeds), terms
    return Explanation(*about, provenance(source, experiments), tuple(runs))


def _terms_pct(
    terms: Sequence[Reading], shares: Mapping[FactorPart, float], parts_ms: Mapping[str, float]
) -> tuple[float, ...]:
    """Each term's share of the mean E2E in percent: the mean field's `shares`, scaled by method to what replays say.

    Delays are then those that the program adds to every request. Only the terms of step_time make up for the omissions
    of the mean field.
    """
    total_ms = sum(parts_ms.values())
    mean_field = [(t.method, shares[FactorPart(t.method, t.term)]) for t in terms]
    if not total_ms:  # nothing completes
        return tuple(100.0 * share for _, share in mean_field)
    replayed = {method: parts_ms[part] / total_ms for method, part in DELAYS.items()}
    replayed["step_time"] = 1.0 - sum(replayed.values())
    together = {name: sum(share for method, share in mean_field if method == name) for name in replayed}
    factors = {name: replayed[name] / share for name, share in together.items() if share}
    return tuple(100.0 * factors.get(method, 1.0) * share for method, share in mean_field)


def _observed_parts(e: Experiment) -> dict[str, float]:
    parts = asdict(e.components) if e.components else {}
    return {name: ms for name, ms in parts.items() if ms is not None and name != "requests"}


def _steps(
    program: Program, experiments: Sequence[Experiment], predicted: Sequence[Prediction], traffic: Traffic
) -> list[tuple[Step, ...]]:
    """The mean steps of every load stage of each experiment, at the observed pace, or else at the predicted one."""
    found, row = list[tuple[Step, ...]](), 0
    for e, p in zip(experiments, predicted, strict=True):
        steps = list[Step]()
        for i in range(len(e.workload.stages)):
            pace_ms = _pace_ms(e, p, i)
            if pace_ms is not None:
                steps += _of_stage(program, e, i, stage_steps(traffic.stages.table[row], pace_ms * 1e3, e.facts))
            row += 1
        found.append(tuple(steps))
    return found


def _pace_ms(e: Experiment, p: Prediction, stage: int) -> float | None:
    itl_ms = e.observed_stages[stage].itl_ms.mean if e.observed_stages else None
    return p.predicted.stages[stage].itl_ms.mean if itl_ms is None else itl_ms


def _of_stage(program: Program, e: Experiment, stage: int, steps: StageSteps) -> list[Step]:
    batches = np.array([list(step.raw.values()) for step in steps.steps])
    _, us = term_times_us(program, deployments_in_order([e]), batches)
    carries = batches[:, PREFILL_REQS] > 0.0
    means = []
    for kind, chosen in ((DECODE, ~carries), (MIXED, carries)):
        share = float(steps.shares[chosen].sum())
        if share > 0.0:
            weights = steps.shares[chosen] / share
            raw, times = weights @ batches[chosen], us[:, 0, chosen] @ weights
            decodes, prefill, kv = (float(raw[i]) for i in (DECODE_REQS, PREFILL_TOKENS, KV_SUM))
            means.append(Step(stage, kind, share, decodes, prefill, kv, float(times.sum()), tuple(map(float, times))))
    return means
