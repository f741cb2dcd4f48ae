"""The table of commands: each exists, has help, and is listed by the first sentence of it."""

from __future__ import annotations

import re
import subprocess

import click
import pytest
from console import EVOLVE

from evolve.cli import cli, run_command
from evolve.cli.entry import COMMANDS


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


def test_a_reader_that_has_seen_enough_is_neither_a_failure_nor_a_no() -> None:
    """As after `| head -1`, the status is that of a program that SIGPIPE ends, and there is no message."""
    with subprocess.Popen([*EVOLVE, "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141
