"""A validation, printed as tables and a few sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evaluator.coverage import Coverage
from evaluator.intervals import Interval
from evaluator.score import MEANS
from evolve import __version__
from evolve.output.columns import figures, integers, words
from evolve.output.printing import more, prose, show
from evolve.output.table import Table, bias_label, number, passes, row, section
from evolve.output.terminal import command
from evolve.output.terms import legend
from evolve.run.validations import OPTIMISTIC, RECORDED
from evolve.validate.costs import spent_notes, spent_table
from evolve.validate.folds import last_part
from evolve.validate.held_out import LATER, FoldResult
from evolve.validate.ranks import BEST, Ranking
from evolve.validate.validation import Validation
from simulator.language.measure import constants, operations

HELD = {
    "cells": "leave one model on one GPU in one precision out",
    "models": "leave one model out",
    "workloads": "leave one workload out",
    "tp": "leave one TP degree out",
    "architectures": "leave dense models or mixtures of experts out",
    "hardware": "leave one GPU type out",
    "precisions": "leave one type of weights out",
    "parallelism": "leave one kind of parallelism out",
    "versions": "leave one engine version out",
    "files": "leave one experiments file out",
    "stages": "last load stage held out",
}
PERCENTILES = ("e2e_p90", "e2e_p99", "ttft_p90", "ttft_p99")
COVERAGE = (
    words("held-out runs", "figure"),
    figures("d", "runs", "folds"),
    figures(".1f", "effective"),
    figures("", "80 % cover", "95 % cover", "widths, %"),
    words("verdict"),
)
COVERAGE_LEGEND = (
    "Coverage: each held-out run is judged by the residuals of other folds and other runs. Runs of a fold err "
    "together, so that all say as much as `effective` independent ones. In brackets: the 95 % binomial interval, "
    "of so many runs. verdict: whether the coverage holds, or what a binomial test at 5 % rejects it as; in "
    "brackets, as if all runs were independent. inside, outside: of the ranges of the fold's fitted runs; "
    "saturated: never fitted runs in which a queue grows; closed load: of a fixed concurrency. widths: of the 80 "
    "and 95 % intervals, in percent of the prediction (docs/search.md)."
)
VALIDATION_LEGEND = f"""\
Errors in percent, (predicted - observed)/observed, mean of arrival seeds 1 to 3; later: of the stages after the first,
where cold starts are over (average of their figures). Invariants: INV-M-1 to 5, the gates. over: held-out
experiments; 95 %: bootstrap interval of the mean absolute E2E error, experiments or whole models resampled; median: of
the absolute E2E errors. against: --against PROGRAM, or else the baseline fitted in the same folds with the lowest mean;
it must predict every held-out experiment; p: Wilcoxon signed-rank test of paired absolute E2E errors, two-sided,
experiments taken as independent.
Seed programs, fields and bounds are the same in every fold: their author had seen some of these measurements.
Kendall's tau is 1 for runs in the same order; program champion: those of the folds. Spearman's correlation is 0 where
the selection score selects by chance.
{COVERAGE_LEGEND}"""


def print_validation(validation: Validation, explain: bool = False, verbose: bool = False) -> None:
    """Print the errors by kind of fold, those of seed programs, and how often held-out figures were looked at.

    verbose: all tables.
    """
    how, left = _how(validation), list[str]()
    show(summary_table(validation, f"Mean absolute held-out errors in percent; {how}"))
    show(seeds_table(validation, f"Held-out mean error against fitted seed programs, same folds; {how}"))
    for name, tables in _further(validation, how).items():
        if not verbose:
            left.append(name)
        for table in tables if verbose else ():
            show(table)
    if explain:
        terms = "held out", "limits", "bias", "baseline", "mean error", "worst-3 E2E", "group-out", "Pareto front"
        legend(*terms, "selection score", also=VALIDATION_LEGEND)
    lines = [f"No {kind} fold: {why}." for kind, why in validation.skipped.items()]
    if validation.costs:
        show(spent_table(validation.costs))
        again = ("validate", validation.run, "--ask-models")
        lines += spent_notes(validation.costs, f"{validation.run}/validate/ledger.csv", command(*again))
    lines.append(call_note(validation))
    lines += [f"CHANGED since the first validate: {change}." for change in validation.changed]
    lines += ["", f"Run: {validation.run}   (seed {validation.seed}, engine {__version__}, data {validation.data})"]
    prose("\n".join(lines))
    more(left, explain)


def _further(validation: Validation, how: str) -> dict[str, list[Table]]:
    """The tables of -v, in order, by what they have."""
    by_kind = [
        (
            rows_table(validation, kind, f"{HELD[kind]}: errors of held-out experiments; {how}"),
            folds_table(validation, kind, f"{HELD[kind]}: folds; {how}"),
        )
        for kind in validation.summary
    ]
    order = "Kendall's tau of held-out {} by predicted and observed figures (inverted pairs)"
    units = dict.fromkeys(r.unit for r in validation.ranking if r.count > 1)
    ranked = [ranking_table(validation, unit, order.format(unit)) for unit in units]
    selected = f"Spearman's correlation of selection score and held-out mean error, up to {BEST} programs of a fold"
    covered = "Coverage of prediction intervals"
    tables = {
        "errors by run and fold": [table for pair in by_kind for table in pair],
        "groups": [breakdown_table(validation, f"Mean absolute held-out errors by group; {how}")],
        "baselines": [
            baseline_table(validation, "Mean absolute held-out E2E error of baselines fitted in the same folds")
        ],
        "fields": [fields_table(validation, f"Programs that read each field; folds: {how}")],
        "never fitted": [never_table(validation, "Never fitted: predicted with the run's champion")],
        "order": ranked,
        "selection score": [selection_table(validation, selected)],
        "intervals": [Table.of(covered, COVERAGE, coverage_rows(validation.intervals))],
    }
    filled = {name: [table for table in of_name if table.rows] for name, of_name in tables.items()}
    return {name: of_name for name, of_name in filled.items() if of_name}


def selection_table(validation: Validation, title: str) -> Table:
    """Whether the selection score selects what predicts best, by kind of fold."""
    rows = [
        [kind, sum(r is not None for r in s.correlations.values()), s.mean, _range(s.interval_95, 2)]
        for kind, s in validation.selection.items()
    ]
    columns = [words("held out"), figures("d", "folds"), figures("+.2f", "mean"), figures("", "95 %")]
    return Table.of(title, columns, rows)


def ranking_table(validation: Validation, unit: str, title: str) -> Table:
    """The order of held-out runs or load stages (`unit`) by each program, by kind of fold and figure."""
    found = {(r.program, r.kind, r.figure): r for r in validation.ranking if r.unit == unit and r.count > 1}
    columns = dict.fromkeys((kind, figure) for _, kind, figure in found)
    rows = [
        [program, *(_tau(found.get((program, *column))) for column in columns)]
        for program in dict.fromkeys(program for program, _, _ in found)
    ]
    heads = (f"{kind}: E2E {'p99' if figure.endswith('p99') else 'mean'}" for kind, figure in columns)
    return Table.of(title, [words("program"), figures("", *heads)], rows)


def _tau(ranking: Ranking | None) -> str:
    return "-" if ranking is None or ranking.tau is None else f"{ranking.tau:.2f} ({len(ranking.inversions)})"


def coverage_rows(intervals: Mapping[str, Mapping[str, Coverage]]) -> list[Sequence[object]]:
    """Rows of COVERAGE: how often the intervals of each figure cover what was observed, and how wide they are."""

    def share(covered: float, between: Interval) -> str:
        return f"{100 * covered:.0f} % ({100 * between[0]:.0f}-{100 * between[1]:.0f})"

    rows = list[Sequence[object]]()
    for name, of_figures in intervals.items():
        for figure, c in of_figures.items():
            covered = share(c.covered_80, c.between_80), share(c.covered_95, c.between_95)
            widths = f"{c.width_80_pct:.0f}, {c.width_95_pct:.0f}"
            rows.append([name, _latency(figure), c.runs, c.folds, c.effective_runs, *covered, widths, c.verdict])
    return [*rows, ["all", "others", *[None] * 6, "not calibrated"]] if rows else []


def call_note(validation: Validation) -> str:
    """The number of this validate call, and what that means for its figures."""
    note = f"Validate call number {validation.call} on this run"
    return note + (f": {OPTIMISTIC}." if validation.call > 1 else ".")


def _how(validation: Validation) -> str:
    if validation.budget is None:
        return validation.source
    upto = "up to " if validation.forms == RECORDED else ""
    return f"{validation.source}, {upto}{validation.budget} candidates each"


def rows_table(validation: Validation, kind: str, title: str) -> Table:
    """A row for each held-out experiment, in a section per fold."""
    against = validation.summary[kind].against
    others = list(PERCENTILES)
    if kind != "stages":
        others += [name + LATER for name in ("e2e", "e2e_p99", "ttft", "ttft_p99")]
    columns = [words("experiment"), figures("+.1f", *map(_latency, MEANS)), words("limits")]
    columns.append(figures("+.1f", *map(_latency, others), *([f"E2E of {against.label}"] if against else [])))
    folds: dict[str, list[list[object]]] = {}
    for r in validation.rows:
        if r.kind == kind:
            cells: list[object] = [r.experiment, *(r.errors[x] for x in MEANS), passes(r.errors)]
            cells += [r.errors[name] for name in others]
            if against:
                theirs = r.against.errors if r.against else r.baselines[against.label]
                cells.append(theirs["e2e"])
            folds.setdefault(r.fold, []).append(cells)
    return Table.of(title, columns, [row for rows in folds.values() for row in section(rows)])


def _latency(figure: str) -> str:
    """One of FIGURES for readers: `later TTFT p99` of `ttft_p99_later`."""
    latency, *quantile = figure.removesuffix(LATER).split("_")
    words = [latency.upper(), *quantile]
    return " ".join(["later", *words] if figure.endswith(LATER) else words)


def folds_table(validation: Validation, kind: str, title: str) -> Table:
    """A row for each fold: its champion, its mean errors, and whether the invariants hold."""
    columns = [words("held out"), figures("d", "over"), words("champion"), figures("d", "operations", "constants")]
    columns += [figures(".1f", "E2E fitted", "E2E held out"), figures("+.1f", "bias"), figures(".1f", "TTFT", "ITL")]
    columns.append(words("invariants"))
    rows = [_fold_cells(result) for result in validation.folds if result.fold.kind == kind]
    errors = [{"e2e": row.errors["e2e"]} for row in validation.rows if row.kind == kind]
    return Table.of(title, columns, rows, caption=bias_label(errors) + _apart(validation, kind))


def _apart(validation: Validation, kind: str) -> str:
    """`; of single folds LOW to HIGH %`: biases of several folds may cancel. "" if no two have one."""
    biases = [b for r in validation.folds if r.fold.kind == kind and (b := r.bias_pct["e2e"]) is not None]
    return f"; of single folds {min(biases):+.2f} to {max(biases):+.2f} %" if len(biases) > 1 else ""


def _fold_cells(result: FoldResult) -> list[object]:
    mean, winner = result.mean_abs_error_pct, result.winner
    champion: list[object] = ["none: nothing could be scored", None, None, None]
    if winner:
        program = winner.program
        champion = [winner.key, operations(program), constants(program), winner.trained["e2e"]]
    errors = mean["e2e"], result.bias_pct["e2e"], mean["ttft"], mean["itl"]
    broken = [gate.name for gate in result.gates if not gate.passes]
    invariants = "-" if not winner else "BROKEN: " + ", ".join(broken) if broken else "hold"
    return [last_part(result.fold.name), len(result.fold.held), *champion, *errors, invariants]


def summary_table(validation: Validation, title: str) -> Table:
    """A row for each kind of fold, and one for the run's champion in sample."""
    others = [*MEANS[1:], *PERCENTILES]
    columns = [words("held out"), figures("d", "over"), figures(".2f", "E2E"), figures("", "95 %", "by model")]
    columns += [figures(".2f", "median"), figures("+.1f", "bias", "worst"), figures(".1f", *map(_latency, others))]
    columns += [words("against"), figures(".2f", "E2E"), figures("", "better in"), figures(".2g", "p")]
    rows = []
    for kind, s in validation.summary.items():
        lacking = f"{s.experiments} ({s.without_prediction} without prediction)" if s.without_prediction else ""
        ranges = _range(s.interval_95["e2e"]), _range(s.interval_95_by_model["e2e"])
        median, bias = s.median_abs_error_pct["e2e"], s.bias_pct["e2e"]
        test = s.against.test if s.against else None
        against: list[object] = [None, None, None, None]
        if s.against:
            better = f"{test.better} of {test.pairs}" if test else None
            against = [s.against.label, s.against.e2e, better, test.p if test else None]
        e2e, *means = (s.mean_abs_error_pct[x] for x in ("e2e", *others))
        first = kind, lacking or s.experiments, e2e, *ranges, median, bias, s.worst_e2e_error_pct
        rows.append(row(*first, *means, *against, style="bold"))
    e2e, ttft, itl = (validation.in_sample[x] for x in MEANS)
    unknown = "", "", "", "", ""
    rows.append(row("nothing: run's champion, in sample", "", e2e, *unknown, ttft, itl, style="dim", short=True))
    return Table.of(title, columns, rows)


