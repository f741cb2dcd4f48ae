"""The pipeline of one candidate, cheapest rejection first: text -> Scored | Rejected.

A bad candidate is data, never an exception that stops a run: it is stored and shown to the next proposal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evaluator import gates
from evaluator.fit import FitSet, fit, fit_set
from evaluator.score import SCORE_SEEDS, NothingCompletes, Score, ScoreSet, score, score_set
from simulator.clock.run import HostileStep
from simulator.experiment import Experiment
from simulator.language.complete import complete
from simulator.language.infer import UnitError, check_units
from simulator.language.ir import Program
from simulator.language.measure import Caps, complaints, features
from simulator.language.parse import parse
from simulator.language.simplify import lean
from simulator.language.source import ProgramError
from simulator.language.unparse import unparse


@dataclass(frozen=True, slots=True)
class Rejected:
    """Why a candidate went no further: the stage (parse, caps, units, fields, duplicate, the gates' names, replay) and
    one line."""

    stage: str
    why: str


@dataclass(frozen=True, slots=True)
class Scored:
    """A candidate with its constants fitted and the terms left out that the fit set to 0: `text` is exactly what was
    scored."""

    text: str
    score: Score


@dataclass(frozen=True)
class Data:
    """What candidates are measured on: prepared once per process."""

    fit: FitSet
    score: ScoreSet
    deployments: gates.Facts
    moe_weight: float


def prepare(experiments: Sequence[Experiment], seeds: Sequence[int] = SCORE_SEEDS, moe_weight: float = 1.0) -> Data:
    return Data(fit_set(experiments), score_set(experiments, seeds), gates.deployments_of(experiments), moe_weight)


def read(text: str, caps: Caps, fields: frozenset[str] | None = None) -> Program | Rejected:
    """The complete program that `text` spells, within the caps, of sound units and the allowed fields (None: all)."""
    try:
        program = complete(parse(text))
        for complaint in complaints(program, caps):
            return Rejected("caps", complaint)
        check_units(program, "program")
    except UnitError as e:
        return Rejected("units", str(e))
    except ProgramError as e:
        return Rejected("parse", str(e))
    if fields is not None:
        step = Program(tuple(f for f in program.functions if f.name == "step_time"))
        for name in features(step):
            if name not in fields:
                return Rejected("fields", f"{name} is not among the fields of this configuration")
    return program


def assess(program: Program, data: Data) -> Scored | Rejected:
    """Gates, fit, gates at the fitted constants, score. Deterministic: depends on the program and the data only."""
    first = gates.finite(program, data.deployments)
    if not first.passes:
        return Rejected(first.name, first.complaint)
    try:
        program = lean(fit(program, data.fit).program)
        for gate in gates.judge(program, data.deployments):
            if not gate.passes:
                return Rejected(gate.name, gate.complaint)
        return Scored(unparse(program), score(program, data.score, data.moe_weight))
    except (HostileStep, NothingCompletes) as e:
        return Rejected("replay", str(e))
