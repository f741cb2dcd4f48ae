"""The detail of one program: its constants, its predictions of every experiment, and what a step's time is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property

from archive.proposal import Outcome
from evaluator.fit.fit import fit_set
from evaluator.fit.loss import FitSet
from evaluator.fit.uncertainty import uncertainty
from evaluator.intervals import figure_of
from evaluator.metrics import error_pct
from evaluator.score import MEANS, SCORE_SEEDS, ScoreSet, predictions, score_set
from evolve.draw.view.experiments import FIGURES, PageData
from evolve.inspect.show import Description, describe
from evolve.inspect.step_shares import CONTEXT, step_shares
from evolve.plan.curve import curves_of
from evolve.plan.forecast import Intervals, ObservedErrors
from evolve.plan.predict import predict
from evolve.plan.warnings import warnings
from evolve.run.folder import RunFolder
from evolve.run.program import Source, source_of
from evolve.run.records import ConstantRecord, constant_records
from evolve.run.trust import trust_of
from evolve.run.use import saw
from simulator.common.errors import InputError
from simulator.common.json import JsonObject

_LEVELS = {0.8: "80", 0.95: "95"}


class Details:
    """Makes the details of a run's programs; what they share is computed once."""

    def __init__(self, run: RunFolder, data: PageData) -> None:
        self._run, self._data = run, data

    def of(self, outcome: Outcome, best: bool = False) -> JsonObject:
        """The detail of this outcome's program; of the champion (`best`) over more arrival seeds, and with the curves
        of closed loads, which take most of a minute for hundreds of them.

        What cannot be made is left out, and `problem` says why.
        """
        try:
            source = self._known(source_of(self._run, outcome))
        except InputError as e:
            return {"id": outcome.proposal.id, "problem": str(e)}
        description = describe(source)
        detail: JsonObject = {
            "id": outcome.proposal.id,
            "name": source.name,
            "text": source.text,
            "counts": description.counts,
            "constants": _constants(description),
            "predictions": [],
            "shares": [],
            "curves": [],
            "shares_note": f"decode steps, {CONTEXT:,} tokens of context each",
            "warnings": list(source.cautions),
            "problem": None,
        }
        if not self._data.all:
            return detail | {"problem": f"no predictions: {self._data.note}"}
        try:
            rows = self._intervals(source) if best or _trusted(source) else self._plain(source)
        except InputError as e:
            return detail | {"problem": str(e)}
        about = [text for _, lines in rows for text in lines]
        closed = [e for e in self._data.all if e.workload.closed]
        curves = curves_of(source, closed, SCORE_SEEDS[:1]) if best else []
        return detail | {
            "predictions": [row for row, _ in rows],
            "curves": [asdict(curve) for curve in curves],
            "shares": [asdict(shares) for shares in step_shares(source.complete, self._data.all)],
            "warnings": list(dict.fromkeys([*detail["warnings"], *about])),
        }

    @cached_property
    def _fit_set(self) -> FitSet:
        return fit_set(self._data.fitted)

    @cached_property
    def _score_set(self) -> ScoreSet:
        return score_set(self._data.all, SCORE_SEEDS[:1])

    def _known(self, source: Source) -> Source:
        """The program with how well the fitted experiments determine its constants, where they are there."""
        record = source.record
        if record is None or record.constants is not None or not self._data.fitted:
            return source
        certainties = constant_records(uncertainty(source.complete, self._fit_set))
        return replace(source, record=replace(record, constants=certainties))

    def _intervals(self, source: Source) -> list[tuple[JsonObject, list[str]]]:
        """A row per experiment with its warnings, as `evolve predict` has them."""
        forecasts = predict(source, self._data.all, SCORE_SEEDS).experiments
        return [(_row(f.id, f.fitted, f.summary, f.stages), _said(f.id, f.warnings)) for f in forecasts]

    def _plain(self, source: Source) -> list[tuple[JsonObject, list[str]]]:
        """The same under one arrival seed, without intervals and the parts of a prediction."""
        rows = []
        for e, p in zip(self._data.all, predictions(source.complete, self._score_set), strict=True):
            observed = e.observed
            stages = observed.stages if observed and observed.stages else (None,) * len(p.predicted.stages)
            summary = ObservedErrors(p.predicted.summary, observed.summary if observed else None)
            compared = [ObservedErrors(ours, theirs) for ours, theirs in zip(p.predicted.stages, stages, strict=True)]
            fitted = saw(source.record, e)
            rows.append((_row(e.id, fitted, summary, compared), _said(e.id, warnings(source.record, e, p))))
        return rows


def _trusted(source: Source) -> bool:
    try:
        return trust_of(source) is not None
    except InputError:
        return False


def _said(id: str, lines: Sequence[str]) -> list[str]:
    return [f"{id}: {line}" for line in lines]


def _constants(description: Description) -> list[JsonObject]:
    certainty: Mapping[str, ConstantRecord] = description.certainty or {}
    rows = []
    for c in description.constants:
        known = certainty.get(f"{c.method}.{c.name}")
        at_bound = known.bound if known else "low" if c.value == c.low else "high" if c.value == c.high else None
        row = {name: getattr(c, name) for name in ("method", "name", "value", "unit", "low", "high")}
        row |= {"standard_error": known.standard_error if known else None, "at_bound": at_bound}
        rows.append(row | {"identified": known.identified if known else None})
    return rows


def _row(id: str, fitted: bool | None, summary: ObservedErrors, stages: Sequence[ObservedErrors]) -> JsonObject:
    return {
        "experiment": id,
        "fitted": fitted,
        "figures": {name: _figure(name, summary, summary.intervals) for name in FIGURES},
        "stages": [{f"{name}_pct": _error(name, stage) for name in MEANS} for stage in stages],
    }


def _figure(name: str, compared: ObservedErrors, intervals: Intervals) -> JsonObject:
    bands = intervals[name].at if name in intervals else {}
    figure: JsonObject = {
        "predicted_ms": figure_of(compared.predicted, name),
        "observed_ms": figure_of(compared.observed, name),
        "error_pct": _error(name, compared),
    }
    for level, label in _LEVELS.items():
        low, high = bands.get(level, (None, None))
        figure |= {f"low{label}": low, f"high{label}": high}
    return figure


def _error(name: str, compared: ObservedErrors) -> float | None:
    return error_pct(figure_of(compared.predicted, name), figure_of(compared.observed, name))
