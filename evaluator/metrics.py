"""Metrics of a replay as a load generator reports them, per run and per load stage, in ms; and errors from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from simulator.clock.replay import Replay
from simulator.common.jit import njit
from simulator.serving.observations import QUANTITIES, Observation, Observed, Statistic, statistic
from simulator.serving.trace import rows_by_stage

LATENCIES = ("e2e_ms", "ttft_ms", "itl_ms")
PARTS = ("queueing", "waiting", "prefill_steps", "decode_steps", "per_token", "completion")
POOL_PARTS = ("transfer", "decode_waiting")  # between separate pools for prefill and decode
US_PER_MS = 1e3
UNCACHED_PERCENTILE = 95  # see step_tokens
WAITING = 0.05  # share of the mean E2E in the queue above which it may grow: twice that of the fullest calm run shipped
LONGER = 1.5  # ratio of the waits of the second and first half of the requests above which the queue grows


def observe(replay: Replay, rows: np.ndarray) -> Observation:
    """The report of a load generator on the requests at `rows`."""
    done = rows[replay.completed[rows]]
    return Observation(
        e2e_ms=statistic(replay.e2e_us[done], US_PER_MS),
        ttft_ms=statistic(replay.ttft_us[done], US_PER_MS),
        itl_ms=statistic(replay.itl_us[done[replay.requests.output_len[done] > 1]], US_PER_MS),
        completed=len(done),
        failed=len(rows) - len(done),
    )


def observe_all(replay: Replay, stages: int = 0) -> Observed:
    """The run's summary and its load stages, at least so many: the last ones may have no request."""
    stage = replay.requests.stage
    count = max(stages, int(stage.max(initial=-1)) + 1)
    of_stages = tuple(observe(replay, rows) for rows in rows_by_stage(stage, count))
    return Observed(observe(replay, np.flatnonzero(stage >= 0)), of_stages)


def stage_means(replay: Replay, stages: int) -> np.ndarray:
    """float64[stages, 3]: mean E2E, TTFT, ITL in ms of each load stage, as in `observe`; NaN where no request that was
    completed has one."""
    sums, counts, _ = _sums(replay, stages)
    with np.errstate(invalid="ignore", divide="ignore"):
        means_ms: np.ndarray = sums / counts / 1e3
    return means_ms


