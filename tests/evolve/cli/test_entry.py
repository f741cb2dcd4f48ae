"""The table of commands: each exists, has help, and is listed by the first sentence of it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from paths import ROOT

from evolve.cli import cli, run_command
from evolve.cli.entry import COMMANDS

# What the page on commands says to put into ~/.bashrc.
COMPLETION = """\
eval "$(_EVOLVE_COMPLETE=bash_source evolve)"
complete -o nosort -o default -F _evolve_completion evolve
"""


def bash(script: str, folder: Path) -> str:
    """What bash prints for a script after those lines, with the command on its path."""
    evolve = folder / "evolve"
    evolve.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m evolve "$@"\n')
    evolve.chmod(0o755)
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    command = ["bash", "-c", COMPLETION + script]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return ran.stdout


def completed(line: str, folder: Path) -> list[str]:
    """What bash offers at the end of a line."""
    words = line.split(" ")
    script = f"COMP_WORDS=({shlex.join(words)})\nCOMP_CWORD={len(words) - 1}\n"
    return bash(script + '_evolve_completion evolve\nprintf "%s\\n" "${COMPREPLY[@]}"', folder).split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    assert f"```sh\n{COMPLETION}```" in (ROOT / "docs" / "commands.md").read_text()
    assert completed("evolve pre", tmp_path) == ["predict"]
    assert completed("evolve predict --se", tmp_path) == ["--seeds"]
    assert completed("evolve emit --target ", tmp_path) == ["blis-4", "blis-5"]
    # a program can be a file, which only bash's own completion finds
    assert completed("evolve show min", tmp_path) == [] and "-o default" in bash("complete -p evolve", tmp_path)


def first_sentence(command: click.Command) -> str:
    text = " ".join((command.help or "").split())
    match = re.match(r".*?[.?](?= |$)", text)
    assert match, text
    return match[0]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_listed_command_exists_and_its_short_help_begins_its_help(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None and command.name == name
    assert COMMANDS[name][2] == first_sentence(command)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_works_for_every_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([name, "--help"]) == 0
    out, err = capsys.readouterr()
    assert f"Usage: evolve {name}" in out and f"evolve {name}" in out.split("Options:")[0] and not err


def test_the_group_lists_every_command_in_the_tables_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["--help"]) == 0
    listed = capsys.readouterr().out.split("Commands:\n")[1]
    assert [m[1] for m in re.finditer(r"^  (\S+)  ", listed, re.MULTILINE)] == list(COMMANDS)
    assert " ".join(COMMANDS["fit"][2].split()) in " ".join(listed.split())
    assert cli.get_command(click.Context(cli), "frobnicate") is None
