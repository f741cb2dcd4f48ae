"""How a command ends: JSON, one line on stderr with an exit status, or the report of long work."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def fail(message: str, status: int) -> int:
    """`status`, after the message as one line on stderr."""
    print("evolve: " + " ".join(message.split()), file=sys.stderr)
    return status


def print_json(value: Any) -> None:
    """`value` on stdout; raises ValueError if a number in it is not finite."""
    import json

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
    from evolve.cores import available_cores

    try:
        report = work(made, workers or available_cores(), quiet)
    except KeyboardInterrupt:
        return fail(f"interrupted; nothing is lost: `evolve resume {made.path}` goes on", 130)
    if as_json:
        print_json(report)
    else:
        show(report)
    return 0 if good(report) else 1


def work_run(run: Any, workers: int | None, as_json: bool, quiet: bool) -> int:
    """A run, until it is done; status 1 if it has no champion."""
    from evolve.report import print_run
    from evolve.run import work

    return carry_out(work, run, workers, as_json, quiet, print_run, lambda report: bool(report["champion"]))


def work_repeats(made: Any, workers: int | None, as_json: bool, quiet: bool) -> int:
    """Repeats, until all are done; status 1 if none has a champion."""
    from evolve.repeating.repeats import work
    from evolve.repeating.report import print_repeats

    return carry_out(work, made, workers, as_json, quiet, print_repeats, lambda report: bool(report["figures"]))


def work_baselines(made: Any, workers: int | None, as_json: bool, quiet: bool) -> int:
    """Baselines, until all are done; status 1 if no engine has a median joint error at the full budget."""
    from evolve.baseline.compare import compare
    from evolve.baseline.report import print_comparison

    def any_scored(report: dict[str, Any]) -> bool:
        return any(found["joint"]["100"]["median"] is not None for found in report["engines"].values())

    return carry_out(compare, made, workers, as_json, quiet, print_comparison, any_scored)
