"""Long work: options for its processes or cluster, the pool of these, and its ending."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click

from evolve.cli.endings import Result, finish, resumable
from evolve.output.progress import Line
from evolve.output.terminal import command
from evolve.processes import default_workers
from evolve.search.pool.cluster import Cluster
from evolve.search.pool.local import local
from evolve.search.pool.pool import Pool
from simulator.common.errors import InputError


@dataclass(frozen=True, slots=True)
class Where:
    """The chosen place of work: processes of this machine, or a cluster."""

    workers: int | None = None  # None: see default_workers
    cluster: str | None = None  # see evolve.search.pool.cluster.Cluster

    @contextmanager
    def pool(self, quiet: bool) -> Iterator[Pool]:
        """The pool, closed when the block ends."""
        line = Line(quiet)
        pool = local(self.workers or default_workers(), line) if self.cluster is None else Cluster(self.cluster, line)
        try:
            yield pool
        finally:
            pool.close()


def pool_options(command: Callable[..., Any], default: int | None = None) -> Callable[..., Any]:
    """Add --workers (so many by default, see `default_workers` if None) and --cluster; the command receives `where`."""

    @click.option(
        "--workers",
        type=click.IntRange(min=1),
        help=f"Processes [default: {default or 'one per core, as memory allows'}]. Results do not depend on it.",
    )
    @click.option(
        "--cluster",
        metavar="ADDRESS",
        help="Work on a cluster of dask.distributed: tcp://HOST:PORT, a "
        "scheduler file, or local:N for N workers on this machine.",
    )
    @wraps(command)
    def with_where(workers: int | None, cluster: str | None, **options: Any) -> Any:
        if workers is not None and cluster is not None:
            raise InputError("--workers is for this machine, --cluster for others. Give one of them.")
        return command(where=Where(workers or default, cluster), **options)

    return with_where


class _Folder(Protocol):
    @property
    def path(self) -> Path: ...


T = TypeVar("T", bound=_Folder)
R = TypeVar("R", bound=Result)


def carry_out(
    work: Callable[[T, Pool], R],
    folder: T,
    pool: Pool,
    as_json: bool,
    show: Callable[[R], None],
    good: Callable[[R], bool],
    paid: Callable[[Path], str],
    again: Callable[[Path], str] | None = None,
) -> int:
    """Do long work on an existing folder, print its report, and return 0 if the report is `good`, else 1.

    `paid`: costs that an early end may waste, see validate.costs.without_answers.
    `again`: the command line that continues the work.
    """
    continues = again(folder.path) if again else command("resume", folder.path)
    with resumable(continues, lambda: paid(folder.path)):
        report = work(folder, pool)
    finish(report, as_json, show)
    return 0 if good(report) else 1
