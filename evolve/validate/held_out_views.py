"""A validation, printed as tables and a few sentences."""

from __future__ import annotations

from evaluator.intervals import STATISTICS
from evaluator.score import MEANS
from evolve import __version__
from evolve.output.printing import prose, show
from evolve.output.table import Row, Table, bias_label, number, passes, section
from evolve.output.terminal import command
from evolve.output.terms import legend
from evolve.run.validations import OPTIMISTIC, RECORDED
from evolve.validate.costs import spent_notes, spent_table
from evolve.validate.held_out import LATER, FoldResult
from evolve.validate.ranks import BEST, Ranking
from evolve.validate.validation import Validation
from simulator.language.measure import constants, operations
from simulator.language.parse import parse

HELD = {
    "models": "leave one model out",
    "workloads": "leave one workload out",
    "tp": "leave one TP degree out",
    "architectures": "leave dense models or mixtures of experts out",
    "hardware": "leave one GPU type out",
    "files": "leave one experiments file out",
    "stages": "last load stage held out",
}
VALIDATION_LEGEND = """\
Errors in percent, (predicted - observed)/observed, mean of arrival seeds 1 to 3; later: of the stages after the first,
where cold starts are over (average of their figures). Invariants: INV-M-1 to 5, the gates. over: held-out
experiments; 95 %: bootstrap interval of the mean
absolute E2E error, experiments or whole models resampled; median: of the absolute E2E errors. against: the known answer
with the lowest mean among those fitted in the same folds that predict every held-out experiment, or --against
PROGRAM; p: Wilcoxon signed-rank test of paired absolute E2E errors, two-sided, experiments taken as independent.
Seed programs, fields and bounds are the same in every fold: their author had seen some of these measurements.
Kendall's tau is 1 for runs in the same order; program champion: those of the folds. Spearman's correlation is 0 where
merit selects by chance. Intervals: widths in percent of the prediction; inside, outside: of the ranges that the fold
had fitted; saturated: never fitted runs in which a queue grows; all in docs/validation.md."""


def print_validation(validation: Validation) -> None:
    """Print the errors of each kind of fold, their summaries, and how often held-out figures were looked at."""
    how = _how(validation)
    terms = "held out", "limits", "bias", "known answer", "joint error", "worst 3", "transfer error", "front", "merit"
    legend(*terms, also=VALIDATION_LEGEND)
    for kind in validation.summary:
        show(rows_table(validation, kind, f"{HELD[kind]}: errors of held-out experiments; {how}"))
        show(folds_table(validation, kind, f"{HELD[kind]}: folds; {how}"))
    show(breakdown_table(validation, f"Mean absolute held-out errors by group; {how}"))
    title = "Mean absolute held-out E2E error of known answers fitted in the same folds"
    show(known_table(validation, title))
    show(fields_table(validation, f"How many programs read each field; folds: {how}"))
    if validation.never_fitted:
        show(never_table(validation, "Never fitted: predicted with the run's champion"))
    show(summary_table(validation, f"Mean absolute held-out errors in percent; {how}"))
    for unit in dict.fromkeys(r.unit for r in validation.ranking if r.count > 1):
        title = f"Kendall's tau of held-out {unit} by predicted and observed figures (inverted pairs)"
        show(ranking_table(validation, unit, title))
    if validation.selection:
        title = f"Spearman's correlation of merit and held-out joint error over up to {BEST} programs of a fold"
        show(selection_table(validation, title))
    if any(validation.intervals.values()):
        show(intervals_table(validation, "Prediction intervals of held-out runs, each by the residuals of the others"))
    lines = [f"No {kind} fold: {why}." for kind, why in validation.skipped.items()]
    if validation.costs:
        show(spent_table(validation.costs))
        again = ("validate", validation.run, "--ask-models")
        lines += spent_notes(validation.costs, f"{validation.run}/validate/ledger.csv", command(*again))
    lines.append(call_note(validation))
    lines += [f"CHANGED since the first validate: {change}." for change in validation.changed]
    lines += ["", f"Run: {validation.run}   (seed {validation.seed}, engine {__version__}, data {validation.data})"]
    prose("\n".join(lines))


def selection_table(validation: Validation, title: str) -> Table:
    """Whether the merit selects what predicts best, by kind of fold."""
    rows = [
        [kind, str(sum(r is not None for r in s.correlations.values())), number(s.mean, 2), _range(s.interval_95, 2)]
        for kind, s in validation.selection.items()
    ]
    return Table.of(title, "held out|>folds|>mean|>95 %", rows)


