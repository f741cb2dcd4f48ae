"""The report of a run: its tables and sentences, and how the terminal shows them, champion first.

`report` is what a search leaves in report.json. `evolve.report.markdown` writes the same tables to RUN/summary.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console

from evolve.report.llm import lines
from evolve.report.table import (
    Row,
    Table,
    bias_label,
    console,
    fits,
    mean_cells,
    new_table,
    number,
    passes,
    row,
    show,
)

# The other names are imported from here by reports that build rich tables.
__all__ = [
    "bias_label", "cascade_text", "console", "errors_table", "fitted_bias", "front_table", "gap_text", "means_table",
    "new_table", "number", "passes", "print_run", "rule_text", "show", "thinned", "transfer_text",
]  # fmt: skip

# Column heads of the known answers in the table of errors; the table of means has their full names.
SHORT = {
    "naive mean": "naive", "blackbox": "bbox", "blackbox per model": "bbox-m", "blackbox per experiment": "bbox-e",
    "roofline": "roof", "host roofline": "host", "kernel sum": "kern",
    "overhead floor": "floor", "blackbox per model (published)": "p-bbox",
    "regime ensemble with overhead floor (round 2)": "p-regime", "metadata power law (round 5)": "p-meta",
    "direct calibration per model (round 4, in sample)": "p-calib",
}  # fmt: skip
# How the constants of each known answer were determined.
CONSTANTS = {
    "blackbox per model": "fitted here, one set per model",
    "blackbox per experiment": "fitted here, one set per experiment",
    "roofline": "none: datasheet",
    "host roofline": "none: datasheet, MFU of the hardware table",
    "kernel sum": "none: measured kernels",
}
ONE_SET = "fitted here, one set for all"
LEGEND = """\
E2E, TTFT, ITL: errors of a run's means over arrival seeds 1 to 3; "limits" names those past 10, 15 and 15 percent.
joint: mean of the three mean absolute errors; worst 3: mean of the three largest E2E errors (front: arrivals {search});
transfer: joint error on models left out of the fit; sound: contradicts no datasheet (`evolve check --physics`).
naive: one step time for all; bbox: b0 + b1*prefill_tokens + b2*decode_reqs fitted for all, -m per model, -e per
experiment; roof: the datasheet alone; host: the host's own roofline, nothing fitted; kern: the sum of measured
kernels, nothing fitted; floor: larger of a floor and bytes over bandwidth; p-: published, unsigned."""
MOST_ROWS = 12  # of a front


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
    # a narrow terminal gets no known answers per experiment: report.json has them
    show(out, table if fits(out, table) else errors_table(report, known=False))
    show(out, means_table(report))
    bias = fitted_bias(report)
    out.print(f"{bias}, over the fitted experiments.\n" if bias else "", soft_wrap=True)
    arrivals = ", ".join(map(str, report["search_seeds"]))
    out.print(LEGEND.format(search=arrivals) + "\n", markup=False, soft_wrap=True)
    _print_gain(out, report)
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
    identity = ", ".join(f"{name} {report[name]}" for name in ("seed", "engine", "data"))
    out.print(f"\nRun: {report['run']}   ({counts}, {identity})", soft_wrap=True)
    out.print(f"Next: evolve archive {report['run']} | evolve show {report['run']}:{best['id']} | "
              f"evolve emit {report['run']}:{best['id']} --target blis-4 --out DIR", soft_wrap=True)  # fmt: skip


def thinned(front: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most MOST_ROWS programs of a front, evenly spaced from the simplest to the largest."""
    if len(front) <= MOST_ROWS:
        return front
    return [front[i * (len(front) - 1) // (MOST_ROWS - 1)] for i in range(MOST_ROWS)]


def errors_table(report: dict[str, Any], known: bool) -> Table:
    """A row per experiment: signed errors of the means, those outside the limits, and if `known` the E2E errors of the
    known answers."""
    fitted = set(report["fitted"])
    answers = {**report["known"], **report["published"]} if known else {}
    heads = "".join(f"|>{SHORT.get(name, name)}" for name in answers)
    title = "Errors of the means in percent, (predicted - observed)/observed"
    title += "; right: E2E of known answers" if known else ""
    by_experiment = {name: {r["experiment"]: r for r in rows} for name, rows in answers.items()}

    def cells(errors: dict[str, Any]) -> Row:
        name = errors["experiment"]
        quality = report["quality"][name]
        use = "fitted" if name in fitted else "predicted" if quality == "clean" else quality
        theirs = []
        for answer in answers:
            other = by_experiment[answer].get(name)
            theirs.append(number(other["e2e"], signed=answer in report["known"]) if other else "-")
        figures = (number(errors[x]) for x in ("e2e", "ttft", "itl"))
        return row(name, use, *figures, passes(errors), *theirs, style="" if name in fitted else "dim")

    return Table.of(title, "experiment|use|>E2E|>TTFT|>ITL|limits" + heads, map(cells, report["errors"]))


def means_table(report: dict[str, Any]) -> Table:
    """Mean absolute errors over the fitted experiments: the champion's, the best seed's, and the known answers'."""
    fitted = set(report["fitted"])
    ours = _of(report["errors"], fitted)
    rows = [row("champion", *mean_cells(ours), ONE_SET, style="bold")]
    if seed := report["best_seed"]:
        figures = [number(seed[x], 2, signed=False) for x in ("e2e", "ttft", "itl")]
        name = f"best seed ({seed['operator'].removeprefix('seed:')})"
        rows.append(row(name, *figures, str(len(ours)), f"{ONE_SET}; as the search scored it"))
    for name, errors in report["known"].items():
        rows.append(row(name, *mean_cells(_of(errors, fitted)), CONSTANTS.get(name, ONE_SET)))
    for name, errors in report["published"].items():
        if chosen := _of(errors, fitted):
            rows.append(row(name, *mean_cells(chosen), "published; ITL against the halved harness ITL"))
    for quality in ("clean", "overloaded"):
        of_quality = {e for e, q in report["quality"].items() if q == quality}
        if others := _of(report["errors"], of_quality - fitted):
            rows.append(row(f"champion on predicted, {quality}", *mean_cells(others), "not fitted", style="dim"))
    title = f"Mean absolute error in percent over the {len(fitted)} fitted experiments"
    return Table.of(title, "model|>E2E|>TTFT|>ITL|>over|constants", rows)


def _of(errors: Iterable[dict[str, Any]], experiments: set[str]) -> list[dict[str, Any]]:
    return [r for r in errors if r["experiment"] in experiments]


def front_table(elites: Sequence[dict[str, Any]], title: str) -> Table:
    """A row per program of a Pareto front: objectives, mean errors, size, and the operator that made it."""

    def cells(e: dict[str, Any]) -> Row:
        figures = [number(e[x], 2, signed=False) for x in ("worst3", "joint", "transfer", "e2e", "ttft", "itl")]
        counts = [str(e[x]) for x in ("operations", "constants", "features")]
        return row(str(e["id"]), *figures, *counts, "yes" if e["sound"] else "no", e["operator"])

    heads = ">id|>worst 3|>joint|>transfer|>E2E|>TTFT|>ITL|>operations|>constants|>features|sound|from"
    return Table.of(title, heads, map(cells, elites))


def fitted_bias(report: dict[str, Any]) -> str:
    """Whether INV-M-6 holds over the fitted experiments; "" where no E2E was observed."""
    return bias_label(_of(report["errors"], set(report["fitted"])))


def _print_gain(out: Console, report: dict[str, Any]) -> None:
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
    """How a champion is chosen (archive.champion.Rule), in words."""
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
    """How far apart the champion's errors on fitted and on left-out models were during the search; "" where no model
    was left out."""
    best = [(joint, transfer) for joint, transfer in report["best"] if joint is not None and transfer is not None]
    if not best:
        return ""
    quarters = [best[(len(best) - 1) * i // 4] for i in range(5)]
    gaps = ", ".join(f"{transfer - joint:+.2f} ({joint:.2f})" for joint, transfer in quarters)
    return f"Validation gap, transfer less joint (joint), percent, at the start and after each quarter: {gaps}."


def cascade_text(report: dict[str, Any]) -> str:
    """How far proposals got, and where the CPU time went."""
    verdicts, seconds = report["cascade"]["verdicts"], report["cascade"]["cpu_s"]
    total = sum(seconds.values())
    refused = ", ".join(f"{name} {count}" for name, count in verdicts.items() if name != "scored")
    shares = ", ".join(f"{name} {100 * s / total:.0f} %" for name, s in seconds.items()) if total else ""
    return (
        f"Cascade: {report['proposals']} proposals, {report['candidates']} fitted, {verdicts.get('scored', 0)} scored; "
        f"refused: {refused or 'none'}.\nCPU time of assessments {total:.0f} s: {shares or 'nothing assessed'}."
    )
