"""RUN/RESEARCH.md: the ideas of language models in a table, best first, and what is settled about their terms.

The document depends on outcomes only, so that a resumed run and a replay write the same one. What models wrote is
quoted: each text is one line, which cannot become a heading, a link or HTML. `ideas` writes more on each idea of a
research loop, in a folder of its own.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from archive.elite import SEED, Elite
from archive.proposal import GATE, Outcome, Proposal, Review
from evolve.output.columns import figures, words
from evolve.output.printing import Block, page
from evolve.output.table import Row, Table, number, row
from evolve.summary.finding import HOLDS, SETTLED, WORSE, Finding, by_chance, finding
from simulator.common.text import counted, plain
from simulator.language.key import key

FILE = "RESEARCH.md"
TITLE = "# Ideas of language models, best first"
HEAD = (
    "Errors are in percent. group-out: leave-group-out error, of constants fitted without each model, GPU, precision "
    "and so on in turn; forms are chosen with all runs in sight. Difference: that of this error to the program "
    "that an idea changed, in points, paired by cell, with its 95 % interval; runs stand for fewer than five cells. "
    "An idea holds if all of the interval is below 0 and no fitted seed program is better; it does not hold if all of "
    "it is above. The mean error weighs TTFT by 0.3. `evolve show RUN:IDEA` prints a program. Titles are the models' "
    "words, all figures those of the journal."
)
MOST_ROWS = 200  # of the table: the document has at most 300 lines
MOST_SETTLED = 20  # findings of a kind that it lists
MOST_ISSUES = 12  # of which a creator is told: those of the ideas with the lowest marks
LONGEST_MOTIVATION = 1200  # characters of a motivation that is quoted
LONGEST_WORK = 400  # of related work
LONGEST_ANSWER = 400  # of an answer to an issue
LONGEST_WHY = 300  # of why an idea was refused
LABEL = re.compile(
    r"[\s>*_#-]*(?:Issue[\s*_]*#?(?P<issue>\d{1,3})|(?P<name>Related work|Hypothesis|Expect))"
    r"[\s*_]*[:.)-][\s*_:]*(?P<rest>.*)",
    re.IGNORECASE,
)
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
    """An answer's words on its idea: the reason, the hypothesis, what is expected to improve, the related work, and its
    answers to issues by number."""

    why: str
    work: str = ""
    answers: Mapping[int, str] = field(default_factory=dict)
    hypothesis: str = ""
    expect: str = ""


def prose(motivation: str) -> Prose:
    """The parts of a motivation. A line `Hypothesis: ...`, `Expect: ...`, `Issue N: ...` or `Related work: ...` begins
    one, an empty line ends it.

    >>> prose("Launches cost time.\\nIssue 2: it scales\\nwith layers now.\\n\\nRelated work: none").answers
    {2: 'it scales with layers now.'}
    """
    why, named, answers = list[str](), dict[str, list[str]](), dict[int, list[str]]()
    into = why
    for line in motivation.split("\n"):
        if label := LABEL.fullmatch(line):
            number, name = label["issue"], label["name"]
            into = answers.setdefault(int(number), []) if number else named.setdefault(name.lower(), [])
            line = label["rest"]
        elif not line.strip():
            into = why
        into.append(line)
    texts = {n: plain(" ".join(lines), LONGEST_ANSWER) for n, lines in sorted(answers.items())}
    work, hypothesis, expect = (
        plain(" ".join(named.get(name, [])), LONGEST_WORK) for name in ("related work", "hypothesis", "expect")
    )
    return Prose(plain(" ".join(why), LONGEST_MOTIVATION), work, texts, hypothesis, expect)


def is_idea(outcome: Outcome) -> bool:
    """True for the outcome of a language model's idea, not of an answer that has none."""
    p = outcome.proposal
    return bool(p.call) and bool(p.text or p.idea)


def generation(proposal: Proposal) -> int:
    """The generation in which a language model made the proposal, by the name of the call that it answers."""
    return int(proposal.call.split("/")[0])


def mean_mark(reviews: Sequence[Review]) -> float | None:
    """The mean mark over some reviews, 0 to 10; None without reviews."""
    return sum(review.mean for review in reviews) / len(reviews) if reviews else None


