"""What a run has to say, for people: the champion, errors per experiment beside known answers, the Pareto front."""

from __future__ import annotations

import sys
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from evolve.report.llm import lines

PASS_PCT = {"e2e": 10.0, "ttft": 15.0, "itl": 15.0}  # per experiment: within these, an experiment passes


# column heads of the known answers in the table per experiment; the table of means gives them in full
SHORT = {
    "naive mean": "naive", "blackbox": "bbox", "blackbox per model": "bbox-m", "blackbox per experiment": "bbox-e",
    "roofline": "roof", "host roofline": "host", "kernel sum": "kern",
    "overhead floor": "floor", "blackbox per model (published)": "p-bbox",
    "regime ensemble with overhead floor (round 2)": "p-regime", "metadata power law (round 5)": "p-meta",
    "direct calibration per model (round 4, in sample)": "p-calib",
}  # fmt: skip
LEGEND = """\
E2E, TTFT, ITL: errors of a run's means over arrival seeds 1 to 3; "limits" names those past 10, 15 and 15 percent.
joint: mean of the three mean absolute errors; worst 3: mean of the three largest E2E errors (front: arrivals {search});
transfer: joint error on models left out of the fit; sound: contradicts no datasheet (`evolve check --physics`).
naive: one step time for all; bbox: b0 + b1*prefill_tokens + b2*decode_reqs fitted for all, -m per model, -e per
experiment; roof: the datasheet alone; host: the host's own roofline, nothing fitted; kern: the sum of measured
kernels, nothing fitted; floor: larger of a floor and bytes over bandwidth; p-: published, unsigned."""


MOST_BIAS_PCT = 5.0  # INV-M-6


def bias_label(rows: list[dict[str, Any]]) -> str:
    """INV-M-6 of these experiments: is the mean signed E2E error within 5 %? "" where none was observed."""
    known = [r["e2e"] for r in rows if r["e2e"] is not None]
    if not known:
        return ""
    bias = sum(known) / len(known)
    state = "holds" if abs(bias) < MOST_BIAS_PCT else "BROKEN"
    return f"INV-M-6 {state}: mean signed E2E error {bias:+.2f} % (limit {MOST_BIAS_PCT:g})"


def console() -> Console:
    """Standard output, wide where it is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else 190, highlight=False, soft_wrap=False)


def new_table(title: str, columns: str) -> Table:
    """A table whose columns (names separated by |; a leading > aligns right) are never cut."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for name in columns.split("|"):
        table.add_column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left", no_wrap=True)
    return table


def natural_width(out: Console, table: Table) -> int:
    """Columns of text that the table needs to show everything."""
    return out.measure(table, options=out.options.update(max_width=1000)).maximum


def show(out: Console, table: Table) -> None:
    """Print the table in full: a terminal too narrow for it wraps its lines rather than lose a figure."""
    width = max(out.width, natural_width(out, table))
    Console(file=out.file, width=width, highlight=False, force_terminal=out.is_terminal).print(table)


def number(value: float | None, digits: int = 1, signed: bool = True) -> str:
    if value is None:
        return "-"
    return f"{value:{'+' if signed else ''}.{digits}f}"


def passes(row: dict[str, Any]) -> str:
    """`pass`, or `>` and which latencies lie outside the limits; `-` where nothing was observed."""
    known = {name: row[name] for name in PASS_PCT if row[name] is not None}
    if not known:
        return "-"
    failed = [name.upper() for name, value in known.items() if abs(value) > PASS_PCT[name]]
    return ">" + ",".join(failed) if failed else "pass"


