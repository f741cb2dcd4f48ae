"""GEPA (0.1) on our evaluator: an adapter whose candidates are programs and whose examples are cells of the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from gepa.core.adapter import EvaluationBatch, GEPAAdapter

from archive.proposal import Rejected
from evaluator.group_out import MOST_PCT, by_cell
from evolve.engines.evaluator import TextEvaluator
from evolve.run.config_file import load_config
from evolve.search.llm.setup import task_of
from simulator.common.errors import InputError

PROGRAM = "program"  # the component of a candidate
REJECTED = -1.0  # score on every cell; an inconsistent program has as little where its error is the largest
QUESTION = """
# The program

```python
<curr_param>
```

# How it does

<side_info>

# How to answer

Improve the program's structure. Answer with the whole new program in one ```python block, and no other block.
"""


class LatencyAdapter(GEPAAdapter[str, str, str]):
    """A candidate is {"program": text}, an example the name of a cell; few cells are replaced by runs.

    A score is 1 - error left out / 30 %, one less for a program that is not consistent, so that 1 - the mean score, in
    units of 30 %, is the leave-group-out error by which a search selects. config: a bundled name or a YAML file, that
    in a run's folder too.

    cells: the examples. reflection_prompt: the template for `gepa.optimize`, with the task of our own prompts.
    """

    def __init__(self, config: str | Path = "default") -> None:
        self.evaluator = TextEvaluator(load_config(str(config)))
        experiments = self.evaluator.experiments
        if len(experiments) < 2:
            raise InputError(f"cannot leave out {experiments[0].id!r}: it is the only run. Give GEPA several runs.")
        self.cells = [name for name, _ in by_cell(experiments, np.zeros(len(experiments))).cells]
        self.reflection_prompt = task_of(self.evaluator.config) + QUESTION

    def evaluate(
        self, batch: list[str], candidate: dict[str, str], capture_traces: bool = False
    ) -> EvaluationBatch[str, str]:
        """Scores of a candidate on cells; outputs and traces are its errors in words, or the complaint."""
        verdict = self.evaluator.verdict(candidate[PROGRAM])
        if isinstance(verdict, Rejected):
            said = [f"{verdict.stage}: {verdict.why}"] * len(batch)
            return EvaluationBatch(said, [REJECTED] * len(batch), said if capture_traces else None)
        errors = [dict(verdict.cells)[name] for name in batch]
        said = [f"{error:.2f} % mean error when left out of the fit" for error in errors]
        scores = [float(verdict.consistent) - error / MOST_PCT for error in errors]
        return EvaluationBatch(said, scores, said if capture_traces else None)

    def make_reflective_dataset(
        self, candidate: dict[str, str], eval_batch: EvaluationBatch[str, str], components_to_update: list[str]
    ) -> Mapping[str, Sequence[Mapping[str, str]]]:
        """One record: all cells of a program come from one fit, and are explained together."""
        return {name: [self.evaluator.feedback(candidate[name])] for name in components_to_update}
