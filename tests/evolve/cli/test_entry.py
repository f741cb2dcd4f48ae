"""The table of commands: each exists, has help, and is listed."""

from __future__ import annotations

import re
import subprocess

import click
import pytest
from commands import Capsys
from console import EVOLVE

from evolve.cli import cli, run_command
from evolve.cli.entry import COMMANDS, GROUPS


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str, capsys: Capsys) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None and command.name == name
    assert run_command([name, "--help"]) == 0
    out, err = capsys.readouterr()
    assert f"Usage: evolve {name}" in out and f"  evolve {name}" in out.split("Options:")[0] and not err


def test_the_help_lists_every_command_under_its_heading(capsys: Capsys) -> None:
    assert run_command(["--help"]) == 0
    out = capsys.readouterr().out
    listed = re.findall(r"^(?:  ([a-z]+)  |([A-Z][a-z ]+):$)", out[out.index("\nPlan:") :], re.MULTILINE)
    words = [word for heading, names in GROUPS.items() for word in (("", heading), *((name, "") for name in names))]
    assert [pair for pair in listed if pair[1] != "Options"] == words


def test_a_reader_that_has_seen_enough_is_neither_a_failure_nor_a_no() -> None:
    """As after `| head -1`, the status is that of a program that SIGPIPE ends, and there is no message."""
    with subprocess.Popen([*EVOLVE, "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141
