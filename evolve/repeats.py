"""The same search under several seeds: how much of a result is luck?

A folder of runs, OUT/seed-0 and so on, each a run like any other, and repeats.json that says which belong together. A
pilot is such a folder too, and ends with a verdict.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evaluator.experiments import data_hash
from evolve import __version__, run_folder
from evolve.choose import chosen
from evolve.config import Config
from evolve.run import start as start_run
from evolve.run import work as work_run
from evolve.run_folder import Run
from evolve.spread import spelled, spread
from simulator.errors import InputError
from simulator.language.measure import features
from simulator.language.parse import parse

FILE = "repeats.json"
FIGURES = ("joint", "worst3", "e2e", "ttft", "itl", "transfer")


@dataclass(frozen=True)
class Repeats:
    """Runs that differ in their seed only. `pilot`: they end with a verdict."""

    path: Path
    runs: tuple[Run, ...]
    pilot: bool


def start(config: Config, repeats: int, out: Path | None, pilot: bool = False) -> Repeats:
    """The run folders of seeds `config.seed` and those after it; nothing is computed yet.

    Raises InputError if `out` exists or cannot be written.
    """
    path = out or run_folder.next_path()
    if path.exists():
        raise InputError(f"{path}: exists already: choose another --out, or `evolve resume {path}`")
    seeds = list(range(config.seed, config.seed + repeats))
    runs = tuple(start_run(replace(config, seed=seed), path / f"seed-{seed}") for seed in seeds)
    about = {"engine": __version__, "data": runs[0].about["data"], "seeds": seeds, "pilot": pilot}
    run_folder.write_json(path / FILE, about)
    return Repeats(path, runs, pilot)


def is_repeats(path: Path) -> bool:
    return (path / FILE).is_file()


def reopen(path: Path) -> Repeats:
    """The repeats in `path`. Raises InputError if the file that names them, or one of them, is damaged."""
    try:
        about = json.loads((path / FILE).read_text())
        seeds, pilot = list(about["seeds"]), bool(about["pilot"])
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{path / FILE}: is damaged: restore it from a copy") from None
    return Repeats(path, tuple(run_folder.open_run(path / f"seed-{seed}") for seed in seeds), pilot)


def work(repeats: Repeats, workers: int, quiet: bool = False) -> dict[str, Any]:
    """Every run to its end, from wherever it stands, then what they have in common (report.json)."""
    fitted, _ = chosen(repeats.runs[0].config.data)
    reports = []
    for i, run in enumerate(repeats.runs):
        run_folder.check_same(run, fitted)
        path = run.path / "report.json"
        if not path.exists():
            if not quiet:
                print(f"repeat {i + 1} of {len(repeats.runs)}, seed {run.config.seed}", file=sys.stderr, flush=True)
            _share_known_answers(repeats.runs[0], run)
            reports.append(work_run(run, workers, quiet))
        else:
            reports.append(json.loads(path.read_text()))
    report = summarise(repeats, reports)
    run_folder.write_json(repeats.path / "report.json", report)
    return report


def _share_known_answers(first: Run, run: Run) -> None:
    """They depend on the data only: the first run finds them for all."""
    known = first.path / "known.json"
    if known.exists() and not (run.path / known.name).exists():
        shutil.copy(known, run.path / known.name)


def summarise(repeats: Repeats, reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the repeats reached: each one's champion, figures over all of them, and the fields that they share."""
    rows = [_row(r) for r in reports]
    found = [row for row in rows if row["champion"] is not None]
    config = repeats.runs[0].config
    fields = Counter(f for row in found for f in features(parse(row["champion"]["text"])))
    figures = {name: _over([row[name] for row in found]) for name in FIGURES}
    report: dict[str, Any] = {
        "engine": __version__,
        "data": data_hash(chosen(config.data)[0]),
        "seeds": reports[0]["seeds"],
        "search_seeds": [r["seed"] for r in reports],
        "run": str(repeats.path),
        "config": config.name,
        "budget": config.budget,
        "fitted": reports[0]["fitted"],
        "repeats": rows,
        "figures": {name: figure for name, figure in figures.items() if figure is not None},
        "forms": len({row["champion"]["key"] for row in found}),
        "shared_fields": dict(sorted(fields.items(), key=lambda item: (-item[1], item[0]))),
    }
    known = next((r["known"]["blackbox"] for r in reports if r["champion"]), None)
    if repeats.pilot:
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
