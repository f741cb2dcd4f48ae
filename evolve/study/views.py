"""Studies for people: repeats, comparisons of engines, and validations, as tables and a few sentences."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evolve import __version__
from evolve.report.table import Row, Table, bias_label, console, number, passes, section, show
from evolve.run.validations import OPTIMISTIC
from evolve.study import held_out
from evolve.study.comparison import ComparisonReport
from evolve.study.engines.engines import OURS
from evolve.study.held_out import FIGURES, LATER, STATISTICS, FoldResult
from evolve.study.seeds import RepeatsReport
from evolve.study.statistics import Spread
from evolve.study.validate import Validation
from simulator.errors import InputError
from simulator.language.measure import constants, operations
from simulator.language.parse import parse

TITLES = {"joint": "joint", "worst3": "worst 3", "e2e": "E2E", "ttft": "TTFT", "itl": "ITL", "transfer": "transfer"}
COMPARISON_LEGEND = """\
joint: the lowest joint error so far, percent; worst 3: the lowest worst 3 so far (not always of the same program);
merit: the lowest mean of joint and transfer error of a program that does not contradict datasheets;
median [quartiles] over {seeds} at 25, 50 and 100 percent of {budget} candidates. champion: of the rule.
CPU s: of all work of one search; rejected: share of the proposals that were refused, duplicates apart.
In sample: errors on the {runs} fitted experiments, of programs chosen with hindsight. Nothing here is held out; the
transfer error within merit is that of constants fitted without a model, of forms that were chosen with it."""
HELD = {
    "models": "leave one model out",
    "workloads": "leave one workload out",
    "tp": "leave one TP degree out",
    "files": "leave one experiments file out",
    "stages": "last load stage held out",
}
VALIDATION_LEGEND = """\
Errors in percent, (predicted - observed)/observed, mean of arrival seeds 1 to 3; later: of the stages after the first,
where cold starts are over (average of their figures). over: held-out experiments; 95 %: bootstrap interval of the mean
absolute E2E error, experiments or whole models resampled; median: of the absolute E2E errors. against: the known answer
with the lowest mean among those fitted in the same folds that predict every held-out experiment, or --against
PROGRAM; p: Wilcoxon signed-rank test of paired absolute E2E errors, two-sided, experiments taken as independent.
Seed programs, fields and bounds are the same in every fold: who wrote them had seen some of these measurements."""


def print_repeats(report: RepeatsReport) -> None:
    """The best repeat's champion, a table of all, the fields they share; of a pilot, the verdict."""
    out = console()
    scored = [repeat for repeat in report.repeats if repeat.champion]
    if not scored:
        out.print(
            f"No repeat scored a candidate: see evolve resume {report.repeats[0].run}", markup=False, soft_wrap=True
        )
        return
    best = min(scored, key=lambda repeat: (repeat.errors["joint"] or 0.0, repeat.seed))
    assert best.champion
    counts = f"proposal {best.champion.id}, seed {best.seed}"
    out.print(f"\n[bold]Champion of the best repeat[/bold] ({counts}; chosen with hindsight)\n", soft_wrap=True)
    out.print(best.champion.text, markup=False, soft_wrap=True)
    show(out, repeats_table(report))
    n = len(report.fitted)
    lines = [
        *_shared(report.shared_fields, len(scored)),
        f"Distinct forms: {report.forms} of {len(scored)}.",
        "",
        f"In sample: mean absolute errors of the champions on the {n} runs they were fitted on.",
        f"Repeats: {report.run} (engine {__version__}, data {report.data})   "
        f"Next: evolve resume {best.run} | evolve show {best.run}:{best.champion.id}",
    ]
    if report.verdict:
        lines += ["", f"Pilot, fitted on these {n} experiments: {report.verdict.text}"]
    out.print("\n".join(lines), markup=False, soft_wrap=True)


