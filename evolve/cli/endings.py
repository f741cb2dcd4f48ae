"""How a command ends: JSON, one line on stderr with an exit status, or the report of long work."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from evolve.processes import available_cores


def fail(message: str, status: int) -> int:
    """`status`, after the message as one line on stderr."""
    print("evolve: " + " ".join(message.split()), file=sys.stderr)
    return status


def print_json(value: Any) -> None:
    """`value` on stdout; raises ValueError if a number in it is not finite."""
    print(json.dumps(value, indent=1, allow_nan=False))


def carry_out(
    work: Callable[..., dict[str, Any]],
    made: Any,
    workers: int | None,
    as_json: bool,
    quiet: bool,
    show: Callable[[dict[str, Any]], None],
    good: Callable[[dict[str, Any]], bool],
) -> int:
    """Long work on a folder that exists: its report, and status 1 where nothing came of it."""
    try:
        report = work(made, workers or available_cores(), quiet)
    except KeyboardInterrupt:
        return fail(f"interrupted; nothing is lost: `evolve resume {made.path}` goes on", 130)
    if as_json:
        print_json(report)
    else:
        show(report)
    return 0 if good(report) else 1
