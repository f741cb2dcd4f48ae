"""A run on disk: its identity survives the JSON, and each fault of run.json is one line with its key."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evolve.run.about import About, read_about
from evolve.run.config import Config
from evolve.run.folder import create, open_run
from evolve.run.ranges import Ranges
from simulator.common.errors import InputError

ABOUT = About("1.2.3", "0123456789abcdef", ("one", "two"), Ranges(tp=(1, 2)), "2026-01-02T03:04:05+00:00")


def test_a_run_is_read_back(tmp_path: Path) -> None:
    run = create(tmp_path / "run", Config(), ABOUT)
    assert open_run(run.path) == run
    assert list(ABOUT.to_json()) == ["engine", "data", "fitted", "ranges", "started"]
    replay = replace(ABOUT, replayed="runs/0001")
    assert read_about(json.loads(json.dumps(replay.to_json())), "run.json") == replay


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"engine": None}, "engine must be text, got null"),
        ({"data": 1}, "data must be text, got 1"),
        ({"fitted": "one"}, "fitted must be a list of names, got 'one'"),
        ({"fitted": [1]}, r"fitted must be a list of names, got \[1\]"),
        ({"ranges": None}, "ranges must be a mapping, got null"),
        ({"ranges": {"tp": 1}}, "ranges.tp must be a list of whole numbers, got 1"),
        ({"started": 0}, "started must be text, got 0"),
        ({"replayed": []}, r"replayed must be text, got \[\]"),
    ],
)
def test_a_damaged_run_json_is_one_line(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = create(tmp_path / "run", Config(), ABOUT).path
    (path / "run.json").write_text(json.dumps(ABOUT.to_json() | change))
    with pytest.raises(InputError, match=rf"^\S*run/run\.json: {message}: restore "):
        open_run(path)


def test_a_run_json_without_keys_is_one_line(tmp_path: Path) -> None:
    path = create(tmp_path / "run", Config(), ABOUT).path
    for text, message in (("[1]", r"run\.json: must be a mapping, got \[1\]"), ("{}", r"run\.json: engine is missing"),
                          ("{", r"run\.json: line 1: not valid JSON, Expecting property name enclosed in double quotes")):  # fmt: skip
        (path / "run.json").write_text(text)
        with pytest.raises(InputError, match=f"{message}: restore it from a copy"):
            open_run(path)
