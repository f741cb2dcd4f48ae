"""Disturbances on one machine: commands and worker processes that are killed or stopped, and locks left behind."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator, Sequence

from crash_count import Tally, Watch
from crash_world import ALONE, World, compare, ended, finish, kill, moment, written
from worker_pids import worker_pids

EACH = (2, 4)  # kills of one job, at least and at most
TURNS = 10  # jobs for each disturbance at most: some end before it comes


def turns(tally: Tally, count: int) -> Iterator[int]:
    """The numbers of jobs, until so many disturbances are done; a finding if they did not come in time."""
    for turn in range(TURNS * count):
        if tally.done >= count:
            return
        yield turn
    if tally.done < count:
        tally.findings.append(f"only {tally.done} of {count} disturbances came in time")


def killed(
    world: World,
    tally: Tally,
    count: int,
    works: Sequence[str],
    *where: str,
    numbers: Sequence[int] = (signal.SIGKILL,),
) -> None:
    """Kill these commands at random moments, go on, kill again; then finish, and compare."""
    for turn in turns(tally, count):
        kills = min(world.rng.randint(*EACH), count - tally.done)
        one_chain(world, tally, kills, works[turn % len(works)], where, numbers)


def one_chain(world: World, tally: Tally, count: int, work: str, where: Sequence[str], numbers: Sequence[int]) -> None:
    """Kill one job so often, and finish it. If it ends before the next kill, it is compared as it is."""
    job = world.job(work)
    watch = Watch(job.folder, tally)
    for _ in range(count):
        tally.resumed += job.resumes
        process = job.start(*where)
        if not moment(job, watch, process):
            ended(tally, f"{job.folder.name} undisturbed", process, 0)
            compare(tally, job, watch)
            return
        watch.look()
        kill(tally, job.folder.name, process, world.rng.choice(numbers))
        watch.look()
    finish(tally, job, watch, *(where or ALONE))


def workers_killed(world: World, tally: Tally, count: int, works: Sequence[str]) -> None:
    """Kill worker processes of local pools: the command ends as if nothing had been."""
    for turn in turns(tally, count):
        job = world.job(works[turn % len(works)])
        watch = Watch(job.folder, tally)
        process = job.start()
        for _ in range(min(2, count - tally.done)):
            moment(job, watch, process)
            watch.look()
            tally.done += signalled(world, worker_pids(process.pid), signal.SIGKILL) is not None
        ended(tally, f"{job.folder.name}, a worker killed", process, 0)
        compare(tally, job, watch)


def signalled(world: World, pids: Sequence[int], number: int) -> int | None:
    """The process, one of these, that was sent a signal; None if there is none any more."""
    if not pids:
        return None
    pid = world.rng.choice(pids)
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return None
    return pid


def worker_stopped(world: World, tally: Tally, count: int) -> None:
    """Stop a worker process of a local pool for a while."""
    for turn in turns(tally, count):
        job = world.job(("run", "validate")[turn % 2])
        watch = Watch(job.folder, tally)
        process = job.start()
        written(watch, process, 1)
        moment(job, watch, process)
        watch.look()
        stopped = signalled(world, worker_pids(process.pid), signal.SIGSTOP)
        if stopped is not None:
            tally.done += 1
            time.sleep(world.stop_s)
            watch.look()
            if process.poll() is None:  # otherwise it has ended its workers, and the id may be another's
                signalled(world, [stopped], signal.SIGCONT)
        ended(tally, f"{job.folder.name}, a worker stopped", process, 0)
        compare(tally, job, watch)


def locks(world: World, tally: Tally, count: int) -> None:
    """Locks of a killed process, of another machine, and of a process that lives."""
    _left_behind(world, tally)
    _in_use(world, tally)


def _left_behind(world: World, tally: Tally) -> None:
    """The lock of a killed process, in its folder and in a copy of that: both can be resumed."""
    job, copied = world.job("resume"), world.job("resume")
    watch = Watch(job.folder, tally)
    process = job.start()
    written(watch, process, 8)
    watch.look()
    kill(tally, job.folder.name, process, signal.SIGKILL)
    if not (job.folder / ".lock").exists():
        tally.findings.append(f"{job.folder.name}: the killed process left no lock")
    shutil.copytree(job.folder, copied.folder)
    (copied.folder / ".lock").write_text("4711@another-machine\n")
    copied.begun = True
    tally.done += 1
    for left in (job, copied):
        watch = Watch(left.folder, tally)
        watch.look()
        tally.resumed += 1
        ended(tally, f"{left.folder.name}, a lock left behind", left.start(), 0)
        compare(tally, left, watch)


def _in_use(world: World, tally: Tally) -> None:
    """A second `resume` at the same time is refused by one line, and the first one is not disturbed."""
    job = world.job("resume")
    watch = Watch(job.folder, tally)
    process = job.start()
    written(watch, process, 8)
    watch.look()
    os.kill(process.pid, signal.SIGSTOP)  # so that it cannot end before the other one has begun
    said = ended(tally, f"{job.folder.name} resumed twice", job.start(), 2)
    os.kill(process.pid, signal.SIGCONT)
    if said.count("\n") != 1 or "another process is working on this run" not in said:
        tally.findings.append(f"{job.folder.name} resumed twice: {said!r}")
    tally.done += 1
    ended(tally, f"{job.folder.name}, resumed twice", process, 0)
    compare(tally, job, watch)