def repeats_table(report: RepeatsReport) -> Table:
    """A row for every repeat's champion, then median, quartiles and best."""
    names = [name for name in TITLES if name in report.figures]
    heads = "|".join(["repeat", ">champion", ">operations", ">constants", *(f">{TITLES[n]}" for n in names)])
    rows = []
    for repeat in report.repeats:
        best = repeat.champion
        counts = [str(best.id), str(best.operations), str(best.constants)] if best else ["-"] * 3
        errors = [number(repeat.errors[name], 2, signed=False) for name in names]
        rows.append(Row((f"seed {repeat.seed}", *counts, *errors)))
    over = [
        ("median", [number(report.figures[n].median, 2, signed=False) for n in names]),
        ("quartiles", [_quartiles(report.figures[n]) for n in names]),
        ("best", [f"{min(v for v in report.figures[n].values if v is not None):.2f}" for n in names]),
    ]
    rows = [*section(rows), *(Row((label, "", "", "", *cells), style="bold") for label, cells in over)]
    return Table.of("Champions of the repeats, errors in percent", heads, rows)


def _quartiles(figure: Spread) -> str:
    return "-" if figure.low is None else f"{figure.low:.2f}-{figure.high:.2f}"


def _shared(fields: Mapping[str, int], repeats: int) -> list[str]:
    """`Fields in all 3 champions: ...`, then in fewer, a line each."""
    lines = []
    for count in range(repeats, 0, -1):
        names = [name for name, n in fields.items() if n == count]
        which = f"all {repeats}" if count == repeats else f"{count} of {repeats}"
        lines.append(f"Fields in {which} champions: {', '.join(names) or 'none'}")
    return lines


def print_comparison(report: ComparisonReport) -> None:
    """The table of engines, then the verdicts."""
    out, comparison = console(), report.comparison
    for figure, title in (("joint", "Joint error"), ("worst3", "Worst 3"), ("merit", "Merit of a sound program")):
        rows = [
            Row((name, *(str(engine.figures[figure][share]) for share in ("25", "50", "100"))), _style(name))
            for name, engine in report.engines.items()
        ]
        show(out, Table.of(f"{title} in percent by budget used", "engine|>25 %|>50 %|>100 %", rows))
    show(out, costs_table(report))
    for verdict in report.verdicts:
        out.print(verdict.text, markup=False, soft_wrap=True)
    seeds = "seed " if comparison.seeds == 1 else "seeds "
    seeds += ", ".join(map(str, comparison.search_seeds))
    legend = COMPARISON_LEGEND.format(seeds=seeds, budget=comparison.config.budget, runs=len(report.fitted))
    out.print(f"\n{legend}\n\nComparison: {comparison.path} (engine {__version__}, data {report.data}); "
              f"learning curves: {comparison.path}/curves.csv", markup=False, soft_wrap=True)  # fmt: skip


def costs_table(report: ComparisonReport) -> Table:
    """Every engine's champions and costs."""
    heads = "engine|>champion joint|>E2E|>TTFT|>ITL|>candidates|>CPU s|>rejected|>duplicates|what"
    rows = []
    for name, engine in report.engines.items():
        figures = [number(engine.champion[x].median, 2, signed=False) for x in ("joint", "e2e", "ttft", "itl")]
        counts = [f"{sum(engine.candidates) / len(engine.candidates):.0f}", number(engine.cpu_s.median, signed=False)]
        shares = [f"{100 * share:.0f} %" for share in (engine.rejected_share, engine.duplicate_share)]
        rows.append(Row((name, *figures, *counts, *shares, engine.what), _style(name)))
    return Table.of("Champions and costs, medians of a search", heads, rows)


def _style(engine: str) -> str:
    return "bold" if engine == OURS else ""


def print_validation(validation: Validation) -> None:
    """Rows and folds of every kind, what they add up to, then how often held-out figures were looked at."""
    out = console()
    how = _how(validation)
    for kind in validation.summary:
        show(out, rows_table(validation, kind, f"{HELD[kind]}: errors of held-out experiments; {how}"))
        show(out, folds_table(validation, kind, f"{HELD[kind]}: folds; {how}"))
    show(out, breakdown_table(validation, f"Mean absolute held-out errors by group; {how}"))
    show(out, known_table(validation, "Mean absolute held-out E2E error of known answers fitted in the same folds"))
    show(out, fields_table(validation, f"How many programs read each field; folds: {how}"))
    if validation.never_fitted:
        show(out, never_table(validation, "Never fitted: predicted with the run's champion"))
    show(out, summary_table(validation, f"Mean absolute held-out errors in percent; {how}"))
    lines = [VALIDATION_LEGEND, ""]
    lines += [f"No {kind} fold: {why}." for kind, why in validation.skipped.items()]
    lines.append(call_note(validation))
    lines += [f"CHANGED since the first validate: {change}." for change in validation.changed]
    lines += ["", f"Run: {validation.run}   (seed {validation.seed}, engine {__version__}, data {validation.data})"]
    out.print("\n".join(lines), markup=False, soft_wrap=True)


