"""The result of an experiment: one estimate, on which the verdict rests, and the figures around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from research.rejudged.verdict import Estimate, mean_of
from research.rejudged.world import Errors, World, capped, model_names


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure that the page shows; with the median or the 95 % interval where it has one. searched: see Estimate."""

    name: str
    value: float | None
    unit: str
    median: float | None = None
    low: float | None = None
    high: float | None = None
    searched: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """The estimate that decides, the figures around it, and what limits both, in sentences."""

    estimate: Estimate
    figures: tuple[Figure, ...]
    notes: tuple[str, ...] = ()


def of_estimate(name: str, estimate: Estimate) -> Figure:
    e = estimate
    return Figure(name, e.value, e.unit, low=e.low, high=e.high, searched=e.searched)


def mean_error(name: str, errors: Errors, figure: str = "e2e") -> Figure:
    """The mean and the median of the capped errors of these runs."""
    values = [capped(row[figure]) for row in errors.values()]
    return Figure(name, float(np.mean(values)), "%", median=float(np.median(values)))


def alike(theirs: Errors, ours: Errors) -> tuple[Errors, Errors]:
    """Both, on the runs that both predict."""
    return {run: theirs[run] for run in theirs if run in ours}, {run: ours[run] for run in ours if run in theirs}


def difference(world: World, worse: Errors, better: Errors, figure: str = "e2e") -> Estimate:
    """By how much the error is larger in `worse` than in `better`, in points, over the runs that both predict."""
    runs = [run for run in worse if run in better]
    values = [capped(worse[run][figure]) - capped(better[run][figure]) for run in runs]
    models = model_names(world, runs)
    return mean_of(values, models, "points", f"{len(runs)} runs of {len(set(models))} models")


def in_clusters(values: Sequence[float], clusters: Sequence[str]) -> list[list[float]]:
    return [[v for v, c in zip(values, clusters, strict=True) if c == name] for name in dict.fromkeys(clusters)]
