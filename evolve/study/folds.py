"""The folds of a validation: what each holds out, the search on the rest, and the program that it ends with.

models     all experiments of a model          workloads  all of a workload
tp         all of a tensor-parallel degree     files      all of an experiments file
stages     the last load stage of every experiment that has several (one fold)
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from evaluator.fit.fit import fit, fit_set
from evaluator.score import error_rows, score_set, summarise
from evolve.report.result import RunReport
from evolve.run.config import FOLDS, Config, config_from, to_mapping
from evolve.run.data import chosen, experiments_of
from evolve.run.folder import open_run
from simulator.errors import InputError
from simulator.experiment.experiment import Experiment
from simulator.language.complete import complete
from simulator.language.key import key
from simulator.language.parse import parse
from simulator.language.unparse import unparse

_KEYS: dict[str, Callable[[Experiment], str]] = {
    "models": lambda e: e.model,
    "workloads": lambda e: e.workload.name,
    "tp": lambda e: str(e.engine.tensor_parallel),
}


@dataclass(frozen=True, slots=True)
class Fold:
    """One fold: `held`, the experiments whose figures are compared, whole; `last_stage`: only their last stage is
    compared, and `config` trains on their earlier ones. `folder`: its name below RUN/validate."""

    kind: str
    name: str
    folder: str
    held: tuple[Experiment, ...]
    config: Config

    @property
    def last_stage(self) -> bool:
        return self.kind == "stages"

    def train(self) -> list[Experiment]:
        """The experiments that the fold's search is given."""
        return chosen(self.config.data)[0]


def folds_of(
    config: Config, kinds: Sequence[str], budget: int, fitted: Sequence[Experiment]
) -> tuple[list[Fold], dict[str, str]]:
    """The folds of these kinds (none named: all) over `fitted`, what the run of `config` fits; and why a kind has none.

    Raises InputError for an unknown kind, or if no kind has a fold.
    """
    for kind in kinds:
        if kind not in FOLDS:
            raise InputError(f"--folds {kind}: no such kind of fold: there are {', '.join(FOLDS)}")
    folds: list[Fold] = []
    skipped: dict[str, str] = {}
    for kind in [k for k in FOLDS if k in (kinds or FOLDS)]:
        found = _stages(config, budget, fitted) if kind == "stages" else _groups(kind, config, budget, fitted)
        if isinstance(found, str):
            skipped[kind] = found
        folds += found if not isinstance(found, str) else []
    if not folds:
        why = "; ".join(f"{kind}: {reason}" for kind, reason in skipped.items())
        raise InputError(f"nothing can be held out ({why}): name other --folds, or validate a run on more experiments")
    return folds, skipped


def _groups(kind: str, config: Config, budget: int, fitted: Sequence[Experiment]) -> list[Fold] | str:
    key = _KEYS.get(kind) or _file_of(config)
    groups: dict[str, list[Experiment]] = {}
    for e in fitted:
        groups.setdefault(key(e), []).append(e)
    if len(groups) < 2:
        what = {"tp": "tensor-parallel degree", "files": "experiments file"}.get(kind, kind.removesuffix("s"))
        return f"the run fits one {what} only, {next(iter(groups))}"
    folds: list[Fold] = []
    for name, held in groups.items():
        data = replace(config.data, exclude=(*config.data.exclude, *(e.id for e in held)))
        folds.append(_fold(kind, name, held, config, budget, data, [f.folder for f in folds]))
    return folds


def _stages(config: Config, budget: int, fitted: Sequence[Experiment]) -> list[Fold] | str:
    if config.data.stages != "all":
        return "the run itself was made without the last stages (data.stages)"
    held = [e for e in fitted if len(e.workload.stages) > 1]
    if not held:
        return "no experiment has several load stages"
    return [_fold("stages", "last", held, config, budget, replace(config.data, stages="but_last"), [])]


def _fold(
    kind: str, name: str, held: Sequence[Experiment], config: Config, budget: int, data: object, taken: Sequence[str]
) -> Fold:
    short = f"{kind}-{_slug(name.rsplit('/', 1)[-1])}"
    folder = short if short not in taken else f"{kind}-{_slug(name)}"
    inner = replace(config, name=f"{config.name}, {kind} without {name}", budget=budget, data=data)  # type: ignore[arg-type]
    return Fold(kind, name, folder, tuple(held), inner)


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", name.lower().removesuffix(".yaml")).strip("-.") or "x"


def _file_of(config: Config) -> Callable[[Experiment], str]:
    where = {e.id: file for file in config.data.files for e in experiments_of([file])}
    return lambda e: where[e.id]


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


def winner_of(report: RunReport) -> Winner | None:
    """The champion that a fold's search ended with, None if nothing could be scored."""
    best = report.champion
    if best is None:
        return None
    trained = {"e2e": best.e2e, "ttft": best.ttft, "itl": best.itl}
    return Winner(best.text, best.key, best.id, trained, report.candidates)


def refit(text: str, fold: Fold) -> Winner:
    """The same form, its constants fitted on the fold's training experiments; no search.

    The fit starts from the constants that `text` comes with: where the training cannot decide about one (a term that
    only the held-out model has), it stays near what it was, which may have been fitted on what is held out.
    """
    train = fold.train()
    program = fit(complete(parse(text)), fit_set(train), allow_hostile=True).program
    score = summarise(error_rows(program, score_set(train)))
    return Winner(unparse(program), key(program), None, {"e2e": score.e2e, "ttft": score.ttft, "itl": score.itl}, 0)
