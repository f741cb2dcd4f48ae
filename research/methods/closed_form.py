"""Direct calibration: four numbers a model in closed form, from mean TTFT, mean E2E and decodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from simulator.language.ir import Program
from simulator.serving.experiment import Experiment
from simulator.serving.observations import Observation
from simulator.serving.workload import Stage, gaps_of, prompt_lengths

US_PER_MS = 1e3


@dataclass(frozen=True, slots=True)
class Means:
    """A load generator's report of a load stage or a run: means in ms, tokens, and requests/s."""

    experiment: str
    model: str
    rate: float
    prompt_len: float
    decodes: float  # output tokens after the first, of a request
    ttft_ms: float
    e2e_ms: float
    itl_ms: float


def true_means(experiments: Sequence[Experiment]) -> list[Means]:
    """The means of every load stage, with the lengths that were generated and ITL = (E2E - TTFT) / decodes."""
    means = []
    for e in experiments:
        decodes, prompt = float(gaps_of(e.workload) or 0), float(prompt_lengths(e.workload).mean())
        for stage, o in _stages(e):
            ttft, e2e = o.ttft_ms.mean, o.e2e_ms.mean
            if ttft is not None and e2e is not None and decodes:
                means.append(
                    Means(e.id, e.model, stage.rate_at(e2e), prompt, decodes, ttft, e2e, (e2e - ttft) / decodes)
                )
    return means


def _stages(e: Experiment) -> list[tuple[Stage, Observation]]:
    """Load stages with what was observed in each; a run with a single one may have its summary only."""
    return list(zip(e.workload.stages, e.observed_stages, strict=False))


def published_means(experiments: Sequence[Experiment]) -> list[Means]:
    """The same as the load generator reported it: lengths of the re-tokenised text, and its ITL, which is half the true
    one. Only stages that have these."""
    means = []
    for e in experiments:
        free = e.spec.free if e.spec else {}
        prompt = float(prompt_lengths(e.workload).mean())
        for i, (stage, o) in enumerate(_stages(e)):
            keys = ("reported_output_len_mean", "harness_itl_mean_ms")
            length, itl = (free.get(("observed", "stages", i, key)) for key in keys)
            ttft, e2e = o.ttft_ms.mean, o.e2e_ms.mean
            if length is not None and itl is not None and ttft is not None and e2e is not None:
                means.append(Means(e.id, e.model, stage.rate_at(e2e), prompt, max(length - 1.0, 1.0), ttft, e2e, itl))
    return means


def direct(form: Program, means: Sequence[Means]) -> dict[str, Program]:
    """The program of each model: the constants of `form` (seeds/methods/direct.py) in closed form.

    A step is beta0 + beta1 * n, the line through each stage's ITL against n = rate * decodes * ITL, the requests that
    decode at once (Little's law). A request waits alpha0 + alpha1 * prompt tokens, the line through TTFT less a step.
    A line whose slope would be negative, or that has one point only, is level.
    """
    ordered = sorted(means, key=lambda m: m.model)
    return {model: _of_model(form, list(stages)) for model, stages in groupby(ordered, key=lambda m: m.model)}


def _of_model(form: Program, stages: Sequence[Means]) -> Program:
    itl_us = np.array([m.itl_ms for m in stages]) * US_PER_MS
    running = np.array([m.rate * m.decodes * m.itl_ms / 1e3 for m in stages])
    beta0, beta1 = _line(running, itl_us)
    waits_us = np.maximum(np.array([m.ttft_ms for m in stages]) * US_PER_MS - (beta0 + beta1 * running), 0.0)
    alpha0, alpha1 = _line(np.array([m.prompt_len for m in stages]), waits_us)
    values: Mapping[str, float] = {"beta0": beta0, "beta1": beta1, "alpha0": alpha0, "alpha1": alpha1}
    return form.with_theta(tuple(float(f"{values[c.name]:.6g}") for f in form.functions for c in f.constants))


def _line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """(height at 0, slope) of the least-squares line, neither below 0."""
    spread = x - x.mean()
    slope = float(spread @ y / (spread @ spread)) if (spread != 0.0).any() else 0.0
    slope = max(slope, 0.0)
    height = float(y.mean() - slope * x.mean())
    return (height, slope) if height >= 0.0 else (0.0, float(x @ y / (x @ x)))
