"""The best programs of an OpenEvolve checkpoint, the folder that its database is saved to, to start a search from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluator.assess import foreknown
from simulator.common.documents import read_json
from simulator.common.errors import InputError
from simulator.language.infer import check_units
from simulator.language.key import key
from simulator.language.measure import Caps, enforce
from simulator.language.parse import parse

MOST = 20  # programs that a search takes from a checkpoint
REMEDY = "export the checkpoint again"


@dataclass(frozen=True, slots=True)
class Start:
    """The programs of a checkpoint that a search starts from, (name, text), best first.

    total: number of programs in the checkpoint. refused: number of programs that a search would refuse, among those
    with a higher score than the last one taken. why: the first reason.
    """

    path: Path
    programs: tuple[tuple[str, str], ...]
    total: int
    refused: int
    why: str

    @property
    def note(self) -> str:
        """One line about the programs that are taken."""
        refused = f"; {self.refused} are refused, e.g. {self.why}" if self.refused else ""
        return f"{self.path}: starting from {len(self.programs)} of its {self.total} programs, by score{refused}"


def is_checkpoint(path: Path) -> bool:
    """Return True if the folder is a checkpoint of OpenEvolve."""
    return (path / "metadata.json").is_file() and (path / "programs").is_dir()


def checkpoints_in(path: Path) -> list[Path]:
    """The checkpoints in a folder, which is not one itself."""
    return sorted(filter(is_checkpoint, path.iterdir())) if path.is_dir() else []


def absolute(spec: str) -> str:
    """The name of a program, or the absolute path of a program or checkpoint, which holds in any folder."""
    is_path = "/" in spec or spec.endswith(".py") or is_checkpoint(Path(spec))
    return str(Path(spec).resolve()) if is_path else spec


def best_programs(path: Path, caps: Caps) -> Start:
    """The MOST best programs of a checkpoint that a search would read, each form once.

    Raises InputError if none is in the language, or if a file is damaged.
    """
    members = sorted(map(_read, (path / "programs").glob("*.json")), key=lambda m: (-m[0], len(m[1]), m[1]))
    programs, keys, refused = list[tuple[str, str]](), set[str](), list[str]()
    for _, name, text in members:
        if len(programs) == MOST:
            break
        try:
            form = _form(text, name, caps)
        except InputError as e:
            refused.append(str(e))
            continue
        if form not in keys:
            keys.add(form)
            programs.append((f"{path.name}-{name}", text))
    why = refused[0] if refused else ""
    if not programs:
        raise InputError(
            f"{path}: has no program of the language{f', e.g. {why}' if why else ''}: give another --start"
        )
    return Start(path, tuple(programs), len(members), len(refused), why)


def _form(text: str, name: str, caps: Caps) -> str:
    """The key of a program. Raises InputError if a search would refuse it."""
    program = parse(text, name)
    enforce(program, caps, f"{name}:1")
    check_units(program, name)
    if refusal := foreknown(program):
        raise InputError(f"{name}: {refusal.why}")
    return key(program)


def _read(path: Path) -> tuple[float, str, str]:
    """(score, id, code) of a member. Raises InputError for a damaged file."""
    raw = read_json(path, REMEDY, kept=True, foreign=True)
    if not isinstance(raw, dict) or not isinstance(raw.get("code"), str):
        raise InputError(f"{path}: is not a program of OpenEvolve: {REMEDY}")
    metrics = raw.get("metrics")
    return _score(metrics if isinstance(metrics, dict) else {}), path.stem, raw["code"]


def _score(metrics: Mapping[str, Any]) -> float:
    """The score by which OpenEvolve ranks a program: its combined score, else the mean of its figures, else -inf."""
    numbers = {name: x for name, x in metrics.items() if isinstance(x, int | float) and not isinstance(x, bool)}
    finite = {name: float(x) for name, x in numbers.items() if math.isfinite(x)}
    if "combined_score" in finite:
        return finite["combined_score"]
    return sum(finite.values()) / len(finite) if finite else -math.inf
