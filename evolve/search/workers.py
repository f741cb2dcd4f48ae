"""Workers propose and assess candidates, in this process or in others, each of which prepares the data once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from typing import ParamSpec, TypeVar

import numpy as np

from archive.proposal import Rejected
from evaluator.assess import Data, Laps, Limits, Scored, assess, polished, prepare
from evaluator.deployments import datasheet_deployments, kernel_deployments
from evaluator.diagnose.describe import describe
from evaluator.diagnose.diagnose import diagnose
from evaluator.diagnose.explain import costs, gains
from evaluator.fit.loss import FitSet
from evaluator.judge.gates import Facts
from evolve import processes
from evolve.propose.offline import propose
from evolve.propose.proposer import Promise
from evolve.propose.vocabulary import Vocabulary, vocabulary
from evolve.report.progress import Line
from evolve.run.config import Config
from evolve.search.pool import Pool
from simulator.experiment.experiment import Experiment
from simulator.language.complete import complete
from simulator.language.ir import Expr, Program
from simulator.language.parse import parse
from simulator.language.unparse import unparse

Timed = tuple[Scored | Rejected, dict[str, float]]  # a verdict, and its CPU seconds by stage
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class _Prepared:
    """What a process prepares before its first task."""

    config: Config
    data: Data
    words: Vocabulary  # the fields that proposals may use
    probe: Prober


_here: _Prepared | None = None  # of this process


def _prepare_worker(experiments: Sequence[Experiment], config: Config, hardware: Facts, kernels: Facts) -> None:
    processes.end_with_parent()
    _prepare(experiments, config, hardware, kernels)


def _prepare(experiments: Sequence[Experiment], config: Config, hardware: Facts, kernels: Facts) -> None:
    global _here
    score = config.score
    data = prepare(
        experiments, score.arrival_seeds, score.moe_weight, hardware, kernels, score.left_out, score.tail
    )
    _here = _Prepared(config, data, vocabulary(experiments, config.search.fields), Prober(data.fit))


def _prepared() -> _Prepared:
    assert _here is not None, "a process prepares the data when it starts"
    return _here


def _propose(first: str, second: str, rng: np.random.Generator, weights: Mapping[str, float]) -> tuple[str, str]:
    prepared = _prepared()
    methods, caps = prepared.config.search.evolve, prepared.config.caps
    child, operator = propose(
        _parent(first), _parent(second), prepared.words, rng, methods, weights, prepared.probe, caps
    )
    return unparse(child), operator


@lru_cache(maxsize=1024)
def _parent(text: str) -> Program:
    """The complete program of a parent's text; most are parents again and again."""
    return complete(parse(text))


def _assess(text: str, limits: Limits) -> Timed:
    laps = Laps()
    return assess(parse(text), _prepared().data, limits, laps), laps.seconds


def _polish(text: str) -> Timed:
    laps = Laps()
    return polished(complete(parse(text)), _prepared().data, laps), laps.seconds


def _diagnose(text: str) -> str:
    return describe(diagnose(complete(parse(text)), _prepared().data))


@dataclass(frozen=True)
class Prober:
    """The residuals of programs on the prepared data, which guide some operators."""

    data: FitSet

    def gains(self, program: Program, method: str, terms: Sequence[Sequence[Expr]]) -> np.ndarray:
        """See evaluator.diagnose.explain.gains."""
        return gains(program, method, terms, self.data)

    def costs(self, program: Program) -> np.ndarray:
        """See evaluator.diagnose.explain.costs."""
        return costs(program, self.data)


def prober() -> Prober:
    """The prober of the data that this process prepared."""
    return _prepared().probe


class _Here:
    """This process as a pool of its own: each task is carried out as soon as it is submitted."""

    def submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Promise[T]:
        future: Future[T] = Future()
        try:
            future.set_result(call(*args, **kwargs))
        except Exception as e:
            future.set_exception(e)
        return future

    def close(self) -> None:
        """Nothing is to be closed."""


class Workers:
    """Processes that have prepared the data of a search. Their results do not depend on how many there are."""

    def __init__(self, pool: Pool | _Here) -> None:
        self._pool = pool

    def propose(
        self, first: str, second: str, rng: np.random.Generator, weights: Mapping[str, float]
    ) -> Promise[tuple[str, str]]:
        """A changed copy of the program `first`, and the operator that changed it (see evolve.propose.offline)."""
        return self._pool.submit(_propose, first, second, rng, weights)

    def assess(self, text: str, limits: Limits) -> Promise[Timed]:
        """The verdict on a program (see evaluator.assess)."""
        return self._pool.submit(_assess, text, limits)

    def polish(self, text: str) -> Promise[Timed]:
        """The verdict on a program after CMA-ES has polished its constants on the replays."""
        return self._pool.submit(_polish, text)

    def diagnose(self, text: str) -> Promise[str]:
        """A text about where the program is wrong on the fitted experiments."""
        return self._pool.submit(_diagnose, text)

    def submit(self, task: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Promise[T]:
        """The result of a task that does not need the prepared data."""
        return self._pool.submit(task, *args, **kwargs)

    def close(self) -> None:
        """End the processes. Tasks that are still waiting are lost."""
        self._pool.close()


def here() -> Workers:
    """This process, whose data is prepared, as the only worker."""
    return Workers(_Here())


def alone(count: int) -> bool:
    """Whether so many workers are this process: a single one, if it computes as a worker process does."""
    return count == 1 and processes.settled()


def start(count: int, experiments: Sequence[Experiment], config: Config, line: Line) -> Workers:
    """`count` worker processes with the data prepared, or this process, see `alone`.

    The progress line reports a process that dies or does not answer.
    """
    if alone(count):
        _prepare(*_to_prepare(experiments, config))
        return here()
    return Workers(start_pool(count, experiments, config, line))


def start_pool(count: int, experiments: Sequence[Experiment], config: Config, line: Line) -> Pool:
    """The pool of these worker processes (see `start`), for tasks that use `here` inside a process."""
    processes.settle()  # for workers started by a library user; the command line has done it already
    return Pool(count, _prepare_worker, _to_prepare(experiments, config), line)


def _to_prepare(experiments: Sequence[Experiment], config: Config) -> tuple[Sequence[Experiment], Config, Facts, Facts]:
    """The arguments of `_prepare`."""
    hardware = datasheet_deployments() if config.score.physics else {}
    kernels = kernel_deployments() if config.score.physics and config.search.fields == "all" else {}
    return tuple(experiments), config, hardware, kernels
