"""OpenEvolve (0.4) on our evaluator: the function `evaluate` of the file that `evolve export` writes for it.

Each of its processes has an evaluator of its own: OpenEvolve imports numpy before us, and forks.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

from openevolve.evaluation_result import EvaluationResult

from archive.champion import contenders
from archive.proposal import Rejected
from evolve.engines.evaluator import TextEvaluator
from evolve.export.openevolve import DIMENSIONS, metrics_of
from evolve.run.config_file import load_config


def evaluate_with(config: Path) -> Callable[[str], EvaluationResult]:
    """OpenEvolve's `evaluate` on the data and by the settings of this configuration file.

    A rejected program has the score 0 and the lowest cell, since OpenEvolve refuses members without their cell.
    """

    def evaluate(program_path: str) -> EvaluationResult:
        text, evaluator = Path(program_path).read_text("utf-8"), _evaluator(config, os.getpid())
        verdict, artifacts = evaluator.verdict(text), evaluator.feedback(text)
        if isinstance(verdict, Rejected):
            return EvaluationResult({"combined_score": 0.0, **dict.fromkeys(DIMENSIONS, 0.0)}, artifacts)
        rule = contenders([verdict], evaluator.config.score.rule)[1]
        return EvaluationResult(metrics_of(verdict, evaluator.config, rule), artifacts)

    return evaluate


@cache
def _evaluator(config: Path, process: int) -> TextEvaluator:
    """The evaluator of a process: one that it was forked with has lost its threads."""
    return TextEvaluator(load_config(str(config)))
