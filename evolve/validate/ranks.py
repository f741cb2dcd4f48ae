"""Rank correlations: of the search's criterion with held-out errors, and of predicted runs with observed ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import scipy

from evaluator.group_out import capped
from evaluator.metrics import present
from evaluator.score import SCORE_SEEDS, error_rows, score_set, summarise
from evaluator.statistics import mean_interval
from evolve.run.folder import open_run
from evolve.validate.held_out import Compared
from simulator.language.parse import parse
from simulator.serving.experiment import Experiment

BEST = 100  # programs of a fold
LEAST = 5  # programs, below which a rank correlation says nothing
OURS = "champion"


@dataclass(frozen=True, slots=True)
class Selection:
    """How well the selection score picks the programs that predict held-out runs best.

    correlations: by fold, Spearman's, between the selection scores of up to BEST programs and their held-out mean
    errors; None for too few. mean: over the folds, with a bootstrap interval over them; None without a correlation.
    """

    correlations: Mapping[str, float | None]
    mean: float | None
    interval_95: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Ranking:
    """How well predictions order the held-out runs, or the load stages of all of them, of one kind of fold.

    unit: "runs" or "load stages". program: OURS, the folds' champions, or a baseline. tau: Kendall's, by predicted
    and observed `figure`, None for fewer than two. count: of the runs or stages. inversions: the pairs that are
    predicted in the other order than observed.
    """

    kind: str
    unit: str
    figure: str
    program: str
    count: int
    tau: float | None
    inversions: Sequence[tuple[str, str]]


def best_of(path: Path) -> tuple[list[str], list[float]]:
    """Texts and selection scores of the BEST consistent programs of the run in the folder `path`, the best first."""
    run = open_run(path)
    rule = run.config.score.rule
    elites = sorted(
        (o.elite for o in run.outcomes() if o.elite and o.elite.consistent),
        key=lambda e: (rule.selection_score(e), e.id),
    )
    by_form = {e.key: e for e in reversed(elites)}  # of a form that was polished, the better one
    best = sorted(by_form.values(), key=lambda e: (rule.selection_score(e), e.id))[:BEST]
    return [e.text for e in best], [rule.selection_score(e) for e in best]


def selects(texts: Sequence[str], selection_scores: Sequence[float], experiments: Sequence[Experiment]) -> float | None:
    """Spearman's correlation between the selection scores of programs and their mean errors on held-out experiments.

    Errors are those of one arrival seed, each at most evaluator.group_out.MOST_PCT.
    """
    if len(texts) < LEAST:
        return None
    held = score_set(experiments, SCORE_SEEDS[:1])
    errors = [summarise([capped(row) for row in error_rows(parse(text), held)]).mean_error for text in texts]
    if len(set(selection_scores)) < 2 or len(set(errors)) < 2:
        return None
    return float(scipy.stats.spearmanr(selection_scores, errors).statistic)


def selection(correlations: Mapping[str, float | None], seed: int) -> Selection:
    """The summary of the folds' correlations. `seed`: of the bootstrap."""
    known = present(list(correlations.values()))
    return Selection(dict(correlations), sum(known) / len(known) if known else None, mean_interval(known, seed))


def rankings(compared: Sequence[Compared], kind: str, unit: str, figure: str) -> list[Ranking]:
    """The rankings of the runs or load stages of one kind of fold by a figure of STATISTICS: ours, and those of the
    baselines that predict it."""
    names = dict.fromkeys(name for c in compared for name in c.baselines)
    theirs = [(name, [c.baselines.get(name, {}).get(figure) for c in compared]) for name in names]
    found = (
        _ranking(compared, errors_pct, kind, unit, figure, name)
        for name, errors_pct in ((OURS, [c.errors[figure] for c in compared]), *theirs)
    )
    return [ranking for ranking in found if ranking.count or ranking.program == OURS]


def _ranking(
    compared: Sequence[Compared], errors_pct: Sequence[float | None], kind: str, unit: str, figure: str, program: str
) -> Ranking:
    """The ranking of those that have an error, by the figure that this error and the observed one make."""
    names, observed, predicted = list[str](), list[float](), list[float]()
    for c, error in zip(compared, errors_pct, strict=True):
        ms = c.observed_ms[figure]
        if ms is not None and error is not None:
            names.append(c.name)
            observed.append(ms)
            predicted.append(ms * (1.0 + error / 100.0))
    pairs = ((i, j) for i in range(len(names)) for j in range(i))
    inversions = [
        (names[j], names[i]) for i, j in pairs if (observed[i] - observed[j]) * (predicted[i] - predicted[j]) < 0.0
    ]
    tau = _number(scipy.stats.kendalltau(observed, predicted).statistic) if len(names) > 1 else None
    return Ranking(kind, unit, figure, program, len(names), tau, inversions)


def _number(x: float) -> float | None:
    """A plain number; None for NaN, of figures that are all alike."""
    return None if x != x else float(x)
