"""Commands in this process, by the words that a user types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click
import pytest

from evolve.cli import cli, run_command
from research.__main__ import research


def commands(group: click.Group = cli, above: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command by its words, those of groups inside too."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{above}{name} ")
        else:
            yield f"{above}{name}", command


def evolve(*args: object) -> int:
    """The exit status of `evolve ARGS`."""
    return run_command([str(arg) for arg in args])


def research_command(args: Sequence[str]) -> int:
    """The exit status of `python -m research ARGS`."""
    return run_command([*args], research)


def refused(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    """The one line with which `evolve ARGS` refuses bad input."""
    capsys.readouterr()
    assert evolve(*args) == 2
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1
    return err
