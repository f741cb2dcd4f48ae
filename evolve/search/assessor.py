"""Where candidates are assessed: this process, or worker processes that prepare the data once."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from typing import Any

import numpy as np

from evaluator import baselines as known
from evaluator.assess import Data, Laps, Rejected, Scored, assess, polished, prepare
from evaluator.deployments import datasheet_deployments, kernel_deployments
from evaluator.diagnose.describe import describe
from evaluator.diagnose.diagnose import diagnose
from evaluator.diagnose.explain import costs, gains, replay_ratio
from evaluator.fit.loss import FitSet
from evaluator.judge.gates import Facts
from evaluator.score import Errors
from evolve import processes
from evolve.processes import deaf_to_interrupts, end_with_parent
from evolve.propose.offline import propose
from evolve.propose.vocabulary import Vocabulary, vocabulary
from evolve.run.config import Config
from simulator.experiment.experiment import Experiment
from simulator.language.ir import Expr, Program
from simulator.language.parse import parse
from simulator.language.unparse import unparse

_data: Data | None = None
_config: Config | None = None
_words: Vocabulary | None = None
_probe: Prober | None = None


def _work(experiments: Sequence[Experiment], config: Config, hardware: Facts, kernels: Facts) -> None:
    end_with_parent()
    _begin(experiments, config, hardware, kernels)


def _begin(experiments: Sequence[Experiment], config: Config, hardware: Facts, kernels: Facts) -> None:
    global _data, _words, _probe, _config
    _config = config
    _data = prepare(experiments, config.score.arrival_seeds, config.score.moe_weight, hardware, kernels)
    _words = vocabulary(experiments, config.search.fields)
    _probe = Prober(_data.fit)


def propose_text(first: str, second: str, rng: np.random.Generator, weights: Mapping[str, float]) -> tuple[str, str]:
    """A changed copy of the program `first` and what changed it (see evolve.propose.offline)."""
    assert _words is not None and _config is not None
    methods, caps = _config.search.evolve, _config.caps
    child, operator = propose(parse(first), parse(second), _words, rng, methods, weights, _probe, caps)
    return unparse(child), operator


def assess_text(text: str, transfer_below: float) -> tuple[Scored | Rejected, dict[str, float]]:
    """`assess` on the data that this process prepared, and its CPU seconds by stage; the text has been admitted."""
    assert _data is not None
    laps = Laps()
    return assess(parse(text), _data, transfer_below, laps), laps.seconds


def diagnose_text(text: str) -> str:
    """Where the program is wrong on the data that this process prepared, in words and figures."""
    assert _data is not None
    return describe(diagnose(parse(text), _data))


def solve_known(task: known.Task) -> list[Errors]:
    return known.solve(task)


def polish_text(text: str) -> tuple[Scored | Rejected, dict[str, float]]:
    """`polished` on the data that this process prepared, and its CPU seconds by stage."""
    assert _data is not None
    laps = Laps()
    return polished(parse(text), _data, laps), laps.seconds


class Prober:
    """The residual-informed proposals' view of the data, in this process."""

    def __init__(self, data: FitSet) -> None:
        self._data = data
        self._ratios: dict[str, np.ndarray] = {}

    def gains(self, program: Program, method: str, terms: Sequence[Sequence[Expr]]) -> np.ndarray:
        return gains(program, method, terms, self._data, self._ratio(program))

    def costs(self, program: Program) -> np.ndarray:
        return costs(program, self._data, self._ratio(program))

    def _ratio(self, program: Program) -> np.ndarray:
        text = unparse(program)
        if text not in self._ratios:
            self._ratios[text] = replay_ratio(program, self._data)
        return self._ratios[text]


def prober() -> Prober:
    """On the data that this process prepared."""
    assert _probe is not None
    return _probe


class _Here(Executor):
    """Runs a task when it is submitted, in this process."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as e:
            future.set_exception(e)
        return future


def executor(workers: int, experiments: Sequence[Experiment], config: Config) -> Executor:
    """An executor for the functions of this module; what it computes does not depend on `workers`."""
    hardware = datasheet_deployments() if config.score.physics else {}
    kernels = kernel_deployments() if config.score.physics and config.search.fields == "all" else {}
    processes.settle()  # the threads of workers, where this is not the command line
    if workers == 1:
        _begin(experiments, config, hardware, kernels)
        return _Here()
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, _work, (tuple(experiments), config, hardware, kernels))
    with deaf_to_interrupts():  # Ctrl-C is this process's business
        for _ in range(workers):
            pool.submit(int)
    return pool


def stop(pool: Executor) -> None:
    """End the workers at once, whatever they are doing; tasks that still wait fail with the pool."""
    for process in multiprocessing.active_children():
        process.terminate()
    pool.shutdown(wait=False)
