"""Errors of single requests, for traces whose requests were recorded one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from evaluator.metrics import LATENCIES
from simulator.clock.replay import Replay
from simulator.serving.trace import Recorded, Requests, latencies_ms

QUANTILES = (50, 90, 99)
QUARTERS = 4  # of prompts and of answers: a histogram of at most 16 bins
LEAST = 20  # requests of a bin that is shown
FEWEST = 3  # requests for a correlation


@dataclass(frozen=True, slots=True)
class Single:
    """One latency over requests: absolute errors, and the signed errors in percent of its p50, p90 and p99.

    r: Pearson's correlation of predicted and observed; None if either is constant.
    """

    mean_abs_pct: float
    median_abs_pct: float
    r: float | None
    quantiles_pct: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Bin:
    """Requests with prompts and answers of similar lengths; `prompt`, `answer`: least and most tokens.

    error_pct: signed errors of mean E2E, TTFT and ITL; None where it was not observed.
    """

    prompt: tuple[int, int]
    answer: tuple[int, int]
    requests: int
    error_pct: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Singles:
    """Errors of the requests that completed in the replay and in the record, by observed latency and by length."""

    requests: int
    latencies: Mapping[str, Single]
    bins: tuple[Bin, ...]


def predicted_ms(replay: Replay) -> np.ndarray:
    """float64[3, requests]: predicted E2E, TTFT and ITL, NaN where a request did not complete or has no ITL."""
    done = np.where(replay.completed, 1.0, np.nan)
    return latencies_ms(replay.requests, done * replay.e2e_us / 1e3, done * replay.ttft_us / 1e3)


def recorded_ms(requests: Requests, recorded: Recorded) -> np.ndarray:
    """float64[3, requests]: recorded E2E, TTFT and ITL, NaN where unknown."""
    return latencies_ms(requests, recorded.e2e_ms, recorded.ttft_ms)


def quarters(lengths: np.ndarray) -> np.ndarray:
    """int per length: its quarter of the lengths, from 0; equal lengths share a quarter."""
    edges = np.quantile(lengths, np.arange(1, QUARTERS) / QUARTERS)
    return np.asarray(np.searchsorted(edges, lengths, side="left"))


def singles(replay: Replay, recorded: Recorded) -> Singles | None:
    """The errors of single requests; None if no request completed in both replay and record."""
    r = replay.requests
    predicted, observed = predicted_ms(replay), recorded_ms(r, recorded)
    both = (r.stage >= 0) & ~np.isnan(predicted[0]) & ~np.isnan(observed[0])
    if not both.any():
        return None
    predicted, observed = predicted[:, both], observed[:, both]
    latencies = {}
    for name, p, o in zip(LATENCIES, predicted, observed, strict=True):
        known = ~np.isnan(p) & (o > 0.0)  # a recorded 0 has no relative error
        if known.any():
            latencies[name] = _single(p[known], o[known])
    bins = _bins(r.input_len[both], r.output_len[both], predicted, observed)
    return Singles(int(both.sum()), latencies, tuple(bins))


def _single(predicted: np.ndarray, observed: np.ndarray) -> Single:
    errors = 100.0 * np.abs(predicted / observed - 1.0)
    varies = len(observed) >= FEWEST and predicted.std() > 0.0 and observed.std() > 0.0
    quantiles = np.percentile(predicted, QUANTILES) / np.percentile(observed, QUANTILES)
    return Single(
        float(errors.mean()),
        float(np.median(errors)),
        float(np.corrcoef(predicted, observed)[0, 1]) if varies else None,
        {f"p{q}": 100.0 * float(x - 1.0) for q, x in zip(QUANTILES, quantiles, strict=True)},
    )


def _bins(prompts: np.ndarray, answers: np.ndarray, predicted: np.ndarray, observed: np.ndarray) -> list[Bin]:
    """The bins with at least LEAST requests, by prompt and then by answer."""
    bins = []
    of_prompt, of_answer = quarters(prompts), quarters(answers)
    for i in np.unique(of_prompt):
        for j in np.unique(of_answer):
            rows = (of_prompt == i) & (of_answer == j)
            if rows.sum() < LEAST:
                continue
            pairs = zip(LATENCIES, predicted[:, rows], observed[:, rows], strict=True)
            errors = {name: _error_pct(p, o) for name, p, o in pairs}
            spans = [(int(of[rows].min()), int(of[rows].max())) for of in (prompts, answers)]
            bins.append(Bin(spans[0], spans[1], int(rows.sum()), errors))
    return bins


def _error_pct(predicted: np.ndarray, observed: np.ndarray) -> float | None:
    """The signed error in percent of the mean over known values; None without any, or with an observed mean of 0."""
    known = ~np.isnan(predicted + observed)
    if not known.any() or not observed[known].mean() > 0.0:
        return None
    return 100.0 * float(predicted[known].mean() / observed[known].mean() - 1.0)
