"""A run's folder from somebody else: nothing outside it is read, written or emptied, and nothing hangs."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_world
from commands import Capsys, evolve, refused
from tiny_world import BRIEF, ONE

from evolve.run import folder as run_folder

BELOW = ("programs", "start")
FILES = (".lock", "journal.jsonl", "run.json", "config.yaml", "report.json", "cpu.csv", "summary.md", "known.json")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("world")
    config = tiny_world.write(home, ONE, **BRIEF, search="{finalists: 0, start: [floor], only_start: true}")
    return tiny_world.run(config, home / "run", "--budget", 1)


def linked(path: Path) -> None:
    """A link to what was there, outside."""
    outside = path.parents[1] / "outside"
    if path.exists():
        shutil.move(path, outside)
    else:
        outside.write_text("{}")
    path.symlink_to(outside)


def piped(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


@pytest.mark.parametrize("change", [linked, piped])
@pytest.mark.parametrize("name", FILES)
def test_a_link_or_a_pipe_in_a_runs_folder_is_refused(
    name: str, change: Callable[[Path], None], finished: Path, tmp_path: Path, capsys: Capsys
) -> None:
    run = tiny_world.copy(finished, tmp_path)
    if name == "known.json":
        (run / "baseline_errors.json").unlink()
    change(run / name)
    outside = tmp_path / "outside"
    before = outside.read_bytes() if outside.exists() else b""
    said = refused(capsys, "resume", run, "--workers", 1, "--quiet")
    assert name in said or (name, change) == ("run.json", piped)  # which is no run then
    assert (outside.read_bytes() if outside.exists() else b"") == before


@pytest.mark.parametrize("name", BELOW)
def test_a_linked_folder_in_a_runs_folder_is_refused(name: str, finished: Path, tmp_path: Path, capsys: Capsys) -> None:
    run, theirs = tiny_world.copy(finished, tmp_path), tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "mine.py").write_text("mine")
    shutil.rmtree(run / name, ignore_errors=True)
    (run / name).symlink_to(theirs)
    assert str(run / name) in refused(capsys, "resume", run, "--workers", 1, "--quiet")
    assert [p.read_text() for p in theirs.iterdir()] == ["mine"]


def test_a_link_to_a_run_is_followed(finished: Path, tmp_path: Path) -> None:
    run = tiny_world.copy(finished, tmp_path)
    (tmp_path / "link").symlink_to(run)
    assert evolve("resume", tmp_path / "link", "--workers", 1, "--quiet") == 0
    assert evolve("archive", tmp_path / "link") == 0


def test_two_runs_that_start_at_once_get_two_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    barrier, number, made, waited = threading.Barrier(8), run_folder.next_path, list[Path](), set[int]()

    def seen_by_all() -> Path:
        path = number()
        if threading.get_ident() not in waited:
            waited.add(threading.get_ident())
            barrier.wait(10)
        return path

    monkeypatch.setattr(run_folder, "next_path", seen_by_all)
    threads = [threading.Thread(target=lambda: made.append(run_folder.new_folder(None))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [Path(f"runs/{n:04d}") for n in range(1, 9)]
