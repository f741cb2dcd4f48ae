"""Comparisons of engines, printed as tables and a few sentences."""

from __future__ import annotations

from evolve import __version__
from evolve.output.columns import figures, words, wrapped
from evolve.output.printing import prose, show
from evolve.output.table import Row, Table, number
from evolve.output.terms import legend
from evolve.validate.costs import spent_notes, spent_table
from research.comparison import ComparisonReport, again
from research.engines.engines import OURS

COMPARISON_LEGEND = """\
Each figure is the lowest so far (not always of the same program); selection score: of consistent programs;
median [quartiles] over {seeds} at 25, 50 and 100 percent of {budget} candidates. champion: by the rule.
CPU s: of all work of one search (of assessments alone, if it asks language models);
rejected: share of the proposals, without duplicates, that were refused.
In sample: errors on the {runs} fitted experiments, of programs chosen with hindsight. Nothing here is held out; the
leave-group-out error in the selection score holds out constants only: forms were chosen with all groups."""


def print_comparison(report: ComparisonReport) -> None:
    """Print the figures of the engines, their costs, and the verdicts."""
    comparison = report.comparison
    seeds = "seed " if comparison.seeds == 1 else "seeds "
    seeds += ", ".join(map(str, comparison.search_seeds))
    more = COMPARISON_LEGEND.format(seeds=seeds, budget=comparison.config.budget, runs=len(report.fitted))
    legend("mean error", "worst-3 E2E", "group-out", "selection score", "consistent", "in sample", also=more)
    for figure, title in (
        ("mean_error", "Mean error"),
        ("worst3", "Worst-3 E2E"),
        ("selection_score", "Selection score of a consistent program"),
    ):
        rows = [
            Row((name, *(str(engine.figures[figure][share]) for share in ("25", "50", "100"))), _style(name))
            for name, engine in report.engines.items()
        ]
        show(
            Table.of(
                f"{title} in percent by budget used", [words("engine"), figures("", "25 %", "50 %", "100 %")], rows
            )
        )
    show(costs_table(report))
    for verdict in report.verdicts:
        prose(verdict.text)
    if report.costs:
        show(spent_table(report.costs))
        path = comparison.path
        prose("\n".join(spent_notes(report.costs, f"{path}/ledger.csv", again(path))))
    about = f"{comparison.path} (engine {__version__}, data {report.data})"
    prose(f"\nComparison: {about}; learning curves: {comparison.path}/curves.csv")


def costs_table(report: ComparisonReport) -> Table:
    """A row for the champions and costs of each engine."""
    columns = [
        words("engine"),
        figures(".2f", "champion mean error", "E2E", "TTFT", "ITL"),
        figures("", "candidates", "CPU s", "rejected", "duplicates"),
        wrapped("what"),
    ]
    rows = []
    for name, engine in report.engines.items():
        errors = [engine.champion[x].median for x in ("mean_error", "e2e", "ttft", "itl")]
        counts = [f"{sum(engine.candidates) / len(engine.candidates):.0f}", number(engine.cpu_s.median, signed=False)]
        shares = [f"{100 * share:.0f} %" for share in (engine.rejected_share, engine.duplicate_share)]
        rows.append(Row((name, *errors, *counts, *shares, engine.what), _style(name)))
    return Table.of("Champions and costs, medians of a search", columns, rows)


def _style(engine: str) -> str:
    return "bold" if engine == OURS else ""
