"""A study: several runs in one folder. Finished ones are read back, interrupted ones are resumed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from archive.population import Population
from evolve.output.files import REMEDY
from evolve.output.progress import ProgressTimes, Rate
from evolve.run.config import Config
from evolve.run.folder import RunFolder, open_run
from evolve.search.pool.pool import Closed, Pool
from evolve.search.pool.process import MOST_KEPT
from evolve.search.run import start, work
from evolve.summary.result import RunReport, finished
from simulator.common.documents import read_json
from simulator.common.errors import InputError
from simulator.common.files import plain_folder

T = TypeVar("T")
TOGETHER = MOST_KEPT // 2  # searches at a time: beyond MOST_KEPT, a worker would prepare data for every call


@dataclass(frozen=True, slots=True)
class Member:
    """One run of a study."""

    folder: Path
    config: Config
    forms_of: str = ""  # see evolve.run.folder.About


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished run of a study."""

    report: RunReport
    searched: bool  # whether this process searched; otherwise the run had been finished before


def carry_out(
    members: Sequence[Member], noun: str, pool: Pool, full: bool, then: Callable[[int, Finished, ProgressTimes], T]
) -> list[T]:
    """Finish the runs of all members, and what `then` makes of each, in their order.

    TOGETHER searches go on side by side, and one pool carries out what all of them need; in this process, they follow
    each other. `noun` is what the progress line calls a member. `full`: see evolve.search.run.work. `then` is called
    with a member's number, its finished run and its progress, in a thread.
    """
    study = StudyProgress(members, noun, pool)

    def finish(number: int) -> T:
        member, progress = members[number], study.of[number]
        report = finished(plain_folder(member.folder))
        if report is not None:
            progress.skip()
            return then(number, Finished(report, False), progress)
        run = open_run(member.folder) if member.folder.exists() else _started(member)
        made = then(number, Finished(work(run, pool, progress, full), True), progress)
        progress.end()
        return made

    try:
        if pool.here:
            return [finish(number) for number in range(len(members))]
        return _side_by_side(finish, len(members), pool)
    finally:
        pool.line.close()


def _started(member: Member) -> RunFolder:
    return start(member.config, member.folder, forms_of=member.forms_of)


def _side_by_side(finish: Callable[[int], T], count: int, pool: Pool) -> list[T]:
    """What `finish` returns for each number below `count`, in threads. If one fails, all end."""
    with ThreadPoolExecutor(min(count, TOGETHER)) as threads:
        running = [threads.submit(finish, number) for number in range(count)]
        try:
            ended, _ = wait(running, return_when=FIRST_EXCEPTION)
            failed = [error for future in ended if (error := future.exception())]
            if failed:  # the others fail because the pool is closed
                raise next((error for error in failed if not isinstance(error, Closed)), failed[0])
        except BaseException:
            pool.close()
            threads.shutdown(wait=False, cancel_futures=True)
            raise
        return [future.result() for future in running]


def read_about(path: Path, missing: str) -> Mapping[str, Any]:
    """The contents of the file `path` that describes a study.

    Raises InputError if the file is damaged, and with the text `missing` if there is none.
    """
    try:
        about = read_json(path, REMEDY, kept=True)
    except OSError:
        raise InputError(missing) from None
    if not isinstance(about, dict):
        raise InputError(f"{path}: is damaged: {REMEDY}")
    return about


class StudyProgress:
    """A progress line for a study: how many members are finished, the candidates of all, and the time left for all."""

    def __init__(self, members: Sequence[Member], noun: str, pool: Pool) -> None:
        self.noun, self.pool = noun, pool
        self.rate = Rate()
        self.of = [MemberProgress(member, self) for member in members]

    def text(self) -> str:
        budget = sum(progress.budget for progress in self.of)
        assessed, done = sum(progress.fitted for progress in self.of), sum(progress.done for progress in self.of)
        rate = self.rate.per_s(done)
        left = sum(progress.budget - progress.fitted for progress in self.of if not progress.ended)
        time_left = f"{left / rate:.0f} s left for all" if done >= 10 else "time left unknown"
        best = min(progress.best for progress in self.of)
        parts = (
            f"{sum(progress.ended for progress in self.of)}/{len(self.of)} {self.noun}s finished: "
            f"{assessed}/{budget} candidates",
            f"{rate:.1f}/s",
            self.pool.state(),
            f"best mean error in training {best:.2f} %" if math.isfinite(best) else "",
            time_left if left else "",
        )
        return ", ".join(part for part in parts if part)


class MemberProgress(ProgressTimes):
    """The progress of one member of a study, shown in the line of all."""

    def __init__(self, member: Member, study: StudyProgress) -> None:
        super().__init__(member.config.budget, study.pool.line)
        self._study, self._name = study, member.folder.name
        self.fitted, self.done = 0, 0  # candidates in all, and those that this process assessed
        self.best, self.ended = math.inf, False

    def skip(self) -> None:
        self.fitted = self.budget
        self.ended = True

    def end(self) -> None:
        self.ended = True

    def update(self, population: Population) -> None:
        if population.proposals >= self.resumed:
            self.done = self.rate.done(population.fitted, bool(self.resumed))
        self.fitted = population.fitted
        self.best = min((e.mean_error for e in population.archive.grid.cells.values()), default=math.inf)
        self.line.update(self._study.text)

    def asking(self, text: str) -> None:
        self._study.pool.check()  # the search of another member may have failed, or Ctrl-C ended all
        super().asking(f"{self._study.noun} {self._name}: {text}")

    def stage(self, name: str) -> None:
        self.line.show(f"{self._study.noun} {self._name}: {name} ...")

    def close(self) -> None:
        """The line stays open for the other members."""
