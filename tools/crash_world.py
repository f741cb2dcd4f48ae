"""The long commands that a campaign disturbs, as jobs in folders of their own, and what they leave undisturbed."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import tiny_world
from console import wait_until
from crash_count import Tally, Watch, differences, results
from paths import ROOT
from tiny_world import BRIEF
from trace_engine import simulate
from trace_files import write
from trace_records import MODEL
from worker_pids import worker_pids

from evolve.cli import run_command
from research.__main__ import research

HANG_S = 300
LOCAL = ("--workers", "2")
ALONE = ("--workers", "1")  # in the command's own process, which starts in half of the time
GPU = "H100-SXM-80GB"
CUT = 5  # lines of the journal that `resume` begins with
ANYWHERE = 0.25  # share of the moments that do not wait for a record: half of them come before there is one


@dataclass(frozen=True)
class Work:
    """A long command.

    begin: its words for a folder. again: those that go on with it, once the file `mark` is there. prepare: makes the
    folder, if the command needs one. kept: about how many records there are then. seconds: about how long it takes.
    module: the package whose command it is.
    """

    begin: Callable[[World, Path], Sequence[object]]
    again: Callable[[Path], Sequence[object]] | None = None
    mark: str = ""
    prepare: Callable[[World, Path], object] = lambda world, folder: None
    kept: int = 24
    seconds: float = 8.0
    module: str = "evolve"


def _searching(world: World, folder: Path) -> list[object]:
    return ["run", "--config", world.config, "--budget", 24, "--out", folder]


def _resuming(folder: Path) -> list[object]:
    return ["resume", folder]


def _interrupted(world: World, folder: Path) -> None:
    """A run of which the first lines of the journal are there."""
    shutil.copytree(world.whole, folder)
    journal = folder / "journal.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:CUT]))
    (folder / "report.json").unlink()


WORKS = {
    "run": Work(_searching, _resuming, "journal.jsonl"),
    "resume": Work(lambda world, folder: _resuming(folder), prepare=_interrupted),
    "repeats": Work(
        lambda world, folder: ["run", "--config", world.config, "--budget", 12, "--repeats", 2, "--out", folder],
        _resuming,
        "repeats.json",
    ),
    "validate": Work(
        lambda world, folder: ["validate", folder, "--budget", 9],
        prepare=lambda world, folder: shutil.copytree(world.whole, folder),
        kept=50,
    ),
    "baselines": Work(
        lambda world, folder: [
            "baselines",
            "--config",
            world.config,
            "--budget",
            9,
            "--seeds",
            1,
            "--only",
            "random,gp",
            "--out",
            folder,
        ],
        _resuming,
        "baselines.json",
        kept=36,
        module="research",
    ),
    "ingest": Work(
        lambda world, folder: ["ingest", world.traces, "--hardware", GPU, "--out", folder], kept=3, seconds=4.0
    ),
}


class World:
    """A folder to work in, and the results of undisturbed commands, each of which is carried out when it is needed."""

    def __init__(self, home: Path, seed: int, stop_s: float = 60.0) -> None:
        self.home, self.rng, self.stop_s = home, random.Random(seed), stop_s
        self.config: Path = tiny_world.write(home, "models: [llama-2-7b]", **BRIEF)
        self._undisturbed: dict[str, dict[str, Any]] = {}
        self._numbers = iter(range(1_000_000))

    @property
    def whole(self) -> Path:
        """A finished run."""
        path = self.home / "whole"
        if not path.exists():
            _alone(self, "run", path)
        return path

    @property
    def traces(self) -> Path:
        """A folder of four runs with traces, of different sizes."""
        path = self.home / "traces"
        for k in range(0 if path.exists() else 4):
            run = path / f"2026010{k}-000000-tiny-llama-tp1-general"
            write(simulate(seed=20 + k, requests=300 + 300 * k), run)
            for file in ("exp-config.yaml", "profile.yaml", "results/config.yaml"):
                (run / file).write_text((run / file).read_text().replace(MODEL, "meta-llama/Llama-2-7b-hf"))
        return path

    def undisturbed(self, work: str) -> dict[str, Any]:
        """What a command leaves that nobody disturbs, carried out by this process."""
        if work not in self._undisturbed:
            folder = self.whole if work == "run" else _alone(self, work, self.home / f"undisturbed-{work}")
            self._undisturbed[work] = results(folder)
        return self._undisturbed[work]

    def job(self, work: str) -> Job:
        """A new job, whose undisturbed results are known."""
        self.undisturbed(work)
        return Job(self, work, self.home / f"{work}-{next(self._numbers)}")


def _alone(world: World, work: str, folder: Path) -> Path:
    """The folder that a command has made in this process."""
    WORKS[work].prepare(world, folder)
    words = [*WORKS[work].begin(world, folder), "--quiet", *ALONE]
    with redirect_stdout(StringIO()):
        assert run_command([str(word) for word in words], research if WORKS[work].module == "research" else None) == 0
    return folder


class Job:
    """One long command in a folder, started as often as it takes."""

    def __init__(self, world: World, work: str, folder: Path) -> None:
        self.world, self.name, self.folder = world, work, folder
        self.work = WORKS[work]
        self.begun = False  # whether its folder is there

    def start(self, *where: str) -> subprocess.Popen[str]:
        """The command, or the one that goes on with it; `where` says on which workers."""
        if self.resumes and self.work.again:
            words = self.work.again(self.folder)
        else:
            if self.work.mark or not self.begun:  # killed while the folder was made: nothing is in it yet
                shutil.rmtree(self.folder, ignore_errors=True)
                self.work.prepare(self.world, self.folder)
            words = self.work.begin(self.world, self.folder)
        self.begun = True
        return command(*words, "--quiet", *(where or LOCAL), module=self.work.module)

    @property
    def resumes(self) -> bool:
        """Whether the next start goes on with what is on disk."""
        return self.begun and (self.folder / self.work.mark).exists()


def command(*words: object, module: str = "evolve") -> subprocess.Popen[str]:
    """`python -m MODULE WORDS` of this source tree, in a process group of its own."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, words)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
    )


