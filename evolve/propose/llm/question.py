"""A question for proposals: the candidates in its answer after the first checks, and the proposals they become."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from archive.archive import Archive
from archive.elite import Elite
from archive.population import tournament
from archive.proposal import MODEL, Proposal, Rejected, Review
from evaluator.assess import faults
from evolve.propose.llm import judges
from evolve.propose.llm.answer import LONGEST_IDEA, Idea
from evolve.propose.llm.calls import Call
from evolve.propose.llm.reading import told
from evolve.propose.vocabulary import field_set
from evolve.run.config import Config
from simulator.language.complete import complete
from simulator.language.key import key
from simulator.text import plain

DUPLICATE = "duplicate"  # the stage at which a form is refused that was proposed before
DRAWS = 4  # for each program that a question shows, since a tournament may draw the same one again


@dataclass(frozen=True, slots=True)
class Candidate:
    """An idea, the name of the call that it answers, and the key of its form ("" if there is nothing to assess)."""

    idea: Idea
    call: str
    form: str


@dataclass
class Question:
    """A question for proposals `number` to number + count - 1 of an island, which change `base`.

    `granted`: no limit forbids it. `candidates` and `reviews` (by candidate) come from its answer and the judges.
    """

    number: int
    count: int
    island: int
    model: str
    base: Elite
    others: tuple[Elite, ...]
    kinds: tuple[str, ...]
    call: Call | None = None
    granted: bool = True
    candidates: list[Candidate] = field(default_factory=list)
    reviews: dict[int, list[Review]] = field(default_factory=dict)

    @property
    def wrong(self) -> list[int]:
        """The indices of candidates with a complaint. A duplicate has no mistake that could be repaired."""
        ideas = [candidate.idea for candidate in self.candidates]
        return [i for i, idea in enumerate(ideas) if idea.complaint and idea.stage != DUPLICATE]

    def proposal(self, k: int, judge_below: float) -> Proposal | None:
        """Candidate k as a proposal; None if nothing was asked, or no answer came."""
        if not self.candidates:
            return None
        parents, name = (self.base.id, *(e.id for e in self.others)), self.call.name if self.call else ""
        empty = Proposal(self.number + k, self.island, "", MODEL + self.model, parents, name)
        if k >= len(self.candidates):
            return replace(
                empty, refused=Rejected("answer", f"{len(self.candidates)} of {self.count} proposals were given")
            )
        candidate, reviews = self.candidates[k], self.reviews.get(k, [])
        idea = candidate.idea
        title = plain("; ".join(filter(None, (idea.title, *idea.notes))), LONGEST_IDEA)
        proposal = replace(empty, text=idea.text, call=candidate.call, idea=title, reviews=tuple(reviews))
        if idea.complaint:
            return replace(proposal, refused=Rejected(idea.stage, idea.complaint))
        return replace(proposal, refused=judges.verdict(reviews, judge_below))


Taken = MutableMapping[
    str, Elite | None
]  # the forms that were proposed before, by key, and the programs that have them


def taken_forms(archive: Archive) -> Taken:
    """The forms that an archive holds, or that were refused after a fit (None)."""
    return dict.fromkeys(archive.keys) | {elite.key: elite for elite in archive.by_id.values()}


def checked(idea: Idea, call: str, config: Config, taken: Taken) -> Candidate:
    """An idea after the checks that a search makes before it fits a program. A new form is added to `taken`."""
    if idea.program is None:
        return Candidate(idea, call, "")
    program = complete(idea.program)
    if wrong := list(faults(program, config.caps, field_set(config.search.fields))):
        complaint = told(idea.places, ((fault.line, fault.why) for fault in wrong))
        return Candidate(replace(idea, complaint=complaint, stage=wrong[0].stage), call, "")
    form = key(program)
    if form in taken:
        return Candidate(replace(idea, complaint=_known(taken[form]), stage=DUPLICATE), call, "")
    taken[form] = None
    return Candidate(idea, call, form)


def _known(elite: Elite | None) -> str:
    """The complaint about a form that was proposed before, which `elite` has if it was scored."""
    if elite is None:
        return "this form was proposed before"
    transfer = "" if elite.transfer is None else f", transfer {elite.transfer:.2f}"
    return f"the form of program {elite.id}: joint {elite.joint:.2f}{transfer}"


def draw_parents(
    elites: Sequence[Elite],
    order: Sequence[tuple[float, ...]],
    sizes: tuple[int, int],
    count: int,
    rng: np.random.Generator,
) -> tuple[Elite, tuple[Elite, ...]]:
    """The program to be changed and up to count - 1 others, drawn by tournaments of `sizes` entrants."""
    base = tournament(elites, order, sizes[0], rng)
    drawn = [tournament(elites, order, sizes[1], rng) for _ in range(DRAWS * count)]
    others = {e.id: e for e in drawn if e.id != base.id}
    return base, tuple(others.values())[: count - 1]
