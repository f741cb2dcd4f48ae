"""Gates: what an idea of a research loop must pass before a fit is paid. What fails is sent back once.

An idea fails if its program is refused unread or was proposed before, if its hypothesis is not what the program does,
or if it contradicts a settled finding. The first two are found by comparing programs; then a judge is asked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from archive.proposal import GATE, Rejected
from evolve.search.llm.answer import LONGEST
from evolve.search.llm.calls import Messages, numbered
from evolve.search.llm.prompt import Templates, bare, fields_text, fill
from evolve.search.llm.question import Asker, Candidate, Question, Taken
from evolve.summary.finding import Finding, change, contradicted
from evolve.summary.research import Prose, Research, prose
from simulator.common.text import listed, plain
from simulator.language.complete import complete
from simulator.language.ir import Program
from simulator.language.measure import features
from simulator.language.parse import parse
from simulator.schema import READABLE

NAMED = re.compile(r"\b[bsr]\.\w+")
MOST_NAMED = 4  # fields that a reason names
LONGEST_WHY = 300  # characters of a judge's reason


class Gates:
    """The gates of a research loop. `research`: what is known so far; `asker`: asks the judges `judges`, the first
    that does not rest."""

    def __init__(self, research: Research, asker: Asker, judges: Sequence[str]) -> None:
        self._research, self._asker, self._judges = research, asker, judges

    def hold(self, questions: Sequence[Question], number: int, taken: Taken) -> None:
        """Refuse the candidates of round `number` that fail. A question all of whose candidates pass is closed."""
        for question in questions:
            base = parse(bare(question.base.text))
            for candidate in question.rounds[-1]:
                if not candidate.refused and (why := self._fault(base, candidate)):
                    candidate.refused = Rejected(GATE, why)
        self._ask(questions, number)
        for question in questions:
            for candidate in question.rounds[-1]:
                if candidate.form and candidate.refused:
                    del taken[candidate.form]  # with another hypothesis it may come again
                    candidate.form = ""
            question.closed = not any(candidate.refused for candidate in question.rounds[-1])

    def _fault(self, base: Program, candidate: Candidate) -> str:
        program, about = parse(candidate.idea.text), prose(candidate.idea.motivation)
        if why := mismatch(base, program, f"{candidate.idea.title} {about.hypothesis}", about):
            return why
        known = contradicted(change(base, program), self._research.settled())
        return f"it contradicts a settled finding: {known.line}" if known else ""

    def _ask(self, questions: Sequence[Question], number: int) -> None:
        judge = next((judge for judge in self._judges if self._asker.up(judge)), None)
        new = [(q, c) for q in questions for c in q.rounds[-1] if not c.refused]
        if judge is None or not new:
            return
        settled = self._research.settled()
        calls = [
            self._asker.call(numbered("gate", number), q.number, judge, messages(self._asker.texts, q, c, settled))
            for q, c in new
        ]
        for call, reason, (_, candidate) in zip(calls, self._asker.ask(calls, "gates"), new, strict=True):
            answered = not reason and call.name in self._asker.log.answers
            why = objection(self._asker.log.text(call.name)) if answered else ""
            if why:
                candidate.refused = Rejected(GATE, f"{judge}: {why}")


def mismatch(base: Program, program: Program, words: str, about: Prose) -> str:
    """Why a hypothesis is not what a program does to `base`, in words for the model; "" if it may be.

    It must name every field that only one of both programs reads, some field of the terms that differ, and none that
    neither reads. words: the idea and its hypothesis.
    """
    if not about.hypothesis:
        return "there is no line `Hypothesis: ` below its heading"
    named, made = set(NAMED.findall(words)), change(base, program)
    before, after = set(features(complete(base))), set(features(complete(program)))
    if missing := sorted((before ^ after) - named):
        does = "newly reads" if missing[0] in after else "no longer reads"
        return f"the program {does} {listed(missing, MOST_NAMED)}, which the hypothesis does not name"
    known = {f"{f.scope}.{f.name}" for f in READABLE.values()}
    if alien := sorted((named & known) - before - after):
        return f"the hypothesis names {listed(alien, MOST_NAMED)}, which the program does not read"
    if made.fields and not named & made.fields:
        fields = listed(sorted(made.fields), MOST_NAMED)
        return f"the terms that differ read {fields}; the hypothesis names none of these"
    return ""


def messages(texts: Templates, question: Question, candidate: Candidate, settled: Sequence[Finding]) -> Messages:
    """The question to a judge: does the program do what the hypothesis says, and does that contradict a finding?"""
    about, base = prose(candidate.idea.motivation), bare(question.base.text)
    read = {*features(parse(base)), *features(parse(candidate.idea.text))}
    text = fill(
        texts["gate"],
        fields=fields_text(read),
        base=base.strip(),
        program=candidate.idea.text.strip(),
        idea=candidate.idea.title,
        hypothesis=about.hypothesis,
        expect=about.expect or "nothing",
        settled="\n".join(f"- {finding.line}" for finding in settled) or "None yet.",
    )
    return (("user", text),)


def objection(answer: str) -> str:
    """The judge's objection in an answer; "" if there is none, or the answer cannot be read."""
    text = answer[:LONGEST]
    try:
        raw = json.loads(text[text.find("{") : text.rfind("}") + 1])
    except (ValueError, RecursionError):
        return ""
    if not isinstance(raw, dict):
        return ""
    why = plain(str(raw.get("why") or ""), LONGEST_WHY) or "no reason given"
    if raw.get("does") is False:
        return f"the hypothesis is not what the program does: {why}"
    contradicts = raw.get("contradicts")
    if isinstance(contradicts, int) and not isinstance(contradicts, bool):
        return f"it contradicts the settled finding on idea {contradicts}: {why}"
    return ""
