"""What `evolve ablate` prints: a row for each part, and what the figures cannot say."""

from __future__ import annotations

from evaluator.dropped import FACTOR, KERNEL, METHOD, TERM
from evaluator.fit.uncertainty import LEAST_CLUSTERS
from evaluator.transfer import MOST_PCT
from evolve.inspect.ablation import ACTS, NEGLIGIBLE, VERDICTS, Ablation, ProgramPart
from evolve.output.printing import note, prose, show
from evolve.output.table import Row, Table, number, row, section

LEGEND = f"""\
dropped: a term (additive, or an argument of max or min); a kernel (a measured kernel's field everywhere, which the
checks of a search would refuse); a factor (a measured kernel taken as it was measured); a method (the host's own form
instead). Every form is fitted again, the full one too. Errors: the mean of those of E2E, TTFT and ITL in percent, each
at most {MOST_PCT:g} %. in sample: on the runs that were fitted. held out: on runs of a model, TP degree, architecture
or workload that the fit left out, by kind of fold in the last columns. 95 %: bootstrap interval of the held-out
difference over runs, whole models resampled where there are {LEAST_CLUSTERS} or more. acts on: models whose latencies
the part changes by more than {100 * ACTS:g} %. operations, constants: without what the fit set to 0. Verdict: does not
earn its place, if the interval lies below {100 * NEGLIGIBLE:g} % of the full form's held-out error; else earns its
place, if it lies above 0; else undecided."""


def ablation_table(ablation: Ablation) -> Table:
    """A row for the full form, then one for each part, by kind."""
    kinds, full = list(ablation.folds), ablation.full
    heads = [">in sample", ">held out", ">95 %", ">acts on", ">operations", ">constants", "verdict", *(
        f">{kind}" for kind in kinds)]  # fmt: skip
    first = row(
        ablation.name, "", _pct(full.joint), _pct(float(full.of_runs.mean())), "", "", str(full.operations),
        str(full.constants), "", *(_pct(full.by_kind[kind]) for kind in kinds), style="bold",
    )  # fmt: skip
    rows = section([first])
    for kind in (TERM, METHOD, FACTOR, KERNEL):
        rows += section(_row(part, ablation) for part in ablation.parts if part.kind == kind)
    return Table.of(f"{ablation.name} without each of its parts: errors in percent, and by how much they grow",
                    "|".join(["dropped", "=kind", *heads]), rows)  # fmt: skip


def _row(part: ProgramPart, ablation: Ablation) -> Row:
    """The part's differences from the full form."""
    text = part.text if part.kind == METHOD or part.method == "step_time" else f"{part.method}: {part.text}"
    measured, full = part.measured, ablation.full
    if measured is None:
        return row(text, part.kind, "-", "-", "", "", "", "", part.verdict)
    interval = ablation.interval_pct(part)
    return row(
        text, part.kind, number(measured.joint - full.joint, 2), number(part.difference_pct, 2),
        " to ".join(number(x, 2) for x in interval) if interval else "-",
        f"{len(part.acts_on)} of {len(ablation.models)}", f"{measured.operations - full.operations:+d}",
        f"{measured.constants - full.constants:+d}", part.verdict,
        *(number(measured.by_kind[kind] - full.by_kind[kind], 2) for kind in ablation.folds),
    )  # fmt: skip


def _pct(value: float) -> str:
    return number(value, 2, signed=False)


def print_ablation(ablation: Ablation) -> None:
    """The legend, the table, and what it cannot say."""
    note(LEGEND)
    show(ablation_table(ablation))
    counts = {name: sum(p.verdict == name for p in ablation.parts) for name in VERDICTS}
    prose("; ".join(f"{name}: {n}" for name, n in counts.items() if n))
    prose(f"- {ablation.hindsight}")
    prose("- Of forty parts that are worth nothing, about one is said to earn its place by luck.")
