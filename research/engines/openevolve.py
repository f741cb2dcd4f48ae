"""OpenEvolve (0.4) as an engine: its database of islands and grids chooses parents, our operators replace its LLM.

The database needs some care. It gets only scored programs and finite figures: others would become parents or spoil its
scales. The ranges of its grids are fixed beforehand, because it never moves a program to another bin. The order of its
members must not depend on the hash seed of the process. It draws from Python's global `random`, which is seeded here
and restored afterwards. Its settings are its defaults, except for the two dimensions of our grid.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Sequence
from typing import Any

from archive.elite import Elite
from archive.population import Offered, Population
from archive.proposal import Proposal
from evolve.run.config import Config
from research.engines.bench import Bench, GlobalRandom, numbered
from simulator.language.parse import parse
from simulator.language.unparse import unparse

INSTALL = "openevolve is not installed: pip install evolve-latency[openevolve]"


def installed() -> bool:
    """Return True if OpenEvolve can be imported."""
    return importlib.util.find_spec("openevolve") is not None


class _Id(str):
    """A member's number as its id. Its hash is the number, so that the order of a set of ids is always the same."""

    __slots__ = ()

    def __hash__(self) -> int:
        return int(self)


class OpenEvolve:
    """Takes parents from the database's islands in turn. A scored child goes to its parent's island."""

    def __init__(self, bench: Bench) -> None:
        logging.getLogger("openevolve").setLevel(logging.ERROR)
        self._bench, self._random = bench, GlobalRandom(bench.config.seed)
        with self._random:
            self._database = _database(bench.config, self._random.seed)
        self._turn = 0
        self._parent: Any = None  # of the last child

    def ask(self, population: Population, generation: int) -> list[Proposal]:
        if not self._bench.left(population) or not population.archive.by_id:  # only scored programs are parents
            return []
        with self._random:
            self._parent, others = self._database.sample_from_island(self._island)
        rng = self._bench.stream(population)
        second = others[rng.integers(len(others))] if others else self._parent
        child = self._bench.changed(parse(self._parent.code), parse(second.code), rng)
        return numbered(population, "openevolve", [unparse(child)])

    def tell(self, outcomes: Sequence[Offered]) -> None:
        elites = [outcome.elite for outcome, *_ in outcomes if outcome.elite]
        with self._random:
            if self._parent is None:  # these are the seed programs: distribute them over the islands
                for i, elite in enumerate(elites):
                    self._add(elite, i, i % len(self._database.islands))
                return
            for elite in elites:
                self._add(elite, self._turn + 1, self._island)
                self._database.increment_island_generation(self._island)
                if self._database.should_migrate():
                    self._database.migrate_programs()
        self._turn += 1

    @property
    def _island(self) -> int:
        return self._turn % len(self._database.islands)

    def _add(self, elite: Elite, iteration: int, island: int) -> None:
        descent = {"parent_id": self._parent.id, "generation": self._parent.generation + 1} if self._parent else {}
        metrics = _metrics(self._bench.config, elite)
        self._database.add(_member(elite.id, elite.text, metrics=metrics, **descent), iteration, island)


def _metrics(config: Config, elite: Elite) -> dict[str, float]:
    """The values that the database bins and compares: limited counts, and a score that falls as the error grows."""
    most = 2 * config.search.feature_bins
    return {
        "combined_score": 1.0 / (1.0 + elite.mean_error),
        "operations": float(elite.operations),
        "features": float(min(elite.features, most)),
    }


def _member(*args: Any, **kwargs: Any) -> Any:
    from openevolve.database import Program  # an optional library, see _database

    return Program(*args, **kwargs)


def _database(config: Config, seed: int) -> Any:
    # The library is optional and takes seconds to load, so it is imported only when it is used.
    from openevolve.config import DatabaseConfig
    from openevolve.database import ProgramDatabase

    class Database(ProgramDatabase):  # type: ignore[misc]
        """A database that numbers its members, migrants included, in the order in which they are added."""

        added = 0

        def add(self, program: Any, *args: Any, **kwargs: Any) -> Any:
            self.added += 1
            program.id = _Id(self.added)
            return super().add(program, *args, **kwargs)

    search = config.search
    bins = {"operations": search.operation_bins, "features": search.feature_bins}
    database = Database(
        DatabaseConfig(random_seed=seed, feature_dimensions=list(bins), feature_bins=bins, log_prompts=False)
    )
    for name, most in (("operations", config.caps.operations), ("features", 2 * search.feature_bins)):
        database.feature_stats[name] = {"min": 0.0, "max": float(max(most, 1)), "values": []}
    return database
