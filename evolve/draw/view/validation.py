"""The held-out errors that `evolve validate` measured, as the page shows them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from evaluator.score import MEANS
from evolve.run.trust import trust_in
from evolve.run.validations import LOG, RECORDED, SEARCHED, SOURCES, call_of, calls, forms_of, read_figures
from simulator.common.json import JsonObject
from simulator.common.records import read_by


def validation_of(file: Path) -> JsonObject | None:
    """The held-out errors in the `file` of a run, by kind of fold; None if the run was not validated.

    A shipped run keeps the log of its validations only, which has no folds. Raises InputError if a file is damaged.
    """
    return _read(file, "") or _logged(file.parent)


def recorded_of(file: Path) -> JsonObject | None:
    """The same of forms recorded from a search that saw all data, which `forms` says."""
    return _read(file, SOURCES[RECORDED])


def _read(file: Path, forms: str) -> JsonObject | None:
    """The figures in a file, None if there is none. `forms`: where its forms come from, "" if from the folds."""
    try:
        raw = read_figures(file)
    except OSError:
        return None
    return read_by(partial(_call, forms), raw, file)


def _call(forms: str, raw: Mapping[str, Any]) -> JsonObject:
    return {
        "call": raw["call"],
        "forms": forms,
        "kinds": [_kind(raw, kind, summary) for kind, summary in raw["summary"].items()],
        "coverage": [
            {"class": name, "figure": figure, **{key: row[key] for key in ("runs", "covered_80", "covered_95")}}
            for name, figures in raw.get("intervals", {}).items()
            for figure, row in figures.items()
        ],
    }


def _kind(raw: Mapping[str, Any], kind: str, summary: Mapping[str, Any]) -> JsonObject:
    folds = [fold for fold in raw["folds"] if fold["kind"] == kind]
    return _means(kind, summary) | {"folds": [_fold(fold, raw["rows"]) for fold in folds]}


def _means(kind: str, summary: Mapping[str, Any]) -> JsonObject:
    bias = summary.get("bias_pct")
    return {
        "kind": kind,
        "mean_abs_error_pct": {name: summary["mean_abs_error_pct"][name] for name in MEANS},
        "bias_pct": bias and {name: bias[name] for name in MEANS},
        "coverage_80": None,
        "coverage_95": None,
    }


def _fold(fold: Mapping[str, Any], rows: list[Mapping[str, Any]]) -> JsonObject:
    best = fold["champion"]
    mine = [row for row in rows if row["kind"] == fold["kind"] and row["fold"] == fold["name"]]
    return {
        "name": fold["name"],
        "champion": best and {name: best[name] for name in ("id", "text", "candidates")},
        "mean_abs_error_pct": {name: fold["mean_abs_error_pct"][name] for name in MEANS},
        "rows": [
            {
                "experiment": row["experiment"],
                **{name: row[name] for name in MEANS},
                "baselines": {name: {x: of_name[x] for x in MEANS} for name, of_name in row["baselines"].items()},
            }
            for row in mine
        ],
    }


def _logged(run: Path) -> JsonObject | None:
    """The figures of the validate call that intervals are made of, else of the last one that searched every fold, from
    the log of the calls."""
    searched = [line for line in calls(run) if forms_of(line) == SEARCHED]
    if not searched:
        return None
    trust = trust_in(run)
    return read_by(_line, call_of(searched, trust.call if trust else None), run / LOG)


def _line(shown: Mapping[str, Any]) -> JsonObject:
    kinds = [_means(kind, {"mean_abs_error_pct": row}) for kind, row in shown["mean_abs_error_pct"].items()]
    return {"call": shown["call"], "forms": "", "kinds": [kind | {"folds": []} for kind in kinds], "coverage": []}
