"""What a validation has to say, for people."""

from __future__ import annotations

from typing import Any

from evolve.report.run import console, show
from evolve.run.validations import OPTIMISTIC
from evolve.study.tables import (
    breakdown_table,
    fields_table,
    folds_table,
    known_table,
    never_table,
    rows_table,
    summary_table,
)

HELD = {
    "models": "leave one model out",
    "workloads": "leave one workload out",
    "tp": "leave one TP degree out",
    "files": "leave one experiments file out",
    "stages": "last load stage held out",
}
LEGEND = """\
Errors in percent, (predicted - observed)/observed, mean of arrival seeds 1 to 3; later: of the stages after the first,
where cold starts are over (average of their figures). over: held-out experiments; 95 %: bootstrap interval of the mean
absolute E2E error, experiments or whole models resampled; median: of the absolute E2E errors. against: the known answer
with the lowest mean among those fitted in the same folds that predict every held-out experiment, or --against
PROGRAM; p: Wilcoxon signed-rank test of paired absolute E2E errors, two-sided, experiments taken as independent.
Seed programs, fields and bounds are the same in every fold: who wrote them had seen some of these measurements."""


def print_validation(result: dict[str, Any]) -> None:
    """Rows and folds of every kind, what they add up to, then how often figures were looked at."""
    out = console()
    how = _how(result)
    for kind in result["summary"]:
        show(out, rows_table(result, kind, f"{HELD[kind]}: errors of held-out experiments; {how}"))
        show(out, folds_table(result, kind, f"{HELD[kind]}: folds; {how}"))
    show(out, breakdown_table(result, f"Mean absolute held-out errors by group; {how}"))
    show(out, known_table(result, "Mean absolute held-out E2E error of known answers fitted in the same folds"))
    show(out, fields_table(result, f"How many programs read each field; folds: {how}"))
    if result["never_fitted"]:
        show(out, never_table(result, "Never fitted: predicted with the run's champion"))
    show(out, summary_table(result, f"Mean absolute held-out errors in percent; {how}"))
    out.print(LEGEND + "\n", markup=False, soft_wrap=True)
    for kind, why in result["skipped"].items():
        out.print(f"No {kind} fold: {why}.", markup=False, soft_wrap=True)
    out.print(call_note(result), markup=False, soft_wrap=True)
    for change in result["changed_since_first_call"]:
        out.print(f"CHANGED since the first validate: {change}.", markup=False, soft_wrap=True)
    made = ", ".join(f"{name} {result[name]}" for name in ("seed", "engine", "data"))
    out.print(f"\nRun: {result['run']}   ({made})", markup=False, soft_wrap=True)


def call_note(result: dict[str, Any]) -> str:
    """Which look at held-out figures this is."""
    note = f"Validate call number {result['call']} on this run"
    return note + (f": {OPTIMISTIC}." if result["call"] > 1 else ".")


def _how(result: dict[str, Any]) -> str:
    if result["form_chosen_with_hindsight"]:
        return "form chosen with hindsight, constants refitted in each fold"
    return f"form, constants and choice inside the fold, {result['budget']} candidates each"
