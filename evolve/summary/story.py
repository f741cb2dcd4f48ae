"""The story of a run: its outcomes in order, the population that they make, and the champion so far."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from archive.elite import SEED, Elite
from archive.population import Population
from archive.proposal import ENDING, Outcome
from evolve.run.config import Config, SearchSettings
from evolve.run.folder import first_population

POINTS = 50  # outcomes after which there is a point of the champion so far, however long a generation is


@dataclass(frozen=True, slots=True)
class Told:
    """An outcome; its generation (0: the starting programs; None: polished, or not known), and whether its elite took a
    place on an island (None: not known)."""

    outcome: Outcome
    generation: int | None
    kept: bool | None


@dataclass(frozen=True, slots=True)
class Best:
    """The champion after the first `after` outcomes."""

    after: int
    champion: Elite


def generation_of(number: int, seeds: int, search: SearchSettings) -> int:
    """The generation, from 1, that made the proposal of this number in a search that began with so many programs."""
    return (number - seeds) // (search.batch * search.islands) + 1


class Story:
    """The outcomes of a run and the population that they make, told again as the search told them.

    A proposal's number says its generation. So islands select and migrate where they did in the search, and `kept` and
    `best` are those of the search. If the numbers are not those of a search, generations and `kept` are None from there
    on; the archive is exact all the same, because it depends on the order of the outcomes only.
    """

    def __init__(self, config: Config) -> None:
        self.population: Population = first_population(config)
        self.rows: list[Told] = []
        self.best: list[Best] = []
        self._search, self._place = config.search, config.search.batch * config.search.islands
        self._at: dict[int, int] = {}  # where in `rows` a proposal's outcome is
        self._seeds, self._generation, self._ended, self._known = 0, 0, False, True

    def add(self, outcome: Outcome) -> None:
        generation = self._generation_of(outcome)
        kept = self.population.tell(outcome)
        self._at[outcome.proposal.id] = len(self.rows)
        self.rows.append(Told(outcome, generation, kept if self._known else None))
        if len(self.rows) - self._pointed >= POINTS:
            self._point()

    def outcome(self, number: int) -> Outcome | None:
        return self.rows[self._at[number]].outcome if number in self._at else None

    def points(self) -> Iterator[Best]:
        """The champion so far: after every generation, at least every POINTS outcomes, and now."""
        yield from self.best
        if now := self._now():
            yield now

    def _generation_of(self, outcome: Outcome) -> int | None:
        """The generation of the next outcome; if it is the first of one, the one before it ends."""
        proposal = outcome.proposal
        if not self._known or proposal.island is None:
            self._seeds += proposal.operator.startswith(SEED)
            if proposal.operator in ENDING and not self._ended:
                self._ended = True
                self._point()
            return 0 if proposal.operator.startswith(SEED) else None
        generation = generation_of(proposal.id, self._seeds, self._search)
        place = (proposal.id - self._seeds) % self._place
        if self._ended or generation - self._generation not in (0, 1) or place // self._search.batch != proposal.island:
            self._known = False
            return None
        if generation > self._generation:
            self._begin(generation)
        return self._generation

    def _begin(self, generation: int) -> None:
        """End the generation before this one and do what the search does before it asks for this one."""
        self._point()
        if generation > 1 and (generation - 1) % self._search.migrate_every == 0:
            self.population.migrate(self._search.migrants)
        for island in self.population.islands:
            island.select()
        self._generation = generation

    def _point(self) -> None:
        if now := self._now():
            self.best.append(now)

    def _now(self) -> Best | None:
        """The champion so far, if there is one and outcomes were told since the last point."""
        best = self.population.champion() if len(self.rows) > self._pointed else None
        return Best(len(self.rows), best) if best else None

    @property
    def _pointed(self) -> int:
        """The outcomes that the last point covers."""
        return self.best[-1].after if self.best else 0
