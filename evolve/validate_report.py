"""What a validation has to say, for people; and its rows as CSV."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from rich.table import Table

from evolve.holdout import FIGURES, LATER, STATISTICS
from evolve.report import bias_label, console, new_table, number, passes, show
from evolve.validate_log import OPTIMISTIC
from simulator.errors import InputError

HELD = {
    "models": "leave one model out",
    "workloads": "leave one workload out",
    "tp": "leave one TP degree out",
    "files": "leave one experiments file out",
    "stages": "last load stage held out",
}
LEGEND = """\
Errors in percent, (predicted - observed)/observed, mean of arrival seeds 1 to 3; later: of the stages after the first,
where cold starts are over (average of their figures). over: held-out experiments; 95 %: bootstrap interval of the mean
absolute E2E error, experiments or whole models resampled; median: of the absolute E2E errors. against: the known answer
with the lowest mean among those fitted in the same folds that predict every held-out experiment, or --against
PROGRAM; p: Wilcoxon signed-rank test of paired absolute E2E errors, two-sided, experiments taken as independent.
Seed programs, fields and bounds are the same in every fold: who wrote them had seen some of these measurements."""


def print_validation(result: dict[str, Any]) -> None:
    """Rows and folds of every kind, what they add up to, then how often figures were looked at."""
    out = console()
    how = _how(result)
    for kind in result["summary"]:
        show(out, rows_table(result, kind, f"{HELD[kind]}: errors of held-out experiments; {how}"))
        show(out, folds_table(result, kind, f"{HELD[kind]}: folds; {how}"))
    show(out, breakdown_table(result, f"Mean absolute held-out errors by group; {how}"))
    show(out, known_table(result, "Mean absolute held-out E2E error of known answers fitted in the same folds"))
    show(out, fields_table(result, f"How many programs read each field; folds: {how}"))
    if result["never_fitted"]:
        show(out, never_table(result, "Never fitted: predicted with the run's champion"))
    show(out, summary_table(result, f"Mean absolute held-out errors in percent; {how}"))
    out.print(LEGEND + "\n", markup=False, soft_wrap=True)
    for kind, why in result["skipped"].items():
        out.print(f"No {kind} fold: {why}.", markup=False, soft_wrap=True)
    out.print(call_note(result), markup=False, soft_wrap=True)
    for change in result["changed_since_first_call"]:
        out.print(f"CHANGED since the first validate: {change}.", markup=False, soft_wrap=True)
    made = ", ".join(f"{name} {result[name]}" for name in ("seed", "engine", "data"))
    out.print(f"\nRun: {result['run']}   ({made})", markup=False, soft_wrap=True)


def call_note(result: dict[str, Any]) -> str:
    """Which look at held-out figures this is."""
    note = f"Validate call number {result['call']} on this run"
    return note + (f": {OPTIMISTIC}." if result["call"] > 1 else ".")


def _how(result: dict[str, Any]) -> str:
    if result["form_chosen_with_hindsight"]:
        return "form chosen with hindsight, constants refitted in each fold"
    return f"form, constants and choice inside the fold, {result['budget']} candidates each"


def rows_table(result: dict[str, Any], kind: str, title: str) -> Table:
    heads = "experiment|>E2E|>TTFT|>ITL|limits|>E2E p90|>p99|>TTFT p90|>p99"
    later = kind != "stages"
    against = result["summary"][kind]["against"]
    heads += "|>later E2E|>p99|>TTFT|>p99" * later + (f"|>E2E of {against['label']}" if against else "")
    table, fold = new_table(title, heads), ""
    for row in result["rows"]:
        if row["kind"] != kind:
            continue
        if row["fold"] != fold:
            table.add_section()
        fold = row["fold"]
        names = ["e2e_p90", "e2e_p99", "ttft_p90", "ttft_p99"]
        names += [n + LATER for n in ("e2e", "e2e_p99", "ttft", "ttft_p99")] * later
        cells = [row["experiment"], *(number(row[x]) for x in ("e2e", "ttft", "itl")), passes(row)]
        cells += [number(row[name]) for name in names]
        if against:
            theirs = row["against"] if "against" in row else row["known"][against["label"]]
            cells.append(number(theirs["e2e"]))
        table.add_row(*cells)
    return table


def folds_table(result: dict[str, Any], kind: str, title: str) -> Table:
    table = new_table(
        title, "held out|>over|champion|>operations|>constants|>E2E fitted|>E2E held out|>bias|>TTFT|>ITL|invariants"
    )
    for fold in result["folds"]:
        if fold["kind"] != kind:
            continue
        best, mean = fold["champion"], fold["mean_abs_error_pct"]
        about = ["none: nothing could be scored", "-", "-", "-"]
        if best:
            about = [best["key"], str(best["operations"]), str(best["constants"])]
            about.append(number(best["fitted_mean_abs_error_pct"]["e2e"], signed=False))
        figures = [number(mean["e2e"], signed=False), number(fold["bias_pct"]["e2e"])]
        figures += [number(mean[x], signed=False) for x in ("ttft", "itl")]
        broken = [g["name"] for g in fold["gates"] if not g["passes"]]
        told = "-" if not best else "BROKEN: " + ", ".join(broken) if broken else "hold"
        table.add_row(_short(fold["name"]), str(len(fold["held_out"])), *about, *figures, told)
    rows = [r for r in result["rows"] if r["kind"] == kind]
    table.caption = bias_label(rows)
    return table


def summary_table(result: dict[str, Any], title: str) -> Table:
    heads = "held out|>over|>E2E|>95 %|>by model|>median|>bias|>worst|>TTFT|>ITL|>E2E p90|>p99|>TTFT p90|>p99"
    heads += "|against|>E2E|>better in|>p"
    table = new_table(title, heads)
    for kind, s in result["summary"].items():
        mean, theirs = s["mean_abs_error_pct"], s["against"]
        over = str(s["experiments"])
        if s["without_prediction"]:
            over += f" ({s['without_prediction']} without prediction)"
        cells = [kind, over, number(mean["e2e"], 2, signed=False), _range(s["interval_95"]["e2e"])]
        cells += [_range(s["interval_95_by_model"]["e2e"]), number(s["median_abs_error_pct"]["e2e"], 2, signed=False)]
        cells += [number(s["bias_pct"]["e2e"]), number(s["worst_e2e_pct"])]
        cells += [number(mean[x], 1, signed=False) for x in STATISTICS if x != "e2e"]
        test = theirs["test"] if theirs else None
        cells += [theirs["label"], number(theirs["e2e"], 2, signed=False)] if theirs else ["-", "-"]
        cells.append(f"{test['better']} of {test['pairs']}" if test else "-")
        cells.append(f"{test['p']:.2g}" if test and test["p"] is not None else "-")
        table.add_row(*cells, style="bold")
    inside = result["in_sample"]
    cells = [number(inside[x], 2 if x == "e2e" else 1, signed=False) for x in ("e2e", "ttft", "itl")]
    table.add_row("nothing: run's champion, in sample", "", cells[0], *[""] * 5, *cells[1:], style="dim")
    return table


def breakdown_table(result: dict[str, Any], title: str) -> Table:
    table = new_table(title, "held out|by|group|>over|>E2E|>TTFT|>ITL|>bias E2E")
    for kind, groups in result["breakdown"].items():
        for g in groups:
            figures = [number(g["mean_abs_error_pct"][x], 2, signed=False) for x in ("e2e", "ttft", "itl")]
            table.add_row(kind, g["by"], g["group"], str(g["experiments"]), *figures, number(g["bias_pct"]["e2e"]))
        table.add_section()
    return table


def known_table(result: dict[str, Any], title: str) -> Table:
    names = list(dict.fromkeys(a["name"] for s in result["summary"].values() for a in s["known"]))
    table = new_table(
        title + " (of n: predicts only so many)", "|".join(["held out", ">ours", *(f">{n}" for n in names)])
    )
    for kind, s in result["summary"].items():
        found = {a["name"]: a for a in s["known"]}
        cells = [kind, number(s["mean_abs_error_pct"]["e2e"], 2, signed=False)]
        for name in names:
            a = found.get(name)
            part = f" (of {a['over']})" if a and a["over"] < s["experiments"] else ""
            cells.append(number(a["e2e"], 2, signed=False) + part if a else "-")
        table.add_row(*cells)
    return table


def fields_table(result: dict[str, Any], title: str) -> Table:
    front, folds = result["fields"]["front"], result["fields"]["folds"]
    heads = [f">{kind} folds ({f['programs']})" for kind, f in folds.items()]
    table = new_table(title, "|".join(["field", f">Pareto front of the run ({front['programs']})", *heads]))
    names = dict.fromkeys([*front["fields"], *(n for f in folds.values() for n in f["fields"])])
    for name in names:
        table.add_row(name, *(str(f["fields"].get(name, 0)) for f in (front, *folds.values())))
    return table


def never_table(result: dict[str, Any], title: str) -> Table:
    table = new_table(title, "experiment|quality|>E2E|>TTFT|>ITL|>completed|>observed|>failed|>observed")
    for row in result["never_fitted"]:
        counts = [row[what][side] for what in ("completed", "failed") for side in ("predicted", "observed")]
        figures = [number(row[x]) for x in ("e2e", "ttft", "itl")]
        table.add_row(row["experiment"], row["quality"], *figures, *("-" if n is None else f"{n:,}" for n in counts))
    return table


def check_csv(path: Path) -> None:
    """Raises InputError, before anything is computed, if the CSV could not be written."""
    try:
        with path.open("a"):
            pass
    except OSError as e:
        raise InputError(f"{path}: cannot be written ({e.strerror}): choose another --csv") from None


def write_csv(result: dict[str, Any], path: Path) -> None:
    """One row for every fold and held-out experiment; errors signed, in percent, empty where there is none.

    Raises InputError if the file cannot be written.
    """
    about = ["kind", "fold", "experiment", "model", "workload", "tp", "moe", "champion"]
    answers = list(dict.fromkeys(name for row in result["rows"] for name in row["known"]))
    heads = ["form_chosen_with_hindsight", "call", *about, *(f"{name}_error_pct" for name in FIGURES)]
    heads += [f"known_{name.replace(' ', '_')}_e2e_error_pct" for name in answers]
    heads += ["against", "against_e2e_error_pct"]
    try:
        with path.open("w", newline="") as file:
            out = csv.writer(file, lineterminator="\n")
            out.writerow(heads)
            for row in result["rows"]:
                given = row.get("against", {"label": "", "e2e": None})
                theirs = [row["known"].get(name, {"e2e": None})["e2e"] for name in answers]
                label = [result["form_chosen_with_hindsight"], result["call"]]
                ours = [row[x] for x in (*about, *FIGURES)]
                out.writerow([*label, *ours, *theirs, given["label"], given["e2e"]])
    except OSError as e:
        raise InputError(f"{path}: cannot be written ({e.strerror}): choose another --csv") from None


def _short(name: str) -> str:
    return name.rsplit("/", 1)[-1]


def _range(pair: tuple[float, float] | None) -> str:
    return f"{pair[0]:.1f} to {pair[1]:.1f}" if pair else "-"
