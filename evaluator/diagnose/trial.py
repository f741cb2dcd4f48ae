"""A trial: a program fitted and scored for the language model that has just proposed it."""

from __future__ import annotations

from dataclasses import dataclass

from archive.proposal import Rejected
from archive.score import Errors
from evaluator.assess import AssessData, Scored, assess
from evaluator.diagnose.describe import doubts, grouped_left_out, left_out_table
from evaluator.diagnose.examine import examine
from simulator.language.complete import complete
from simulator.language.parse import parse


@dataclass(frozen=True, slots=True)
class Trial:
    """The verdict on a program, and what is known of it besides: its errors on runs left out of the fit, and its
    doubts, as text; "" if it was rejected. left_out: the same errors as rows, of runs or cells under their names."""

    verdict: Scored | Rejected
    known: str = ""
    left_out: tuple[Errors, ...] = ()
    doubts: str = ""


def trial(text: str, data: AssessData) -> Trial:
    """The trial of a program's text. Deterministic: depends only on the arguments."""
    verdict = assess(complete(parse(text)), data)  # as a search assesses it
    if isinstance(verdict, Rejected):
        return Trial(verdict)
    examination = examine(complete(verdict.program), data)
    doubted = doubts(examination)
    parts = (left_out_table(examination, data), doubted)
    known = "\n".join(part for part in parts if part)
    return Trial(verdict, known, grouped_left_out(examination, data), doubted)


def left_out(text: str, data: AssessData) -> tuple[Errors, ...]:
    """The errors of a fitted program on runs left out of the fit, as a trial has them."""
    return grouped_left_out(examine(complete(parse(text)), data), data)