def _sums(replay: Replay, stages: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(sums of E2E, TTFT, ITL over completed requests in us; the number of these requests that have one, both
    float64[stages, 3]; the ITL in us of each of them that has one)."""
    r, run = replay.requests, replay.run
    sums, counts, itl_us = np.zeros((stages, 3)), np.zeros((stages, 3)), np.empty(len(r))
    first, decode = replay.spread(run.first_us), replay.spread(run.decode_us)
    times = r.arrival_us, first, decode, r.output_len, replay.token_us, replay.completion_us
    several = _stage_sums(r.stage, replay.completed, *times, sums, counts, itl_us)
    return sums, counts, itl_us[:several]


@njit
def _stage_sums(stage, done, arrival, first, decode, output, token, completion, sums, counts, itl):  # type: ignore[no-untyped-def]
    """Sums over completed requests of the latencies of `Replay`, in one pass: a fit does this for every replay.

    Returns how many of `itl` are filled in.
    """
    several = 0
    for i in range(stage.size):
        if not done[i] or stage[i] < 0:  # requests before those that count
            continue
        s, later = stage[i], output[i] - 1 if output[i] > 1 else 0
        decoding = decode[i] + token * later + (completion if output[i] > 0 else 0)
        ttft = first[i] + token - arrival[i]
        sums[s, 0] += ttft + decoding
        sums[s, 1] += ttft
        counts[s, 0] += 1
        counts[s, 1] += 1
        if later > 0:  # an answer of one token has no time between tokens
            itl[several] = decoding / later
            sums[s, 2] += itl[several]
            counts[s, 2] += 1
            several += 1
    return several


def components_ms(replay: Replay) -> dict[str, float]:
    """Mean E2E of a request split into PARTS, and POOL_PARTS of separate pools, in ms; they add up to the mean E2E."""
    done = replay.completed & (replay.requests.stage >= 0)
    n = max(int(done.sum()), 1)
    return {part: float(us[done].sum()) / n / 1e3 for part, us in replay.parts_us.items()}


def queued_ms(components: Mapping[str, float]) -> float:
    """The time in queues among the parts of the E2E."""
    return components["waiting"] + components.get("decode_waiting", 0.0)


def queue_grows(replays: Sequence[Replay], stages: int) -> bool:
    """Whether a queue grows over the run and in one of its load stages: a stage that waits more than the one before
    it, because it is fuller, need not have a queue that grows."""
    every = [np.arange(len(r.requests.stage)) for r in replays]
    return grows(replays, every) and (stages < 2 or any(stages_grow(replays, stages)))


def stages_grow(replays: Sequence[Replay], stages: int) -> list[bool]:
    """Whether a queue `grows` in each of so many load stages."""
    of_replays = [rows_by_stage(r.requests.stage, stages) for r in replays]
    return [grows(replays, rows) for rows in zip(*of_replays, strict=True)]


def grows(replays: Sequence[Replay], rows: Sequence[np.ndarray]) -> bool:
    """Whether the requests at these rows of each replay wait, and the second half of them longer than the first.

    In a queue that grows steadily the second half waits three times as long. Requests that arrive at once are in one
    half: a single burst, whose last requests wait for its first, is no queue that grows. Nor is that of clients who
    wait for their answers, as there are only so many. Requests that a cap holds back wait from when they are due.
    """
    if any(r.load.clients and not r.load.clients.capped for r in replays):
        return False
    halves: tuple[list[np.ndarray], list[np.ndarray]] = [], []
    e2e_us = waiting_us = 0.0
    for r, of_replay in zip(replays, rows, strict=True):
        done = of_replay[r.completed[of_replay]]
        arrivals, instant = np.unique(r.requests.arrival_us[done], return_inverse=True)
        second = 2 * instant > len(arrivals) - 1
        held_us = (r.requests.arrival_us - r.load.requests.arrival_us)[done]
        waits_us = r.queued_us[done] + held_us
        halves[0].append(waits_us[~second])
        halves[1].append(waits_us[second])
        e2e_us += float((r.e2e_us[done] + held_us).sum())
        waiting_us += float(waits_us.sum())
    earlier, later = (float(part.mean()) if len(part := np.concatenate(half)) else 0.0 for half in halves)
    return waiting_us > WAITING * e2e_us and later > LONGER * earlier


def new_tokens(replay: Replay) -> np.ndarray:
    """int64 per request in order of arrival: its prompt tokens that were not cached at its last admission."""
    cached_blocks = np.maximum(replay.spread(replay.run.cached), 0).astype(np.int64)
    return np.asarray(replay.requests.input_len - cached_blocks * replay.load.limits.block)


def step_tokens(replay: Replay) -> int:
    """The most new prompt tokens that a request brings into one step: the 95th percentile over completed requests.

    The percentile leaves out the first uses of prompts that the cache holds afterwards, unless they are many. The
    engine's limits of a step cap it. Requests that prefill in the same step are not added up.
    """
    new = new_tokens(replay)[replay.completed]
    if not len(new):
        return 0
    limits = replay.load.prompt_limits
    most = min(limits.budget, limits.threshold) if limits.threshold else limits.budget
    return min(int(np.percentile(new, UNCACHED_PERCENTILE, method="lower")), most)


def evicted(replay: Replay) -> int:
    """The number of requests that compute a cached block or more again: an earlier request with their prompt had it."""
    if not replay.load.prompt_limits.caching:
        return 0
    prompt, inputs = replay.requests.prompt, replay.requests.input_len.astype(np.int64)
    rows = np.flatnonzero(prompt >= 0)
    rows = rows[np.argsort(prompt[rows], kind="stable")]
    again = rows[1:][prompt[rows[1:]] == prompt[rows[:-1]]]
    before = rows[:-1][prompt[rows[1:]] == prompt[rows[:-1]]]
    fresh = np.maximum(inputs[again] - inputs[before], 0)  # of a conversation that goes on
    lost = new_tokens(replay)[again] - fresh >= replay.load.limits.block
    return int((lost & replay.completed[again]).sum())


def mean(values: Sequence[float | None]) -> float | None:
    """The mean; None if any value is missing."""
    numbers = present(values)
    return sum(numbers) / len(numbers) if len(numbers) == len(values) else None


def mean_abs(errors: Sequence[float | None]) -> float | None:
    """The mean absolute error over those that are not None; None if all are."""
    numbers = present(errors)
    return sum(map(abs, numbers)) / len(numbers) if numbers else None


def present(values: Sequence[float | None]) -> list[float]:
    """The values that are not None."""
    return [v for v in values if v is not None]


def run_means_ms(replay: Replay) -> tuple[float | None, float | None, float | None]:
    """Mean E2E, TTFT and ITL of a run in ms, as in `observe`, without the percentiles."""
    sums, counts, itl_us = _sums(replay, int(replay.requests.stage.max(initial=-1)) + 1)
    totals, done = sums.sum(axis=0), counts[:, 0].sum()
    e2e, ttft = (float(total / done) / 1e3 if done else None for total in totals[:2])
    return e2e, ttft, float(itl_us.mean()) / 1e3 if len(itl_us) else None


def ttft_p99_ms(replay: Replay) -> float | None:
    """The 99th percentile of TTFT of the run in ms, as in `observe`; None if no request that counts completes."""
    ttft_us = replay.ttft_us[replay.completed & (replay.requests.stage >= 0)]
    if not ttft_us.size:
        return None
    return float(np.percentile(ttft_us, 99)) / US_PER_MS


def average(observations: Sequence[Observation]) -> Observation:
    """Each statistic averaged over arrival seeds; None if a seed has none."""

    def merge(name: str) -> Statistic:
        parts = [getattr(o, name) for o in observations]
        return Statistic(*(mean([getattr(p, q) for p in parts]) for q in QUANTITIES))

    counts = [mean([getattr(o, name) for o in observations]) for name in ("completed", "failed")]
    completed, failed = (None if c is None else round(c) for c in counts)
    e2e, ttft, itl = (merge(name) for name in LATENCIES)
    return Observation(e2e, ttft, itl, completed=completed, failed=failed)


def error_pct(predicted: float | None, observed: float | None) -> float | None:
    """Signed relative error in percent, (predicted - observed)/observed; None if either is missing or observed is 0."""
    if predicted is None or not observed:
        return None
    return 100.0 * (predicted - observed) / observed
