"""The load stages of experiments as a table for the mean field, with the latencies observed in each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evaluator.fit.meanfield import OBSERVED_N, SEQS
from evaluator.metrics import new_tokens
from simulator.bind import bind
from simulator.experiment.experiment import Experiment, Observation
from simulator.experiment.load import Load
from simulator.experiment.workload import prompt_lengths
from simulator.language.complete import complete
from simulator.language.ir import Function, Number, Program
from simulator.language.opcodes import assemble
from simulator.replay import Replay, replay_bound


@dataclass(frozen=True)
class Stages:
    """The load stages of several experiments as arrays.

    table: float64[stages, 12], with the columns of `meanfield.py`. observed_ms: float64[stages, 3], mean E2E,
    TTFT, ITL; NaN where not observed. first: the row of each experiment's first stage.
    """

    table: np.ndarray
    observed_ms: np.ndarray
    first: tuple[int, ...]


def stages_of(experiments: Sequence[Experiment], loads: Sequence[Load]) -> Stages:
    """All load stages in order; an experiment with a single stage may have observed its summary only.

    A replay of each load at the observed pace shows how much of the prompts the cache holds.
    """
    rows: list[list[float]] = []
    observed, first = [], []
    for i, e in enumerate(experiments):
        first.append(len(rows))
        lengths = prompt_lengths(e.workload)
        shared = e.engine.prefix_caching and e.workload.groups > 0
        prompts = _computed(e, loads[i])
        cold = float(len(lengths)) if shared else 0.0  # prompts that the first stage has to prefill in full
        for j, stage in enumerate(e.workload.stages):
            means = _means_ms(_observation(e, j))
            observed.append(means)
            rate, output = stage.rate / 1e6, float(e.workload.output_len)
            n = rate * (output - 1) * means[2] * 1e3
            uncached, hits = prompts[j]
            rows.append(
                [rate, output, float(lengths.mean()), uncached, hits, e.engine.max_num_seqs,
                 e.engine.max_num_batched_tokens, stage.duration_s * 1e6, i, n,
                 min(cold, stage.rate * stage.duration_s) if j == 0 else 0.0, float(lengths.mean())]
            )  # fmt: skip
    table = np.array(rows)
    table[:, OBSERVED_N] = np.minimum(table[:, OBSERVED_N], table[:, SEQS])
    return Stages(table, np.array(observed), tuple(first))


def _computed(experiment: Experiment, load: Load) -> list[tuple[float, float]]:
    """For each load stage: the mean prompt tokens computed by requests that compute any, and the share of requests that
    find their whole prompt cached. The first use of every prompt does not count."""
    replay = paced(experiment, load)
    stage = replay.requests.stage
    new = new_tokens(replay)
    new[: experiment.workload.groups * experiment.workload.prompts_per_group] = -1
    computed = []
    for j in range(len(experiment.workload.stages)):
        repeated = new[(stage == j) & (new >= 0)]
        some = repeated[repeated > 0]
        mean = float(some.mean()) if len(some) else 0.0
        computed.append((mean, float((repeated == 0).mean()) if len(repeated) else 0.0))
    return computed


def paced(experiment: Experiment, load: Load) -> Replay:
    """A replay in which every step takes the mean observed ITL, 10 ms if none was observed."""
    means = [_means_ms(_observation(experiment, j))[2] for j in range(len(experiment.workload.stages))]
    itls_ms = [m for m in means if not math.isnan(m)] or [10.0]
    pace = complete(Program((Function("step_time", (), (), Number(1e3 * sum(itls_ms) / len(itls_ms))),)))
    return replay_bound(load, bind(assemble(pace), pace.theta, experiment.facts))


def _observation(experiment: Experiment, stage: int) -> Observation | None:
    observed = experiment.observed
    if observed is None:
        return None
    if observed.stages:
        return observed.stages[stage]
    return observed.summary if len(experiment.workload.stages) == 1 else None


def _means_ms(o: Observation | None) -> list[float]:
    """Mean E2E, TTFT and ITL, NaN where not observed."""
    if o is None:
        return [math.nan] * 3
    return [math.nan if s.mean is None else s.mean for s in (o.e2e_ms, o.ttft_ms, o.itl_ms)]
