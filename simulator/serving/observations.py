"""The measurements in an experiments file: figures in ms, checked against each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from itertools import pairwise

import numpy as np

from simulator.common.errors import Section
from simulator.serving.experiment import QUANTITIES, Components, Observation, Observed, Statistic, Workload
from simulator.serving.keys import OBSERVATION, OBSERVED, only
from simulator.serving.limits import MOST_MS, MOST_STAGES
from simulator.serving.trace import Trace, latencies_ms, rows_by_stage
from simulator.serving.workload import gaps_of

COMPONENTS = "x_components_ms"
COMPONENT_KEYS = tuple(f.name for f in fields(Components) if f.name != "requests")
TPOT = "the mean of each request's (E2E - TTFT)/(output tokens - 1) is called itl_mean_ms here"
# what others call figures -> what to do instead; mean_ttft_ms and the like are of vLLM's benchmark
OTHER_FIGURES = {
    **dict.fromkeys(("tpot_ms", "tpot_mean_ms", "itl_ms", "mean_tpot_ms"), TPOT),
    "mean_itl_ms": f"it is a mean over tokens: give mean_tpot_ms, as {TPOT}",
    **{f"{theirs}_{name}_ms": f"write `{ours}_ms: {{{p}: ...}}`" for name, ours in (("ttft", "ttft"), ("e2el", "e2e"))
       for theirs, p in (("mean", "mean"), ("median", "p50"), ("p90", "p90"), ("p99", "p99"))},
}  # fmt: skip
OTHER_PERCENTILES = {"median": "it is called p50 here"} | dict.fromkeys(
    ("p75", "p95", "p99.9", "max"), "p50, p90 and p99 are read: leave it out"
)
APART = 0.02  # by which the mean of a run may lie outside those of its stages: some requests are of no stage
FALLS = 0.9  # of the mean E2E at the lowest rate; the noise of arrivals is a few percent
LATENCIES = ("e2e", "ttft", "itl")
MOST_APART = 10.0  # times that an ITL may differ from what E2E and TTFT say of it


def read_observed(top: Section, workload: Workload) -> Observed:
    """The key `observed` of an experiment."""
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
    return Observed(summary or together(stages, workload), stages)


def _observation(o: Section, gaps: int | None) -> Observation:
    """One set of figures. If both means are known, a missing ITL is (E2E - TTFT)/gaps.

    `gaps`: output_len - 1, or None if answers differ in length.
    """
    only(o, OBSERVATION, OTHER_FIGURES)
    itl = o.number("itl_mean_ms", "give milliseconds", least=0, most=MOST_MS) if o.has("itl_mean_ms") else None
    completed = o.whole("completed", "give a number of requests") if o.has("completed") else None
    failed = o.whole("failed", "give a number of requests") if o.has("failed") else None
    e2e, ttft = _statistic(o, "e2e_ms"), _statistic(o, "ttft_ms")
    if e2e.mean is not None and ttft.mean is not None:
        if ttft.mean > e2e.mean:
            raise o.error(
                "ttft_ms", f"mean {ttft.mean:g} is above that of e2e_ms, {e2e.mean:g}", "check both and their unit"
            )
        between = (e2e.mean - ttft.mean) / gaps if gaps else None
        if itl and between and not 1.0 / MOST_APART < itl / between < MOST_APART:
            problem = f"{itl:g} is far from (E2E - TTFT)/(output_len - 1), {between:.3g}"
            raise o.error("itl_mean_ms", problem, "check the three and their unit, ms")
        itl = between if itl is None else itl
    return Observation(e2e, ttft, Statistic(mean=itl), completed, failed)


def measured(trace: Trace, stages: int) -> Observed | None:
    """The figures of the requests of a trace, as a whole and per window; None if nothing was recorded of them."""
    if trace.recorded is None:
        return None
    r, stage = trace.requests, trace.requests.stage
    latencies = latencies_ms(r, trace.recorded.e2e_ms, trace.recorded.ttft_ms)
    windows = tuple(_figures(latencies[:, rows]) for rows in rows_by_stage(stage, stages))
    return Observed(_figures(latencies[:, stage >= 0]), windows)


def _figures(latencies: np.ndarray) -> Observation:
    """The figures of requests with these latencies (trace.latencies_ms). Those with neither E2E nor TTFT failed."""
    known = ~np.isnan(latencies)
    e2e, ttft, itl = (statistic(values[there]) for values, there in zip(latencies, known, strict=True))
    completed = int((known[0] | known[1]).sum())
    return Observation(e2e, ttft, itl, completed=completed, failed=latencies.shape[1] - completed)


def statistic(values: np.ndarray, per_ms: float = 1.0) -> Statistic:
    """Mean and percentiles (linear interpolation) of requests in ms; all None without any.

    `per_ms`: how many units of `values` make a millisecond.
    """
    if not len(values):
        return Statistic()
    p50, p90, p99 = np.percentile(values, (50, 90, 99))
    return Statistic(*(float(x) / per_ms for x in (values.mean(), p50, p90, p99)))


def read_components(top: Section) -> Components | None:
    """The free keys x_components_ms and x_components_requests, or None without the first."""
    if not top.has(COMPONENTS):
        return None
    c = top.section(COMPONENTS, f"give {', '.join(COMPONENT_KEYS)} in milliseconds")
    c.only(COMPONENT_KEYS)
    # The client's part is a difference over two clocks and two sets of requests, and may be negative.
    least = {name: -MOST_MS if name == "client" else 0.0 for name in COMPONENT_KEYS}
    given = [name for name in COMPONENT_KEYS if c.has(name)]
    parts = {name: c.number(name, "give milliseconds", least=least[name], most=MOST_MS) for name in given}
    counted = f"{COMPONENTS.removesuffix('_ms')}_requests"
    requests = top.whole(counted, "give a number of requests") if top.has(counted) else None
    return Components(**parts, requests=requests)


def together(stages: tuple[Observation, ...], workload: Workload) -> Observation:
    """The run's means from those of its stages, weighted by the requests offered. Percentiles cannot be combined."""
    offered = [stage.rate * stage.duration_s for stage in workload.stages]

    def mean(values: list[float | None]) -> Statistic:
        if any(v is None for v in values):
            return Statistic()
        return Statistic(sum(n * v for n, v in zip(offered, values, strict=True) if v is not None) / sum(offered))

    return Observation(
        e2e_ms=mean([s.e2e_ms.mean for s in stages]),
        ttft_ms=mean([s.ttft_ms.mean for s in stages]),
        itl_ms=mean([s.itl_ms.mean for s in stages]),
    )


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


