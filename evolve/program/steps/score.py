"""`evolve score-steps`: a program's step time against the measured time of scheduler steps."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from evaluator.experiments import BUNDLED, data_hash
from evolve import __version__
from evolve.program.steps.estimate import ASSUMED
from evolve.program.steps.figures import grouped
from evolve.program.steps.sources import Run, Sources
from evolve.program.steps.targets import (
    ESTIMATED,
    NEIGHBOUR,
    Targets,
    cycle_targets,
    duration_targets,
    together,
)
from evolve.run.data import experiments_of
from evolve.run.program import Source
from evolve.run.records import measured
from simulator.bind import bind
from simulator.errors import InputError
from simulator.language.ir import Program
from simulator.language.key import key
from simulator.language.opcodes import assemble
from simulator.language.unparse import unparse

TARGETS = {"cycle": cycle_targets, "duration": duration_targets}
LABELS = {
    "cycle": "cycle time, the start of a step to that of the next",
    "duration": "CPU time of schedule(), not the step's cost",
}


def predicted_us(program: Program, targets: Targets) -> np.ndarray:
    """float64[rows]: the program's step time on each batch, on the run's deployment."""
    return bind(assemble(program), program.theta, targets.run.experiment.facts).steps_us(targets.raw)


def score_steps(source: Source, found: Sources, target: str = "cycle", split: str = "all") -> dict[str, Any]:
    """The figures for every run and over all of them. Raises InputError where no step is left, or a prediction is no
    number."""
    program = source.complete
    targets = [TARGETS[target](run).of(split) for run in found.runs]
    if not any(len(t.step) for t in targets):
        dropped = sum((Counter(t.dropped) for t in targets), Counter[str]())
        reasons = ", ".join(f"{why} ({n})" for why, n in dropped.items()) or "no two consecutive steps were sampled"
        raise InputError(f"no usable step of split {split} in {', '.join(r.steps.file for r in found.runs)}: {reasons}")
    predictions = [predicted_us(program, t) for t in targets]
    for t, p in zip(targets, predictions, strict=True):
        if not np.isfinite(p).all():
            step = int(t.step[~np.isfinite(p)][0])
            raise InputError(f"{source.name}: step_time is no finite number on step {step} of {t.run.experiment.id}: "
                             "change the program")  # fmt: skip
    return {
        "engine": __version__,
        "data": data_hash([run.experiment for run in found.runs]),
        "seeds": [],
        "name": source.name,
        "program": unparse(program),
        "key": key(program),
        "target": target,
        "target_is": LABELS[target],
        "split": split,
        "fitted": fitted(source, found),
        "experiments": [_experiment(t, p) for t, p in zip(targets, predictions, strict=True)],
        "overall": {
            "candidates": sum(t.candidates for t in targets),
            "usable": sum(t.candidates - sum(t.dropped.values()) for t in targets),
            **_grouped(targets, predictions),
        },
        "assumed": _assumed(targets),
        "left_out": list(found.left_out),
    }


def fitted(source: Source, found: Sources) -> dict[str, Any]:
    """Which of these runs the program was fitted on: on their steps, and on the mean latencies of the experiment; null
    where there is no record of that."""
    if source.record is None:
        return {"steps_of": None, "means_of": None}
    steps = set(source.record.get("steps", {}).get("runs", {}).values())
    # runs are known by what was measured: names may be anything; a run's record without digests is of shipped runs
    seen = source.record.get("measured") or {e.id: measured(e) for e in experiments_of(BUNDLED)}
    means = {seen[ident] for ident in source.record["fitted"] if seen.get(ident)}
    return {
        "steps_of": [r.experiment.id for r in found.runs if r.steps.digest() in steps],
        "means_of": [r.experiment.id for r in found.runs if measured(r.experiment) in means],
    }


def _grouped(targets: list[Targets], predictions: list[np.ndarray]) -> dict[str, Any]:
    columns = ("observed_us", "raw", "split", "batch", "evidence")
    return grouped(np.concatenate(predictions), **{name: together(targets, name) for name in columns})


def _experiment(t: Targets, predicted: np.ndarray) -> dict[str, Any]:
    s = t.run.steps
    return {
        "id": t.run.experiment.id,
        "file": s.file,
        "steps_digest": s.digest(),
        "asynchronous": t.run.asynchronous,
        "rows": len(s.step_id),
        "sampled": int(s.sampled.sum()),
        "mended": dict(s.counts),
        "candidates": t.candidates,
        "usable": t.candidates - sum(t.dropped.values()),
        "dropped": t.dropped,
        **_grouped([t], [predicted]),
        "steps": {"train": t.splits["train"], "valid": t.splits["valid"], "test": t.splits["test"]},
    }


def _assumed(targets: list[Targets]) -> list[str]:
    """What the figures rest on that the tables do not say, a line each."""
    out = [f"{said} ({_ids(runs)})." for said, runs in _by_text(targets).items()]
    estimated = sum(int((t.evidence == ESTIMATED).sum()) for t in targets)
    if estimated:
        moved = sum(t.moved for t in targets)
        out.append(f"{ASSUMED} So were {estimated} batches"
                   + (f"; in {moved} the blocks told of a length that the workload does not allow: "
                      "the nearest was taken." if moved else "."))  # fmt: skip
    neighbours = sum(int((t.batch == NEIGHBOUR).sum()) for t in targets)
    if neighbours:
        out.append(f"{neighbours} cycles measure a step whose batch is not known: the sampled step's own, a step "
                   "later, stands in (neighbour's batch).")  # fmt: skip
    return out


def _by_text(targets: list[Targets]) -> dict[str, list[Run]]:
    out: dict[str, list[Run]] = {}
    for t in targets:
        if t.run.assumed:
            out.setdefault(t.run.assumed, []).append(t.run)
    return out


def _ids(runs: list[Run]) -> str:
    return ", ".join(run.experiment.id for run in runs)
