"""The fewest replicas for a load that they share equally, from predictions of one replica's share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import ceil

from evolve.plan.by_stage import ByStage, by_stage
from evolve.plan.sweep_result import IDLE, SweepFigures, SweepRow, replicas
from simulator.serving.workload import ENOUGH, Stage


def fewest_replicas(
    load_rps: float,
    start_rps: float,
    stages: Sequence[Stage],
    at: Callable[[float], SweepRow],
    judged: Callable[[SweepRow], SweepRow],
) -> tuple[list[SweepRow], ByStage | None]:
    """Find the fewest replicas with which everything holds: averaged over arrival seeds, under each alone, and at the
    upper ends of intervals. Returns the rows of the shares that were tried, in ascending order of rate; and the needs
    of the stages, if there are several.

    The first share is at most start_rps, the rate of the experiment's own load: far above the rate that a deployment
    serves, replays are long. `at` predicts a rate in requests/s; `judged` looks at the upper ends of its intervals.
    """
    tried = _Tried(load_rps, at, judged)
    fewest = partial(_fewest, hopeless=tried.hopeless)
    first = replicas(load_rps, start_rps)
    enough = None if not tried.holds(first) and tried.never(first) else fewest(tried.holds, 0, first)
    if enough is not None:
        fewest(tried.holds_by_seed, enough - 1, enough)
        tried.judge(enough)
        if (f := tried.row(enough).figures) and f.likely is not None:  # there are intervals
            fewest(tried.likely_holds, enough - 1, enough)
    rows = [tried.rows[count] for count in sorted(tried.rows, reverse=True)]
    if len(stages) < 2 or not any(row.figures for row in rows):
        return rows, None
    every = None if enough is None else fewest(tried.holds_in_every_stage, enough - 1, enough)
    return rows, by_stage(stages, load_rps, every, tried.rows, lambda count: tried.row(count).stages, fewest)


@dataclass(frozen=True)
class _Tried:
    """The rows of one replica's share of a load, by the number of replicas; each number is predicted once."""

    load_rps: float
    at: Callable[[float], SweepRow]
    judged: Callable[[SweepRow], SweepRow]
    rows: dict[int, SweepRow] = field(default_factory=dict)

    def row(self, count: int) -> SweepRow:
        """The row with so many replicas."""
        if count not in self.rows:
            self.rows[count] = self.at(self.load_rps / count)
        return self.rows[count]

    def judge(self, count: int) -> None:
        """Judge the row at the upper ends of intervals, too."""
        self.rows[count] = self.judged(self.row(count))

    def holds(self, count: int) -> bool:
        """True if everything holds, averaged over arrival seeds."""
        f = self.row(count).figures
        return f is not None and not f.fails

    def holds_by_seed(self, count: int) -> bool:
        """True if everything holds under each arrival seed alone."""
        f = self.row(count).figures
        return f is not None and f.seeds_holding == f.seeds

    def likely_holds(self, count: int) -> bool:
        """True if everything holds at the upper ends of intervals."""
        if (f := self.row(count).figures) and f.likely is None:
            self.judge(count)
        f = self.row(count).figures
        return f is not None and f.likely is True

    def holds_in_every_stage(self, count: int) -> bool:
        """True if everything holds over the whole load and in each of its stages."""
        return self.holds(count) and not any(stage.fails for stage in self.row(count).stages)

    def hopeless(self, count: int) -> bool:
        """True if more replicas do not help: each serves one request, or conversation, at a time, or none."""
        f = self.row(count).figures
        if f is None or f.run is None or f.most_running <= 1:
            return True
        return self.load_rps / count * (f.run.e2e_ms.mean or 0.0) / 1e3 < IDLE

    def never(self, count: int) -> bool:
        """True if a limit fails even on an idle engine: tried with so many replicas that each is idle."""
        f = self.row(count).figures
        if f is None or f.run is None or not f.run.e2e_ms.mean:
            return False
        served_s = (1.0 - f.waiting_share) * f.run.e2e_ms.mean / 1e3
        many = max(ceil(self.load_rps * served_s / IDLE), count) + 1
        idle = self.at(self.load_rps / many)
        alone = idle.figures
        if alone is None or not alone.fails or 2 * _completed(alone) < min(_completed(f), ENOUGH):
            return False  # few requests, as of stages that are short, say nothing of percentiles
        self.rows[many] = idle
        return True


def _completed(figures: SweepFigures) -> int:
    return (figures.run.completed or 0) if figures.run else 0


def _fewest(holds: Callable[[int], bool], few: int, many: int, hopeless: Callable[[int], bool]) -> int | None:
    """The smallest count above `few` with which something holds; None if more replicas do not help.

    It does not hold with `few`. `many`, the first to be tried, is doubled until it holds, and the range between the two
    halved, on the assumption that it then holds with every larger count.
    """
    while not holds(many):
        if hopeless(many):
            return None
        few, many = many, 2 * many
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if holds(middle) else (middle, many)
    return many
