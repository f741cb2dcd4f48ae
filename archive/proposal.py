"""A proposal and its outcome: the values that a search passes around and its journal keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from archive.elite import Elite
from simulator.common.errors import LARGEST_WHOLE, shown
from simulator.common.json import JsonObject
from simulator.common.records import damaged, from_json, reader_of, record_class, stored
from simulator.language.ir import Program
from simulator.language.parse import parse

MODEL = "llm:"  # prefix of a language model's name where an operator's name is expected
TRIM = "trim"  # the operator of a finalist without one of its parts
POLISH = "polish"  # the operator of a finalist whose constants were polished, and the stage that rejects it
ENDING = (TRIM, POLISH)  # operators of the end of a search, in no generation
TIMEOUT = "timeout"  # the stage at which a proposal is rejected because its assessment took too long, twice
DUPLICATE = "duplicate"  # the stage at which a form is rejected that was proposed before
PRUNED = "pruned"  # the stage at which a candidate is rejected after the mean field alone
GATE = "gate"  # the stage at which an idea of a language model is refused before a fit
JUDGES = "judges"  # the stage at which reviewing language models reject a proposal
OLD_STAGES = {"hopeless": PRUNED}  # of releases up to 0.3
SCORED = "scored"  # what an outcome has in place of a stage if it was not rejected
OUTCOME = "outcome"  # the kind of a journal line that holds an Outcome


@dataclass(frozen=True, slots=True)
class Rejected:
    """The stage that rejected a candidate, and the reason in one line.

    Stages are parse, caps, units, bounds, numbers, fields, duplicate, gate, judges, pruned, the names of the gates,
    replay, polish and timeout.
    """

    stage: str
    why: str


@dataclass(frozen=True, slots=True)
class Review:
    """A judge's marks for a proposal, each (criterion, 0 to 10), and a remark."""

    judge: str
    marks: tuple[tuple[str, int], ...]
    remark: str

    @property
    def mean(self) -> float:
        return sum(mark for _, mark in self.marks) / max(len(self.marks), 1)

    def to_json(self) -> JsonObject:
        return {"judge": self.judge, "marks": dict(self.marks), "remark": self.remark}

    @classmethod
    def from_json(cls, raw: JsonObject) -> Review:
        """The review of a JSON object; of older releases each mark is a key of its own. Called by records."""
        marks = raw.get("marks", {name: mark for name, mark in raw.items() if name not in ("judge", "remark")})
        k: _Review = reader_of(_Review)({**raw, "marks": marks})
        return cls(k.judge, tuple(k.marks.items()), k.remark)


@record_class
class _Review:
    """The JSON object of a review."""

    judge: str
    marks: Mapping[str, int] = stored(limits=(0, 10))
    remark: str


@dataclass(frozen=True, slots=True)
class Form:
    """A program before it is assessed: the key of its form, and how many operations and features it has."""

    key: str
    operations: int
    features: int