def ranking_table(validation: Validation, unit: str, title: str) -> Table:
    """How well our programs and each known answer order the held-out runs or load stages (`unit`), by kind of fold and
    figure."""
    found = {(r.program, r.kind, r.figure): r for r in validation.ranking if r.unit == unit and r.count > 1}
    columns = dict.fromkeys((kind, figure) for _, kind, figure in found)
    rows = [
        [program, *(_tau(found.get((program, *column))) for column in columns)]
        for program in dict.fromkeys(program for program, _, _ in found)
    ]
    heads = [f">{kind}: E2E {'p99' if figure.endswith('p99') else 'mean'}" for kind, figure in columns]
    return Table.of(title, "|".join(["program", *heads]), rows)


def _tau(ranking: Ranking | None) -> str:
    return "-" if ranking is None or ranking.tau is None else f"{ranking.tau:.2f} ({len(ranking.inversions)})"


def intervals_table(validation: Validation, title: str) -> Table:
    """How often the intervals of each figure cover what was observed, and how wide they are."""
    heads = "run|figure|>over|>80 % cover|>95 % cover|>width of 80 %|>width of 95 %"
    rows = [
        [run, name.replace("_", " ").upper().replace("P9", "p9"), str(c.runs),
         *(f"{100.0 * x:.0f} %" for x in (c.covered_80, c.covered_95)),
         *(f"{x:.0f} %" for x in (c.width_80_pct, c.width_95_pct))]
        for run, of_figures in validation.intervals.items()
        for name, c in of_figures.items()
    ]  # fmt: skip
    return Table.of(title, heads, rows)


def call_note(validation: Validation) -> str:
    """The number of this validate call, and what that means for its figures."""
    note = f"Validate call number {validation.call} on this run"
    return note + (f": {OPTIMISTIC}." if validation.call > 1 else ".")


def _how(validation: Validation) -> str:
    """How the programs of the folds were found, in words."""
    if validation.budget is None:
        return validation.source
    upto = "up to " * (validation.forms == RECORDED)
    return f"{validation.source}, {upto}{validation.budget} candidates each"


def rows_table(validation: Validation, kind: str, title: str) -> Table:
    """A row for each held-out experiment, in a section per fold."""
    later = kind != "stages"
    against = validation.summary[kind].against
    others = ["e2e_p90", "e2e_p99", "ttft_p90", "ttft_p99"]
    others += [name + LATER for name in ("e2e", "e2e_p99", "ttft", "ttft_p99")] * later
    heads = ["experiment", *map(_head, MEANS), "limits", *map(_head, others)]
    heads += [f">E2E of {against.label}"] if against else []
    folds: dict[str, list[Row]] = {}
    for row in validation.rows:
        if row.kind == kind:
            cells = [row.experiment, *(number(row.errors[x]) for x in MEANS), passes(row.errors)]
            cells += [number(row.errors[name]) for name in others]
            if against:
                theirs = row.against.errors if row.against else row.known[against.label]
                cells.append(number(theirs["e2e"]))
            folds.setdefault(row.fold, []).append(Row(tuple(cells)))
    return Table.of(title, "|".join(heads), [row for rows in folds.values() for row in section(rows)])


def _head(figure: str) -> str:
    """The head of the column of one of FIGURES: `>later TTFT p99` of `ttft_p99_later`."""
    latency, *quantile = figure.removesuffix(LATER).split("_")
    return f">{'later ' * figure.endswith(LATER)}{' '.join([latency.upper(), *quantile])}"


def folds_table(validation: Validation, kind: str, title: str) -> Table:
    """A row for each fold: its champion, its mean errors, and whether the invariants hold."""
    heads = "held out|>over|champion|>operations|>constants|>E2E fitted|>E2E held out|>bias|>TTFT|>ITL|invariants"
    rows = [_fold_cells(result) for result in validation.folds if result.fold.kind == kind]
    errors = [{"e2e": row.errors["e2e"]} for row in validation.rows if row.kind == kind]
    return Table.of(title, heads, rows, caption=bias_label(errors) + _apart(validation, kind))


def _apart(validation: Validation, kind: str) -> str:
    """`; of single folds LOW to HIGH %`: biases of several folds may cancel. "" if no two have one."""
    biases = [b for r in validation.folds if r.fold.kind == kind and (b := r.bias_pct["e2e"]) is not None]
    return f"; of single folds {min(biases):+.2f} to {max(biases):+.2f} %" if len(biases) > 1 else ""


def _fold_cells(result: FoldResult) -> list[str]:
    mean, winner = result.mean_abs_error_pct, result.winner
    champion = ["none: nothing could be scored", "-", "-", "-"]
    if winner:
        program = parse(winner.text)
        champion = [winner.key, str(operations(program)), str(constants(program))]
        champion.append(number(winner.trained["e2e"], signed=False))
    figures = [number(mean["e2e"], signed=False), number(result.bias_pct["e2e"])]
    figures += [number(mean[x], signed=False) for x in ("ttft", "itl")]
    broken = [gate.name for gate in result.gates if not gate.passes]
    invariants = "-" if not winner else "BROKEN: " + ", ".join(broken) if broken else "hold"
    return [_short(result.fold.name), str(len(result.fold.held)), *champion, *figures, invariants]


