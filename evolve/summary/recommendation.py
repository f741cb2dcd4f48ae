"""The end of RUN/RESEARCH.md: a summary, and the program that the rule recommends.

All of it follows from the outcomes in the journal and the report: no model is asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from archive.champion import Rule, within
from archive.elite import SEED, Elite
from archive.proposal import MODEL, POLISH, Outcome, ancestors
from evolve.output.printing import Block, Code
from evolve.summary.research import generation, is_idea, mean_mark, title_of
from evolve.summary.result import RunReport
from evolve.summary.sentences import LEAST, rule_text
from simulator.common.text import counted


def conclusions(report: RunReport, outcomes: Sequence[Outcome], members: Sequence[Elite]) -> list[Block]:
    """The end of the document of a finished search. `members` are the programs of its archive."""
    best = report.champion
    if best is None:
        return ["## Conclusions", "No candidate could be scored: there is nothing to recommend."]
    by_id = {outcome.proposal.id: outcome for outcome in outcomes}
    near, rule = within(members, report.rule)
    return [
        "## Conclusions",
        _summary(report, best, by_id),
        "## Recommendation",
        *_recommendation(report, best, near, rule, len(members), by_id),
    ]


def _summary(report: RunReport, best: Elite, by_id: dict[int, Outcome]) -> list[str]:
    ideas = [o for o in by_id.values() if is_idea(o)]
    models = sorted({o.proposal.operator.removeprefix(MODEL) for o in ideas})
    refused = Counter(o.rejection.stage for o in ideas if o.rejection)
    reasons = ", ".join(f"{count} at {stage}" for stage, count in refused.most_common())
    lines = [
        f"{counted(len(ideas), 'idea')} by {', '.join(models) or 'no model'} in "
        f"{counted(len({generation(o.proposal) for o in ideas}), 'generation')}: "
        f"{len(ideas) - refused.total()} scored, {refused.total()} refused" + (f" ({reasons})." if reasons else "."),
    ]
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
    commands = [
        f"evolve show .:{best.id}",
        "evolve validate .",
        f"evolve emit .:{best.id} --host blis-4 --out go/ --check",
    ]
    return [
        f"**Program {best.id}**: {_origin(best, by_id)}, with {_size(best)}. {_descent(best, by_id)}".rstrip(),
        "" if _from_models(best, by_id) else "No idea of a model stands in it.",
        f"Why: the champion is {rule_text(rule, best.consistent)}. Of {counted(kept, 'program')} in the archive "
        f"{len(near)} {'competes' if len(near) == 1 else 'compete'}, and none of these is smaller. {price}",
        "These errors are in sample: program and constants were chosen with these runs in sight. In the run's folder:",
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


def _from_models(elite: Elite, by_id: dict[int, Outcome]) -> bool:
    """True if a language model proposed the program, or one that it goes back to."""
    before = ancestors([elite.id], {id: outcome.proposal.parents for id, outcome in by_id.items()})
    return any(by_id[id].proposal.operator.startswith(MODEL) for id in {elite.id, *before})


def _errors(elite: Elite) -> str:
    group_out = "not measured" if elite.group_out is None else f"{elite.group_out:.2f}"
    consistent = "" if elite.consistent else ", not consistent, so it does not compete"
    return f"mean error {elite.mean_error:.2f}, leave-group-out error {group_out}{consistent}"


def _size(elite: Elite) -> str:
    return f"{counted(elite.operations, 'operation')} and {counted(elite.constants, 'constant')}"
