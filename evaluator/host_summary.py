"""A replay's aggregate figures as the host simulator reports them, computed in the same order."""

from __future__ import annotations

import math

import numpy as np

from simulator.clock.replay import Replay
from simulator.serving.load import NEVER

PERCENTILES = (90, 95, 99)


def aggregate(replay: Replay) -> dict[str, object]:
    """The summary of the host: counts, requests and tokens per second, latencies in milliseconds.

    Needs a replay with `account=True`. E2E is of completed requests, TTFT of all requests with a first token, ITL of
    the single gaps of completed requests, scheduling delay of all requests that were ever admitted.
    """
    run, load, r = replay.run, replay.load, replay.requests
    assert run.account is not None
    horizon = load.limits.horizon_us
    sent = replay.sent_us < NEVER
    queued = np.where(sent, replay.sent_us + replay.queueing_us * sent, NEVER)
    arrived = sent & (queued <= horizon)
    refused = (r.deadline_us > 0) & (r.deadline_us <= queued)
    entered = arrived & load.accepted & ~refused
    done, gave_up = int(replay.completed.sum()), int(run.gave_up.sum())
    dropped = int((arrived & ~load.accepted).sum())
    duration = min(max(run.account.last_us, _last_event_us(replay, queued)), horizon) / 1e6
    outputs = int(r.output_len[replay.completed].sum(dtype=np.int64))
    first, start = replay.spread(run.first_us), replay.spread(run.start_us)
    admitted = replay.spread(run.cached >= 0)
    us, tokens = run.account.gaps
    latencies = {
        "e2e": (np.sort(replay.e2e_us[replay.completed]), None),
        "ttft": (np.sort((first + replay.token_us - r.arrival_us)[first > 0]), None),
        "itl": (us + replay.token_us, tokens),
    }
    figures: dict[str, object] = {
        "instance_id": "cluster",
        "completed_requests": done,
        "still_queued": run.queued,
        "still_running": run.running,
        "injected_requests": done + run.queued + run.running + dropped + gave_up,
        "total_input_tokens": int(r.input_len[entered].sum(dtype=np.int64)),
        "total_output_tokens": outputs,
        "vllm_estimated_duration_s": duration,
        "responses_per_sec": done / duration if done and duration > 0 else 0.0,
        "tokens_per_sec": outputs / duration if done and duration > 0 else 0.0,
    }
    for latency, (values, counts) in latencies.items():  # without a completed request the host reports zeros
        figures[f"{latency}_mean_ms"] = mean_ms(values, counts) if done else 0.0
        for p in PERCENTILES:
            figures[f"{latency}_p{p}_ms"] = percentile_ms(values, counts, p) if done else 0.0
    delays = np.sort((start - r.arrival_us)[admitted])
    figures["scheduling_delay_p99_ms"] = percentile_ms(delays, None, 99) if done else 0.0
    if run.failures:
        figures["kv_allocation_failures"] = run.failures
    if load.limits.tier:
        figures["kv_blocks_loaded"] = run.loaded  # not the host's: of the hits, those from host memory
    return figures | {
        "preemption_count": run.preemptions,
        "cache_hit_rate": run.account.hit_rate,
        "dropped_unservable": dropped,
        "length_capped_requests": 0,  # outputs end where the trace ends them, before the host's cap
        "timed_out_requests": gave_up,
    }


def _last_event_us(replay: Replay, queued: np.ndarray) -> int:
    """The time of the last event outside of steps: an arrival, a refusal, or the timeout of a client that left.

    The host skips the deadline of a completed request.
    """
    r, horizon = replay.requests, replay.load.limits.horizon_us
    times = [replay.sent_us, queued, r.deadline_us[replay.spread(replay.run.gave_up)]]
    return max(int(t[(t <= horizon) & (t < NEVER)].max(initial=0)) for t in times)


def mean_ms(values: np.ndarray, counts: np.ndarray | None) -> float:
    """The mean in ms of microseconds, each counted `counts` times; 0 for none."""
    size = len(values) if counts is None else int(counts.sum())
    total = int(values.sum()) if counts is None else int((values * counts).sum())
    return total / size / 1e3 if size else 0.0


def percentile_ms(values: np.ndarray, counts: np.ndarray | None, p: float) -> float:
    """The percentile `p` in ms of sorted microseconds, each counted `counts` times; 0 for none.

    Interpolates linearly between the neighbours of rank p/100 * (n - 1), in the host's order of evaluation.
    """
    ends = None if counts is None else np.cumsum(counts)
    size = len(values) if ends is None else int(ends[-1]) if len(ends) else 0
    if not size:
        return 0.0

    def at(i: int) -> float:
        return float(values[i if ends is None else np.searchsorted(ends, i, side="right")])

    rank = p / 100.0 * (size - 1)
    low, high = math.floor(rank), min(math.ceil(rank), size - 1)
    return at(low) / 1e3 + (rank - low) * ((at(high) - at(low)) / 1e3)
