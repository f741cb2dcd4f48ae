"""The figures of one combination of a sweep, from its replays, and the limits that fail."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evaluator.intervals import waiting_share
from evaluator.metrics import stages_grow
from evaluator.score import Prediction, prediction_of
from evaluator.throughput import counted, lasting_s, per_s
from evolve.plan.by_stage import StageRun
from evolve.plan.slo import SloLimit, meeting
from evolve.plan.sweep_result import LOST, MOST_LOST, NOTHING, QUEUE, SweepFigures
from evolve.plan.warnings import warnings
from evolve.run.records import Record
from simulator.clock.replay import Replay
from simulator.serving.experiment import Experiment
from simulator.serving.observations import Observation
from simulator.serving.workload import duration_s, late_requests


def figures_of(
    record: Record | None, e: Experiment, replays: Sequence[Replay], limits: Sequence[SloLimit] = ()
) -> SweepFigures:
    """The figures of an experiment from its replays, one for each arrival seed, under `limits`. `record`: what the
    program was fitted on."""
    prediction = prediction_of(e, replays)
    lasting = [lasting_s(replay, e.workload) for replay in replays]
    counts = [counted(replay, e.workload) for replay in replays]
    arriving_s = np.mean(lasting) if e.workload.closed else duration_s(e.workload)
    in_time = [int(c.sum()) - late_requests(e.workload, r.requests) for r, c in zip(replays, counts, strict=True)]
    good = [int((meeting(r, limits) & c).sum()) for r, c in zip(replays, counts, strict=True)] if limits else []
    fails = _fails(prediction, limits)
    running = max(map(most_running, replays))
    full = []
    if running == e.engine.max_num_seqs * e.engine.data_parallel:
        full.append(f"max_num_seqs {e.engine.max_num_seqs} is reached: a larger one may serve more")
    return SweepFigures(
        prediction=prediction,
        offered_rps=float(np.mean(in_time) / arriving_s),
        completed_rps=prediction.served.completed_rps,
        output_tokens_per_s=prediction.served.output_tokens_per_s,
        goodput_rps=per_s(good, lasting) if limits else None,
        waiting_share=waiting_share(prediction),
        queue_grows=QUEUE in fails,
        most_running=running,
        holds={limit.name: limit.holds(prediction.predicted.summary) for limit in limits},
        fails=fails,
        seeds=len(replays),
        seeds_holding=sum(not _fails(prediction_of(e, [r]), limits) for r in replays),
        stages=_stage_runs(prediction, replays, limits),
        warnings=(*warnings(record, e, prediction), *full, *_in_stages(prediction, limits)),
    )


def _in_stages(prediction: Prediction, limits: Sequence[SloLimit]) -> list[str]:
    """A line for each limit that the run keeps as a whole, and some of its stages do not."""
    stages, lines = prediction.predicted.stages, []
    for limit in limits:
        failing = [i for i, stage in enumerate(stages) if limit.holds(stage) is False]
        if failing and limit.holds(prediction.predicted.summary):
            worst_ms, stage = max((limit.of(stages[i]) or 0.0, i) for i in failing)
            count = f"{len(failing)} of its {len(stages)} stages"
            lines.append(
                f"{limit.name} holds over the whole run, but not in {count}: {worst_ms:.4g} ms in stage {stage + 1}"
            )
    return lines


def _fails(prediction: Prediction, limits: Sequence[SloLimit]) -> tuple[str, ...]:
    """The limits that do not hold, and QUEUE, LOST or NOTHING."""
    return _missed(prediction.predicted.summary, prediction.queue_grows, limits)


def _stage_runs(prediction: Prediction, replays: Sequence[Replay], limits: Sequence[SloLimit]) -> tuple[StageRun, ...]:
    """Every load stage, judged as the run is, by the requests that arrive in it: a queue from the stage before counts.
    None of a load of one stage, which is the run."""
    stages = prediction.predicted.stages
    if len(stages) < 2:
        return ()
    growing = stages_grow(replays, len(stages))
    return tuple(StageRun(s, _missed(s, grows, limits)) for s, grows in zip(stages, growing, strict=True))


def _missed(run: Observation | None, growing: bool, limits: Sequence[SloLimit]) -> tuple[str, ...]:
    """The limits that a run or a stage misses, and QUEUE, LOST or NOTHING."""
    missed = tuple(limit.name for limit in limits if limit.holds(run) is False)
    if run is None or run.e2e_ms.mean is None:
        return (*missed, NOTHING)
    completed, failed = run.completed or 0, run.failed or 0
    lost = failed > MOST_LOST * (completed + failed)
    return (*missed, *([QUEUE] if growing else []), *([LOST] if lost else []))


def most_running(replay: Replay) -> int:
    """The most requests in a batch at once."""
    return max((_most_at_once(*batch) for batch in replay.batches), default=0)


def _most_at_once(began_us: np.ndarray, ended_us: np.ndarray) -> int:
    # of a step that ends one request and begins another, the end counts first
    times = np.concatenate([ended_us, began_us])
    steps = np.repeat([-1, 1], [len(ended_us), len(began_us)])
    return int(np.cumsum(steps[np.lexsort((steps, times))]).max(initial=0))
