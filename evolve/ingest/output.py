"""The output folder: complete runs in it, files that may be replaced, and experiments.yaml of all its runs.

OUT/experiments.yaml         every run of OUT that has an experiment
OUT/<run>/*.parquet          its tables
OUT/<run>/quality.json       its quality report
OUT/<run>/ingest.json        its sources and options, and its entry of experiments.yaml
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from evolve import __version__
from evolve.ingest.options import Given
from evolve.ingest.read.sources import Folder, shown_path
from evolve.ingest.report import QualityReport
from evolve.ingest.write.schema import COLUMNS
from evolve.output.files import digest_of, without_draft, write_json
from simulator.common.documents import Dumper, read_json
from simulator.common.errors import InputError, unwritable
from simulator.common.files import write_text
from simulator.common.records import from_json, to_json

EXPERIMENTS, QUALITY, STATE = "experiments.yaml", "quality.json", "ingest.json"
PART, OLD = ".part-", ".old-"  # before a run's name: while it is made, and while it is replaced
AGAIN = "ingest the folder again"  # the remedy for a damaged file
LINE_WIDTH = 95  # of experiments.yaml; a mapping on one line exceeds it by up to one value
_MARK = "# Written by evolve ingest"  # how every experiments.yaml of ours begins, of any version
HEADER = f"""\
{_MARK} {__version__} from folders of vLLM traces and load-generator reports; source_run names them.
# Units: milliseconds, tokens, requests/s, seconds. Observed figures are of completed requests only.
# itl_mean_ms = (mean E2E - mean TTFT) / (output_len - 1); harness_itl_mean_ms is the load generator's own figure, which
#   may count blank lines of the stream as tokens. It and reported_output_len_mean are never fitted.
# overloaded runs are not fitted by default; x_note has the reasons.
# The next evolve ingest into this folder overwrites this file: edit a copy.
"""


@dataclass(frozen=True)
class State:
    """ingest.json of a run; the fields are its keys, in order.

    `fingerprint` identifies the sources of the run, `options` are those of its ingest, `files` the sizes of its
    other files in bytes. `id` is its id in experiments.yaml, once it has one, and `experiment` its entry there.
    """

    engine: str
    fingerprint: str
    options: Given
    files: Mapping[str, int]
    id: str | None
    experiment: Mapping[str, Any] | None


def check_out(out: Path, folders: Sequence[Folder]) -> None:
    """Create `out`. Raises InputError if it cannot be written, or if something in it would be overwritten."""
    here = out.resolve()
    for folder in folders:
        if here == folder.path or folder.path in here.parents:
            raise InputError(f"{shown_path(out)}: is inside {folder.name}, which is read: choose another --out")
        if not folder.name or folder.name.startswith(".") or folder.name == EXPERIMENTS or "," in folder.name:
            raise InputError(f"{shown_path(folder.path)}: its name cannot be used for an output: rename it")
        home = out / folder.name
        if home.resolve() == folder.path:
            raise InputError(f"{shown_path(out)}: contains {folder.name}, which is read: choose another --out")
        if home.exists() and not (home / STATE).is_file():
            raise InputError(f"{shown_path(home)}: exists and is not an output of ours: choose another --out")
    create(out, EXPERIMENTS, _MARK)


def create(out: Path, experiments: str, mark: str) -> None:
    """Create `out`, where the file `experiments` begins with `mark` if it is there.

    Raises InputError if it cannot be written, or if that file is not ours.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        text = (out / experiments).read_text("utf-8", "replace") if (out / experiments).exists() else mark
    except OSError as e:
        raise unwritable(shown_path(out), e, "choose another --out") from None
    if not text.startswith(mark):
        raise InputError(f"{shown_path(out / experiments)}: exists and is not an output of ours: choose another --out")
    if not os.access(out, os.W_OK | os.X_OK):
        raise InputError(f"{shown_path(out)}: cannot be written (permissions): choose another --out")


def check_home(home: Path) -> None:
    """Raises InputError if the run's folder, which is about to be replaced, contains a file that is not ours."""
    ours = {QUALITY, STATE, *(f"{table}.parquet" for table in COLUMNS)}
    for path in sorted(home.iterdir()) if home.exists() else ():
        if without_draft(path.name) not in ours:
            raise InputError(f"{shown_path(path)}: is not ours, and its folder will be replaced: move it away")


def read_state(home: Path) -> State | None:
    """The state of a run made before, None if it or the quality report cannot be read."""
    try:
        read_report(home)
        return from_json(State, read_json(home / STATE, AGAIN), home / STATE, AGAIN)
    except (OSError, InputError):
        return None


def read_report(home: Path) -> QualityReport:
    return from_json(QualityReport, read_json(home / QUALITY, AGAIN), home / QUALITY, AGAIN)


def is_whole(home: Path, state: State) -> bool:
    """True if all files of a run made before are there and have their sizes."""
    try:
        return bool(state.files) and all((home / file).stat().st_size == size for file, size in state.files.items())
    except OSError:
        return False


def write_experiments(out: Path) -> None:
    """Write experiments.yaml of every whole run in `out`, including those of earlier calls.

    An experiment keeps its first id. A run whose short id is taken gets its folder's name.
    """
    runs = sorted(path.name for path in out.iterdir() if path.is_dir() and not path.name.startswith("."))
    read = {name: read_state(out / name) for name in runs}
    states = {name: state for name, state in read.items() if state and state.experiment and is_whole(out / name, state)}
    ids = {name: state.id for name, state in states.items() if state.id}
    entries = []
    target = out / EXPERIMENTS
    try:
        for name, state in states.items():
            entry = dict(state.experiment or {})
            if name not in ids:
                ids[name] = name if entry["id"] in ids.values() else entry["id"]
                write_json(out / name / STATE, to_json(replace(state, id=ids[name])))
            entries.append({**entry, "id": ids[name]})
        if entries:
            write_text(target, experiments_yaml(entries))
        else:
            target.unlink(missing_ok=True)
    except OSError as e:
        raise unwritable(shown_path(target), e, "run the same command again") from None


def experiments_yaml(entries: Sequence[Mapping[str, Any]]) -> str:
    """The text of an experiments file, laid out like those that ship; the same entries give the same bytes.

    Ids that two entries share become their folders' names.
    """
    ids = [entry["id"] for entry in entries]
    unique = [{**e, "id": e["source_run"] if ids.count(e["id"]) > 1 else e["id"]} for e in entries]
    raw = {"version": 1, "experiments": unique}
    return HEADER + yaml.dump(raw, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=LINE_WIDTH)


class _Dumper(Dumper):
    """Writes mappings of plain values, and lists of them, on one line."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_mapping(self, tag: str, mapping: Any, flow_style: bool | None = None) -> yaml.MappingNode:
        return super().represent_mapping(tag, mapping, flow_style=all(map(_is_plain, mapping.values())))

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
        short = all(isinstance(v, Mapping) and v and all(map(_is_plain, v.values())) for v in sequence)
        return super().represent_sequence(tag, sequence, flow_style=short)


def _is_plain(value: object) -> bool:
    return not isinstance(value, Mapping | list)


def digest(home: Path, experiment: Mapping[str, Any] | None) -> str:
    """16 hex digits that identify a run's tables and its experiment."""
    return digest_of(*sorted(home.glob("*.parquet")), also=json.dumps(experiment, sort_keys=True))


def data_of(digests: Iterable[str]) -> str:
    """The data hash of several runs or traces with these."""
    return sha256("".join(digests).encode()).hexdigest()[:16]
