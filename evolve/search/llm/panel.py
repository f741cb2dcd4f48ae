"""The panel: judges, models that review the candidates of a generation by a rubric, and the choice of those that go on.

Also the statistics of a run's reviews: how many there are, and the rank correlation of marks with errors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import scipy

from archive.proposal import JUDGES, Outcome, Rejected, Review, is_outcome
from archive.score import CellErrors, Errors
from evaluator.diagnose.describe import left_out_changes
from evaluator.statistics import paired
from evolve.search.llm.answer import LONGEST
from evolve.search.llm.calls import LlmCall, Messages, call_log, numbered, parts_of
from evolve.search.llm.prompt import Templates, bare, fields_text, figures, fill
from evolve.search.llm.question import Asker, Candidate, Question
from evolve.summary.finding import change, difference, precedents
from evolve.summary.ideas import Cited
from evolve.summary.research import mean_mark, prose
from simulator.common.json import JsonObject
from simulator.common.text import plain
from simulator.language.measure import features
from simulator.language.parse import parse

RUBRIC = ("evidence", "simplicity", "physics", "novelty", "citations")
BEST = 10  # the highest mark
TOGETHER = 8  # candidates in one question
NEAR = 0.05  # relative difference of selection scores up to which the judges decide between two programs
LONGEST_REMARK = 240  # characters
LONGEST_DOCUMENT = 5000  # characters of the document about the run so far
LONGEST_ECHO = 4000  # characters of an unusable answer that are sent back
LONGEST_DOUBT = 120  # characters of a line of doubts
MOST_DOUBTS = 2  # lines of doubts of a candidate
LEAST = 10  # programs for a rank correlation


@dataclass(frozen=True, slots=True)
class Known:
    """What a question to judges shows besides the candidates.

    document: about the run so far. left_out: errors of parents on runs left out of the fit, by id. one_value: fields
    with a single value in the data, as `s.name`. terms: those of known programs, by name. cited: what a text cites.
    """

    document: str
    left_out: Mapping[int, Sequence[Errors]]
    one_value: Collection[str]
    terms: Mapping[str, frozenset[str]]
    cited: Cited


def review(questions: Sequence[Question], models: Sequence[str], asker: Asker, known: Known) -> None:
    """Have every model review the scored candidates, once more after an unusable answer, and refuse some of them."""
    scored = [(question, candidate) for question in questions for candidate in question.scored]
    if not models or not scored:
        return
    groups = [scored[a : a + TOGETHER] for a in range(0, len(scored), TOGETHER)]
    asked = [
        (asker.call("judge", 100 * j + g, model, messages(asker.texts, group, known)), group)
        for j, model in enumerate(models)
        for g, group in enumerate(groups)
    ]
    reasons = asker.ask([call for call, _ in asked], "reviews")
    asked = [pair for pair, reason in zip(asked, reasons, strict=True) if not reason]
    second = _again([(call, len(group)) for call, group in asked], asker)
    for call, group in asked:
        first = _reviews(call, len(group), asker)
        later = _reviews(second[call.name], len(group), asker) if call.name in second else first
        for (_, candidate), before, after in zip(group, first, later, strict=True):
            candidate.judges += 1
            if given := after or before:
                candidate.reviews.append(given)
    for _, candidate in scored:
        candidate.refused = verdict(candidate.reviews, asker.config.llm.judge_below)
    judged = [candidate for _, candidate in scored if candidate.reviews and not candidate.refused]
    refused = choose(judged, known.one_value)
    for candidate in judged:
        candidate.refused = refused.get(candidate.number)


def _again(asked: Sequence[tuple[LlmCall, int]], asker: Asker) -> dict[str, LlmCall]:
    """The calls that repeat those with an unusable answer about so many candidates, by the name of the first one."""
    repeated: dict[str, LlmCall] = {}
    for call, count in asked:
        answer = asker.log.text(call.name) if call.name in asker.log.answers else ""
        fault = wrong(answer, count) if call.name in asker.log.answers else ""
        if fault:
            request = again(call.messages, answer, fault, count)
            repeated[call.name] = asker.call(numbered("judge", 2), call.number, call.model, request)
    if repeated:
        asker.ask(list(repeated.values()), "reviews again")
    return repeated


def _reviews(call: LlmCall, count: int, asker: Asker) -> list[Review | None]:
    """The reviews of so many candidates in the answer to a call; None for each if there is no answer."""
    return reviews(asker.log.text(call.name), call.model, count) if call.name in asker.log.answers else [None] * count


def verdict(given: Sequence[Review], below: float) -> Rejected | None:
    """The rejection of a candidate whose mean mark over its reviews is less than `below`; None without reviews."""
    mean = mean_mark(given)
    if mean is None or mean >= below:
        return None
    lines = [f"{review.judge} {review.mean:.1f}: {review.remark}" for review in given]
    remarks = "; ".join(line.removesuffix(": ") for line in lines)
    return Rejected(JUDGES, f"{mean:.1f} of {BEST} by {len(given)} judges, {below:g} wanted: {remarks}")


def choose(judged: Sequence[Candidate], one_value: Collection[str]) -> dict[int, Rejected]:
    """The rejections of proposals to which the judges prefer another one, by number.

    Compared are programs that the data cannot tell apart: their selection scores lie within NEAR, and they differ in a
    field that has one value only. The same judges must have reviewed both; with equal marks both go on.
    """
    read = {c.number: set(features(c.scored.program)) & set(one_value) for c in judged if c.scored}
    kept: list[Candidate] = []
    refused: dict[int, Rejected] = {}
    for one in sorted(judged, key=lambda c: (-mark(c), c.selection_score, c.number)):
        near = [other for other in kept if read[other.number] != read[one.number] and _preferred(other, one)]
        if not near:
            kept.append(one)
            continue
        better = near[0]
        fields = ", ".join(sorted(read[better.number] ^ read[one.number]))
        marks = f"{mark(better):.1f} to {mark(one):.1f} of {BEST}"
        refused[one.number] = Rejected(
            JUDGES,
            f"the judges prefer proposal {better.number}, {marks}: its errors are within {100 * NEAR:g} % of these, "
            f"and they differ in {fields}, of which the data have one value only",
        )
    return refused


def mark(candidate: Candidate) -> float:
    """The mean mark of a reviewed candidate."""
    return mean_mark(candidate.reviews) or 0.0


def _preferred(better: Candidate, other: Candidate) -> bool:
    assert better.scored and other.scored
    scores = better.selection_score, other.selection_score
    return (
        mark(better) > mark(other)
        and {r.judge for r in better.reviews} == {r.judge for r in other.reviews}
        and better.scored.consistent == other.scored.consistent  # else datasheets or kernels tell them apart
        and max(scores) <= (1 + NEAR) * min(scores)
    )


# the question to a judge


def messages(texts: Templates, group: Sequence[tuple[Question, Candidate]], known: Known) -> Messages:
    """The question about a group of candidates. It explains the fields that these read, and no others."""
    bases = {question.base.id: question.base for question, _ in group}
    parents = "\n".join(f"Parent, program {id}: {figures(base)}." for id, base in bases.items())
    programs = [bare(candidate.scored.text) for _, candidate in group if candidate.scored]
    cases = [_case(i, *pair, text, known) for i, (pair, text) in enumerate(zip(group, programs, strict=True), 1)]
    text = fill(
        texts["judge"],
        fields=fields_text({name for program in programs for name in features(parse(program))}),
        document=known.document[:LONGEST_DOCUMENT].strip() or "Nothing yet.",
        candidates="\n\n".join([parents, *cases]),
    )
    return (("user", text),)


def _case(number: int, question: Question, candidate: Candidate, text: str, known: Known) -> str:
    """A candidate with its errors, the differences from its parent's on runs left out, its doubts, the precedents of
    its terms, what it cites, and its program."""
    assert candidate.trial and candidate.scored
    about, base = prose(candidate.idea.motivation), question.base
    points, interval, _ = paired(candidate.scored.left_out or CellErrors(()), CellErrors(base.cells))
    lines = [
        f"Candidate {number}: {candidate.idea.title or 'no idea given'}",
        *([f"Hypothesis: {about.hypothesis}"] if about.hypothesis else []),
        f"From program {base.id}, fitted: {figures(candidate.scored)}.",
        f"Difference: {difference(points, interval)}.",
        precedents(change(base.program, parse(candidate.idea.text)), known.terms),
        *(f"Cites {line}" for line in known.cited(about.work)),
    ]
    if changes := left_out_changes(known.left_out.get(base.id, ()), candidate.trial.left_out):
        lines.append(changes)
    lines += [plain(line, LONGEST_DOUBT) for line in candidate.trial.doubts.splitlines()][:MOST_DOUBTS]
    return "\n".join([*lines, f"\n```python\n{text.strip()}\n```"])


def again(asked: Messages, answer: str, fault: str, count: int) -> Messages:
    """The same question once more, after an answer with this fault."""
    request = (
        f"Your answer cannot be used: {fault}. Answer once more, with one JSON array in a ```json block that has every "
        f"candidate, 1 to {count}, and nothing else."
    )
    return (*asked, ("assistant", answer[:LONGEST_ECHO].strip() or "(empty)"), ("user", request))


# the answer of a judge


def reviews(answer: str, model: str, count: int) -> list[Review | None]:
    """A judge's review of each of `count` candidates; None for one without a review that follows the rubric."""
    by_candidate: list[Review | None] = [None] * count
    for raw in _cases(answer, count):
        if not _bad_marks(raw):
            remark = plain(str(raw.get("remark") or ""), LONGEST_REMARK)
            by_candidate[raw["candidate"] - 1] = Review(model, tuple((name, raw[name]) for name in RUBRIC), remark)
    return by_candidate


