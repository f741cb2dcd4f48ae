"""What bash, zsh and fish complete, each with the line that the page on commands has for it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import completion_table
import pytest
from commands import Capsys
from paths import ROOT

from evolve.cli import completion, run_command
from evolve.cli.words import WORDS
from evolve.run.config_file import bundled_configs
from evolve.run.program import seed_names
from simulator.serving.gpu import hardware_table
from simulator.serving.model import model_table

LINES = {
    "bash": 'eval "$(_EVOLVE_COMPLETE=bash_source evolve)"',
    "zsh": 'eval "$(_EVOLVE_COMPLETE=zsh_source evolve)"',
    "fish": "_EVOLVE_COMPLETE=fish_source evolve | source",
}
# In a script there is no line to complete, so what zsh's own functions would be given is printed.
ZSH = """\
compdef() { }
compadd() { print -rl -- ${(P)@[-1]} }
_describe() { print -rl -- ${${(P)3}%%:*} }
_path_files() { print -r -- FILES }
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two runs and a program, where lines are typed, and with the command on the path."""
    for name in ("runs/0001", "runs/repeats/seed-0"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "run.json").write_text("{}")
    (tmp_path / "mine.py").write_text("")
    command = tmp_path / "bin" / "evolve"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m evolve "$@"\n')
    command.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def shell(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def in_bash(line: str) -> list[str]:
    words = line.split(" ")
    script = f"{LINES['bash']}\nCOMP_WORDS=({shlex.join(words)})\nCOMP_CWORD={len(words) - 1}\n"
    return shell("bash", "-c", script + '_evolve_completion evolve 2>&-\nprintf "%s\\n" "${COMPREPLY[@]}"').split()


def in_zsh(line: str) -> list[str]:
    words = line.split(" ")
    script = f"{ZSH}{LINES['zsh']}\nwords=({shlex.join(words)})\nCURRENT={len(words)}\n_evolve_completion"
    return shell("zsh", "-f", "-c", script).split()


def in_fish(line: str) -> list[str]:
    offered = shell("fish", "--no-config", "-c", f"{LINES['fish']}; complete -C {shlex.quote(line)}")
    return [text.split("\t")[0] for text in offered.splitlines()]


SHELLS = [
    pytest.param(offered, marks=pytest.mark.skipif(shutil.which(name) is None, reason=f"no {name}"), id=name)
    for name, offered in (("bash", in_bash), ("zsh", in_zsh), ("fish", in_fish))
]


@pytest.mark.parametrize("offered", SHELLS)
def test_a_shell_completes_commands_options_choices_and_names(offered, home: Path) -> None:  # type: ignore[no-untyped-def]
    assert offered("evolve pre") == ["predict"]
    assert sorted(offered("evolve emit --host ")) == ["blis-4", "blis-5", "blis-kernel"]
    assert {"runs/0001", "runs/repeats/seed-0"} <= set(offered("evolve archive runs/"))
    if offered is not in_bash:  # files too, by the shell's own function
        assert offered("evolve show mi") == (["FILES"] if offered is in_zsh else ["mine.py"])


@pytest.mark.parametrize("name", LINES)
def test_every_shell_gets_a_script_and_the_page_says_how(
    name: str, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_EVOLVE_COMPLETE", f"{name}_source")
    assert run_command([]) == 0
    out, err = capsys.readouterr()
    assert f"_EVOLVE_COMPLETE={name}_complete" in out and "_evolve_completion" in out and not err
    line = LINES[name].replace("|", "\\|")
    assert re.search(rf"\| {name}.*\| `{re.escape(line)}` \|", (ROOT / "docs" / "quickstart.md").read_text("utf-8"))


def answer(line: str, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the command answers a shell, as `type,value`."""
    words = line.split(" ")
    for name, text in (
        ("_EVOLVE_COMPLETE", "bash_complete"),
        ("COMP_WORDS", line),
        ("COMP_CWORD", str(len(words) - 1)),
    ):
        monkeypatch.setenv(name, text)
    assert run_command([]) == 0
    out, err = capsys.readouterr()
    assert not err
    return out.split()


@pytest.mark.parametrize(
    ("line", "first"),
    [
        ("evolve show ", "file,"),  # bash drops the names before an item for files, so it comes first
        ("evolve predict --experiments pl", "file,pl"),
        ("evolve archive ", "dir,"),
        ("evolve run --prompts ", "dir,"),
        ("evolve ingest a b ", "dir,"),
    ],
)
def test_a_shell_is_told_where_files_fit(
    line: str, first: str, home: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert answer(line, capsys, monkeypatch)[0] == first


OFFERED = {
    "evolve predict --se": "--seeds",
    "evolve model r": "remove",
    "evolve show ch": "champion",
    "evolve run --start roo": "roofline",
    "evolve run --config smo": "smoke",
    "evolve emit --model llama-2-7b --hardware H100-N": "H100-NVL",
}


@pytest.mark.parametrize("line", OFFERED)
def test_names_are_offered(line: str, home: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"plain,{OFFERED[line]}" in answer(line, capsys, monkeypatch)


@pytest.mark.parametrize("line", ["evolve predict --seeds ", "evolve show 'a", "evolve show a b c "])
def test_where_nothing_fits_nothing_is_said(
    line: str, home: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not [item for item in answer(line, capsys, monkeypatch) if item.startswith("plain")]


def test_a_failure_is_silent(home: Path, capfd: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    models = home / "models"
    models.mkdir()
    (models / "broken.json").write_text("{")
    monkeypatch.setenv("EVOLVE_MODELS", str(models))
    monkeypatch.setenv("COMP_WORDS", "evolve kernels ")
    monkeypatch.setenv("COMP_CWORD", "2")
    for instruction in ("bash_complete", "bash_nonsense", "tcsh_complete", "x"):
        monkeypatch.setenv("_EVOLVE_COMPLETE", instruction)
        assert run_command([]) == 1
        assert capfd.readouterr() == ("", "")


def test_an_answer_imports_no_command(home: Path) -> None:
    code = "import sys; from evolve.cli import run_command; run_command([]); print('LOADED', *sys.modules)"
    asked = {"_EVOLVE_COMPLETE": "bash_complete", "COMP_WORDS": "evolve simulate --model ", "COMP_CWORD": "3"}
    out = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | asked | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    loaded = set(out.splitlines()[-1].split())
    assert "plain,llama-2-7b" in out
    assert not loaded & {"numpy", "evolve.cli.host", "evolve.cli.options", "pandas", "rich", "sympy"}


def test_the_table_is_that_of_the_commands() -> None:
    assert completion_table.FILE.read_text("utf-8") == completion_table.table(), "run `make docs`"
    assert {line.split()[0] for line in WORDS.strip().splitlines() if line[0] != " "} == {
        name for name, _ in completion_table.commands()
    }


def test_the_names_are_those_that_commands_know(home: Path) -> None:
    assert completion.program_names() == seed_names()
    assert completion.config_names() == bundled_configs()
    assert set(completion.model_names()) <= set(model_table()) and "llama-2-7b" in completion.model_names()
    assert set(completion.gpu_names()) <= set(hardware_table()) and "H100" in completion.gpu_names()
    assert completion.run_paths() == ["runs/0001", "runs/repeats/seed-0"]