def call_note(validation: Validation) -> str:
    """Which look at held-out figures this is."""
    note = f"Validate call number {validation.call} on this run"
    return note + (f": {OPTIMISTIC}." if validation.call > 1 else ".")


def _how(validation: Validation) -> str:
    if validation.hindsight:
        return "form chosen with hindsight, constants refitted in each fold"
    return f"form, constants and choice inside the fold, {validation.budget} candidates each"


def rows_table(validation: Validation, kind: str, title: str) -> Table:
    """A row for every held-out experiment, in sections by fold."""
    later = kind != "stages"
    against = validation.summary[kind].against
    heads = "experiment|>E2E|>TTFT|>ITL|limits|>E2E p90|>p99|>TTFT p90|>p99"
    heads += "|>later E2E|>p99|>TTFT|>p99" * later + (f"|>E2E of {against.label}" if against else "")
    names = ["e2e_p90", "e2e_p99", "ttft_p90", "ttft_p99"]
    names += [name + LATER for name in ("e2e", "e2e_p99", "ttft", "ttft_p99")] * later
    folds: dict[str, list[Row]] = {}
    for row in validation.rows:
        if row.kind == kind:
            cells = [row.experiment, *(number(row.errors[x]) for x in held_out.MEANS), passes(row.errors)]
            cells += [number(row.errors[name]) for name in names]
            if against:
                theirs = row.against.errors if row.against else row.known[against.label]
                cells.append(number(theirs["e2e"]))
            folds.setdefault(row.fold, []).append(Row(tuple(cells)))
    return Table.of(title, heads, [row for rows in folds.values() for row in section(rows)])


def folds_table(validation: Validation, kind: str, title: str) -> Table:
    """A row for every fold: its champion, its mean errors, and whether the invariants hold."""
    heads = "held out|>over|champion|>operations|>constants|>E2E fitted|>E2E held out|>bias|>TTFT|>ITL|invariants"
    rows = [_fold_cells(result) for result in validation.folds if result.fold.kind == kind]
    errors = [{"e2e": row.errors["e2e"]} for row in validation.rows if row.kind == kind]
    return Table.of(title, heads, rows, caption=bias_label(errors))


def _fold_cells(result: FoldResult) -> list[str]:
    mean, winner = result.mean_abs_error_pct, result.winner
    about = ["none: nothing could be scored", "-", "-", "-"]
    if winner:
        program = parse(winner.text)
        about = [winner.key, str(operations(program)), str(constants(program))]
        about.append(number(winner.trained["e2e"], signed=False))
    figures = [number(mean["e2e"], signed=False), number(result.bias_pct["e2e"])]
    figures += [number(mean[x], signed=False) for x in ("ttft", "itl")]
    broken = [gate.name for gate in result.gates if not gate.passes]
    invariants = "-" if not winner else "BROKEN: " + ", ".join(broken) if broken else "hold"
    return [_short(result.fold.name), str(len(result.fold.held)), *about, *figures, invariants]


