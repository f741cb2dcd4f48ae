"""A trial: a program fitted and scored for the language model that has just proposed it."""

from __future__ import annotations

from dataclasses import dataclass

from archive.proposal import Rejected
from evaluator.assess import Data, Scored, assess
from evaluator.diagnose.describe import doubts, left_out_table
from evaluator.diagnose.examine import examine
from simulator.language.complete import complete
from simulator.language.parse import parse


@dataclass(frozen=True, slots=True)
class Trial:
    """The verdict on a program, and what is known of it besides: its errors on runs left out of the fit, and its
    doubts, as text; "" if it was rejected."""

    verdict: Scored | Rejected
    known: str = ""


def trial(text: str, data: Data) -> Trial:
    """The trial of a program's text. Deterministic: depends only on the arguments."""
    verdict = assess(parse(text), data)
    if isinstance(verdict, Rejected):
        return Trial(verdict)
    examination = examine(complete(parse(verdict.text)), data)
    parts = (left_out_table(examination, data.score.experiments), doubts(examination))
    return Trial(verdict, "\n".join(part for part in parts if part))
