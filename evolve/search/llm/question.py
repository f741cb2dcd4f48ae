"""A question for proposals: its rounds of answers, the candidates in them, and the proposals that they become."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from archive.archive import Archive
from archive.champion import merit
from archive.elite import Elite
from archive.population import Population, tournament
from archive.proposal import DUPLICATE, MODEL, Proposal, Rejected, Review
from evaluator.assess import Scored, faults
from evaluator.diagnose.trial import Trial
from evolve.run.config import Config
from evolve.search.llm.answer import LONGEST_IDEA, Idea
from evolve.search.llm.calls import LlmCall
from evolve.search.llm.prompt import figures
from evolve.search.llm.reading import complaint_of
from evolve.search.vocabulary import field_set
from simulator.common.text import plain
from simulator.language.complete import complete
from simulator.language.key import key

DRAWS = 4  # for each program that a question shows, since a tournament may draw the same one again
BEST_SHARE = 0.1  # of an island's programs with a transfer error: one of the best by merit is improved
LEAST_BASES = 4  # however few programs there are, one of so many is improved


@dataclass(frozen=True, slots=True)
class Candidate:
    """An idea, the name of the call that it answers, the key of its form ("" if there is nothing to assess), and its
    trial (None: not tried)."""

    idea: Idea
    call: str
    form: str
    trial: Trial | None = None

    @property
    def scored(self) -> Scored | None:
        """What the trial scored; None if there was none, or it was rejected."""
        return self.trial.verdict if self.trial and isinstance(self.trial.verdict, Scored) else None

    @property
    def line(self) -> str:
        """What became of it, in a line."""
        if self.trial is None:
            return f"refused: {self.idea.complaint}" if self.idea.complaint else "not tried"
        if isinstance(self.trial.verdict, Rejected):
            return f"refused: {self.trial.verdict.stage}: {self.trial.verdict.why}"
        return figures(self.trial.verdict)


@dataclass
class Question:
    """A question for programs that change `base`, asked of a model for an island.

    Its first round fills the places `number` to number + count - 1, later rounds `stride` each from `reserve` on.
    `granted`: no limit forbids it. `rounds` holds the candidates of each answer, `calls` what was asked for them. By
    (round, candidate): `reviews` those of the judges, `judges` how many were asked, `refused` why it does not go on.
    """

    number: int
    reserve: int
    stride: int
    count: int
    island: int
    model: str
    base: Elite
    others: tuple[Elite, ...]
    kinds: tuple[str, ...]
    calls: list[LlmCall] = field(default_factory=list)
    granted: bool = True
    closed: bool = False  # whether no further round is asked
    rounds: list[list[Candidate]] = field(default_factory=list)
    reviews: dict[tuple[int, int], list[Review]] = field(default_factory=dict)
    judges: Counter[tuple[int, int]] = field(default_factory=Counter)
    refused: dict[tuple[int, int], Rejected] = field(default_factory=dict)

    @property
    def candidates(self) -> list[tuple[tuple[int, int], Candidate]]:
        """All candidates with their (round, position)."""
        return [((r, i), c) for r, candidates in enumerate(self.rounds) for i, c in enumerate(candidates)]

    def lines(self) -> list[str]:
        """A line on each program of the last round."""
        return [f"- Proposal {i}: {candidate.line}" for i, candidate in enumerate(self.rounds[-1], 1)]

    def best(self) -> str:
        """What is known of the best program of the last round by joint and transfer error; "" if none was scored."""
        scored = [(i, c, s) for i, c in enumerate(self.rounds[-1], 1) if (s := c.scored)]
        if not scored:
            return ""
        i, candidate, _ = min(scored, key=lambda x: (not x[2].sound, merit_of(x[2]), x[0]))
        assert candidate.trial is not None
        return f"Proposal {i}\n{candidate.trial.known}"

    def place(self, round_index: int, k: int) -> int:
        """The number of the proposal that candidate k of a round becomes."""
        return self.number + k if round_index == 0 else self.reserve + (round_index - 1) * self.stride + k

    def proposal(self, round_index: int, k: int) -> Proposal | None:
        """Candidate k of a round as a proposal; None if nothing was asked, or no answer came.

        An answer to the first round that has fewer programs than it was asked for leaves proposals that say so.
        """
        if round_index >= len(self.rounds) or not self.rounds[round_index]:
            return None
        candidates = self.rounds[round_index]
        parents, name = (self.base.id, *(e.id for e in self.others)), self.calls[round_index].name
        empty = Proposal(self.place(round_index, k), self.island, "", MODEL + self.model, parents, name)
        if k >= len(candidates):
            if round_index:
                return None
            given = sum(candidate.idea.given for candidate in candidates)
            return replace(empty, refused=Rejected("answer", f"{given} of {self.count} proposals were given"))
        at, idea = (round_index, k), candidates[k].idea
        title = plain("; ".join(filter(None, (idea.title, *idea.notes))), LONGEST_IDEA)
        proposal = replace(
            empty, text=idea.text, call=candidates[k].call, idea=title, reviews=tuple(self.reviews.get(at, ())),
            motivation=idea.motivation, judges=self.judges[at],
        )  # fmt: skip
        if idea.complaint:
            return replace(proposal, refused=Rejected(idea.stage, idea.complaint))
        return replace(proposal, refused=self.refused.get(at))


def merit_of(scored: Scored) -> float:
    """The merit of a program that was tried."""
    return merit(scored.score.joint, scored.transfer)


# The forms that were proposed before, by key, and the programs that have them.
Taken = MutableMapping[str, Elite | None]


def taken_forms(archive: Archive) -> Taken:
    """The forms that an archive holds, or that were refused after a fit (None)."""
    return dict.fromkeys(archive.keys) | {elite.key: elite for elite in archive.by_id.values()}


def checked(idea: Idea, call: str, config: Config, taken: Taken) -> Candidate:
    """An idea after the checks that a search makes before it fits a program. A new form is added to `taken`."""
    if idea.program is None:
        return Candidate(idea, call, "")
    program = complete(idea.program)
    if wrong := list(faults(program, config.caps, field_set(config.search.fields))):
        complaint = complaint_of(idea.places, ((fault.line, fault.why) for fault in wrong))
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


def bases(elites: Sequence[Elite], population: Population) -> list[Elite]:
    """The programs of which one is improved: the best tenth by merit of those with a transfer error, the best first.

    All count where none has one, as in a search without folds.
    """
    measured = [e for e in elites if e.transfer is not None] or list(elites)
    ranked = sorted(measured, key=lambda e: (not e.sound, population.rule.merit(e), e.id))
    return ranked[: max(math.ceil(BEST_SHARE * len(ranked)), min(LEAST_BASES, len(ranked)))]


def draw_base(elites: Sequence[Elite], population: Population, rng: np.random.Generator) -> Elite:
    """The program to be changed, one of `bases`."""
    few = bases(elites, population)
    return few[int(rng.integers(len(few)))]


def draw_others(
    elites: Sequence[Elite],
    order: Sequence[tuple[float, ...]],
    entrants: int,
    count: int,
    base: Elite,
    population: Population,
    rng: np.random.Generator,
) -> tuple[Elite, ...]:
    """Up to `count` other programs that a question shows: the champion, and winners of tournaments of so many
    entrants."""
    best = population.champion()
    drawn = [tournament(elites, order, entrants, rng) for _ in range(DRAWS * (count + 1))]
    others = {e.id: e for e in ([best] if best else []) + drawn if e.id != base.id}
    return tuple(others.values())[:count]
