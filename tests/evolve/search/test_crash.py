"""Long commands that are killed or stopped in the middle lose no verdict. `make crash` does the same fifty times."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import crash_cluster
import crash_parts
import crash_world
import pytest
from crash import PARTS, Part, carried_out, row, shared
from crash_count import Tally, Watch, differences, results
from crash_world import World
from paths import ROOT

PART = {part.name: part for part in PARTS}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("crash"), seed=1, stop_s=3.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["run", "validate", "worker", "ingest", "stop", "dask-client", "dask-worker", "dask-scheduler", "locks"],
)
def test_what_is_disturbed_loses_nothing(world: World, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "run":  # by two workers: test_killed_and_resumed_equals_uninterrupted
        monkeypatch.setattr(crash_world, "LOCAL", crash_world.ALONE)
    tally = carried_out(PART[name], world, 1)
    assert not tally.failed and tally.done >= 1, [*tally.lost, *tally.findings]
    cells = [cell.strip() for cell in row(PART[name], tally).strip("|").split("|")]
    assert cells[0] == name and cells[4:6] == ["0", "0"]


def elsewhere(run: Path, folder: Path) -> Path:
    """What the run would be, had it been made in this folder."""
    shutil.copytree(run, folder)
    for path in folder.glob("*.json"):
        path.write_text(path.read_text().replace(str(run), str(folder)))
    return folder


def damaged(tiny_run: Path, folder: Path, tally: Tally) -> None:
    """A run that loses the fourth line of its journal, gets the fifth one twice, and has a program changed."""
    run = elsewhere(tiny_run, folder / "run")
    watch = Watch(run, tally)
    watch.look()
    lines = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (run / "journal.jsonl").write_bytes(b"".join([*lines[:3], lines[4], *lines[4:]]))
    program = next((run / "programs").glob("*.py"))
    program.write_text(program.read_text() + "\n")
    watch.end()
    tally.findings += differences(run, results(tiny_run))


def test_what_is_lost_is_counted_and_named(tiny_run: Path, tmp_path: Path) -> None:
    part = Part("damage", "a line removed", lambda world, tally, count: damaged(tiny_run, tmp_path, tally), 1)
    tally = carried_out(part, World(tmp_path, 0), 1)
    assert tally.failed
    assert len(tally.lost) == 2
    assert tally.lost[0].startswith("run/journal.jsonl:4: lost: {")
    assert tally.lost[1] == "run/journal.jsonl: candidate 4 is there 2 times"
    assert [finding.split("/")[1] for finding in tally.findings] == [
        "journal.jsonl: differs from the undisturbed one",
        "programs",
    ]
    assert row(part, tally).startswith("| damage | a line removed | 0 | 0 | 2 | 2 |")


def test_an_equal_run_in_another_place_differs_in_nothing(tiny_run: Path, tmp_path: Path) -> None:
    copied = elsewhere(tiny_run, tmp_path / "elsewhere")
    assert not differences(copied, results(tiny_run))
    (copied / "report.json").unlink()
    assert differences(copied, results(tiny_run)) == ["elsewhere/report.json: is missing"]


def test_a_part_that_cannot_be_carried_out_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refused() -> None:
        raise OSError("Operation not permitted")

    monkeypatch.setattr(crash_cluster, "Namespace", refused)
    tally = carried_out(PART["network"], World(tmp_path, 0), 1)
    assert not tally.failed
    assert "| not carried out: no network namespace: Operation not permitted | 0 |" in row(PART["network"], tally)


def test_a_kill_that_never_comes_in_time_is_a_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(crash_parts, "one_chain", lambda *args: None)
    tally = Tally()
    crash_parts.killed(World(tmp_path, 0), tally, 1, ("run",))
    assert tally.findings == ["only 0 of 1 disturbances came in time"]


def test_kills_are_shared_out() -> None:
    assert sum(shared(list(PARTS), None)[part.name] for part in PARTS if part.kills) == 50
    few = shared(list(PARTS), 10)
    assert all(few.values()) and few["run"] > few["dask-scheduler"] == 1
    assert shared([replace(PARTS[0], count=3)], 7) == {"run": 7}
    assert "crash:" in (ROOT / "Makefile").read_text()
