"""What a run's report says in sentences: of its champion, of how far its proposals got, and of how it was chosen."""

from __future__ import annotations

from archive.champion import Rule
from archive.elite import Elite
from archive.proposal import SCORED
from evolve.output.table import counted
from evolve.output.terminal import command
from evolve.summary.result import RunReport

LEAST = {"joint": "joint error", "transfer": "mean of joint and transfer error"}  # what a rule's merit is


def unsound_text(report: RunReport) -> str:
    """That the champion is not sound, and why it is the champion all the same; "" if it is sound, or there is none."""
    best = report.champion
    if best is None or best.sound:
        return ""
    check = command("check", f"{report.run}:{best.id}", "--physics")
    return (
        "The champion is not sound: it contradicts a datasheet or measured kernels, as every program does that this "
        "run scored, so beyond the fitted experiments it may predict what no GPU can do. "
        f"`{check}` lists what it contradicts."
    )


def rule_text(rule: Rule, sound: bool = True) -> str:
    """How a champion is chosen, in words. sound: whether any program that was scored is sound, else all compete."""
    nearest = f", in the {100 * rule.nearer:g} % of these nearest to the median of near-optimal programs,"
    nearer = nearest if rule.nearer < 1.0 else ""
    which = " that contradict no datasheet" if sound else ", all of which contradict a datasheet or measured kernels"
    return (
        f"the simplest program within {100 * rule.within:g} % of the lowest {LEAST[rule.by]}{nearer} among those "
        f"with no experiment above {rule.worst_pct:g} % E2E{which}; where none is that good, that limit is dropped"
    )


def transfer_text(best: Elite) -> str:
    """What the champion's transfer error is; "" where it was not measured."""
    if best.transfer is None:
        return ""
    return (
        f"Transfer: {best.transfer:.2f} % on the worst quarter of the runs, each model, TP degree, architecture "
        "and GPU type left out in turn (or each run, where all runs have the same), the constants fitted without them. "
        "The form was chosen with all of them in sight: `evolve validate` repeats that choice too."
    )


def apart_text(report: RunReport) -> str:
    """How far the champion and the front are from other near-optimal programs where nothing was measured."""
    if report.champion is None or not report.apart_pct:
        return ""
    ours, near = report.apart_pct[report.champion.id], report.apart_pct.values()
    others = "no other program is within the rule"
    if len(near) > 1:
        others = f"those of the {len(near)} programs within the rule {min(near):.1f} to {max(near):.1f} %"
    return (
        f"Where nothing was measured (known models on 1 to 8 GPUs) the champion's step times are {ours:.1f} % from the "
        f"median of near-optimal programs; {others}."
    )


def gap_text(report: RunReport) -> str:
    """How far apart the champion's errors on fitted and on left-out runs were during the search; "" where none were
    left out."""
    best = [(joint, transfer) for joint, transfer in report.best if transfer is not None]
    if not best:
        return ""
    quarters = [best[(len(best) - 1) * i // 4] for i in range(5)]
    gaps = ", ".join(f"{transfer - joint:+.2f} ({joint:.2f})" for joint, transfer in quarters)
    return (
        "Validation gap, transfer less joint (joint), percent, at the start and after each quarter of the generations: "
        f"{gaps}."
    )


def cascade_text(report: RunReport) -> str:
    """How far proposals got, why no more came, and where the CPU time went."""
    total = sum(report.cpu_s.values())
    refused = ", ".join(f"{name} {count}" for name, count in report.verdicts.items() if name != SCORED)
    shares = ", ".join(f"{name} {100 * s / total:.0f} %" for name, s in report.cpu_s.items()) if total else ""
    cpu = (
        f"CPU time of assessments {total:.0f} s: {shares}."
        if shares
        else "CPU time of assessments: not known, every verdict was in the journal already."
    )
    scored = report.verdicts.get(SCORED, 0)
    polished = f" ({counted(report.polished, 'polished finalist')} among them, not fitted again)"
    cascade = (
        f"Cascade: {report.proposals} proposals, {report.candidates} fitted, {scored} scored"
        f"{polished if report.polished else ''}; refused: {refused or 'none'}."
    )
    return "\n".join([cascade, *([f"Ended: {report.ended}."] if report.ended else []), cpu])
