"""A run that OpenEvolve loads, goes on from and saves again: the real package reads what is written."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import tiny_world
from openevolve.config import DatabaseConfig, load_config
from openevolve.database import Program, ProgramDatabase

from evolve.cli import run_command
from evolve.run.folder import RunFolder, open_run
from evolve.summary.searched import Searched, searched


@pytest.fixture(scope="module")
def run(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of several islands, in which some candidates were rejected."""
    return tiny_world.run(tiny, tmp_path_factory.mktemp("runs") / "many", "--budget", 60)


@pytest.fixture(scope="module")
def found(run: Path) -> Searched:
    return searched(run)


@pytest.fixture(scope="module")
def checkpoint(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("peer") / "out"
    assert run_command(["export", str(run), "--to", "openevolve", "--out", str(out)]) == 0
    [folder] = out.iterdir()
    return folder


def loaded(path: Path, caplog: pytest.LogCaptureFixture) -> Any:
    """The database of a checkpoint, loaded with the settings next to it, without a warning."""
    with caplog.at_level(logging.WARNING, "openevolve"):
        config = load_config(path / "config.yaml").database if (path / "config.yaml").exists() else DatabaseConfig()
        database = ProgramDatabase(config)
        database.load(str(path))
    assert not caplog.records
    return database


@pytest.mark.slow
def test_every_scored_program_is_a_member_and_the_champion_is_the_best(
    checkpoint: Path, found: Searched, caplog: pytest.LogCaptureFixture
) -> None:
    database = loaded(checkpoint, caplog)
    scored = {str(o.elite.id): o.elite for o in found.outcomes if o.elite}
    assert set(database.programs) == set(scored) and len(scored) < len(found.outcomes)
    assert database.get_best_program().id == str(found.champion.id)
    assert database.get_best_program().code == found.champion.text
    assert database.archive == {str(e.id) for e in found.archive.front}
    consistent = [e for e in scored.values() if e.consistent and e.group_out is not None]
    for id, elite in scored.items():
        program = database.programs[id]
        error = (1000 if elite.group_out is None else elite.group_out) + (0 if elite.consistent else 1000)
        assert program.metrics["combined_score"] == 1 / (1 + error)
        assert program.metrics["mean_error"] == elite.mean_error
        assert ("group_out" in program.metrics) == (elite.group_out is not None)
        assert program.parent_id == (str(elite.parents[0]) if elite.parents else None)
        parent = database.programs.get(program.parent_id)
        assert program.generation == (parent.generation + 1 if parent else 0)
    lowest = sorted(e.group_out for e in consistent)[:3]
    assert [p.metrics["group_out"] for p in database.get_top_programs(3)] == lowest


def test_islands_and_cells_are_those_of_the_run(
    checkpoint: Path, found: Searched, caplog: pytest.LogCaptureFixture
) -> None:
    database = loaded(checkpoint, caplog)
    islands = found.run.config.search.islands
    assert len(database.islands) == len(database.island_feature_maps) == islands > 1
    assert sum(map(len, database.islands)) == len(database.programs)  # a member has one island
    for outcome in found.outcomes:
        if outcome.elite and outcome.proposal.island is not None:
            assert str(outcome.elite.id) in database.islands[outcome.proposal.island]
    for island, cells in zip(database.islands, database.island_feature_maps, strict=True):
        for cell, id in cells.items():
            assert id in island
            # OpenEvolve itself finds the same cell for the program, and so will for those that it adds
            coordinates = database._calculate_feature_coords(database.programs[id])
            assert database._feature_coords_to_key(coordinates) == cell
            assert tuple(coordinates) == found.archive.grid.cell(found.archive.by_id[int(id)])
        in_cells = {found.archive.grid.cell(found.archive.by_id[int(id)]) for id in island}
        assert len(cells) == len(in_cells)


def test_openevolve_samples_adds_and_saves_again(
    checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database = loaded(checkpoint, caplog)
    before = len(database.programs)
    for island in range(len(database.islands)):
        parent, inspirations = database.sample_from_island(island, 2)
        assert parent.id in database.programs and all(p.id in database.programs for p in inspirations)
    best = database.get_best_program()
    metrics = {**best.metrics, "combined_score": 0.99, "features_in_grid": 1.0}
    child = Program("child", best.code, parent_id=best.id, metrics=metrics)
    assert database.add(child, iteration=database.last_iteration + 1) == "child"
    assert database.get_best_program().id == "child" and child.metadata["island"] == best.metadata["island"]
    database.save(str(tmp_path / "again"))
    (tmp_path / "again" / "config.yaml").write_bytes((checkpoint / "config.yaml").read_bytes())
    again = loaded(tmp_path / "again", caplog)
    assert before <= len(again.programs) <= before + 1 and again.get_best_program().id == "child"
    assert again.get_artifacts(best.id)["errors_pct"]


def test_the_visualizer_finds_its_fields(checkpoint: Path, run: Path) -> None:
    """It reads the folder checkpoint_N, the members of the islands, and these fields of each; nothing else."""
    last = open_run(run).outcomes()[-1].proposal.id
    assert checkpoint.name == f"checkpoint_{last}"
    metadata = json.loads((checkpoint / "metadata.json").read_text())
    files = {path.stem: json.loads(path.read_text()) for path in (checkpoint / "programs").iterdir()}
    assert {id for island in metadata["islands"] for id in island} == set(files)
    assert set(metadata["archive"]) <= set(files)
    for id, program in files.items():
        assert program["id"] == id and program["parent_id"] in {None, *files}
        read = "code language generation timestamp iteration_found complexity artifacts_json"
        assert {*read.split()} <= set(program)
        assert all(isinstance(x, float) for x in program["metrics"].values())


def test_the_same_run_gives_the_same_files(checkpoint: Path, run: Path, tmp_path: Path) -> None:
    assert run_command(["export", str(run), "--to", "openevolve", "--out", str(tmp_path)]) == 0
    again = tmp_path / checkpoint.name
    names = sorted(str(p.relative_to(checkpoint)) for p in checkpoint.rglob("*") if p.is_file())
    assert names == sorted(str(p.relative_to(again)) for p in again.rglob("*") if p.is_file())
    assert all((checkpoint / name).read_bytes() == (again / name).read_bytes() for name in names)
    assert [p.name for p in tmp_path.iterdir()] == [checkpoint.name]


def seeds_of(run: RunFolder) -> list[str]:
    return [o.proposal.operator for o in run.outcomes() if o.proposal.operator.startswith("seed:")]


def test_a_search_starts_from_the_best_programs_of_a_checkpoint(
    checkpoint: Path, tiny: Path, tmp_path: Path, found: Searched, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ["--config", str(tiny), "--budget", "3", "--workers", "1"]
    args = ["run", *config, "--start", str(checkpoint), "--only-start", "--out", str(tmp_path / "run")]
    assert run_command(args) == 0
    err = capsys.readouterr().err
    total = len(found.archive.by_id)
    assert f"{checkpoint}: starting from 20 of its {total} programs, by score\n" in err
    run = open_run(tmp_path / "run")
    names = seeds_of(run)
    sure = [e for e in found.archive.by_id.values() if e.consistent and e.group_out is not None]
    best = min(sure, key=lambda e: (e.group_out, e.id))
    assert names[0] == f"seed:{checkpoint.name}-{best.id}" and len(list((run.path / "start").iterdir())) == 20
    assert run.config.search.start == (str(checkpoint),)


def foreign(folder: Path, *codes: str) -> Path:
    """A checkpoint of other programs, the best first."""
    path = folder / "checkpoint_7"
    (path / "programs").mkdir(parents=True)
    (path / "metadata.json").write_text("{}")
    for i, code in enumerate(codes):
        member = {"id": f"p{i}", "code": code, "metrics": {"accuracy": 1.0 - i / 10, "note": "text"}}
        (path / "programs" / f"p{i}.json").write_text(json.dumps(member))
    return path


GOOD = "# EVOLVE-BLOCK-START\ndef step_time(b, s, *, c: us = 9.0): return c + b.weight_read_us\n# EVOLVE-BLOCK-END\n"


def test_programs_that_a_search_would_refuse_are_passed_over(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = GOOD.replace("c:", "k:").replace("return c", "return k")
    path = foreign(tmp_path, "import os", "def step_time(b, s, *, c: us[3, 4] = 3): return c", again, GOOD)
    args = ["run", "--config", str(tiny), "--budget", "1", "--workers", "1", "--out", str(tmp_path / "run")]
    assert run_command([*args, "--start", str(path), "--only-start"]) == 0
    err = capsys.readouterr().err
    assert f"{path}: starting from 1 of its 4 programs, by score; 2 are refused, e.g. p0:1: " in err
    assert seeds_of(open_run(tmp_path / "run")) == ["seed:checkpoint_7-p2"]


@pytest.mark.parametrize(
    ("codes", "damage", "says"),
    [
        (["import os"], "", "checkpoint_7: has no program of the language, e.g. p0:1: "),
        ([], "", "checkpoint_7: has no program of the language: give another --start"),
        ([GOOD], "{", "p0.json: line 1: not valid JSON"),
        ([GOOD], "[]", "p0.json: is not a program of OpenEvolve: "),
        ([GOOD], '{"code": 3}', "p0.json: is not a program of OpenEvolve: "),
    ],
)
def test_a_checkpoint_that_cannot_be_used_is_one_line(
    codes: list[str], damage: str, says: str, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = foreign(tmp_path, *codes)
    if damage:
        (path / "programs" / "p0.json").write_text(damage)
    assert run_command(["run", "--config", str(tiny), "--start", str(path), "--out", str(tmp_path / "run")]) == 2
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1 and not (tmp_path / "run").exists()
