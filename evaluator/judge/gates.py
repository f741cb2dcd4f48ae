"""What a program must satisfy before it is scored, on batches of our own making: named complaints with the batch that
shows them.

    finite    every time is finite, a step within [1, 10^10] us, an overhead within [0, 10^10]          (INV-M-1)
    monotone  a step gets no shorter with more tokens or context; under 5 % of pairs of steps may break it  (INV-M-5)
    growth    a step of twice the requests, tokens and context takes at most 4.5 times as long

That a program is deterministic and without side effects (INV-M-2, INV-M-3) needs no gate: the language has neither
state nor randomness.
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
ROUNDING = 1e-9  # relative: what float64 may lose is no violation

Facts = Mapping[str, Mapping[str, float]]  # deployment, as complaints name it -> its s. fields


@dataclass(frozen=True, slots=True)
class Gate:
    """What one gate says: its name, whether it passes, what it measured, and the complaint ("" where it passes)."""

    name: str
    passes: bool
    measured: str
    complaint: str = ""


def deployments_of(experiments: Sequence[Experiment]) -> Facts:
    """The distinct deployments of the experiments."""
    found: dict[str, Mapping[str, float]] = {}
    for e in experiments:
        if e.facts not in found.values():
            name = f"{e.model} tp{e.engine.tensor_parallel}"
            found[name if name not in found else e.id] = e.facts
    return found


def judge(program: Program, deployments: Facts) -> list[Gate]:
    """All gates on every deployment, at the program's constants; where times are not finite the others are left out."""
    bounds = bound_on(program, deployments)
    finite = _finite(bounds)
    if not finite.passes:
        return [finite]
    steps = {name: bound.steps_us(sweep().raw) for name, bound in bounds.items()}
    for name, x in steps.items():
        if why := _step_complaint(name, sweep().names, x):
            return [Gate("finite", False, "", why)]
    return [finite, _monotone(steps), _growth(steps)]


def complaints(program: Program, deployments: Facts) -> list[str]:
    """What the gates refuse, a line each; empty when they pass."""
    return [f"gate {gate.name}: {gate.complaint}" for gate in judge(program, deployments) if not gate.passes]


def finite(program: Program, deployments: Facts) -> Gate:
    """The first gate alone: cheap, and the only one that makes sense before the constants are fitted."""
    return _finite(bound_on(program, deployments))


def bound_on(program: Program, deployments: Facts) -> dict[str, Bound]:
    """The program at its constants on every deployment."""
    code = assemble(program)
    return {name: bind(code, program.theta, facts) for name, facts in deployments.items()}


def verdict(name: str, passes: bool, measured: str, rule: str) -> Gate:
    """A gate whose complaint is what it measured and the rule that this breaks."""
    return Gate(name, passes, measured, "" if passes else f"{measured}: {rule}")


def _finite(bounds: Mapping[str, Bound]) -> Gate:
    names, raw = edges()
    for deployment, bound in bounds.items():
        if why := _step_complaint(deployment, names, bound.steps_us(raw)):
            return Gate("finite", False, "", why)
        overheads = [(f"queueing of a prompt of {n} tokens", bound.queueing_us(n)) for n in PROMPTS]
        overheads += [("an output token", bound.output_token_us()), ("a completion", bound.completion_us())]
        for name, x in overheads:
            if clamps(x, 0):
                why = f"{deployment}, {name}: would take {x:g} us: it must be finite and within 0 and 1e10: {_mend(x)}"
                return Gate("finite", False, "", why)
    return Gate("finite", True, f"{len(names)} batches on {len(bounds)} deployments")


def _step_complaint(deployment: str, names: Sequence[str], steps_us: np.ndarray) -> str:
    """The first step that the clock would clamp, "" if there is none."""
    inside = (steps_us >= 1.0) & (steps_us <= MAX_TICKS)
    if inside.all():
        return ""
    first = int(inside.argmin())
    x = steps_us[first]
    why = f"{deployment}, {names[first]}: the step would last {x:g} us: it must be finite and within 1 and 1e10"
    return f"{why}: {_mend(x)}"


def _mend(x: float) -> str:
    if x < 0.0:
        return "subtract less, or take the max with a constant"
    return "add a constant, or take the max with one" if x < 1.0 else "lower a constant, or let it grow more slowly"


def _monotone(steps: Mapping[str, np.ndarray]) -> Gate:
    swept = sweep()
    drops = {name: 1.0 - x[swept.more] / x[swept.base] for name, x in steps.items()}
    wrong = sum(int((drop > ROUNDING).sum()) for drop in drops.values())
    pairs = len(swept.base) * len(drops)
    measured = f"{100 * wrong / pairs:.1f} % of {pairs:,} pairs"
    if wrong:
        name = max(drops, key=lambda n: float(drops[n].max()))
        worst = int(drops[name].argmax())
        one, other = steps[name][swept.base[worst]], steps[name][swept.more[worst]]
        measured += f" get shorter, worst: {name}: {swept.names[swept.more[worst]]}: {one:,.0f} -> {other:,.0f} us"
    rule = f"more work must not take less time, at most {100 * MOST_VIOLATIONS:g} % of pairs may be so"
    return verdict("monotone", wrong < MOST_VIOLATIONS * pairs, measured, rule)


def _growth(steps: Mapping[str, np.ndarray]) -> Gate:
    swept = sweep()
    ratios = {name: x[swept.twice] / x[: len(swept.twice)] for name, x in steps.items()}
    name = max(ratios, key=lambda n: float(ratios[n].max()))
    worst = int(ratios[name].argmax())
    one, other = steps[name][worst], steps[name][swept.twice[worst]]
    what = f"{name}: {swept.names[swept.twice[worst]]}: {one:,.0f} -> {other:,.0f} us"
    measured = f"{ratios[name][worst]:.2f} times at most: {what}"
    rule = f"twice the requests, tokens and context may take {MOST_GROWTH} times as long at most"
    return verdict("growth", bool(ratios[name][worst] <= MOST_GROWTH), measured, rule)
