"""How the host's scorer, `metricscore`, loads a deployment at a fixed concurrency, and what it takes from a run.

Its clients are those of the host, and send 2 requests each as a warm-up, then 10. Lengths of prompts and answers are
independent whole numbers, uniform from 0.8 of a label to the label. TTFT is the mean over all requests that complete.
TPOT is the mean over requests of each request's mean ITL. It leaves out the warm-up: the first to complete.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.clock.replay import Replay
from simulator.serving.distribution import Distribution
from simulator.serving.traces.workload_spec import PATIENCE_US
from simulator.serving.workload import HOST, Arrival, Clients, Profile, Stage, Workload

SHORTEST = 0.8  # of a label
WARMUP, REQUESTS = 2, 10  # for each client
SEED = 42  # the scorer's default
PERCENTILES = (90, 95, 99)


def closed_load(clients: int, requests: int, prompt: Distribution, answer: Distribution) -> Workload:
    """The load of so many clients, as `read_workload_spec` reads it from the scorer's file."""
    profile = Profile(Arrival("poisson"), 0, 0, 0, prompt, None, answer)
    stages = (Stage(0.0, 0.0, users=clients, requests=requests),)
    return Workload("closed-loop", stages, profile, True, PATIENCE_US / 1e6, Clients(release=HOST))


def labelled(label: int) -> Distribution:
    """The lengths of a label.

    >>> labelled(1024).low, labelled(1024).high
    (819, 1024)
    """
    return Distribution("uniform", low=int(SHORTEST * label), high=label)


def label_of(mean: float) -> int:
    """The label whose lengths have this mean, as a benchmark reports it.

    >>> label_of(922), label_of(7373)  # rounded means of 819 to 1024 and of 6553 to 8192
    (1024, 8192)
    """
    return max(round(2.0 * mean / (1.0 + SHORTEST)), 1)


@dataclass(frozen=True, slots=True)
class Latency:
    """A mean and the PERCENTILES in ms."""

    mean: float
    percentiles: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PointFigures:
    """What the scorer takes from a run, each None if no request has one; E2E, which it does not take, is over all
    requests that complete.
    """

    tpot_ms: Latency | None
    ttft_ms: Latency | None
    e2e_ms: Latency | None


def in_completion_order(replay: Replay) -> np.ndarray:
    """int64: the completed requests, in the order in which the engine completes them."""
    done = np.flatnonzero(replay.completed)
    ends = replay.spread(replay.run.first_us + replay.run.decode_us)
    return np.asarray(done[np.argsort(ends[done], kind="stable")])


def figures(replay: Replay, clients: int) -> PointFigures:
    """The figures of a run of so many clients. If nothing completes after the warm-up, its requests count."""
    rows = in_completion_order(replay)
    cut = WARMUP * clients
    measured = rows[cut:] if cut < len(rows) else rows
    return PointFigures(*(_latency(us) for us in (replay.itl_us[measured], replay.ttft_us[rows], replay.e2e_us[rows])))


def _latency(us: np.ndarray) -> Latency | None:
    known_ms = us[us > 0] / 1e3
    if not known_ms.size:
        return None
    return Latency(float(known_ms.mean()), tuple(map(float, np.percentile(known_ms, PERCENTILES))))
