"""A run that is followed: what its files say now, read bit by bit while another process may write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from archive.champion import champion
from archive.journal import Damaged, Replaced, Tail
from archive.proposal import Outcome, is_outcome
from evaluator.committee import final_champion
from evolve.report.result import RunReport, read_report
from evolve.run.folder import Run, locked, open_run
from evolve.run.trust import TRUST_FILE, read_trust
from evolve.view.calls import slim
from evolve.view.cpu import FILE as CPU
from evolve.view.cpu import cpu_seconds
from evolve.view.experiments import Data, data_of
from evolve.view.story import Story
from evolve.view.validation import FILE as VALIDATION
from evolve.view.validation import validation_of
from simulator.errors import InputError
from simulator.json import JsonObject

T = TypeVar("T")
RUNNING, FINISHED, STOPPED = "running", "finished", "stopped"
GONE = "the folder is gone: this is what was read before"


class _Reading(Generic[T]):
    """A value read from a file, read again when the file has changed. problem: why it cannot be read, or ""."""

    def __init__(self, file: Path, read: Callable[[], T], empty: T) -> None:
        self.value, self.problem = empty, ""
        self._file, self._read, self._empty = file, read, empty
        self._seen: tuple[int, int, int] | None = (0, 0, 0)  # what no file has: the first call reads

    def refresh(self) -> bool:
        """Read the file if it has changed since the last call; returns whether it has."""
        try:
            about = self._file.stat()
            seen = about.st_mtime_ns, about.st_size, about.st_ino
        except OSError:
            seen = None
        if seen == self._seen:
            return False
        self._seen, self.problem = seen, ""
        try:
            self.value = self._read()
        except InputError as e:
            self.value, self.problem = self._empty, str(e)
        except OSError:
            self.value = self._empty
        return True


class Followed:
    """A run and everything that its files say, up to date after `refresh`.

    If the folder disappears or the journal is damaged, what was read before stays, and `notes` says so. `version`
    changes whenever anything else does.
    """

    def __init__(self, name: str, path: Path) -> None:
        """Raises InputError if there is no run in the folder `path`, or if its files are damaged."""
        self.name, self.version = name, 0
        self._begin(path)

    def _begin(self, path: Path) -> None:
        self.run: Run = open_run(path)
        self.story, self.calls = Story(self.run.config), list[JsonObject]()
        self.data: Data = data_of(self.run)
        self.state, self.problem = STOPPED, ""
        self._tail = None if self.run.shipped else Tail(self.run.journal)
        if self._tail is None:
            self._tell(self.run.lines())
        else:
            self._read(first=True)
        self._report: _Reading[RunReport | None] = _Reading(path / "report.json", lambda: _report(path), None)
        self._validation: _Reading[JsonObject | None] = _Reading(path / VALIDATION, lambda: validation_of(path), None)
        self._cpu: _Reading[dict[int, float]] = _Reading(path / CPU, lambda: cpu_seconds(path), {})
        self._champion: int | None = self._shipped_champion() if self.run.shipped else None
        self.version += 1
        self._settle()

    def refresh(self) -> None:
        """Take in what has changed since the last call."""
        count, problem = len(self.story.rows) + len(self.calls), self.problem
        if self._tail is not None:
            self._read()
        self._settle()
        if (len(self.story.rows) + len(self.calls), self.problem) != (count, problem):
            self.version += 1

    def _settle(self) -> None:
        """Read the other files again where they have changed; a folder that is gone leaves what they said."""
        if self.problem == GONE:
            self.version += self.state == RUNNING
            self.state = FINISHED if self.state == FINISHED else STOPPED
            return
        changed = [reading.refresh() for reading in (self._report, self._validation, self._cpu)]
        state = self._state()
        self.version += any(changed) or state != self.state
        self.state = state

    def _read(self, first: bool = False) -> None:
        """Tell the journal's new lines. A journal that was cut or replaced is told from its beginning."""
        assert self._tail is not None
        try:
            self._tell(self._tail.read())
            self.problem = ""
        except OSError:
            if first:
                self.run.lines()  # raises the error that says what to do
            self.problem = GONE
        except (Replaced, Damaged, ValueError) as e:
            if first:
                self.run.lines()
            self._again(e)

    def _again(self, error: Exception) -> None:
        """Read a journal that is not what it was before from its beginning, if it is a good one."""
        try:
            fresh = Followed(self.name, self.run.path)
        except (InputError, OSError):
            self.problem = f"{error}: this is what was read before"
            return
        version = self.version + 1
        self.__dict__.update(fresh.__dict__)
        self.version = version

    def _tell(self, lines: list[JsonObject]) -> None:
        for line in lines:
            if is_outcome(line):
                self.story.add(Outcome.from_json(line))
                if line.get("call"):
                    self.calls.append(slim(line))
            else:
                self.calls.append(line)

    def _state(self) -> str:
        if self.run.shipped or self.report:
            return FINISHED
        return RUNNING if locked(self.run.path) else STOPPED

    @property
    def report(self) -> RunReport | None:
        """The report, if it is there and covers the journal as it is now."""
        report = self._report.value
        return report if report and report.proposals == len(self.story.rows) else None

    @property
    def validation(self) -> JsonObject | None:
        """The held-out errors, see evolve.view.validation."""
        return self._validation.value

    @property
    def cpu_s(self) -> Mapping[int, float]:
        """CPU seconds by proposal."""
        return self._cpu.value

    @property
    def champion(self) -> int | None:
        """The id of the champion: of the finished search, or so far."""
        if self.report:
            return self.report.champion.id if self.report.champion else None
        if self._champion is not None:
            return self._champion
        best = self.story.population.champion()
        return best.id if best else None

    @property
    def notes(self) -> list[str]:
        """What is missing or damaged, a line each."""
        return [text for text in (self.problem, self.data.note, self._report.problem, self._validation.problem) if text]

    def _shipped_champion(self) -> int | None:
        """The champion of a run without a report; its trust file says its form, which spares comparing all programs."""
        members, rule = self.story.population.archive.members(), self.run.config.score.rule
        path = self.run.path / TRUST_FILE
        try:
            key = read_trust(path.read_bytes(), str(path)).key
        except (OSError, InputError):
            key = ""
        same = [e for e in members if e.key == key]
        best = champion(same, rule) if same else final_champion(members, rule)
        return best.id if best else None


def _report(path: Path) -> RunReport | None:
    return read_report(path / "report.json")
