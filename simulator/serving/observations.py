"""Measurements of a run: figures in ms, read and written, checked against each other, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise

import numpy as np

from simulator.common.errors import Section
from simulator.common.json import JsonObject
from simulator.serving.keys import OBSERVATION, OBSERVED, only
from simulator.serving.limits import MOST_MS, MOST_STAGES
from simulator.serving.trace import Trace, latencies_ms, rows_by_stage
from simulator.serving.workload import Workload, gaps_of, output_lengths

CLEAN = "clean"  # the quality of runs that are fitted
OVERLOADED = "overloaded"  # that of runs in which a queue grew or requests failed
NOT_MEASURED = "are a simulation's, not measured"  # a note's words for times
LATENCIES = ("e2e", "ttft", "itl")
QUANTITIES: tuple[str, ...] = ("mean", "p50", "p90", "p99")  # the fields of Statistic


@dataclass(frozen=True, slots=True)
class Statistic:
    """Mean and percentiles over completed requests; None where not observed."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """The latencies measured over a run or a stage, in ms.

    Where all answers are equally long, the mean ITL is (mean E2E - mean TTFT) / (output_len - 1).
    """

    e2e_ms: Statistic
    ttft_ms: Statistic
    itl_ms: Statistic
    completed: int | None = None
    failed: int | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """The measurements of a run, as a whole and per stage (none, or one for each stage of the workload)."""

    summary: Observation | None
    stages: tuple[Observation, ...]


@dataclass(frozen=True, slots=True)
class Components:
    """The parts of a request's E2E as request traces show them, means in ms; None where not observed."""

    arrival_to_queue: float | None = None
    waiting: float | None = None  # first scheduled - queued
    prefill_steps: float | None = None
    decode_steps: float | None = None
    after_finish: float | None = None
    client: float | None = None  # the client's E2E less the server's, whose parts the others are
    requests: int | None = None  # how many requests the means are over


COMPONENTS, COMPONENT_REQUESTS = "x_components_ms", "x_components_requests"
COMPONENT_KEYS = tuple(f.name for f in fields(Components) if f.name != "requests")
TPOT = "the mean of each request's (E2E - TTFT)/(output tokens - 1) is called itl_mean_ms here"
_BENCHMARK = {"mean": "mean", "median": "p50", "p90": "p90", "p99": "p99"}  # of vLLM's benchmark, as mean_ttft_ms
OTHER_FIGURES = {
    **dict.fromkeys(("tpot_ms", "tpot_mean_ms", "itl_ms", "mean_tpot_ms"), TPOT),
    "mean_itl_ms": f"it is a mean over tokens: give mean_tpot_ms, as {TPOT}",
    **{f"{their}_ttft_ms": f"write `ttft_ms: {{{our}: ...}}`" for their, our in _BENCHMARK.items()},
    **{f"{their}_e2el_ms": f"write `e2e_ms: {{{our}: ...}}`" for their, our in _BENCHMARK.items()},
}
"""Figures by the names of others, and what to write instead."""
OTHER_PERCENTILES = {"median": "it is called p50 here"} | dict.fromkeys(
    ("p75", "p95", "p99.9", "max"), "p50, p90 and p99 are read: leave it out"
)
APART = 0.02  # by which the mean of a run may lie outside those of its stages: some requests are of no stage
HALVED = 0.4, 0.6  # an ITL over (E2E - TTFT)/(output_len - 1), of a load generator that stamps blank lines too
FALLS = 0.9  # of the mean E2E at the lowest rate; the noise of arrivals is a few percent
MOST_APART = 10.0  # times that an ITL may differ from (E2E - TTFT)/(output_len - 1)


