"""RUN/RESEARCH.md: the ideas of language models in the order in which they were tried, with their outcomes.

The document depends on outcomes only, so that a resumed run and a replay write the same one, and while a search runs it
only grows. What models wrote is quoted: each text is one line, which cannot become a heading, a link or HTML.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from archive.elite import Elite
from archive.proposal import MODEL, Outcome, Proposal, Review
from evolve.output.table import number
from simulator.common.documents import read_bytes
from simulator.common.files import write_text
from simulator.common.text import counted, plain
from simulator.language.key import key
from simulator.language.measure import features
from simulator.language.parse import parse
from simulator.language.source import ProgramError
from simulator.schema import READABLE

FILE = "RESEARCH.md"
HEAD = (
    "# Ideas of language models, in the order in which they were tried\n\n"
    "Errors are mean absolute errors in percent on the fitted runs, leave-group-out errors those of the worst quarter\n"
    "of the runs left out of the fit. In brackets: the change against the parent of an idea. `evolve show\n"
    "RUN:NUMBER` prints an idea's program. What models wrote is quoted, not checked: their A is the program that they\n"
    "were asked to change, a bare number such as 1 a proposal of the same or the last answer, and D1, D2, ... are the\n"
    "deployments as their question lists them (`evolve llm prompt RUN NUMBER --sent`).\n"
)
MOST_ISSUES = 12  # of which a creator is told: those of the ideas with the lowest marks
LONGEST_MOTIVATION = 1200  # characters of a motivation that the document quotes
LONGEST_WORK = 400  # of related work
LONGEST_ANSWER = 400  # of an answer to an issue
LONGEST_WHY = 300  # of why an idea was refused
LABEL = re.compile(r"[\s>*_#-]*(?:Issue[\s*_]*#?(\d{1,3})|(Related work))[\s*_]*[:.)-][\s*_:]*(.*)", re.IGNORECASE)
UNITS = {f"{f.scope}.{f.name}": f.unit for f in READABLE.values()}
LONGEST_TITLE = 60  # characters
LEAST_CLAUSE = 16  # characters of one that says enough by itself
CLAUSE = re.compile(r"[:;,.!?]\s|\s[-–—(]|[.!?]$")  # where a clause ends
CUT = "..."  # the end of an idea that was journalled in part
# Words that a title cannot end with, since they lead to the next one.
LEADING = re.compile(
    r"(?: (?:a|an|and|are|as|at|be|but|by|for|from|if|in|into|is|its|no|not|of|on|one|only|or|per|so|than|that|the"
    r"|their|to|under|when|where|which|while|with|without|\S+'s))+$",
    re.IGNORECASE,
)
ACTIVE = re.compile(r"[\\<\[]")  # what Markdown would read as an escape, HTML, a link or a picture


@dataclass(frozen=True, slots=True)
class Issue:
    """A judge's remark on an idea, which the next creator is asked to answer. `mark`: the mean of the judge's marks."""

    judge: str
    idea: int
    title: str
    remark: str
    mark: float

    @property
    def line(self) -> str:
        return f'{self.judge} on idea {self.idea} ("{self.title}"): {self.remark}'


@dataclass(frozen=True, slots=True)
class Prose:
    """An answer's words on its idea: the reason, the related work, and its answers to issues by number."""

    why: str
    work: str = ""
    answers: Mapping[int, str] = field(default_factory=dict)


def prose(motivation: str) -> Prose:
    """The parts of a motivation. A line `Issue N: ...` or `Related work: ...` begins one, an empty line ends it.

    >>> prose("Launches cost time.\\nIssue 2: it scales\\nwith layers now.\\n\\nRelated work: none").answers
    {2: 'it scales with layers now.'}
    """
    why, work, answers = list[str](), list[str](), dict[int, list[str]]()
    into = why
    for line in motivation.split("\n"):
        if label := LABEL.fullmatch(line):
            into = answers.setdefault(int(label[1]), []) if label[1] else work
            line = label[3]
        elif not line.strip():
            into = why
        into.append(line)
    texts = {n: plain(" ".join(lines), LONGEST_ANSWER) for n, lines in sorted(answers.items())}
    return Prose(plain(" ".join(why), LONGEST_MOTIVATION), plain(" ".join(work), LONGEST_WORK), texts)


def is_idea(outcome: Outcome) -> bool:
    """True for the outcome of a language model's idea, not of an answer that has none."""
    p = outcome.proposal
    return bool(p.call) and bool(p.text or p.idea)


def generation(proposal: Proposal) -> int:
    """The generation in which a language model made the proposal, by the name of the call that it answers."""
    return int(proposal.call.split("/")[0])


def marks(review: Review) -> dict[str, int]:
    values = {f.name: getattr(review, f.name) for f in fields(review)}
    return {name: value for name, value in values.items() if isinstance(value, int)}