def wrong(answer: str, count: int) -> str:
    """The fault of a judge's answer about so many candidates, in words for the judge; "" if it is complete."""
    if not _json_array(answer):
        return "it has no JSON array"
    of_candidate = {raw["candidate"]: raw for raw in _cases(answer, count)}
    faults = []
    for i, given in enumerate(reviews(answer, "", count), 1):
        if given is None and i not in of_candidate:
            faults.append(f"candidate {i} is missing")
        elif given is None:
            bad = ", ".join(_bad_marks(of_candidate[i]))
            faults.append(f"{bad} of candidate {i} must be a whole number from 0 to {BEST}")
    return "; ".join(faults)


def _cases(answer: str, count: int) -> list[JsonObject]:
    """The JSON objects in an answer that are about one of so many candidates."""
    return [raw for raw in _json_array(answer) if isinstance(raw, dict) and _is_whole(raw.get("candidate"), 1, count)]


def _json_array(answer: str) -> list[Any]:
    """The JSON array in an answer, fenced or bare; [] if there is none."""
    answer = answer[:LONGEST]
    fenced = re.findall(r"```(?:json)?[ \t]*\n(.*?)```", answer, re.DOTALL)
    start, end = answer.find("["), answer.rfind("]")
    for text in (*fenced, answer[start : end + 1]):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, list):
            return value
    return []


