"""`replay(experiment, program, seed) -> Replay`: the latencies of an experiment's requests under a program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from simulator.clock.bind import Bound, bind, ticks
from simulator.clock.pools import PoolRun, run_pools
from simulator.clock.replicas import run_replicas, turns
from simulator.clock.run import ClockRun, HostileStep, run_clock
from simulator.clock.steps import KnownSteps, steps_of
from simulator.clock.vm import clamps
from simulator.language.ir import Program
from simulator.language.opcodes import assemble
from simulator.serving.experiment import Experiment
from simulator.serving.load import NEVER, Load, load_of
from simulator.serving.trace import Requests


@dataclass(frozen=True)
class Replay:
    """Arrays per request, in order of arrival: int64 us unless stated otherwise, 0 for requests not completed.

    ttft = queueing + waiting + prefill + per token; e2e = ttft + decode + per token x (output_len - 1) + completion.
    Waiting ends at the last admission, so after a preemption it includes all that came before. Where steps are composed
    ahead, prefill includes the rest of the step that runs at that time.
    """

    load: Load
    run: ClockRun  # the clock's result
    queueing_us: np.ndarray
    token_us: int
    completion_us: int
    clamped: int  # times outside their range, of steps and overheads

    @property
    def sent_us(self) -> np.ndarray:
        """When each request is sent; NEVER for one of which no client was free."""
        return self.load.requests.arrival_us if self.run.sent_us is None else self.run.sent_us

    @cached_property
    def requests(self) -> Requests:
        """The requests, by when they are sent; as they are due, if latencies count from then.

        One that is not sent stands at the last one's time.
        """
        requests, clients = self.load.requests, self.load.clients
        if clients is None or clients.from_due:
            return requests
        sent = np.where(self.sent_us < NEVER, self.sent_us, self.sent_us[self.sent_us < NEVER].max(initial=0))
        given_up = np.where(requests.deadline_us > 0, requests.deadline_us - requests.arrival_us + sent, 0)
        return replace(requests, arrival_us=sent, deadline_us=given_up)

    @property
    def steps(self) -> int:
        return self.run.steps

    @property
    def parts_us(self) -> Mapping[str, np.ndarray]:
        """The parts of the E2E; those of requests that were not completed count too where a part is a constant."""
        return {
            "queueing": self.queueing_us,
            "waiting": self.waiting_us,
            "prefill_steps": self.prefill_us,
            "decode_steps": self.decode_us,
            "per_token": self.token_us * self.requests.output_len.astype(np.int64),
            "completion": np.full(len(self.requests), self.completion_us),
        }

    @property
    def queued_us(self) -> np.ndarray:
        """The time in queues."""
        return self.waiting_us

    @property
    def batches(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """When each completed request entered the batch, and when it left it, for each instance that answers."""
        began = self.requests.arrival_us + self.queueing_us + self.waiting_us
        for rows in turns(self.completed, self.load.replicas):
            yield began[rows], (began + self.prefill_us + self.decode_us)[rows]

    def spread(self, values: np.ndarray) -> np.ndarray:
        """A column of `run` in order of arrival, 0 for requests that were refused."""
        if self.run.order is None:
            return values
        spread = np.zeros(len(self.load.requests), values.dtype)
        spread[self.run.order] = values
        return spread

    @cached_property
    def completed(self) -> np.ndarray:
        """bool: not for a request that was refused, whose client gave up, or that the horizon cut off."""
        return self.spread(self.run.completed)

    @cached_property
    def ttft_us(self) -> np.ndarray:
        return np.where(self.completed, self._first_us + self.token_us - self.requests.arrival_us, 0)

    @cached_property
    def e2e_us(self) -> np.ndarray:
        later = self.decode_us + self.token_us * np.maximum(self.requests.output_len - 1, 0)
        done = self.ttft_us + later + np.where(self.requests.output_len > 0, self.completion_us, 0)
        return np.where(self.completed, done, 0)

    @cached_property
    def itl_us(self) -> np.ndarray:
        """float64: mean time between tokens, (e2e - ttft)/(output_len - 1); 0 for a single output token."""
        gaps = np.maximum(self.requests.output_len - 1, 1)
        return np.where(self.requests.output_len > 1, (self.e2e_us - self.ttft_us) / gaps, 0.0)

    @cached_property
    def waiting_us(self) -> np.ndarray:
        waiting = self.spread(self.run.start_us) - self.requests.arrival_us - self.queueing_us
        return np.where(self.completed, waiting, 0)

    @cached_property
    def prefill_us(self) -> np.ndarray:
        return np.where(self.completed, self._first_us - self.spread(self.run.start_us), 0)

    @cached_property
    def decode_us(self) -> np.ndarray:
        return np.where(self.completed, self.spread(self.run.decode_us), 0)

    @cached_property
    def _first_us(self) -> np.ndarray:
        return self.spread(self.run.first_us)


@dataclass(frozen=True)
class PoolReplay(Replay):
    """The replay of separate pools for prefill and decode.

    Parts of the E2E: queueing, waiting for the prefill pool and prefill there, transfer, waiting for the decode pool
    (all until the last admission), its steps, and the times per token and at completion. Times between tokens: the
    steps of the decode pool over output_len - 1, the first of which is in the TTFT too, as in the host.
    """

    pools: PoolRun

    @cached_property
    def waiting_us(self) -> np.ndarray:
        return np.where(self.completed, self.pools.start_us - self.requests.arrival_us - self.queueing_us, 0)

    @cached_property
    def prefill_us(self) -> np.ndarray:
        return np.where(self.completed, self.pools.end_us - self.pools.start_us, 0)

    @cached_property
    def decode_waiting_us(self) -> np.ndarray:
        return np.where(self.completed, self._admitted_us - self.pools.end_us - self.pools.transfer_us, 0)

    @cached_property
    def decode_us(self) -> np.ndarray:
        return np.where(self.completed, self._first_us - self._admitted_us + self.run.decode_us, 0)

    @cached_property
    def e2e_us(self) -> np.ndarray:
        return np.where(self.completed, sum(self.parts_us.values()), 0)

    @cached_property
    def itl_us(self) -> np.ndarray:
        gaps, output = np.maximum(self.requests.output_len - 1, 1), self.requests.output_len
        twice = np.where(self.pools.computed, self._first_us - self._admitted_us + self.token_us, 0)
        return np.where((output > 1) & self.completed, (self.e2e_us - self.ttft_us + twice) / gaps, 0.0)

    @property
    def parts_us(self) -> Mapping[str, np.ndarray]:
        output = self.requests.output_len.astype(np.int64)
        tokens = np.maximum(np.where(self.pools.computed, output - 1, output), 1)
        between = {"transfer": self.pools.transfer_us, "decode_waiting": self.decode_waiting_us}
        after = {"per_token": self.token_us * tokens, "completion": np.where(output > 0, self.completion_us, 0)}
        return {**super().parts_us, **between, **after}

    @property
    def queued_us(self) -> np.ndarray:
        both: np.ndarray = self.waiting_us + self.decode_waiting_us
        return both

    @property
    def batches(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        limits = self.load.pools
        assert limits is not None
        count = limits.instances[1] or limits.instances[0]
        for i in range(count):
            done = self.completed[i::count]
            began = self._admitted_us[i::count][done]
            yield began, began + (self.decode_us if limits.decode else self.prefill_us)[i::count][done]

    @cached_property
    def _admitted_us(self) -> np.ndarray:
        """The last admission to the decode pool; the end of all without one."""
        limits = self.load.pools
        admitted: np.ndarray = self.run.start_us if limits and limits.decode else self.pools.end_us
        return admitted


def replay(experiment: Experiment, program: Program, seed: int) -> Replay:
    """Replay the experiment's requests with arrival seed `seed` under the program's times.

    Step times outside [1, 10^10] us are clamped and counted.
    """
    bound = bind(assemble(program), program.theta, experiment.facts)
    return replay_bound(load_of(experiment, seed), bound)


def replay_all(
    loads: Iterable[Load], bound: Bound, steps: KnownSteps | None = None, *, stop_when_hostile: bool = False
) -> list[Replay]:
    """`replay_bound` of each load, all under the same limits: one remembers the step times of those before."""
    loads = list(loads)
    steps = steps or steps_of(bound, loads[0].limits)
    return [replay_bound(load, bound, steps=steps, stop_when_hostile=stop_when_hostile) for load in loads]


def replay_bound(
    load: Load,
    bound: Bound,
    *,
    steps: KnownSteps | None = None,
    stop_when_hostile: bool = False,
    force_exact: bool = False,
    account: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Replay:
    """`replay` for a prepared load and bound opcodes; for the other keywords see `clock.run.run_clock`.

    `steps`: step times that earlier replays of the same `bound` remember. Raises HostileStep if `stop_when_hostile`.
    """
    lengths, which = load.lengths
    waits, clamped, offending = (bound.prefill or bound).queueing_ticks(lengths)
    overheads = bound.output_token_us(), bound.completion_us()
    for x in overheads:
        if clamps(x, 0):
            clamped, offending = clamped + 1, x
    if stop_when_hostile and clamped:
        raise HostileStep(0, offending)
    queueing = np.broadcast_to(waits[0], which.shape) if (waits == waits[0]).all() else waits.take(which)
    late = ticks(overheads[0]), ticks(overheads[1])
    if load.pools:
        if not load.pools.prefill:
            queueing = np.zeros(len(load.requests), np.int64)
        own = steps or steps_of(bound, load.limits)
        first = steps_of(bound.prefill, load.prompt_limits) if bound.prefill else own
        run, parts = run_pools(load, queueing, (first, own), stop_when_hostile)
        return PoolReplay(load, run, queueing, *late, run.clamped + clamped, parts)
    known = steps or steps_of(bound, load.limits)
    if load.replicas > 1 and not load.clients:
        how = stop_when_hostile, force_exact, account, progress
        run = run_replicas(load, queueing, known, *how)
        return Replay(load, run, queueing, *late, run.clamped + clamped)
    run = run_clock(
        load,
        queueing,
        known,
        overheads_us=late,
        stop_when_hostile=stop_when_hostile,
        force_exact=force_exact,
        account=account,
        progress=progress,
    )
    return Replay(load, run, queueing, *late, run.clamped + clamped)
