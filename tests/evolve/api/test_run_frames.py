"""Frames of a run have the figures of its JSON: candidates, front, grid, and errors of the champion."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import tiny_world
from paths import ROOT

from archive.archive import Archive
from archive.champion import champion as champion_of
from archive.elite import Elite
from archive.proposal import OLD_STAGES
from evolve.inspect.lists import archive_json
from evolve.output.frames import frame
from evolve.run.folder import RunFolder, open_run
from evolve.summary.result import read_report
from evolve.summary.rows import ELITES, ERRORS, GRID, PROGRAMS, error_rows, front_rows, grid_rows, program_rows
from evolve.summary.searched import Searched

SHIPPED = ROOT / "seeds" / "champion"
FIGURES = {f"{name}_pct": name for name in ("worst3", "mean_error", "group_out", "e2e", "ttft", "itl")}
SAME = ("id", "operator", "operations", "constants", "features", "consistent", "key", "text")


def present(value: Any) -> Any:
    """A cell as JSON has it: lists for tuples, None for what is missing."""
    if isinstance(value, tuple):
        return list(value)
    return None if pd.isna(value) else value


def records(made: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame as JSON has them."""
    return [{name: present(value) for name, value in row.items()} for row in made.to_dict("records")]


def is_elite(row: dict[str, Any], elite: dict[str, Any]) -> bool:
    """True if a row has every figure of an elite but its errors by experiment."""
    return (
        all(row[column] == elite[name] for column, name in FIGURES.items())
        and all(row[name] == elite[name] for name in SAME)
        and row["parents"] == elite["parents"]
        and row["complexity"] == elite["operations"] + elite["constants"]
    )


@dataclass(frozen=True)
class World:
    """A run, with what is expensive to rebuild from its journal."""

    run: RunFolder
    archive: Archive
    json: dict[str, Any]
    programs: pd.DataFrame


@pytest.fixture(scope="module", params=["tiny", "shipped"])
def world(request: pytest.FixtureRequest, tiny_run: Path) -> World:
    run = open_run(tiny_run if request.param == "tiny" else SHIPPED)
    archive = run.archive()
    champion = champion_of(archive.members(), run.config.score.rule)
    programs = frame(PROGRAMS, program_rows(run.outcomes(), archive, champion))
    return World(run, archive, json.loads(json.dumps(archive_json(Searched(run, run.outcomes())))), programs)


def test_front_and_grid_are_those_of_the_json(world: World) -> None:
    front, grid = records(frame(ELITES, front_rows(world.archive))), records(frame(GRID, grid_rows(world.archive)))
    assert len(front) == len(world.json["front"]) > 1
    assert all(map(is_elite, front, world.json["front"]))
    assert len(grid) == len(world.json["grid"]) > 1
    assert all(map(is_elite, grid, world.json["grid"]))
    assert [[row["operations_bin"], row["features_bin"]] for row in grid] == [c["cell"] for c in world.json["grid"]]


def test_programs_have_a_row_for_every_candidate_of_the_journal(world: World) -> None:
    lines = [line for line in world.run.lines() if line.get("key") or line.get("verdict") == "scored"]
    rows = records(world.programs)
    assert [row["id"] for row in rows] == [line["id"] for line in lines]
    for row, line in zip(rows, lines, strict=True):
        assert (row["operator"], row["parents"], row["island"]) == (line["operator"], line["parents"], line["island"])
        if line["verdict"] == "scored":
            elite = Elite.from_json(line["elite"]).to_json()
            assert is_elite(row, elite | {"parents": list(elite["parents"])})
            assert (row["verdict"], row["why"]) == ("scored", None)
        else:
            verdict = OLD_STAGES.get(line["stage"], line["stage"])
            assert (row["verdict"], row["why"], row["text"]) == (verdict, line["why"], line["text"])
            assert row["mean_error_pct"] is None
    assert {row["id"] for row in rows if row["in_front"]} == {elite["id"] for elite in world.json["front"]}
    assert {row["id"] for row in rows if row["in_grid"]} == {cell["id"] for cell in world.json["grid"]}
    assert sum(row["champion"] for row in rows) == 1


@pytest.mark.parametrize("world", ["shipped"], indirect=True)
def test_the_shipped_run_has_as_many_candidates_as_the_documentation_says(world: World) -> None:
    """1,000 candidates, besides finalists that were polished and trimmed; its champion is the shipped one."""
    assert int((~world.programs["operator"].isin(["polish", "trim"])).sum()) == 1000
    found = json.loads((ROOT / "seeds" / "champion.json").read_text())["found"]
    [champion] = records(world.programs[world.programs["champion"]])
    assert (champion["id"], champion["mean_error_pct"]) == (found["proposal"], found["mean_error"])


def test_errors_are_those_of_the_report(tiny_run: Path) -> None:
    path = tiny_run / "report.json"
    report = json.loads(path.read_text())
    read = read_report(path)
    rows = records(frame(ERRORS, error_rows(read.errors, read.fitted, read.quality, read.observed_ms)))
    assert [row["experiment"] for row in rows] == [*tiny_world.FITTED, "dense-overloaded"]
    for row, errors in zip(rows, report["errors"], strict=True):
        assert [row[f"{x}_error_pct"] for x in ("e2e", "ttft", "itl")] == [errors[x] for x in ("e2e", "ttft", "itl")]
        name = errors["experiment"]
        observed = [row[f"observed_{x}_mean_ms"] for x in ("e2e", "ttft", "itl")]
        assert observed == report["observed_ms"][name]
        assert (row["quality"], row["fitted"]) == (report["quality"][name], name in report["fitted"])