def _bad_marks(raw: JsonObject) -> list[str]:
    return [name for name in RUBRIC if not _is_whole(raw.get(name), 0, BEST)]


def _is_whole(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


# statistics of a run's reviews


def statistics(lines: Sequence[Mapping[str, Any]]) -> JsonObject:
    """The reviews in a journal's lines: given, questions asked again after an unusable answer, and reviews missing.

    programs: those reviewed and scored whose parent's group-out error is known too. rank_correlation: Spearman's, of
    their mean marks with the change of group-out error from parent to program; None below LEAST programs.
    """
    outcomes = [Outcome.from_json(line) for line in lines if is_outcome(line)]
    elites = {outcome.elite.id: outcome.elite for outcome in outcomes if outcome.elite}
    marks, changes = list[float](), list[float]()
    for proposal, elite in ((outcome.proposal, outcome.elite) for outcome in outcomes):
        parent = elites.get(proposal.parents[0]) if proposal.parents else None
        if proposal.reviews and elite and parent and elite.group_out is not None and parent.group_out is not None:
            marks.append(mean_mark(proposal.reviews) or 0.0)
            changes.append(elite.group_out - parent.group_out)
    several = len(marks) >= LEAST and len(set(marks)) > 1 and len(set(changes)) > 1
    log = call_log(lines)
    calls = {*(name for name, _ in log.sent), *log.answers}
    return {
        "given": sum(len(outcome.proposal.reviews) for outcome in outcomes),
        "asked_again": sum(parts_of(name)[1] == numbered("judge", 2) for name in calls),
        "missing": sum(max(o.proposal.judges - len(o.proposal.reviews), 0) for o in outcomes),
        "programs": len(marks),
        "rank_correlation": float(scipy.stats.spearmanr(marks, changes).statistic) if several else None,
    }
