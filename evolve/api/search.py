"""Searches of the Python interface: start one, watch it, and go on with one that was interrupted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from archive.population import Population
from evolve.api import arguments
from evolve.api.program import Program
from evolve.api.run import Run
from evolve.output import progress
from evolve.processes import WorkStopped, default_workers
from evolve.run import folder
from evolve.run.checkpoint import absolute
from evolve.run.config import Config
from evolve.run.config_file import config_from, load_config, to_mapping
from evolve.run.folder import open_run
from evolve.run.program import load
from evolve.search import run as run_module
from evolve.search.pool.local import local
from evolve.validate.costs import without_answers
from simulator.common.errors import InputError, shown


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a search.

    run: its folder. candidates: how many were fitted, of the `budget`. accepted: members of the archive.
    mean_error_pct, group_out_pct: errors of the champion so far, None where there is none.

    >>> seen = []
    >>> _ = evolve.search(config, budget=9, workers=1, out=folder / "watched", on_progress=seen.append)
    >>> seen[-1].candidates, seen[-1].budget
    (9, 9)
    """

    run: Path
    candidates: int
    budget: int
    accepted: int
    mean_error_pct: float | None
    group_out_pct: float | None


MOST_WORKERS = 10_000

Watcher: TypeAlias = Callable[[Progress], object]
Start: TypeAlias = str | Path | Program


def search(
    config: str | Path | Mapping[str, Any] = "default",
    start: Start | Sequence[Start] = (),
    *,
    budget: int | None = None,
    seed: int | None = None,
    workers: int | None = None,
    out: str | Path | None = None,
    on_progress: Watcher | None = None,
) -> Run:
    """The finished run of a new search, the same as that of `evolve run` with these settings.

    config: a bundled name, a YAML file, or its contents as a mapping. start: programs to start from besides the shipped
    ones, or an OpenEvolve checkpoint. budget, seed: replace those of the configuration. workers: processes, by default
    one per core, as memory allows; they change nothing but speed. out: the folder to create, by default runs/NNNN.
    on_progress: called for every candidate.

    Ctrl-C, or an interrupted cell of a notebook, raises KeyboardInterrupt; `evolve.resume(out)` goes on from there.
    Raises InputError for wrong settings.

    >>> run = evolve.search(config, budget=9, workers=1, out=folder / "mine")
    >>> len(run.programs), run.champion is not None
    (9, True)
    """
    if isinstance(config, Mapping):
        changed, where = dict(config), "config"
    else:
        arguments.path("config", config, "a bundled name, a YAML file, or its contents as a mapping")
        changed, where = to_mapping(load_config(str(config))), str(config)
    changed |= {name: value for name, value in (("budget", budget), ("seed", seed)) if value is not None}
    settings = _starting_from(config_from(changed, where), start)
    folder_of_run = None if out is None else arguments.path("out", out, "a folder to create")
    if folder_of_run and folder_of_run.exists():
        raise folder.taken(folder_of_run, folder.is_run(folder_of_run), "`out`")
    _check(workers, on_progress)  # before there is a folder
    return _work(run_module.start(settings, folder_of_run), workers, on_progress)


def resume(path: str | Path, *, workers: int | None = None, on_progress: Watcher | None = None) -> Run:
    """The run in this folder, continued to its end exactly as if it had not been interrupted.

    >>> first = evolve.search(config, budget=9, workers=1, out=folder / "again")
    >>> evolve.resume(first.path, workers=1).champion == first.champion  # a finished run stays as it is
    True
    """
    run = open_run(arguments.path("path", path, "the folder of a run"))
    _check(workers, on_progress)
    return _work(run, workers, on_progress)


def _starting_from(config: Config, start: Start | Sequence[Start]) -> Config:
    """The configuration with these programs to start from besides its own."""
    listed = start if isinstance(start, Sequence) and not isinstance(start, str) else [start]
    for program in listed:
        if not isinstance(program, Program):
            arguments.path("start", program, "programs by name or file, or evolve.Program")
    mapping = to_mapping(config)
    mapping["search"]["start"] += [absolute(_named(program)) for program in listed]
    return config_from(mapping, "start")


def _named(program: Start) -> str:
    """The name by which a run keeps the program in its configuration. Raises InputError if that name is not its own."""
    if not isinstance(program, Program):
        return str(program)
    try:
        same = load(program.name).text == program.source.text
    except InputError:
        same = False
    if not same:
        problem = "no file has this text, which a resumed run needs: write one, and name that"
        raise InputError(f"start: {program.name}: {problem}")
    return program.name


def _check(workers: object, on_progress: object) -> None:
    """Raises InputError for a number of workers, or something to be called, that is none."""
    if workers is not None:
        arguments.whole("workers", workers, 1, MOST_WORKERS)
    if on_progress is not None and not callable(on_progress):
        raise InputError(f"on_progress: {shown(on_progress)}: cannot be called: give a function of one Progress")


def _work(run: folder.RunFolder, workers: int | None, on_progress: Watcher | None) -> Run:
    line = progress.Line(quiet=True)
    watched = _Watched(run, line, on_progress) if on_progress else None
    pool = local(workers or default_workers(), line)
    try:
        run_module.work(run, pool, watched)
    except (KeyboardInterrupt, WorkStopped) as e:
        e.add_note(f"nothing is lost: evolve.resume({str(run.path)!r}) goes on{without_answers(run.path)}")
        raise
    finally:
        pool.close()
    return Run(open_run(run.path))


class _Watched(progress.ProgressTimes):
    """Progress that a function receives instead of the terminal."""

    def __init__(self, run: folder.RunFolder, line: progress.Line, watcher: Watcher) -> None:
        super().__init__(run.config.budget, line)
        self._run, self._watcher, self._last = run, watcher, -1

    def update(self, population: Population) -> None:
        if population.proposals < self.resumed or population.fitted == self._last:
            return
        self._last = population.fitted
        best = population.champion()
        accepted = len(population.archive.members())
        errors = (best.mean_error, best.group_out) if best else (None, None)
        self._watcher(Progress(self._run.path, population.fitted, self.budget, accepted, *errors))
