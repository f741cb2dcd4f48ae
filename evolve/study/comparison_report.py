"""A comparison of engines for people: a table, a verdict for each, and what the figures are not."""

from __future__ import annotations

from typing import Any

from evolve.report.run import console, new_table, number, show
from evolve.study.engines.engines import OURS
from evolve.study.spread import spelled

LEGEND = """\
joint: the lowest joint error so far, percent; worst 3: the lowest worst 3 so far (not always of the same program);
merit: the lowest mean of joint and transfer error of a program that does not contradict datasheets;
median [quartiles] over {seeds} at 25, 50 and 100 percent of {budget} candidates. champion: of the rule.
CPU s: of all assessments of one search; rejected: share of the proposals that were refused, duplicates apart.
In sample: errors on the {runs} fitted experiments, of programs chosen with hindsight. Nothing here is held out; the
transfer error within merit is that of constants fitted without a model, of forms that were chosen with it."""


def print_comparison(report: dict[str, Any]) -> None:
    """The table of engines, then the verdicts."""
    out = console()
    for figure, title in (("joint", "Joint error"), ("worst3", "Worst 3"), ("merit", "Merit of a sound program")):
        table = new_table(f"{title} in percent by budget used", "engine|>25 %|>50 %|>100 %")
        for name, engine in report["engines"].items():
            cells = [spelled(engine[figure][share]) for share in ("25", "50", "100")]
            table.add_row(name, *cells, style="bold" if name == OURS else None)
        show(out, table)
    heads = "engine|>champion joint|>E2E|>TTFT|>ITL|>candidates|>CPU s|>rejected|>duplicates|what"
    table = new_table("Champions and costs, medians of a search", heads)
    for name, engine in report["engines"].items():
        figures = [number(engine["champion"][x]["median"], 2, signed=False) for x in ("joint", "e2e", "ttft", "itl")]
        counts = [f"{sum(engine['candidates']) / len(engine['candidates']):.0f}", f"{engine['cpu_s']['median']:.1f}"]
        shares = [f"{100 * engine[x]:.0f} %" for x in ("rejected_share", "duplicate_share")]
        table.add_row(name, *figures, *counts, *shares, engine["what"], style="bold" if name == OURS else None)
    show(out, table)
    for found in report["verdicts"]:
        out.print(found["text"], markup=False, soft_wrap=True)
    seeds = "seed " if len(report["seeds"]) == 1 else "seeds "
    seeds += ", ".join(map(str, report["seeds"]))
    legend = LEGEND.format(seeds=seeds, budget=report["budget"], runs=len(report["fitted"]))
    out.print(f"\n{legend}\n\nComparison: {report['path']} (engine {report['engine']}, data {report['data']}); "
              f"learning curves: {report['path']}/curves.csv", markup=False, soft_wrap=True)  # fmt: skip
