"""The curves of a plan: latency against load, throughput against speed, and cost against load.

They are part of a plan's JSON, from which `evolve plot` and `evolve view` draw them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path

from evaluator.cells import precision_of
from evaluator.intervals import LEVELS
from evaluator.score import prediction_of
from evolve.plan.curve import CurvePoint, measured_points, point
from evolve.plan.prices import replica_cost
from evolve.plan.replicas import Replicas, asked_of
from simulator.common.documents import parse_json, read_bytes
from simulator.common.errors import InputError, unreadable
from simulator.common.json import JsonObject
from simulator.common.records import from_json, record_class
from simulator.serving.bundled import SERVING, bundled_file
from simulator.serving.experiment import Experiment
from simulator.serving.spec import REQUESTS, WARMUP
from simulator.serving.workload import (
    Clients,
    Profile,
    Stage,
    Workload,
    output_lengths,
    prompt_lengths,
)

LOADS = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5)  # of the asked load
CLIENTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # of one replica
COSTS = tuple(i / 10 for i in range(1, 21))  # of the asked load
COMPARED = 4  # deployments of a picture
DEAREST = 3.0  # the cost of one of these over that of the first, at most
REMEDY = "write one with `evolve plan ... --json > plan.json`"
ALIKE = 0.1  # difference of mean lengths, as a share, up to which a measured run is on a curve


@record_class
class LoadPoint:
    """The latencies of the first deployment under a load of the whole service: by name of a limit, in ms, and the ends
    of the 80 % intervals; None where no request completes."""

    load: float
    ms: Mapping[str, float | None]
    low_ms: Mapping[str, float]
    high_ms: Mapping[str, float]


@record_class
class SpeedCurve:
    """Throughput of one GPU against speed, of clients that wait for answers, and what was measured of such runs."""

    deployment: str
    predicted: tuple[CurvePoint, ...]
    measured: tuple[CurvePoint, ...]


@record_class
class CostCurve:
    """What a deployment costs under a load, at COSTS of the asked one: dollars per hour, or GPUs without prices."""

    deployment: str
    cost: tuple[float, ...]


@record_class
class Pictures:
    """What the pictures of a plan show. title: the plan's answer; question: what was asked.

    unit: of the load. asked: the load of the plan. replicas: of the first deployment. limits: in ms by name. costs: the
    unit of cost.
    """

    title: str
    question: str
    unit: str
    asked: float
    replicas: int
    deployment: str
    limits: Mapping[str, float]
    latency: tuple[LoadPoint, ...]
    speed: tuple[SpeedCurve, ...]
    loads: tuple[float, ...]
    costs: str
    cost: tuple[CostCurve, ...]


def pictures_of(
    said: tuple[str, str], found: Sequence[tuple[str, Replicas, int]], prices: Mapping[str, float]
) -> Pictures | None:
    """The curves of the first deployments: name, replicas, and the number that is enough. None without any.

    said: answer and question of the plan.
    """
    if not found:
        return None
    name, first, enough = found[0]
    load, limits = first.load, first.question.limits
    asked, unit = asked_of(load)
    dollars = [count * replica_cost(replicas.deployment.setting, prices) for _, replicas, count in found]
    near = [one for one, usd in zip(found, dollars, strict=True) if usd <= DEAREST * dollars[0]]
    compared = near[:COMPARED]
    return Pictures(
        title=said[0],
        question=said[1],
        unit=unit,
        asked=asked,
        replicas=enough,
        deployment=name,
        limits={limit.name: limit.most_ms for limit in limits},
        latency=tuple(_latency(first, enough, asked, factor) for factor in LOADS) if limits else (),
        speed=tuple(_speed(each, replicas) for each, replicas, _ in compared),
        loads=tuple(asked * factor for factor in COSTS),
        costs="dollars per hour" if prices else "GPUs",
        cost=tuple(CostCurve(each, _cost(replicas, count, prices)) for each, replicas, count in compared),
    )


def _latency(replicas: Replicas, enough: int, asked: float, factor: float) -> LoadPoint:
    d, question = replicas.deployment, replicas.question
    load = ceil(asked * factor) if replicas.load.closed else asked * factor
    try:
        e = replicas.experiment(enough * asked / load)
        f = d.judged(question, e, d.figures(question, e))
    except InputError:
        return LoadPoint(load, {limit.name: None for limit in question.limits}, {}, {})
    bands = {x.name: f.intervals[x.figure].at[LEVELS[0]] for x in question.limits if x.figure in f.intervals}
    values = {limit.name: limit.of(f.run) for limit in question.limits}
    low, high = ({name: band[end] for name, band in bands.items()} for end in (0, 1))
    return LoadPoint(float(load), values, low, high)


def _speed(name: str, replicas: Replicas) -> SpeedCurve:
    """The curve of one replica, under the first arrival seed, up to as many clients as it runs at once."""
    d = replicas.deployment
    if not isinstance(d.built.workload.source, Profile):
        return SpeedCurve(name, (), ())
    points: list[CurvePoint] = []
    for users in CLIENTS:
        if users > d.built.engine.max_num_seqs * d.built.engine.data_parallel:
            break
        try:
            e = d.under(_closed(d.built.workload, users), d.built.id)
            prediction = prediction_of(e, d.replays(e, replicas.question.seeds[:1]))
        except InputError:
            break
        found = point(users, prediction.predicted.summary, prediction.served.output_tokens_per_s / e.gpus)
        points += [found] if found else []
    return SpeedCurve(name, tuple(points), tuple(p for e in _alike(d.built) for p in measured_points(e)))


def _closed(workload: Workload, users: int) -> Workload:
    """The same requests from so many clients, without conversations."""
    source = workload.source
    assert isinstance(source, Profile)
    stage = Stage(0.0, 0.0, users=users, requests=REQUESTS * users)
    profile = replace(source, session=None)
    return replace(workload, stages=(stage,), source=profile, clients=Clients(warmup_requests=WARMUP * users))


def _alike(e: Experiment) -> list[Experiment]:
    """The shipped runs of clients on the same deployment, with prompts and answers about as long."""

    def lengths(w: Workload) -> tuple[float, float]:
        return float(prompt_lengths(w).mean()), float(output_lengths(w).mean())

    def deployed(x: Experiment) -> tuple[object, ...]:
        return (
            x.model,
            x.hardware,
            precision_of(x),
            x.engine.tensor_parallel,
            x.engine.data_parallel,
            x.engine.expert_parallel,
        )

    own = lengths(e.workload)
    return [
        x
        for x in bundled_file(SERVING)
        if deployed(x) == deployed(e)
        and all(abs(a - b) <= ALIKE * b for a, b in zip(lengths(x.workload), own, strict=True))
    ]


def _cost(replicas: Replicas, enough: int, prices: Mapping[str, float]) -> tuple[float, ...]:
    """The cost at COSTS of the asked load: of the fewest replicas, each with at most the share that it holds."""
    each, most = replica_cost(replicas.deployment.setting, prices), held(replicas, enough)
    return tuple(each * ceil(factor * most * (1.0 - 1e-9)) for factor in COSTS)


def held(replicas: Replicas, enough: int) -> float:
    """The replicas for the asked load as a fraction: between what holds with `enough` and what does not with one less,
    by halving the range a few times. More loads need in proportion."""
    low, high = max(enough - 1.0, 0.25), float(enough)
    for _ in range(4):
        middle = (low + high) / 2.0
        low, high = (low, middle) if _holds(replicas, middle) else (middle, high)
    return high


def _holds(replicas: Replicas, count: float) -> bool:
    d, question = replicas.deployment, replicas.question
    try:
        return not d.figures(question, replicas.experiment(count)).fails
    except InputError:
        return False


def read_pictures(path: Path) -> Pictures:
    """The curves in the JSON of `evolve plan`. Raises InputError for another file."""
    return from_json(Pictures, read_plan(path)["pictures"], path, REMEDY)


def read_plan(path: Path) -> JsonObject:
    """The JSON of `evolve plan`, with pictures. Raises InputError for another file."""
    try:
        raw = parse_json(read_bytes(path), str(path), REMEDY)
    except OSError as error:
        raise unreadable(path, error, REMEDY) from None
    if not isinstance(raw, dict) or not raw.get("pictures"):
        raise InputError(f"{path}: has no plan with a deployment that holds: {REMEDY}")
    return raw
