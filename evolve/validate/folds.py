"""The folds of a validation: what each holds out, its search on the rest, and the program that it predicts with.

A fold holds out, by kind:

models         all experiments of one model
workloads      all experiments of one workload
tp             all experiments of one tensor-parallel degree
architectures  all experiments of dense models, or of mixtures of experts
hardware       all experiments on one GPU type
precisions     all experiments with one type of weights
parallelism    all experiments with one kind of parallelism, such as TP EP
versions       all experiments of one engine version
cells          all experiments of one model on one GPU with one type of weights
files          all experiments of one experiments file
stages         the last load stage of every experiment that has several (this is a single fold)
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path

from evaluator.fit.fit import fit, fit_set
from evaluator.group_out import COMMON
from evaluator.score import error_rows, score_set, summarise
from evolve.run.config import FOLDS, Config, DataSettings
from evolve.run.config_file import config_from, to_mapping
from evolve.run.data import chosen, experiments_of
from evolve.run.folder import JOURNAL, REPORT, open_run
from evolve.run.trust import ensemble_of
from evolve.summary.result import RunReport
from evolve.validate.shares import without_limits
from simulator.common.errors import InputError
from simulator.common.files import plain_folder
from simulator.language.complete import complete
from simulator.language.ir import Program
from simulator.language.key import key
from simulator.language.parse import parse
from simulator.language.unparse import unparse
from simulator.serving.experiment import Experiment


@dataclass(frozen=True, slots=True)
class Fold:
    """One fold of a validation."""

    kind: str  # one of FOLDS
    name: str  # what it holds out
    folder: str  # its name in RUN/validate
    held: tuple[Experiment, ...]  # the experiments on which errors are measured, with all of their stages
    config: Config  # of the fold's search, which does not see what is held out

    @property
    def last_stage(self) -> bool:
        """True if errors are measured on the last stage only; the search then has the earlier stages."""
        return self.kind == "stages"

    def train(self) -> list[Experiment]:
        return chosen(self.config.data)[0]


def folds_of(
    config: Config, kinds: Sequence[str], budget: int, fitted: Sequence[Experiment]
) -> tuple[list[Fold], dict[str, str]]:
    """The folds of these kinds (of all if `kinds` is empty), and by kind the reason why it has none.

    `fitted` is what the run of `config` fits, and `budget` that of each fold's search. Raises InputError for an unknown
    kind, or if no kind has a fold.
    """
    for kind in kinds:
        if kind not in FOLDS:
            raise InputError(f"--folds {kind}: no such kind of fold: there are {', '.join(FOLDS)}")
    folds: list[Fold] = []
    skipped: dict[str, str] = {}
    for kind in [k for k in FOLDS if k in (kinds or FOLDS)]:
        of_kind = _stages(config, budget, fitted) if kind == "stages" else _groups(kind, config, budget, fitted)
        if isinstance(of_kind, str):
            skipped[kind] = of_kind
        else:
            folds += of_kind
    if not folds:
        why = "; ".join(f"{kind}: {reason}" for kind, reason in skipped.items())
        raise InputError(f"nothing can be held out ({why}): name other --folds, or validate a run on more experiments")
    return folds, skipped


def _groups(kind: str, config: Config, budget: int, fitted: Sequence[Experiment]) -> list[Fold] | str:
    """The folds that hold out one group of experiments each, or why there are none."""
    key = COMMON.get(kind) or _file_of(config)
    groups: dict[str, list[Experiment]] = {}
    for e in fitted:
        groups.setdefault(key(e), []).append(e)
    if len(groups) < 2:
        names = {"tp": "tensor-parallel degree", "hardware": "GPU type", "files": "experiments file"}
        what = names.get(kind, kind.removesuffix("s"))
        return f"the run fits one {what} only, {next(iter(groups))}"
    folds: list[Fold] = []
    for name, held in groups.items():
        data = replace(config.data, exclude=(*config.data.exclude, *(e.id for e in held)))
        folds.append(_fold(kind, name, held, config, budget, data, [f.folder for f in folds]))
    return folds


def _stages(config: Config, budget: int, fitted: Sequence[Experiment]) -> list[Fold] | str:
    """The fold that holds out the last stages, or why there is none."""
    if config.data.stages != "all":
        return "the run itself was made without the last stages (data.stages)"
    held = [e for e in fitted if len(e.workload.stages) > 1]
    if not held:
        return "no experiment has several load stages"
    return [_fold("stages", "last", held, config, budget, replace(config.data, stages="but_last"), [])]


def _fold(
    kind: str,
    name: str,
    held: Sequence[Experiment],
    config: Config,
    budget: int,
    data: DataSettings,
    taken: Sequence[str],
) -> Fold:
    short = f"{kind}-{_slug(last_part(name))}"
    names = chain([short, f"{kind}-{_slug(name)}"], (f"{short}-{n}" for n in count(2)))
    folder = next(folder for folder in names if folder not in taken)
    inner = replace(config, name=f"{config.name}, {kind} without {name}", budget=budget, data=data)
    return Fold(kind, name, folder, tuple(held), inner)


def last_part(name: str) -> str:
    """The name of a model without its organisation; of a file without its folder."""
    return name.rsplit("/", 1)[-1]


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", name.lower().removesuffix(".yaml")).strip("-.") or "x"


def _file_of(config: Config) -> Callable[[Experiment], str]:
    where = {e.id: file for file in config.data.files for e in experiments_of([file])}
    return lambda e: where[e.id]


@dataclass(frozen=True, slots=True)
class Winner:
    """The program that a fold predicts with."""

    text: str
    key: str
    id: int | None  # its proposal number in the fold's run; None without a search
    trained: dict[str, float | None]  # mean absolute errors in percent on the fold's training experiments
    candidates: int  # among which it was chosen
    ensemble: tuple[str, ...] | None = None  # near-optimal programs of the search as text; None without a search

    @property
    def program(self) -> Program:
        return parse(self.text)


def folder_of(parent: Path, fold: Fold) -> Path:
    """The folder of the fold's run. A run made with other settings, before an --again, keeps its folder."""
    for n in count(1):
        path = plain_folder(parent) / (fold.folder if n == 1 else f"{fold.folder}.{n}")
        if plain_folder(path).exists() and not any((path / name).exists() for name in (JOURNAL, REPORT)):
            shutil.rmtree(path)  # the process was killed while it created the folder, so nothing is lost
        # Compare both as config.yaml reads back: reading may turn a whole number into a float.
        settings = without_limits(config_from(to_mapping(fold.config), str(path)))
        if not path.exists() or without_limits(open_run(path).config) == settings:
            return path
    raise AssertionError


def winner_of(path: Path, report: RunReport) -> Winner | None:
    """The champion of the fold's search in the folder `path`, or None if no candidate could be scored."""
    best = report.champion
    if best is None:
        return None
    trained = {"e2e": best.score.e2e, "ttft": best.score.ttft, "itl": best.score.itl}
    return Winner(best.text, best.key, best.id, trained, report.candidates, ensemble_of(open_run(path), best.key))


def refit(text: str, train: Sequence[Experiment]) -> Winner:
    """The program `text` with its constants refitted on a fold's training experiments, without a search.

    The fit starts from the constants of `text`. A constant that the training experiments do not determine stays near
    its old value, and held-out runs may have decided that. Terms of the held-out model alone have such ones.
    """
    program = fit(complete(parse(text)), fit_set(train), allow_hostile=True).program
    score = summarise(error_rows(program, score_set(train)))
    return Winner(unparse(program), key(program), None, {"e2e": score.e2e, "ttft": score.ttft, "itl": score.itl}, 0)
