"""What arrives when: an experiment's requests, as the load generator sent them.

Stages start on schedule. `poisson` and `constant` both mean round(rate x duration) sorted uniform times in the
stage, which is what the load generator did; `even` means evenly spaced. Prompts are used in turn; with a mean
length given, their lengths are its floor or ceiling with exactly that mean.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

import numpy as np

from simulator.experiment import Experiment, Workload


@dataclass(frozen=True)
class Requests:
    """One row a request, in order of arrival. Times in microseconds, lengths in tokens.

    prompt: which distinct prompt it sends; group: which prompts share their first `shared_len` tokens.
    """

    arrival_us: np.ndarray  # int64
    stage: np.ndarray  # int64
    input_len: np.ndarray  # int64
    output_len: np.ndarray  # int64
    prompt: np.ndarray  # int64
    group: np.ndarray  # int64
    shared_len: int

    def __len__(self) -> int:
        return len(self.arrival_us)


def prompt_lengths(workload: Workload) -> np.ndarray:
    """int64[prompts], tokens: the length of every distinct prompt, long and short ones evenly interleaved."""
    count = max(workload.groups * workload.prompts_per_group, 1)
    if workload.prompt_len_mean is None:
        return np.full(count, workload.system_prompt_len + workload.question_len, dtype=np.int64)
    low = math.floor(workload.prompt_len_mean)
    longer = round((workload.prompt_len_mean - low) * count)
    index = np.arange(count)
    return low + ((index + 1) * longer // count - index * longer // count)


def requests(experiment: Experiment, seed: int) -> Requests:
    """The experiment's requests; `seed` and the experiment's id fix the arrivals."""
    workload = experiment.workload
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, zlib.crc32(experiment.id.encode())])))
    times, stages, start = [], [], 0.0
    for i, stage in enumerate(workload.stages):
        n = round(stage.rate * stage.duration_s)
        if workload.arrival == "even":
            offsets = (np.arange(n) + 0.5) * stage.duration_s / max(n, 1)
        else:
            offsets = np.sort(rng.random(n)) * stage.duration_s
        times.append(start + offsets)
        stages.append(np.full(n, i, dtype=np.int64))
        start += stage.duration_s
    arrival = (np.concatenate(times) * 1e6).astype(np.int64)
    lengths = prompt_lengths(workload)
    turn = np.arange(len(arrival), dtype=np.int64)
    if workload.groups:
        prompt = turn % len(lengths)
        group = prompt // workload.prompts_per_group
        shared = workload.system_prompt_len
    else:  # every request has a prompt of its own
        prompt, group, shared = turn, turn, 0
    return Requests(
        arrival_us=arrival,
        stage=np.concatenate(stages),
        input_len=lengths[prompt % len(lengths)],
        output_len=np.full(len(arrival), workload.output_len, dtype=np.int64),
        prompt=prompt,
        group=group,
        shared_len=shared,
    )
