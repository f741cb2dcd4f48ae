"""The bench as tables: a row for each method and protocol, in sample and held out apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evolve.methods.bench import IN_SAMPLE, KINDS, PROGRAMS, Result
from evolve.methods.summary import WORTH_POINTS, Summary, Worth, summaries, worth
from evolve.report.printing import markdown, note, prose, show
from evolve.report.table import Table, counted, number
from evolve.terminal import command, suggest

TITLES = {
    IN_SAMPLE: "In sample: trained on all runs",
    "models": "Held out: each model in turn",
    "workloads": "Held out: each workload in turn",
}
LEGEND = """\
own: step_time by its authors' training on measured step times, the delays around it on load stages; ours: everything on
load stages, as in `evolve fit`. held out: predicted by constants that were trained without these runs; the forms are of
people who had seen some. constants: that were trained; CPU s: of all trainings of the row. E2E, TTFT, ITL: mean
absolute errors of the means over the runs predicted, percent; median, worst: of E2E; p99: of the 99th percentile of
E2E."""
CYCLES = """\
cycles MAPE: the mean absolute error of measured times of single steps, percent, in sample of the last 20 % of each run,
which no training saw; r: their correlation."""


def print_bench(results: Sequence[Result], path: Path) -> None:
    """The tables, notes, and where everything is kept."""
    rows = summaries(results)
    note(LEGEND)
    if any(row.cycles_mape is not None for row in rows):
        note(CYCLES)
    for table in tables(rows):
        show(table)
    for text in notes(rows):
        prose(f"- {text}")
    prose(
        f"Results: {path}; the same command shows them again without training. Programs that were trained on all runs: "
        f"{path / PROGRAMS}, one for each model where a method has constants of each."
    )
    held = [row for row in rows if row.kind == "models" and row.e2e_median is not None]
    if held:
        best = min(held, key=lambda row: row.e2e_median or 0.0)
        suggest(command("predict", path / PROGRAMS / f"{best.method}-{best.protocol}.py"))


def page(results: Sequence[Result]) -> str:
    """The tables and notes as Markdown."""
    rows = summaries(results)
    parts = [f"**{table.title}**\n\n{markdown(table)}" for table in tables(rows)]
    return "\n\n".join([*parts, "\n".join(f"- {text}" for text in notes(rows))])


def notes(rows: Sequence[Summary]) -> list[str]:
    """Why trainings came to nothing, whether constants of its own pay a model, and what own protocols rest on."""
    failed: dict[str, dict[str, None]] = {}
    for row in rows:
        for why in row.failures:
            failed.setdefault(why, {})[f"{row.method} ({row.protocol})"] = None
    texts = [f"{', '.join(names)}: {why}" for why, names in failed.items()]
    texts += map(worth_text, worth(rows))
    if times := max((row.times for row in rows), default=0):
        rests = f"Own protocols rest on at most {counted(times, 'measured time')}: cycles where steps were recorded,"
        texts.append(f"{rests} elsewhere the mean ITL of each load stage.")
    missing = [kind for kind in KINDS if not any(row.kind == kind for row in rows)]
    if missing:
        texts.append(f"Nothing is held out by {' or '.join(missing)}: the runs have one only.")
    return [*texts, "Constants include those of the delays around a step."]


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
