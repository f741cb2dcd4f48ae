"""The whole search again, inside a fold: a run folder of its own that never sees what is held out."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluator.fit.fit import fit, fit_set
from evaluator.score import error_rows, score_set, summarise
from evolve.run.config import config_from, to_mapping
from evolve.run.folder import open_run
from evolve.study.folds import Fold
from simulator.language.complete import complete
from simulator.language.key import key
from simulator.language.parse import parse
from simulator.language.unparse import unparse

if TYPE_CHECKING:
    pass


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


def winner_of(report: dict[str, Any]) -> Winner | None:
    """The champion that a fold's search ended with, None if nothing could be scored."""
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
