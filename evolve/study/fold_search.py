"""The whole search again, inside a fold: a run folder of its own that never sees what is held out."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluator.fit.fit import fit, fit_set
from evaluator.score import error_rows, score_set, summarise
from evolve.report.progress import EVERY_S, Progress
from evolve.run.config import config_from, to_mapping
from evolve.run.folder import Run, open_run
from evolve.search.run import start, work
from evolve.study.folds import Fold
from simulator.language.complete import complete
from simulator.language.key import key
from simulator.language.parse import parse
from simulator.language.unparse import unparse

if TYPE_CHECKING:
    from evolve.search.state import State


@dataclass(frozen=True, slots=True)
class Winner:
    """What a fold predicts with: the program, its proposal number in the fold's run (None: no search was made), its
    mean absolute errors in percent on what it was fitted on, and how many candidates it was chosen among."""

    text: str
    key: str
    id: int | None
    trained: dict[str, float | None]
    candidates: int


def folder_of(parent: Path, fold: Fold) -> Path:
    """Where the fold's run lies or is to lie; folders of other settings, from before an --again, are left alone."""
    for n in count(1):
        path = parent / (fold.folder if n == 1 else f"{fold.folder}.{n}")
        if path.exists() and not (path / "journal.jsonl").exists():
            shutil.rmtree(path)  # killed while it was being made: nothing is in it
        # both as config.yaml reads back
        if not path.exists() or open_run(path).config == config_from(to_mapping(fold.config), str(path)):
            return path
    raise AssertionError


def finished(path: Path) -> dict[str, Any] | None:
    """The report of a run that came to its end."""
    report = path / "report.json"
    return json.loads(report.read_text()) if report.exists() else None


def search(path: Path, fold: Fold, workers: int, progress: FoldProgress) -> tuple[Winner | None, bool]:
    """The champion of the fold's search, None if nothing could be scored; and whether there was anything left to do.

    A finished search is read back, an interrupted one goes on from its journal.
    """
    report = finished(path)
    if report is None:
        run: Run = open_run(path) if path.exists() else start(fold.config, path)
        progress.begin(fold, len(run.entries()))
        report = work(run, workers, progress.quiet, progress, full=False)
        return _winner(report), True
    progress.skip(fold)
    return _winner(report), False


def _winner(report: dict[str, Any]) -> Winner | None:
    best = report["champion"]
    if best is None:
        return None
    trained = {name: best[name] for name in ("e2e", "ttft", "itl")}
    return Winner(best["text"], best["key"], best["id"], trained, report["candidates"])


def refit(text: str, fold: Fold) -> Winner:
    """The same form, its constants fitted on the fold's training experiments; no search.

    The fit starts from the constants that `text` comes with: where the training cannot decide about one (a term that
    only the held-out model has), it stays near what it was, which may have been fitted on what is held out.
    """
    train = fold.train()
    program = fit(complete(parse(text)), fit_set(train), allow_hostile=True).program
    score = summarise(error_rows(program, score_set(train)))
    return Winner(unparse(program), key(program), None, {"e2e": score.e2e, "ttft": score.ttft, "itl": score.itl}, 0)


class FoldProgress(Progress):
    """One line over all folds: which one, how far, and the time left for all of them."""

    def __init__(self, folds: Sequence[Fold], quiet: bool) -> None:
        super().__init__(sum(f.config.budget for f in folds), 0, quiet)
        self.count = len(folds)
        self.number = self.behind = self.made = self.here = 0
        self.fold: Fold

    def begin(self, fold: Fold, resumed: int) -> None:
        """A fold's search begins, or goes on after so many journal entries."""
        self.number += 1
        self.fold, self.resumed, self.first, self.here = fold, resumed, None, 0
        self.stage(self._where())

    def skip(self, fold: Fold) -> None:
        """A fold needs no search."""
        self.number += 1
        self.behind += fold.config.budget

    def update(self, state: State) -> None:
        if state.proposals < self.resumed:
            return
        if self.first is None:
            self.first = state.fitted if self.resumed else 0
        self.here = state.fitted - self.first
        now, done = time.monotonic(), self.made + self.here
        if self.quiet or now - self.shown < (0.2 if self.terminal else EVERY_S):
            return
        self.shown = now
        rate = done / max(now - self.begun, 1e-9)
        left = f"{(self.budget - self.behind - state.fitted) / rate:.0f} s left for all" if done >= 10 else "begun"
        best = min((e.joint for e in state.archive.grid.cells.values()), default=float("nan"))
        self.show(
            f"{self._where()}: {state.fitted}/{self.fold.config.budget} candidates, {rate:.1f}/s, "
            f"best joint error in training {best:.2f} %, {left}"
        )

    def close(self) -> None:
        """A fold's search ended; the line stays open for the next: see `finish`."""
        self.made += self.here
        self.behind += self.fold.config.budget

    def finish(self) -> None:
        """End the line."""
        super().close()

    def _where(self) -> str:
        return f"fold {self.number}/{self.count} ({self.fold.folder})"
