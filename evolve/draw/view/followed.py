"""A followed run: the state of its files, read piece by piece while another process may write them."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Generic, TypeVar

from archive.champion import champion
from archive.journal import Damaged, Tail
from evolve.draw.view.experiments import PageData, data_of
from evolve.draw.view.validation import recorded_of, validation_of
from evolve.run.folder import REPORT, RunFolder, open_run
from evolve.run.lock import locked
from evolve.run.spent import FILE as CPU
from evolve.run.spent import read_spent
from evolve.run.validations import FILES, RECORDED, SEARCHED
from evolve.summary.result import RunReport, cut_off, read_report
from evolve.summary.story import Story
from simulator.common.errors import InputError
from simulator.common.json import JsonObject

T = TypeVar("T")
_OF_CALL = ("kind", "call", "verdict", "stage")  # the keys of a proposal's line that the ledger needs
RUNNING, FINISHED, STOPPED = "running", "finished", "stopped"
BEFORE = "the page shows what it read before"
GONE = f"the folder is gone; {BEFORE}"


class JournalReading(Generic[T]):
    """A value read from a file, and read again whenever the file has changed.

    problem: why the file cannot be read, or "". times: how often it was read.
    """

    def __init__(self, file: Path, read: Callable[[Path], T], empty: T) -> None:
        self.value, self.problem, self.times = empty, "", 0
        self._file, self._read, self._empty = file, read, empty
        self._seen: tuple[int, int, int] | None = (-1, -1, -1)  # what no file has

    def refresh(self) -> None:
        """Read the file if it has changed since the last call."""
        try:
            about = self._file.stat()
            seen = about.st_mtime_ns, about.st_size, about.st_ino
        except OSError:
            seen = None
        if seen == self._seen:
            return
        self._seen, self.value, self.problem = seen, self._empty, ""
        self.times += 1
        try:
            self.value = self._read(self._file)
        except InputError as e:
            self.problem = str(e)
        except OSError as e:
            self.problem = f"{self._file}: {e.strerror}" if seen else ""


class Telling:
    """The journal of a run, read line by line: the story of its outcomes, and the calls to language models."""

    def __init__(self, run: RunFolder) -> None:
        """Raises InputError if the journal is missing or damaged."""
        self._path = run.written
        self.story, self.calls = Story(run.config), list[JsonObject]()
        self._reader, self._tail = run.reader(), None if run.shipped else Tail(self._path)
        if self._tail is None:
            self._tell(run.lines())
            return
        try:
            self.read()
        except (OSError, Damaged):
            run.lines()  # raises the error that says what to do
            raise

    def read(self) -> None:
        """Tell the lines that were appended since the last call. Raises what `Tail.read` raises."""
        if self._tail is not None:  # a shipped journal does not grow
            while lines := self._tail.read():
                self._tell(lines)

    def _tell(self, lines: list[JsonObject]) -> None:
        for line in lines:
            if outcome := self._reader.read(line):
                self.story.add(outcome)
                if line.get("call"):
                    self.calls.append({key: line[key] for key in _OF_CALL if key in line})
            else:
                self.calls.append(line)


class Followed:
    """A run and the content of its files, up to date after `refresh`.

    name: as the user named it. state: RUNNING while another process works on it, FINISHED if its report covers the
    journal, else STOPPED. If the folder disappears or the journal is damaged, what was read before stays, and `notes`
    says so.
    """

    def __init__(self, path: Path) -> None:
        """Raises InputError if there is no run in the folder `path`, or if its files are damaged."""
        self.name = str(path)
        self._begin(path)

    def _begin(self, path: Path) -> None:
        run = open_run(path)
        telling = Telling(run)
        self.run, self.telling, self.problem, self._doubts = run, telling, "", run.doubts
        self.data: PageData = data_of(run)
        self._report: JournalReading[RunReport | None] = JournalReading(path / REPORT, read_report, None)
        self._validation: JournalReading[JsonObject | None] = JournalReading(
            path / FILES[SEARCHED], validation_of, None
        )
        self._recorded: JournalReading[JsonObject | None] = JournalReading(path / FILES[RECORDED], recorded_of, None)
        self._cpu: JournalReading[dict[int, float]] = JournalReading(path / CPU, _spent, {})
        best = champion(self.story.population.archive.members(), run.config.score.rule) if run.shipped else None
        self._shipped = best.id if best else None
        self._settle()

    def refresh(self) -> None:
        """Take in what has changed since the last call."""
        try:
            self.telling.read()
            self.problem = "" if self.run.path.is_dir() else GONE
        except OSError:
            self.problem = GONE
        except ValueError as e:  # Replaced, Damaged, or an outcome that is none
            self._again(str(e))
        self._settle()

    def _again(self, problem: str) -> None:
        """Begin again, because the journal was replaced, perhaps by a good one."""
        try:
            self._begin(self.run.path)
        except (InputError, OSError):
            self.problem = f"{problem}; {BEFORE}"

    def _settle(self) -> None:
        """Read the other files if they have changed. If the folder is gone, keep their last content."""
        if self.problem != GONE:
            for reading in (self._report, self._validation, self._recorded, self._cpu):
                reading.refresh()
        if self.run.shipped or self.report:
            self.state = FINISHED
        else:
            self.state = RUNNING if locked(self.run.path) else STOPPED

    @property
    def version(self) -> Hashable:
        """A value that changes whenever the page's content does."""
        counts = len(self.story.rows), len(self.telling.calls)
        times = self._report.times, self._validation.times, self._recorded.times, self._cpu.times
        return id(self.telling), counts, times, self.state, self.problem

    @property
    def story(self) -> Story:
        """The outcomes so far."""
        return self.telling.story

    @property
    def report(self) -> RunReport | None:
        """The report, if it is there and covers the journal as it is now."""
        report = self._report.value
        return report if report and report.proposals == len(self.story.rows) else None

    @property
    def validation(self) -> JsonObject | None:
        """The held-out errors, see evolve.draw.view.validation: of searches in the folds, else of recorded forms."""
        return self._validation.value or self._recorded.value

    @property
    def cpu_s(self) -> Mapping[int, float]:
        return self._cpu.value

    @property
    def champion(self) -> int | None:
        """The id of the champion: that of the finished search, or so far."""
        if self.report:
            return self.report.champion.id if self.report.champion else None
        if self._shipped is not None:
            return self._shipped
        best = self.story.population.champion()
        return best.id if best else None

    @property
    def notes(self) -> list[str]:
        """Missing or damaged files, one line each."""
        files = self._report, self._validation, self._recorded, self._cpu
        missing = cut_off(self._report.value, self.run.path, len(self.story.rows))
        texts = self.problem, missing, self.data.note, *self._doubts, *(reading.problem for reading in files)
        return [text for text in texts if text]


def _spent(file: Path) -> dict[int, float]:
    return {proposal: cpu_s for proposal, cpu_s in read_spent(file.parent).items() if math.isfinite(cpu_s)}
