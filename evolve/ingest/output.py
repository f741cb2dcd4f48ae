"""The output folder: what is whole in it, what may be replaced, and experiments.yaml of all its runs."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from evolve.ingest.sources.folder import Folder, shown_path
from evolve.ingest.tables import COLUMNS
from evolve.ingest.writing import HEADER, experiments_yaml
from simulator.errors import InputError

EXPERIMENTS, QUALITY, STATE = "experiments.yaml", "quality.json", "ingest.json"
STATE_KEYS = {"engine", "fingerprint", "options", "files", "id", "experiment"}
PART, OLD = ".part-", ".old-"  # before a run's name: while it is made, and while it is replaced
_MARK = HEADER.partition(" from ")[0].rpartition(" ")[0]  # without the engine's version


def check_out(out: Path, folders: Sequence[Folder]) -> None:
    here = out.resolve()
    for folder in folders:
        if here == folder.path or folder.path in here.parents:
            raise InputError(f"{shown_path(out)}: is inside {folder.name}, which is read: choose another --out")
        if not folder.name or folder.name.startswith(".") or folder.name == EXPERIMENTS:
            raise InputError(f"{shown_path(folder.path)}: its name cannot be that of an output: rename it")
        home = out / folder.name
        if home.resolve() == folder.path:
            raise InputError(f"{shown_path(out)}: is where {folder.name} stands, which is read: choose another --out")
        if home.exists() and not (home / STATE).is_file():
            raise InputError(f"{shown_path(home)}: is there and not ours: choose another --out")
    try:
        out.mkdir(parents=True, exist_ok=True)
        text = (out / EXPERIMENTS).read_text("utf-8", "replace") if (out / EXPERIMENTS).exists() else _MARK
    except OSError as e:
        raise InputError(f"{shown_path(out)}: cannot be written ({e.strerror or e}): choose another --out") from None
    if not text.startswith(_MARK):
        raise InputError(f"{shown_path(out / EXPERIMENTS)}: is there and not ours: choose another --out")
    if not os.access(out, os.W_OK | os.X_OK):
        raise InputError(f"{shown_path(out)}: cannot be written (permissions): choose another --out")


def check_home(home: Path) -> None:
    """Raises InputError where what is to be replaced holds a file that is not ours."""
    if not home.exists():
        return

    ours = {QUALITY, STATE, *(f"{table}.parquet" for table in COLUMNS)}
    others = sorted(path.name for path in home.iterdir() if path.name not in ours)
    if others:
        raise InputError(f"{shown_path(home / others[0])}: is not ours, and its folder is to be replaced: move it away")


def state(out: Path, name: str) -> dict[str, Any]:
    """What is known of a run made before; nothing where that cannot be read."""
    try:
        found, quality = (json.loads((out / name / file).read_text("utf-8")) for file in (STATE, QUALITY))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict) or not isinstance(quality, dict) or set(found) != STATE_KEYS:
        return {}
    return found


def whole(home: Path, known: dict[str, Any]) -> bool:
    """Whether everything of a run made before, of which `known` is the state, is there, as long as it was."""
    files: dict[str, int] = known.get("files") or {}
    try:
        return bool(files) and all((home / file).stat().st_size == size for file, size in files.items())
    except (OSError, AttributeError):
        return False


def write_experiments(out: Path) -> None:
    """experiments.yaml of every whole run in `out`, those of earlier calls too.

    An experiment keeps the id it was given first; a run whose short id is taken has its folder's name.
    """
    runs = sorted(path.name for path in out.iterdir() if path.is_dir() and not path.name.startswith("."))
    states = {name: state(out, name) for name in runs}
    known = {name: found for name, found in states.items() if found.get("experiment") and whole(out / name, found)}
    taken = {found["id"] for found in known.values() if found.get("id")}
    target = out / EXPERIMENTS
    part = target.with_name(f"{PART}{EXPERIMENTS}")
    try:
        for name, found in known.items():
            if not found.get("id"):
                short = found["experiment"]["id"]
                found["id"] = name if short in taken else short
                taken.add(found["id"])
                dump(out / name / STATE, found)
        if not known:
            target.unlink(missing_ok=True)
            return
        entries = [{**found["experiment"], "id": found["id"]} for found in known.values()]
        part.write_text(experiments_yaml(entries), "utf-8")
        part.replace(target)
    except OSError as e:
        text = f"{shown_path(target)}: cannot be written ({e.strerror or e}): the same command writes it anew"
        raise InputError(text) from None


def digest(part: Path, mapping: dict[str, Any] | None) -> str:
    """16 hex digits of the tables and the experiment."""
    both = sha256(json.dumps(mapping, sort_keys=True).encode())
    for path in sorted(part.glob("*.parquet")):
        with path.open("rb") as file:
            both.update(file_digest(file, "sha256").digest())
    return both.hexdigest()[:16]


def data_of(reports: Sequence[dict[str, Any]]) -> str:
    """The data hash of several runs."""
    return sha256("".join(r["data"] for r in reports).encode()).hexdigest()[:16]


def dump(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", "utf-8")
