"""Measured points in the host's exchange format, `EvaluationRun`, and predictions of them as its `SimResult`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from archive.score import Errors
from evaluator.host_scorer import (
    PERCENTILES,
    REQUESTS,
    SEED,
    SHORTEST,
    WARMUP,
    Latency,
    PointFigures,
    closed_load,
    figures,
    label_of,
    labelled,
)
from evaluator.metrics import error_pct
from evaluator.throughput import lasting_s, per_s
from evolve.host.scenario import Scenario, experiment_of, read_scenario, replayed
from evolve.output.files import save
from evolve.run.program import Source
from simulator.clock.replay import Replay
from simulator.common.documents import parse_yaml, read_bytes, yaml_text
from simulator.common.errors import InputError, Section, unreadable, unwritable
from simulator.common.json import JsonObject
from simulator.serving.defaults import settled
from simulator.serving.experiment import Experiment
from simulator.serving.limits import MOST_MS, MOST_TOKENS, MOST_USERS
from simulator.serving.load import NEVER
from simulator.serving.workload_entry import check_size

RUN = ("kind", "name", "scenario", "harness", "harness_version", "engine_version", "date", "points")
POINT = (
    *("concurrency", "completed_requests", "output_tokens_per_sec", "input_tokens_per_sec", "ttft_ms", "itl_ms"),
    *("e2e_ms", "mean_isl", "mean_osl", "kv_utilization", "prefix_cache_hit_rate", "preemptions"),
)
KIND = "EvaluationRun"
MEANS = 1.5, MOST_TOKENS * (1.0 + SHORTEST) / 2.0  # of the shortest and the longest lengths, in tokens


@dataclass(frozen=True)
class MeasuredPoint:
    """A point of an evaluation run: the scenario that was measured, and the scorer's load of it, as an experiment."""

    scenario: Scenario
    experiment: Experiment

    @property
    def clients(self) -> int:
        return self.experiment.workload.stages[0].users or 0


@dataclass(frozen=True)
class ScoredPoint:
    """A point with the scorer's figures of its replay."""

    point: MeasuredPoint
    replay: Replay
    figures: PointFigures

    @property
    def errors(self) -> Errors:
        """The signed errors of E2E, TTFT and TPOT in percent; None where not measured."""
        e, f = self.point.experiment, self.figures
        measured = e.observed.summary if e.observed else None
        assert measured is not None, "every point has figures"
        pairs = (f.e2e_ms, measured.e2e_ms), (f.ttft_ms, measured.ttft_ms), (f.tpot_ms, measured.itl_ms)
        return Errors(e.id, *(error_pct(ours.mean if ours else None, theirs.mean) for ours, theirs in pairs))


def read_evaluation(path: Path, scenarios: Path | None, catalog: Path | None) -> list[MeasuredPoint]:
    """The points of an evaluation run. The scenario that it names is NAME.yaml in the folder `scenarios`, by default
    that of the run.

    Lengths are those whose mean is the measured one, of a point without means those of the run. Raises InputError.
    """
    try:
        raw = parse_yaml(read_bytes(path), str(path), f"write `kind: {KIND}`")
    except OSError as error:
        raise unreadable(path, error, "name a file that can be read") from None
    if not isinstance(raw, dict) or raw.get("kind") != KIND:
        raise InputError(f"{path}: is not an evaluation run: write `kind: {KIND}`")
    top = Section(str(path), "", raw)
    top.only(RUN)
    name = top.name("scenario", "name the scenario that was measured")
    if "/" in name:
        raise top.error("scenario", "names a path", "give the name of the scenario")
    scenario = read_scenario((scenarios or path.parent) / f"{name}.yaml", catalog)
    points = top.sections("points", "list the points, each with its concurrency")
    for point in points:
        point.only(POINT)
    labels = [_label(points, key) for key in ("mean_isl", "mean_osl")]
    found = [MeasuredPoint(scenario, _experiment(scenario, point, *labels)) for point in points]
    levels = [point.clients for point in found]
    if len({*levels}) < len(levels):
        raise top.error("points", "have a concurrency twice", "keep one of them")
    return found


def _label(points: Sequence[Section], key: str) -> int:
    """The label of a run's lengths, which are the same at all points."""
    least, most = MEANS
    means = [p.number(key, "give tokens", least=least, most=most) for p in points if p.has(key) and p.raw[key]]
    if not means:
        raise points[0].error(key, "is missing", "give the mean tokens of a request, from which its lengths follow")
    if max(means) > 1.05 * min(means):
        problem = f"goes from {min(means):g} to {max(means):g}, and the points of a run have one load"
        raise points[0].error(key, problem, "write a run for each")
    return label_of(sum(means) / len(means))


