"""`evolve fit`: the same form with constants from other experiments, and what that changed."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from evaluator.experiments import data_hash
from evaluator.fit import fit, fit_set
from evaluator.score import SCORE_SEEDS, error_rows, score_set
from evolve import __version__
from evolve.choose import fittable, nothing_to_fit
from evolve.programs import Source
from evolve.records import record
from simulator.clock.run import HostileStep
from simulator.errors import InputError
from simulator.experiment import Experiment
from simulator.language.ir import Program
from simulator.language.key import key
from simulator.language.unparse import unparse


def calibrate(source: Source, experiments: Sequence[Experiment], out: Path | None) -> dict[str, Any]:
    """Fit the program's constants on `experiments`; write it to `out` (and its record beside) if given.

    Raises InputError when nothing can be fitted, when no constants make the program usable, or `out` cannot be
    written.
    """
    if out is not None and out.suffix != ".py":
        raise InputError(f"{out}: a program's file ends in .py, its record stands beside it: write --out {out.stem}.py")
    fitted = fittable(experiments)
    if not fitted:
        raise InputError(nothing_to_fit(experiments))
    program = source.complete
    try:
        result = fit(program, fit_set(fitted)).program
        result = replace(result, doc=_doc(source, fitted))
    except HostileStep as e:
        raise InputError(f"{source.name}: cannot be fitted on these experiments ({e}): change the program") from None
    data = score_set(fitted)

    before, after = error_rows(program, data), error_rows(result, data)
    constants = [
        {"method": f.name, "name": c.name, "before": old, "after": c.value}
        for f, olds in zip(result.functions, _values(program), strict=True)
        for c, old in zip(f.constants, olds, strict=True)
    ]
    text, form = unparse(result), key(result)
    if out is not None:
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        kept = record(form, fitted, after, SCORE_SEEDS, today, fitted_from=source.name)
        try:
            out.write_text(text)
            out.with_suffix(".json").write_text(json.dumps(kept, indent=1) + "\n")
        except OSError as e:
            raise InputError(f"{out}: cannot be written ({e.strerror}): choose another --out") from None
    return {
        "engine": __version__,
        "data": data_hash(fitted),
        "seeds": list(SCORE_SEEDS),
        "program": text,
        "key": form,
        "fitted": [e.id for e in fitted],
        "left_out": [e.id for e in experiments if e.id not in {f.id for f in fitted}],
        "constants": constants,
        "before": [asdict(r) for r in before],
        "after": [asdict(r) for r in after],
        "out": str(out) if out else None,
    }


def _doc(source: Source, fitted: Sequence[Experiment]) -> str:
    return f"The form of {source.name}, its constants fitted on {', '.join(e.id for e in fitted)}."


def _values(program: Program) -> list[list[float]]:
    return [[c.value for c in f.constants] for f in program.functions]
