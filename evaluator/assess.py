"""The pipeline of one candidate, cheapest rejection first: text -> Scored | Rejected.

A bad candidate is data, never an exception that stops a run: it is stored and shown to the next proposal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evaluator.fit import FitSet, fit, fit_set
from evaluator.score import SCORE_SEEDS, NothingCompletes, Score, ScoreSet, score, score_set
from simulator.bind import bind
from simulator.clock.run import HostileStep
from simulator.experiment import Experiment
from simulator.fields import Active, raw_fields
from simulator.language.complete import complete
from simulator.language.ir import Program
from simulator.language.measure import Caps, complaints
from simulator.language.opcodes import assemble
from simulator.language.parse import parse
from simulator.language.simplify import lean
from simulator.language.source import ProgramError
from simulator.language.unparse import unparse
from simulator.schema import RAW
from simulator.vm import clamps


@dataclass(frozen=True, slots=True)
class Rejected:
    """Why a candidate went no further: the stage (parse, caps, fields, duplicate, sweep, replay) and one line."""

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
    moe_weight: float


def prepare(experiments: Sequence[Experiment], seeds: Sequence[int] = SCORE_SEEDS, moe_weight: float = 1.0) -> Data:
    return Data(fit_set(experiments), score_set(experiments, seeds), moe_weight)


def read(text: str, caps: Caps, fields: frozenset[str] | None = None) -> Program | Rejected:
    """The complete program that `text` spells, within the caps and the allowed fields (None: all)."""
    try:
        program = complete(parse(text))
    except ProgramError as e:
        return Rejected("parse", str(e))
    for complaint in complaints(program, caps):
        return Rejected("caps", complaint)
    if fields is not None:
        from simulator.language.measure import features

        step = Program(tuple(f for f in program.functions if f.name == "step_time"))
        for name in features(step):
            if name not in fields:
                return Rejected("fields", f"{name} is not among the fields of this configuration")
    return program


def assess(program: Program, data: Data) -> Scored | Rejected:
    """Sweep, fit, score. Deterministic: depends on the program and the data only."""
    why = sweep(program, data.fit.experiments)
    if why is not None:
        return Rejected("sweep", why)
    try:
        fitted = fit(program, data.fit)
        program = lean(fitted.program)
        return Scored(unparse(program), score(program, data.score, data.moe_weight))
    except (HostileStep, NothingCompletes) as e:
        return Rejected("replay", str(e))


def _edges() -> list[tuple[str, list[Active]]]:
    decode = [Active(512, 512 + 7 * i, 1) for i in range(128)]
    return [
        ("empty batch", []),
        ("one decode", decode[:1]),
        ("128 decodes", decode),
        ("one prefill of 2048", [Active(4096, 0, 2048)]),
        ("one prefill token", [Active(16, 15, 1)]),
        ("128k context", [Active(131072, 131072, 1)]),
        ("mixed", [*decode[:64], Active(4096, 2048, 512), Active(40, 0, 40)]),
    ]


_SWEEP = [(name, np.array([raw_fields(batch)[f] for f in RAW])) for name, batch in _edges()]


def sweep(program: Program, experiments: Sequence[Experiment]) -> str | None:
    """What is wrong with the step time on a few edge batches of every deployment, or None.

    Judged at the start values; the replay judges again at the fitted ones.
    """
    code, seen = assemble(program), set()
    for e in experiments:
        if (e.model, e.hardware, e.engine) in seen:
            continue
        seen.add((e.model, e.hardware, e.engine))
        bound = bind(code, program.theta, e.facts)
        for name, raw in _SWEEP:
            x = bound.step_us(raw)
            if clamps(x, 1):
                return f"{e.model}, {name}: the step would last {x:g} us: it must be finite and within 1 and 1e10"
    return None