def _experiment(scenario: Scenario, point: Section, isl: int, osl: int) -> Experiment:
    clients = point.whole("concurrency", "give a number of clients", least=1, most=MOST_USERS)
    if point.has("prefix_cache_hit_rate") and point.raw["prefix_cache_hit_rate"]:
        problem = f"is {point.raw['prefix_cache_hit_rate']}, and requests of the host's scorer share nothing"
        raise point.error("prefix_cache_hit_rate", problem, "leave the point out")
    measured: JsonObject = {}
    for key in ("e2e_ms", "ttft_ms", "itl_ms"):  # 0 where the host has no figure
        if point.has(key) and (value := point.number(key, "give milliseconds", least=0, most=MOST_MS)):
            measured |= {"itl_mean_ms": value} if key == "itl_ms" else {key: {"mean": value}}
    if not measured.keys() & {"ttft_ms", "itl_mean_ms"}:
        raise point.error("ttft_ms", "is missing, and itl_ms too", "give one of them, or leave the point out")
    load = closed_load(clients, (WARMUP + REQUESTS) * clients, labelled(isl), labelled(osl))
    check_size(point, load)
    return experiment_of(scenario, load, measured)


def scored(source: Source, points: Iterable[MeasuredPoint]) -> list[ScoredPoint]:
    """The points with the figures that the host's scorer takes from their replays."""
    replays = ((point, replayed(point.experiment, source, SEED)) for point in points)
    return [ScoredPoint(point, replay, figures(replay, point.clients)) for point, replay in replays]


def write_results(folder: Path, source: Source, points: Iterable[ScoredPoint]) -> None:
    """Write each point as `SimResult` into the folder, ID.yaml. Raises InputError if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error, "choose another --simresult") from None
    for point in points:
        _write(folder / f"{point.point.experiment.id}.yaml", yaml_text(sim_result(point, source)))


def _write(file: Path, text: str) -> None:
    save(file, "--simresult", lambda draft: draft.write_text(text, "utf-8"), text)


def sim_result(scored: ScoredPoint, source: Source) -> JsonObject:
    """A point as the host's `SimResult`, with the scenario and the deployment as they were resolved."""
    e, replay, f = scored.point.experiment, scored.replay, scored.figures
    r, done, lasting = replay.requests, replay.completed, lasting_s(replay, e.workload)
    sent = replay.sent_us < NEVER
    inputs, outputs = (int(lengths[done].sum(dtype=np.int64)) for lengths in (r.input_len, r.output_len))
    latencies = {"ttft_ms": f.ttft_ms, "itl_ms": f.tpot_ms, "e2e_ms": f.e2e_ms}
    scenario, deployment = scored.point.scenario.documents
    return {
        "kind": "SimResult",
        "name": e.id,
        "engine_version": e.engine.version,
        "operating_point": {"concurrency": scored.point.clients},
        "summary": {
            "output_tokens_per_sec": per_s([outputs], [lasting]),
            "input_tokens_per_sec": per_s([inputs], [lasting]),
            "requests_per_sec": per_s([int(done.sum())], [lasting]),
            **{name: _distribution(latency) for name, latency in latencies.items()},
        },
        "conservation": {
            "injected": int(sent.sum()),
            "completed": int(done.sum()),
            "dropped": int((sent & ~replay.load.accepted).sum()),
            "timed_out": int(replay.run.gave_up.sum()),
            "preemptions": replay.run.preemptions,
        },
        "scenario": scenario,
        "deployment": _resolved(e, deployment),
        "provenance": {
            "coefficients": [
                {"name": f"{function.name}.{c.name}", "set": source.name}
                for function in source.complete.functions
                for c in function.constants
            ],
        },
    }


def _distribution(latency: Latency | None) -> JsonObject:
    if latency is None:
        return {"mean": 0.0}
    return {"mean": latency.mean} | {f"p{p}": x for p, x in zip(PERCENTILES, latency.percentiles, strict=True)}


def _resolved(e: Experiment, deployment: JsonObject) -> JsonObject:
    """The deployment with the settings that were replayed."""
    assert e.spec is not None, "it was made of one"
    engine, [pool] = settled(e.engine, e.spec.gpu), deployment["pools"]
    resolved = {
        "enable_prefix_caching": engine.prefix_caching,
        "block_size": engine.block_size,
        "max_num_batched_tokens": engine.max_num_batched_tokens,
        "max_num_seqs": engine.max_num_seqs,
        "max_model_len": int(e.facts["max_model_len"]),
        "gpu_memory_utilization": engine.gpu_memory_utilization,
        "async_scheduling": engine.async_scheduling,
        "cudagraph_mode": str(engine.cudagraph_mode).upper(),
    }
    return {**deployment, "pools": [{**pool, "engine": {**(pool.get("engine") or {}), **resolved}}]}
