"""What intervals compare of programs' runs, against whole predictions of these programs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import tiny_world

from evaluator.intervals import PACES, STATISTICS, WAITING, disagreements, figure_of, slowed, waiting_share
from evaluator.score import predictions, score_set
from simulator.language.complete import complete
from simulator.language.parse import parse
from simulator.serving.bundled import load_experiments

OURS, THEIRS = (
    complete(parse(f"def step_time(b, s, *, base: us = {base}): return base + b.kv_read_us + b.weight_read_us"))
    for base in (2000.0, 3000.0)
)


@pytest.mark.parametrize("last_stage", [False, True])
def test_disagreements_are_those_of_predictions(last_stage: bool, tmp_path: Path) -> None:
    tiny_world.write(tmp_path)
    experiments = load_experiments(tmp_path / "data.yaml")
    assert {len(e.workload.stages) for e in experiments} == {1, 2}
    every = (OURS, THEIRS, *(slowed(OURS, factor) for factor in PACES))
    columns = zip(*(predictions(p, score_set(experiments, [1])) for p in every), strict=True)
    for doubt, found in zip(disagreements(OURS, [THEIRS], experiments, 1, last_stage=last_stage), columns, strict=True):
        runs = [p.predicted.stages[-1] if last_stage else p.predicted.summary for p in found]
        for name in STATISTICS:
            ours, *theirs = (figure_of(run, name) or math.nan for run in runs)
            logs = [math.log(x / ours) for x in theirs]
            assert doubt.spread[name] == math.sqrt(sum(x * x for x in logs) / len(logs))
        assert doubt.saturated == sum(waiting_share(p) > WAITING for p in found) / len(found)
