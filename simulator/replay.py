"""`replay(experiment, program, seed) -> Replay`: what every request of an experiment sees under a program."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from simulator.bind import Bound, bind, ticks
from simulator.experiment import Experiment
from simulator.kernel import HOSTILE, ORDER_MATTERS, clock
from simulator.language.ir import Program
from simulator.language.opcodes import assemble
from simulator.reference import Limits, Times, no_times, reference_clock, step_function
from simulator.vm import clamps
from simulator.workload import Requests, requests


class HostileStep(Exception):
    """A step time outside [1, 10^10] microseconds, or not a number, in a replay that does not allow it."""

    def __init__(self, step: int, value_us: float) -> None:
        super().__init__(f"step {step} would last {value_us:g} us: it must be finite and within 1 and 1e10")


@dataclass(frozen=True)
class Replay:
    """Per request, in order of arrival, int64 microseconds unless said otherwise.

    ttft = queueing + waiting + prefill + per token; e2e = ttft + decode + per token x (output_len - 1) + completion.
    `served` is False for a request that the engine refuses because it is longer than max_model_len; its times are 0.
    itl_us is float64, the mean (e2e - ttft)/(output_len - 1), and 0 for a single output token.
    """

    requests: Requests
    served: np.ndarray
    queueing_us: np.ndarray
    waiting_us: np.ndarray
    prefill_us: np.ndarray
    decode_us: np.ndarray
    token_us: int
    completion_us: int
    ttft_us: np.ndarray
    e2e_us: np.ndarray
    itl_us: np.ndarray
    steps: int
    clamped: int


def replay(experiment: Experiment, program: Program, seed: int, *, plain: bool = False) -> Replay:
    """Run the experiment's requests of arrival seed `seed` under `program`'s times.

    `plain` takes the reference clock and the plain interpreter instead of the compiled ones (slow; equal).
    Step times outside [1, 10^10] us are clamped and counted.
    """
    bound = bind(assemble(program), program.theta, experiment.facts)
    return replay_bound(experiment, requests(experiment, seed), bound, program=program, plain=plain)


def replay_bound(
    experiment: Experiment,
    load: Requests,
    bound: Bound,
    *,
    program: Program | None = None,
    plain: bool = False,
    stop_when_hostile: bool = False,
) -> Replay:
    """`replay` for requests and opcodes prepared beforehand; raises HostileStep if `stop_when_hostile`.

    `program` is the source of `bound`, needed for the plain clock only.
    """
    served = load.input_len + load.output_len <= experiment.facts["max_model_len"]
    lengths = np.unique(load.input_len)
    exact = [bound.queueing_us(int(length)) for length in lengths]
    overheads = [*exact, bound.output_token_us(), bound.completion_us()]
    if stop_when_hostile and any(clamps(x, 0) for x in overheads):
        worst = next(x for x in overheads if clamps(x, 0))
        raise HostileStep(0, worst)
    queueing = np.array([ticks(x) for x in exact], np.int64)[np.searchsorted(lengths, load.input_len)]
    queued = load.arrival_us + queueing
    order = np.argsort(queued, kind="stable")
    order = order[served[order]]
    times = _clock(experiment, load, bound, queued, order, program, plain, stop_when_hostile)
    token, completion = ticks(bound.output_token_us()), ticks(bound.completion_us())
    clamped = times.clamped + sum(bool(clamps(x, 0)) for x in overheads)

    def spread(values: np.ndarray) -> np.ndarray:
        out = np.zeros(len(load), np.int64)
        out[order] = values
        return out

    start, first, decode = spread(times.start_us), spread(times.first_us), spread(times.decode_us)
    ttft = np.where(served, first + token - load.arrival_us, 0)
    e2e = np.where(served, ttft + decode + token * (load.output_len - 1) + completion, 0)
    gaps = np.maximum(load.output_len - 1, 1)
    return Replay(
        requests=load,
        served=served,
        queueing_us=np.where(served, queueing, 0),
        waiting_us=np.where(served, start - queued, 0),
        prefill_us=first - start,
        decode_us=decode,
        token_us=token,
        completion_us=completion,
        ttft_us=ttft,
        e2e_us=e2e,
        itl_us=np.where(load.output_len > 1, (e2e - ttft) / gaps, 0.0),
        steps=times.steps,
        clamped=clamped,
    )


def _clock(
    experiment: Experiment,
    load: Requests,
    bound: Bound,
    queued: np.ndarray,
    order: np.ndarray,
    program: Program | None,
    plain: bool,
    stop_when_hostile: bool,
) -> Times:
    engine, code = experiment.engine, bound.code
    columns = (queued[order], load.input_len[order], load.output_len[order], load.prompt[order], load.group[order])
    limits = Limits(
        max_seqs=engine.max_num_seqs,
        budget=engine.max_num_batched_tokens,
        threshold=engine.long_prefill_token_threshold,
        block=engine.block_size,
        caching=engine.prefix_caching,
    )
    if not plain:
        out = no_times(len(order))
        status, steps, clamped, x = clock(
            code.rows, code.static, code.step, bound.values.copy(), code.raw, code.results[0],
            "kv_var" in code.uses, bool({"kv_max", "kv_decode_max"} & code.uses),
            *columns, int(load.prompt.max(initial=0)) + 1, int(load.group.max(initial=0)) + 1,
            load.shared_len, limits.block, limits.caching, limits.max_seqs, limits.budget, limits.threshold,
            stop_when_hostile, out.start_us, out.first_us, out.decode_us,
        )  # fmt: skip
        if status == HOSTILE:
            raise HostileStep(steps, x)
        if status != ORDER_MATTERS:
            return replace(out, steps=steps, clamped=clamped)
    if program is None:
        raise ValueError("the plain clock needs the program itself")
    return reference_clock(*columns, load.shared_len, limits, step_function(program, experiment.facts))
