"""Long commands that are killed or stopped in the middle lose no verdict. `make crash` does the same fifty times."""

from __future__ import annotations

import shutil
from pathlib import Path

import crash_world
import pytest
from crash import PARTS, Part, carried_out, row, shared
from crash_count import Tally, Watch, differences, results
from crash_world import World

PART = {part.name: part for part in PARTS}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("crash"), seed=1, stop_s=3.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["run", "validate", "worker", "ingest", "stop", "dask-client", "dask-worker", "dask-scheduler", "locks"]
)
def test_what_is_disturbed_loses_nothing(world: World, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "run":  # by two workers: test_killed_and_resumed_equals_uninterrupted
        monkeypatch.setattr(crash_world, "LOCAL", crash_world.ALONE)
    tally = carried_out(PART[name], world, 1)
    assert not tally.failed and tally.done >= 1, [*tally.lost, *tally.findings]
    cells = [cell.strip() for cell in row(PART[name], tally).strip("|").split("|")]
    assert cells[0] == name and cells[4:6] == ["0", "0"]


def test_what_is_lost_is_counted_and_named(tiny_run: Path, tmp_path: Path) -> None:
    """A run loses the fourth line of its journal, gets the fifth one twice, and has a program changed."""

    def damaged(world: World, tally: Tally, count: int) -> None:
        watch = Watch(run, tally)
        watch.look()
        lines = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
        (run / "journal.jsonl").write_bytes(b"".join([*lines[:3], lines[4], *lines[4:]]))
        program = next((run / "programs").glob("*.py"))
        program.write_text(program.read_text() + "\n")
        watch.end()
        tally.findings += differences(run, results(tiny_run))

    run, part = tmp_path / "run", Part("damage", "a line removed", damaged, 1)
    shutil.copytree(tiny_run, run)
    for path in run.glob("*.json"):  # what the run would be, had it been made in this folder
        path.write_text(path.read_text().replace(str(tiny_run), str(run)))
    assert not differences(run, results(tiny_run))  # an equal run in another place
    tally = carried_out(part, World(tmp_path, 0), 1)
    assert tally.failed and len(tally.lost) == 2
    assert tally.lost[0].startswith("run/journal.jsonl:4: lost: {")
    assert tally.lost[1] == "run/journal.jsonl: candidate 4 is there 2 times"
    found = [finding.split("/")[1] for finding in tally.findings]
    assert found == ["journal.jsonl: differs from the undisturbed one", "programs"]
    assert row(part, tally).startswith("| damage | a line removed | 0 | 0 | 2 | 2 |")
    assert sum(shared(list(PARTS), None)[part.name] for part in PARTS if part.kills) == 50
