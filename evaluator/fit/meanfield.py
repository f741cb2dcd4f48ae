"""Load stages in their mean: Little's law instead of a replay, microseconds of work instead of milliseconds.

In a steady stage n decodes run at once, n = rate x (output_len - 1) x mean step time(n), at most the request limit;
a share of the steps carries prompt chunks. Step times at whole n are joined by straight lines, so that the
prediction moves smoothly with the constants. What is lost (fluctuation, order, saturation) is put back by
`fit.py`, which scales these figures to a full replay's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evaluator.fit.uncached import new_tokens
from simulator import schema
from simulator.bind import base_values, bind, settle
from simulator.experiment.experiment import Experiment, Observation
from simulator.experiment.load import Load
from simulator.experiment.workload import prompt_lengths
from simulator.jit import njit
from simulator.language.complete import complete
from simulator.language.ir import Function, Number, Program
from simulator.language.opcodes import Code, assemble
from simulator.replay import Replay, replay_bound
from simulator.vm import run

# columns of Stages.table
RATE, OUTPUT, INPUT, UNCACHED, FULL_HITS, SEQS, BUDGET, DURATION, DEPLOYMENT, OBSERVED_N, COLD, COLD_LEN = range(12)


@dataclass(frozen=True)
class Stages:
    """The load stages of several experiments as arrays.

    table: float64[stages, 12], one column each of the constants above (rate in requests/us, times in us).
    observed_ms: float64[stages, 3] mean E2E, TTFT, ITL; NaN where not observed. first: where each experiment's
    stages begin.
    """

    table: np.ndarray
    observed_ms: np.ndarray
    experiments: tuple[Experiment, ...]
    first: tuple[int, ...]


def stages_of(experiments: Sequence[Experiment], loads: Sequence[Load]) -> Stages:
    """All load stages in order; an experiment without observed stages but with one stage uses its summary.

    How much of the prompts the cache holds is taken from a replay of each load at the pace that was observed.
    """
    rows: list[list[float]] = []
    observed, first = [], []
    for i, e in enumerate(experiments):
        first.append(len(rows))
        lengths = prompt_lengths(e.workload)
        shared = e.engine.prefix_caching and e.workload.groups > 0
        prompts = computed(e, loads[i])
        cold = float(len(lengths)) if shared else 0.0  # prompts that the first stage has to prefill in full
        for j, stage in enumerate(e.workload.stages):
            means = _means(_observation(e, j))
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
    return Stages(table, np.array(observed), tuple(experiments), tuple(first))


def computed(experiment: Experiment, load: Load) -> list[tuple[float, float]]:
    """For each load stage: the mean prompt tokens computed by requests that compute any, and the share that find
    their whole prompt cached. The first use of every prompt is left out. Replayed with steps of the observed ITL."""
    replay = paced(experiment, load)
    asked = replay.requests
    new = new_tokens(replay)
    new[: experiment.workload.groups * experiment.workload.prompts_per_group] = -1
    out = []
    for j in range(len(experiment.workload.stages)):
        seen = new[(asked.stage == j) & (new >= 0)]
        some = seen[seen > 0]
        out.append((float(some.mean()) if len(some) else 0.0, float((seen == 0).mean()) if len(seen) else 0.0))
    return out


def paced(experiment: Experiment, load: Load) -> Replay:
    """A replay in which every step takes the mean observed ITL, 10 ms where none was observed."""
    means = [_means(_observation(experiment, j))[2] for j in range(len(experiment.workload.stages))]
    known = [m for m in means if not math.isnan(m)] or [10.0]
    pace = complete(Program((Function("step_time", (), (), Number(1e3 * sum(known) / len(known))),)))
    return replay_bound(load, bind(assemble(pace), pace.theta, experiment.facts))


def _observation(experiment: Experiment, stage: int) -> Observation | None:
    observed = experiment.observed
    if observed is None:
        return None
    if observed.stages:
        return observed.stages[stage]
    return observed.summary if len(experiment.workload.stages) == 1 else None


def _means(o: Observation | None) -> list[float]:
    if o is None:
        return [math.nan] * 3
    return [math.nan if s.mean is None else s.mean for s in (o.e2e_ms, o.ttft_ms, o.itl_ms)]


def bases(code: Code, stages: Stages) -> np.ndarray:
    """float64[experiments, slots]: the value vector of every deployment, constants still 0."""
    return np.stack([base_values(code, e.facts) for e in stages.experiments])


@njit
def _step(rows, static, step, raw, out, v, n, k, chunk, shortest, span):  # type: ignore[no-untyped-def]
    """Step time in us with n decodes, contexts evenly spread over `span` tokens, and k prompts of `chunk` tokens."""
    context = shortest + span / 2.0
    longest = shortest + span * n / (n + 1.0) if n > 0 else 0.0
    v[raw + schema.PREFILL_REQS] = k if chunk > 0 else 0.0
    v[raw + schema.DECODE_REQS] = n
    v[raw + schema.PREFILL_TOKENS] = k * chunk
    v[raw + schema.MAX_PREFILL_CHUNK] = chunk if k > 0 else 0.0
    v[raw + schema.PREFILL_PAIRS] = k * chunk * (chunk + 1.0) / 2.0
    v[raw + schema.KV_SUM] = n * context
    v[raw + schema.KV_MAX] = longest
    v[raw + schema.KV_VAR] = span * span / 12.0 if n > 0 else 0.0
    v[raw + schema.KV_DECODE_SUM] = n * context
    v[raw + schema.KV_DECODE_MAX] = longest
    run(rows, static, step, v)
    return v[out]


@njit
def _ends(rows, static, step, raw, out, v, low, chunk, shortest, span):  # type: ignore[no-untyped-def]
    """Step times with 0, 1 and 2 prompts at `low` decodes, and at one decode more."""
    return (
        _step(rows, static, step, raw, out, v, low, 0, chunk, shortest, span),
        _step(rows, static, step, raw, out, v, low, 1, chunk, shortest, span),
        _step(rows, static, step, raw, out, v, low, 2, chunk, shortest, span),
        _step(rows, static, step, raw, out, v, low + 1, 0, chunk, shortest, span),
        _step(rows, static, step, raw, out, v, low + 1, 1, chunk, shortest, span),
        _step(rows, static, step, raw, out, v, low + 1, 2, chunk, shortest, span),
    )


@njit
def _mean_step(ends, part, rate, chunks, hits):  # type: ignore[no-untyped-def]
    """(mean step time, mean step time with a prompt of one's own, relative second moment) a `part` of the way between
    the two numbers of decodes of `ends`."""
    t0 = ends[0] + part * (ends[3] - ends[0])
    t1 = ends[1] + part * (ends[4] - ends[1])
    t2 = ends[2] + part * (ends[5] - ends[2])
    load = rate * (1.0 - hits) * chunks * t0
    for _ in range(2):  # the share of steps that carry prompts depends on their own length
        p0 = math.exp(-min(load, 50.0))
        p1 = load * p0
        p2 = 1.0 - p0 - p1
        mean = p0 * t0 + p1 * t1 + p2 * t2
        load = rate * (1.0 - hits) * chunks * mean
    own = hits * mean + (1.0 - hits) * (p0 * t1 + (1.0 - p0) * t2)
    square = p0 * t0 * t0 + p1 * t1 * t1 + p2 * t2 * t2
    return mean, own, square / (mean * mean) if mean > 0.0 else 1.0


@njit
def predict(rows, static, step, raw, request, results, base, v, table, theta, fixed_load, out):  # type: ignore[no-untyped-def]
    """Fill out[stages, 3] with mean E2E, TTFT, ITL in ms under constants `theta`.

    `fixed_load`: take the number of running decodes from the observed ITL instead of solving for it. `v`:
    float64[slots] to work in.
    """
    settled = -1
    for i in range(table.shape[0]):
        row = table[i]
        deployment = int(row[DEPLOYMENT])
        if deployment != settled:
            _begin(v, base[deployment])
            settle(rows, static, step, raw, request, results[0], theta, v)
            settled = deployment
        token = v[results[2]] if results[2] >= 0 else 0.0
        completion = v[results[3]] if results[3] >= 0 else 0.0
        queueing = 0.0
        if results[1] >= 0:
            v[request] = row[INPUT]
            run(rows, step, rows.shape[0], v)
            queueing = v[results[1]]
        decodes = row[OUTPUT] - 1.0
        shortest, span = row[INPUT], max(decodes - 1.0, 0.0)
        limit = row[SEQS]
        room = max(row[BUDGET] - min(row[OBSERVED_N] if fixed_load else limit, row[BUDGET] - 1.0), 1.0)
        chunks = max(math.ceil(row[UNCACHED] / room), 1.0)
        chunk = row[UNCACHED] / chunks
        wait = 0.0
        out_of = results[0]
        n = row[OBSERVED_N]
        if not fixed_load or n != n:
            n = _solve(rows, static, step, raw, out_of, v, row, chunk, chunks, shortest, span, limit)
        low = math.floor(n)
        ends = _ends(rows, static, step, raw, out_of, v, low, chunk, shortest, span)
        mean, own, square = _mean_step(ends, n - low, row[RATE], chunks, row[FULL_HITS])
        if n >= limit:  # more arrives than is served: the queue grows for as long as the stage lasts
            served = limit / max(decodes * mean, 1e-9)
            wait = max(row[RATE] / served - 1.0, 0.0) * row[DURATION] / 2.0
        ttft = queueing + wait + mean * square / 2.0 + own * chunks + token
        slowed = 1.0
        if row[COLD] > 0.0:  # every step that fills the cold cache holds up all who are running
            parts = math.ceil(row[COLD_LEN] / room)
            full = _step(rows, static, step, raw, out_of, v, math.floor(n), 1, row[COLD_LEN] / parts, shortest, span)
            plain = _step(rows, static, step, raw, out_of, v, math.floor(n), 0, chunk, shortest, span)
            slowed += max(full - plain, 0.0) * parts * row[COLD] / row[DURATION]
        decode = decodes * (mean * slowed + token)
        out[i, 0] = (ttft + decode + completion) / 1e3
        out[i, 1] = ttft / 1e3
        out[i, 2] = (decode + completion) / max(decodes, 1.0) / 1e3


@njit
def cold_effects(rows, static, step, raw, request, results, base, v, table, theta, out):  # type: ignore[no-untyped-def]
    """Fill out[constants, stages] with what a unit of each constant adds to the time in us of a step that prefills one
    whole prompt beside the observed decodes."""
    for i in range(table.shape[0]):
        row = table[i]
        n = math.floor(row[OBSERVED_N]) if row[OBSERVED_N] == row[OBSERVED_N] else 1.0
        chunk = min(row[COLD_LEN], max(row[BUDGET] - n, 1.0))
        plain = 0.0
        for j in range(-1, theta.size):
            h = 0.0
            if j >= 0:
                here = theta[j]
                h = 1e-3 * max(abs(here), 1e-3)
                theta[j] = here + h
            _begin(v, base[int(row[DEPLOYMENT])])
            settle(rows, static, step, raw, request, results[0], theta, v)
            time = _step(rows, static, step, raw, results[0], v, n, 1, chunk, row[INPUT], row[OUTPUT])
            if j < 0:
                plain = time
            else:
                theta[j] = here
                out[j, i] = (time - plain) / h


@njit
def _solve(rows, static, step, raw, out, v, row, chunk, chunks, shortest, span, limit):  # type: ignore[no-untyped-def]
    """The number of running decodes that Little's law keeps steady, at most `limit` (Illinois method)."""
    rate, hits, need = row[RATE], row[FULL_HITS], row[RATE] * (row[OUTPUT] - 1.0)
    a, b = 0.0, limit
    low = math.floor(limit)
    ends = _ends(rows, static, step, raw, out, v, low, chunk, shortest, span)
    fb = need * _mean_step(ends, limit - low, rate, chunks, hits)[0] - b
    if not fb < 0.0:
        return b
    low = 0.0
    ends = _ends(rows, static, step, raw, out, v, low, chunk, shortest, span)
    fa = need * _mean_step(ends, 0.0, rate, chunks, hits)[0]
    side = 0
    c = a
    for _ in range(60):
        c = (a * fb - b * fa) / (fb - fa)
        if math.floor(c) != low:  # the last steps of the search stay between two whole numbers
            low = math.floor(c)
            ends = _ends(rows, static, step, raw, out, v, low, chunk, shortest, span)
        f = need * _mean_step(ends, c - low, rate, chunks, hits)[0] - c
        if abs(f) <= 1e-10 * limit:
            break
        if f > 0.0:
            a, fa = c, f
            if side == 1:
                fb *= 0.5
            side = 1
        else:
            b, fb = c, f
            if side == -1:
                fa *= 0.5
            side = -1
    return c


@njit
def jacobian(rows, static, step, raw, request, results, base, v, table, theta, which, fixed_load, size, value, out):  # type: ignore[no-untyped-def]
    """Forward differences of `predict` in the constants `which`: out[which, stages, 3], given its `value`."""
    for k in range(which.size):
        j = which[k]
        here = theta[j]
        h = 1e-5 * max(abs(here), size[j])
        theta[j] = here + h
        predict(rows, static, step, raw, request, results, base, v, table, theta, fixed_load, out[k])
        theta[j] = here
        for i in range(value.shape[0]):
            for c in range(3):
                out[k, i, c] = (out[k, i, c] - value[i, c]) / h


@njit
def _begin(v, base):  # type: ignore[no-untyped-def]
    """A deployment's values into `v`."""
    for i in range(v.size):
        v[i] = base[i]


assert schema.RAW_FIELDS == 10  # _step writes all of them
