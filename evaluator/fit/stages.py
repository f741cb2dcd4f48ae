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
from simulator.serving.engine import Engine
from simulator.serving.experiment import Experiment
from simulator.serving.load import Load
from simulator.serving.trace import rows_by_stage
from simulator.serving.workload import distinct_prompts, gaps_of, prompt_lengths, rates


@dataclass(frozen=True)
class Stages:
    """The load stages of several experiments as arrays.

    table: float64[stages, 15], with the columns of `meanfield.py`. bins: float64[stages, most bins, 4], the histogram
    of the prompts. observed_ms: float64[stages, 3], mean E2E, TTFT, ITL; NaN where not observed.
    """

    table: np.ndarray
    bins: np.ndarray
    observed_ms: np.ndarray


def stages_of(experiments: Sequence[Experiment], loads: Sequence[Load]) -> Stages:
    """All load stages in order; the summary of an experiment with a single stage may stand for the stage.

    A replay of each load at the observed pace shows which prompts the cache holds.
    """
    rows: list[list[float]] = []
    observed, histograms = list[list[float]](), list[np.ndarray]()
    for i, (e, load) in enumerate(zip(experiments, loads, strict=True)):
        lengths = prompt_lengths(e.workload)
        prompts = distinct_prompts(e.workload) if e.engine.prefix_caching else 0
        alike = gaps_of(e.workload) is not None and bool(lengths.max() - lengths.min() <= 1)
        new, offered = new_tokens(paced(e, load)), rates(e.workload, load.requests)
        of_stages = rows_by_stage(load.requests.stage, len(e.workload.stages))
        for j, (stage, chosen, means) in enumerate(zip(e.workload.stages, of_stages, _means_ms(e), strict=True)):
            observed.append(means)
            output, prompt, shortest, span = _alike(e, lengths) if alike else _mixed(load, chosen)
            later = chosen[chosen >= prompts]  # the first use of every prompt is computed in full and does not count
            bins = histogram(load, new, later, 1 if alike else MOST_BINS)
            if alike:
                bins[0, BIN_INPUT] = prompt
            histograms.append(bins)
            rate, computed = offered[j] / 1e6, new[later]
            requests = rate, output, prompt, _mean(computed[computed > 0]), _mean(computed == 0)
            limits = e.engine.max_num_seqs, _budget(e.engine), stage.duration_s * 1e6
            n = rate * (output - 1) * means[2] * 1e3
            cold = min(float(prompts), stage.rate * stage.duration_s) if j == 0 else 0.0
            rows.append([*requests, *limits, i, n, cold, prompt, shortest, span, len(bins)])
    table = np.array(rows)
    table[:, OBSERVED_N] = np.minimum(table[:, OBSERVED_N], table[:, SEQS])
    bins = np.zeros((len(rows), max(map(len, histograms)), 4))
    for row, of_stage in zip(bins, histograms, strict=True):
        row[: len(of_stage)] = of_stage
    return Stages(table, bins, np.array(observed))


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
    """A replay in which every step takes the mean observed ITL, 10 ms if none was observed."""
    itls_ms = [itl for _, _, itl in _means_ms(experiment) if not math.isnan(itl)] or [10.0]
    pace = complete(Program((Function("step_time", (), (), Number(1e3 * sum(itls_ms) / len(itls_ms))),)))
    return replay_bound(load, bind(assemble(pace), pace.theta, experiment.facts))


def _means_ms(e: Experiment) -> list[list[float]]:
    """Mean E2E, TTFT and ITL of each load stage, NaN where not observed."""
    if not e.observed_stages:
        return [[math.nan] * 3] * len(e.workload.stages)
    means = [[o.e2e_ms.mean, o.ttft_ms.mean, o.itl_ms.mean] for o in e.observed_stages]
    return [[math.nan if mean is None else mean for mean in of_stage] for of_stage in means]
