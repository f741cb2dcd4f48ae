"""Where `evolve fit` puts its programs: one file, or one for each model, each with its record beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evaluator.experiments import model_table
from simulator.errors import InputError


def check_out(out: Path | None) -> None:
    """Raises InputError, before any work, for a file that does not end in .py."""
    if out is not None and not out.is_dir() and out.suffix != ".py":
        raise InputError(f"{out}: a program's file ends in .py, its record stands beside it: write --out {out.stem}.py")


def paths(out: Path | None, name: str, models: Sequence[str] | None) -> list[Path | None]:
    """A file for each of `models` (None: one for all), or None for each without `out`; in a folder, of the program's
    name."""
    if out is None:
        return [None] * (1 if models is None else len(models))
    if out.is_dir():
        out = out / f"{_plain(Path(name).name.removesuffix('.py'))}.py"
    return [out] if models is None else [out.with_stem(f"{out.stem}-{alias(m)}") for m in models]


def alias(model: str) -> str:
    """The model's short name, as a part of a file's name."""
    entry = model_table().get(model)
    return _plain(entry["aliases"][0] if entry and entry["aliases"] else model.rsplit("/", 1)[-1])


def write(path: Path, text: str, record: dict[str, Any]) -> None:
    """The program and its record. Raises InputError if the folder does not let it."""
    try:
        path.write_text(text)
        path.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    except OSError as e:
        raise InputError(f"{path}: cannot be written ({e.strerror}): choose another --out") from None


def _plain(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name)
