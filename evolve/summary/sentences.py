"""The sentences of a run's report: its champion, the fate of its proposals, and the choice of the champion."""

from __future__ import annotations

from archive.champion import Rule
from archive.elite import Elite
from archive.proposal import SCORED
from evolve.output.terminal import command
from evolve.summary.result import RunReport
from simulator.common.text import counted

# The selection score of a rule, in words.
LEAST = {"mean_error": "mean error", "group_out": "group-out error"}


def inconsistent_text(report: RunReport) -> str:
    """A warning about a champion that contradicts hardware; "" for a consistent one, or without a champion."""
    best = report.champion
    if best is None or best.consistent:
        return ""
    check = command("show", f"{report.run}:{best.id}", "--check", "--physics")
    return (
        "The champion is not physically consistent: it contradicts a datasheet or measured kernels, as every scored "
        "program of this run does. Beyond the fitted experiments it may predict impossible times. "
        f"`{check}` lists the contradictions."
    )


def rule_text(rule: Rule, consistent: bool = True) -> str:
    """The rule for a champion, in words. consistent: True if a scored program is; otherwise all programs compete."""
    which = (
        " that contradict no datasheet" if consistent else ", all of which contradict a datasheet or measured kernels"
    )
    return (
        f"the simplest program within {100 * rule.within:g} % of the lowest {LEAST[rule.by]}, not worse than the best "
        f"one nor than the best seed, among those with no experiment above {rule.worst_pct:g} % E2E{which}; without "
        "such a program, that limit is dropped"
    )


def group_out_text(best: Elite) -> str:
    """The champion's leave-group-out error, in words; "" where it was not measured."""
    if best.group_out is None:
        return ""
    return (
        f"Leave-group-out error: {best.group_out:.2f} %, a mean over cells (model, GPU, type of weights). Each model, "
        "GPU, type of weights, degree and kind of parallelism, version and source was left out of the fit in turn (or "
        "each run, if all runs are alike). The search chose the form with all runs in sight; `evolve validate` repeats "
        "that choice, too."
    )


def against_seed_text(best: Elite, seed: Elite) -> str:
    """The champion against the best fitted seed on runs left out, in words; "" where these were not measured."""
    if best.group_out is None or seed.group_out is None or not best.cells or not seed.cells:
        return ""
    difference, error = best.above(seed)
    cells = len(dict(best.cells).keys() & dict(seed.cells))
    verdict = "beats" if difference < -error else "does not beat"
    return (
        f"On runs left out of the fit: {best.group_out:.2f} % against {seed.group_out:.2f} %, {difference:+.2f} "
        f"(standard error {error:.2f}, paired over {cells} cells): the champion {verdict} the best fitted seed. "
        "But its form was chosen by this very score; only `evolve validate` repeats that choice without the runs."
    )


def gap_text(report: RunReport) -> str:
    """Group-out minus mean error of the champion during the search; "" where no runs were left out."""
    best = [(mean_error, group_out) for mean_error, group_out in report.best if group_out is not None]
    if not best:
        return ""
    quarters = [best[(len(best) - 1) * i // 4] for i in range(5)]
    gaps = ", ".join(f"{group_out - mean_error:+.2f} ({mean_error:.2f})" for mean_error, group_out in quarters)
    return (
        "Validation gap in percent, group-out minus mean error (mean error), at the start and after each quarter of "
        f"the generations: {gaps}."
    )


def cascade_text(report: RunReport) -> str:
    """The stages that proposals reached, the reason for the end, and the use of CPU time."""
    total = sum(report.cpu_s.values())
    refused = ", ".join(f"{name} {count}" for name, count in report.verdicts.items() if name != SCORED)
    shares = ", ".join(f"{name} {100 * s / total:.0f} %" for name, s in report.cpu_s.items()) if total else ""
    cpu = "CPU time of assessments: unknown, because every verdict was in the journal."
    if shares:
        cpu = f"CPU time of assessments {total:.0f} s: {shares}."
    scored = report.verdicts.get(SCORED, 0)
    polished = f" ({counted(report.polished, 'polished finalist')} among them, not fitted again)"
    cascade = (
        f"Cascade: {report.proposals} proposals, {report.candidates} fitted, {scored} scored"
        f"{polished if report.polished else ''}; refused: {refused or 'none'}."
    )
    return "\n".join([cascade, *([f"Ended: {report.ended}."] if report.ended else []), cpu])
