"""The panel: judges are asked about the candidates of a generation, and it is decided which of them go on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from archive.proposal import JUDGES, Rejected, Review
from evaluator.assess import Scored
from evaluator.diagnose.describe import left_out_changes
from evaluator.score import Errors
from evolve.search.llm import judges, prompt
from evolve.search.llm.calls import LlmCall, reviewing
from evolve.search.llm.conversation import Asker
from evolve.search.llm.judges import Case
from evolve.search.llm.question import Candidate, Question, merit_of
from evolve.search.llm.templates import Templates
from simulator.common.text import plain
from simulator.language.measure import features
from simulator.language.parse import parse

NEAR = 0.05  # relative difference of merits up to which the judges decide between two programs
LONGEST_DOUBT = 120  # characters of a line of doubts
MOST_DOUBTS = 2  # lines of doubts of a candidate

Place = tuple[Question, tuple[int, int], Candidate]  # a question, (round, position), and the candidate there


@dataclass(frozen=True, slots=True)
class Background:
    """What judges are told besides the candidates, and go by.

    document: what is written about the run so far. left_out: of every program that is changed, by id, its errors on
    runs left out of the fit. one_value: the fields with a single value in the data, as `s.name`.
    """

    document: str
    left_out: Mapping[int, Sequence[Errors]]
    one_value: Collection[str]


@dataclass(frozen=True, slots=True)
class JudgedProposal:
    """A scored candidate with its reviews, and the number of the proposal that it becomes."""

    number: int
    scored: Scored
    reviews: Sequence[Review]
    one_value: frozenset[str]  # the fields it reads of which nothing can be learned

    @property
    def mark(self) -> float:
        return judges.average(self.reviews)


def review(
    questions: Sequence[Question],
    models: Sequence[str],
    asker: Asker,
    texts: Templates,
    background: Background,
    below: float,
) -> None:
    """Have every one of these models review the scored candidates, and refuse those that shall not go on.

    An answer that cannot be used is asked for once more. `below`: the average mark below which none goes on.
    """  # fmt: skip
    candidates = [(q, at, c) for q in questions for at, c in q.candidates if c.scored]
    if not models or not candidates:
        return
    groups = [candidates[a : a + judges.TOGETHER] for a in range(0, len(candidates), judges.TOGETHER)]
    asked = [
        (asker.call(reviewing(1), 100 * j + g, model, _messages(texts, group, background)), group)
        for j, model in enumerate(models)
        for g, group in enumerate(groups)
    ]
    reasons = asker.ask([call for call, _ in asked], "reviews")
    asked = [pair for pair, reason in zip(asked, reasons, strict=True) if not reason]
    second = _again(asked, asker)
    for call, group in asked:
        first = _reviews(call, len(group), asker)
        later = _reviews(second[call.name], len(group), asker) if call.name in second else first
        for (question, at, _), before, after in zip(group, first, later, strict=True):
            question.judges[at] += 1
            if given := after or before:
                question.reviews.setdefault(at, []).append(given)
    _decide(candidates, background.one_value, below)


def _again(asked: Sequence[tuple[LlmCall, list[Place]]], asker: Asker) -> dict[str, LlmCall]:
    """The calls that repeat those with an unusable answer, by the name of the first one, if the limits allow them."""
    repeated: dict[str, LlmCall] = {}
    for call, group in asked:
        if call.name in asker.log.answers:
            answer = asker.log.text(call.name)
            if wrong := judges.wrong(answer, len(group)):
                messages = judges.again(call.messages, answer, wrong, len(group))
                repeated[call.name] = asker.call(reviewing(2), call.number, call.model, messages)
    if repeated:
        asker.ask(list(repeated.values()), "reviews again")
    return repeated


def _reviews(call: LlmCall, count: int, asker: Asker) -> list[Review | None]:
    """The reviews of so many candidates in the answer to a call; None for each if there is no answer."""
    if call.name not in asker.log.answers:
        return [None] * count
    return judges.reviews(asker.log.text(call.name), call.model, count)


def _messages(texts: Templates, group: Sequence[Place], background: Background) -> tuple[tuple[str, str], ...]:
    """The question about a group of candidates. It explains the fields that these read, and no others."""
    bases = {question.base.id: question.base for question, _, _ in group}
    parents = [f"Parent, program {id}: {prompt.figures(base)}." for id, base in bases.items()]
    cases = [_case(question, candidate, background) for question, _, candidate in group]
    read = {name for case in cases for name in features(parse(case.text))}
    return judges.question(texts, prompt.fields_text(read), background.document, parents, cases)


def _case(question: Question, candidate: Candidate, background: Background) -> Case:
    """A candidate with what it reached, where that differs from its parent, and its doubts."""
    trial, scored = candidate.trial, candidate.scored
    assert trial and scored
    doubts = [plain(line, LONGEST_DOUBT) for line in trial.doubts.splitlines()][:MOST_DOUBTS]
    changes = left_out_changes(background.left_out.get(question.base.id, ()), trial.left_out)
    reached = f"From program {question.base.id}, fitted: {prompt.figures(scored)}."
    return Case(candidate.idea.title, prompt.bare(scored.text), [reached, *([changes] if changes else []), *doubts])


def _decide(candidates: Sequence[Place], one_value: Collection[str], below: float) -> None:
    """Refuse candidates with low marks, and those to which the judges prefer another one (see `choose`)."""
    judged: dict[int, tuple[Place, JudgedProposal]] = {}
    for question, at, candidate in candidates:
        reviews, scored = question.reviews.get(at, []), candidate.scored
        if refused := judges.verdict(reviews, below):
            question.refused[at] = refused
        elif reviews and scored:
            number, read = question.place(*at), features(parse(scored.text))
            of_one = frozenset(read) & frozenset(one_value)
            judged[number] = (question, at, candidate), JudgedProposal(number, scored, reviews, of_one)
    for number, refused in choose([of_place for _, of_place in judged.values()]).items():
        question, at, _ = judged[number][0]
        question.refused[at] = refused


def choose(judged: Sequence[JudgedProposal]) -> dict[int, Rejected]:
    """Why proposals are refused because the judges prefer another one, by number.

    Two programs are compared that the data cannot tell apart: their merits lie within NEAR, and they differ in a field
    that has one value only. They must be reviewed by the same judges; with equal marks both go on.
    """
    kept: list[JudgedProposal] = []
    refused: dict[int, Rejected] = {}
    for one in sorted(judged, key=lambda j: (-j.mark, merit_of(j.scored), j.number)):
        better = next((other for other in kept if _preferred(other, one)), None)
        if better is None:
            kept.append(one)
        else:
            fields = ", ".join(sorted(better.one_value ^ one.one_value))
            marks = f"{better.mark:.1f} to {one.mark:.1f} of {judges.BEST}"
            refused[one.number] = Rejected(
                JUDGES,
                f"the judges prefer proposal {better.number}, {marks}: "
                f"its errors are within {100 * NEAR:g} % of these, and they differ in {fields}, "
                "of which the data have one value only",
            )
    return refused


def _preferred(better: JudgedProposal, other: JudgedProposal) -> bool:
    """Whether the judges decide between two programs, and for the first one."""
    merits = merit_of(better.scored), merit_of(other.scored)
    return (
        better.mark > other.mark
        and {r.judge for r in better.reviews} == {r.judge for r in other.reviews}
        and better.scored.sound == other.scored.sound  # else datasheets or kernels tell them apart
        and max(merits) <= (1 + NEAR) * min(merits)
        and better.one_value != other.one_value
    )
