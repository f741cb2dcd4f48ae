"""`evolve show --ablate` as rows and in a terminal: a row for each part, and the limits of the figures."""

from __future__ import annotations

from evaluator.fit.uncertainty import LEAST_CLUSTERS
from evaluator.group_out import MOST_PCT
from evaluator.parts import FACTOR, KERNEL, METHOD, TERM
from evolve.inspect.ablation import ACTS, NEGLIGIBLE, VERDICTS, Ablation, ProgramPart
from evolve.output.columns import column, figures, row_class, words
from evolve.output.printing import ROWS, more, note, prose, show
from evolve.output.table import Row, Table, row, section

LEGEND = f"""\
dropped: a term (additive, or an argument of max or min); a kernel (a measured kernel's field everywhere, which the
checks of a search would refuse); a factor (a measured kernel taken as it was measured); a method (the host's own form
instead). Every form is fitted again, the full one too. Errors: the mean of those of E2E, TTFT and ITL in percent, each
at most {MOST_PCT:g} %. in sample: on the runs that were fitted. held out: on runs of a model, TP degree, architecture
or workload that the fit left out; the last columns by kind of fold. 95 %: bootstrap interval of the held-out
difference over runs, whole models resampled where there are {LEAST_CLUSTERS} or more. acts on: models whose latencies
the part changes by more than {100 * ACTS:g} %. operations, constants: without what the fit set to 0. Verdict: does not
earn its place, if the interval lies below {100 * NEGLIGIBLE:g} % of the full form's held-out error; else earns its
place, if it lies above 0; else undecided."""


@row_class
class AblationRow:
    """A part of a program that was dropped. Errors in percent."""

    part: str = column("the part as the program spells it", paper=True)
    kind: str = column("term, method, factor or kernel", paper=True)
    method: str = column("method of the program")
    verdict: str = column("whether it earns its place", paper=True)
    in_sample_pct: float | None = column("growth of the error in sample", paper=True)
    held_out_pct: float | None = column("growth of the error on held-out runs", paper=True)
    low_pct: float | None = column("lower bound of its 95 % interval over runs")
    high_pct: float | None = column("upper bound of the same")
    by_model_low_pct: float | None = column("lower bound of its 95 % interval, whole models resampled", paper=True)
    by_model_high_pct: float | None = column("upper bound of the same", paper=True)
    operations: int | None = column("change of the number of operations")
    constants: int | None = column("change of the number of constants")
    acts_on: tuple[str, ...] = column("models whose latencies it changes")


def ablation_rows(result: Ablation) -> list[AblationRow]:
    """A row for each part: its verdict, and by how much the errors grow without it."""
    rows = []
    for p in result.parts:
        m, (low, high), (least, most) = p.measured, p.interval_pct or (None, None), p.by_model_pct or (None, None)
        in_sample = m.mean_error - result.full.mean_error if m else None
        operations = m.operations - result.full.operations if m else None
        constants = m.constants - result.full.constants if m else None
        errors = in_sample, p.difference_pct, low, high, least, most
        rows.append(AblationRow(p.text, p.kind, p.method, p.verdict, *errors, operations, constants, p.acts_on))
    return rows


def ablation_table(ablation: Ablation) -> Table:
    """A row for the full form, then one for each part, by kind."""
    kinds, full = list(ablation.folds), ablation.full
    columns = [words("dropped"), words("kind", names=True), figures("+.2f", "in sample", "held out")]
    columns += [figures("", "95 %"), words("verdict"), figures("", "acts on"), figures("+d", "operations", "constants")]
    columns.append(figures("+.2f", *kinds))
    errors = (f"{x:.2f}" for x in (full.mean_error, full.of_runs.mean(), *(full.by_kind[kind] for kind in kinds)))
    in_sample, held_out, *by_kind = errors
    sizes = f"{full.operations}", f"{full.constants}"
    rows = section([row(ablation.name, "", in_sample, held_out, "", "", "", *sizes, *by_kind, style="bold")])
    for kind in (TERM, METHOD, FACTOR, KERNEL):
        rows += section(_row(part, ablation) for part in ablation.parts if part.kind == kind)
    title = f"{ablation.name} without each of its parts: errors in percent, and by how much they grow"
    return Table.of(title, columns, rows)


def _row(part: ProgramPart, ablation: Ablation) -> Row:
    text = part.text if part.kind == METHOD or part.method == "step_time" else f"{part.method}: {part.text}"
    measured, full = part.measured, ablation.full
    if measured is None:
        return row(text, part.kind, None, None, "", part.verdict, short=True)
    interval = ablation.interval_pct(part)
    in_sample, acts_on = measured.mean_error - full.mean_error, f"{len(part.acts_on)} of {len(ablation.models)}"
    span = f"{interval[0]:+.2f} to {interval[1]:+.2f}" if interval else None
    sizes = measured.operations - full.operations, measured.constants - full.constants
    by_kind = (measured.by_kind[kind] - full.by_kind[kind] for kind in ablation.folds)
    return row(text, part.kind, in_sample, part.difference_pct, span, part.verdict, acts_on, *sizes, *by_kind)


def print_ablation(ablation: Ablation, explain: bool = False, verbose: bool = False) -> None:
    """Print the table, how many parts earn their place, and the limits of that; definitions, too, if `explain`.

    verbose: all columns, however narrow the terminal is.
    """
    left = show(ablation_table(ablation), None if verbose else ROWS)
    counts = {name: sum(p.verdict == name for p in ablation.parts) for name in VERDICTS}
    prose("; ".join(f"{name}: {n}" for name, n in counts.items() if n))
    prose(f"- {ablation.hindsight}")
    prose("- Of forty parts that are worth nothing, about one is said to earn its place by luck.")
    if explain:
        note(LEGEND)
    more(left, explain)