def summary_table(validation: Validation, title: str) -> Table:
    """A row for every kind of fold, and the run's champion in sample."""
    heads = "held out|>over|>E2E|>95 %|>by model|>median|>bias|>worst|>TTFT|>ITL|>E2E p90|>p99|>TTFT p90|>p99"
    heads += "|against|>E2E|>better in|>p"
    rows = []
    for kind, s in validation.summary.items():
        over = str(s.experiments)
        if s.without_prediction:
            over += f" ({s.without_prediction} without prediction)"
        cells = [kind, over, number(s.mean_abs_error_pct["e2e"], 2, signed=False), _range(s.interval_95["e2e"])]
        cells += [_range(s.interval_95_by_model["e2e"]), number(s.median_abs_error_pct["e2e"], 2, signed=False)]
        cells += [number(s.bias_pct["e2e"]), number(s.worst_e2e_pct)]
        cells += [number(s.mean_abs_error_pct[x], 1, signed=False) for x in STATISTICS if x != "e2e"]
        test = s.against.test if s.against else None
        cells += [s.against.label, number(s.against.e2e, 2, signed=False)] if s.against else ["-", "-"]
        cells.append(f"{test.better} of {test.pairs}" if test else "-")
        cells.append(f"{test.p:.2g}" if test and test.p is not None else "-")
        rows.append(Row(tuple(cells), style="bold"))
    inside = [number(validation.in_sample[x], 2 if x == "e2e" else 1, signed=False) for x in held_out.MEANS]
    cells = ["nothing: run's champion, in sample", "", inside[0], *[""] * 5, *inside[1:]]
    return Table.of(title, heads, [*rows, Row(tuple(cells), style="dim")])


def breakdown_table(validation: Validation, title: str) -> Table:
    """Held-out errors by architecture, workload and TP degree, in sections by kind of fold."""
    rows = []
    for kind, groups in validation.breakdown.items():
        of_kind = []
        for g in groups:
            means = [number(g.mean_abs_error_pct[x], 2, signed=False) for x in held_out.MEANS]
            of_kind.append(Row((kind, g.by, g.group, str(g.experiments), *means, number(g.bias_pct["e2e"]))))
        rows += section(of_kind)
    return Table.of(title, "held out|by|group|>over|>E2E|>TTFT|>ITL|>bias E2E", rows)


def known_table(validation: Validation, title: str) -> Table:
    """The mean absolute held-out E2E error of ours and of every known answer, by kind of fold."""
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
    """How many programs of the front, and of the folds' winners, read each field."""
    front, folds = validation.front_fields, validation.fold_fields
    heads = ["field", f">Pareto front of the run ({front.programs})"]
    heads += [f">{kind} folds ({counts.programs})" for kind, counts in folds.items()]
    names = dict.fromkeys([*front.fields, *(name for counts in folds.values() for name in counts.fields)])
    rows = [[name, *(str(counts.fields.get(name, 0)) for counts in (front, *folds.values()))] for name in names]
    return Table.of(title, "|".join(heads), rows)


def never_table(validation: Validation, title: str) -> Table:
    """The experiments that the run never fitted, as its champion predicts them."""
    rows = []
    for row in validation.never_fitted:
        counts = ["-" if n is None else f"{n:,}" for n in (*row.completed, *row.failed)]
        rows.append([row.experiment, row.quality, *(number(row.errors[x]) for x in held_out.MEANS), *counts])
    heads = "experiment|quality|>E2E|>TTFT|>ITL|>completed|>observed|>failed|>observed"
    return Table.of(title, heads, rows)


def _short(name: str) -> str:
    return name.rsplit("/", 1)[-1]


def _range(pair: tuple[float, float] | None) -> str:
    return f"{pair[0]:.1f} to {pair[1]:.1f}" if pair else "-"


def write_csv(validation: Validation, path: Path) -> None:
    """Write one row for every fold and held-out experiment; errors signed, in percent, empty where there is none.

    Raises InputError if the file cannot be written.
    """
    about = ["kind", "fold", "experiment", "model", "workload", "tp", "moe", "champion"]
    answers = list(dict.fromkeys(name for row in validation.rows for name in row.known))
    heads = ["form_chosen_with_hindsight", "call", *about, *(f"{name}_error_pct" for name in FIGURES)]
    heads += [f"known_{name.replace(' ', '_')}_e2e_error_pct" for name in answers]
    heads += ["against", "against_e2e_error_pct"]
    lines: list[Sequence[Any]] = [heads]
    for row in validation.rows:
        theirs = [row.known[name]["e2e"] if name in row.known else None for name in answers]
        rival = [row.against.label, row.against.errors["e2e"]] if row.against else ["", None]
        ours = [*(getattr(row, name) for name in about), *(row.errors[name] for name in FIGURES)]
        lines.append([validation.hindsight, validation.call, *ours, *theirs, *rival])
    try:
        with path.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(lines)
    except OSError as e:
        raise InputError(f"{path}: cannot be written ({e.strerror}): choose another --csv") from None
