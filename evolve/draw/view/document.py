"""The document that the page shows: a plan and runs as JSON values. docs/search.md describes it."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from archive.proposal import SCORED
from evaluator.score import MEANS, summarise
from evolve import __version__
from evolve.draw.view.candidates import columns, names_of, rejections
from evolve.draw.view.experiments import experiments_json
from evolve.draw.view.followed import Followed
from evolve.search.llm.ledger import rows, summary
from evolve.summary.result import RunReport, errors_of
from evolve.summary.sentences import rule_text
from simulator.common.json import JsonObject

FORMAT = 1
_TOTALS = ("requests", "tokens_in", "tokens_out", "usd", "possibly_usd")
_CALL = ("call", "attempt", "model", *_TOTALS[1:], "seconds", "outcome", "verdict")


def document(runs: Sequence[JsonObject], live: bool, plan: JsonObject | None = None) -> JsonObject:
    made = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"format": FORMAT, "engine": __version__, "live": live, "made": made, "plan": plan, "runs": list(runs)}


def run_json(followed: Followed, after: int = 0) -> JsonObject:
    """A run; of its candidates only those from the `after`-th outcome on."""
    run, story, report = followed.run, followed.story, followed.report
    config, archive = run.config, story.population.archive
    names, fitted = names_of(story), followed.data.fitted
    ids = [e.id for e in fitted] or list(run.about.fitted)
    members = archive.members()
    stages = story.population.stages
    return {
        "name": followed.name,
        "state": followed.state,
        "notes": followed.notes,
        "budget": config.budget,
        "seed": config.seed,
        "data": run.about.data,
        "arrival_seeds": list(config.score.arrival_seeds),
        "islands": config.search.islands,
        "rule": rule_text(config.score.rule, not members or any(e.consistent for e in members)),
        "grid": dict(zip(("operations", "features"), archive.grid.spans("–"), strict=True)),
        "experiments": experiments_json(followed.data, ids),
        "operators": list(names.operators),
        "stages": list(names.stages),
        "candidates": columns(story.rows[after:], names, archive.grid, ids, followed.cpu_s),
        "fitted": ids,
        "thinned": None,
        "totals": {
            "proposals": len(story.rows),
            "fitted": story.population.fitted,
            "scored": stages[SCORED],
            "rejected": rejections([row.outcome for row in story.rows]),
        },
        "front": [e.id for e in archive.front_by_size()],
        "champion": followed.champion,
        "best": [
            {"after": p.after, "mean_error": p.champion.mean_error, "group_out": p.champion.group_out}
            for p in story.points()
        ],
        "cpu_s_by_stage": _finite(dict(report.cpu_s)) if report else {},
        "baselines": _finite(_baselines(report)) if report else {},
        "details": {},
        "validation": _finite(followed.validation),
        "ledger": ledger_json(followed.telling.calls),
    }


def _baselines(report: RunReport) -> JsonObject:
    """Mean absolute errors of the champion and of the baselines over the fitted experiments."""
    answers = {"champion": report.errors, **report.baselines} if report.baselines else {}
    means = {name: asdict(summarise(errors_of(rows, report.fitted))) for name, rows in answers.items()}
    return {name: {x: score[x] for x in MEANS} for name, score in means.items()}


def _finite(value: Any) -> Any:
    """The JSON value with null for numbers that JSON has not: someone may have edited the file that they are from."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def ledger_json(lines: Sequence[JsonObject]) -> JsonObject | None:
    """The ledger of a run's calls to language models, without prompts and answers; None if no model was called."""
    totals = summary(lines)
    if not totals:
        return None
    models = {
        name: {key: of_model[key] for key in (*_TOTALS, "outcomes")} for name, of_model in totals["models"].items()
    }
    return {
        "totals": {key: totals[key] for key in _TOTALS},
        "models": models,
        "rows": [{key: getattr(row, key) for key in _CALL} for row in rows(lines)],
    }
