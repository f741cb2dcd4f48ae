"""The fewest replicas of a deployment that share a load equally and keep its limits, from replays of one's share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

from evaluator.intervals import LEVELS
from evaluator.score import prediction_of
from evolve.plan.by_stage import ByStage, StageRun, by_stage
from evolve.plan.deployment import Deployment, Question
from evolve.plan.slo import few_requests
from evolve.plan.sweep_figures import figures_of, most_running
from evolve.plan.sweep_result import SweepFigures
from evolve.plan.warnings import too_late
from evolve.run.measurements import MOSTLY_WAITING
from simulator.clock.replay import Replay
from simulator.common.errors import InputError
from simulator.serving.experiment import Experiment
from simulator.serving.observations import Observation
from simulator.serving.trace import Trace
from simulator.serving.workload import (
    ENOUGH,
    Workload,
    at_users,
    mean_rate,
    offered_requests,
    seeds_of,
    share_of,
)

WAITS = "clients wait longer than they are served"
MOST_TIMES = 4  # the replicas for being sure, at most, over those that are predicted to be enough
IDLE = 0.005  # requests in flight on average, below which even p99 is that of requests that are alone
FIRST_RPS, FIRST_USERS = 16.0, 32  # of the replica that is tried first: far above what it serves, replays are long


def users_of(workload: Workload) -> int:
    """The clients of a closed load, the most of a stage."""
    return max(stage.users or 1 for stage in workload.stages)


def asked_of(workload: Workload) -> tuple[float, str]:
    """The load as a number, and its unit."""
    return (float(users_of(workload)), "clients") if workload.closed else (mean_rate(workload) or 0.0, "requests/s")


def share(workload: Workload, count: float) -> Workload:
    """The load of one of `count` replicas, or above all of it if `count` is below 1; of clients, that of the replica
    with most."""
    if workload.closed:
        own = at_users(workload, ceil(users_of(workload) / count))
        [stage], users = own.stages, users_of(workload)
        asked = ceil(offered_requests(workload) * (stage.users or 1) / users)
        fewer = replace(stage, requests=max(asked, min(stage.requests or 0, ENOUGH)))
        return own if isinstance(workload.source, Trace) else replace(own, stages=(fewer,))
    return share_of(workload, (mean_rate(workload) or 0.0) / count)


@dataclass(frozen=True)
class Replicas:
    """A deployment under equal shares of the load that it is built with.

    tried: the figures by the number of replicas; the reason where that is impossible. first: replays under the first
    arrival seed that these will need. failed: numbers of which these are enough to see that a limit fails, and whether
    more do not help. tick: called after each prediction.
    """

    question: Question
    deployment: Deployment
    tick: Callable[[], None] = lambda: None
    tried: dict[int, SweepFigures | str] = field(default_factory=dict)
    first: dict[int, list[Replay]] = field(default_factory=dict)
    failed: dict[int, bool] = field(default_factory=dict)

    @property
    def load(self) -> Workload:
        """The load of the whole service."""
        return self.deployment.built.workload

    @property
    def most(self) -> int | None:
        """The clients of a closed load, each with a replica of its own; None for a load with a rate."""
        return users_of(self.load) if self.load.closed else None

    def experiment(self, count: float) -> Experiment:
        """One replica's share. Raises InputError for one that is impossible."""
        return self.deployment.under(share(self.load, count), f"{self.deployment.built.id}, {count:g} replicas")

    def of(self, count: int) -> SweepFigures | str:
        """The figures with so many replicas, or why that is impossible."""
        if count not in self.tried:
            try:
                self.tried[count] = self._predicted(count)
            except InputError as error:
                self.tried[count] = str(error)
            self.tick()
        return self.tried[count]

    def _predicted(self, count: int) -> SweepFigures | str:
        e = self.experiment(count)
        f = figures_of(self.question.source.record, e, self._replays(count, e), self.question.limits)
        if late := too_late(f.prediction):  # a replica would have more to do
            return f"{e.id}: {late[0]}"
        if self.load.closed and f.waiting_share > MOSTLY_WAITING:  # a queue that no limit on ITL sees
            f = replace(f, fails=(*f.fails, WAITS))
        return replace(f, warnings=(*f.warnings, *few_requests(self.question.limits, f.run)))

    def _replays(self, count: int, e: Experiment) -> list[Replay]:
        """The replays of one replica's share, of which `holds` may have made the first."""
        made = self.first.pop(count, [])
        seeds = seeds_of(e.workload, self.question.seeds)
        return [*made, *self.deployment.replays(e, seeds[len(made) :])]

    def holds(self, count: int) -> bool:
        """True if everything holds, averaged over arrival seeds. One seed may be enough to see that it does not: it
        takes the mean over all seeds beyond a limit, as times are not negative."""
        if count in self.failed:
            return False
        if count not in self.tried:
            try:
                e = self.experiment(count)
                first = self.deployment.replays(e, self.question.seeds[:1])
            except InputError as error:
                self.tried[count] = str(error)
                return False
            run = prediction_of(e, first).predicted.summary
            seeds = len(seeds_of(e.workload, self.question.seeds))
            if any((limit.of(run) or 0.0) > seeds * limit.most_ms for limit in self.question.limits):
                self.failed[count] = self._alone(count, run, most_running(first[0]))
                return False
            self.first[count] = first
        f = self.of(count)
        return not isinstance(f, str) and not f.fails

    def judged(self, count: int) -> SweepFigures | None:
        """The figures with so many replicas, with intervals if everything holds; None if that is impossible."""
        f = self.of(count)
        if isinstance(f, str):
            return None
        if not f.fails and f.likely is None:
            f = self.tried[count] = self.deployment.judged(self.question, self.experiment(count), f)
        return f

    def hopeless(self, count: int) -> bool:
        """True if more replicas do not help: each serves one request, or conversation, at a time, or none."""
        if count in self.failed:
            return self.failed[count]
        f = self.of(count)
        return isinstance(f, str) or self._alone(count, f.run, f.most_running)

    def _alone(self, count: int, run: Observation | None, running: int) -> bool:
        if run is None or running <= 1:
            return True
        if self.most is not None:
            return count >= self.most
        return (mean_rate(self.load) or 0.0) / count * (run.e2e_ms.mean or 0.0) / 1e3 < IDLE

    def never(self, count: int) -> bool:
        """True if a limit fails even on an idle engine: tried with so many replicas that each is idle."""
        f = self.of(count)
        if isinstance(f, str) or f.run is None or not f.run.e2e_ms.mean:
            return False
        served_s = (1.0 - f.waiting_share) * f.run.e2e_ms.mean / 1e3
        many = self.most or max(ceil((mean_rate(self.load) or 0.0) * served_s / IDLE), count) + 1
        alone = self.of(many)
        if isinstance(alone, str) or not alone.fails or 2 * _completed(alone) < min(_completed(f), ENOUGH):
            if many != self.most:
                self.tried.pop(many)  # few requests, as of stages that are short, say nothing of percentiles
            return False
        return True