def mean_mark(reviews: Sequence[Review]) -> float | None:
    """The mean of all marks of some reviews; None without reviews."""
    given = [mark for review in reviews for mark in marks(review).values()]
    return sum(given) / len(given) if given else None


class Research:
    """The ideas of a run so far, and the document about them. `text` is that document."""

    def __init__(self) -> None:
        self.text = HEAD
        self.ideas: list[Outcome] = []
        self._elites: dict[int, Elite] = {}
        self._forms: dict[str, int] = {}  # the first idea of each scored form, by the key of what the fit left of it
        self._same: dict[int, int] = {}  # that of later ideas of the same form, by idea
        self._entries: list[str] = []
        self._issues: dict[int, list[Issue]] = {}  # by the generation that is asked to answer them

    def tell(self, outcomes: Iterable[Outcome]) -> None:
        """Take in further outcomes, of whole generations."""
        for outcome in outcomes:
            if outcome.elite:
                self._elites[outcome.elite.id] = outcome.elite
            if is_idea(outcome):
                if outcome.elite:
                    first = self._forms.setdefault(key(outcome.elite.program), outcome.elite.id)
                    if first != outcome.elite.id:
                        self._same[outcome.elite.id] = first
                entry = self._entry(outcome)
                self.ideas.append(outcome)
                self._entries.append(entry)
                self.text += entry

    def issues(self, number: int) -> list[Issue]:
        """The judges' objections to the ideas of the latest reviewed generation before generation `number`."""
        if number not in self._issues:
            reviewed = [o.proposal for o in self.ideas if o.proposal.reviews and generation(o.proposal) < number]
            latest = max(map(generation, reviewed), default=0)
            found = [
                Issue(r.judge, p.id, p.idea or "no title", r.remark, mean_mark([r]) or 0.0)
                for p in reviewed
                if generation(p) == latest
                for r in p.reviews
                if r.remark
            ]
            # the ideas with the lowest marks have the gravest issues
            self._issues[number] = sorted(found, key=lambda issue: issue.mark)[:MOST_ISSUES]
        return self._issues[number]

    def same_form(self, idea: int) -> str:
        """`same form as idea N`, if the fit left of an idea what it had left of an earlier one; else ""."""
        return f"same form as idea {self._same[idea]}" if idea in self._same else ""

    def base(self, proposal: Proposal) -> Elite | None:
        return self._elites.get(proposal.parents[0]) if proposal.parents else None

    def recent(self, most: int) -> str:
        """The document in at most `most` characters: the latest ideas in full, a line on each earlier one.

        Lines on the oldest ideas are left out if not even they have room.
        """
        lines = [self._line(outcome) for outcome in self.ideas]
        size, brief = len(HEAD) + 1 + sum(map(len, self._entries)), 0
        while size > most and brief < len(lines):
            size += len(lines[brief]) - len(self._entries[brief])
            brief += 1
        dropped, note = 0, ""
        while size + len(note) > most and dropped < brief:
            size -= len(lines[dropped])
            dropped += 1
            note = f"- {counted(dropped, 'earlier idea')} left out\n"
        return "".join([HEAD, "\n", note, *lines[dropped:brief], *self._entries[brief:]])

    def _entry(self, outcome: Outcome) -> str:
        p, about = outcome.proposal, prose(outcome.proposal.motivation)
        base = self.base(p)
        # the fit may have removed terms; of a scored idea the journal keeps only what is left
        text = outcome.elite.text if outcome.elite else p.text
        issues = dict(enumerate(self.issues(generation(p)), 1))
        answers = [
            f"- Issue {n}, {quoted(issues[n].line)}\n  - {quoted(answer)}"
            for n, answer in about.answers.items()
            if n in issues  # what else a model answers was not asked
        ]
        parts = [
            f"## Idea {p.id}: {title(p)}",
            f"Generation {generation(p)}{_round(p)}, by {quoted(p.operator.removeprefix(MODEL))}"
            + (f", a change of program {base.id}." if base else "."),
            f"**Idea.** {quoted(whole)}" if (whole := _whole(p.idea)) != title_of(p.idea) else "",
            f"**Motivation.** {quoted(about.why)}" if about.why else "",
            f"**Related work.** {quoted(about.work)}" if about.work else "",
            f"**Features.** {read}." if (read := fields_read(text)) else "",
            f"**Result.** {result(outcome, base)}{_sentence(self.same_form(p.id))}",
            _block("Reviews", [_review(review) for review in p.reviews]),
            _block("Answers to the reviews", answers),
        ]
        return "\n" + "\n\n".join(part for part in parts if part) + "\n"

    def _line(self, outcome: Outcome) -> str:
        p, elite, base = outcome.proposal, outcome.elite, self.base(outcome.proposal)
        mark = mean_mark(p.reviews)
        became = f"refused at {outcome.rejection.stage}" if outcome.rejection else ""
        if elite:
            mean_error = _with_change(elite.mean_error, base.mean_error if base else None)
            became = f"mean error {mean_error}, group-out {_group_out(elite, base)}"
        judged = "" if mark is None else f", mean mark {mark:.1f}"
        same = f", {form}" if (form := self.same_form(p.id)) else ""
        return f"- Idea {p.id}: {title(p)}: {became}{same}{judged}\n"


