"""The bench as tables: a row for each method and protocol, in sample and held out apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evolve.methods.bench import IN_SAMPLE, Result
from evolve.methods.catalog import METHODS
from evolve.methods.summary import WORTH_POINTS, Summary, Worth, summaries, worth
from evolve.report.printing import prose, show
from evolve.report.table import Table, counted, number
from evolve.report.terms import legend
from evolve.terminal import command, suggest

TITLES = {
    IN_SAMPLE: "In sample: trained on all runs",
    "models": "Held out: each model in turn",
    "workloads": "Held out: each workload in turn",
}
LEGEND = """\
own: step_time by its authors' training on measured step times, the delays around it on load stages; ours: everything on
load stages, as in `evolve fit`. E2E, TTFT, ITL: mean absolute errors of the means over runs, p99: of the E2E, percent;
cycles: measured times of single steps, in sample of the last 20 % of each run, which no training saw"""


def print_bench(results: Sequence[Result], path: Path) -> None:
    """The tables, what could not be trained, and whether constants of its own pay a model."""
    rows = summaries(results)
    legend("held out", "in sample", "MAPE", also=LEGEND)
    for table in tables(rows):
        show(table)
    failed: dict[str, dict[str, None]] = {}
    for row in rows:
        for why in row.failures:
            failed.setdefault(why, {})[f"{row.method} ({row.protocol})"] = None
    for why, names in failed.items():
        prose(f"- {', '.join(names)}: {why}")
    for verdict in worth(rows):
        prose(worth_text(verdict))
    times = max((row.times for row in rows), default=0)
    prose(
        f"Own protocols rest on at most {counted(times, 'measured time')}: cycles where steps were recorded, "
        "elsewhere the mean ITL of each load stage. Constants include those of the delays around a step.",
        "dim",
    )
    prose(f"Results: {path}; the same command shows them again without training.")
    suggest(*(command("show", name) for name in _best(rows)))


def _best(rows: Sequence[Summary]) -> list[str]:
    """The program of the method with the least median E2E error on models held out, if any was."""
    held = [row for row in rows if row.kind == "models" and row.e2e_median is not None]
    programs = {method.name: method.program for method in METHODS}
    return [programs[min(held, key=lambda row: row.e2e_median or 0.0).method]] if held else []


def tables(rows: Sequence[Summary]) -> list[Table]:
    """A table for each kind of fold that has any rows."""
    made = []
    for kind, title in TITLES.items():
        of_kind = [row for row in rows if row.kind == kind]
        steps = any(row.cycles_mape is not None for row in of_kind)
        heads = "method|by|>constants|>CPU s" + "|>cycles MAPE|>r" * steps
        heads += "|>E2E|>median|>worst|>TTFT|>ITL|>p99|>runs"
        if of_kind:
            made.append(Table.of(f"{title}; errors in percent", heads, [_cells(row, steps) for row in of_kind]))
    return made


def _cells(row: Summary, steps: bool) -> list[str]:
    if not row.runs[0]:
        return [row.method, row.protocol, "-", f"{row.cpu_s:.1f}", *["-"] * (6 + 2 * steps), f"0 of {row.runs[1]}"]
    errors = (row.e2e, row.e2e_median, row.e2e_worst, row.ttft, row.itl, row.e2e_p99)
    of_steps = [number(row.cycles_mape, signed=False), number(row.cycles_r, 2, signed=False)]
    runs = str(row.runs[0]) if row.runs[0] == row.runs[1] else f"{row.runs[0]} of {row.runs[1]}"
    return [
        row.method, row.protocol, str(row.constants), f"{row.cpu_s:.1f}", *of_steps * steps,
        *(number(x, signed=False) for x in errors), runs,
    ]  # fmt: skip


def worth_text(verdict: Worth) -> str:
    """The verdict in words."""
    state = "pay" if verdict.justified else "do not pay"
    return (
        f"Constants of its own {state} a model ({verdict.protocol}): on workloads held out {verdict.shared} is "
        f"{verdict.shared_e2e:.1f} % off, {verdict.own} {verdict.own_e2e:.1f} %; they have to be {WORTH_POINTS:g} "
        "points better."
    )
