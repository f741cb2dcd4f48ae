"""Files that cannot be written while a command works: full disks, deleted folders, closed streams."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import tiny_world
from commands import Capsys, room_for
from tiny_world import BRIEF, ONE

from archive.journal import Journal
from evolve.cli import run_command
from simulator.common.files import draft_of, write_text
from simulator.common.json import JsonObject

LIST = [sys.executable, "-m", "evolve", "list"]


def shell(redirected: str, *args: str) -> subprocess.CompletedProcess[str]:
    """A command with its streams redirected."""
    line = f'exec "$@" {redirected}'
    return subprocess.run(["sh", "-c", line, "sh", *LIST[:-1], *args], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("redirected", "status", "says"),
    [
        (">&-", 1, "evolve: standard output is closed: send it to a file\n"),
        (">/dev/full", 1, "evolve: standard output: No space left on device\n"),
        ("<&-", 0, ""),
    ],
)
def test_a_stream_that_fails_is_named(redirected: str, status: int, says: str) -> None:
    ended = shell(redirected, "list", "--json")
    assert (ended.returncode, ended.stderr) == (status, says)


@pytest.mark.parametrize("kib", [300_000, 700_000, 1_000_000])
def test_a_limit_on_memory_that_is_too_low_for_the_libraries_is_one_line(kib: int) -> None:
    line = f'ulimit -v {kib}; exec "$@"'
    ended = subprocess.run(["sh", "-c", line, "sh", *LIST], capture_output=True, text=True, check=False)
    says = f"evolve: `ulimit -v` allows {kib >> 10} MiB of memory: allow at least 1024\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", says)
    before = 'import sys; import evolve\ntry: evolve.predict\nexcept evolve.InputError: print("numpy" in sys.modules)'
    line = f'ulimit -v {kib}; exec "$@"'
    command = ["sh", "-c", line, "sh", sys.executable, "-c", before]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


ODD = "a\0b", "a" * 300, "d/" * 3000


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("command", [["show"], ["archive"], ["model", "add"], ["run", "--config"]])
def test_a_name_that_no_file_can_have_is_wrong_input(name: str, command: list[str], capsys: Capsys) -> None:
    assert run_command([*command, name]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("data", ['{files: ["a\\0b"]}', '{predict_files: ["a\\0b"]}'])
def test_a_configuration_with_a_nul_character_is_one_line(data: str, tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "run.yaml").write_text(f"data: {data}\n")
    assert run_command(["run", "--config", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "run")]) == 2
    assert data[1:].split(":")[0] in capsys.readouterr().err


def test_an_output_that_links_to_itself_is_wrong_input(tmp_path: Path, capsys: Capsys) -> None:
    loop = tmp_path / "loop.csv"
    loop.symlink_to(loop)
    assert run_command(["predict", "champion", "--id", "llama-2-7b-tp1-general", "--csv", str(loop)]) == 2
    assert str(loop) in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_text_that_the_terminal_cannot_show_is_spelled(encoding: str, tmp_path: Path) -> None:
    ident = "чат"
    path = tmp_path / "e.yaml"
    path.write_text(tiny_world.DATA.replace("id: dense-chat", f"id: {ident}", 1), "utf-8")
    for more in ([], ["--csv", "-"]):
        args = [*LIST[:-1], "predict", "champion", "--experiments", str(path), *more]
        environment = os.environ | {"PYTHONIOENCODING": encoding}
        ended = subprocess.run(args, capture_output=True, env=environment, check=True)
        assert ident.encode("ascii", "backslashreplace") in ended.stdout


@pytest.mark.parametrize("redirected", [pytest.param("2>&-", marks=pytest.mark.slow), "2>/dev/full"])
def test_a_failing_stderr_stops_nothing(redirected: str, tmp_path: Path) -> None:
    config = tiny_world.write(tmp_path, ONE, **BRIEF, search="{finalists: 0, start: [floor], only_start: true}")
    run = tmp_path / "run"
    ended = shell(redirected, "run", "--config", str(config), "--budget", "1", "--workers", "1", "--out", str(run))
    assert ended.returncode == 0 and "mean error" in ended.stdout
    assert (run / "report.json").exists()


def interrupted_by(monkeypatch: pytest.MonkeyPatch, lines: int, happens: Callable[[], object]) -> None:
    """Let something happen after so many lines of journals."""
    append, written = Journal.append, list[JsonObject]()

    def watched(journal: Journal, entries: Iterable[JsonObject]) -> None:
        for entry in entries:
            append(journal, [entry])
            written.append(entry)
            if len(written) == lines:
                happens()

    monkeypatch.setattr(Journal, "append", watched)


@pytest.mark.parametrize(("workers", "moved"), [(1, False), (1, True), pytest.param(2, True, marks=pytest.mark.slow)])
def test_a_run_whose_folder_is_gone_stops_at_the_next_line(
    workers: int, moved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    run, away = tmp_path / "run", tmp_path / "away"
    interrupted_by(monkeypatch, 6, lambda: run.rename(away) if moved else shutil.rmtree(run))
    config = tiny_world.write(tmp_path, ONE, **BRIEF)
    args = f"run --config {config} --budget 10 --workers {workers} --quiet --out {run}"
    assert run_command(args.split()) == 1
    assert capsys.readouterr().err == (
        f"evolve: {run}/journal.jsonl: No such file or directory: put it back where it was; then `evolve resume {run}` "
        "goes on from what is written\n"
    )
    assert not run.exists()
    if moved:
        assert len(tiny_world.lines(away)) == 6
        monkeypatch.undo()
        away.rename(run)
        assert run_command(["resume", str(run), "--workers", "1", "--quiet"]) == 0


def test_a_run_without_room_names_the_file_and_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    config = tiny_world.write(tmp_path, ONE, **BRIEF)
    whole = (tiny_world.run(config, tmp_path / "whole", "--budget", 12) / "journal.jsonl").read_bytes()
    run = tmp_path / "run"
    with room_for(len(whole) // 2):
        args = ["run", "--config", str(config), "--workers", "1", "--quiet", "--out", str(run), "--budget", "12"]
        assert run_command(args) == 1
    assert capsys.readouterr().err == (
        f"evolve: {run}/journal.jsonl: File too large: make room, or make it writable; then `evolve resume {run}` goes "
        "on from what is written\n"
    )
    assert run_command(["resume", str(run), "--workers", "1", "--quiet"]) == 0
    assert (run / "journal.jsonl").read_bytes() == whole


@pytest.mark.parametrize(("options", "name"), [(["champion"], "go"), (["--coefficients"], "coefficients.yaml")])
def test_go_and_coefficients_that_do_not_fit_leave_the_old_ones(
    options: list[str], name: str, tmp_path: Path, capsys: Capsys
) -> None:
    out = tmp_path / name
    assert run_command(["emit", *options, "--out", str(out)]) == 0

    def written() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    old = written()
    capsys.readouterr()
    with room_for(max(map(len, old.values())) // 2):
        assert run_command(["emit", *options, "--out", str(out)]) == 2
    said = f"evolve: {out}: cannot be written (File too large): choose another --out\n"
    assert capsys.readouterr().err.endswith(said) and written() == old


def test_a_draft_that_does_not_fit_leaves_the_old_file_and_names_it(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_text(path, "old")
    with room_for(1000), pytest.raises(OSError, match=rf"File too large: '{path}'"):
        write_text(path, "x" * 2000)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]
    with pytest.raises(OSError, match=rf"'{tmp_path}/nowhere/x'"), draft_of(tmp_path / "nowhere" / "x") as draft:
        draft.write_text("x")
