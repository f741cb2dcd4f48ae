"""The load stages of experiments as a table for the mean field, with the latencies observed in each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evaluator.fit.machine import (
    AT_E2E,
    AT_N,
    AT_TTFT,
    BIN_INPUT,
    BINS,
    CLOSED,
    COLD,
    DEPLOYMENT,
    DURATION,
    GAPS,
    OBSERVED_N,
    RATE,
    SEQS,
)
from evaluator.fit.meanfield import MOST_BINS
from evaluator.metrics import new_tokens
from simulator.clock.bind import bind
from simulator.clock.replay import Replay, replay_bound
from simulator.language.complete import complete
from simulator.language.ir import Function, Number, Program
from simulator.language.opcodes import assemble
from simulator.serving.engine import Engine
from simulator.serving.experiment import Experiment
from simulator.serving.load import Load
from simulator.serving.trace import rows_by_stage
from simulator.serving.workload import distinct_prompts, gaps_of, prompt_lengths, rates

TINY = 1e-300  # a sum of weights that are all 0
MOST_STEPS = 12  # bins of the steps of a closed load with prompts, and of those without


@dataclass(frozen=True)
class Stages:
    """The load stages of several experiments as arrays.

    table: float64[stages, 20], with the columns of `machine.py`. bins: float64[stages, most bins, 4 or 10], the
    histogram of the prompts or, of a closed load, of its steps. observed_ms: float64[stages, 3], mean E2E, TTFT, ITL;
    NaN where not observed.
    """

    table: np.ndarray
    bins: np.ndarray
    observed_ms: np.ndarray


def stages_of(e: Experiment, load: Load) -> Stages:
    """The load stages of an experiment; the summary of one with a single stage may stand for the stage.

    A replay of the load at the observed pace shows which prompts the cache holds. Rates, decodes and prompts are those
    of one data-parallel rank and batch in flight of one replica.
    """
    rows: list[list[float]] = []
    histograms: list[np.ndarray] = []
    lengths = prompt_lengths(e.workload)
    prompts = distinct_prompts(e.workload) if e.engine.prefix_caching else 0
    alike = gaps_of(e.workload) is not None and bool(lengths.max() - lengths.min() <= 1)
    run = paced(e, load)
    new, offered = new_tokens(run), rates(e.workload, load.requests)
    of_stages = rows_by_stage(load.requests.stage, len(e.workload.stages))
    observed = _means_ms(e)
    for j, (stage, chosen, means) in enumerate(zip(e.workload.stages, of_stages, observed, strict=True)):
        output, prompt, shortest, span = _alike(e, lengths) if alike else _mixed(load, chosen)
        later = chosen[chosen >= prompts]  # the first use of every prompt is computed in full and does not count
        bins = histogram(load, new, later, 1 if alike else MOST_BINS)
        if alike:
            bins[0, BIN_INPUT] = prompt
        histograms.append(bins)
        rate, computed = offered[j] / 1e6, new[later]
        rate /= load.lanes
        requests = rate, output, prompt, _mean(computed[computed > 0]), _mean(computed == 0)
        limits = e.engine.max_num_seqs, _budget(e.engine), stage.duration_s * 1e6
        n = rate * (output - 1) * means[2] * 1e3
        of_engine = load.limits.ahead, 1 + load.limits.drafts, _gain(run, chosen, int(_pace_us(e)))
        cold = min(float(prompts), stage.rate * stage.duration_s) if j == 0 else 0.0
        rows.append([*requests, *limits, 0, n, cold, prompt, shortest, span, len(bins), 0.0, 0.0, *of_engine])
        if stage.users and run.completed[chosen].any():
            histograms[-1] = seen = steps_seen(run, new, chosen, int(_pace_us(e)), _captured(e))
            rows[-1] = _closed(rows[-1], run, chosen, seen)
    table = np.array(rows)
    table[:, OBSERVED_N] = np.minimum(table[:, OBSERVED_N], table[:, SEQS])
    return Stages(table, _padded(histograms), np.array(observed))


def joined(stages: Sequence[Stages]) -> Stages:
    """The load stages of several experiments in order."""
    table = np.concatenate([s.table for s in stages])
    table[:, DEPLOYMENT] = np.repeat(np.arange(len(stages)), [len(s.table) for s in stages])
    bins = _padded([of_stage for s in stages for of_stage in s.bins])
    return Stages(table, bins, np.concatenate([s.observed_ms for s in stages]))


def _padded(histograms: Sequence[np.ndarray]) -> np.ndarray:
    """float64[stages, most bins, columns]: the histograms with rows and columns of 0."""
    bins = np.zeros((len(histograms), max(map(len, histograms)), max(h.shape[1] for h in histograms)))
    for row, of_stage in zip(bins, histograms, strict=True):
        row[: len(of_stage), : of_stage.shape[1]] = of_stage
    return bins


def _closed(row: list[float], run: Replay, chosen: np.ndarray, seen: np.ndarray) -> list[float]:
    """The row of a stage of a closed load, with rate, duration and decodes as in its replay at an even pace."""
    r, gaps = run.requests, run.requests.output_len[chosen] - 1.0
    lasting_us = float((r.arrival_us + run.e2e_us)[chosen].max() - r.arrival_us[chosen].min())
    decoding = seen[:, AT_E2E] - seen[:, AT_TTFT]
    changed = {
        RATE: len(chosen) / lasting_us,
        DURATION: lasting_us,
        OBSERVED_N: float(decoding @ seen[:, AT_N] / decoding.sum()) if decoding.sum() > 0.0 else 1.0,
        COLD: 0.0,
        BINS: len(seen),
        CLOSED: 1.0,
        GAPS: _mean(1.0 / gaps[gaps > 0]),
    }
    return [changed.get(i, value) for i, value in enumerate(row)]


def steps_seen(run: Replay, new: np.ndarray, chosen: np.ndarray, pace_us: int, most: int) -> np.ndarray:
    """float64[bins, 10]: the steps of a closed load, by its replay at an even pace, that the `chosen` requests see.

    Requests come as a step ends, and with some time before the queue they miss the next one: half of it counts until
    their first token, without its prompts, if others run. `new`: prompt tokens that each request computes. `most`: new
    tokens of the largest step with prompts that is captured as a CUDA graph.
    """
    done = np.flatnonzero(run.completed)
    r, first = run.requests, (run.requests.arrival_us + run.ttft_us)[done]
    start, end = run.spread(run.run.begun_us)[done], first + run.decode_us[done]
    number = _step_numbers(start, end, pace_us)
    sent, start, first, end = (number(us) for us in (r.arrival_us[done], start, first, end))
    steps = int(end.max()) + 1
    outputs, inputs, parts = r.output_len[done] - 1.0, r.input_len[done], np.maximum(first - start, 1)
    counted = np.isin(done, chosen)

    def over(begin: np.ndarray, until: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """float64[steps]: the sum of the weights of requests from step `begin` until before step `until`."""
        change = np.bincount(begin, weight, steps + 1) - np.bincount(until, weight, steps + 1)
        return np.asarray(np.cumsum(change)[:steps])

    gain, width = _gain(run, done, pace_us), 1 + run.load.limits.drafts
    one, share = np.ones(len(done)), counted / max(int(counted.sum()), 1)
    several = counted & (outputs > 0)
    of_token = np.where(several, 1.0 / np.maximum(outputs, 1.0), 0.0) / max(int(several.sum()), 1)
    n, k, tokens = over(first, end, one), over(start, first, one), over(start, first, new[done] / parts)
    # contexts: at step s a decode has input_len + gain * (s - first), a prompt half of its own on average
    at, begun = gain * np.arange(steps), inputs - gain * first
    context = over(first, end, begun) + n * at
    square = over(first, end, np.square(begun)) + (2.0 * at * over(first, end, begun) + n * np.square(at))
    prompt = over(start, first, inputs.astype(float))
    earlier = over(start, first, (new[done] - new[done] / parts) / 2.0)
    limits = run.load.limits
    mean = np.full(steps, 1.0 / run.load.lanes)
    # of ranks that step together, one with a prompt is the slowest
    prompts = np.maximum(mean, 1.0 / np.maximum(k, 1.0)) if limits.together else mean
    columns = np.array([n, k, tokens, earlier, prompt, context, square]) * [mean, *[prompts] * 4, mean, mean]
    weights = over(sent, first, share), over(sent, end, share), over(first, end, of_token)
    # the step that is missed has the decodes alone, as those that run when a request comes go on
    missed = np.bincount(sent, share / 2.0, steps)[:steps] * (n > 0)
    alone = columns * np.array([1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0])[:, None]
    none = np.zeros(steps)
    every = [np.concatenate(pair) for pair in zip(weights, (missed, missed, none), strict=True)]
    return _binned(np.concatenate([columns, alone], axis=1), np.array(every), most, width)


def _step_numbers(start: np.ndarray, end: np.ndarray, pace_us: int) -> Callable[[np.ndarray], np.ndarray]:
    """A function from times to the numbers of the steps that begin there, in a replay at an even pace."""
    order = np.argsort(start, kind="stable")
    until = np.maximum.accumulate(end[order])
    opens = np.flatnonzero(np.concatenate([[True], start[order][1:] > until[:-1]]))  # of a busy period
    begin, last = start[order][opens], np.concatenate([until[opens[1:] - 1], until[-1:]])
    before = np.cumsum(np.concatenate([[0.0], np.rint((last - begin) / pace_us)]))[:-1]

    def number(us: np.ndarray) -> np.ndarray:
        period = np.maximum(np.searchsorted(begin, us, side="right") - 1, 0)
        within = np.clip(us, begin[period], last[period]) - begin[period]
        return np.asarray(np.rint(before[period] + within / pace_us), np.int64)

    return number


def _captured(e: Experiment) -> int:
    """The new tokens of the largest step with prompts that is captured; 0 if none is."""
    return int(e.facts["cudagraph_capture_max"] * e.facts["graph_mixed"])


def _binned(columns: np.ndarray, weights: np.ndarray, most: int, width: int) -> np.ndarray:
    """float64[bins, 10]: the means of the steps float64[7, steps], weighted by what requests see of them, in at most
    MOST_STEPS bins of those without prompts, equal shares of the E2E, and of those with some, of the TTFT, up to `most`
    new tokens and above. width: new tokens of a decode."""
    n, k, tokens, *_ = columns
    bins = []
    seen = weights[1] + weights[2] * len(n)
    large, size = tokens + width * np.round(n) > most, tokens * 1e6 + n
    kinds = (k == 0, n, weights[1]), ((k > 0) & ~large, size, weights[0]), ((k > 0) & large, size, weights[0])
    for kind, by, until in kinds:
        rows = np.flatnonzero(kind & (weights.sum(axis=0) > 0.0))
        rows = rows[np.argsort(by[rows], kind="stable")]
        share = np.cumsum(until[rows]) - until[rows] / 2.0
        which = np.floor(share / max(until[rows].sum(), TINY) * MOST_STEPS).astype(int)
        for b in np.unique(which):
            some = rows[which == b]
            w = seen[some] / seen[some].sum() if seen[some].sum() > 0.0 else np.full(len(some), 1.0 / len(some))
            decodes, prompts, computed, earlier, prompt, context, square = columns[:, some] @ w
            prompts = max(round(float(prompts)), 1) if computed > 0.0 else 0
            mean = context / decodes if decodes > 0.0 else 0.0
            spread = max(square / decodes - mean * mean, 0.0) if decodes > 0.0 else 0.0
            span = min(math.sqrt(12.0 * spread), 2.0 * mean)
            each, decodes = max(prompts, 1), round(float(decodes))
            if computed > 0.0 and not large[some[0]]:  # rounding must not lift it above
                computed = min(float(computed), most - width * decodes)
            step = decodes, prompts, computed / each, earlier / each, prompt / each
            bins.append([*step, mean - span / 2.0, span, *weights[:, some].sum(axis=1)])
    return np.array(bins)


def _gain(run: Replay, chosen: np.ndarray, pace_us: int) -> float:
    """Mean tokens that a decode of the `chosen` requests emits in a step, by their replay at an even pace."""
    done = chosen[run.completed[chosen]]
    steps = run.decode_us[done].sum() / pace_us
    if not run.load.limits.drafts or not steps:
        return 1.0
    return float(np.maximum(run.requests.output_len[done] - 1, 0).sum() / steps)


def _budget(engine: Engine) -> int:
    """The tokens of a step. Without chunked prefill no prompt is split: decodes must not take the room of a prompt."""
    return engine.max_num_batched_tokens + (0 if engine.chunked_prefill else engine.max_num_seqs)


def _alike(e: Experiment, lengths: np.ndarray) -> tuple[float, float, float, float]:
    """(mean output tokens, mean prompt tokens, shortest context of a decode, span of the contexts) of equal requests.

    The contexts of their decodes are spread evenly over the answer.
    """
    output, prompt = float((gaps_of(e.workload) or 0) + 1), float(lengths.mean())
    return output, prompt, prompt, max(output - 2.0, 0.0)


def _mixed(load: Load, chosen: np.ndarray) -> tuple[float, float, float, float]:
    """As `_alike`, of requests of many lengths; a uniform distribution has the mean and variance of their contexts.

    The contexts of a request's decodes are spread evenly over its answer. A long answer decodes for longer, so it
    counts once for each of its decodes.
    """
    inputs = load.requests.input_len[chosen].astype(float)
    decodes = np.maximum(load.requests.output_len[chosen] - 1.0, 0.0)
    prompt, output = _mean(inputs), 1.0 + _mean(decodes)
    if not decodes.sum() > 0.0:
        return output, prompt, prompt, 0.0
    share, spans = decodes / decodes.sum(), np.maximum(decodes - 1.0, 0.0)
    middles = inputs + spans / 2.0
    mean = float(share @ middles)
    span = math.sqrt(12.0 * float(share @ (np.square(middles - mean) + np.square(spans) / 12.0)))
    return output, prompt, mean - span / 2.0, span


def histogram(load: Load, new: np.ndarray, chosen: np.ndarray, most: int) -> np.ndarray:
    """float64[bins, 4]: the prompts of the `chosen` requests, in at most `most` bins of about equally many new tokens.

    `new`: prompt tokens that each request computes.
    """
    order = chosen[np.argsort(new[chosen], kind="stable")]
    before = np.cumsum(new[order]) - new[order]
    total = max(int(new[order].sum()), 1)
    bin_of = np.minimum(before * most // total, most - 1)
    computing = max(int((new[order] > 0).sum()), 1)
    bins = []
    for b in np.unique(bin_of):
        members = order[bin_of == b]
        some, prompt = new[members][new[members] > 0], _mean(load.requests.input_len[members])
        bins.append([len(members) / len(order), len(some) / computing, prompt, _mean(some)])
    if not any(computed for _, computed, _, _ in bins):  # no request computes any of its prompt
        return np.array([[1.0, 1.0, _mean(load.requests.input_len[order]), 0.0]])
    return np.array(bins)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else 0.0


def paced(experiment: Experiment, load: Load) -> Replay:
    """A replay in which every step takes `_pace_us`."""
    if load.clients:  # whose schedule in steps is that of patient ones
        load = replace(load, requests=replace(load.requests, deadline_us=np.zeros(len(load.requests), np.int64)))
    pace = complete(Program((Function("step_time", (), (), Number(_pace_us(experiment))),)))
    return replay_bound(load, bind(assemble(pace), pace.theta, experiment.facts))


def _pace_us(experiment: Experiment) -> float:
    """The mean observed ITL, 10 ms if none was observed."""
    itls_ms = [itl for _, _, itl in _means_ms(experiment) if not math.isnan(itl)] or [10.0]
    return 1e3 * sum(itls_ms) / len(itls_ms)


def _means_ms(e: Experiment) -> list[list[float]]:
    """Mean E2E, TTFT and ITL of each load stage, NaN where not observed."""
    if not e.observed_stages:
        return [[math.nan] * 3] * len(e.workload.stages)
    means = [[o.e2e_ms.mean, o.ttft_ms.mean, o.itl_ms.mean] for o in e.observed_stages]
    return [[math.nan if mean is None else mean for mean in of_stage] for of_stage in means]
