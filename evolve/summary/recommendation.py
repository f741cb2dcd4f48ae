"""The end of RUN/RESEARCH.md: a summary, a comparison of all ideas, and the program that the rule recommends.

All of it follows from the outcomes in the journal and the report: no model is asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from archive.champion import Rule, within
from archive.elite import SEED, Elite
from archive.proposal import MODEL, POLISH, Outcome
from evolve.output.columns import figures, words
from evolve.output.printing import Block, Code, page
from evolve.output.table import Table, row
from evolve.output.terminal import command
from evolve.summary.research import Research, generation, mean_mark, title_of
from evolve.summary.result import RunReport
from evolve.summary.sentences import LEAST, rule_text
from simulator.common.text import counted


def conclusions(report: RunReport, outcomes: Sequence[Outcome], members: Sequence[Elite]) -> str:
    """The end of the document of a finished search. `members` are the programs of its archive."""
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
        _summary(report, research, best, rule, by_id),
        "## Comparison",
        _comparison(report, research, best, rule),
        "## Recommendation",
        *_recommendation(report, best, near, rule, len(members), by_id),
    ]
    return "\n" + page(parts)


def _summary(report: RunReport, research: Research, best: Elite, rule: Rule, by_id: dict[int, Outcome]) -> list[str]:
    ideas = research.ideas
    models = sorted({o.proposal.operator.removeprefix(MODEL) for o in ideas})
    refused = Counter(o.rejection.stage for o in ideas if o.rejection)
    reasons = ", ".join(f"{count} at {stage}" for stage, count in refused.most_common())
    scored = [o for o in ideas if o.elite]
    gains = [(gain, o) for o in scored if (gain := _gain(o, research, rule)) is not None and gain > 0]
    lines = [
        f"{counted(len(ideas), 'idea')} by {', '.join(models) or 'no model'} in "
        f"{counted(len({generation(o.proposal) for o in ideas}), 'generation')}: {len(scored)} scored, "
        f"{refused.total()} refused" + (f" ({reasons})." if reasons else "."),
        f"Ideas with a lower {LEAST[rule.by]} than the program that they started from: {len(gains)}.",
    ]
    if gains:
        gain, idea = max(gains, key=lambda x: (x[0], -x[1].proposal.id))
        lines.append(f"The largest gain, {gain:.2f}, is that of idea {idea.proposal.id}: {_title(idea)}.")
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
    columns = [
        words("idea", "base"),
        figures(".2f", "mean error", "group-out", "E2E", "TTFT", "ITL"),
        figures("", "size"),
        figures(".1f", "mean mark"),
        words("verdict"),
    ]
    front = {elite.id for elite in report.front}
    rows = []
    for outcome in research.ideas:
        p, base, mark = outcome.proposal, research.base(outcome.proposal), mean_mark(outcome.proposal.reviews)
        cells = *_cells(outcome.elite), mark, _verdict(outcome, research, rule, best, front)
        name = f"{p.id}: {_title(outcome)}"
        rows.append(row(name, base.id if base else None, *cells, style="bold" if p.id == best.id else ""))
    if best.id not in {o.proposal.id for o in research.ideas}:
        base_id = best.parents[0] if best.parents else None
        rows.append(row(f"program {best.id}", base_id, *_cells(best), None, "champion", style="bold"))
    caption = "Errors in percent; size: operations + constants; mean mark: of 10, over all judges."
    return Table.of("Ideas", columns, rows, caption)


def _cells(elite: Elite | None) -> tuple[object, ...]:
    if elite is None:
        return (None,) * 6
    errors = elite.mean_error, elite.group_out, elite.score.e2e, elite.score.ttft, elite.score.itl
    return *errors, f"{elite.operations}+{elite.constants}"


def _verdict(outcome: Outcome, research: Research, rule: Rule, best: Elite, front: set[int]) -> str:
    if outcome.rejection:
        return f"refused: {outcome.rejection.stage}"
    elite = outcome.elite
    assert elite is not None
    if elite.id == best.id:
        return "champion"
    if best.operator == POLISH and best.parents[0] == elite.id:
        return f"champion, its constants polished as program {best.id}"
    if not elite.consistent:
        return ", ".join(filter(None, ("contradicts the datasheet", research.same_form(elite.id))))
    gain = _gain(outcome, research, rule)
    than = (
        "group-out not measured" if gain is None else "better than its base" if gain > 0 else "no better than its base"
    )
    parts = (than, "on the front" if elite.id in front else "", research.same_form(elite.id))
    return ", ".join(part for part in parts if part)


def _gain(outcome: Outcome, research: Research, rule: Rule) -> float | None:
    """The fall of the selection score from an idea's base to the idea; None if one was not measured."""
    base, elite = research.base(outcome.proposal), outcome.elite
    before, after = (rule.measured_selection_score(e) if e else None for e in (base, elite))
    return None if before is None or after is None else before - after


def _recommendation(
    report: RunReport, best: Elite, near: Sequence[Elite], rule: Rule, kept: int, by_id: dict[int, Outcome]
) -> list[Block]:
    """The program to take, and the reason. `near` are those within the distance of `rule`, of `kept` in the archive."""
    least = min(near, key=lambda e: (rule.selection_score(e), e.id))
    if least.id == best.id:
        price = f"No program that competes has a lower {LEAST[rule.by]}: its own is {rule.selection_score(best):.2f}."
    else:
        price = (
            f"The cost: its {LEAST[rule.by]} is {rule.selection_score(best):.2f}; the lowest, "
            f"{rule.selection_score(least):.2f}, is that of program {least.id}, with {_size(least)}."
        )
    program = f"{report.run}:{best.id}"
    commands = [
        command("show", program),
        command("validate", report.run),
        command("emit", program, "--host", "blis-4", "--out", "go/", "--check"),
    ]
    return [
        f"**Program {best.id}**: {_origin(best, by_id)}, with {_size(best)}. {_descent(best, by_id)}".rstrip(),
        f"Why: the champion is {rule_text(rule, best.consistent)}. Of {counted(kept, 'program')} in the archive "
        f"{len(near)} {'competes' if len(near) == 1 else 'compete'}, and none of these is smaller. {price}",
        "These errors are in sample: program and constants were chosen with these runs in sight.",
        Code("\n".join(commands), "sh"),
    ]


def _title(outcome: Outcome) -> str:
    return title_of(outcome.proposal.idea) or "no title"


def _origin(elite: Elite, by_id: dict[int, Outcome]) -> str:
    """The origin of a program, in words."""
    operator = elite.operator
    if operator.startswith(SEED):
        return f"the starting program {operator.removeprefix(SEED)}"
    if operator == POLISH:
        before = by_id[elite.parents[0]].elite
        assert before is not None
        return f"{_origin(before, by_id)}, its constants polished"
    if operator.startswith(MODEL):
        return f"idea {elite.id} ({_title(by_id[elite.id])})"
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
    group_out = "not measured" if elite.group_out is None else f"{elite.group_out:.2f}"
    consistent = "" if elite.consistent else ", contradicts the datasheet"
    return f"mean error {elite.mean_error:.2f}, leave-group-out error {group_out}{consistent}"


def _size(elite: Elite) -> str:
    return f"{counted(elite.operations, 'operation')} and {counted(elite.constants, 'constant')}"
