"""Rows of sweeps: one for each combination of load, GPU and engine settings."""

from __future__ import annotations

from collections.abc import Iterator

from evaluator.metrics import LATENCIES
from evolve.output.columns import columns, flag, number, several, text, whole
from evolve.plan.prediction_rows import SETTING, figures_of
from evolve.plan.sweep_result import COUNTS, LOST, NOTHING, QUEUE, Block, Sweep, SweepFigures, SweepRow
from simulator.serving.observations import QUANTITIES

SWEEP = (
    text("experiment", "its id", paper=True),
    text("model", "the model that is served"),
    number("rate_rps", "requests per second; missing: the experiment's own load", paper=True),
    whole("concurrency", "clients of a closed load; missing: the experiment's own load", paper=True),
    *SETTING,
    text("impossible", "why the combination cannot exist; missing: it can"),
    *(
        number(
            f"{latency.removesuffix('_ms')}_{q}_ms",
            f"predicted {q} {latency.removesuffix('_ms').upper()}",
            paper=q in ("mean", "p99"),
        )
        for latency in LATENCIES
        for q in QUANTITIES
    ),
    whole("completed", "predicted number of requests that complete"),
    whole("failed", "predicted number of requests that fail or are given up"),
    *columns(SweepFigures),
    whole("preemptions", "number of preemptions"),
    whole("refused", "number of requests that are refused because they are too long"),
    whole("gave_up", "number of requests that their client gives up"),
    flag("holds", "whether all limits hold, the queue does not grow and 99 % of the requests complete"),
    several("fails", f"the limits that do not hold, `{QUEUE}`, `{LOST}` or `{NOTHING}`"),
    flag("likely", "whether all holds at the upper ends of the 80 % intervals, too; missing: not looked at, or none"),
    number("holds_up_to_rps", "the last rate of its engine settings at which everything holds; missing: none"),
    number("likely_holds_up_to_rps", "the highest rate up to that one that is `likely`; missing: none"),
    number("holds_up_to_concurrency", "the most clients at which everything holds; missing: none"),
    number("likely_holds_up_to_concurrency", "the most clients up to these that are `likely`; missing: none"),
    flag("narrow", "whether the intervals at that one may be too narrow, as `warnings` say; missing: no rates"),
    flag("knee", "whether it is the first load of its engine settings that does not hold", paper=True),
    several("warnings", "what to know before using the figures"),
)


def sweep_rows(result: Sweep) -> Iterator[dict[str, object]]:
    """The rows of SWEEP: one for each combination with its settings, predictions and broken limits."""
    for block in result.blocks:
        for row in block.rows:
            yield _row(result, block, row)


def _row(result: Sweep, block: Block, row: SweepRow) -> dict[str, object]:
    setting, f = row.setting, row.figures
    combination: dict[str, object] = {
        "experiment": block.experiment,
        "model": block.model,
        "rate_rps": setting.rate,
        "concurrency": setting.concurrency,
        **setting.deployed,
        "impossible": row.impossible,
    }
    if f is None:
        return combination
    knee = block.knee
    return {
        **combination,
        **figures_of(f.run),
        **{c.name: getattr(f, c.name) for c in columns(SweepFigures)},
        **{name: getattr(f.prediction, name) for name in COUNTS},
        "holds": not f.fails,
        "fails": f.fails,
        "likely": f.likely,
        **result.in_unit("holds_up_to_{}", knee.holds_up_to if knee else None),
        **result.in_unit("likely_holds_up_to_{}", knee.likely if knee else None),
        "narrow": knee.narrow if knee else None,
        "knee": setting.level == knee.load if knee else None,
        "warnings": (*f.warnings, *f.narrow),
    }