class Research:
    """The ideas of a run so far, what was found out about them, and the document about them."""

    def __init__(self, hidden: Collection[str] | None = None) -> None:
        self.loop = hidden is not None  # a research loop
        self.hidden = hidden or frozenset()  # the cells that no question showed
        self.ideas: list[Outcome] = []
        self.findings: dict[int, Finding] = {}  # of scored ideas, by idea
        self.seed: Elite | None = None  # the fitted seed program with the lowest leave-group-out error
        self._elites: dict[int, Elite] = {}
        self._forms: dict[str, int] = {}  # the first idea of each scored form, by the key of what the fit left of it
        self._same: dict[int, int] = {}  # that of later ideas of the same form, by idea
        self._issues: dict[int, list[Issue]] = {}  # by the generation that is asked to answer them

    def tell(self, outcomes: Iterable[Outcome]) -> None:
        """Take in further outcomes, of whole generations."""
        for outcome in outcomes:
            elite, base = outcome.elite, self.base(outcome.proposal)
            if elite:
                self._elites[elite.id] = elite
                if elite.operator.startswith(SEED) and elite.consistent:
                    self.seed = min(filter(None, (self.seed, elite)), key=lambda e: (e.charged_group_out, e.id))
            if is_idea(outcome):
                self.ideas.append(outcome)
                if elite:
                    first = self._forms.setdefault(key(elite.program), elite.id)
                    if first != elite.id:
                        self._same[elite.id] = first
                    if base:
                        self.findings[elite.id] = finding(
                            outcome, base, title_of(outcome.proposal.idea), self.seed, self.hidden
                        )

    def issues(self, number: int) -> list[Issue]:
        """The judges' objections to the ideas of the latest reviewed generation before generation `number`."""
        if number not in self._issues:
            reviewed = [o.proposal for o in self.ideas if o.proposal.reviews and generation(o.proposal) < number]
            latest = max(map(generation, reviewed), default=0)
            found = [
                Issue(r.judge, p.id, p.idea or "no title", r.remark, r.mean)
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

    def settled(self, *verdicts: str) -> list[Finding]:
        """The findings with these verdicts, or with all that are settled, the latest first."""
        return [f for f in reversed(self.findings.values()) if f.verdict in (verdicts or SETTLED)]

    def recent(self, most: int) -> str:
        """A line on each idea in at most `most` characters, the latest first; the oldest ones may be left out."""
        lines, size = list[str](), 0
        for outcome in reversed(self.ideas):
            line = self._line(outcome)
            if (size := size + len(line) + 1) > most:
                return "\n".join([*lines, f"and {len(self.ideas) - len(lines)} more"])
            lines.append(line)
        return "\n".join(lines)

    def document(self, ending: Sequence[Block] = (), problem: str = "") -> str:
        """RESEARCH.md about the user's `problem`, with these blocks at its end."""
        best = sorted(self.ideas, key=self._rank)
        left = [f"and {len(best) - MOST_ROWS} more, with larger errors"] if len(best) > MOST_ROWS else []
        return page(
            [
                TITLE,
                f'**The problem**, in the user\'s words: "{problem}"' if problem else "",
                HEAD,
                self._hidden(),
                self._standing(),
                self._table(best[:MOST_ROWS]),
                *left,
                *self._settled("## What holds", HOLDS),
                *self._settled("## What does not hold", WORSE),
                *ending,
            ]
        )

    def _hidden(self) -> str:
        if not self.hidden:
            return "No cell was hidden from the questions, because there are few." if self.loop else ""
        cells = ", ".join(sorted(self.hidden))
        return f"Hidden from all questions: {cells}. An idea holds only if its error falls on these cells, too."

    def _standing(self) -> str:
        """What is to be beaten, what was found, and what chance would find."""
        to_beat = (
            f"To beat: seed `{self.seed.operator.removeprefix(SEED)}`, group-out {_percent(self.seed.group_out)}. "
            if self.seed
            else ""
        )
        sent_back = sum(bool(o.rejection and o.rejection.stage == GATE) for o in self.ideas)
        back = f", {sent_back} sent back before a fit" if sent_back else ""
        hold, not_hold = (len(self.settled(verdict)) for verdict in (HOLDS, WORSE))
        found = f"{counted(len(self.ideas), 'idea')}{back}: {hold} hold, {not_hold} do not. "
        return f"{to_beat}{found}{by_chance(self.findings.values())}".strip()

    def _table(self, ideas: Sequence[Outcome]) -> Table:
        columns = [
            words("idea", "verdict"),
            figures(".2f", "group-out"),
            words("difference (95 %)", "hidden"),
            figures(".2f", "mean error", "TTFT", "ITL"),
            words("size"),
            figures(".1f", "mark"),
        ]
        return Table.of("", columns, [self._row(outcome) for outcome in ideas])

    def _row(self, outcome: Outcome) -> Row:
        p, elite, found = outcome.proposal, outcome.elite, self.findings.get(outcome.proposal.id)
        mark, name = mean_mark(p.reviews), f"{p.id}: {title_of(p.idea) or 'no title'}"
        if elite is None:
            return row(name, self.verdict(outcome), None, "-", "-", None, None, None, "-", mark)
        size = f"{elite.operations}+{elite.constants}"
        return row(
            name,
            *(self.verdict(outcome), elite.group_out, found.figures if found else "-", found.hidden if found else "-"),
            *(elite.mean_error, elite.score.ttft, elite.score.itl),
            *(size, mark),
        )

    def verdict(self, outcome: Outcome) -> str:
        """What became of an idea, in a few words."""
        if outcome.rejection:
            return f"refused: {outcome.rejection.stage}"
        found, same = self.findings.get(outcome.proposal.id), self.same_form(outcome.proposal.id)
        return ", ".join(filter(None, (found.verdict if found else "", same)))

    def _rank(self, outcome: Outcome) -> tuple[bool, bool, float, int]:
        elite, found = outcome.elite, self.findings.get(outcome.proposal.id)
        holds = bool(found and found.verdict == HOLDS)
        return elite is None, not holds, elite.charged_group_out if elite else 0.0, outcome.proposal.id

    def _settled(self, head: str, verdict: str) -> list[Block]:
        found = self.settled(verdict)[:MOST_SETTLED]
        return [head, [f"{f.title}: {f.line}" for f in found]] if found else []

    def _line(self, outcome: Outcome) -> str:
        p, elite, found = outcome.proposal, outcome.elite, self.findings.get(outcome.proposal.id)
        mark = mean_mark(p.reviews)
        errors = f", group-out {_percent(elite.group_out)}, difference {found.figures}" if elite and found else ""
        judged = "" if mark is None else f", mean mark {mark:.1f}"
        return f"- idea {p.id}: {title_of(p.idea) or 'no title'}: {self.verdict(outcome)}{errors}{judged}"


def whole_idea(idea: str) -> str:
    """An idea in a sentence; one that was journalled in part ends after its last whole word."""
    return f"{whole_words(idea, len(idea))} {CUT}" if idea.endswith(CUT) else idea


def _percent(error: float | None) -> str:
    return number(error, 2, signed=False)


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