@dataclass(frozen=True, slots=True)
class Proposal:
    """A program text to assess: its number, its island (None: all islands), what proposed it, and its parents' ids.

    A language model's proposal also has the name of the call that it answers, its idea in one sentence, the judges'
    reviews, how many `judges` were asked for one, and the motivation that the answer gives. `refused` is set if it must
    not be assessed. `form`: that of its text, if its proposer knows it.
    """

    id: int
    island: int | None
    text: str
    operator: str
    parents: tuple[int, ...]
    call: str = ""
    idea: str = ""
    reviews: tuple[Review, ...] = ()
    refused: Rejected | None = None
    motivation: str = ""
    judges: int = 0
    form: Form | None = field(default=None, compare=False, repr=False)

    @property
    def program(self) -> Program:
        """The program of its text (`parse` remembers texts). Raises ProgramError if it cannot be read."""
        return parse(self.text)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a proposal: an elite, or its rejection.

    `key` identifies the program's form if the proposal was fitted, which counts against the budget; otherwise it is "".
    `dropped`: the constants and fields of a language model's program that went with the terms that the fit set to 0.
    """

    proposal: Proposal
    verdict: Elite | Rejected
    key: str = ""
    dropped: tuple[str, ...] = ()

    @property
    def elite(self) -> Elite | None:
        """The scored program, None if the proposal was rejected."""
        return self.verdict if isinstance(self.verdict, Elite) else None

    @property
    def rejection(self) -> Rejected | None:
        """The rejection of the proposal, None if it was scored."""
        return self.verdict if isinstance(self.verdict, Rejected) else None

    def to_json(self) -> JsonObject:
        """The journal line: everything that the archive and later proposals depend on, without times and places."""
        p = self.proposal
        line: JsonObject = {"kind": OUTCOME, "id": p.id, "island": p.island, "operator": p.operator}
        line["parents"] = list(p.parents)
        if p.call:
            line |= {"call": p.call, "idea": p.idea, "reviews": [review.to_json() for review in p.reviews]}
            if p.judges:
                line["judges"] = p.judges
        if p.motivation:
            line["motivation"] = p.motivation
        key = {"key": self.key} if self.key else {}
        if isinstance(self.verdict, Rejected):
            why = {"stage": self.verdict.stage, "why": self.verdict.why, "text": p.text}
            return line | {"verdict": "rejected", **why, **key}
        dropped = {"dropped": list(self.dropped)} if self.dropped else {}
        proposed = {"proposed": p.text} if p.call else {}
        return line | {"verdict": SCORED, **key, **dropped, **proposed, "elite": self.verdict.to_json()}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Outcome:
        """The outcome in a journal line. Lines of older runs have no `kind`. Called by records."""
        line: _Scored | _Refused = reader_of(_Scored if raw.get("verdict") == SCORED else _Refused)(raw)
        verdict: Elite | Rejected
        if isinstance(line, _Scored):
            text, verdict, dropped = line.proposed or line.elite.text, line.elite, line.dropped
        else:
            text, verdict, dropped = line.text, Rejected(OLD_STAGES.get(line.stage, line.stage), line.why), ()
        proposal = Proposal(
            line.id,
            line.island,
            text,
            line.operator,
            line.parents,
            line.call,
            line.idea,
            line.reviews,
            motivation=line.motivation,
            judges=line.judges,
        )
        return cls(proposal, verdict, line.key, dropped)


@record_class
class _Line:
    """What every journal line of an outcome says."""

    id: int = stored(limits=(0, LARGEST_WHOLE))
    island: int | None = stored(limits=(0, LARGEST_WHOLE))
    operator: str
    parents: tuple[int, ...]
    key: str = stored(lacking="")
    call: str = stored(lacking="")
    idea: str = stored(lacking="")
    motivation: str = stored(lacking="")
    judges: int = stored(lacking=0, limits=(0, LARGEST_WHOLE))
    reviews: tuple[Review, ...] = stored(lacking=())


@record_class
class _Scored(_Line):
    elite: Elite
    proposed: str = stored(lacking="")  # the text before the fit; of a language model's program alone
    dropped: tuple[str, ...] = stored(lacking=())


@record_class
class _Refused(_Line):
    verdict: Literal["rejected"]
    stage: str
    why: str
    text: str


class Outcomes:
    """Reads the outcomes of a journal from its lines, one after the other."""

    def __init__(self, file: object, islands: int, remedy: str) -> None:
        self._file, self._islands, self._remedy = file, islands, remedy
        self._lines, self._ids = 0, set[int]()

    def read(self, line: Mapping[str, Any]) -> Outcome | None:
        """The outcome in the next line, None if it is about something else. Raises DamagedRecord, for one that no
        search can have written, too: its number again, or parents or an island that there are not."""
        self._lines += 1
        if not is_outcome(line):
            return None
        where = f"{self._file}:{self._lines}"
        outcome = from_json(Outcome, line, where, self._remedy)
        p = outcome.proposal
        wrong = {
            "id": p.id in self._ids and f"is that of an earlier line, {p.id}",
            "parents": not self._ids.issuperset(p.parents) and f"must be of earlier lines, got {shown([*p.parents])}",
            "island": (p.island or 0) >= self._islands and f"must be below {self._islands}, got {p.island}",
        }
        for key, problem in wrong.items():
            if problem:
                raise damaged(where, key, problem, self._remedy)
        self._ids.add(p.id)
        return outcome


def is_outcome(line: Mapping[str, Any]) -> bool:
    """True if a journal line holds an Outcome. Lines of older runs have a verdict instead of a kind.

    >>> is_outcome({"kind": "outcome"}), is_outcome({"verdict": "scored"}), is_outcome({"kind": "sent"})
    (True, True, False)
    """
    kind: str = line.get("kind", OUTCOME if "verdict" in line else "")
    return kind == OUTCOME


def ancestors(ids: Iterable[int], parents: Mapping[int, Sequence[int]]) -> set[int]:
    """The ids of the parents of these proposals, of their parents, and so on. `parents`: of each proposal, by its id.

    >>> ancestors([4], {2: (0, 1), 3: (2,), 4: (3, 2)})
    {0, 1, 2, 3}
    """
    found, left = set[int](), list(ids)
    while left:
        for parent in parents.get(left.pop(), ()):
            if parent not in found:
                found.add(parent)
                left.append(parent)
    return found