def _completed(figures: SweepFigures) -> int:
    return (figures.run.completed or 0) if figures.run else 0


class _Dearer(Exception):
    """It takes more replicas than may be."""


def fewest(replicas: Replicas, most: int | None = None) -> int | None:
    """The fewest replicas with which everything holds; None if no number is enough, or if that is above `most`.

    Counts are halved from that of a moderate share as long as everything holds, or doubled until it does; then the
    range between is halved, on the assumption that what holds does so with every larger count. `most` ends this early
    and changes none of its counts: not every limit is monotone, as a long queue keeps batches and so the ITL small.
    """

    def holds(count: int) -> bool:
        if replicas.holds(count):
            return True
        if most is not None and count >= most:
            raise _Dearer
        return False

    load = replicas.load
    shares = users_of(load) / FIRST_USERS if load.closed else (mean_rate(load) or 0.0) / FIRST_RPS
    many = max(ceil(shares), 1)
    if most is not None and most < 1:
        return None
    try:
        if not holds(many):
            return None if most is None and replicas.never(many) else _above(replicas, holds, many)
        while many > 1:
            few = max(many // 2, 1)
            if not holds(few):
                return _between(holds, few, many)
            many = few
    except _Dearer:
        return None
    return many


def _between(holds: Callable[[int], bool], few: int, many: int) -> int:
    """The smallest count above `few`, with which something does not hold, if it does with `many`."""
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if holds(middle) else (middle, many)
    return many


def _above(replicas: Replicas, holds: Callable[[int], bool], few: int, most: int | None = None) -> int | None:
    """The smallest count above `few`, with which something does not hold, and up to `most`; None if there is none."""
    many = few + 1
    while not holds(many):
        if (most is not None and many >= most) or replicas.hopeless(many):
            return None
        few, many = many, 2 * many if most is None else min(2 * many, most)
    return _between(holds, few, many)


def surer(replicas: Replicas, enough: int) -> tuple[int | None, ...]:
    """For each of LEVELS the fewest replicas with which everything holds at the upper ends of the intervals; None if
    not even MOST_TIMES the predicted number is. Empty without intervals."""
    first = replicas.judged(enough)
    if first is None or first.likely is None:
        return ()
    counts: list[int | None] = []
    least: int | None = enough
    for i in range(len(LEVELS)):

        def holds(count: int, i: int = i) -> bool:
            f = replicas.judged(count)
            return bool(f and (f.likely, f.likely_95)[i])

        if least is not None and not holds(least):
            least = _above(replicas, holds, least, MOST_TIMES * enough)
        counts.append(least)
    return tuple(counts)


def stage_needs(replicas: Replicas, enough: int) -> ByStage | None:
    """What the stages of the load need; None for a load of one, or of clients."""
    load = replicas.load
    if load.closed or len(load.stages) < 2:
        return None

    def runs(count: int) -> Sequence[StageRun]:
        f = replicas.of(count)
        return () if isinstance(f, str) else f.stages

    def every(count: int) -> bool:
        return replicas.holds(count) and not any(stage.fails for stage in runs(count))

    def least(holds: Callable[[int], bool], few: int, many: int) -> int | None:
        return _between(holds, few, many) if holds(many) else _above(replicas, holds, many)

    whole = enough if every(enough) else _above(replicas, every, enough)
    rate = mean_rate(load) or 0.0
    return by_stage(load.stages, rate, whole, replicas.tried, runs, least)