def read_observed(top: Section, workload: Workload) -> Observed:
    """The key `observed` of an experiment, as it is given."""
    o = top.section("observed", "give summary and stages, or leave it out")
    only(o, OBSERVED)
    gaps = gaps_of(workload)
    summary = _observation(o.section("summary", "give the run's figures"), gaps) if o.has("summary") else None
    if not o.has("stages"):
        return Observed(summary, ())
    entries = o.sections("stages", "give the figures of every stage, or leave it out", most=MOST_STAGES)
    stages = tuple(_observation(entry, gaps) for entry in entries)
    if len(stages) != len(workload.stages):
        problem = f"must be as many as workload.stages ({len(workload.stages)}), got {len(stages)}"
        raise o.error("stages", problem, "give one entry per stage of the workload")
    return Observed(summary, stages)


def _observation(o: Section, gaps: int | None) -> Observation:
    """One set of figures. `gaps`: output_len - 1, or None if answers differ in length."""
    only(o, OBSERVATION, OTHER_FIGURES)
    itl = o.number("itl_mean_ms", "give milliseconds", least=0, most=MOST_MS) if o.has("itl_mean_ms") else None
    completed, failed = (
        o.whole(key, "give a number of requests") if o.has(key) else None for key in ("completed", "failed")
    )
    e2e, ttft = _statistic(o, "e2e_ms"), _statistic(o, "ttft_ms")
    if e2e.mean is not None and ttft.mean is not None and ttft.mean > e2e.mean:
        problem = f"mean {ttft.mean:g} is above that of e2e_ms, {e2e.mean:g}"
        raise o.error("ttft_ms", problem, "check both and their unit")
    observation = Observation(e2e, ttft, Statistic(mean=itl), completed, failed)
    between = _itl_between(observation, gaps)
    if itl and between and not 1.0 / MOST_APART < itl / between < MOST_APART:
        problem = f"{itl:g} is far from (E2E - TTFT)/(output_len - 1), {between:.3g}"
        raise o.error("itl_mean_ms", problem, "check the three and their unit, ms")
    return observation


def _itl_between(o: Observation, gaps: float | None) -> float | None:
    """The mean ITL by the means of E2E and TTFT; None if one of these is unknown, or answers differ in length."""
    if o.e2e_ms.mean is None or o.ttft_ms.mean is None or not gaps:
        return None
    return (o.e2e_ms.mean - o.ttft_ms.mean) / gaps


def filled(observed: Observed, workload: Workload) -> Observed:
    """The measurements of a load, with missing and halved means of ITL by those of E2E and TTFT, and a missing summary
    by the stages."""
    gaps = gaps_of(workload)

    def with_itl(o: Observation) -> Observation:
        itl, between = o.itl_ms.mean, _itl_between(o, gaps)
        if itl is None or _is_halved(itl, between or _itl_between(o, _mean_gaps(workload))):
            return replace(o, itl_ms=Statistic(mean=between))
        return o

    stages = tuple(map(with_itl, observed.stages))
    summary = with_itl(observed.summary) if observed.summary else together(stages, workload) if stages else None
    return Observed(summary, stages)


def _mean_gaps(workload: Workload) -> float | None:
    """The mean tokens of answers after the first; None for a trace, whose ITL is that of its requests.

    With answers of many lengths this tells a halved ITL, but not the true one.
    """
    return None if isinstance(workload.source, Trace) else float(output_lengths(workload).mean()) - 1.0


def _is_halved(itl: float, between: float | None) -> bool:
    return between is not None and HALVED[0] * between < itl < HALVED[1] * between


def observed_entry(observed: Observed) -> JsonObject:
    """The measurements as `read_observed` reads them."""
    entry: JsonObject = {}
    if observed.summary:
        entry["summary"] = _observation_entry(observed.summary)
    if observed.stages:
        entry["stages"] = [_observation_entry(stage) for stage in observed.stages]
    return entry


def _observation_entry(o: Observation) -> JsonObject:
    figures = {"e2e_ms": _given(asdict(o.e2e_ms)), "ttft_ms": _given(asdict(o.ttft_ms))}
    entry: JsonObject = {key: value for key, value in figures.items() if value}
    return entry | _given({"completed": o.completed, "failed": o.failed, "itl_mean_ms": o.itl_ms.mean})


