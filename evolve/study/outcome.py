"""What several runs of one search reached together, and whether a pilot is worth a full run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evolve import __version__
from evolve.run.config import Config
from evolve.study.spread import spelled, spread
from simulator.language.measure import features
from simulator.language.parse import parse

FIGURES = ("joint", "worst3", "e2e", "ttft", "itl", "transfer")


def summarise(path: Path, config: Config, reports: Sequence[dict[str, Any]], pilot: bool) -> dict[str, Any]:
    """What the repeats in `path` reached, from the reports of their runs: each one's champion, figures over all of
    them, and the fields that they share; of a pilot, the verdict. `config`: what they all have but for the seed."""
    rows = [_row(r) for r in reports]
    found = [row for row in rows if row["champion"] is not None]
    fields = Counter(f for row in found for f in features(parse(row["champion"]["text"])))
    figures = {name: _over([row[name] for row in found]) for name in FIGURES}
    report: dict[str, Any] = {
        "engine": __version__,
        "data": reports[0]["data"],
        "seeds": reports[0]["seeds"],
        "search_seeds": [r["seed"] for r in reports],
        "run": str(path),
        "config": config.name,
        "budget": config.budget,
        "fitted": reports[0]["fitted"],
        "repeats": rows,
        "figures": {name: figure for name, figure in figures.items() if figure is not None},
        "forms": len({row["champion"]["key"] for row in found}),
        "shared_fields": dict(sorted(fields.items(), key=lambda item: (-item[1], item[0]))),
    }
    known = next((r["known"]["blackbox"] for r in reports if r["champion"]), None)
    if pilot:
        report["pilot"] = verdict(report["figures"], _mean_errors(known, report["fitted"])) if known else None
    return report


def _over(values: Sequence[float | None]) -> dict[str, Any] | None:
    """None where no champion has the figure."""
    known = [v for v in values if v is not None]
    return None if not known else {**spread(values), "best": min(known)}


def _row(report: dict[str, Any]) -> dict[str, Any]:
    """One repeat: its champion and its mean absolute errors over the fitted runs, percent."""
    best = report["champion"]
    row: dict[str, Any] = {"seed": report["seed"], "run": report["run"], "champion": best}
    row |= dict.fromkeys(FIGURES) | {"candidates": report["candidates"]}
    if best is None:
        return row
    errors = _mean_errors(report["errors"], report["fitted"])
    return row | errors | {"worst3": report["fitted_mean"]["worst3"], "transfer": best.get("transfer")}


def _mean_errors(rows: Sequence[dict[str, Any]], fitted: Sequence[str]) -> dict[str, float | None]:
    """Mean absolute e2e, ttft and itl of these experiments in percent, and their mean, joint; None if unobserved."""
    out: dict[str, float | None] = {}
    for name in ("e2e", "ttft", "itl"):
        values = [abs(r[name]) for r in rows if r["experiment"] in fitted and r[name] is not None]
        out[name] = sum(values) / len(values) if values else None
    known = [v for v in out.values() if v is not None]
    return {"joint": sum(known) / len(known) if known else None, **out}


def verdict(figures: dict[str, Any], blackbox: dict[str, float | None]) -> dict[str, Any]:
    """Escalate where the median joint error of the repeats is below that of the host's blackbox form, fitted on the
    same runs, by more than the repeats' interquartile range; else stop."""
    ours, theirs = figures["joint"], blackbox["joint"]
    assert theirs is not None
    lower, apart = theirs - ours["median"], ours["high"] - ours["low"]
    escalate = lower > apart
    gap = f"{abs(lower):.2f} {'lower' if lower > 0 else 'higher'}"
    why = f"{gap}, {'more than' if escalate else 'not below it by more than'} the spread of {apart:.2f}"
    says = "escalate: a full run is worth it" if escalate else "stop: no better than the blackbox form"
    return {
        "escalate": escalate,
        "blackbox": blackbox,
        "spread": apart,
        "text": f"joint error {spelled(ours)} % over {len(ours['values'])} repeats against {theirs:.2f} % of blackbox: "
        f"{why} -> {says}",
    }
