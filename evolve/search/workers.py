"""The tasks of a search's workers: proposals, verdicts, diagnoses, each on data that a process prepares once.

Programs cross the border between processes as text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any, Protocol

import numpy as np

from archive.proposal import Rejected
from archive.score import Errors
from evaluator.assess import (
    AssessData,
    AssessLimits,
    Scored,
    StageTimer,
    assess,
    faults,
    form_of,
    polished,
    prepare,
    read,
)
from evaluator.diagnose.describe import describe
from evaluator.diagnose.explain import costs, gains
from evaluator.diagnose.tables import Listing
from evaluator.diagnose.trial import Trial, left_out, trial
from evaluator.fit.loss import FitSet
from evaluator.fit.problem import Problem, problem_of
from evaluator.judge.gates import FactsByDeployment
from evaluator.judge.physics import KernelSums, known_kernel_sums
from evolve.run.config import Config
from evolve.search.offline import propose
from evolve.search.pool.pool import Pool, Promise, at_once
from evolve.search.pool.process import Parcel, WorkerCall, parcel
from evolve.search.proposer import Changed, Chosen
from evolve.search.vocabulary import Vocabulary, field_set, vocabulary
from simulator.language.complete import complete
from simulator.language.ir import Expr, Program
from simulator.language.measure import Caps
from simulator.language.parse import parse
from simulator.language.unparse import unparse
from simulator.serving.experiment import Experiment
from simulator.serving.known import datasheet_deployments

Timed = tuple[Scored | Rejected, dict[str, float]]  # a verdict, and its CPU seconds by stage


@dataclass(frozen=True)
class Prober:
    """The residuals of programs on the prepared data, which guide some operators."""

    data: FitSet

    def gains(self, program: Program, method: str, terms: Sequence[Sequence[Expr]]) -> np.ndarray:
        return gains(self._problem_of(program), method, terms)

    def costs(self, program: Program) -> np.ndarray:
        return costs(self._problem_of(program))

    @cached_property
    def _problem_of(self) -> Callable[[Program], Problem]:
        return lru_cache(maxsize=16)(partial(problem_of, data=self.data))  # most are parents again and again


@dataclass(frozen=True)
class Prepared:
    """The values that a process prepares before the first task of a search."""

    config: Config
    data: AssessData
    words: Vocabulary  # the fields that proposals may use
    probe: Prober


def data_of(experiments: Sequence[Experiment], config: Config) -> Parcel:
    """The data of a search as workers are sent it; each prepares it once."""
    hardware = datasheet_deployments() if config.score.physics else {}
    kernels = known_kernel_sums() if config.score.physics and config.search.fields == "all" else None
    return parcel(_prepare, tuple(experiments), config, hardware, kernels)


def _prepare(
    experiments: Sequence[Experiment], config: Config, hardware: FactsByDeployment, kernels: KernelSums | None
) -> Prepared:
    score = config.score
    measured = experiments, score.arrival_seeds, score.moe_weight, hardware, kernels
    data = prepare(*measured, score.left_out, config.search.fit)
    return Prepared(config, data, vocabulary(experiments, config.search.fields), Prober(data.fit))


def _propose(prepared: Prepared, chosen: Sequence[Chosen], weights: Mapping[str, float]) -> list[Changed]:
    methods, caps = prepared.config.search.evolve, prepared.config.caps
    children = [
        propose(_program(first), _program(second), prepared.words, rng, methods, weights, prepared.probe, caps)
        for first, second, rng in chosen
    ]
    fields = field_set(prepared.config.search.fields)
    return [_changed(child, operator, caps, fields) for child, operator in children]


def _changed(child: Program, operator: str, caps: Caps, fields: frozenset[str] | None) -> Changed:
    text = unparse(child)
    if next(faults(child, caps, fields), None) is None:
        return Changed(text, operator, form_of(child))
    refused = read(text, caps, fields)  # of the text: a refusal names the line
    assert isinstance(refused, Rejected), text
    return Changed(text, operator, refused)


@lru_cache(maxsize=1024)
def _program(text: str) -> Program:
    """The complete program of a text from another process; parents come again and again."""
    return complete(parse(text))


def _assess(prepared: Prepared, text: str, limits: AssessLimits) -> Timed:
    timer = StageTimer()
    return assess(_program(text), prepared.data, limits, timer), timer.seconds


def _polish(prepared: Prepared, text: str) -> Timed:
    timer = StageTimer()
    return polished(_program(text), prepared.data, timer), timer.seconds


def _diagnose(prepared: Prepared, text: str, near: Mapping[int, str]) -> tuple[Listing, ...]:
    return describe(_program(text), prepared.data, {number: _program(other) for number, other in near.items()})


def _trial(prepared: Prepared, text: str) -> Trial:
    return trial(text, prepared.data)


def _left_out(prepared: Prepared, text: str) -> tuple[Errors, ...]:
    return left_out(text, prepared.data)


class Submits(Protocol):
    """An executor of calls, such as a pool."""

    def submit(self, call: WorkerCall, number: int = 0) -> Promise[Any]:
        """The task of carrying out a call; the one with the lowest number comes first."""


class Workers:
    """A pool's workers for one search. Their results do not depend on how many there are.

    `number` is that of a proposal: the lowest comes first, because the archive waits for it. Of several searches that
    share a pool, the one that is behind comes first.
    """

    def __init__(self, pool: Submits, data: Parcel | None = None, limit_s: float | None = None) -> None:
        self._pool, self._data, self._limit_s = pool, data, limit_s

    def propose(self, number: int, chosen: Sequence[Chosen], weights: Mapping[str, float]) -> Promise[list[Changed]]:
        """Changed copies of the programs chosen, and the operators that changed them (see evolve.search.offline)."""
        return self._pool.submit(WorkerCall(_propose, (chosen, weights), parcel=self._data), number)

    def assess(self, number: int, text: str, limits: AssessLimits) -> Promise[Timed]:
        """The verdict on a program (see evaluator.assess). Waiting for it may raise TookTooLong."""
        return self._pool.submit(WorkerCall(_assess, (text, limits), parcel=self._data, limit_s=self._limit_s), number)

    def polish(self, number: int, text: str) -> Promise[Timed]:
        """The verdict on a program after CMA-ES has polished its constants on the replays."""
        return self._pool.submit(WorkerCall(_polish, (text,), parcel=self._data, limit_s=self._limit_s), number)

    def diagnose(self, text: str, near: Mapping[int, str]) -> Promise[tuple[Listing, ...]]:
        """Where the program is wrong on the fitted experiments, and other programs differ (evaluator.diagnose)."""
        return self._pool.submit(WorkerCall(_diagnose, (text, near), parcel=self._data))

    def trial(self, number: int, text: str) -> Promise[Trial]:
        """The trial of a program (see evaluator.diagnose.trial). Waiting for it may raise TookTooLong."""
        return self._pool.submit(WorkerCall(_trial, (text,), parcel=self._data, limit_s=self._limit_s), number)

    def left_out(self, text: str) -> Promise[tuple[Errors, ...]]:
        """The errors of a fitted program on runs left out of the fit (see evaluator.diagnose.trial)."""
        return self._pool.submit(WorkerCall(_left_out, (text,), parcel=self._data))


def workers_of(pool: Pool, experiments: Sequence[Experiment], config: Config) -> Workers:
    """The workers of a search with this configuration on these experiments."""
    return Workers(pool, data_of(experiments, config), config.search.limit_s or None)


class _Inside:
    """This process, which has the prepared data already, as a pool for one search."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared

    def submit(self, call: WorkerCall, number: int = 0) -> Promise[Any]:
        return at_once(partial(call.function, self._prepared, *call.args))


def workers_inside(prepared: Prepared) -> Workers:
    """The only worker of a search that is itself carried out in a worker process."""
    return Workers(_Inside(prepared))
