"""Cells of runs: what weighs how much in a mean, and two programs compared over them."""

from __future__ import annotations

import numpy as np
import pytest
from paths import ROOT

from archive.champion import Rule, champion
from archive.elite import Elite, example
from evaluator.cells import MOST_RUNS, cell_of, run_weights
from evaluator.fit.fit import fit_set
from evaluator.fit.problem import problem_of
from evolve.run.program import load
from simulator.serving.bundled import SERVING, bundled_experiments, bundled_file

CLEAN = [e for e in bundled_file(SERVING) if e.quality == "clean"]
CALM = [e for e in CLEAN if e.id.startswith("gpt-oss-120b-mxfp4-b200-tp1-1k-1k")]


def test_a_cell_of_many_runs_counts_as_eight() -> None:
    runs = [*bundled_experiments(), *CLEAN]
    of_cell: dict[str, float] = {}
    for e, weight in zip(runs, run_weights(runs), strict=True):
        of_cell[cell_of(e)] = of_cell.get(cell_of(e), 0.0) + weight
    assert max(of_cell.values()) == pytest.approx(MOST_RUNS)
    assert len([cell for cell in of_cell if "B200" in cell or "H200" in cell]) == 7
    assert of_cell["MiniMax-M2.5 fp8_block B200"] == pytest.approx(8.0)  # of 116 runs


def test_a_closed_load_in_steps_is_that_of_a_replay() -> None:
    """E2E within a percent and TTFT within a tenth on average, where nothing waits for memory: without a replay."""
    program = load("kernels").complete
    in_steps, replayed = problem_of(program, fit_set(CALM, in_steps=True)), problem_of(program, fit_set(CALM))
    means_ms = in_steps.replay(in_steps.start, False)
    assert in_steps.data.in_steps.all() and not replayed.data.in_steps.any()
    ratio = means_ms / replayed.replay(replayed.start, False)
    assert np.abs(ratio[:, [0, 2]] - 1.0).max() < 0.01 and np.abs(ratio[:, 1] - 1.0).mean() < 0.1


def elite(id: int, size: int, *errors: float, seed: bool = False) -> Elite:
    cells = tuple((str(i), error) for i, error in enumerate(errors))
    operator = "seed:hand" if seed else "add"
    group_out = sum(errors) / len(errors)
    return example(id=id, key=str(id), operations=size, cells=cells, group_out=group_out, operator=operator)


def test_the_simplest_program_not_worse_in_its_cells_is_champion() -> None:
    best = elite(1, 40, 2.0, 4.0, 6.0)
    same = elite(2, 20, 1.9, 4.3, 6.1)  # 0.1 more, with a standard error of 0.12
    worse = elite(3, 5, 2.4, 4.5, 6.5)  # 0.47 more, with one of 0.03
    rule = Rule("group_out")
    assert champion([best, same, worse], rule) is same
    assert champion([best, worse], rule) is best
    # no program above the best fitted seed, however simple
    assert champion([best, same, elite(4, 30, 2.0, 4.0, 6.05, seed=True)], rule).id == 4  # type: ignore[union-attr]


def test_the_serving_runs_are_the_projects_own() -> None:
    """424 rows, 347 of them clean; their source and doubts stand in the file."""
    text = (ROOT / "configs" / SERVING).read_text("utf-8")
    assert len(bundled_file(SERVING)) == 424 and len(CLEAN) == 347
    assert text.count("source_run:") == 424 and "aiconfigurator-core 0.12.0 (Apache-2.0)" in text
    assert all(e.workload.closed and e.observed for e in CLEAN)
