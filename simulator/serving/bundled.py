"""Experiments files, read into specs and experiments, and the runs that the project ships."""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from simulator.common.documents import parse_yaml, read_bytes, shipped
from simulator.common.errors import InputError, Section, shown, unreadable
from simulator.serving.experiment import Experiment, deploy
from simulator.serving.keys import TOP, only
from simulator.serving.model import ModelTable, model_table
from simulator.serving.spec import Spec, read_spec
from simulator.serving.traces.formats import is_trace
from simulator.serving.traces.read import files_beside
from simulator.serving.workload_entry import NO_FILES, Files

BUNDLED = ("experiments_h100.yaml", "experiments_h100_further.yaml")  # requests that come at a rate
SERVING = "experiments_serving.yaml"  # of a fixed number of clients
FILES = (*BUNDLED, SERVING)
STEPS = "steps_h100.parquet"  # measured scheduler steps of three bundled runs
BEGIN = "begin with `version: 1` and `experiments:`"
# keys of a configuration of `evolve run`, by which a file of one is recognised
CONFIGURATION = ("budget", "seed", "data", "caps", "search", "score", "validate", "llm")


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


def sources_of(ids: Collection[str]) -> list[str]:
    """The public sources of the bundled files that have experiments of these ids, as the heads of the files say."""
    found = []
    for name in FILES:
        text = (resources.files("configs") / name).read_text("utf-8")
        source = re.search(r"^# Source: (?:the )?(.*?)(?: \(source_run|;|\.$)", text, re.MULTILINE | re.DOTALL)
        if source and not set(ids).isdisjoint(re.findall(r"^- id: (\S+)$", text, re.MULTILINE)):
            found.append(" ".join(source[1].replace("\n#", " ").split()))
    return found


def load_experiments(path: Path) -> list[Experiment]:
    """The experiments of a YAML file. Raises InputError for anything wrong with the file or in it."""
    return experiments_from_mapping(_parsed(path), str(path), files_beside(path))


def load_specs(name: str) -> list[Spec]:
    """The specs of a bundled file (a name of FILES) or another one, which comes first.

    Raises InputError for anything wrong with the file, and for what cannot be meant in it.
    """
    path = Path(name)
    raw = shipped(name) if name in FILES and not path.exists() else _parsed(path)
    return specs_from_mapping(raw, name, files_beside(path))


def experiments_from_mapping(
    raw: object, file: str, files: Files = NO_FILES, models: ModelTable | None = None
) -> list[Experiment]:
    """All experiments of an experiments file, as `specs_from_mapping`. Raises InputError for what no engine can run."""
    return [deploy(spec) for spec in specs_from_mapping(raw, file, files, models)]


def specs_from_mapping(raw: object, file: str, files: Files = NO_FILES, models: ModelTable | None = None) -> list[Spec]:
    """All specs of an experiments file as a YAML parser returns it; `file` is its name in messages.

    `files` reads the files that it names; `models` are known by name, by default `known_models`.
    """
    if not isinstance(raw, Mapping):
        raise InputError(f"{file}: must be a mapping, got {shown(raw)}: {BEGIN}")
    top = Section(file, "", raw)
    only(top, TOP)
    if top.required("version", "write version: 1") != 1 or isinstance(raw["version"], bool):
        raise top.error("version", f"must be 1, got {shown(raw['version'])}", "write version: 1")
    specs: dict[str, Spec] = {}
    for i, entry in enumerate(top.sections("experiments", "list at least one experiment, each a mapping")):
        ident = entry.raw.get("id")
        named = isinstance(ident, str) and bool(ident.strip())
        where = f"{file}: experiment {shown(ident)}" if named else f"{file}: experiments[{i}]"
        spec = read_spec(entry.raw, where, files, models)
        if spec.id in specs:
            raise InputError(f"{where}: id is used twice: give every experiment a different id")
        specs[spec.id] = spec
    return list(specs.values())


def _parsed(path: Path) -> Any:
    """The unchecked content of a YAML file of experiments. Raises InputError if it cannot be read."""
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
    """`source_run` -> id of the experiments of a file, named as for `load_specs`.

    Raises InputError if two experiments name the same run.
    """
    ids: dict[str, str] = {}
    for spec in load_specs(name):
        run = spec.free.get(("source_run",))
        if isinstance(run, str) and run in ids:
            problem = f"source_run {run!r} is also that of {ids[run]!r}"
            raise InputError(f"{name}: experiment {spec.id!r}: {problem}: give each run to one experiment")
        if isinstance(run, str):
            ids[run] = spec.id
    return ids


def bundled_experiments() -> list[Experiment]:
    """The shipped runs of requests that come at a rate, in order."""
    return [e for name in BUNDLED for e in bundled_file(name)]


@cache
def bundled_file(name: str) -> tuple[Experiment, ...]:
    """The runs of one shipped file (a name of FILES)."""
    return tuple(experiments_from_mapping(shipped(name), name, models=model_table()))


def bundled_steps() -> Path:
    """The file of the bundled step table."""
    return Path(str(resources.files("configs").joinpath(STEPS)))


def published_errors() -> list[PublishedError]:
    """The published errors of earlier models, one row per system, experiment and metric."""
    text = resources.files("configs").joinpath("published_errors.csv").read_text("utf-8")
    return [
        PublishedError(r["system"], r["experiment"], r["metric"], float(r["abs_error_pct"]), r["source"])
        for r in csv.DictReader(text.splitlines())
    ]
