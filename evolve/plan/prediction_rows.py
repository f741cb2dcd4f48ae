"""Rows of predictions next to observations: one for each experiment, or one for each load stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from evaluator.intervals import LEVELS, STATISTICS
from evaluator.metrics import LATENCIES, PARTS, POOL_PARTS
from evolve.output.columns import Column, flag, number, several, text, whole
from evolve.plan.forecast import Forecast, Intervals, ObservedErrors
from simulator.serving.experiment import Experiment
from simulator.serving.observations import QUANTITIES, Observation

# A part of the observed E2E -> its meaning.
OBSERVED_PARTS = {
    "arrival_to_queue": "from arrival to the queue",
    "waiting": "in the queue, and after preemptions",
    "prefill_steps": "in steps that prefill",
    "decode_steps": "in steps that decode",
    "after_finish": "after the last step",
    "client": "the client's E2E less the server's",
}
PREDICTED_PARTS = {
    "queueing": "from arrival to the queue",
    "waiting": "in the queue, and after preemptions",
    "prefill_steps": "in steps that prefill",
    "decode_steps": "in steps that decode",
    "per_token": "after the steps, by the time per output token",
    "completion": "at completion",
    "transfer": "from the pool that prefills to the one that decodes; missing: no pools",
    "decode_waiting": "in the queue of the pool that decodes, and after preemptions; missing: no pools",
}


def _figures() -> Iterator[Column]:
    """Predicted, observed, and the error, of every latency and quantity; then the requests."""
    for latency in LATENCIES:
        name = latency.removesuffix("_ms")
        for q in QUANTITIES:
            what = f"{q} {name.upper()}"
            yield number(f"{name}_{q}_ms", f"predicted {what}", paper=q == "mean")
            yield number(f"observed_{name}_{q}_ms", f"observed {what}")
            yield number(_error(latency, q), f"signed error of the {what}", paper=q == "mean")
    for count in ("completed", "failed"):
        yield whole(count, f"predicted number of requests that {_ended(count)}")
        yield whole(f"observed_{count}", f"observed number of requests that {_ended(count)}")


def _error(latency: str, statistic: str) -> str:
    """The column of the error of a statistic: e2e_error_pct of the mean, e2e_p99_error_pct."""
    name = latency.removesuffix("_ms")
    return f"{name}_error_pct" if statistic == "mean" else f"{name}_{statistic}_error_pct"


def _ended(count: str) -> str:
    return "complete" if count == "completed" else "fail or are given up"


STAGES = (
    text("experiment", "its id", paper=True),
    whole("stage", "number of the load stage, from 1", paper=True),
    number("rate_rps", "requests per second that were offered; missing: a closed load", paper=True),
    whole("concurrency", "clients of a closed load; missing: one with a rate", paper=True),
    number("duration_s", "length of the stage"),
    *_figures(),
)


def bands() -> Iterator[Column]:
    """The bounds of all intervals."""
    for latency, q in STATISTICS.values():
        name = latency.removesuffix("_ms")
        for level in LEVELS:
            for bound in ("low", "high"):
                meaning = f"{bound}er bound" if bound == "low" else "upper bound"
                yield number(
                    f"{name}_{q}_{100 * level:.0f}_{bound}_ms",
                    f"{meaning} of the {100 * level:.0f} % interval of the {q} {name.upper()}",
                    paper=(latency, q, level) == ("e2e_ms", "mean", LEVELS[0]),
                )


# what `Setting.deployed` has
SETTING: tuple[Column, ...] = (
    text("hardware", "the GPU", paper=True),
    whole("tp", "tensor parallelism: GPUs", paper=True),
    whole("data_parallel", "ranks of `tp` GPUs"),
    whole("expert_parallel", "GPUs over which whole experts are spread; 1: each expert is split"),
    whole("max_num_seqs", "most requests in a batch"),
    whole("max_num_batched_tokens", "most new tokens in a step"),
    text("weights", "type that the engine makes of the checkpoint's weights; missing: the checkpoint's own"),
    whole(
        "prefill", "instances of the pool that prefills, whose engine is not among these settings; missing: no pools"
    ),
    whole("decode", "instances of the pool that decodes; missing: no pools"),
)

PREDICTIONS = (
    text("experiment", "its id", paper=True),
    text("model", "the model that is served"),
    number("rate_rps", "requests per second of its load, the mean over its stages; missing: a closed load"),
    whole("concurrency", "most clients of a closed load; missing: one with a rate"),
    number("completed_rps", "predicted requests per second that complete, until the last one has ended"),
    number("output_tokens_per_s", "predicted tokens per second of the answers of these"),
    *SETTING,
    flag("fitted", "whether the program was fitted on it; missing: on a part of it, or unknown"),
    number("fitted_share", "the share of its requests that the program was fitted on; missing: unknown"),
    flag("fitted_before", "whether a program that this one was fitted from was fitted on it"),
    *_figures(),
    *bands(),
    text("intervals_of", "the held-out runs whose errors make the intervals: inside, outside or saturated"),
    several(
        "not_calibrated", "figures that too few of these measured, so that their intervals are of the nearest ones"
    ),
    number("saturated_share", "share of near-optimal programs under which over 5 % of the E2E is spent in the queue"),
    *(
        number(f"{part}_ms", f"predicted part of the mean E2E: {PREDICTED_PARTS[part]}")
        for part in (*PARTS, *POOL_PARTS)
    ),
    *(
        number(f"observed_{part}_ms", f"observed part of the mean E2E: {OBSERVED_PARTS[part]}")
        for part in OBSERVED_PARTS
    ),
    whole("observed_parts_requests", "number of requests that the observed parts rest on"),
    several("warnings", "what to know before using the figures"),
)


def stage_rows(
    experiments: Sequence[Experiment], compared: Sequence[Sequence[ObservedErrors]]
) -> Iterator[dict[str, object]]:
    """A row of STAGES for each load stage of the experiments. `compared`: the stages of each experiment."""
    for e, of_stages in zip(experiments, compared, strict=True):
        for i, (load, comparison) in enumerate(zip(e.workload.stages, of_stages, strict=True), 1):
            rate = (None, None) if load.users else (load.rate, load.duration_s)
            place = {
                "experiment": e.id,
                "stage": i,
                "rate_rps": rate[0],
                "concurrency": load.users,
                "duration_s": rate[1],
            }
            yield {**place, **_comparison(comparison)}


def prediction_row(f: Forecast) -> dict[str, object]:
    """The row of PREDICTIONS of an experiment: predicted, observed, errors, intervals, parts of the E2E, warnings."""
    parts = f.observed_components
    return {
        "experiment": f.id,
        "model": f.model,
        "rate_rps": f.setting.rate,
        "concurrency": f.setting.concurrency,
        **asdict(f.served),
        **f.setting.deployed,
        "fitted": f.fitted,
        "fitted_share": f.fitted_share,
        "fitted_before": f.fitted_by_predecessor,
        **_comparison(f.summary),
        **interval_bounds(f.summary.intervals),
        "intervals_of": f.residual_class,
        "not_calibrated": f.summary.not_calibrated,
        "saturated_share": f.doubt.saturated if f.doubt else None,
        **{f"{part}_ms": value for part, value in f.components.items()},
        **({f"observed_{part}_ms": getattr(parts, part) for part in OBSERVED_PARTS} if parts else {}),
        "observed_parts_requests": parts.requests if parts else None,
        "warnings": f.warnings,
    }


def _comparison(c: ObservedErrors) -> dict[str, object]:
    """The columns of `_figures`."""
    row: dict[str, object] = {}
    error_pct: Mapping[str, Mapping[str, float | None]] = c.error_pct or {}
    for prefix, side in (("", c.predicted), ("observed_", c.observed)):
        row |= figures_of(side, prefix)
    for latency, of_latency in error_pct.items():
        row |= {_error(latency, q): value for q, value in of_latency.items()}
    return row


def figures_of(o: Observation | None, prefix: str = "") -> dict[str, object]:
    """The latencies and numbers of requests of an observation by column, whose names begin with `prefix`."""
    if o is None:
        return {}
    counts: dict[str, object] = {f"{prefix}completed": o.completed, f"{prefix}failed": o.failed}
    for latency in LATENCIES:
        statistic = getattr(o, latency)
        counts |= {f"{prefix}{latency.removesuffix('_ms')}_{q}_ms": getattr(statistic, q) for q in QUANTITIES}
    return counts


def interval_bounds(intervals: Intervals) -> dict[str, object]:
    """The columns of `bands`."""
    row: dict[str, object] = {}
    for figure, of_figure in intervals.items():
        latency, q = STATISTICS[figure]
        for level, (low, high) in of_figure.at.items():
            name = f"{latency.removesuffix('_ms')}_{q}_{100 * level:.0f}"
            row |= {f"{name}_low_ms": low, f"{name}_high_ms": high}
    return row
