"""A campaign against long commands: kills, stops and cuts at random moments. No verdict may be lost.

`python tools/crash.py [--seed 0] [--only run,network] [--count 50] [--stop-s 60]`: a row for each part, exit
status 1 if a verdict was lost or a result differs from the undisturbed one. It takes twenty minutes on two cores.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import crash_cluster
import crash_parts
from crash_count import Tally
from crash_world import World

HEAD = ("part", "what was done", "how often", "commands resumed", "verdicts lost", "findings", "seconds")


@dataclass(frozen=True)
class Part:
    """A part of the campaign: its name, what it does, how, how often, and whether --count is shared out to it."""

    name: str
    what: str
    carry_out: Callable[[World, Tally, int], None]
    count: int
    kills: bool = True


def _killed(*works: str, number: int = signal.SIGKILL) -> Callable[[World, Tally, int], None]:
    return partial(crash_parts.killed, works=works, numbers=(number,))


_workers = partial(crash_parts.workers_killed, works=("run", "validate", "repeats", "ingest", "baselines"))

PARTS = (
    Part("run", "`run` killed", _killed("run"), 8),
    Part("resume", "`resume` killed", _killed("resume"), 5),
    Part("repeats", "`run --repeats 2` killed", _killed("repeats"), 5),
    Part("validate", "`validate` killed", _killed("validate"), 6),
    Part("ingest", "`ingest` of four folders killed", _killed("ingest"), 6),
    Part("baselines", "`baselines` killed", _killed("baselines"), 3),
    Part("worker", "a local worker process killed", _workers, 6),
    Part("dask-worker", "a dask worker killed, another joins", crash_cluster.workers_killed, 3),
    Part("dask-hand", "a worker process below a dask worker killed", crash_cluster.hands_killed, 3),
    Part("dask-scheduler", "the scheduler killed", crash_cluster.scheduler_killed, 2),
    Part("dask-client", "a command on a cluster killed", crash_cluster.clients_killed, 3),
    Part("terminate", "`run` and `validate` sent SIGTERM", _killed("run", "validate", number=signal.SIGTERM), 4, False),
    Part("stop", "a local worker process stopped", crash_parts.worker_stopped, 1, False),
    Part("dask-stop", "a dask worker stopped", crash_cluster.worker_stopped, 1, False),
    Part("network", "a dask worker's namespace cut from the network", crash_cluster.unplugged, 3, False),
    Part("proxy", "a dask worker's connections silenced, reset by a proxy", crash_cluster.proxied, 3, False),
    Part("locks", "locks of dead processes and of a living one", crash_parts.locks, 2, False),
)
KILLS = sum(part.count for part in PARTS if part.kills)


def shared(parts: list[Part], count: int | None) -> dict[str, int]:
    """How often each part disturbs; `count` kills are shared out in proportion, and every part has one at least."""
    kills = sum(part.count for part in parts if part.kills)
    if count is None or not kills:
        return {part.name: part.count for part in parts}
    return {part.name: max(round(part.count * count / kills), 1) if part.kills else part.count for part in parts}


def carried_out(part: Part, world: World, count: int) -> Tally:
    """What came of a part."""
    tally, since = Tally(), time.monotonic()
    try:
        part.carry_out(world, tally, count)
    except Exception as e:  # the other parts are to be seen all the same
        tally.findings.append(f"could not be carried out: {type(e).__name__}: {e}")
    tally.seconds = time.monotonic() - since
    return tally


def row(part: Part, tally: Tally) -> str:
    """The line of the table."""
    what = f"not carried out: {tally.skipped}" if tally.skipped else part.what
    cells = (part.name, what, tally.done, tally.resumed, len(tally.lost), len(tally.findings), f"{tally.seconds:.0f}")
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> int:
    """Carry out the campaign: a row as each part ends, then what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(part.name for part in PARTS), help="parts, separated by commas")
    parser.add_argument("--count", type=int, help=f"kills in all, shared out to the parts [default: {KILLS}]")
    parser.add_argument("--stop-s", type=float, default=60.0, help="how long a process is stopped, a network cut")
    given = parser.parse_args()
    parts = [part for part in PARTS if part.name in given.only.split(",")]
    if unknown := set(given.only.split(",")) - {part.name for part in PARTS}:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    counts, failed = shared(parts, given.count), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EVOLVE_MODELS"] = str(Path(folder) / "models")
        world = World(Path(folder), given.seed, given.stop_s)
        print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}", flush=True)
        for part in parts:
            tally = carried_out(part, world, counts[part.name])
            print(row(part, tally), flush=True)
            failed += [f"{part.name}: {text}" for text in (*tally.lost, *tally.findings)]
    print("\n".join(failed or ["No verdict was lost, and all results are those of undisturbed commands."]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
