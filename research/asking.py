"""The searches of a comparison that ask language models: ordinary runs, whose curves are read from their journals.

They are carried out by this process, which writes down a request before it is sent; a pool assesses their candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from archive.journal import Journal
from evolve.output.files import write_json
from evolve.output.progress import ProgressTimes
from evolve.run.config import Config
from evolve.run.folder import first_population, open_run
from evolve.run.llm_settings import LlmSettings
from evolve.run.spent import read_spent
from evolve.search.pool.pool import Pool
from evolve.validate.costs import runs_in
from evolve.validate.shares import check_spent, share, shared_out
from evolve.validate.study import Finished, Member, carry_out
from research.comparison import CURVE, DONE, Comparison, ended, point
from research.engines.engines import ENGINES


@dataclass(frozen=True, slots=True)
class Asking:
    """A search that asks language models."""

    engine: str
    folder: Path
    config: Config  # with its seed, and its share of the limits


def asking(comparison: Comparison) -> list[Asking]:
    """The searches of a comparison that ask language models.

    Their limits are equal shares among all such searches in the folder, those of earlier calls included. Raises
    InputError if one of these has spent more than that.
    """
    engines = [name for name in comparison.engines if ENGINES[name].asks(comparison.config)]
    if not engines:
        return []
    check_spent(runs_in(comparison.path), comparison.asking, comparison.config.llm)
    each = share(comparison.config.llm, comparison.asking)
    searches = [
        Asking(name, comparison.folder(name, seed), _config(comparison, name, seed, each))
        for seed in comparison.search_seeds
        for name in engines
    ]
    for run in runs_in(comparison.path):
        shared_out(run, each)
    return searches


def _config(comparison: Comparison, engine: str, seed: int, each: LlmSettings) -> Config:
    config = ENGINES[engine].config(replace(comparison.config, seed=seed, llm=each))
    # All engines of a comparison start from the shipped programs.
    return replace(config, search=replace(config.search, start=(), only_start=False))


def work(searches: Sequence[Asking], pool: Pool) -> None:
    """Finish these searches, and write the curve and the end of each."""

    def then(number: int, finished: Finished, progress: ProgressTimes) -> None:
        write_end(searches[number])

    members = [Member(search.folder, search.config) for search in searches]
    if members:
        carry_out(members, "search", pool, full=False, then=then)


def write_end(search: Asking) -> None:
    """Write curve.jsonl and done.json of a finished search, from its journal."""
    run = open_run(search.folder)
    population, spent, cpu_s = first_population(run.config), read_spent(run.path), 0.0
    path = search.folder / CURVE
    path.unlink(missing_ok=True)  # of before a limit was raised
    file = Journal(path)
    try:
        for outcome in run.outcomes():
            cpu_s += spent.get(outcome.proposal.id, 0.0)
            before = population.fitted
            population.tell(outcome)
            if population.fitted > before:
                file.append([point(population, cpu_s)])
    finally:
        file.close()
    write_json(search.folder / DONE, ended(search.engine, run.config.seed, population))
