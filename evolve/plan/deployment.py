"""A deployment bound to a program: what it serves under a load, and whether that holds at the ends of intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from evaluator.intervals import LEVELS, disagreements, scales
from evaluator.metrics import WAITING
from evolve.plan.axes import ENGINE, Axes, Setting
from evolve.plan.prediction_intervals import (
    class_of,
    not_calibrated,
    prediction_intervals,
    too_narrow,
    unsure_constants,
    widened,
)
from evolve.plan.slo import SloLimit
from evolve.plan.sweep_figures import figures_of
from evolve.plan.sweep_result import SweepFigures
from evolve.plan.warnings import kv_tokens, never_starts
from evolve.run.program import Source
from evolve.run.trust import Trust, trust_of
from simulator.clock.bind import Bound, bind
from simulator.clock.replay import Replay, replay_all
from simulator.clock.steps import KnownSteps, steps_of
from simulator.common.errors import InputError
from simulator.language.ir import Program
from simulator.language.opcodes import Code, assemble
from simulator.serving.experiment import Experiment, deploy, under
from simulator.serving.load import limits_of, load_of
from simulator.serving.spec import Spec
from simulator.serving.workload import Workload, output_lengths, prompt_lengths, seeds_of

ROUND_TOKENS = 1024  # to multiples of which a max_model_len is rounded that the KV cache can hold


@dataclass(frozen=True)
class Question:
    """A program, arrival seeds and limits, the same for every deployment. trust: what its intervals are made of."""

    source: Source
    program: Program
    code: Code
    seeds: Sequence[int]
    limits: Sequence[SloLimit]
    trust: Trust | None
    ensemble: Sequence[Program]

    @classmethod
    def of(cls, source: Source, seeds: Sequence[int], limits: Sequence[SloLimit]) -> Question:
        program, trust = source.complete, trust_of(source)
        return cls(source, program, assemble(program), seeds, limits, trust, trust.programs if trust else ())


@dataclass(frozen=True)
class Deployment:
    """An experiment on a GPU and with settings of the engine, the program bound to it, and the steps that all loads
    share."""

    built: Experiment
    setting: Setting
    bound: Bound
    steps: KnownSteps

    def under(self, workload: Workload | None, where: str) -> Experiment:
        """The experiment under a load, its own without one."""
        return under(self.built, workload, where) if workload else self.built

    def replays(self, e: Experiment, seeds: Sequence[int]) -> list[Replay]:
        """Its replays under a load, one for each arrival seed. Raises InputError for a load that is impossible, also of
        a decode pool that requests which wait fill."""
        loads = [load_of(e, seed) for seed in seeds_of(e.workload, seeds)]
        if not all(len(load.requests) for load in loads):
            raise InputError(f"{e.id}: so small a load has no request under some arrival seeds: lengthen the stages")
        return replay_all(loads, self.bound, self.steps)

    def figures(self, question: Question, e: Experiment) -> SweepFigures:
        """The figures under a load. Raises InputError as `replays`."""
        return figures_of(question.source.record, e, self.replays(e, question.seeds), question.limits)

    def judged(self, question: Question, e: Experiment, f: SweepFigures) -> SweepFigures:
        """The figures with intervals, and for each of LEVELS whether everything holds at the upper ends of these and
        for such a share of the arrival seeds alone, and no queue grows for such a share of the ensemble; as they are
        without intervals."""
        trust, record = question.trust, question.source.record
        if trust is None or record is None or self.built.pools:  # pools were never measured
            return f
        [doubt] = disagreements(question.program, question.ensemble, [e], question.seeds[0])
        which = class_of(trust, record, e, f.prediction, doubt)
        by_figure = scales(trust.residuals(which, e.workload.closed), e.workload.closed)
        wide = widened(record, e, question.program, f.prediction, doubt)
        intervals = prediction_intervals(f.prediction, wide, by_figure)
        if not intervals:
            return f
        limited = [limit for limit in question.limits if limit.figure in intervals]

        def holds(level: float) -> bool:
            # where requests wait long without a queue that grows, the ensemble says nothing of one either
            calm = doubt.saturated <= 1.0 - level or f.waiting_share > WAITING
            tops = [(intervals[limit.figure].at[level][1], limit.most_ms) for limit in limited]
            within = all(top_ms <= most_ms for top_ms, most_ms in tops) and f.seeds_holding >= level * f.seeds
            return within and calm and not f.fails

        narrow = too_narrow(trust, record, e, f.prediction, which)
        narrow += not_calibrated(intervals, [limit.figure for limit in limited])
        if "e2e" in intervals:
            narrow += unsure_constants(question.program, record, e, question.seeds[0], by_figure["e2e"], doubt)
        likely, likely_95 = map(holds, LEVELS)
        return replace(f, likely=likely, likely_95=likely_95, intervals=intervals, narrow=tuple(narrow))


def deployed(
    question: Question, spec: Spec, setting: Setting, axes: Axes, *, shorten: bool = False
) -> Deployment | str:
    """The spec on the GPU and with the settings of the engine that `axes` vary; or why that is impossible.

    shorten: give the engine a max_model_len that its KV cache can hold, if its own is too long and was not given.
    """
    varied = {name: getattr(setting, key) for key, name in ENGINE.items() if getattr(axes, key)}
    if axes.weights:
        varied["quantization"] = setting.weights
    where = setting.label(spec.id, axes.others)
    try:
        labelled = replace(spec, where=where)
        if spec.pools and setting.prefill is not None and setting.decode is not None:
            labelled = replace(labelled, pools=spec.pools.of(setting.prefill, setting.decode))
        asked = labelled.vary(hardware=setting.hardware if axes.hardware else None, **varied)
        built = deploy(asked)
        if shorten and never_starts(built.facts) and spec.engine.max_model_len is None:
            tokens = int(kv_tokens(built.facts)) // ROUND_TOKENS * ROUND_TOKENS
            if tokens >= prompt_lengths(spec.workload).max() + output_lengths(spec.workload).max():
                built = deploy(asked.vary(max_model_len=tokens))
        if lines := never_starts(built.facts):
            return f"{where}: {lines[0]}"
        bound = bind(question.code, question.program.theta, built.facts)
    except InputError as error:  # no engine runs it, or the program reads measured kernels that its GPU does not have
        return str(error)
    return Deployment(built, setting, bound, steps_of(bound, limits_of(built)))