def seeds_table(validation: Validation, title: str) -> Table:
    """Our programs against each fitted seed program, paired by cell (model, GPU, type of weights)."""
    rows = [
        (
            kind,
            p.label,
            p.cells,
            p.ours_pct,
            p.theirs_pct,
            p.difference_pct,
            p.standard_error_pct,
            _range(p.interval_95, 2),
        )
        for kind, s in validation.summary.items()
        for p in s.paired
    ]
    columns = [words("held out", "against"), figures("d", "cells"), figures(".2f", "search", "seed")]
    columns += [figures("+.2f", "difference"), figures(".2f", "standard error"), figures("", "95 %")]
    return Table.of(title, columns, rows)


def breakdown_table(validation: Validation, title: str) -> Table:
    """A row for each architecture, workload and TP degree, in a section per kind of fold."""
    rows = []
    for kind, groups in validation.breakdown.items():
        rows += section(
            (kind, g.by, g.group, g.experiments, *(g.mean_abs_error_pct[x] for x in MEANS), g.bias_pct["e2e"])
            for g in groups
        )
    errors = *figures(".2f", "E2E", "TTFT", "ITL"), *figures("+.1f", "bias E2E")
    return Table.of(title, [words("held out", "by", "group"), figures("d", "over"), errors], rows)


