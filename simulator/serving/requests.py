"""An experiment's requests, as they were recorded or as the load generator sent them.

Stages start on schedule; those of a closed load when the one before has ended, and all of its requests are due at
once. `poisson` and `constant` both mean round(rate x duration) sorted uniform times in the stage,
which is what the load generator did; `even` means evenly spaced. Prompts are used in turn.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from simulator.common.streams import stream
from simulator.serving.experiment import Experiment
from simulator.serving.trace import Requests, Trace
from simulator.serving.workload import (
    Arrival,
    Profile,
    Session,
    Workload,
    distinct_prompts,
    has_constant_prompts,
    phases,
    prompt_lengths,
)

LENGTHS, SESSIONS, THINKING = 1, 2, 3  # streams of an experiment beside that of its arrivals
TINY = 1e-300  # a sum of gaps that are all too small for float64


def requests(experiment: Experiment, seed: int) -> Requests:
    """The experiment's requests. `seed` and the experiment's id determine what is drawn; a trace is as recorded."""
    return requests_of(experiment.workload, experiment.id, seed)


def requests_of(workload: Workload, name: str, seed: int) -> Requests:
    """The requests of a load that has no experiment; `name` stands for the experiment's id."""
    match workload.source:
        case Trace(requests=recorded):
            return recorded
        case profile:
            return _drawn(workload, profile, seed, zlib.crc32(name.encode()))


def _drawn(workload: Workload, profile: Profile, seed: int, name: int) -> Requests:
    """The requests of a profile, which the numbers `seed` and `name` determine."""
    rng, lengths_rng = stream(seed, name), stream(seed, name, LENGTHS)
    stages = phases(workload)
    counts = [round(stage.offered) for stage in stages]
    starts = np.cumsum([0.0, *(stage.duration_s for stage in stages)])
    n = sum(counts)
    each = list(zip(stages, counts, strict=True))
    turns = _turns(profile.session, stream(seed, name, SESSIONS), counts) if profile.session else None
    first = [stage_turns == 0 for stage_turns in turns] if turns else [np.full(count, True) for count in counts]
    times = [
        start + _offsets(rng, stage.arrival or profile.arrival, int(opens.sum()), stage.duration_s)
        for start, stage, opens in zip(starts, stages, first, strict=False)
    ]
    questions = np.concatenate([(s.question_len or profile.question_len).draw_whole(lengths_rng, k) for s, k in each])
    answers = np.concatenate([(s.output_len or profile.output_len).draw_whole(lengths_rng, k) for s, k in each])
    questions, answers = np.maximum(questions, 1), np.maximum(answers, 1)
    warm_up = len(stages) - len(workload.stages)  # of stage NOT_COUNTED
    arrival_s, stage_of = np.concatenate(times), np.repeat(np.arange(len(counts), dtype=np.int32) - warm_up, counts)
    number, system = np.arange(n, dtype=np.int32), profile.system_prompt_len
    prompt = group = np.full(n, -1, np.int32)
    if profile.session:
        opens = np.concatenate(first)
        prompt = (np.cumsum(opens) - 1).astype(np.int32)
        if profile.groups:
            group = prompt % np.int32(profile.groups)
        thought = np.where(opens, 0.0, profile.session.think_time_s.draw(lengths_rng, n))
        arrival_s = arrival_s[prompt] + _since(opens, thought)
        # A longer prompt is refused anyway, and must not overflow.
        inputs = np.minimum(system + _since(opens, questions + answers) - answers, np.iinfo(np.int32).max)
        stage_of = np.minimum(np.searchsorted(starts[1:], arrival_s, "right"), len(counts) - 1).astype(np.int32)
    elif distinct := distinct_prompts(workload):
        prompt = number % np.int32(distinct)
        group = prompt // np.int32(profile.prompts_per_group)
        lengths = prompt_lengths(workload)
        inputs = lengths[prompt] if has_constant_prompts(workload, profile) else system + questions[prompt]
    else:
        if profile.groups:
            group = number % np.int32(profile.groups)
        constant_length = prompt_lengths(workload)[0]
        inputs = np.full(n, constant_length) if has_constant_prompts(workload, profile) else system + questions
    arrival = (arrival_s * 1e6).astype(np.int64)
    patience = workload.timeout_s
    drawn = Requests(
        arrival_us=arrival,
        stage=stage_of,
        input_len=inputs.astype(np.int32),
        output_len=answers.astype(np.int32),
        prompt=prompt,
        group=group,
        shared_len=np.full(n, system if profile.groups else 0, dtype=np.int32),
        deadline_us=np.zeros(n, np.int64) if patience is None else arrival + int(patience * 1e6),
        turns=profile.session is not None,
    )
    # Later turns come among the first ones of other conversations.
    return drawn.of(np.argsort(arrival, kind="stable")) if profile.session else drawn


def _turns(session: Session, rng: np.random.Generator, counts: Sequence[int]) -> list[np.ndarray]:
    """For every stage, the turn that each of its requests is in its conversation, from 0."""
    turns = []
    for count in counts:
        lengths = np.maximum(session.turns.draw_whole(rng, count), 1)  # more conversations than are needed
        ends, request = np.cumsum(lengths), np.arange(count)
        of = np.searchsorted(ends, request, side="right")
        turns.append(request - (ends - lengths)[of])
    return turns


def _since(opens: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The running sum of `values` from the last place at which `opens` is true, that place included."""
    total = np.cumsum(values)
    start = np.flatnonzero(opens)
    sums: np.ndarray = total - (total - values)[start][np.cumsum(opens) - 1]
    return sums


def _offsets(rng: np.random.Generator, arrival: Arrival, n: int, duration_s: float) -> np.ndarray:
    """float64[n]: sorted arrival times in seconds from the start of a stage of `duration_s`."""
    match arrival.kind:
        case "even":
            return (np.arange(n) + 0.5) * duration_s / max(n, 1)
        case "gamma":  # gaps of this shape, as long together as the stage: n arrivals, as in the other kinds
            ends = np.cumsum(rng.gamma(1.0 / arrival.cv**2, size=n + 1))
            return np.asarray(ends[:-1] / max(ends[-1], TINY) * duration_s)
        case "burst":
            bursts = -(-n // arrival.size)
            return np.asarray(np.repeat(np.sort(rng.random(bursts)) * duration_s, arrival.size)[:n])
        case _:
            return np.sort(rng.random(n)) * duration_s
