"""Gates that a program must pass before it is scored, on synthetic batches; a complaint names the batch that shows it.

    finite    every time is finite, a step within [1, 10^10] us, an overhead within [0, 10^10]               (INV-M-1)
    monotone  a step gets no shorter with more tokens or context; under 5 % of pairs of steps may violate it (INV-M-5)
    growth    a step of twice the requests, tokens and context takes at most 4.5 times as long

Programs are deterministic and free of side effects (INV-M-2, INV-M-3) without a gate: the language has neither state
nor randomness.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evaluator.judge.sweep import edges, sweep
from simulator.bind import Bound, bind
from simulator.experiment.experiment import Experiment
from simulator.language.ir import Program
from simulator.language.opcodes import assemble
from simulator.vm import MAX_TICKS, clamps

MOST_VIOLATIONS = 0.05  # of the pairs
MOST_GROWTH = 4.5  # attention over twice the tokens in twice the context is 4 times as long
PROMPTS = (1, 512, 4096, 131072)  # tokens, for queueing_time
ROUNDING = 1e-9  # relative: rounding in float64 is no violation

Facts = Mapping[str, Mapping[str, float]]  # deployment, as complaints name it -> its s. fields
Case = tuple[float, str]  # a ratio that a check limits, and the step it belongs to


@dataclass(frozen=True, slots=True)
class Gate:
    """The verdict of one gate: its name, whether it passes, what it measured, and the complaint ("" if it passes)."""

    name: str
    passes: bool
    measured: str
    complaint: str = ""


def deployments_of(experiments: Sequence[Experiment]) -> Facts:
    """The distinct deployments of the experiments."""
    deployments: dict[str, Mapping[str, float]] = {}
    for e in experiments:
        if e.facts not in deployments.values():
            name = f"{e.model} tp{e.engine.tensor_parallel}"
            deployments[name if name not in deployments else e.id] = e.facts
    return deployments


def judge(program: Program, deployments: Facts) -> list[Gate]:
    """All gates on every deployment, at the program's constants; only the first if times are not finite."""
    bounds = bound_on(program, deployments)
    finite = _finite(bounds)
    if not finite.passes:
        return [finite]
    steps_us = {name: bound.steps_us(sweep().raw) for name, bound in bounds.items()}
    for name, times in steps_us.items():
        if complaint := _step_complaint(name, sweep().names, times):
            return [Gate("finite", False, "", complaint)]
    return [finite, _monotone(steps_us), _growth(steps_us)]


def complaints(program: Program, deployments: Facts) -> list[str]:
    """The complaints of the gates, a line each; empty if all pass."""
    return [f"gate {gate.name}: {gate.complaint}" for gate in judge(program, deployments) if not gate.passes]


def finite(program: Program, deployments: Facts) -> Gate:
    """The first gate alone: cheap, and the only one that makes sense before the constants are fitted."""
    return _finite(bound_on(program, deployments))


def bound_on(program: Program, deployments: Facts) -> dict[str, Bound]:
    """The program at its constants on every deployment."""
    code = assemble(program)
    return {name: bind(code, program.theta, facts) for name, facts in deployments.items()}


def verdict(name: str, passes: bool, measured: str, rule: str) -> Gate:
    """A gate that complains by what it measured and the `rule` that this breaks."""
    return Gate(name, passes, measured, "" if passes else f"{measured}: {rule}")


def _finite(bounds: Mapping[str, Bound]) -> Gate:
    names, raw = edges()
    for deployment, bound in bounds.items():
        if complaint := _step_complaint(deployment, names, bound.steps_us(raw)):
            return Gate("finite", False, "", complaint)
        overheads = [(f"queueing of a prompt of {n} tokens", bound.queueing_us(n)) for n in PROMPTS]
        overheads += [("an output token", bound.output_token_us()), ("a completion", bound.completion_us())]
        for name, x in overheads:
            if clamps(x, 0):
                place = f"{deployment}, {name}: would take {x:g} us"
                return Gate("finite", False, "", f"{place}: it must be finite and within 0 and 1e10: {_remedy(x)}")
    return Gate("finite", True, f"{len(names)} batches on {len(bounds)} deployments")


def _step_complaint(deployment: str, names: Sequence[str], steps_us: np.ndarray) -> str:
    """A complaint about the first step that the clock would clamp, "" if there is none."""
    inside = (steps_us >= 1.0) & (steps_us <= MAX_TICKS)
    if inside.all():
        return ""
    first = int(inside.argmin())
    x = steps_us[first]
    place = f"{deployment}, {names[first]}: the step would last {x:g} us"
    return f"{place}: it must be finite and within 1 and 1e10: {_remedy(x)}"


def _remedy(x: float) -> str:
    if x < 0.0:
        return "subtract less, or take the max with a constant"
    return "add a constant, or take the max with one" if x < 1.0 else "lower a constant, or let it grow more slowly"


def _monotone(steps_us: Mapping[str, np.ndarray]) -> Gate:
    swept = sweep()
    drops = {name: 1.0 - x[swept.more] / x[swept.base] for name, x in steps_us.items()}
    wrong = sum(int((drop > ROUNDING).sum()) for drop in drops.values())
    pairs = len(swept.base) * len(drops)
    measured = f"{100 * wrong / pairs:.1f} % of {pairs:,} pairs"
    if wrong:
        name = max(drops, key=lambda n: float(drops[n].max()))
        worst = int(drops[name].argmax())
        one, other = steps_us[name][swept.base[worst]], steps_us[name][swept.more[worst]]
        measured += f" get shorter, worst: {name}: {swept.names[swept.more[worst]]}: {_apart(one, other)} us"
    rule = f"more work must not take less time, at most {100 * MOST_VIOLATIONS:g} % of pairs may violate this"
    return verdict("monotone", wrong < MOST_VIOLATIONS * pairs, measured, rule)


def _growth(steps_us: Mapping[str, np.ndarray]) -> Gate:
    swept = sweep()
    ratios = {name: x[swept.twice] / x[: len(swept.twice)] for name, x in steps_us.items()}
    name = max(ratios, key=lambda n: float(ratios[n].max()))
    worst = int(ratios[name].argmax())
    one, other = steps_us[name][worst], steps_us[name][swept.twice[worst]]
    step = f"{name}: {swept.names[swept.twice[worst]]}: {one:,.0f} -> {other:,.0f} us"
    measured = f"{ratios[name][worst]:.2f} times at most: {step}"
    rule = f"twice the requests, tokens and context may take {MOST_GROWTH} times as long at most"
    return verdict("growth", bool(ratios[name][worst] <= MOST_GROWTH), measured, rule)


def _apart(one: float, other: float) -> str:
    """`ONE -> OTHER` with as many decimals as it takes to tell them apart."""
    digits = next((d for d in range(17) if f"{one:.{d}f}" != f"{other:.{d}f}"), 0)
    return f"{one:,.{digits}f} -> {other:,.{digits}f}"
