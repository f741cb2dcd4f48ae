"""Counting what a disturbance cost: records that were on disk and are no more, and results that differ."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VARYING = {"call", "cpu_s", "started", "when"}  # keys of JSON files whose values depend on time, or on how often
COMPARED = (
    "journal.jsonl",
    "report.json",
    "validate.json",
    "trust.json",
    "baseline_errors.json",
    "run.json",
    "done.json",
    "repeats.json",
    "config.yaml",
    "experiments.yaml",
    "*.py",
    "*.parquet",
    "quality.json",
    "ingest.json",
)


@dataclass
class Tally:
    """What one part of the campaign did, and what came of it."""

    done: int = 0  # disturbances
    resumed: int = 0  # commands that went on from what was on disk
    lost: list[str] = field(default_factory=list)  # a line for each verdict that was lost, or came twice
    findings: list[str] = field(default_factory=list)
    skipped: str = ""  # why the part could not be carried out
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether anything was lost or found."""
        return bool(self.lost or self.findings)


def records(folder: Path) -> dict[str, list[bytes]]:
    """What is on disk and must stay: the complete lines of every journal, and the mark of every ingested run."""
    found = {}
    for path in _journals(folder):
        try:
            found[str(path.relative_to(folder))] = path.read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            continue  # a draft that has just taken its name
    for path in folder.glob("[!.]*/quality.json"):
        try:
            # The time shows a run that was read again although it was done.
            found[str(path.relative_to(folder))] = [b"%d " % path.stat().st_mtime_ns + path.read_bytes()]
        except FileNotFoundError:
            continue  # its folder has just been replaced
    return found


def _journals(folder: Path) -> list[Path]:
    while True:
        try:
            return sorted(folder.rglob("*.jsonl"))
        except FileNotFoundError:
            continue  # a folder below it was a draft that has just taken its name


def missing(before: Mapping[str, list[bytes]], after: Mapping[str, list[bytes]]) -> list[str]:
    """A line for each record of `before` that is not in `after`, or not at its place."""
    lost = []
    for name, lines in before.items():
        now = after.get(name, [])
        for number, line in enumerate(lines):
            if number >= len(now) or now[number] != line:
                lost.append(f"{name}:{number + 1}: {'moved' if line in now else 'lost'}: {line[:60].decode()}")
    return lost


def twice(after: Mapping[str, list[bytes]]) -> list[str]:
    """A line for each candidate that a journal has more than once."""
    lost = []
    for name, lines in after.items():
        if name.endswith("journal.jsonl"):
            ids = Counter(entry["id"] for line in lines if (entry := json.loads(line)).get("kind") == "outcome")
            lost += [f"{name}: candidate {number} is there {n} times" for number, n in ids.items() if n > 1]
    return lost


class Watch:
    """The records of a folder, as they were last seen. A look notes those that are gone since the one before."""

    def __init__(self, folder: Path, tally: Tally) -> None:
        self.folder, self._tally = folder, tally
        self.seen: dict[str, list[bytes]] = {}

    def look(self) -> None:
        """Compare the folder with the last look."""
        now = records(self.folder)
        self._tally.lost += [f"{self.folder.name}/{line}" for line in missing(self.seen, now)]
        self.seen = now

    def end(self) -> None:
        """Look for the last time: no candidate may be there twice."""
        self.look()
        self._tally.lost += [f"{self.folder.name}/{line}" for line in twice(self.seen)]

    def count(self) -> int:
        """How many records are on disk now."""
        return sum(map(len, records(self.folder).values()))


def results(folder: Path) -> dict[str, Any]:
    """What a finished command left, by file: without the folder's own path, times, and how often it was called."""
    found = {}
    for path in sorted(path for pattern in COMPARED for path in folder.rglob(pattern)):
        name = str(path.relative_to(folder))
        content = path.read_bytes()
        if path.suffix == ".json":
            found[name] = _timeless(json.loads(content.replace(str(folder).encode(), b"FOLDER")))
        else:
            found[name] = content
    return found


def _timeless(value: Any) -> Any:
    """A JSON value without the keys that vary."""
    if isinstance(value, dict):
        return {key: _timeless(v) for key, v in value.items() if key not in VARYING}
    return [_timeless(v) for v in value] if isinstance(value, list) else value


def differences(folder: Path, undisturbed: Mapping[str, Any]) -> list[str]:
    """A line for each file of a finished command that is not as that of the undisturbed one."""
    found = results(folder)
    names = sorted(name for name in {*found, *undisturbed} if found.get(name) != undisturbed.get(name))
    return [f"{folder.name}/{name}: {_how(name, found, undisturbed)}" for name in names]


def _how(name: str, found: Mapping[str, Any], undisturbed: Mapping[str, Any]) -> str:
    if name not in found:
        return "is missing"
    return "differs from the undisturbed one" if name in undisturbed else "is there, but not in the undisturbed one"
