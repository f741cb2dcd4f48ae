"""The runs that `--steps` and `--experiments` name: step tables, and the experiment of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evolve.calibrate.steps.table import StepTable, read_steps
from evolve.run.data import experiments_of, only_named
from simulator.common.errors import InputError
from simulator.serving.bundled import BUNDLED, STEPS, bundled_steps, source_runs
from simulator.serving.experiment import Experiment

TABLE, EXPERIMENTS = "steps.parquet", "experiments.yaml"  # in a folder written by `evolve ingest`


@dataclass(frozen=True)
class TableRun:
    """A run's steps and its experiment. assumed: why `asynchronous` has its value, "" if the table gives it."""

    steps: StepTable
    experiment: Experiment
    asynchronous: bool
    assumed: str


@dataclass(frozen=True)
class Sources:
    """The runs, all experiments that their steps could belong to, and why other tables were left out, a line each.

    file_of: the file of each experiment by id, of those that are not shipped.
    """

    runs: tuple[TableRun, ...]
    experiments: tuple[Experiment, ...]
    left_out: tuple[str, ...]
    file_of: Mapping[str, str]


@dataclass(frozen=True)
class _Catalog:
    """The experiments of some files, also by id and, for the tables of the runs they come from, by source_run.

    label: the files as a message names them.
    """

    label: str
    experiments: tuple[Experiment, ...]
    by_name: dict[str, Experiment]


def sources(
    paths: Sequence[Path], experiments: str | None, wanted: Sequence[str], sync: bool, exclude: Sequence[str] = ()
) -> Sources:
    """The runs of step tables: parquet files, folders of `evolve ingest`, or the bundled table by its name.

    `experiments`: their file [default: the one in the folder, else the shipped runs]. `wanted`: only these, if any,
    but those in `exclude`. `sync`: the engines did not schedule ahead, even if the tables say so. Raises InputError if
    no run is left.
    """
    catalogs: dict[tuple[str, ...], _Catalog] = {}
    runs: list[TableRun] = []
    left_out: list[str] = []
    others: list[str] = []  # that have steps, and are not wanted
    for path in paths:
        files, ingested = _files(path, experiments is not None)
        key = (experiments,) if experiments else ingested or BUNDLED
        if key not in catalogs:
            catalogs[key] = _catalog(key)
        catalog = catalogs[key]
        for steps in (s for file in files for s in read_steps(file)):
            e = _experiment(steps, catalog, wanted)
            if e is None:
                left_out.append(f"{steps.experiment}: {len(steps.step_id)} steps of no experiment in {catalog.label}")
            elif (not wanted or e.id in wanted) and e.id not in exclude:
                earlier = next((r for r in runs if r.experiment.id == e.id), None)
                if earlier is not None:
                    where = f"{steps.file}: steps of {e.id!r} were in {earlier.steps.file} already"
                    raise InputError(f"{where}: name each run's table once")
                runs.append(_run(steps, e, sync))
            else:
                others.append(e.id)
    offered = {e.id: e for c in catalogs.values() for e in c.experiments}
    listed = only_named(offered.values(), wanted, exclude, [file for files in catalogs for file in files])
    if not runs and others:
        raise InputError(f"no steps of {', '.join(e.id for e in listed)}: there are steps of {', '.join(others)}")
    if not runs:
        what = f"no steps of {', '.join(wanted)}" if wanted else "; ".join(left_out)
        raise InputError(f"--steps {', '.join(map(str, paths))}: {what}: give their --experiments FILE")
    file_of = {e.id: files[0] for files, c in catalogs.items() if files != BUNDLED for e in c.experiments}
    return Sources(tuple(runs), tuple(listed), tuple(left_out), file_of)


def _files(path: Path, named: bool) -> tuple[list[Path], tuple[str, ...]]:
    """The tables that a path names, and the experiments file that was ingested with them, if any; `named`: the user
    names another one."""
    if path == Path(STEPS) and not path.exists():
        return [bundled_steps()], ()
    if not path.is_dir():
        above = path.parent.parent / EXPERIMENTS
        return [path], ((str(above),) if path.name == TABLE and above.is_file() else ())
    if (path / TABLE).is_file():
        return _files(path / TABLE, named)
    tables = sorted(path.glob(f"*/{TABLE}"))
    if not tables:
        why = "has runs without traces, so without steps" if (path / EXPERIMENTS).is_file() else f"holds no */{TABLE}"
        raise InputError(f"{path}: {why}: name a parquet file, or a folder that `evolve ingest` wrote from traces")
    if not named and not (path / EXPERIMENTS).is_file():
        raise InputError(f"{path}: has no {EXPERIMENTS}: see quality.json of its runs, or give --experiments FILE")
    return tables, (str(path / EXPERIMENTS),)


def _catalog(files: tuple[str, ...]) -> _Catalog:
    experiments = experiments_of(files)
    by_id = {e.id: e for e in experiments}
    by_run = {run: by_id[ident] for file in files for run, ident in source_runs(file).items()}
    label = "the shipped runs" if files == BUNDLED else ", ".join(files)
    return _Catalog(label, tuple(experiments), by_run | by_id)


def _experiment(steps: StepTable, catalog: _Catalog, wanted: Sequence[str]) -> Experiment | None:
    if steps.experiment is not None:
        return catalog.by_name.get(steps.experiment)
    candidates = [e for e in catalog.experiments if not wanted or e.id in wanted]
    if len(candidates) != 1:
        raise InputError(f"{steps.file}: does not say of which run it is: name one experiment with --id ID")
    return candidates[0]


def _run(steps: StepTable, experiment: Experiment, sync: bool) -> TableRun:
    if sync:
        return TableRun(steps, experiment, False, "taken as synchronous: --sync")
    if steps.asynchronous is None:
        assumed = "async scheduling is taken as on, vLLM's default from 0.15: --sync if not"
        return TableRun(steps, experiment, True, assumed)
    return TableRun(steps, experiment, steps.asynchronous, "")