def moment(job: Job, watch: Watch, process: subprocess.Popen[str]) -> bool:
    """Wait for a random moment of a command; False if it has ended before.

    It comes shortly after a random number of further records, or anywhere in the time that the command takes.
    """
    rng = job.world.rng
    if rng.random() < ANYWHERE:
        rest = rng.uniform(0.1, job.work.seconds)
    else:
        rest = rng.uniform(0.0, 0.3)
        count = watch.count()
        written(watch, process, count + 1 + rng.randrange(max(job.work.kept - count, 1)))
    try:
        process.wait(rest)
    except subprocess.TimeoutExpired:
        return True
    return False


def written(watch: Watch, process: subprocess.Popen[str], count: int) -> None:
    """Wait until so many records are on disk, or the command has ended."""
    deadline = time.monotonic() + HANG_S
    while process.poll() is None and watch.count() < count and time.monotonic() < deadline:
        time.sleep(0.01)


def ended(tally: Tally, what: str, process: subprocess.Popen[str], *statuses: int) -> str:
    """What a command that is waited for said; a finding if it ends otherwise than with these statuses, or hangs."""
    try:
        _, err = process.communicate(timeout=HANG_S)
    except subprocess.TimeoutExpired:
        process.kill()
        _, err = process.communicate()
        tally.findings.append(f"{what}: hung for {HANG_S} s: {err[-300:]!r}")
        return err
    if process.returncode not in statuses or "Traceback" in err:
        tally.findings.append(f"{what}: status {process.returncode}: {err[-400:]!r}")
    return err


def compare(tally: Tally, job: Job, watch: Watch) -> None:
    """Note what a finished job has lost, and where it differs from the undisturbed one. Its folder is removed."""
    watch.end()
    tally.findings += differences(job.folder, job.world.undisturbed(job.name))
    shutil.rmtree(job.folder, ignore_errors=True)


def finish(tally: Tally, job: Job, watch: Watch, *where: str) -> None:
    """Go on with a job to its end, and compare it."""
    tally.resumed += job.resumes
    ended(tally, f"{job.folder.name} resumed", job.start(*where), 0)
    compare(tally, job, watch)


def kill(tally: Tally, what: str, process: subprocess.Popen[str], number: int) -> None:
    """End a command by a signal. A finding if it takes the signal otherwise, or its worker processes outlive it."""
    workers = worker_pids(process.pid)
    process.send_signal(number)
    process.communicate(timeout=HANG_S)
    if process.returncode == 0:  # it ended at this very moment
        return
    tally.done += 1
    if process.returncode not in (-number, 130):
        tally.findings.append(f"{what}: status {process.returncode} after signal {number}")
    try:
        wait_until(lambda: not any(map(running, workers)), 30)
    except TimeoutError:
        tally.findings.append(f"{what}: worker processes {[*filter(running, workers)]} outlive it")


def running(pid: int) -> bool:
    """Whether a process is there and is not only waiting to be noticed as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