def baseline_table(validation: Validation, title: str) -> Table:
    """The mean absolute held-out E2E error of our programs and of each baseline, by kind of fold."""
    names = list(dict.fromkeys(answer.name for s in validation.summary.values() for answer in s.baselines))
    rows = []
    for kind, s in validation.summary.items():
        answers = {answer.name: answer for answer in s.baselines}
        cells: list[object] = [kind, s.mean_abs_error_pct["e2e"]]
        for name in names:
            answer = answers.get(name)
            if answer and answer.over < s.experiments:
                cells.append(f"{number(answer.e2e, 2, signed=False)} (of {answer.over})")
            else:
                cells.append(answer and answer.e2e)
        rows.append(cells)
    heads = [words("held out"), figures(".2f", "ours", *names)]
    return Table.of(title + " (of n: predicts only so many)", heads, rows)


def fields_table(validation: Validation, title: str) -> Table:
    """How many programs of the run's Pareto front, and how many of the folds' programs, read each field."""
    front, folds = validation.front_fields, validation.fold_fields
    heads = [f"{kind} folds ({counts.programs})" for kind, counts in folds.items()]
    columns = [words("field"), figures("d", f"Pareto front of the run ({front.programs})", *heads)]
    names = dict.fromkeys([*front.fields, *(name for counts in folds.values() for name in counts.fields)])
    rows = [[name, *(counts.fields.get(name, 0) for counts in (front, *folds.values()))] for name in names]
    return Table.of(title, columns, rows)


def never_table(validation: Validation, title: str) -> Table:
    """A row for each experiment that the run never fitted, with the errors of its champion."""
    rows = []
    for r in validation.never_fitted:
        rows.append((r.experiment, r.quality, *(r.errors[x] for x in MEANS), *r.completed, *r.failed))
    columns = [words("experiment", "quality"), figures("+.1f", "E2E", "TTFT", "ITL")]
    columns.append(integers("completed", "observed", "failed", "observed"))
    return Table.of(title, columns, rows)


def _range(pair: tuple[float, float] | None, digits: int = 1) -> str:
    return f"{pair[0]:.{digits}f} to {pair[1]:.{digits}f}" if pair else "-"