def print_run(report: dict[str, Any]) -> None:
    """The whole report of a run, champion first."""
    out = console()
    best = report["champion"]
    if best is None:
        reasons = "; ".join(f"{n} at {stage}, e.g. {why}" for stage, n, why in report["rejected"])
        out.print(f"No candidate could be scored: {reasons}. Run: {report['run']}", markup=False, soft_wrap=True)
        return
    counts = f"{best['operations']} operations, {best['constants']} constants, key {best['key']}"
    out.print(f"\n[bold]Champion[/bold] (proposal {best['id']}, {counts})\n", soft_wrap=True)
    out.print(best["text"], markup=False, soft_wrap=True)
    table = errors_table(report, known=True)
    if out.is_terminal and natural_width(out, table) > out.width:
        table = errors_table(report, known=False)  # the known answers of each run are in report.json
    show(out, table)
    show(out, means_table(report))
    label = bias_label([r for r in report["errors"] if r["experiment"] in set(report["fitted"])])
    out.print(f"{label}, over the fitted experiments.\n" if label else "", soft_wrap=True)
    arrivals = ", ".join(map(str, report["search_seeds"]))
    out.print(LEGEND.format(search=arrivals) + "\n", markup=False, soft_wrap=True)
    print_gain(out, report)
    out.print("\n".join(text for text in (transfer_text(best), gap_text(report)) if text) + "\n", soft_wrap=True)
    title = "Pareto front: worst 3, joint error, transfer, complexity"
    show(out, front_table(thinned(report["front"]), title))
    if len(report["front"]) > MOST_ROWS:
        out.print(f"{MOST_ROWS} of {len(report['front'])}; all: evolve archive {report['run']}", soft_wrap=True)
    out.print("\n" + cascade_text(report), soft_wrap=True)
    if report.get("llm"):
        out.print("\nLanguage models", style="bold")
        out.print("\n".join(lines(report["llm"], report["run"])), markup=False, soft_wrap=True)
    counts = ", ".join(f"{report[name]} {name}" for name in ("candidates", "proposals", "accepted"))
    made = ", ".join(f"{name} {report[name]}" for name in ("seed", "engine", "data"))
    out.print(f"\nRun: {report['run']}   ({counts}, {made})", soft_wrap=True)
    out.print(f"Next: evolve archive {report['run']} | evolve show {report['run']}:{best['id']} | "
              f"evolve emit {report['run']}:{best['id']} --target blis-4 --out DIR", soft_wrap=True)  # fmt: skip


MOST_ROWS = 12


