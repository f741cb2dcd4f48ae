"""What a predicted mean E2E depends on: terms, constants, and what programs that fit equally well disagree about.

The mean field (evaluator.fit.meanfield) gives the slopes of the mean E2E in all parts of a program at once. Shares of
terms are then replayed, because the mean field knows neither preemptions nor requests that their clients give up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evaluator.factors import Factored, FactorPart, by_field, by_term
from evaluator.fit.machine import Machine, machine
from evaluator.fit.meanfield import DEPLOYMENT, DURATION, OBSERVED_N, RATE, predict
from evaluator.fit.problem import with_slopes
from evaluator.fit.stages import stages_of
from evaluator.intervals import Disagreement, Scale
from evaluator.metrics import run_means_ms
from simulator.clock.bind import Deployments, bind, deployments_in_order
from simulator.clock.replay import replay_bound
from simulator.language.ir import Program
from simulator.language.opcodes import Code, assemble
from simulator.serving.experiment import Experiment
from simulator.serving.load import Load, load_of

MOST_TERMS = 3
CHANGE = 0.02  # by which a term is replayed shorter and longer
LEAST = 0.005  # smallest share that is kept: what rounds to one percent
DIFFERS = 0.001  # of the mean E2E: programs whose contributions are further apart differ
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
    """A batch field, or the terms of a method without any, about which a committee disagrees.

    share: of the committee's mean square deviation, shares adding up to 1; negative where other parts make up for it.
    differ: how many of the `members` contribute more or less by it than the program does.
    """

    part: FactorPart
    share: float
    differ: int
    members: int


@dataclass(frozen=True, slots=True)
class ConstantError:
    """The variance of the logarithm of the mean E2E by the standard errors of constants together, and the name of the
    one that adds most to it."""

    variance: float
    most: str


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an interval comes from, and its share of the squared scale of the interval.

    dispute: of a disagreement, None if nothing explains it; constant: the one whose error matters most.
    """

    kind: str
    share: float
    dispute: Dispute | None = None
    constant: str | None = None


@dataclass(frozen=True)
class Traffic:
    """Experiments with the loads of one arrival seed, and their load stages as the mean field has them (fit.Stages)."""

    experiments: tuple[Experiment, ...]
    loads: tuple[Load, ...]
    table: np.ndarray
    bins: np.ndarray
    deployments: Deployments

    def run_means(self, of_stages: np.ndarray) -> np.ndarray:
        """float64[..., experiments]: means over requests of float64[..., stages]."""
        requests = self.table[:, RATE] * self.table[:, DURATION]
        member = self.table[:, DEPLOYMENT].astype(int) == np.arange(len(self.experiments))[:, None]
        weights = member * requests
        means: np.ndarray = of_stages @ (weights / weights.sum(axis=1, keepdims=True)).T
        return means


def traffic_of(experiments: Sequence[Experiment], seed: int) -> Traffic:
    """The traffic of the experiments under an arrival seed."""
    loads = tuple(load_of(e, seed) for e in experiments)
    stages = stages_of(experiments, loads)
    return Traffic(tuple(experiments), loads, stages.table, stages.bins, deployments_in_order(experiments))


def term_shares(program: Program, traffic: Traffic) -> list[list[TermShare]]:
    """For each experiment the MOST_TERMS terms with the largest shares, largest first.

    The mean field chooses them, and replays measure them.
    """
    factored = by_term(program)
    code = assemble(factored.program)
    _, slopes_ms = _mean_field(factored.program, traffic, traffic.table)
    positions = np.array(list(factored.parts))
    return [
        _replayed(factored, code, positions[np.argsort(-slopes_ms[positions, i])[:MOST_TERMS]], e, load)
        for i, (e, load) in enumerate(zip(traffic.experiments, traffic.loads, strict=True))
    ]


