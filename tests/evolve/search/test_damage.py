"""A run whose journal was damaged or lost: the line is named, and the search goes on from the last good one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_world
from commands import Capsys, evolve, flat, printed, refused
from tiny_world import ONE


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damage")
    return tiny_world.run(tiny_world.write(folder, ONE), folder / "run", "--budget", 20)


def resume(run: Path, *more: object) -> list[object]:
    return ["resume", run, "--workers", 1, "--quiet", *more]


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run that a test may damage."""
    return tiny_world.copy(finished, tmp_path)


def test_a_damaged_run_goes_on_from_its_last_good_line(run: Path, capsys: Capsys) -> None:
    journal, kept = run / "journal.jsonl", run / "journal.after-9.jsonl"
    whole = journal.read_bytes()
    lines = whole.splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:9], *lines[10:]]))
    for command in (["archive", run], ["resume", run], ["show", f"{run}:1"], ["llm", "prompt", run, 1]):
        error = refused(capsys, *command)
        assert f"{journal}:10: " in error and f"`evolve resume {run} --to 9`" in error
    assert evolve(*resume(run, "--to", 10)) == 2 and "journal.jsonl:10: " in capsys.readouterr().err
    assert evolve(*resume(run, "--to", 9)) == 0
    assert f"lines after 9 are in {kept}" in capsys.readouterr().err
    assert journal.read_bytes() == whole  # the search repeats what was cut off
    assert kept.read_bytes() == b"".join(lines[10:])
    assert evolve(*resume(run, "--to", len(lines) + 1)) == 2
    assert f"has {len(lines)} lines only: name an earlier line" in capsys.readouterr().err
    journal.unlink()
    for command in (["archive", run], ["resume", run], ["resume", run, "--to", "0"]):
        assert f"{journal}: is missing: restore it from a copy" in refused(capsys, *command)


def test_a_journal_whose_lines_end_like_those_of_windows_is_checked(run: Path, capsys: Capsys) -> None:
    journal = run / "journal.jsonl"
    whole = journal.read_bytes()
    windows = whole.replace(b"\n", b"\r\n")
    journal.write_bytes(windows)
    assert "older release" not in printed(capsys, "archive", run)
    journal.write_bytes(windows.replace(b'"id":7', b'"id":8', 1))
    assert "not the line that was written here" in refused(capsys, "archive", run)
    journal.write_bytes(b"".join(windows.splitlines(keepends=True)[:9]))
    assert evolve(*resume(run)) == 0  # and goes on as if it had never been converted
    assert journal.read_bytes().replace(b"\r\n", b"\n") == whole


def test_a_journal_of_an_older_release_is_said_to_be_unchecked(run: Path, capsys: Capsys) -> None:
    entries = [{**entry, "check": ""} for entry in tiny_world.lines(run)]
    older = [{name: value for name, value in entry.items() if name != "check"} for entry in entries[:12]]
    (run / "journal.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in older))
    assert evolve(*resume(run)) == 0
    assert "12 lines of an older release are not protected" in capsys.readouterr().err
    assert [{**entry, "check": ""} for entry in tiny_world.lines(run)] == entries
    assert "12 lines of an older release" in flat(capsys, "archive", run)


def test_a_line_of_a_study_is_one_of_its_searches(tmp_path: Path, capsys: Capsys) -> None:
    config = tiny_world.write(tmp_path, ONE)
    out = tiny_world.run(config, tmp_path / "several", "--budget", 8, "--repeats", 2)
    said = refused(capsys, *resume(out, "--to", 3))
    assert "a journal for each of its searches: name the folder of one with --to" in said


@pytest.mark.parametrize("damage", ["list", "torn", "row"])
def test_damaged_baselines_are_refused_and_those_of_another_release_computed_again(
    damage: str, run: Path, capsys: Capsys
) -> None:
    kept = run / "baseline_errors.json"
    whole = kept.read_text()
    values = json.loads(whole)
    values["answers"]["blackbox"][0].pop()
    kept.write_text({"list": "[1]", "torn": whole[:99], "row": json.dumps(values)}[damage])
    assert f"{kept}" in (error := refused(capsys, *resume(run))) and "emove it" in error
    kept.write_text(whole.replace('"blackbox"', '"x"', 1))
    assert evolve(*resume(run)) == 0
    assert kept.read_text() == whole
