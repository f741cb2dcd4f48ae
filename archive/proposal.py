"""A proposal, and what became of it: the values that a search passes around and its journal keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from archive.elite import Elite

MODEL = "llm:"  # prefix of a language model's name where an operator's name is expected
SEED = "seed:"  # prefix of a starting program's name
POLISH = "polish"  # the operator of a finalist whose constants were polished
JUDGES = "judges"  # the stage at which language models that review proposals refuse one
OUTCOME = "outcome"  # the kind of journal line that holds an Outcome


@dataclass(frozen=True, slots=True)
class Rejected:
    """Why a candidate went no further: the stage (parse, caps, units, fields, duplicate, the gates' names, replay) and
    one line of text."""

    stage: str
    why: str


@dataclass(frozen=True, slots=True)
class Review:
    """A judge's marks for a proposal, each from 0 to 10, and a remark."""

    judge: str
    mechanism: int
    transfer: int
    identifiable: int
    economy: int
    remark: str


@dataclass(frozen=True, slots=True)
class Proposal:
    """A program text to be assessed: its number, the island it is for (None: all), what made it, and from which elites.

    A language model's proposal also has the call that it answers, its idea in a sentence and the judges' reviews.
    `refused` is set where it must not be assessed.
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


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a proposal: an elite, or why it was rejected.

    `key` is the key of its form if it reached fitting, which counts against the budget; otherwise it is "".
    """

    proposal: Proposal
    verdict: Elite | Rejected
    key: str = ""

    @property
    def elite(self) -> Elite | None:
        """The scored program, None if the proposal was rejected."""
        return self.verdict if isinstance(self.verdict, Elite) else None

    @property
    def rejection(self) -> Rejected | None:
        """Why the proposal was rejected, None if it was scored."""
        return self.verdict if isinstance(self.verdict, Rejected) else None

    def to_json(self) -> dict[str, Any]:
        """The journal line: all that the archive and later proposals depend on, nothing about when or where.

        >>> Outcome(Proposal(7, 0, "x", "add", (1, 2)), Rejected("parse", "no function")).to_json()["stage"]
        'parse'
        """
        p = self.proposal
        line: dict[str, Any] = {"kind": OUTCOME, "id": p.id, "island": p.island, "operator": p.operator,
                                "parents": list(p.parents)}  # fmt: skip
        if p.call:
            line |= {"call": p.call, "idea": p.idea, "reviews": [asdict(review) for review in p.reviews]}
        key = {"key": self.key} if self.key else {}
        if isinstance(self.verdict, Rejected):
            return line | {"verdict": "rejected", "stage": self.verdict.stage, "why": self.verdict.why,
                           "text": p.text, **key}  # fmt: skip
        return line | {"verdict": "scored", **key, "elite": self.verdict.to_json()}

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Outcome:
        """The outcome that a journal line holds. Lines of older runs have no `kind`."""
        scored = line["verdict"] == "scored"
        text = line["elite"]["text"] if scored else line["text"]
        reviews = tuple(Review(**review) for review in line.get("reviews", ()))
        proposal = Proposal(line["id"], line["island"], text, line["operator"], tuple(line["parents"]),
                            line.get("call", ""), line.get("idea", ""), reviews)  # fmt: skip
        verdict = Elite.from_json(line["elite"]) if scored else Rejected(line["stage"], line["why"])
        return cls(proposal, verdict, line.get("key", ""))


def is_outcome(line: Mapping[str, Any]) -> bool:
    """Whether a journal line holds an Outcome; lines of older runs are known by their verdict."""
    kind: str = line.get("kind", OUTCOME if "verdict" in line else "")
    return kind == OUTCOME
