"""How far single requests of a trace are off, as `evolve predict` prints it."""

from __future__ import annotations

from collections.abc import Sequence

from evaluator.metrics import LATENCIES
from evolve.program.forecast import Forecast
from evolve.report.printing import prose, show
from evolve.report.table import Row, Table, number, section

LEGEND = """\
Requests of traces, one by one: mean and median absolute error in percent, Pearson's r of predicted and observed, and
the errors of the p50, p90 and p99 over requests. Below, by length in tokens: the errors of the means."""


def print_singles(forecasts: Sequence[Forecast]) -> None:
    """Two tables of the experiments that have latencies of single requests."""
    shown = [f for f in forecasts if f.singles]
    prose(LEGEND)
    heads = "experiment|>requests|latency|>mean|>median|>r|>p50|>p90|>p99"
    show(Table.of("Single requests: errors in percent", heads, [r for f in shown for r in section(_rows(f))]))
    heads = "experiment|>prompt|>answer|>requests|>E2E|>TTFT|>ITL"
    show(Table.of("By length: errors of the means in percent", heads, [r for f in shown for r in section(_bins(f))]))


def _rows(f: Forecast) -> list[Row]:
    rows: list[Row] = []
    for name, single in f.singles.latencies.items() if f.singles else ():
        about = ("", "") if rows else (f.id, f"{f.singles.requests:,}" if f.singles else "")
        sizes = number(single.mean_abs_pct, 1, signed=False), number(single.median_abs_pct, 1, signed=False)
        figures = *sizes, number(single.r, 3, signed=False), *(number(x) for x in single.quantiles_pct.values())
        rows.append(Row((*about, name.removesuffix("_ms").upper(), *figures)))
    return rows


def _bins(f: Forecast) -> list[Row]:
    rows: list[Row] = []
    for b in f.singles.bins if f.singles else ():
        lengths = (f"{low:,} to {high:,}" if low < high else f"{low:,}" for low, high in (b.prompt, b.answer))
        errors = (number(b.error_pct[name]) for name in LATENCIES)
        rows.append(Row(("" if rows else f.id, *lengths, f"{b.requests:,}", *errors)))
    return rows
