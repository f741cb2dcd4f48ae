"""The engines that can be compared, by name, and one search by one of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from evolve.propose.offline import PROBING
from evolve.run.config import OPERATORS
from evolve.run.data import parse_list
from evolve.run.folder import write_json
from evolve.study.engines import openevolve, plain
from evolve.study.engines.gp import genetic
from evolve.study.engines.judge import Judge, Spent, Task
from evolve.study.engines.own import evolution
from simulator.errors import InputError, nearest

OURS = "evolution"
BLIND = {name: 0.0 if name in PROBING else weight for name, weight in OPERATORS.items()}
ENGINES: dict[str, tuple[Callable[[Judge], None], str]] = {
    OURS: (evolution, "our engine as configured"),
    "random": (plain.random_search, "our operators on the seed programs, no selection"),
    "climb": (plain.climb, "our operators on the best so far"),
    "gp": (genetic, "plain genetic programming, typed trees (deap)"),
    "openevolve": (openevolve.openevolve, "OpenEvolve's database chooses parents, our operators change them"),
    "no-islands": (partial(evolution, islands=1), "ours with one population"),
    "no-grid": (partial(evolution, grid=False), "ours with parents from the front alone"),
    "no-probe": (partial(evolution, operators=BLIND), "ours without the operators that look at errors"),
    "no-bandit": (partial(evolution, bandit=False), "ours with fixed chances of the operators"),
}


def engine_names(only: str | None) -> tuple[list[str], list[str]]:
    """The engines of `a,b` in the order of ENGINES (None: all that are installed), and a line for each left out.

    Raises InputError for an unknown name, or one that is not installed.
    """
    wanted = parse_list(only)
    for name in wanted:
        if name not in ENGINES:
            hint = nearest(name, list(ENGINES)) or f"there are {', '.join(ENGINES)}"
            raise InputError(f"--only {name}: no such engine: {hint}")
    if "openevolve" in wanted and not openevolve.installed():
        raise InputError(f"--only openevolve: {openevolve.INSTALL}")
    if wanted:
        return [name for name in ENGINES if name in wanted], []
    if openevolve.installed():
        return list(ENGINES), []
    return [name for name in ENGINES if name != "openevolve"], [openevolve.INSTALL]


def search(task: Task, watch: Callable[[], None] = lambda: None) -> None:
    """Run a task to the end of its budget, from wherever its journal stands; then done.json says that it ended."""
    task.folder.mkdir(parents=True, exist_ok=True)
    judge = Judge(task, watch)
    try:
        with suppress(Spent):
            ENGINES[task.engine][0](judge)
    finally:
        judge.close()
    write_json(task.folder / "done.json", judge.summary())
