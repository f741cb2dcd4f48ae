"""Cells of measurements: the runs of one model on one GPU with one type of weights. Such runs err together.

Of 367 shipped runs 116 are of one cell. So a mean, or a loss, over runs counts a large cell as MOST_RUNS, whose runs
share that weight; nothing else keeps a model, a GPU or a source from drowning the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from simulator.serving.experiment import Experiment
from simulator.serving.facts import Facts

MOST_RUNS = 8.0  # of a cell; those of the shipped runs at a rate have 1 to 5
FEWEST = 6  # cells of which some can be hidden
# The weights of mean E2E, TTFT and ITL in a fit and in the mean error. TTFT is the hardest to predict, and the least
# part of what a request takes.
WEIGHTS = np.array([1.0, 0.3, 1.0])


def precision_of(e: Experiment) -> str:
    """The type of most of the model's weights: `bf16`, `fp8`, `nvfp4`, ..., or by their bits without kernels."""
    facts: Facts = e.facts
    return facts.deployed.architecture.weights.name if facts.deployed else f"{e.weight_bits}-bit"


def cell_of(e: Experiment) -> str:
    """The cell of a run, in words: `Llama-2-7b-hf bf16 H100`."""
    return f"{e.model.rsplit('/', 1)[-1]} {precision_of(e)} {e.hardware.split('-')[0]}"


def hidden_cells(experiments: Sequence[Experiment], rng: np.random.Generator) -> frozenset[str]:
    """A third of the cells, by lot; none where they are few."""
    cells = sorted(set(map(cell_of, experiments)))
    return frozenset(rng.permutation(cells)[: len(cells) // 3].tolist() if len(cells) >= FEWEST else ())


def run_weights(experiments: Sequence[Experiment]) -> np.ndarray:
    """float64[experiments]: the weight of each run in a mean over runs."""
    cells = [cell_of(e) for e in experiments]
    counts = Counter(cells)
    return np.array([min(1.0, MOST_RUNS / counts[cell]) for cell in cells])


def weighted_mean(values: Iterable[float | None], weights: Iterable[float]) -> float | None:
    """The mean of the values that there are; None if there are none."""
    known = [(v, w) for v, w in zip(values, weights, strict=True) if v is not None]
    total = sum(w for _, w in known)
    return sum(v * w for v, w in known) / total if total else None


def mean_error(e2e: float | None, ttft: float | None, itl: float | None) -> float | None:
    """The mean of the errors of E2E, TTFT and ITL by WEIGHTS, of those that were measured.

    >>> mean_error(1.0, 10.0, 1.0), mean_error(None, 10.0, 5.0)  # (1 + 3 + 1) / 2.3, (3 + 5) / 1.3
    (2.1739130434782608, 6.153846153846153)
    """
    return weighted_mean((e2e, ttft, itl), WEIGHTS.tolist())