def summary_table(validation: Validation, title: str) -> Table:
    """A row for each kind of fold, and one for the run's champion in sample."""
    others = [name for name in STATISTICS if name != "e2e"]
    heads = ["held out", ">over", ">E2E", ">95 %", ">by model", ">median", ">bias", ">worst", *map(_head, others)]
    heads += ["against", ">E2E", ">better in", ">p"]
    rows = []
    for kind, s in validation.summary.items():
        over = str(s.experiments)
        if s.without_prediction:
            over += f" ({s.without_prediction} without prediction)"
        cells = [kind, over, number(s.mean_abs_error_pct["e2e"], 2, signed=False), _range(s.interval_95["e2e"])]
        cells += [_range(s.interval_95_by_model["e2e"]), number(s.median_abs_error_pct["e2e"], 2, signed=False)]
        cells += [number(s.bias_pct["e2e"]), number(s.worst_e2e_pct)]
        cells += [number(s.mean_abs_error_pct[x], 1, signed=False) for x in others]
        test = s.against.test if s.against else None
        cells += [s.against.label, number(s.against.e2e, 2, signed=False)] if s.against else ["-", "-"]
        cells.append(f"{test.better} of {test.pairs}" if test else "-")
        cells.append(f"{test.p:.2g}" if test and test.p is not None else "-")
        rows.append(Row(tuple(cells), style="bold"))
    in_sample = [number(validation.in_sample[x], 2 if x == "e2e" else 1, signed=False) for x in MEANS]
    cells = ["nothing: run's champion, in sample", "", in_sample[0], *[""] * 5, *in_sample[1:]]
    return Table.of(title, "|".join(heads), [*rows, Row(tuple(cells), style="dim")])


def breakdown_table(validation: Validation, title: str) -> Table:
    """A row for each architecture, workload and TP degree, in a section per kind of fold."""
    rows = []
    for kind, groups in validation.breakdown.items():
        of_kind = []
        for g in groups:
            means = [number(g.mean_abs_error_pct[x], 2, signed=False) for x in MEANS]
            of_kind.append(Row((kind, g.by, g.group, str(g.experiments), *means, number(g.bias_pct["e2e"]))))
        rows += section(of_kind)
    return Table.of(title, "held out|by|group|>over|>E2E|>TTFT|>ITL|>bias E2E", rows)


def known_table(validation: Validation, title: str) -> Table:
    """The mean absolute held-out E2E error of our programs and of each known answer, by kind of fold."""
    names = list(dict.fromkeys(answer.name for s in validation.summary.values() for answer in s.known))
    rows = []
    for kind, s in validation.summary.items():
        answers = {answer.name: answer for answer in s.known}
        cells = [kind, number(s.mean_abs_error_pct["e2e"], 2, signed=False)]
        for name in names:
            answer = answers.get(name)
            part = f" (of {answer.over})" if answer and answer.over < s.experiments else ""
            cells.append(number(answer.e2e, 2, signed=False) + part if answer else "-")
        rows.append(cells)
    heads = "|".join(["held out", ">ours", *(f">{name}" for name in names)])
    return Table.of(title + " (of n: predicts only so many)", heads, rows)


def fields_table(validation: Validation, title: str) -> Table:
    """How many programs of the run's Pareto front, and how many of the folds' programs, read each field."""
    front, folds = validation.front_fields, validation.fold_fields
    heads = ["field", f">Pareto front of the run ({front.programs})"]
    heads += [f">{kind} folds ({counts.programs})" for kind, counts in folds.items()]
    names = dict.fromkeys([*front.fields, *(name for counts in folds.values() for name in counts.fields)])
    rows = [[name, *(str(counts.fields.get(name, 0)) for counts in (front, *folds.values()))] for name in names]
    return Table.of(title, "|".join(heads), rows)


def never_table(validation: Validation, title: str) -> Table:
    """A row for each experiment that the run never fitted, with the errors of its champion."""
    rows = []
    for row in validation.never_fitted:
        counts = ["-" if n is None else f"{n:,}" for n in (*row.completed, *row.failed)]
        rows.append([row.experiment, row.quality, *(number(row.errors[x]) for x in MEANS), *counts])
    heads = "experiment|quality|>E2E|>TTFT|>ITL|>completed|>observed|>failed|>observed"
    return Table.of(title, heads, rows)


def _short(name: str) -> str:
    return name.rsplit("/", 1)[-1]


def _range(pair: tuple[float, float] | None, digits: int = 1) -> str:
    return f"{pair[0]:.{digits}f} to {pair[1]:.{digits}f}" if pair else "-"
