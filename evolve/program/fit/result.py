"""The result of `evolve fit` as plain values, and its files: programs, records, constants before and after."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evaluator.fit.loss import FitSet
from evaluator.fit.per_model import ScopedFit
from evaluator.fit.uncertainty import Certainty
from evaluator.score import SCORE_SEEDS, Errors, summarise
from evolve.program.fit.files import write
from evolve.program.fit.first_stage import FirstStage
from evolve.run.program import Source
from evolve.run.records import record
from evolve.run.selectors import certain
from simulator.experiment.experiment import Experiment
from simulator.language.ir import Program
from simulator.language.key import key
from simulator.language.unparse import unparse


@dataclass(frozen=True)
class Try:
    """One route's fit, its errors in the experiments' order, and how long it took."""

    method: str
    fit: ScopedFit
    rows: tuple[Errors, ...]
    seconds: float


def side(t: Try) -> dict[str, Any]:
    score = summarise(t.rows)
    return {"method": t.method, "loss": t.fit.loss, "e2e": score.e2e, "ttft": score.ttft, "itl": score.itl,
            "seconds": t.seconds}  # fmt: skip


def programs(
    source: Source, best: Try, found: Sequence[Certainty], data: FitSet, old: Any, files: Sequence[Path | None],
    shared: bool, stage: FirstStage | None,
) -> list[dict[str, Any]]:  # fmt: skip
    """The program of every group, written to its file if it has one."""
    out: list[dict[str, Any]] = []
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    for i, (group, path) in enumerate(zip(best.fit.problem.groups, files, strict=True)):
        members = [data.experiments[j] for j in group.experiments]
        program = replace(best.fit.programs[i], doc=_doc(source, members if not shared else data.experiments))
        text, rows = unparse(program), [best.rows[j] for j in group.experiments]
        if path is not None:
            kept = _known([found[j] for j in group.index], old)
            others: dict[str, Any] = (
                {} if shared else {"scope": "per-model", "fitted_with": [e.id for e in data.experiments]}
            )
            if stage is not None:
                others["steps"] = stage.record()
            write(path, text, record(
                key(program), members, rows, SCORE_SEEDS, today, fitted_from=source.name, constants=kept, **others
            ))  # fmt: skip
        out.append({
            "model": None if shared else best.fit.models[i],
            "fitted": [e.id for e in members],
            "program": text,
            "out": str(path) if path else None,
        })  # fmt: skip
    return out


def _known(found: Sequence[Certainty], old: Any) -> dict[str, dict[str, Any]]:
    """What is known after the fit: of constants that were held, what was known before."""
    out = certain(found)
    for c in found:
        name = f"{c.method}.{c.name}"
        if c.held and old and name in old:
            out[name] = old[name]
    return out


def constant_rows(
    program: Program, fit: ScopedFit, found: Sequence[Certainty], old: Any, stage: FirstStage | None
) -> list[dict[str, Any]]:
    """Each constant before and after, and between on measured steps if that was done; `moved` in standard errors, old
    and new together where both are known."""
    out = []
    for j, c in enumerate(found):
        before = program.theta[fit.problem.position[j]]
        known = (old or {}).get(f"{c.method}.{c.name}", {}).get("standard_error")
        error = math.hypot(c.standard_error, known or 0.0)
        moved = (c.value - before) / error if math.isfinite(error) and error > 0.0 else None
        out.append({
            "model": None if c.group is None else fit.models[c.group],
            "method": c.method, "name": c.name, "before": before,
            "after_steps": stage.program.theta[fit.problem.position[j]] if stage else None, "after": c.value,
            "standard_error": c.standard_error if math.isfinite(c.standard_error) else None,
            "standard_error_before": known, "moved": moved, "bound": c.bound, "determined": c.determined,
            "identified": c.identified, "held": c.held,
        })  # fmt: skip
    return out


def _doc(source: Source, fitted: Sequence[Experiment]) -> str:
    return f"The form of {source.name}, its constants fitted on {', '.join(e.id for e in fitted)}."
