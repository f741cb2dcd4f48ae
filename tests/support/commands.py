"""Commands in this process, by the words that a user types."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
import pytest

from evolve.cli import cli, run_command
from research.__main__ import research

Capsys = pytest.CaptureFixture[str]
Options = tuple[object, ...]  # of a command


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


def printed(capsys: Capsys, *args: object, status: int = 0) -> str:
    """The standard output of `evolve ARGS`, which ends with this exit status."""
    capsys.readouterr()
    found = evolve(*args)
    out, err = capsys.readouterr()
    assert found == status, err
    return out


def flat(capsys: Capsys, *args: object, status: int = 0) -> str:
    """The standard output of `evolve ARGS` as one line."""
    return " ".join(printed(capsys, *args, status=status).split())


def as_json(capsys: Capsys, *args: object, status: int = 0) -> Any:
    """The standard output of `evolve ARGS --json`, parsed."""
    return json.loads(printed(capsys, *args, "--json", status=status))


def refused(capsys: Capsys, *args: object) -> str:
    """The one line with which `evolve ARGS` refuses bad input."""
    capsys.readouterr()
    assert evolve(*args) == 2
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1
    return err


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Files may have so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
