"""Commands in this process, by the words that a user types."""

from __future__ import annotations

import pytest

from evolve.cli import run_command


def evolve(*args: object) -> int:
    """The exit status of `evolve ARGS`."""
    return run_command([str(arg) for arg in args])


def refused(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    """The one line with which `evolve ARGS` refuses bad input."""
    capsys.readouterr()
    assert evolve(*args) == 2
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1
    return err
