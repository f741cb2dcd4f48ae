"""A sweep in a terminal: what each deployment serves, then a table with its knee for each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from evaluator.intervals import WAITING
from evolve.program.axes import Setting, figure
from evolve.program.slo import Limit
from evolve.program.sweep_result import (
    COUNTS,
    LONGER,
    LOST,
    MOST_LOST,
    NOTHING,
    QUEUE,
    Block,
    Figures,
    Knee,
    Sweep,
)
from evolve.report.printing import note, prose, say_once, show
from evolve.report.table import Row, Table, number, row
from evolve.report.terms import legend
from evolve.terminal import say

UNITS = "requests/s; TTFT, E2E and ITL: ms; tokens/s: of answers"
ITL_LEGEND = "ITL: a request's mean time per token after the first, so its p99 is over requests, not over tokens"
WAITING_LEGEND = (
    f"waiting: share of the mean E2E spent in the queue; queue: beyond {100 * WAITING:.0f} %, and the second half of "
    f"the requests waits {LONGER:g} times as long as the first, so the queue grows. running: most requests in a batch"
)
CAPACITY = """\
Each deployment is one replica: a load of L requests/s needs L / (holds up to) of them, rounded up. By seed: up to where
all holds under each arrival seed alone. Latencies have intervals in `evolve predict` without --sweep"""
LATENCIES = (("ttft", ("mean", "p50", "p90", "p99")), ("e2e", ("mean", "p99")), ("itl", ("mean", "p99")))
LOST_LEGEND = f"requests fail: more than {100 * MOST_LOST:.0f} % are refused or given up, and have no latencies"
SHORT = {QUEUE: "queue", LOST: LOST, NOTHING: NOTHING}

Predicted = tuple[Setting, Figures]


def print_sweep(result: Sweep) -> None:
    """What each deployment serves, every combination, the knees, what is impossible, and every warning once."""
    every = [figures for block in result.blocks for _, figures in block.predicted]
    averaged = f", means over arrival seeds {list(result.seeds)}" if result.drawn else ""
    prose(f"Predictions of {result.name}{averaged}{_slo(result.limits)}", "bold")
    if every:
        _print_legend(result, every)
    if result.axes.rate and len(result.blocks) > 1:
        show(_capacity(result))
        note(f"{CAPACITY}.")
    counts = [name for name in COUNTS if any(getattr(figures.prediction, name) for figures in every)]
    for title, keys, blocks in _tables(result):
        predicted = [pair for block in blocks for pair in block.predicted]
        knee = blocks[0].knee
        if predicted:
            show(_table(title, keys, predicted, knee, bool(result.limits), counts))
        if knee:
            prose(f"Knee of {title}: {knee_text(knee)}", "bold")
        for why in dict.fromkeys(r.impossible for block in blocks for r in block.rows if r.impossible):
            prose(f"Impossible: {why}", "bold")
        say()
    blocks = [block for block in result.blocks if block.predicted]
    say_once({_label(result, block).replace(", ", " "): [*_said(block), *result.warnings] for block in blocks})


def _print_legend(result: Sweep, every: Sequence[Figures]) -> None:
    """What the words of the tables mean, of those that occur."""
    rates = ["rate"] * bool(result.axes.rate) + ["offered"] * (not result.axes.rate)
    rates += ["done"] + ["goodput"] * bool(result.limits)
    terms = ["goodput"] * bool(result.limits) + ["knee"] * bool(result.axes.rate)
    lost = [LOST_LEGEND] * any(LOST in figures.fails for figures in every)
    legend(*terms, also=". ".join([f"{', '.join(rates)}: {UNITS}", ITL_LEGEND, WAITING_LEGEND, *lost]))


def knee_text(knee: Knee) -> str:
    """Where the knee is, what fails there, and which rate is the last that holds."""
    if knee.rate is None:
        return f"none up to {figure(knee.last)}"
    fails = ", ".join(name if name in SHORT else f"{_words(name)} fails" for name in knee.fails)
    if knee.holds_up_to is None:
        return f"rate {figure(knee.rate)}, the lowest: {fails}"
    sure = "none" if knee.sure is None else figure(knee.sure)
    by_seed = f" (under each arrival seed alone: {sure})" if knee.sure != knee.holds_up_to else ""
    return f"rate {figure(knee.rate)}: {fails}; holds up to {figure(knee.holds_up_to)}{by_seed}"


def _capacity(result: Sweep) -> Table:
    """The last rate that holds on every deployment, as it is, per GPU, and under every arrival seed."""
    rows = []
    for block in result.blocks:
        cells = [_label(result, block), str(block.setting.tp)]
        knee = block.knee
        if knee is None:
            rows.append([*cells, "impossible"])
            continue
        more = " or more" * (knee.rate is None)
        per_gpu = knee.holds_up_to / block.setting.tp if knee.holds_up_to else None
        rates = [f"{figure(rate)}{more}" if rate else "none" for rate in (knee.holds_up_to, knee.sure)]
        rows.append([*cells, rates[0], f"{_short(per_gpu)}{more}" if per_gpu else "-", rates[1]])
    heads = "deployment|>GPUs|>holds up to|>per GPU|>by seed"
    return Table.of("What each deployment serves, in requests/s", heads, rows)


def _slo(limits: Sequence[Limit]) -> str:
    return "".join(f", {_words(limit.name)} <= {figure(limit.most_ms)} ms" for limit in limits)


def _words(limit: str) -> str:
    """The name of a limit as tables have it: `TTFT p99`."""
    latency, quantity = limit.split("_")
    return f"{latency.upper()} {quantity}"


def _tables(result: Sweep) -> Iterator[tuple[str, tuple[str, ...], list[Block]]]:
    """Title, varied keys and blocks of every table: one for each block along the rate, else one for an experiment."""
    if result.axes.rate:
        yield from ((_label(result, block), ("rate",), [block]) for block in result.blocks)
        return
    for ident in dict.fromkeys(block.experiment for block in result.blocks):
        yield ident, result.axes.others, [block for block in result.blocks if block.experiment == ident]


def _label(result: Sweep, block: Block) -> str:
    return block.setting.label(block.experiment, result.axes.others)


def _table(
    title: str, keys: Sequence[str], rows: Sequence[Predicted], knee: Knee | None, limited: bool, counts: Sequence[str]
) -> Table:
    latencies = [f">{name.upper()} {q}" for name, quantities in LATENCIES for q in quantities]
    rates = ["offered"] * ("rate" not in keys) + ["done", "tokens/s"] + ["goodput"] * limited
    names = [*rates, "waiting", "running", *(name.replace("_", " ") for name in counts)]
    varied = [name if name == "hardware" else f">{name}" for name in keys]
    heads = [*varied, "~fails", *latencies, *(f">{name}" for name in names)]
    return Table.of(title, "|".join(heads), (_row(keys, *row, knee, limited, counts) for row in rows))


def _row(
    keys: Sequence[str], setting: Setting, f: Figures, knee: Knee | None, limited: bool, counts: Sequence[str]
) -> Row:
    times = (getattr(getattr(f.run, f"{name}_ms", None), q, None) for name, qs in LATENCIES for q in qs)
    rates = [*([f.offered_rps] if "rate" not in keys else []), f.completed_rps, f.output_tokens_per_s]
    return row(
        *(setting.shown(name) for name in keys),
        ", ".join(SHORT.get(name) or _words(name) for name in f.fails),
        *map(_short, times),
        *map(_short, [*rates, f.goodput_rps] if limited else rates),
        f"{100.0 * f.waiting_share:.1f} %",
        str(f.most_running),
        *(str(getattr(f.prediction, name)) for name in counts),
        style="bold" if knee and setting.rate == knee.rate else "",
    )


def _short(value: float | None) -> str:
    """A figure with a digit after the point only below 1000, and two below 100."""
    return number(value, 0 if value and value >= 1000.0 else 1 if value and value >= 100.0 else 2, signed=False)


def _said(block: Block) -> list[str]:
    """The warnings of a block. Those that differ in figures alone, or begin at a higher rate, are said once, with the
    rate at which they begin."""
    rows = [(setting.rate, figures.warnings) for setting, figures in block.predicted]
    begun: dict[str, tuple[float | None, str]] = {}
    for rate, texts in rows:
        for text in texts:
            begun.setdefault(re.sub(r"[0-9.]+", "", text), (rate, text))
    return [
        text if rate is None or all(text in texts for _, texts in rows) else f"from rate {figure(rate)}: {text}"
        for rate, text in begun.values()
    ]
