"""What a run has to say, for people: the champion, errors per experiment beside known answers, the Pareto front."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

PASS_PCT = {"e2e": 10.0, "ttft": 15.0, "itl": 15.0}  # per experiment: within these, an experiment passes


# column heads of the known answers in the table per experiment; the table of means gives them in full
SHORT = {
    "naive mean": "naive", "blackbox": "bbox", "blackbox per model": "bbox/ model",
    "blackbox per experiment": "bbox/ exp", "roofline": "roof- line", "overhead floor": "floor",
    "blackbox per model (published)": "publ. bbox", "regime ensemble with overhead floor (round 2)": "publ. regime",
    "direct calibration per model (round 4, in sample)": "publ. calib.", "metadata power law (round 5)": "publ. meta",
}  # fmt: skip


def console() -> Console:
    """Standard output, wide enough for the tables where it is not a terminal."""
    import sys

    return Console(width=None if sys.stdout.isatty() else 190, highlight=False, soft_wrap=False)


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
        out.print("no candidate could be scored: see the journal for the reasons")
        return
    out.print(f"\n[bold]Champion[/bold] (proposal {best['id']}, {best['operations']} operations, "
              f"{best['constants']} constants, key {best['key']})\n")  # fmt: skip
    out.print(best["text"], markup=False, soft_wrap=True)
    out.print(errors_table(report))
    out.print(means_table(report))
    print_gain(out, report)
    out.print(front_table(report["front"], "Pareto front: worst three E2E, joint error, complexity"))
    counts = ", ".join(f"{report[name]} {name}" for name in ("candidates", "proposals", "accepted"))
    made = ", ".join(f"{name} {report[name]}" for name in ("seed", "engine", "data"))
    out.print(f"\nRun: {report['run']}   ({counts}, {made})")
    out.print(f"Next: evolve archive {report['run']} | evolve show {report['run']}:{best['id']} | "
              f"evolve emit {report['run']}:{best['id']} --target blis-4 --out DIR")  # fmt: skip


def errors_table(report: dict[str, Any]) -> Table:
    """A row per experiment: signed errors of the means, pass or fail, and the known answers' E2E."""
    fitted = set(report["fitted"])
    title = "Errors of the means in percent, (predicted - observed)/observed; limits 10 E2E, 15 TTFT, 15 ITL; "
    title += "right of them what the known answers reach in E2E (published ones unsigned)"
    table = Table(title=title, title_justify="left")
    table.add_column("experiment", no_wrap=True)
    table.add_column("", no_wrap=True)
    for name in ("E2E", "TTFT", "ITL"):
        table.add_column(name, justify="right", style="bold")
    table.add_column("limits", no_wrap=True)
    answers = {**report["known"], **report["published"]}
    for name in answers:
        table.add_column(SHORT.get(name, name), justify="right", max_width=7)
    lookup = {name: {r["experiment"]: r for r in rows} for name, rows in answers.items()}
    for row in report["errors"]:
        name = row["experiment"]
        mark = (
            "fitted"
            if name in fitted
            else ("predicted" if report["quality"][name] == "clean" else report["quality"][name])
        )
        cells = [name, mark, *(number(row[x]) for x in ("e2e", "ttft", "itl")), passes(row)]
        for answer in answers:
            known = lookup[answer].get(name)
            cells.append(number(known["e2e"], signed=answer in report["known"]) if known else "-")
        table.add_row(*cells, style=None if name in fitted else "dim")
    return table


def means_table(report: dict[str, Any]) -> Table:
    """Mean absolute errors over the fitted experiments, ours beside the known answers."""
    table = Table(
        title=f"Mean absolute error in percent over the {len(report['fitted'])} fitted experiments",
        title_justify="left",
    )
    for name, justify in (
        ("model", "left"),
        ("E2E", "right"),
        ("TTFT", "right"),
        ("ITL", "right"),
        ("over", "right"),
        ("constants", "left"),
    ):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    fitted = set(report["fitted"])
    ours = [r for r in report["errors"] if r["experiment"] in fitted]
    table.add_row("champion", *mean_cells(ours), "fitted here, one set for all", style="bold")
    notes = {
        "blackbox per model": "fitted here, one set per model",
        "blackbox per experiment": "fitted here, one set per experiment",
        "roofline": "none: datasheet",
    }
    for name, rows in report["known"].items():
        chosen = [r for r in rows if r["experiment"] in fitted]
        table.add_row(name, *mean_cells(chosen), notes.get(name, "fitted here, one set for all"))
    for name, rows in report["published"].items():
        chosen = [r for r in rows if r["experiment"] in fitted]
        if chosen:
            table.add_row(name, *mean_cells(chosen), "published; ITL against the halved harness ITL")
    for label, quality in (("predicted, clean", "clean"), ("predicted, overloaded", "overloaded")):
        rows = [
            r
            for r in report["errors"]
            if r["experiment"] not in fitted and report["quality"][r["experiment"]] == quality
        ]
        if rows:
            note = "not fitted" if quality == "clean" else "not fitted; client timeouts are not replayed"
            table.add_row(f"champion on {label}", *mean_cells(rows), note, style="dim")
    return table


def mean_cells(rows: list[dict[str, Any]]) -> list[str]:
    cells = []
    for name in ("e2e", "ttft", "itl"):
        values = [abs(r[name]) for r in rows if r[name] is not None]
        cells.append(number(sum(values) / len(values), 2, signed=False) if values else "-")
    return [*cells, str(len(rows))]


def print_gain(out: Console, report: dict[str, Any]) -> None:
    """What the best seed reached by fitting alone, and what the search added."""
    seed, best = report["best_seed"], report["champion"]
    if seed is None:
        out.print("No seed could be scored.")
        return
    gain = 100.0 * (1.0 - best["joint"] / seed["joint"])
    out.print(
        f"Best seed ({seed['operator'].removeprefix('seed:')}, fitted): joint error {seed['joint']:.2f} %, "
        f"worst three E2E {seed['worst3']:.2f} %.\n"
        f"The search's gain over it: joint {best['joint']:.2f} % ({gain:.0f} % lower), "
        f"worst three E2E {best['worst3']:.2f} %.\n"
    )


def front_table(elites: list[dict[str, Any]], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    for name in ("id", "worst 3 E2E", "joint", "E2E", "TTFT", "ITL", "operations", "constants", "features", "from"):
        table.add_column(name, justify="left" if name == "from" else "right")
    for e in elites:
        figures = [number(e[x], 2, signed=False) for x in ("worst3", "joint", "e2e", "ttft", "itl")]
        counts = [str(e[x]) for x in ("operations", "constants", "features")]
        table.add_row(str(e["id"]), *figures, *counts, e["operator"])
    return table


def print_pilot(report: dict[str, Any]) -> None:
    """Whether a full run is worth it: the champion against the blackbox form fitted to the same experiments."""
    fitted = set(report["fitted"])
    ours = [abs(r["e2e"]) for r in report["errors"] if r["experiment"] in fitted and r["e2e"] is not None]
    theirs = [abs(r["e2e"]) for r in report["known"]["blackbox"] if r["experiment"] in fitted and r["e2e"] is not None]
    if not ours:
        console().print("\nPilot: no verdict, since no E2E was observed.")
        return
    mine, blackbox = sum(ours) / len(ours), sum(theirs) / len(theirs)
    verdict = "escalate: a full run is worth it" if mine < blackbox else "stop: no better than the blackbox form"
    console().print(f"\nPilot: mean E2E error {mine:.2f} % against {blackbox:.2f} % of blackbox, "
                    f"both fitted on these {len(ours)} experiments -> {verdict}")  # fmt: skip
