"""The pipeline of one candidate, cheapest rejection first: text -> Scored | Rejected.

A bad candidate is data, never an exception that stops a run: it is stored and shown to later proposals.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from archive.proposal import POLISH, PRUNED, Form, Rejected
from archive.score import CellErrors, Errors, Score
from evaluator.fit.fit import Pruned, fit, fit_set, polish
from evaluator.fit.loss import FitSet
from evaluator.fit.problem import problem_of
from evaluator.group_out import KINDS, Folds, folds_of, group_out
from evaluator.judge import gates
from evaluator.judge.physics import Hardware, KernelSums, hardware_of, kernel_checks, physics
from evaluator.score import MEANS, SCORE_SEEDS, NothingCompletes, RunErrors, ScoreSet, score, score_set
from simulator.clock.bind import Deployments
from simulator.clock.run import HostileStep
from simulator.language.bounds import too_narrow
from simulator.language.complete import complete
from simulator.language.infer import infer
from simulator.language.ir import Field, Function, Program, nodes
from simulator.language.key import key
from simulator.language.measure import Caps, complaints, constants, features, made_numbers, operations
from simulator.language.opcodes import Code, assemble
from simulator.language.parse import parse
from simulator.language.simplify import brief, lean
from simulator.language.source import ProgramError
from simulator.language.unparse import unparse
from simulator.schema import HOST
from simulator.serving.experiment import Experiment


@dataclass(frozen=True, slots=True)
class Scored:
    """A candidate with fitted constants, without the terms that the fit set to 0: `text` is exactly what was scored.

    left_out: see evaluator.group_out, None if not measured. consistent: with datasheets and measured kernels, see
    evaluator.judge.
    """

    text: str
    score: Score
    left_out: CellErrors | None
    consistent: bool
    operations: int
    constants: int
    features: int

    @property
    def group_out(self) -> float | None:
        """The mean of the errors left out."""
        return self.left_out.mean if self.left_out else None

    @property
    def cells(self) -> tuple[tuple[str, float], ...]:
        return self.left_out.cells if self.left_out else ()

    @property
    def program(self) -> Program:
        """The program of its text: workers answer other processes, so that the text is what they send."""
        return parse(self.text)


@dataclass(frozen=True, slots=True)
class AssessLimits:
    """Errors in percent beyond which a candidate is not worth more work.

    - mean_error: the most by the mean field alone; a candidate above it is refused without a replay.
    - to_group_out: the mean error up to which the leave-group-out error is computed.
    """

    mean_error: float = math.inf
    to_group_out: float = math.inf


NO_LIMITS = AssessLimits()


@dataclass(frozen=True)
class AssessData:
    """The data that candidates are assessed on, prepared once per process.

    deployments: of the experiments. hardware, kernels: deployments for the checks of consistency with datasheets and
    with measured kernels; None without such checks. method: fits the constants of every candidate, a key of
    evaluator.fit.methods.METHODS.
    """

    fit: FitSet
    score: ScoreSet
    deployments: Deployments
    moe_weight: float
    folds: Folds
    hardware: Hardware | None
    kernels: KernelSums | None
    method: str


class StageTimer:
    """CPU seconds of this process by stage of the pipeline."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.process_time()

    def lap(self, stage: str) -> None:
        """Charge the time since the last lap to `stage`."""
        now = time.process_time()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._since
        self._since = now


def prepare(
    experiments: Sequence[Experiment],
    seeds: Sequence[int] = SCORE_SEEDS,
    moe_weight: float = 1.0,
    hardware: gates.FactsByDeployment | None = None,
    kernels: KernelSums | None = None,
    left_out: Sequence[str] = KINDS,
    method: str = "auto",
) -> AssessData:
    """The data of these experiments. `left_out`: see evaluator.group_out. `method`: see AssessData.

    A physically consistent program agrees with datasheets on the deployments `hardware`, named `MODEL tpN`, and with
    the measured `kernels`.
    """
    fitted = fit_set(experiments, in_steps=True)
    replayed = [e for e, in_steps in zip(experiments, fitted.in_steps, strict=True) if not in_steps]
    scored = score_set(replayed, seeds)
    deployments, folds = gates.deployments_of(experiments), folds_of(fitted, left_out)
    datasheets = hardware_of(hardware) if hardware else None
    return AssessData(fitted, scored, deployments, moe_weight, folds, datasheets, kernels, method)


def read(text: str, caps: Caps, fields: frozenset[str] | None = None) -> Program | Rejected:
    """The complete program of `text`, if it respects the caps, the units and the allowed fields (None: all), and does
    not say what its constants are (`foreknown`)."""
    try:
        program = complete(parse(text))
    except ProgramError as e:
        return Rejected("parse", str(e))
    for fault in faults(program, caps, fields):
        why = f"program:{fault.line}: {fault.why}" if fault.line else fault.why
        return Rejected(fault.stage, why)
    return program


def form_of(program: Program) -> Form:
    return Form(key(program), operations(program), len(features(program)))


@dataclass(frozen=True, slots=True)
class TextFault:
    """A fault for which a search refuses a program unassessed: the stage, the line of the text (0: all of it), why."""

    stage: str
    line: int
    why: str


def faults(program: Program, caps: Caps, fields: frozenset[str] | None = None) -> Iterator[TextFault]:
    """All faults of a complete program, see `read`."""
    yield from (TextFault("caps", 0, complaint) for complaint in complaints(program, caps))
    for function in program.functions:
        yield from (TextFault("units", clash.line or 1, f"units: {clash.why}") for clash in infer(function).clashes)
    yield from _foreknown(program)
    if fields is not None:
        step = Program(tuple(f for f in program.functions if f.name == "step_time"))
        for name in features(step):
            if name not in fields:
                yield TextFault("fields", 0, f"{name} is not among the fields of this configuration")


