"""Experiments files, and the data that the project ships: runs, model and GPU tables, published errors."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from simulator.common.documents import parse_yaml, read_bytes, shipped
from simulator.common.errors import InputError, Section, unreadable
from simulator.serving import limits
from simulator.serving.experiment import Experiment
from simulator.serving.file import BEGIN, Reader, Table, engine_of, experiment_from_mapping, experiments_from_mapping
from simulator.serving.keys import TOP
from simulator.serving.own_models import own_models
from simulator.serving.traces.formats import is_trace
from simulator.serving.traces.read import files_beside
from simulator.serving.workload_entry import Files

BUNDLED = ("experiments_h100.yaml", "experiments_h100_further.yaml")
STEPS = "steps_h100.parquet"  # measured scheduler steps of three bundled runs
# what a configuration of `evolve run` has, by which a file of one is recognised
CONFIGURATION = ("budget", "seed", "data", "caps", "search", "score", "validate", "llm")
# An engine with these settings has room for any load on any GPU.
ROOMY = {
    "tensor_parallel": 1,
    "max_num_seqs": 1,
    "chunked_prefill": True,
    "total_kv_blocks": limits.ENGINE["total_kv_blocks"],
}


@dataclass(frozen=True, slots=True)
class PublishedError:
    """A published absolute error in percent of one system on one experiment; `metric` is e2e, ttft or itl.

    ITL errors of these systems are relative to the harness's ITL, which is half the true one.
    """

    system: str
    experiment: str
    metric: str
    abs_error_pct: float
    source: str


@dataclass(frozen=True)
class Written:
    """An experiment, its entry in an experiments file as it is written, and how the files that it names are read."""

    experiment: Experiment
    entry: Mapping[str, Any]
    files: Files


def load_experiments(path: Path) -> list[Experiment]:
    """The experiments of a YAML file. Raises InputError for anything wrong with the file or in it."""
    return experiments_from_mapping(_parsed(path), str(path), known_models(), hardware_table(), files_beside(path))


def written_experiments(name: str, read: Reader | None = None) -> list[Written]:
    """The experiments of a bundled file (a name of BUNDLED) or another one, with their entries.

    `read` reads an entry, by default as `experiment_from_mapping`. Raises InputError for anything wrong with the file
    or in it.
    """
    raw, files = _document(name), files_beside(Path(name))
    experiments = experiments_from_mapping(raw, name, known_models(), hardware_table(), files, read)
    return [Written(e, entry, files) for e, entry in zip(experiments, raw["experiments"], strict=True)]


def as_planned(raw: Mapping[str, Any], where: str, models: Table, hardware: Table, files: Files) -> Experiment:
    """The experiment of an entry, for a sweep, which builds the deployments itself and says there what is impossible.

    If no engine runs it as it is written, its facts are those of an engine with room for it. Raises InputError for
    anything else that is wrong.
    """
    try:
        return experiment_from_mapping(raw, where, models, hardware, files)
    except InputError:
        given = raw.get("engine") or {}
        if not isinstance(given, Mapping):
            raise
    engine = engine_of(Section(where, "engine", given))
    # What is wrong with this one is a mistake, not that there is no room.
    roomy = experiment_from_mapping({**raw, "engine": {**given, **ROOMY}}, where, models, hardware, files)
    return replace(roomy, engine=engine)


def _document(name: str) -> Any:
    """What a bundled file (a name of BUNDLED) or another one says, unchecked: a file of the user's that is called as a
    bundled one comes first. Raises InputError if it cannot be read."""
    path = Path(name)
    return shipped(name) if name in BUNDLED and not path.exists() else _parsed(path)


def _parsed(path: Path) -> Any:
    """What a YAML file of experiments says, unchecked. Raises InputError if it cannot be read."""
    try:
        if is_trace(path):
            remedy = f"`evolve ingest --trace {path} --out OUT --model M --hardware GPU` makes one"
            raise InputError(f"{path}: is a trace or a benchmark's result, not a file of experiments: {remedy}")
        data = read_bytes(path)
    except OSError as error:
        remedy = "name /dev/stdin to read standard input" if str(path) == "-" else "name a YAML file of experiments"
        raise unreadable(path, error, remedy) from None
    raw = parse_yaml(data, str(path), BEGIN)
    if isinstance(raw, dict) and raw.keys() & {*CONFIGURATION} and not raw.keys() & {*TOP}:
        remedy = f"it is for `evolve run --config {path}`"
        raise InputError(f"{path}: is a configuration, not a file of experiments: {remedy}")
    return raw


def source_runs(name: str) -> dict[str, str]:
    """`source_run` -> id of the experiments of a bundled file (a name of BUNDLED) or another one that is known to be
    without errors.

    Raises InputError if two experiments name the same run.
    """
    ids: dict[str, str] = {}
    for entry in raw_entries(name):
        run = entry.get("source_run")
        if not isinstance(run, str):
            continue
        if run in ids:
            raise InputError(f"{name}: experiment {entry['id']!r}: source_run {run!r} is also that of {ids[run]!r}: "
                             "give each run to one experiment")  # fmt: skip
        ids[run] = entry["id"]
    return ids


def raw_entries(name: str) -> list[dict[str, Any]]:
    """The entries, as they are written, of a bundled file (a name of BUNDLED) or another one, which is known to be
    without errors: `load_experiments` checks it."""
    entries: list[dict[str, Any]] = _document(name)["experiments"]
    return entries


def bundled_experiments() -> list[Experiment]:
    """The runs the project trains on: both shipped files, in order."""
    return [e for name in BUNDLED for e in bundled_file(name)]


@cache
def bundled_file(name: str) -> tuple[Experiment, ...]:
    """The runs of one shipped file (a name of BUNDLED)."""
    return tuple(experiments_from_mapping(shipped(name), name, model_table(), hardware_table()))


@cache
def model_table() -> dict[str, Mapping[str, Any]]:
    """Entries of configs/models.yaml under their Hugging Face id and every alias."""
    return _by_name(shipped("models.yaml")["models"], "id")


def known_models() -> Mapping[str, Mapping[str, Any]]:
    """The shipped models under their names, and the user's own. Raises InputError if a file of these is damaged."""
    return {**model_table(), **own_models()}


@cache
def hardware_table() -> dict[str, Mapping[str, Any]]:
    """Entries of configs/hardware.yaml under their name and every alias."""
    return _by_name(shipped("hardware.yaml")["hardware"], "name")


def bundled_steps() -> Path:
    """Where the bundled step table is."""
    return Path(str(resources.files("configs").joinpath(STEPS)))


def published_errors() -> list[PublishedError]:
    """The published errors of earlier models, one row per system, experiment and metric."""
    text = resources.files("configs").joinpath("published_errors.csv").read_text("utf-8")
    return [
        PublishedError(r["system"], r["experiment"], r["metric"], float(r["abs_error_pct"]), r["source"])
        for r in csv.DictReader(text.splitlines())
    ]


def _by_name(entries: Sequence[Mapping[str, Any]], key: str) -> dict[str, Mapping[str, Any]]:
    return {name: entry for entry in entries for name in (entry[key], *entry["aliases"])}
