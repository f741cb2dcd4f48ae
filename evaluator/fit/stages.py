"""The load stages of experiments as a table for the mean field, with the latencies observed in each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evaluator.fit.meanfield import BIN_INPUT, MOST_BINS, OBSERVED_N, SEQS
from evaluator.metrics import new_tokens
from simulator.clock.bind import bind
from simulator.clock.replay import Replay, replay_bound
from simulator.language.complete import complete
from simulator.language.ir import Function, Number, Program
from simulator.language.opcodes import assemble
from simulator.serving.experiment import Engine, Experiment, Observation, Statistic
from simulator.serving.load import Load
from simulator.serving.trace import rows_by_stage
from simulator.serving.workload import distinct_prompts, gaps_of, prompt_lengths, rates

NOTHING_OBSERVED = Observation(Statistic(), Statistic(), Statistic())


@dataclass(frozen=True)
class Stages:
    """The load stages of several experiments as arrays.

    table: float64[stages, 15], with the columns of `meanfield.py`. bins: float64[stages, most bins, 4], the histogram
    of each stage's prompts. observed_ms: float64[stages, 3], mean E2E, TTFT, ITL; NaN where not observed. first: the
    row of each experiment's first stage.
    """

    table: np.ndarray
    bins: np.ndarray
    observed_ms: np.ndarray
    first: tuple[int, ...]


def stages_of(experiments: Sequence[Experiment], loads: Sequence[Load]) -> Stages:
    """All load stages in order; an experiment with a single stage may have observed its summary only.

    A replay of each load at the observed pace shows how much of the prompts the cache holds.
    """
    rows: list[list[float]] = []
    observed, first = [], []
    histograms: list[np.ndarray] = []
    for i, (e, load) in enumerate(zip(experiments, loads, strict=True)):
        first.append(len(rows))
        lengths = prompt_lengths(e.workload)
        prompts = distinct_prompts(e.workload) if e.engine.prefix_caching else 0
        alike = gaps_of(e.workload) is not None and bool(lengths.max() - lengths.min() <= 1)
        new, offered = new_tokens(paced(e, load)), rates(e.workload, load.requests)
        of_stages = rows_by_stage(load.requests.stage, len(e.workload.stages))
        for j, (stage, chosen, means) in enumerate(zip(e.workload.stages, of_stages, _means_ms(e), strict=True)):
            observed.append(means)
            traffic = _alike(e, lengths) if alike else _mixed(load, chosen)
            # The first use of every prompt does not count: it is computed in full.
            later = chosen[chosen >= prompts]
            bins = histogram(load, new, later, 1 if alike else MOST_BINS)
            if alike:
                bins[0, BIN_INPUT] = traffic.prompt
            histograms.append(bins)
            rate, computed = offered[j] / 1e6, new[later]
            n = rate * (traffic.output - 1) * means[2] * 1e3
            rows.append(
                [rate, traffic.output, traffic.prompt, _mean(computed[computed > 0]), _mean(computed == 0),
                 e.engine.max_num_seqs, _budget(e.engine), stage.duration_s * 1e6, i, n,
                 min(float(prompts), stage.rate * stage.duration_s) if j == 0 else 0.0, traffic.prompt,
                 traffic.shortest, traffic.span, len(bins)]
            )  # fmt: skip
    table = np.array(rows)
    table[:, OBSERVED_N] = np.minimum(table[:, OBSERVED_N], table[:, SEQS])
    bins = np.zeros((len(rows), max(map(len, histograms)), 4))
    for row, of_stage in zip(bins, histograms, strict=True):
        row[: len(of_stage)] = of_stage
    return Stages(table, bins, np.array(observed), tuple(first))


def _budget(engine: Engine) -> int:
    """The tokens of a step. Without chunked prefill no prompt is split, so decodes must not take of a prompt's room."""
    return engine.max_num_batched_tokens + (0 if engine.chunked_prefill else engine.max_num_seqs)


@dataclass(frozen=True)
class _Traffic:
    """Mean tokens of an answer and of a prompt; the shortest context of a decode, by how much the longest is longer."""

    output: float
    prompt: float
    shortest: float
    span: float


def _alike(e: Experiment, lengths: np.ndarray) -> _Traffic:
    """Requests of one length: the contexts of their decodes are spread evenly over the answer."""
    output, prompt = float((gaps_of(e.workload) or 0) + 1), float(lengths.mean())
    return _Traffic(output, prompt, prompt, max(output - 2.0, 0.0))


def _mixed(load: Load, chosen: np.ndarray) -> _Traffic:
    """Requests of many lengths: a uniform distribution with the mean and variance of the contexts of their decodes.

    Of a request's decodes the contexts are spread evenly over its answer. A long answer decodes for longer, so it is
    met as often as it has decodes.
    """
    inputs = load.requests.input_len[chosen].astype(float)
    decodes = np.maximum(load.requests.output_len[chosen] - 1.0, 0.0)
    prompt, output = _mean(inputs), 1.0 + _mean(decodes)
    if not decodes.sum() > 0.0:
        return _Traffic(output, prompt, prompt, 0.0)
    share, spans = decodes / decodes.sum(), np.maximum(decodes - 1.0, 0.0)
    middles = inputs + spans / 2.0
    mean = float(share @ middles)
    span = math.sqrt(12.0 * float(share @ (np.square(middles - mean) + np.square(spans) / 12.0)))
    return _Traffic(output, prompt, mean - span / 2.0, span)


def histogram(load: Load, new: np.ndarray, chosen: np.ndarray, most: int) -> np.ndarray:
    """float64[bins, 4]: the prompts of the chosen requests by the tokens that are computed of them, in at most `most`
    bins with about as many of these tokens each.

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
    if not any(computed for _, computed, _, _ in bins):  # of the prompt of any request
        return np.array([[1.0, 1.0, _mean(load.requests.input_len[order]), 0.0]])
    return np.array(bins)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else 0.0


def paced(experiment: Experiment, load: Load) -> Replay:
    """A replay in which every step takes the mean observed ITL, 10 ms if none was observed."""
    itls_ms = [itl for _, _, itl in _means_ms(experiment) if not math.isnan(itl)] or [10.0]
    pace = complete(Program((Function("step_time", (), (), Number(1e3 * sum(itls_ms) / len(itls_ms))),)))
    return replay_bound(load, bind(assemble(pace), pace.theta, experiment.facts))


def _means_ms(e: Experiment) -> list[list[float]]:
    """Mean E2E, TTFT and ITL of each load stage, NaN where not observed."""
    stages = e.observed_stages or (NOTHING_OBSERVED,) * len(e.workload.stages)
    return [[math.nan if s.mean is None else s.mean for s in (o.e2e_ms, o.ttft_ms, o.itl_ms)] for o in stages]
