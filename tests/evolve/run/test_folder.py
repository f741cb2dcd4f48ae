"""A run on disk: its identity is read back, and each fault of run.json is one line with its key."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evolve.run.config import Config
from evolve.run.folder import About, create, open_run
from evolve.run.ranges import Ranges
from simulator.common.errors import InputError
from simulator.common.records import from_json, to_json

ABOUT = About("1.2.3", "0123456789abcdef", ("one", "two"), Ranges(tp=(1, 2)), "2026-01-02T03:04:05+00:00")


def test_a_run_is_read_back(tmp_path: Path) -> None:
    run = create(tmp_path / "run", Config(), ABOUT)
    assert open_run(run.path) == run
    assert list(to_json(ABOUT)) == ["engine", "data", "fitted", "ranges", "started"]
    replay = replace(ABOUT, replayed="runs/0001")
    assert from_json(About, json.loads(json.dumps(to_json(replay))), "run.json") == replay


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"engine": None}, ", engine: must not be null"),
        ({"fitted": [1]}, r", fitted\[0\]: must be text, got 1"),
        ({"ranges": {"tp": 1}}, ", ranges.tp: must be a list, got 1"),
        ({"replayed": []}, r", replayed: must be text, got \[\]"),
        ("[1]", r": must be a mapping, got \[1\]"),
        ("{}", ", engine: is missing"),
        ("{", ": line 1: not valid JSON.*"),
    ],
)
def test_a_damaged_run_json_is_one_line(change: dict[str, Any] | str, message: str, tmp_path: Path) -> None:
    path = create(tmp_path / "run", Config(), ABOUT).path
    (path / "run.json").write_text(change if isinstance(change, str) else json.dumps(to_json(ABOUT) | change))
    with pytest.raises(InputError, match=rf"run/run\.json{message}(.|:) [Rr]estore it from a copy"):
        open_run(path)