def _given(values: JsonObject) -> JsonObject:
    return {key: value for key, value in values.items() if value is not None}


def measured(trace: Trace, stages: int) -> Observed | None:
    """The figures of the requests of a trace, as a whole and per window; None if it has no latencies."""
    if trace.recorded is None:
        return None
    r, stage = trace.requests, trace.requests.stage
    latencies = latencies_ms(r, trace.recorded.e2e_ms, trace.recorded.ttft_ms)
    windows = tuple(_figures(latencies[:, rows]) for rows in rows_by_stage(stage, stages))
    return Observed(_figures(latencies[:, stage >= 0]), windows)


def stamped(trace: Trace) -> Components | None:
    """The parts of the E2E that the engine's stamps in a trace tell; None without any."""
    times = trace.recorded
    if times is None or times.scheduled_ms is None:
        return None
    parts = np.stack([times.scheduled_ms, times.ttft_ms - times.scheduled_ms, times.e2e_ms - times.ttft_ms])
    known = parts[:, (trace.requests.stage >= 0) & ~np.isnan(parts).any(axis=0)]
    if not known.size:
        return None
    waiting, prefill, decode = map(float, known.mean(axis=1))
    return Components(waiting=waiting, prefill_steps=prefill, decode_steps=decode, requests=known.shape[1])


def _figures(latencies: np.ndarray) -> Observation:
    """The figures of requests with these latencies (trace.latencies_ms). Those with neither E2E nor TTFT failed."""
    known = ~np.isnan(latencies)
    e2e, ttft, itl = (statistic(values[there]) for values, there in zip(latencies, known, strict=True))
    completed = int((known[0] | known[1]).sum())
    return Observation(e2e, ttft, itl, completed=completed, failed=latencies.shape[1] - completed)


def statistic(values: np.ndarray, per_ms: float = 1.0) -> Statistic:
    """Mean and percentiles (linear interpolation) of requests in ms; all None without any.

    `per_ms`: units of `values` in a millisecond.
    """
    if not len(values):
        return Statistic()
    p50, p90, p99 = np.percentile(values, (50, 90, 99))
    return Statistic(*(float(x) / per_ms for x in (values.mean(), p50, p90, p99)))


def read_components(top: Section) -> Components | None:
    """The keys x_components_ms and x_components_requests, None without the first."""
    if not top.has(COMPONENTS):
        return None
    c = top.section(COMPONENTS, f"give {', '.join(COMPONENT_KEYS)} in milliseconds")
    c.only(COMPONENT_KEYS)
    # The client's part is a difference over two clocks and two sets of requests, and may be negative.
    least = {name: -MOST_MS if name == "client" else 0.0 for name in COMPONENT_KEYS}
    given = [name for name in COMPONENT_KEYS if c.has(name)]
    parts = {name: c.number(name, "give milliseconds", least=least[name], most=MOST_MS) for name in given}
    requests = top.whole(COMPONENT_REQUESTS, "give a number of requests") if top.has(COMPONENT_REQUESTS) else None
    return Components(**parts, requests=requests)


def components_entry(c: Components) -> JsonObject:
    """The components as `read_components` reads them."""
    entry: JsonObject = {COMPONENTS: _given({key: getattr(c, key) for key in COMPONENT_KEYS})}
    return entry | _given({COMPONENT_REQUESTS: c.requests})


def together(stages: tuple[Observation, ...], workload: Workload) -> Observation:
    """The run's means from those of its stages, weighted by the requests offered. Percentiles cannot be combined."""
    offered = [stage.offered for stage in workload.stages]

    def mean(values: list[float | None]) -> Statistic:
        if any(v is None for v in values):
            return Statistic()
        return Statistic(sum(n * v for n, v in zip(offered, values, strict=True) if v is not None) / sum(offered))

    e2e, ttft, itl = (mean([getattr(s, f"{name}_ms").mean for s in stages]) for name in LATENCIES)
    return Observation(e2e, ttft, itl)


