"""A run whose journal was damaged or lost: the line is named, and the search goes on from the last good one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_world
from tiny_world import ONE

from evolve.cli import run_command


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damage")
    return tiny_world.run(tiny_world.write(folder, ONE), folder / "run", "--budget", 20)


def resume(run: Path, *more: str) -> int:
    return run_command(["resume", str(run), "--workers", "1", "--quiet", *more])


def test_a_damaged_run_goes_on_from_its_last_good_line(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tiny_world.copy(finished, tmp_path)
    whole = (run / "journal.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    (run / "journal.jsonl").write_bytes(b"".join([*lines[:9], *lines[10:]]))
    for command in (["archive", str(run)], ["resume", str(run)], ["show", f"{run}:1"], ["prompt", str(run), "1"]):
        assert run_command(command) == 2
        error = capsys.readouterr().err
        assert f"{run}/journal.jsonl:10: " in error and f"`evolve resume {run} --to 9`" in error
    assert resume(run, "--to", "10") == 2
    assert "journal.jsonl:10: " in capsys.readouterr().err
    assert resume(run, "--to", "9") == 0
    assert f"lines after 9 are in {run}/journal.after-9.jsonl" in capsys.readouterr().err
    assert (run / "journal.jsonl").read_bytes() == whole  # the search repeats what was cut off
    assert (run / "journal.after-9.jsonl").read_bytes() == b"".join(lines[10:])
    assert resume(run, "--to", str(len(lines) + 1)) == 2
    assert f"has {len(lines)} lines only: name an earlier line" in capsys.readouterr().err


def test_a_missing_journal_is_said_to_be_missing(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tiny_world.copy(finished, tmp_path)
    (run / "journal.jsonl").unlink()
    for command in (["archive", str(run)], ["resume", str(run)], ["resume", str(run), "--to", "0"]):
        assert run_command(command) == 2
        assert f"{run}/journal.jsonl: is missing: restore it from a copy" in capsys.readouterr().err


def test_a_journal_whose_lines_end_like_those_of_windows_is_checked(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tiny_world.copy(finished, tmp_path)
    whole = (run / "journal.jsonl").read_bytes()
    (run / "journal.jsonl").write_bytes(whole.replace(b"\n", b"\r\n"))
    assert run_command(["archive", str(run)]) == 0
    assert "older release" not in capsys.readouterr().out
    damaged = whole.replace(b"\n", b"\r\n").replace(b'"id":7', b'"id":8', 1)
    (run / "journal.jsonl").write_bytes(damaged)
    assert run_command(["archive", str(run)]) == 2
    assert "not the line that was written here" in capsys.readouterr().err
    lines = whole.splitlines(keepends=True)
    (run / "journal.jsonl").write_bytes(b"".join(lines[:9]).replace(b"\n", b"\r\n"))
    assert resume(run) == 0  # and goes on as if it had never been converted
    assert (run / "journal.jsonl").read_bytes().replace(b"\r\n", b"\n") == whole


def test_a_journal_of_an_older_release_is_said_to_be_unchecked(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tiny_world.copy(finished, tmp_path)
    entries = tiny_world.lines(run)
    for entry in entries:
        del entry["check"]
    (run / "journal.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries[:12]))
    assert resume(run) == 0
    assert "12 lines of an older release are not protected" in capsys.readouterr().err
    assert [{**entry, "check": ""} for entry in tiny_world.lines(run)] == [{**entry, "check": ""} for entry in entries]
    assert run_command(["archive", str(run)]) == 0
    assert "12 lines of an older release" in " ".join(capsys.readouterr().out.split())


def test_a_line_of_a_study_is_one_of_its_searches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tiny_world.write(tmp_path, ONE)
    out = tiny_world.run(config, tmp_path / "several", "--budget", 8, "--repeats", 2)
    assert resume(out, "--to", "3") == 2
    assert "a journal for each of its searches: name the folder of one with --to" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["list", "torn", "row"])
def test_damaged_known_answers_are_refused_and_those_of_another_release_computed_again(
    damage: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tiny_world.copy(finished, tmp_path)
    whole = (run / "baseline_errors.json").read_text()
    values = json.loads(whole)
    values["answers"]["blackbox"][0].pop()
    (run / "baseline_errors.json").write_text({"list": "[1]", "torn": whole[:99], "row": json.dumps(values)}[damage])
    assert resume(run) == 2
    assert f"{run}/baseline_errors.json" in (error := capsys.readouterr().err) and "remove it" in error
    (run / "baseline_errors.json").write_text(whole.replace('"blackbox"', '"x"', 1))
    assert resume(run) == 0
    assert (run / "baseline_errors.json").read_text() == whole