def doubts(observed: Observed | None, workload: Workload) -> tuple[str, ...]:
    """Notes on observations that are probably wrong."""
    if observed is None or observed.summary is None:
        return ()
    lines = [*_above_p99(observed), *_later_than_the_whole(observed.summary), *_beside_the_stages(observed)]
    return (*lines, *_falling(observed, workload), *_itl_apart(observed.summary, gaps_of(workload)))


def _above_p99(observed: Observed) -> Iterator[str]:
    several = observed.stages if len(observed.stages) > 1 else ()
    for where, row in (("", observed.summary), *((f" in stage {i}", stage) for i, stage in enumerate(several, 1))):
        for name in LATENCIES:
            s = getattr(row, f"{name}_ms")
            if s.mean is not None and s.p99 is not None and s.mean > s.p99:
                text = f"the observed mean {name.upper()}{where}, {s.mean:g} ms, is above its p99, {s.p99:g} ms"
                yield f"{text}: check the figures"


def _later_than_the_whole(run: Observation) -> Iterator[str]:
    for p in QUANTITIES:
        later, whole = getattr(run.ttft_ms, p), getattr(run.e2e_ms, p)
        if later is not None and whole is not None and later > whole:
            yield f"the observed {p} of TTFT, {later:g} ms, is above that of E2E, {whole:g} ms: check the figures"


def _beside_the_stages(observed: Observed) -> Iterator[str]:
    """A mean of the run that is not among those of its stages."""
    for name in LATENCIES:
        mean = getattr(observed.summary, f"{name}_ms").mean
        means = [getattr(stage, f"{name}_ms").mean for stage in observed.stages]
        if mean is None or not means or None in means:
            continue
        low, high = min(means), max(means)
        if not low * (1.0 - APART) <= mean <= high * (1.0 + APART):
            text = f"the observed mean {name.upper()} of the run, {mean:g} ms, is not among those of its stages"
            yield f"{text}, {low:g} to {high:g} ms: check the figures"


def _falling(observed: Observed, workload: Workload) -> Iterator[str]:
    """A mean E2E that is shorter at a higher rate of the same requests, as if the stages were in another order."""
    by_rate = sorted(
        (stage.rate, seen.e2e_ms.mean)
        for stage, seen in zip(workload.stages, observed.stages, strict=False)
        if seen.e2e_ms.mean is not None
    )
    if len(by_rate) < 2 or isinstance(workload.source, Trace):  # the windows of a trace have different requests
        return
    (slow, early), (fast, late) = by_rate[0], by_rate[-1]
    if fast > slow and late < FALLS * early:
        text = f"the observed mean E2E falls from {early:g} ms at {slow:g} requests/s to {late:g} ms at {fast:g}"
        yield f"{text}: check the order of the stages"


def _itl_apart(run: Observation, gaps: int | None) -> Iterator[str]:
    e2e, ttft, itl = run.e2e_ms.mean, run.ttft_ms.mean, run.itl_ms.mean
    if not gaps or e2e is None or ttft is None or itl is None:
        return
    true = (e2e - ttft) / gaps
    if abs(itl - true) > 0.1 * true:
        ratio = "(E2E - TTFT)/(output_len - 1)"
        why = "load generators may halve it" if itl < true else "check the three figures"
        yield f"itl_mean_ms is {itl:g}, but {ratio} is {true:.4g}: {why}"