def _replayed(
    factored: Factored, code: Code, positions: np.ndarray, experiment: Experiment, load: Load
) -> list[TermShare]:
    """The shares of the terms at these positions, by replays of each a little shorter and longer."""
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
    """For each experiment the share of every term in the mean E2E at the batches that the program predicts.

    Unlike those of `term_shares`, these add up to 1, because longer steps make the batches no larger here. The mean
    field's queues still grow, so the slopes are divided by their sum.
    """
    table = traffic.table.copy()
    table[:, OBSERVED_N] = _running(program, traffic)
    factored = by_term(program)
    _, slopes_ms = _mean_field(factored.program, traffic, table, fixed_load=True)
    positions = list(factored.parts)
    shares = slopes_ms[positions] / slopes_ms[positions].sum(axis=0)
    return [dict(zip(factored.parts.values(), map(float, column), strict=True)) for column in shares.T]


def disputes(
    program: Program, committee: Sequence[Program], doubts: Sequence[Disagreement], traffic: Traffic
) -> list[list[Dispute]]:
    """For each experiment what the committee disagrees about, the largest share first; empty if nothing explains it.

    What a part contributes to the mean E2E is compared between each member and the program on the same steps, those
    that the program predicts. The share of a part is the mean product of these differences with the whole difference of
    the members, log(theirs / ours) as replayed, over the sum of these products.
    """
    table = traffic.table.copy()
    table[:, OBSERVED_N] = _running(program, traffic)
    contributed = [_contributions(p, traffic, table) for p in (program, *committee)]
    (ours_ms, ours), members = contributed[0], [parts for _, parts in contributed[1:]]
    parts = list(dict.fromkeys(part for _, of_program in contributed for part in of_program))
    nothing = np.zeros(len(traffic.experiments))
    differences = np.array(
        [[(theirs.get(part, nothing) - ours.get(part, nothing)) / ours_ms for part in parts] for theirs in members]
    ).reshape(len(members), len(parts), len(nothing))
    return [_disputes(differences[:, :, i], parts, doubt) for i, doubt in enumerate(doubts)]


def _disputes(differences: np.ndarray, parts: Sequence[FactorPart], doubt: Disagreement) -> list[Dispute]:
    """`differences`: float64[members, parts], of one experiment."""
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
    """For each experiment how far the standard errors of the known constants let the mean E2E be off."""
    means_ms, slopes_ms = _mean_field(program, traffic, traffic.table)
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
    """Where the interval of the mean E2E comes from, the largest share first.

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
    program: Program, traffic: Traffic, table: np.ndarray
) -> tuple[np.ndarray, dict[FactorPart, np.ndarray]]:
    """(mean E2E, what each part of the program contributes to it), in ms by experiment, under the load in `table`."""
    factored = by_field(program)
    means_ms, slopes_ms = _mean_field(factored.program, traffic, table, fixed_load=True)
    parts: dict[FactorPart, np.ndarray] = {}
    for position, part in factored.parts.items():
        key = FactorPart("", part.text) if part.text else part  # a batch field is the same one in every method
        parts[key] = parts.get(key, 0.0) + slopes_ms[position]
    return means_ms, parts


def _mean_field(
    program: Program, traffic: Traffic, table: np.ndarray, fixed_load: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """(mean E2E in ms, float64[experiments]; its slopes in the constants, float64[theta, experiments])."""
    means_ms, slopes_ms = with_slopes(_machine(program, traffic, table), np.array(program.theta), fixed_load)
    return traffic.run_means(means_ms[:, 0]), traffic.run_means(slopes_ms[:, :, 0])


def _running(program: Program, traffic: Traffic) -> np.ndarray:
    """float64[stages]: the decodes that run at once."""
    count = len(traffic.table)
    running, means_ms = np.empty(count), np.empty((count, 3))
    phi = np.array(program.theta)
    predict(_machine(program, traffic, traffic.table), phi, np.full(count, True), False, running, means_ms)
    return running


def _machine(program: Program, traffic: Traffic, table: np.ndarray) -> Machine:
    code = assemble(program)
    everyone, place = [range(len(traffic.experiments))], np.arange(len(program.theta))[None]
    return machine(code, table, traffic.bins, traffic.deployments.base(code), everyone, place)
