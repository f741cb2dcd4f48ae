"""The tables of a validation."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from evolve.report.run import bias_label, new_table, number, passes
from evolve.study.held_out import LATER, STATISTICS


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


def _short(name: str) -> str:
    return name.rsplit("/", 1)[-1]


def _range(pair: tuple[float, float] | None) -> str:
    return f"{pair[0]:.1f} to {pair[1]:.1f}" if pair else "-"
