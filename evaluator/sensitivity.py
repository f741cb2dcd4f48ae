"""Sensitivity of a predicted mean E2E: to terms, to constants, and to disagreements of programs that fit equally well.

The mean field (evaluator.fit.meanfield) gives the slopes of the mean E2E in all parts of a program at once. Replays
then measure the shares of terms, because the mean field has neither preemptions nor requests that clients give up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evaluator.fit.machine import DEPLOYMENT, DURATION, OBSERVED_N, RATE, Machine, machine
from evaluator.fit.meanfield import predict
from evaluator.fit.problem import with_slopes
from evaluator.fit.stages import Stages, joined, stages_of
from evaluator.intervals import Disagreement, Scale
from evaluator.metrics import run_means_ms
from evaluator.parts import Factored, FactorPart, by_field, by_term
from simulator.clock.bind import Deployments, bind, deployments_in_order
from simulator.clock.replay import replay_bound
from simulator.language.ir import Program
from simulator.language.opcodes import Code, assemble
from simulator.serving.experiment import Experiment
from simulator.serving.load import Load, load_of

MOST_TERMS = 3
CHANGE = 0.02  # by which replays make a term shorter and longer
LEAST = 0.005  # smallest share that is kept: it rounds to one percent
DIFFERS = 0.001  # share of the mean E2E by which contributions of two programs differ, at least
HELD_OUT, PACE, DISAGREEMENT, CONSTANT = "held_out_errors", "pace", "disagreement", "constant"

# By `method.name` of a constant: its standard error, and its correlations with others by their names.
Known = Mapping[str, tuple[float, Mapping[str, float]]]


@dataclass(frozen=True, slots=True)
class TermShare:
    """A term of a method, and its share of the mean E2E: d log(mean E2E) / d log(term)."""

    term: FactorPart
    share: float


@dataclass(frozen=True, slots=True)
class Dispute:
    """A batch field, or the terms of a method without any, about which an ensemble disagrees.

    share: of the mean square deviation of the ensemble, negative where other parts compensate; shares add up to 1.
    differ: the number of `members` whose contribution by it differs from that of the program.
    """

    part: FactorPart
    share: float
    differ: int
    members: int


@dataclass(frozen=True, slots=True)
class ConstantError:
    """The variance of the logarithm of the mean E2E by standard errors of constants; `most` adds most to it."""

    variance: float
    most: str


@dataclass(frozen=True, slots=True)
class Origin:
    """A source of an interval, and its share of the squared scale of the interval.

    dispute: of a disagreement, None if nothing explains it. constant: the one whose error matters most.
    """

    kind: str
    share: float
    dispute: Dispute | None = None
    constant: str | None = None


@dataclass(frozen=True)
class Traffic:
    """Experiments with the loads of one arrival seed, and their load stages."""

    experiments: tuple[Experiment, ...]
    loads: tuple[Load, ...]
    stages: Stages
    deployments: Deployments

    def run_means(self, of_stages: np.ndarray) -> np.ndarray:
        """float64[..., experiments]: means over requests of float64[..., stages]."""
        table = self.stages.table
        requests = table[:, RATE] * table[:, DURATION]
        member = table[:, DEPLOYMENT].astype(int) == np.arange(len(self.experiments))[:, None]
        weights = member * requests
        means: np.ndarray = of_stages @ (weights / weights.sum(axis=1, keepdims=True)).T
        return means


def traffic_of(experiments: Sequence[Experiment], seed: int) -> Traffic:
    """The experiments under an arrival seed."""
    loads = tuple(load_of(e, seed) for e in experiments)
    return Traffic(
        tuple(experiments), loads, joined([*map(stages_of, experiments, loads)]), deployments_in_order(experiments)
    )


def term_shares(program: Program, traffic: Traffic) -> list[list[TermShare]]:
    """The MOST_TERMS terms with the largest shares of each experiment, largest first.

    The mean field chooses them, and replays measure them.
    """
    factored = by_term(program)
    code = assemble(factored.program)
    _, slopes_ms = _mean_field(factored.program, traffic)
    positions = np.array(list(factored.parts))
    return [
        _replayed(factored, code, positions[np.argsort(-slopes_ms[positions, i])[:MOST_TERMS]], e, load)
        for i, (e, load) in enumerate(zip(traffic.experiments, traffic.loads, strict=True))
    ]


def _replayed(
    factored: Factored, code: Code, positions: np.ndarray, experiment: Experiment, load: Load
) -> list[TermShare]:
    """The shares of the terms at these positions, by replays with each a little shorter and longer."""
    theta = factored.program.theta

    def log_e2e(position: int, factor: float) -> float | None:
        changed = (*theta[:position], factor, *theta[position + 1 :])
        mean_ms = run_means_ms(replay_bound(load, bind(code, changed, experiment.facts)))[0]
        return math.log(mean_ms) if mean_ms else None

    shares = []
    for position in map(int, positions):
        low, high = log_e2e(position, 1.0 - CHANGE), log_e2e(position, 1.0 + CHANGE)
        if low is not None and high is not None:
            share = (high - low) / math.log((1.0 + CHANGE) / (1.0 - CHANGE))
            shares.append(TermShare(factored.parts[position], share))
    return sorted((s for s in shares if s.share >= LEAST), key=lambda s: -s.share)


def term_contributions(program: Program, traffic: Traffic) -> list[dict[FactorPart, float]]:
    """The share of every term in the mean E2E of each experiment, at the batches that the program predicts.

    Unlike those of `term_shares`, these add up to 1: longer steps make the batches no larger here. Queues of the mean
    field still grow, so the slopes are divided by their sum.
    """
    factored = by_term(program)
    _, slopes_ms = _mean_field(factored.program, traffic, _running(program, traffic))
    positions = list(factored.parts)
    shares = slopes_ms[positions] / slopes_ms[positions].sum(axis=0)
    return [dict(zip(factored.parts.values(), map(float, column), strict=True)) for column in shares.T]


def disputes(
    program: Program, ensemble: Sequence[Program], doubts: Sequence[Disagreement], traffic: Traffic
) -> list[list[Dispute]]:
    """The parts about which the ensemble disagrees on each experiment, largest share first; none if nothing explains
    it.

    The contributions of a part to the mean E2E under each member and under the program are compared on the steps that
    the program predicts. The share of a part is the mean product of these differences with the whole difference of the
    members, log(theirs / ours) as replayed, over the sum of these products.
    """
    running = _running(program, traffic)
    contributed = [_contributions(p, traffic, running) for p in (program, *ensemble)]
    (ours_ms, ours), members = contributed[0], [parts for _, parts in contributed[1:]]
    parts = list(dict.fromkeys(part for _, of_program in contributed for part in of_program))
    nothing = np.zeros(len(traffic.experiments))
    differences = np.array(
        [[(theirs.get(part, nothing) - ours.get(part, nothing)) / ours_ms for part in parts] for theirs in members]
    ).reshape(len(members), len(parts), len(nothing))
    return [_disputes(differences[:, :, i], parts, doubt) for i, doubt in enumerate(doubts)]


def _disputes(differences: np.ndarray, parts: Sequence[FactorPart], doubt: Disagreement) -> list[Dispute]:
    """The disputes of one experiment; `differences`: float64[members, parts]."""
    logs = np.array([0.0 if log is None else log for log in doubt.members])
    products = logs @ differences
    total = products.sum()
    if not total > 0.0:
        return []
    differ = (np.abs(differences) > DIFFERS).sum(axis=0)
    found = [
        Dispute(part, float(product / total), int(count), len(logs))
        for part, product, count in zip(parts, products, differ, strict=True)
    ]
    return sorted(found, key=lambda d: -d.share)


def constant_errors(program: Program, known: Known, traffic: Traffic) -> list[ConstantError]:
    """The variance of the mean E2E of each experiment by the standard errors of the known constants."""
    means_ms, slopes_ms = _mean_field(program, traffic)
    names = [f"{f.name}.{c.name}" for f in program.functions for c in f.constants]
    at = [j for j, name in enumerate(names) if name in known]
    if not at:
        return [ConstantError(0.0, "")] * len(traffic.experiments)
    correlations = np.array([[known[names[j]][1].get(names[i], float(i == j)) for i in at] for j in at])
    slopes = np.array([known[names[j]][0] for j in at])[:, None] * slopes_ms[at] / means_ms  # of log E2E
    parts = slopes * (correlations @ slopes)
    variances = np.maximum(parts.sum(axis=0), 0.0)  # correlations are rounded
    return [ConstantError(float(v), names[at[j]]) for v, j in zip(variances, parts.argmax(axis=0), strict=True)]


def origins(scale: Scale, doubt: Disagreement, about: Sequence[Dispute], constants: ConstantError) -> list[Origin]:
    """The sources of the interval of the mean E2E, largest share first.

    Shares add up to about 1 without that of the constants, whose errors are among those on held-out runs.
    """
    members, paces = (sum(x * x for x in logs if x is not None) for logs in (doubt.members, doubt.paces))
    count = max(sum(x is not None for x in (*doubt.members, *doubt.paces)), 1)
    squared = scale.floor**2 + (members + paces) / count
    if not squared > 0.0:
        return []
    apart = members / count / squared
    found = [
        Origin(HELD_OUT, scale.floor**2 / squared),
        Origin(PACE, paces / count / squared),
        *(Origin(DISAGREEMENT, d.share * apart, dispute=d) for d in about),
        *([] if about else [Origin(DISAGREEMENT, apart)]),
        Origin(CONSTANT, constants.variance / squared, constant=constants.most),
    ]
    return sorted((o for o in found if abs(o.share) >= LEAST), key=lambda o: -o.share)


def _contributions(
    program: Program, traffic: Traffic, running: np.ndarray
) -> tuple[np.ndarray, dict[FactorPart, np.ndarray]]:
    """(mean E2E, contribution of each part of the program to it), in ms by experiment, with so many running decodes."""
    factored = by_field(program)
    means_ms, slopes_ms = _mean_field(factored.program, traffic, running)
    parts: dict[FactorPart, np.ndarray] = {}
    for position, part in factored.parts.items():
        key = FactorPart("", part.text) if part.text else part  # methods share a batch field
        parts[key] = parts.get(key, 0.0) + slopes_ms[position]
    return means_ms, parts


def _mean_field(program: Program, traffic: Traffic, running: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(mean E2E in ms, float64[experiments]; its slopes in the constants, float64[theta, experiments]).

    running: float64[stages], decodes that run at once (default: by the mean field itself).
    """
    table = traffic.stages.table.copy()
    if running is not None:
        table[:, OBSERVED_N] = running
    compiled = _machine(program, traffic)._replace(table=table)
    means_ms, slopes_ms = with_slopes(compiled, np.array(program.theta), fixed_load=running is not None)
    return traffic.run_means(means_ms[:, 0]), traffic.run_means(slopes_ms[:, :, 0])


def _running(program: Program, traffic: Traffic) -> np.ndarray:
    """float64[stages]: the decodes that run at once."""
    count = len(traffic.stages.table)
    running, every = np.empty(count), np.full(count, True)
    predict(_machine(program, traffic), np.array(program.theta), every, False, running, np.empty((count, 3)))
    return running


def _machine(program: Program, traffic: Traffic) -> Machine:
    code = assemble(program)
    everyone, place = [range(len(traffic.experiments))], np.arange(len(program.theta))[None]
    return machine(code, traffic.stages.table, traffic.stages.bins, traffic.deployments, everyone, place)
