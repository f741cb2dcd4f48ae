"""An experiment's requests, as the load generator sent them.

Stages start on schedule. `poisson` and `constant` both mean round(rate x duration) sorted uniform times in the stage,
which is what the load generator did; `even` means evenly spaced. Prompts are used in turn. If a mean length is given,
their lengths are its floor or ceiling, with exactly that mean.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, replace

import numpy as np

from simulator.experiment.experiment import Experiment, Stage, Workload
from simulator.stream import stream


@dataclass(frozen=True)
class Requests:
    """One row per request, in order of arrival. Times in microseconds, lengths in tokens."""

    arrival_us: np.ndarray  # int64
    stage: np.ndarray  # int32
    input_len: np.ndarray  # int32
    output_len: np.ndarray  # int32
    prompt: np.ndarray  # int32: which distinct prompt it sends, -1 if no other request sends it
    group: np.ndarray  # int32: requests of a group begin with the same `shared_len` tokens, -1 for none
    shared_len: np.ndarray  # int32
    deadline_us: np.ndarray  # int64: when the client gives up, 0 for never

    def __len__(self) -> int:
        return len(self.arrival_us)


def duration_s(workload: Workload) -> float:
    """The seconds over which requests arrive."""
    return sum(stage.duration_s for stage in workload.stages)


def offered_requests(workload: Workload) -> float:
    """The requests that arrive, before their number is rounded."""
    return sum(stage.rate * stage.duration_s for stage in workload.stages)


def at_rate(workload: Workload, rate: float) -> Workload:
    """The same load at `rate` requests/s: a single stage that lasts as long as all stages together."""
    return replace(workload, stages=(Stage(rate, duration_s(workload)),))


def prompt_lengths(workload: Workload) -> np.ndarray:
    """int64[prompts]: the length of every distinct prompt in tokens, with long and short ones evenly interleaved."""
    count = max(workload.groups * workload.prompts_per_group, 1)
    if workload.prompt_len_mean is None:
        return np.full(count, workload.system_prompt_len + workload.question_len, dtype=np.int64)
    low = math.floor(workload.prompt_len_mean)
    longer = round((workload.prompt_len_mean - low) * count)
    index = np.arange(count)
    return low + ((index + 1) * longer // count - index * longer // count)


def requests(experiment: Experiment, seed: int) -> Requests:
    """The experiment's requests. `seed` and the experiment's id determine the arrivals."""
    workload = experiment.workload
    rng = stream(seed, zlib.crc32(experiment.id.encode()))
    times, stages, start = [], [], 0.0
    for i, stage in enumerate(workload.stages):
        n = round(stage.rate * stage.duration_s)
        if workload.arrival == "even":
            offsets = (np.arange(n) + 0.5) * stage.duration_s / max(n, 1)
        else:
            offsets = np.sort(rng.random(n)) * stage.duration_s
        times.append(start + offsets)
        stages.append(np.full(n, i, dtype=np.int32))
        start += stage.duration_s
    arrival = (np.concatenate(times) * 1e6).astype(np.int64)
    lengths = prompt_lengths(workload)
    n = len(arrival)
    turn = np.arange(n, dtype=np.int32)
    which = turn % np.int32(len(lengths))
    if workload.groups:
        prompt, group, shared = which, which // np.int32(workload.prompts_per_group), workload.system_prompt_len
    else:  # every request has a different prompt
        prompt, group, shared = np.full(n, -1, np.int32), np.full(n, -1, np.int32), 0
    patience = workload.timeout_s
    return Requests(
        arrival_us=arrival,
        stage=np.concatenate(stages),
        input_len=lengths[which].astype(np.int32),
        output_len=np.full(n, workload.output_len, dtype=np.int32),
        prompt=prompt,
        group=group,
        shared_len=np.full(n, shared, dtype=np.int32),
        deadline_us=np.zeros(n, np.int64) if patience is None else arrival + int(patience * 1e6),
    )
