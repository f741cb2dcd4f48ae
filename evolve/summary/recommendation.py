"""The end of RUN/RESEARCH.md: a summary, a comparison of all ideas, and the program that the rule recommends.

All of it follows from the outcomes in the journal and the report: no model is asked.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from archive.champion import Rule, within
from archive.elite import Elite
from archive.proposal import MODEL, POLISH, SEED, Outcome
from evolve.output.printing import markdown
from evolve.output.table import Row, Table, counted, number
from evolve.output.terminal import command
from evolve.summary.research import Research, generation, mean_mark, quoted, title
from evolve.summary.result import RunReport
from evolve.summary.sentences import LEAST, rule_text


def conclusions(report: RunReport, outcomes: Sequence[Outcome], members: Sequence[Elite]) -> str:
    """What ends the document of a search that is over. `members` are the programs of its archive."""
    research = Research()
    research.tell(outcomes)
    best = report.champion
    if best is None:
        return "\n# Conclusions\n\nNo candidate could be scored: there is nothing to recommend.\n"
    by_id = {outcome.proposal.id: outcome for outcome in outcomes}
    near, rule = within(members, report.rule)
    parts = [
        "# Conclusions",
        "## Executive summary",
        "\n".join(f"- {line}" for line in _summary(report, research, best, rule, by_id)),
        "## Comparison",
        markdown(_comparison(report, research, best, rule)),
        "## Recommendation",
        *_recommendation(report, best, near, rule, len(members), by_id),
    ]
    return "\n" + "\n\n".join(parts) + "\n"


def _summary(report: RunReport, research: Research, best: Elite, rule: Rule, by_id: dict[int, Outcome]) -> list[str]:
    ideas = research.ideas
    models = sorted({o.proposal.operator.removeprefix(MODEL) for o in ideas})
    refused = Counter(o.rejection.stage for o in ideas if o.rejection)
    reasons = ", ".join(f"{count} at {stage}" for stage, count in refused.most_common())
    scored = [o for o in ideas if o.elite]
    gains = [(gain, o) for o in scored if (gain := _gain(o, research, rule)) is not None and gain > 0]
    lines = [
        f"{counted(len(ideas), 'idea')} by {', '.join(map(quoted, models)) or 'no model'} in "
        f"{counted(len({generation(o.proposal) for o in ideas}), 'generation')}: {len(scored)} scored, "
        f"{refused.total()} refused" + (f" ({reasons})." if reasons else "."),
        f"Ideas with a lower {LEAST[rule.by]} than the program that they started from: {len(gains)}.",
    ]
    if gains:
        gain, idea = max(gains, key=lambda x: (x[0], -x[1].proposal.id))
        lines.append(f"The largest gain, {gain:.2f}, is that of idea {idea.proposal.id}: {title(idea.proposal)}.")
    reviews = [review for o in ideas for review in o.proposal.reviews]
    if (mark := mean_mark(reviews)) is not None:
        judges = counted(len({review.judge for review in reviews}), "judge")
        lines.append(f"{counted(len(reviews), 'review')} by {judges}, with a mean mark of {mark:.1f}.")
    lines.append(f"The champion is {_origin(best, by_id)}: {_errors(best)}.")
    if seed := report.best_seed:
        lines.append(f"The best starting program is {seed.operator.removeprefix(SEED)}: {_errors(seed)}.")
    if "usd" in report.calls:  # not if nothing was asked
        lines.append(f"The answers of the models cost {report.calls['usd']:.2f} USD.")
    if why := report.calls.get("stopped"):
        lines.append(f"The search stopped before its end: {why}.")
    return lines


def _comparison(report: RunReport, research: Research, best: Elite, rule: Rule) -> Table:
    heads = "idea|base|>joint|>transfer|>E2E|>TTFT|>ITL|>size|>mean mark|verdict"
    front = {elite.id for elite in report.front}
    rows = []
    for outcome in research.ideas:
        p, base, mark = outcome.proposal, research.base(outcome.proposal), mean_mark(outcome.proposal.reviews)
        rows.append(Row((
            f"{p.id}: {title(p)}", str(base.id) if base else "-", *_cells(outcome.elite),
            "-" if mark is None else f"{mark:.1f}", _verdict(outcome, research, rule, best, front),
        ), "bold" if p.id == best.id else ""))  # fmt: skip
    if best.id not in {o.proposal.id for o in research.ideas}:
        base_id = str(best.parents[0]) if best.parents else "-"
        rows.append(Row((f"program {best.id}", base_id, *_cells(best), "-", "champion"), "bold"))
    caption = "Errors in percent; size: operations + constants; mean mark: of 10, over all judges."
    return Table.of("Ideas", heads, rows, caption)


def _cells(elite: Elite | None) -> list[str]:
    if elite is None:
        return ["-"] * 6
    errors = (elite.joint, elite.transfer, elite.e2e, elite.ttft, elite.itl)
    return [*(number(x, 2, signed=False) for x in errors), f"{elite.operations}+{elite.constants}"]


def _verdict(outcome: Outcome, research: Research, rule: Rule, best: Elite, front: set[int]) -> str:
    if outcome.rejection:
        return f"refused: {outcome.rejection.stage}"
    elite = outcome.elite
    assert elite is not None
    if elite.id == best.id:
        return "champion"
    if best.operator == POLISH and best.parents[0] == elite.id:
        return f"champion, its constants polished as program {best.id}"
    if not elite.sound:
        return ", ".join(filter(None, ("contradicts the datasheet", research.same_form(elite.id))))
    gain = _gain(outcome, research, rule)
    than = (
        "transfer not measured" if gain is None else "better than its base" if gain > 0 else "no better than its base"
    )
    parts = (than, "on the front" if elite.id in front else "", research.same_form(elite.id))
    return ", ".join(part for part in parts if part)


def _gain(outcome: Outcome, research: Research, rule: Rule) -> float | None:
    """By how much an idea lowers the merit of its base; None if that was not measured of both."""
    base, elite = research.base(outcome.proposal), outcome.elite
    before, after = (rule.measured_merit(e) if e else None for e in (base, elite))
    return None if before is None or after is None else before - after


def _recommendation(
    report: RunReport, best: Elite, near: Sequence[Elite], rule: Rule, kept: int, by_id: dict[int, Outcome]
) -> list[str]:
    """Which program to take and why. `near` are those within the distance of `rule`, of `kept` in the archive."""
    competing = math.ceil(rule.nearer * len(near)) if report.apart_pct else len(near)
    least = min(near, key=lambda e: (rule.merit(e), e.id))
    if least.id == best.id:
        price = f"No program that competes has a lower {LEAST[rule.by]}: its own is {rule.merit(best):.2f}."
    else:
        price = (
            f"What that costs: its {LEAST[rule.by]} is {rule.merit(best):.2f}; the lowest, {rule.merit(least):.2f}, is "
            f"that of program {least.id}, with {_size(least)}."
        )
    program = f"{report.run}:{best.id}"
    commands = [
        command("show", program),
        command("validate", report.run),
        command("emit", program, "--target", "blis-4", "--out", "go/", "--check"),
    ]
    return [
        f"**Program {best.id}**: {_origin(best, by_id)}, with {_size(best)}. {_descent(best, by_id)}".rstrip(),
        f"Why: the champion is {rule_text(rule, best.sound)}. Of {counted(kept, 'program')} in the archive {len(near)} "
        f"{'is' if len(near) == 1 else 'are'} that near the lowest, {competing} of them "
        f"{'competes' if competing == 1 else 'compete'}, and none of these is smaller. {price}",
        "These errors are in sample: program and constants were chosen with these runs in sight.",
        "```sh\n" + "\n".join(commands) + "\n```",
    ]


def _origin(elite: Elite, by_id: dict[int, Outcome]) -> str:
    """Where a program comes from, in words."""
    operator = elite.operator
    if operator.startswith(SEED):
        return f"the starting program {operator.removeprefix(SEED)}"
    if operator == POLISH:
        before = by_id[elite.parents[0]].elite
        assert before is not None
        return f"{_origin(before, by_id)}, its constants polished"
    if operator.startswith(MODEL):
        return f"idea {elite.id} ({title(by_id[elite.id].proposal)})"
    return f"program {elite.id} by the operator {operator}"


def _descent(elite: Elite, by_id: dict[int, Outcome]) -> str:
    """The programs that a program goes back to, each the first parent of the one before. Polishing is no step."""
    line = []
    if elite.operator == POLISH:
        elite = by_id[elite.parents[0]].elite or elite
    while elite.parents and (before := by_id[elite.parents[0]].elite):
        elite = before
        line.append(str(elite.id))
    return f"It goes back to program {', '.join(line)} ({_origin(elite, by_id)})." if line else ""


def _errors(elite: Elite) -> str:
    transfer = "not measured" if elite.transfer is None else f"{elite.transfer:.2f}"
    sound = "" if elite.sound else ", contradicts the datasheet"
    return f"joint error {elite.joint:.2f}, transfer error {transfer}{sound}"


def _size(elite: Elite) -> str:
    return f"{counted(elite.operations, 'operation')} and {counted(elite.constants, 'constant')}"
