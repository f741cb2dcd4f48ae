"""The runs that arguments name: run folders, and folders of them such as repeats and the folds of a validation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from evolve.output.terminal import command
from evolve.run.folder import is_run
from simulator.common.errors import InputError

MOST = 16  # runs on one page


def run_folders(paths: Sequence[Path]) -> list[Path]:
    """The folders of the runs that these paths name, each once. Raises InputError for a path that names none."""
    folders = list(dict.fromkeys(folder for path in paths for folder in _folders(path)))
    if len(folders) > MOST:
        raise InputError(f"{len(folders)} runs are too many for one page: name at most {MOST}")
    return folders


def _folders(path: Path) -> list[Path]:
    if is_run(path):
        return [path]
    inside = sorted((file.parent for file in path.glob("*/run.json")), key=_natural) if path.is_dir() else []
    if not inside:
        raise InputError(
            f"{path}: is not a run, nor a folder of runs: `{command('list')}` names the runs; programs are on the page"
            " of their run"
        )
    return inside


def _natural(path: Path) -> list[tuple[int, str]]:
    """The name in an order in which seed-2 comes before seed-10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", path.name)]
