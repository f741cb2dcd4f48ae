"""A question for proposals and what came of it: ideas in their places, checked as a search does, then proposals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from archive.elite import Elite
from archive.population import tournament
from archive.proposal import MODEL, Proposal, Rejected, Review
from evaluator.assess import read
from evolve.propose.llm import judges
from evolve.propose.llm.answer import Idea
from evolve.propose.llm.calls import Call
from evolve.propose.vocabulary import field_set
from evolve.run.config import Config
from simulator.language.key import key

DRAWS = 4  # for each program of a question, since the same may be drawn again


@dataclass(frozen=True, slots=True)
class Place:
    """An idea, the call it is from, and the key of its form ("" where it is nothing to assess)."""

    idea: Idea
    source: str
    form: str


@dataclass
class Ask:
    """For proposals `number` to number + count - 1 of an island, to change `base`. `granted`: no limit forbids it."""

    number: int
    count: int
    island: int
    model: str
    base: Elite
    others: tuple[Elite, ...]
    kinds: tuple[str, ...]
    call: Call | None = None
    granted: bool = True
    places: list[Place] = field(default_factory=list)
    reviews: dict[int, list[Review]] = field(default_factory=dict)  # by place

    @property
    def wrong(self) -> list[int]:
        """The places with something to complain of."""
        return [i for i, place in enumerate(self.places) if place.idea.complaint]

    def proposal(self, k: int, judge_below: float) -> Proposal | None:
        """What stands in place k; None where nothing was asked, or no answer came."""
        if not self.places:
            return None
        parents, name = (self.base.id, *(e.id for e in self.others)), self.call.name if self.call else ""
        empty = Proposal(self.number + k, self.island, "", MODEL + self.model, parents, name)
        if k >= len(self.places):
            return replace(
                empty, refused=Rejected("answer", f"{len(self.places)} of {self.count} proposals were given")
            )
        idea, reviews = self.places[k].idea, self.reviews.get(k, [])
        made = replace(empty, text=idea.text, call=self.places[k].source, idea=idea.title, reviews=tuple(reviews))
        if not idea.text:
            return replace(made, refused=Rejected("answer", idea.complaint))
        return replace(made, refused=judges.verdict(reviews, judge_below))


def checked(idea: Idea, source: str, config: Config, taken: set[str]) -> Place:
    """An idea with what a search says of its text before it is fitted; a new form is added to `taken`."""
    if idea.complaint:
        return Place(idea, source, "")
    program = read(idea.text, config.caps, field_set(config.search.fields))
    if isinstance(program, Rejected):
        return Place(replace(idea, complaint=f"{program.stage}: {program.why}"), source, "")
    form = key(program)
    if form in taken:
        return Place(replace(idea, complaint="duplicate: this form was proposed before"), source, "")
    taken.add(form)
    return Place(idea, source, form)


def families(
    elites: Sequence[Elite], order: Sequence[Any], sizes: tuple[int, int], count: int, rng: np.random.Generator
) -> tuple[Elite, tuple[Elite, ...]]:
    """The program that is to be changed and up to count - 1 others beside it, by tournaments of so many entrants."""
    base = tournament(elites, order, sizes[0], rng)
    drawn = [tournament(elites, order, sizes[1], rng) for _ in range(DRAWS * count)]
    others = {e.id: e for e in drawn if e.id != base.id}
    return base, tuple(others.values())[: count - 1]