def _statistic(o: Section, key: str) -> Statistic:
    if not o.has(key):
        return Statistic()
    s = o.section(key, "give mean, p50, p90, p99 in milliseconds")
    only(s, QUANTITIES, OTHER_PERCENTILES)
    statistic = Statistic(
        *(s.number(p, "give milliseconds", least=0, most=MOST_MS) if s.has(p) else None for p in QUANTITIES)
    )
    given = [(p, getattr(statistic, p)) for p in ("p50", "p90", "p99") if getattr(statistic, p) is not None]
    for (low, a), (high, b) in pairwise(given):
        if a > b:
            raise s.error(high, f"{b:g} is below {low}, {a:g}", "check the figures")
    return statistic


def doubts(observed: Observed | None, given: Observed | None, workload: Workload) -> tuple[str, ...]:
    """Notes on observations that are probably wrong. given: as they were before `filled`."""
    if observed is None or observed.summary is None:
        return ()
    itl = _itl(given.summary, workload) if given and given.summary else ()
    return (*_doubts(observed, observed.summary), *_falling(observed, workload), *itl)


def _doubts(observed: Observed, run: Observation) -> Iterator[str]:
    """Means above their p99, TTFTs above E2E, and means of the run that lie outside those of its stages."""
    several = observed.stages if len(observed.stages) > 1 else ()
    for where, row in (("", run), *((f" in stage {i}", stage) for i, stage in enumerate(several, 1))):
        for name in LATENCIES:
            s: Statistic = getattr(row, f"{name}_ms")
            if s.mean is not None and s.p99 is not None and s.mean > s.p99:
                text = f"the observed mean {name.upper()}{where}, {s.mean:g} ms, is above its p99, {s.p99:g} ms"
                yield f"{text}: check the figures"
    for p in QUANTITIES:
        later, whole = getattr(run.ttft_ms, p), getattr(run.e2e_ms, p)
        if later is not None and whole is not None and later > whole:
            yield f"the observed {p} of TTFT, {later:g} ms, is above that of E2E, {whole:g} ms: check the figures"
    for name in LATENCIES:
        mean = getattr(run, f"{name}_ms").mean
        means = [getattr(stage, f"{name}_ms").mean for stage in observed.stages]
        if mean is None or not means or None in means:
            continue
        low, high = min(means), max(means)
        if not low * (1.0 - APART) <= mean <= high * (1.0 + APART):
            text = f"the observed mean {name.upper()} of the run, {mean:g} ms, is not among those of its stages"
            yield f"{text}, {low:g} to {high:g} ms: check the figures"


def _falling(observed: Observed, workload: Workload) -> Iterator[str]:
    """A mean E2E that falls with the rate of the same requests, as if the stages were in another order."""
    pairs = zip(workload.stages, observed.stages, strict=False)
    by_rate = sorted((s.level, o.e2e_ms.mean, s.label) for s, o in pairs if o.e2e_ms.mean is not None)
    if len(by_rate) < 2 or isinstance(workload.source, Trace):  # the windows of a trace have different requests
        return
    (slow, early, slowest), (fast, late, fastest) = by_rate[0], by_rate[-1]
    if fast > slow and late < FALLS * early:
        text = f"the observed mean E2E falls from {early:g} ms at {slowest} to {late:g} ms at {fastest}"
        yield f"{text}: check the order of the stages"


def _itl(run: Observation, workload: Workload) -> Iterator[str]:
    itl, between = run.itl_ms.mean, _itl_between(run, gaps_of(workload))
    of_means = between or _itl_between(run, _mean_gaps(workload))
    halved = itl is not None and _is_halved(itl, of_means)
    if itl is None or of_means is None or not (halved or (between and abs(itl - between) > 0.1 * between)):
        return
    text = f"itl_mean_ms is {itl:g}, but (E2E - TTFT)/(output_len - 1) is {of_means:.4g}"
    yield f"{text}: its load generator halved it, so it is left out" if halved else f"{text}: check the three figures"