def thinned(front: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most MOST_ROWS of a front, evenly from the simplest to the largest."""
    if len(front) <= MOST_ROWS:
        return front
    return [front[i * (len(front) - 1) // (MOST_ROWS - 1)] for i in range(MOST_ROWS)]


def errors_table(report: dict[str, Any], known: bool) -> Table:
    """A row per experiment: signed errors of the means, what lies outside the limits, and the known answers' E2E."""
    fitted = set(report["fitted"])
    answers = {**report["known"], **report["published"]} if known else {}
    heads = "".join(f"|>{SHORT.get(name, name)}" for name in answers)
    title = "Errors of the means in percent, (predicted - observed)/observed" + (
        "; right: E2E of known answers" * known
    )
    table = new_table(title, "experiment|use|>E2E|>TTFT|>ITL|limits" + heads)
    lookup = {name: {r["experiment"]: r for r in rows} for name, rows in answers.items()}
    for row in report["errors"]:
        name = row["experiment"]
        quality = report["quality"][name]
        use = "fitted" if name in fitted else "predicted" if quality == "clean" else quality
        cells = [name, use, *(number(row[x]) for x in ("e2e", "ttft", "itl")), passes(row)]
        for answer in answers:
            found = lookup[answer].get(name)
            cells.append(number(found["e2e"], signed=answer in report["known"]) if found else "-")
        table.add_row(*cells, style=None if name in fitted else "dim")
    return table


def means_table(report: dict[str, Any]) -> Table:
    """Mean absolute errors over the fitted experiments, ours beside the known answers."""
    fitted = set(report["fitted"])
    title = f"Mean absolute error in percent over the {len(fitted)} fitted experiments"
    table = new_table(title, "model|>E2E|>TTFT|>ITL|>over|constants")
    ours = [r for r in report["errors"] if r["experiment"] in fitted]
    table.add_row("champion", *mean_cells(ours), "fitted here, one set for all", style="bold")
    seed = report["best_seed"]
    if seed is not None:
        figures = [number(seed[x], 2, signed=False) for x in ("e2e", "ttft", "itl")]
        name = seed["operator"].removeprefix("seed:")
        table.add_row(
            f"best seed ({name})", *figures, str(len(ours)), "fitted here, one set for all; as the search scored it"
        )
    notes = {
        "blackbox per model": "fitted here, one set per model",
        "blackbox per experiment": "fitted here, one set per experiment",
        "roofline": "none: datasheet",
        "host roofline": "none: datasheet, MFU of the hardware table",
        "kernel sum": "none: measured kernels",
    }
    for name, rows in report["known"].items():
        chosen = [r for r in rows if r["experiment"] in fitted]
        table.add_row(name, *mean_cells(chosen), notes.get(name, "fitted here, one set for all"))
    for name, rows in report["published"].items():
        chosen = [r for r in rows if r["experiment"] in fitted]
        if chosen:
            table.add_row(name, *mean_cells(chosen), "published; ITL against the halved harness ITL")
    for label, quality in (("predicted, clean", "clean"), ("predicted, overloaded", "overloaded")):
        left = [r for r in report["errors"] if r["experiment"] not in fitted]
        rows = [r for r in left if report["quality"][r["experiment"]] == quality]
        if rows:
            table.add_row(f"champion on {label}", *mean_cells(rows), "not fitted", style="dim")
    return table


def mean_cells(rows: list[dict[str, Any]]) -> list[str]:
    cells = []
    for name in ("e2e", "ttft", "itl"):
        values = [abs(r[name]) for r in rows if r[name] is not None]
        cells.append(number(sum(values) / len(values), 2, signed=False) if values else "-")
    return [*cells, str(len(rows))]


def print_gain(out: Console, report: dict[str, Any]) -> None:
    """What the best seed reached by fitting alone, and what the search added."""
    seed, best, rule = report["best_seed"], report["champion"], report["rule"]
    if seed is None:
        out.print("No seed could be scored.")
        return
    lower = 100.0 * (1.0 - best["joint"] / seed["joint"])
    change = f"{lower:.0f} % lower" if lower >= 0 else f"{-lower:.0f} % higher"
    out.print(
        f"Best seed ({seed['operator'].removeprefix('seed:')}, fitted): joint error {seed['joint']:.2f} %, "
        f"worst 3 {seed['worst3']:.2f} %.\n"
        f"The search's gain over it: joint {best['joint']:.2f} % ({change}), worst 3 {best['worst3']:.2f} %.\n"
        f"The champion is {rule_text(rule)}.\n",
        soft_wrap=True,
    )


def rule_text(rule: dict[str, Any]) -> str:
    """How a champion is chosen (archive.Rule), in words."""
    least = {"joint": "joint error", "transfer": "mean of joint and transfer error"}[rule["by"]]
    return (
        f"the simplest program within {100 * rule['within']:g} % of the lowest {least} among those with no experiment "
        f"above {rule['worst_pct']:g} % E2E that contradict no datasheet; where none "
        "is that good, that limit is dropped"
    )


def transfer_text(best: dict[str, Any]) -> str:
    """What the champion's transfer error is; "" where it was not measured."""
    if best["transfer"] is None:
        return ""
    return (
        f"Transfer: joint error {best['transfer']:.2f} % on the runs of each model in turn, the constants fitted "
        "without them. The form was chosen\nwith all of them in sight: `evolve validate` repeats that choice too."
    )


def gap_text(report: dict[str, Any]) -> str:
    """How far the champion's errors on fitted and on left-out models were apart while the search went on; "" where
    nothing was left out."""
    best = [(joint, transfer) for joint, transfer in report["best"] if joint is not None and transfer is not None]
    if not best:
        return ""
    quarters = [best[(len(best) - 1) * i // 4] for i in range(5)]
    said = ", ".join(f"{transfer - joint:+.2f} ({joint:.2f})" for joint, transfer in quarters)
    return f"Validation gap, transfer less joint (joint), percent, at the start and after each quarter: {said}."


def cascade_text(report: dict[str, Any]) -> str:
    """How far proposals came, and where the CPU time went."""
    verdicts, seconds = report["cascade"]["verdicts"], report["cascade"]["cpu_s"]
    total = sum(seconds.values())
    refused = ", ".join(f"{name} {count}" for name, count in verdicts.items() if name != "scored")
    went = ", ".join(f"{name} {100 * s / total:.0f} %" for name, s in seconds.items()) if total else "nothing assessed"
    return (
        f"Cascade: {report['proposals']} proposals, {report['candidates']} fitted, {verdicts.get('scored', 0)} scored; "
        f"refused: {refused or 'none'}.\nCPU time of assessments {total:.0f} s: {went}."
    )


def front_table(elites: list[dict[str, Any]], title: str) -> Table:
    heads = ">id|>worst 3|>joint|>transfer|>E2E|>TTFT|>ITL|>operations|>constants|>features|sound|from"
    table = new_table(title, heads)
    for e in elites:
        figures = [number(e[x], 2, signed=False) for x in ("worst3", "joint", "transfer", "e2e", "ttft", "itl")]
        counts = [str(e[x]) for x in ("operations", "constants", "features")]
        table.add_row(str(e["id"]), *figures, *counts, "yes" if e["sound"] else "no", e["operator"])
    return table
