"""The held-out errors of a run as a value: what validate.json and a line of validate.jsonl say."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluator.coverage import Coverage
from evaluator.score import MEANS, SCORE_SEEDS
from evolve import __version__
from evolve.run.validations import FORMS, REFITTED, SOURCES
from evolve.summary.result import Means
from evolve.validate.costs import Costs
from evolve.validate.held_out import FoldResult, HeldOutRow, Unfitted
from evolve.validate.ranks import Ranking, Selection
from evolve.validate.statistics import FieldCounts, RunGroup, SpreadSummary
from simulator.common.json import JsonObject
from simulator.common.records import to_json

# the fields that are keys of validate.json as they are
ABOUT = ("call", "budget", "skipped", "data", "seed", "run", "forms", "rule", "in_sample", "champion")
FOUND = ("folds", "rows", "summary", "breakdown", "never_fitted", "selection", "ranking", "intervals")


@dataclass(frozen=True, slots=True)
class Validation:
    """The held-out errors of a run, and how they were measured."""

    call: int  # number of this validate call on the run, from 1
    changed: Sequence[str]  # settings that differ from the first call
    forms: str  # where the folds' forms come from, a key of evolve.run.validations.SOURCES
    budget: int | None  # most candidates of each fold; None with the champion's form
    skipped: Mapping[str, str]  # why there is no fold, by kind
    data: str  # hash of the fitted experiments
    seed: int
    run: str  # path
    rule: Mapping[str, Any]  # how champions are chosen
    in_sample: Means  # of the run's champion
    champion: str  # its key
    folds: Sequence[FoldResult]
    rows: Sequence[HeldOutRow]
    summary: Mapping[str, SpreadSummary]  # by kind of fold
    breakdown: Mapping[str, Sequence[RunGroup]]  # by kind of fold
    front_fields: FieldCounts  # of the programs on the run's Pareto front
    fold_fields: Mapping[str, FieldCounts]  # of the folds' programs, by kind
    never_fitted: Sequence[Unfitted]
    selection: Mapping[str, Selection]  # by kind of fold; empty with the champion's form
    ranking: Sequence[Ranking]
    intervals: Mapping[str, Mapping[str, Coverage]]  # by class of residuals (evolve.run.trust), by figure
    costs: Costs | None  # of all searches in the run's folder of folds; None if no language model was asked

    @property
    def source(self) -> str:
        return SOURCES[self.forms]

    def to_json(self) -> JsonObject:
        named = {"engine": __version__, "seeds": list(SCORE_SEEDS), "changed_since_first_call": list(self.changed)}
        forms = {"forms_in_words": self.source, "form_chosen_with_hindsight": self.forms == REFITTED}
        fields = {"front": to_json(self.front_fields), "folds": to_json(self.fold_fields)}
        kept = {name: to_json(getattr(self, name)) for name in (*ABOUT, *FOUND)}
        return {**named, **kept, **forms, "fields": fields, **({"llm": self.costs.to_json()} if self.costs else {})}


def line_of(validation: Validation, protocol: Mapping[str, Any], searched: int) -> JsonObject:
    """The line about a call in RUN/validate.jsonl."""
    figures = {
        kind: {name: of_kind.mean_abs_error_pct[name] for name in MEANS} | {"over": of_kind.experiments}
        for kind, of_kind in validation.summary.items()
    }
    return {
        "call": validation.call,
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "engine": __version__,
        "data": validation.data,
        FORMS: validation.forms,
        "form_chosen_with_hindsight": validation.forms == REFITTED,
        "kinds": list(validation.summary),
        "budget": validation.budget,
        "searched_folds": searched,
        "changed_since_first_call": list(validation.changed),
        "champions": {r.fold.folder: r.winner.key if r.winner else None for r in validation.folds},
        "mean_abs_error_pct": figures,
        "protocol": protocol,
    }
