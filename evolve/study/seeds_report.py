"""Several runs of one search for people: each champion, the figures over all, and what the champions share."""

from __future__ import annotations

from typing import Any

from evolve.report.run import console, new_table, number, show

TITLES = {"joint": "joint", "worst3": "worst 3", "e2e": "E2E", "ttft": "TTFT", "itl": "ITL", "transfer": "transfer"}


def print_repeats(report: dict[str, Any]) -> None:
    """The best repeat's champion, a table of all, the fields they share; of a pilot, the verdict."""
    out = console()
    rows = [row for row in report["repeats"] if row["champion"]]
    if not rows:
        out.print(f"No repeat scored a candidate: see evolve resume {report['repeats'][0]['run']}", soft_wrap=True)
        return
    best = min(rows, key=lambda row: (row["joint"], row["seed"]))
    counts = f"proposal {best['champion']['id']}, seed {best['seed']}"
    out.print(f"\n[bold]Champion of the best repeat[/bold] ({counts}; chosen with hindsight)\n", soft_wrap=True)
    out.print(best["champion"]["text"], markup=False, soft_wrap=True)
    show(out, _table(report))
    out.print(_shared(report["shared_fields"], len(rows)) + f"\nDistinct forms: {report['forms']} of {len(rows)}.\n",
              markup=False, soft_wrap=True)  # fmt: skip
    out.print(f"In sample: mean absolute errors of the champions on the {len(report['fitted'])} runs they were fitted "
              "on.", soft_wrap=True)  # fmt: skip
    out.print(f"Repeats: {report['run']} (engine {report['engine']}, data {report['data']})   "
              f"Next: evolve resume {best['run']} | evolve show {best['run']}:{best['champion']['id']}",
              soft_wrap=True)  # fmt: skip
    if report.get("pilot"):
        n = len(report["fitted"])
        out.print(f"\nPilot, fitted on these {n} experiments: {report['pilot']['text']}", markup=False, soft_wrap=True)


def _table(report: dict[str, Any]) -> Any:
    names = [name for name in TITLES if name in report["figures"]]
    heads = "|".join(["repeat", ">champion", ">operations", ">constants", *(f">{TITLES[n]}" for n in names)])
    table = new_table("Champions of the repeats, errors in percent", heads)
    for row in report["repeats"]:
        best = row["champion"] or {}
        counts = [str(best.get(name, "-")) for name in ("id", "operations", "constants")]
        table.add_row(f"seed {row['seed']}", *counts, *(number(row[n], 2, signed=False) for n in names))
    table.add_section()
    for label, value in (
        ("median", lambda f: number(f["median"], 2, signed=False)),
        ("quartiles", lambda f: "-" if f["low"] is None else f"{f['low']:.2f}-{f['high']:.2f}"),
        ("best", lambda f: number(f["best"], 2, signed=False)),
    ):
        table.add_row(label, "", "", "", *(value(report["figures"][n]) for n in names), style="bold")
    return table


def _shared(fields: dict[str, int], repeats: int) -> str:
    """`Fields in all 3 champions: ...`, then in fewer, a line each."""
    lines = []
    for count in range(repeats, 0, -1):
        names = [name for name, n in fields.items() if n == count]
        which = f"all {repeats}" if count == repeats else f"{count} of {repeats}"
        lines.append(f"Fields in {which} champions: {', '.join(names) or 'none'}")
    return "\n".join(lines)
