"""OpenEvolve (0.4) as the engine: its database of islands and grids chooses parents, our operators stand for its LLM.

What its database needs from the outside: only scored programs and finite figures (others would become parents or
poison its scales); grids whose range is fixed beforehand, because it never bins anew what it has placed; members whose
order does not depend on the hash seed of the process. It draws from Python's global `random`, which is seeded here and
given back as it was. Its settings are its own defaults, but for the two dimensions of our grid.
"""

from __future__ import annotations

import importlib.util
import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from archive.elite import Elite
from evolve.study.engines.judge import Judge
from evolve.study.engines.plain import changed, offer_seeds, stream_of
from simulator.language.parse import parse
from simulator.language.unparse import unparse

INSTALL = "openevolve is not installed: pip install evolve-latency[openevolve]"


def installed() -> bool:
    return importlib.util.find_spec("openevolve") is not None


@contextmanager
def global_random(seed: int) -> Iterator[int]:
    """Python's global random numbers, seeded from `seed` (the number is yielded), and as they were afterwards."""
    state = random.getstate()
    number = int(np.random.SeedSequence(seed).generate_state(1)[0])
    random.seed(number)
    try:
        yield number
    finally:
        random.setstate(state)


class _Id(str):
    """A member's number as its name; in a set it has the place of its number."""

    __slots__ = ()

    def __hash__(self) -> int:
        return int(self)


def openevolve(judge: Judge) -> None:
    """Parents from the database's islands in turn, scored children into the island that they were sampled from."""
    logging.getLogger("openevolve").setLevel(logging.ERROR)
    from openevolve.database import Program as Member

    with global_random(judge.config.seed) as seed:
        database = _database(judge, seed)
        offer_seeds(judge)
        if not judge.elites:
            return  # it has no parents without a scored program
        islands = len(database.islands)
        for i, elite in enumerate(judge.elites):
            database.add(Member(elite.id, elite.text, metrics=_metrics(judge, elite)), i, i % islands)
        turn = 0
        while True:
            island = turn % islands
            turn += 1
            parent, others = database.sample_from_island(island)
            rng = stream_of(judge)
            second = others[rng.integers(len(others))] if others else parent
            child = changed(judge, parse(parent.code), parse(second.code), rng)
            verdict = judge.offer(unparse(child))
            if verdict.stage:
                continue
            assert verdict.elite is not None
            member = Member(verdict.elite.id, verdict.elite.text, parent_id=parent.id,
                            generation=parent.generation + 1, metrics=_metrics(judge, verdict.elite))  # fmt: skip
            database.add(member, turn, island)
            database.increment_island_generation(island)
            if database.should_migrate():
                database.migrate_programs()


def _metrics(judge: Judge, elite: Elite) -> dict[str, float]:
    """What the database bins and compares: counts within the grid, and a score that falls with the joint error."""
    most = 2 * judge.config.search.feature_bins
    return {
        "combined_score": 1.0 / (1.0 + elite.joint),
        "operations": float(elite.operations),
        "features": float(min(elite.features, most)),
    }


def _database(judge: Judge, seed: int) -> Any:
    from openevolve.config import DatabaseConfig
    from openevolve.database import ProgramDatabase

    class Database(ProgramDatabase):  # type: ignore[misc]
        """Whatever is added, migrants too, is called by its number."""

        added = 0

        def add(self, program: Any, *args: Any, **kwargs: Any) -> Any:
            self.added += 1
            program.id = _Id(self.added)
            return super().add(program, *args, **kwargs)

    search = judge.config.search
    bins = {"operations": search.operation_bins, "features": search.feature_bins}
    database = Database(
        DatabaseConfig(random_seed=seed, feature_dimensions=list(bins), feature_bins=bins, log_prompts=False)
    )
    for name, most in (("operations", judge.config.caps.operations), ("features", 2 * search.feature_bins)):
        database.feature_stats[name] = {"min": 0.0, "max": float(max(most, 1)), "values": []}
    return database
