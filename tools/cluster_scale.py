"""What a task costs a pool besides its work, and up to how many workers that leaves them busy.

`python tools/cluster_scale.py [--seconds 0.1]`: empty tasks give the cost of a task to the client and scheduler;
tasks that sleep as long as a candidate takes show how busy so many workers of a local cluster are. A minute.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial

import pool_tasks
from distributed import LocalCluster

from evolve.output.progress import Line
from evolve.search.pool.cluster import Cluster
from evolve.search.pool.local import LocalPool
from evolve.search.pool.pool import Pool
from evolve.search.pool.process import WorkerCall, parcel

DATA = parcel(pool_tasks.prepare, 7)
EMPTY = 2000


def carried_out(pool: Pool, count: int, seconds: float) -> float:
    """The seconds that a pool takes for so many tasks that sleep."""
    begun = time.perf_counter()
    tasks = [pool.submit(WorkerCall(pool_tasks.slowly, (seconds,), parcel=DATA), i) for i in range(count)]
    for task in tasks:
        task.result()
    return time.perf_counter() - begun


def cost_ms(pool: Pool, workers: int) -> float:
    """The wall-clock time of an empty task in ms, once all workers are ready."""
    carried_out(pool, 4 * workers, 0.5)
    return 1e3 * carried_out(pool, EMPTY, 0.0) / EMPTY


def busy_share(pool: Pool, workers: int, seconds: float) -> float:
    """The share of the workers' time that goes into tasks of so many seconds, 20 for each worker."""
    carried_out(pool, 4 * workers, 0.5)
    each = 20
    return each * seconds / carried_out(pool, each * workers, seconds)


def measured(measure: Callable[[Pool], float], workers: int) -> tuple[float, float]:
    """What a pool of this machine and one of dask measure."""
    with closing(LocalPool(workers, Line(quiet=True))) as pool:
        here = measure(pool)
    threads = min(workers, 16)
    with (
        LocalCluster(n_workers=workers // threads, threads_per_worker=threads, dashboard_address=None) as cluster,
        closing(Cluster(cluster.scheduler_address, Line(quiet=True))) as pool,
    ):
        return here, measure(pool)


def main() -> None:
    """Print the two tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.1, help="that a task sleeps")
    seconds = parser.parse_args().seconds
    here, there = measured(partial(cost_ms, workers=2), 2)
    print(f"an empty task: {here:.2f} ms with processes of this machine, {there:.2f} ms with dask", flush=True)
    print(f"workers  busy with tasks of {seconds} s: processes of this machine, dask")
    for workers in (2, 8, 16, 32, 64):
        busy = measured(partial(busy_share, workers=workers, seconds=seconds), workers)
        print(f"{workers:7}  {busy[0]:.0%}  {busy[1]:.0%}", flush=True)


if __name__ == "__main__":
    main()
