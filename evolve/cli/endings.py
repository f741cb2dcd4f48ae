"""How a command ends: JSON, one line on stderr with an exit status, or the report of long work."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from evolve.processes import available_cores
from evolve.terminal import command, say
from simulator.json import JsonObject


class _Folder(Protocol):
    @property
    def path(self) -> Path: ...


class _Report(Protocol):
    def to_json(self) -> JsonObject: ...


T = TypeVar("T", bound=_Folder)
R = TypeVar("R", bound=_Report)


def fail(message: str, status: int) -> int:
    """Print the message as one line on stderr, and return `status`."""
    say("evolve: " + " ".join(line.strip() for line in message.splitlines()), err=True)
    return status


def print_json(value: Any) -> None:
    """Print a JSON value on stdout. Raises ValueError if a number in it is not finite."""
    say(json.dumps(value, indent=1, allow_nan=False))


def carry_out(
    work: Callable[[T, int, bool], R],
    folder: T,
    workers: int | None,
    as_json: bool,
    quiet: bool,
    show: Callable[[R], None],
    good: Callable[[R], bool],
) -> int:
    """Do long work on an existing folder, print its report, and return 0 if the report is `good`, else 1."""
    try:
        report = work(folder, workers or available_cores(), quiet)
    except KeyboardInterrupt:
        return fail(f"interrupted; nothing is lost: `{command('resume', folder.path)}` goes on", 130)
    if as_json:
        print_json(report.to_json())
    else:
        show(report)
    return 0 if good(report) else 1
