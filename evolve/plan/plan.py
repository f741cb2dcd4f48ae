"""`evolve plan`: the deployments that keep the limits under a load, the cheapest first.

Every combination of GPU, parallelism, weights and batch limits is a candidate. Candidates without room for the model
are left out. Of the others, the fewest replicas that hold are counted, but no further than a row of the table may cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, product

from evaluator.provenance import kernel_doubt
from evolve.output.progress import Line
from evolve.plan.axes import Axes, Setting, rate_figure
from evolve.plan.deployment import Question, deployed
from evolve.plan.pictures import pictures_of
from evolve.plan.plan_result import SHOWN, Plan, PlanRow, answer, asked, name_of
from evolve.plan.prices import replica_cost
from evolve.plan.replicas import Replicas, asked_of, fewest, stage_needs, surer
from evolve.plan.slo import SloLimit
from evolve.plan.sweep import as_asked, check_pools, check_rate
from evolve.plan.sweep_result import SweepFigures
from evolve.plan.warnings import about
from evolve.run.program import Source
from simulator.common.errors import InputError
from simulator.serving.digests import data_hash
from simulator.serving.pools import NODE
from simulator.serving.spec import Spec

DEGREES = (1, 2, 4, 8)  # of parallelism that are looked at if none are given
MORE = 1.1  # times the load at which the first deployment is tried again: is it near its knee?
DOUBTED = 0.05  # standard deviation of a step's time by kernels that were not timed, from which on it is said


@dataclass(frozen=True, slots=True)
class Space:
    """The deployments to look at: the values of each key that are given, and of `expert_parallel` whether experts are
    spread; none for all that fit."""

    axes: Axes = field(default_factory=Axes)
    spread: tuple[bool, ...] = ()

    def of(self, spec: Spec) -> tuple[Axes, list[Setting]]:
        """What varies, and every candidate of a spec: a key that is neither given nor in its engine has all DEGREES
        that one server has GPUs for."""
        if spec.pools:
            return self.axes, list(self.axes.settings(spec.gpu.name, spec.engine, spec.pools))
        moe, given = spec.model.architecture.moe_layers > 0, spec.engine.given
        own_tp, own_dp = spec.engine.tensor_parallel, spec.engine.data_parallel
        tp = self.axes.tp or ((own_tp,) if "tensor_parallel" in given else DEGREES)
        dp = self.axes.data_parallel or ((own_dp,) if "data_parallel" in given or not moe else DEGREES)
        own_spread = (spec.engine.expert_parallel > 1,) if "expert_parallel" in given else (False, True)
        spread = self.spread or ((False, True) if self.axes.expert_parallel else own_spread)
        spread = spread if moe else (False,)
        asked = self.axes.tp and self.axes.data_parallel
        pairs = [(t, d) for t, d in product(tp, dp) if asked or t * d <= max(NODE, own_tp * own_dp, t, d)]
        gpus = [t * d if on else 1 for t, d in pairs for on in spread]
        experts = self.axes.expert_parallel or tuple(sorted({1, *gpus}))
        axes = replace(self.axes, tp=tp, data_parallel=dp, expert_parallel=experts)
        settings = [
            s
            for s in axes.settings(spec.gpu.name, spec.engine)
            if (s.tp, s.data_parallel) in pairs and s.expert_parallel in _spread(s, spread)
        ]
        return axes, settings


def _spread(setting: Setting, spread: Sequence[bool]) -> set[int]:
    """The values of expert_parallel with experts spread over all GPUs or not."""
    return {setting.tp * setting.data_parallel if on else 1 for on in spread}


def plan(
    source: Source,
    spec: Spec,
    seeds: Sequence[int],
    space: Space,
    limits: Sequence[SloLimit],
    prices: Mapping[str, float],
    line: Line,
    *,
    drawn: bool = False,
    pruned: bool = True,
) -> Plan:
    """Rank the deployments of a model that keep the limits under the spec's load, which is that of the whole service.

    prices: dollars per GPU hour by the name of the GPU; without any, GPUs are counted. drawn: with the curves of its
    pictures. pruned: leave out what cannot be among the first; the answer is the same without. Raises InputError for a
    load that cannot be shared.
    """
    _check(spec, space.axes, limits)
    question = Question.of(source, seeds, limits)
    axes, settings = space.of(spec)
    _check_prices(prices, settings)
    found = _Found(pruned)
    impossible: list[str] = []
    counted = count(1)

    def tick() -> None:
        line.update(lambda: f"{len(settings)} deployments, {next(counted)} replays")

    try:
        candidates: list[tuple[tuple[float, ...], Replicas]] = []
        for setting in settings:
            d = deployed(question, spec, setting, axes, shorten=True)
            if isinstance(d, str):
                impossible.append(d)
            else:
                each = replica_cost(setting, prices)
                larger = -float(setting.max_num_seqs), -float(setting.max_num_batched_tokens)
                hope = each * d.built.facts["weights_us"], each, *larger, float(len(candidates))
                candidates.append((hope, Replicas(question, d, tick)))
        known = about(source, [replicas.deployment.built for _, replicas in candidates])
        candidates.sort(key=lambda pair: pair[0])
        for _, replicas in candidates:
            found.add(replicas, replica_cost(replicas.deployment.setting, prices))
        rows: list[PlanRow] = []
        sured = [(surer(*pair), *pair) for pair in found.first()]
        sured.sort(key=lambda one: _sure_cost(one[0], one[1], prices))
        first = [(replicas, enough) for _, replicas, enough in sured]
        for number, (sure, replicas, enough) in enumerate(sured, 1):
            figures = replicas.of(enough)
            assert not isinstance(figures, str), "it holds"
            room = headroom(replicas, figures)
            rows.append(PlanRow.of(number, replicas.deployment, figures, enough, sure, room, prices))
        best = first[0] if rows else None
        result = Plan(
            name=source.name,
            program=question.program,
            data=data_hash([as_asked(spec)]),
            seeds=tuple(seeds),
            spec=spec,
            axes=axes,
            limits=tuple(limits),
            prices=dict(prices),
            considered=len(settings),
            rows=tuple(rows),
            others=found.others,
            impossible=tuple(impossible),
            failing=tuple(_failing(replicas) for _, replicas in candidates) if not rows else (),
            by_stage=stage_needs(*best) if best else None,
            cautions=tuple(_cautions(*best)) if best else (),
            warnings=tuple(known),
            intervals=question.trust is not None and not spec.pools,
        )
        if not drawn:
            return result
        named = [(name_of(result, row), *pair) for row, pair in zip(rows, first, strict=True)]
        return replace(result, pictures=pictures_of((answer(result), asked(result)), named, prices))
    finally:
        line.close()


def _check(spec: Spec, axes: Axes, limits: Sequence[SloLimit]) -> None:
    """Raises InputError for a load that replicas cannot share, or that asks nothing of them, and for keys of a sweep
    that no deployment has."""
    where = f"experiment {spec.id!r}"
    if axes.levels:
        raise InputError(f"{where}: has one load in a plan: leave {axes.load} out, or sweep it")
    check_pools(spec, axes)
    if spec.replicas > 1:
        raise InputError(f"{where}: has {spec.replicas} replicas, and a plan counts them: leave replicas out")
    if spec.workload.closed and not limits:
        raise InputError(f"{where}: its clients wait however long answers take: give --slo")
    if not spec.workload.closed:
        check_rate(spec)


def _check_prices(prices: Mapping[str, float], settings: Sequence[Setting]) -> None:
    """Raises InputError if some GPUs have a price and others do not."""
    lacking = [name for name in dict.fromkeys(s.hardware for s in settings) if prices and name not in prices]
    if lacking:
        raise InputError(f"prices: there is none of {', '.join(lacking)}: give one of every GPU, or of none")


@dataclass
class _Found:
    """The candidate of every group that needs the fewest replicas, with their number, and the cost of these.

    A group has one GPU, type of weights and parallelism; of equal candidates the one with larger batch limits counts.
    """

    pruned: bool
    best: dict[tuple[object, ...], tuple[tuple[float, ...], Replicas, int]] = field(default_factory=dict)
    others: int = 0

    def add(self, replicas: Replicas, each: float) -> None:
        """Count the replicas of a candidate that cost `each`, unless it cannot be among the first."""
        s = replicas.deployment.setting
        group = s.hardware, s.weights, s.tp, s.data_parallel, s.expert_parallel, s.prefill, s.decode
        costs = sorted(rank[0] for rank, _, _ in self.best.values())
        most = [math.floor(costs[SHOWN - 1] / each * (1.0 + 1e-12))] if len(costs) >= SHOWN else []
        most += [self.best[group][2] - 1] if group in self.best else []
        enough = fewest(replicas, min(most) if most and self.pruned else None)
        if enough is None:
            self.others += 1
            return
        f = replicas.of(enough)
        assert not isinstance(f, str), "it holds"
        if group not in self.best or enough < self.best[group][2]:
            rank = enough * each, float(enough * s.gpus), -headroom(replicas, f), float(len(self.best))
            self.best[group] = rank, replicas, enough

    def first(self) -> list[tuple[Replicas, int]]:
        """The first SHOWN groups."""
        ranked = sorted(self.best.values(), key=lambda found: found[0])
        return [(replicas, enough) for _, replicas, enough in ranked[:SHOWN]]


def _sure_cost(sure: Sequence[int | None], replicas: Replicas, prices: Mapping[str, float]) -> float:
    """The cost of being 80 % sure, by which the rows are ranked; inf where that is not to be had, 0 without intervals,
    where the order stays that of the predicted cost."""
    return (sure[0] or math.inf) * replica_cost(replicas.deployment.setting, prices) if sure else 0.0


def headroom(replicas: Replicas, f: SweepFigures) -> float:
    """The smallest distance to a limit, as a share of it; 1 without limits."""
    limits = replicas.question.limits
    return min((1.0 - (limit.of(f.run) or 0.0) / limit.most_ms for limit in limits), default=1.0)


def _failing(replicas: Replicas) -> str:
    """Why no number of replicas of a candidate is enough, by the most that were tried."""
    label = replicas.deployment.setting.label("", ("hardware", "tp")).lstrip(", ")
    tried = replicas.tried[max(replicas.tried)] if replicas.tried else "not tried"
    if isinstance(tried, str):
        return tried
    limits = {limit.name: limit for limit in replicas.question.limits}
    said = [
        f"{limits[name].words} is {limits[name].of(tried.run):.4g} ms" if name in limits else name
        for name in tried.fails
    ]
    return f"{label}: {', '.join(said)} with {max(replicas.tried):,} replicas"


def _cautions(replicas: Replicas, enough: int) -> Iterator[str]:
    """What the first row stands on, the most important first."""
    f, built = replicas.of(enough), replicas.deployment.built
    assert not isinstance(f, str), "it holds"
    yield from f.narrow
    doubt = kernel_doubt(built.facts) if replicas.question.code.curves else 0.0
    if doubt > DOUBTED:
        yield f"{100 * doubt:.0f} % of a step's time is uncertain: its kernels were not timed at these shapes"
    yield from _near_the_knee(replicas, enough)
    deployed = built.facts.deployed
    if deployed and deployed.architecture.kv_bytes == 2 and "kv_cache_dtype" not in built.engine.given:
        yield "assumed: a KV cache of 16 bits; with --engine kv_cache_dtype=fp8 it holds twice as many tokens"
    yield from f.warnings


def _near_the_knee(replicas: Replicas, enough: int) -> Iterator[str]:
    """A line if something fails at a load MORE times as large."""
    try:
        f = replicas.deployment.figures(replicas.question, replicas.experiment(enough / MORE))
    except InputError:
        return
    if f.fails:
        whole, unit = asked_of(replicas.load)
        limits = {limit.name: limit.words for limit in replicas.question.limits}
        fails = ", ".join(limits.get(name, name) for name in f.fails)
        yield f"near the knee: at {rate_figure(MORE * whole)} {unit} so many replicas fail ({fails})"
