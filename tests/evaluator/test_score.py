"""Predictions over several arrival seeds."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from evaluator.score import predictions, score_set
from evolve.run.program import load
from simulator.clock.replay import replay
from simulator.serving.bundled import bundled_experiments
from simulator.serving.workload import Stage


def test_counts_are_means_over_the_seeds_rounded_up() -> None:
    """So requests whose client gives up under one seed of several are not shown as none."""
    program = load("floor").complete
    e = next(e for e in bundled_experiments() if e.id == "llama-2-7b-tp1-codegen")
    workload = replace(e.workload, stages=(Stage(20.0, 10.0),), timeout_s=3.0)
    few = replace(e, engine=replace(e.engine, max_num_seqs=32), workload=workload, observed=None)
    each = [int(replay(few, program, seed).run.gave_up.sum()) for seed in (1, 2, 3)]
    assert sum(each) % 3, "their mean is to be no whole number"
    assert predictions(program, score_set([few]))[0].gave_up == ceil(sum(each) / 3)
