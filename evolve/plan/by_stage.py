"""The replicas that each stage of a load needs, from replays of the whole load by several numbers of replicas."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate

from evaluator.metrics import LATENCIES
from simulator.common.json import JsonObject
from simulator.serving.observations import Observation
from simulator.serving.workload import Stage

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class StageRun:
    """The requests that arrive in a load stage, in a replay of the whole load: their latencies, and what `fails`."""

    run: Observation
    fails: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StageNeed:
    """A load stage, and the fewest replicas with which everything holds in it; None if no number is enough.

    begins_s, duration_s: in the load as its file has it. rate_rps: requests/s of the whole service. run: the latencies
    with so many replicas.
    """

    number: int
    begins_s: float
    duration_s: float
    rate_rps: float
    replicas: int | None
    run: Observation | None

    def to_json(self, gpus: int) -> JsonObject:
        """With the GPUs of replicas of `gpus` each."""
        return {
            "stage": self.number,
            "begins_s": self.begins_s,
            "duration_s": self.duration_s,
            "rate_rps": self.rate_rps,
            "replicas": self.replicas,
            "gpus": self.replicas * gpus if self.replicas else None,
            **{name: asdict(getattr(self.run, name)) if self.run else None for name in LATENCIES},
            "completed": self.run.completed if self.run else None,
            "failed": self.run.failed if self.run else None,
        }


@dataclass(frozen=True, slots=True)
class ByStage:
    """The needs of the stages of a load. every: the fewest replicas with which everything holds over the whole run and
    in every stage; None if no number is enough."""

    needs: tuple[StageNeed, ...]
    every: int | None

    @property
    def hours(self) -> float:
        """The length of the load."""
        return sum(need.duration_s for need in self.needs) / HOUR_S

    def gpu_hours(self, gpus: int) -> tuple[float, float] | None:
        """GPU hours of replicas of `gpus` each, if `every` one runs all the time, and if each stage has as many as it
        needs. None if no number is enough."""
        if self.every is None:
            return None
        following_s = sum((need.replicas or 0) * need.duration_s for need in self.needs)
        return self.every * gpus * self.hours, gpus * following_s / HOUR_S


def by_stage(
    stages: Sequence[Stage],
    load_rps: float,
    every: int | None,
    tried: Collection[int],
    runs: Callable[[int], Sequence[StageRun]],
    fewest: Callable[[Callable[[int], bool], int, int], int | None],
) -> ByStage:
    """The needs of each stage of a load of load_rps requests/s on average.

    tried: the numbers of replicas that have been replayed, `every` among them. runs: the stages in a replay with a
    number of replicas, none if that is impossible; it may add to `tried`. fewest(holds, few, many): the smallest number
    above `few` that holds, if `few` does not; `many` is the first to be looked at.
    """
    begins_s = accumulate((stage.duration_s for stage in stages), initial=0.0)
    scale = load_rps * sum(s.duration_s for s in stages) / sum(s.rate * s.duration_s for s in stages)
    needs = []
    for i, (stage, start_s) in enumerate(zip(stages, begins_s, strict=False)):

        def holds(count: int, i: int = i) -> bool:
            of_stages = runs(count)
            return bool(of_stages) and not of_stages[i].fails

        many = min((count for count in tried if holds(count)), default=max(tried))
        count = fewest(holds, max((few for few in tried if few < many), default=0), many)
        run = runs(count)[i].run if count else None
        needs.append(StageNeed(i + 1, start_s, stage.duration_s, stage.rate * scale, count, run))
    return ByStage(tuple(needs), every)