def document(outcomes: Iterable[Outcome]) -> str:
    research = Research()
    research.tell(outcomes)
    return research.text


def write(folder: Path, text: str) -> None:
    """Write the document of a run, unless its file says more already, as while a run catches up with its journal."""
    path = folder / FILE
    if not (path.is_file() and read_bytes(path, kept=True).startswith(text.encode())):
        write_text(path, text)


def title(proposal: Proposal) -> str:
    return quoted(title_of(proposal.idea)) or "no title"


def _whole(idea: str) -> str:
    """An idea in a sentence; one that was journalled in part ends after its last whole word."""
    return f"{whole_words(idea, len(idea))} {CUT}" if idea.endswith(CUT) else idea


def quoted(text: str) -> str:
    return ACTIVE.sub(r"\\\g<0>", text)


def fields_read(text: str) -> str:
    """The fields that a program reads, with their units; "" if it cannot be read."""
    try:
        names = features(parse(text))
    except ProgramError:
        return ""
    return ", ".join(f"`{name}` ({UNITS[name]})" for name in names)


def result(outcome: Outcome, base: Elite | None) -> str:
    """The outcome of an idea: its errors with their changes against its base, or why it was refused."""
    if outcome.rejection:
        return f"Refused at {outcome.rejection.stage}: {quoted(plain(outcome.rejection.why, LONGEST_WHY))}"
    elite = outcome.elite
    assert elite is not None
    score = elite.score
    figures = {"worst-3 E2E": score.worst3, "E2E": score.e2e, "TTFT": score.ttft, "ITL": score.itl}
    rest = ", ".join(f"{name} {number(value, 2, signed=False)}" for name, value in figures.items())
    consistent = "" if elite.consistent else " It contradicts the datasheet."
    dropped = ", ".join(f"`{name}`" for name in outcome.dropped)
    less = _sentence(f"the fit dropped: {dropped}" if dropped else "")
    return (
        f"Mean error {_with_change(elite.mean_error, base.mean_error if base else None)}, "
        f"group-out {_group_out(elite, base)}; {rest}; "
        f"{counted(elite.operations, 'operation')}, {counted(elite.constants, 'constant')}.{consistent}{less}"
    )


def _sentence(text: str) -> str:
    return f" {text[0].upper()}{text[1:]}." if text else ""


def _group_out(elite: Elite, base: Elite | None) -> str:
    return (
        "not measured" if elite.group_out is None else _with_change(elite.group_out, base.group_out if base else None)
    )


def _with_change(value: float, before: float | None) -> str:
    return f"{value:.2f}" if before is None else f"{value:.2f} ({number(value - before, 2)})"


def _round(proposal: Proposal) -> str:
    """The round of the question, if it is not the first."""
    purpose, _, number = proposal.call.split("/")[1].partition("-")
    return f", {purpose} {number}" if purpose == "round" else ""


def _review(review: Review) -> str:
    given = ", ".join(f"{name} {mark}" for name, mark in marks(review).items())
    remark = f": {quoted(review.remark)}" if review.remark else ""
    return f"- {quoted(review.judge)}: {given} (mean {mean_mark([review]):.1f}){remark}"


def _block(title: str, lines: Sequence[str]) -> str:
    return "\n".join([f"**{title}.**", "", *lines]) if lines else ""


# short titles for what language models call their ideas, which are often whole sentences


def title_of(idea: str) -> str:
    """The first clause of an idea, in at most LONGEST_TITLE characters and whole words; "" for an idea without words.

    >>> title_of("Launches overlap with reading the weights: the larger of both instead of their sum")
    'Launches overlap with reading the weights'
    >>> title_of("Steps with prompts launch their kernels one by one and each of these launches costs host time")
    'Steps with prompts launch their kernels one by one and each'
    """
    ends = [m.start() for m in CLAUSE.finditer(idea) if LEAST_CLAUSE <= m.start() <= LONGEST_TITLE]
    if ends:
        return idea[: ends[0]]
    if len(idea) <= LONGEST_TITLE and not idea.endswith(CUT):
        return idea
    return LEADING.sub("", whole_words(idea, LONGEST_TITLE)).rstrip(",;:.-–—(")


def whole_words(text: str, most: int) -> str:
    """The text in at most `most` characters, cut between words; a single word that is longer is cut."""
    text = text.removesuffix(CUT) if text.endswith(CUT) else f"{text} "
    return (text[: most + 1].rpartition(" ")[0] or text[:most]).rstrip()
