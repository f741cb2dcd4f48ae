"""Figures over held-out experiments, from the rows of a validation: per kind of fold, and broken down."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from evaluator.metrics import mean_abs, present
from evaluator.statistics import bias, clustered_interval, interval, median_abs, signed_rank
from evolve.study.held_out import FIGURES
from simulator.language.measure import features
from simulator.language.parse import parse

MEANS = ("e2e", "ttft", "itl")
Row = dict[str, Any]


def summary(rows: Sequence[Row], seed: int) -> dict[str, Any]:
    """Of the rows of one kind of fold, one for every held-out experiment. Errors in percent.

    interval_95: bootstrap over experiments; by_model: over models. known: the known answers fitted in the same folds,
    by mean absolute E2E error; `best_known` is the first of those that predict every experiment. test: our absolute E2E
    errors against those of `against` (the program given, or the best known answer).
    """
    models = [r["model"] for r in rows]
    answers = _answers(rows)
    complete = [a["name"] for a in answers if a["over"] == len(rows)]
    given = next((r["against"] for r in rows if "against" in r), None)
    best = given["label"] if given else next(iter(complete), None)
    theirs = [r["against"]["e2e"] if given else r["known"][best]["e2e"] for r in rows] if best else []
    test = signed_rank(_column(rows, "e2e"), theirs) if best else None
    e2e = present(_column(rows, "e2e"))
    return {
        "experiments": len(rows),
        "models": len(set(models)),
        "without_prediction": sum(r["e2e"] is None and r["observed"] for r in rows),
        "mean_abs_error_pct": {name: mean_abs(_column(rows, name)) for name in FIGURES},
        "median_abs_error_pct": {name: median_abs(_column(rows, name)) for name in FIGURES},
        "bias_pct": {name: bias(_column(rows, name)) for name in FIGURES},
        "worst_e2e_pct": max(e2e, key=abs, default=None),
        "interval_95": {name: interval(_column(rows, name), seed) for name in MEANS},
        "interval_95_by_model": {name: clustered_interval(_column(rows, name), models, seed) for name in MEANS},
        "known": answers,
        "best_known": next(iter(complete), None),
        "against": {"label": best, "e2e": mean_abs(theirs), "test": asdict(test) if test else None} if best else None,
    }


def _answers(rows: Sequence[Row]) -> list[dict[str, Any]]:
    names = {name: None for r in rows for name in r["known"]}
    found = []
    for name in names:
        mine = [r["known"][name] for r in rows if name in r["known"]]
        means = {x: mean_abs([m[x] for m in mine]) for x in MEANS}
        found.append({"name": name, **means, "over": sum(m["e2e"] is not None for m in mine)})
    return sorted(found, key=lambda a: float("inf") if a["e2e"] is None else a["e2e"])


def breakdown(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Mean absolute errors and bias of the rows of one kind: dense and MoE, by workload, by TP degree."""
    keys = {
        "architecture": lambda r: "MoE" if r["moe"] else "dense",
        "workload": lambda r: r["workload"],
        "tp": lambda r: str(r["tp"]),
    }
    out = []
    for what, key in keys.items():
        for value in sorted({key(r) for r in rows}):
            group = [r for r in rows if key(r) == value]
            means = {name: mean_abs(_column(group, name)) for name in MEANS}
            out.append({"by": what, "group": value, "experiments": len(group), "mean_abs_error_pct": means,
                        "bias_pct": {name: bias(_column(group, name)) for name in MEANS}})  # fmt: skip
    return out


def fields_used(texts: Iterable[str]) -> dict[str, Any]:
    """How many of these programs read each field, the commonest first."""
    found = [features(parse(text)) for text in texts]
    names = sorted({name for f in found for name in f})
    counts = {name: sum(name in f for f in found) for name in names}
    return {"programs": len(found), "fields": dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))}


def _column(rows: Sequence[Row], name: str) -> list[float | None]:
    return [r[name] for r in rows]