def foreknown(program: Program) -> Rejected | None:
    """The refusal of a text that fixes what a fit must find: by narrow bounds, numbers that no fit changes, trees or
    fields of the host's own form.

    Its author may have seen the runs that a fold leaves out.
    """
    return next((Rejected(fault.stage, fault.why) for fault in _foreknown(program)), None)


def _foreknown(program: Program) -> Iterator[TextFault]:
    if program.reads_trees:
        why = "b.trees reads an ensemble that was trained elsewhere, which a search has not: use the other fields"
        yield TextFault("fields", 0, why)
    fields = [(n.scope, n.name) for method in program.functions for n in nodes(method) if isinstance(n, Field)]
    for scope, name in dict.fromkeys(fields):
        if (scope, name) in HOST:
            why = f"{scope}.{name} is of the host's trained-physics form alone: use the other fields"
            yield TextFault("fields", 0, why)
    for complaint in too_narrow(program):
        yield TextFault("bounds", 0, complaint)
    made = [(number, _line_of(number, f)) for f in program.functions for number in made_numbers(Program((f,)))]
    for number, line in sorted(made):
        rule = "only 0, 1, 2 and 0.5 may be fixed: make it a constant, which the fit decides"
        yield TextFault("numbers", line, f"the formulas come to the number {number:g}, and {rule}")


def _line_of(number: float, function: Function) -> int:
    """The line of the first statement that comes to a number by itself or with those before it."""
    for i, statement in enumerate(function.body):
        so_far = replace(function, body=function.body[:i], result=statement.value)
        if number in made_numbers(Program((so_far,))):
            return statement.line
    return function.line


def assess(
    program: Program, data: AssessData, limits: AssessLimits = NO_LIMITS, timer: StageTimer | None = None
) -> Scored | Rejected:
    """Gates, fit, gates at the fitted constants, score, leave-group-out error: each within `limits`.

    Deterministic: depends only on the arguments, except for `timer`.
    """
    timer = timer or StageTimer()
    first = gates.finite(assemble(program), program.theta, data.deployments)
    timer.lap("gates")
    if not first.passes:
        return Rejected(first.name, first.complaint)
    try:
        fitted = fit(program, data.fit, method=data.method, reset_to_prior=True, most=limits.mean_error)
        program = brief(lean(fitted.program))
        timer.lap("fit")
        return _judged(program, fitted.ratio, data, limits, timer)
    except Pruned as e:
        timer.lap("fit")
        return Rejected(PRUNED, str(e))
    except (HostileStep, NothingCompletes) as e:
        return Rejected("replay", str(e))


def polished(program: Program, data: AssessData, timer: StageTimer) -> Scored | Rejected:
    """A finalist with constants improved by CMA-ES on the replays (`polish`), assessed like any other."""
    try:
        better = polish(program, data.fit)
        timer.lap("polish")
        if better.program == program:
            return Rejected(POLISH, "CMA-ES on the replays found no better constants")
        return _judged(brief(lean(better.program)), better.ratio, data, NO_LIMITS, timer)
    except (HostileStep, NothingCompletes) as e:
        return Rejected("replay", str(e))


def _judged(
    program: Program, ratio: np.ndarray, data: AssessData, limits: AssessLimits, timer: StageTimer
) -> Scored | Rejected:
    """Gates, score and leave-group-out error of a fitted program; `ratio`: replay over mean field at its constants."""
    code = assemble(program)
    for gate in gates.judge(code, program.theta, data.deployments):
        if not gate.passes:
            return Rejected(gate.name, gate.complaint)
    consistent = not contradictions(code, program.theta, data)
    timer.lap("gates")
    result = score(code, program.theta, data.score, data.moe_weight, errors_in_steps(program, ratio, data.fit))
    timer.lap("replay")
    worth_it = result.mean_error <= limits.to_group_out
    left_out = group_out(program, ratio, data.folds) if worth_it else None
    timer.lap("group_out")
    counts = operations(program), constants(program), len(features(program))
    return Scored(unparse(program), result, left_out, consistent, *counts)


def errors_in_steps(program: Program, ratio: np.ndarray, data: FitSet) -> list[RunErrors]:
    """The errors of the runs that are not replayed."""
    if not data.in_steps.any():
        return []
    problem = problem_of(program, data)
    rows = data.errors_pct(problem.predict(problem.start) * ratio)
    runs = []
    for i in np.flatnonzero(data.in_steps):
        e = data.experiments[i]
        observed = e.observed.summary if e.observed else None
        figures = dict(zip(MEANS, rows[i].tolist(), strict=True))
        known = [
            None if observed is None or getattr(observed, f"{n}_ms").mean is None else x for n, x in figures.items()
        ]
        runs.append(RunErrors(e, Errors(e.id, *known)))
    return runs


def contradictions(code: Code, theta: gates.Theta, data: AssessData) -> list[str]:
    """The contradictions of a program to the datasheets and measured kernels in `data`; without any it is consistent.

    The kernels are compared only if it contradicts no datasheet.
    """
    checks = physics(code, theta, data.hardware) if data.hardware else []
    if data.kernels and all(gate.passes for gate in checks):
        checks += kernel_checks(code, theta, data.kernels)
    return [f"{gate.name}: {gate.complaint}" for gate in checks if not gate.passes]
