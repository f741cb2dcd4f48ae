"""Gates: checks on synthetic batches that a program must pass before it is scored.

GATES describes each gate; `finite` is INV-M-1 of docs/language.md, `monotone` is INV-M-5. Determinism and the absence
of side effects (INV-M-2, INV-M-3) need no gate: the language has neither state nor randomness.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

import numpy as np

from evaluator.judge.sweep import edges, sweep
from simulator.clock.bind import BoundAll, Deployments
from simulator.clock.vm import MAX_TICKS
from simulator.language.ir import Program
from simulator.language.opcodes import Code, assemble
from simulator.serving.experiment import Experiment

MOST_VIOLATIONS = 0.05  # of the pairs
MOST_GROWTH = 4.5  # attention over twice the tokens in twice the context is 4 times as long
PROMPTS = (1, 512, 4096, 131072)  # tokens, for queueing_time
OVERHEADS = (*(f"queueing of a prompt of {n} tokens" for n in PROMPTS), "an output token", "a completion")
ROUNDING = 1e-9  # relative: rounding in float64 is no violation
# The requirement of each gate, in the order in which `judge` applies them.
GATES = {
    "finite": "every step takes between 1 and 10^10 us, every other method between 0 and 10^10 us",
    "monotone": f"more tokens or context never take less time, except in {100 * MOST_VIOLATIONS:g} % of pairs",
    "growth": f"twice the requests, tokens and context take at most {MOST_GROWTH:g} times as long",
}

FactsByDeployment = Mapping[str, Mapping[str, float]]  # deployment, as complaints name it -> its s. fields
Theta = tuple[float, ...]  # the values of a program's constants


@dataclass(frozen=True, slots=True)
class Gate:
    """The verdict of one gate; `complaint` names the batch that fails, "" if none does."""

    name: str
    passes: bool
    measured: str
    complaint: str = ""


def deployments_of(experiments: Sequence[Experiment]) -> Deployments:
    """The distinct deployments of the experiments, under the names that complaints use."""
    deployments: dict[str, Mapping[str, float]] = {}
    for e in experiments:
        if e.facts not in deployments.values():
            name = f"{e.model} tp{e.engine.tensor_parallel}"
            others = (f"{e.id} ({n})" for n in count(2))
            deployments[next(x for x in chain((name, e.id), others) if x not in deployments)] = e.facts
    return Deployments(deployments)


def judge(code: Code, theta: Theta, deployments: Deployments) -> list[Gate]:
    """The verdicts of all gates on every deployment; of the first gate alone if a time is out of range."""
    bound = deployments.bind(code, theta)
    finite = _finite(bound, deployments.names)
    if not finite.passes:
        return [finite]
    steps_us = bound.steps_us(sweep().raw)
    if complaint := _complaint(deployments.names, sweep().names, steps_us, np.ones(len(sweep().names))):
        return [Gate("finite", False, "", complaint)]
    return [finite, _monotone(deployments.names, steps_us), _growth(deployments.names, steps_us)]


def complaints(program: Program, deployments: Deployments) -> list[str]:
    """One line for each gate that the program fails."""
    found = judge(assemble(program), program.theta, deployments)
    return [f"gate {gate.name}: {gate.complaint}" for gate in found if not gate.passes]


def finite(code: Code, theta: Theta, deployments: Deployments) -> Gate:
    """The verdict of the first gate, the only one that makes sense before the constants are fitted."""
    return _finite(deployments.bind(code, theta), deployments.names)


def verdict(name: str, passes: bool, measured: str, rule: str) -> Gate:
    """The verdict of a gate whose complaint is its measurement and the `rule` that it breaks."""
    return Gate(name, passes, measured, "" if passes else f"{measured}: {rule}")


def extreme(pick: Callable[..., Any], ratios: np.ndarray, text: Callable[[int], str]) -> tuple[float, str]:
    """The extreme ratio (`pick`: min or max), and the description of its case; equal ratios compare by description.

    `text` describes a case by its position. Only extreme cases are described.
    """
    values = ratios.ravel().tolist()
    best = pick(values)
    return best, pick(text(i) for i, x in enumerate(values) if x is best or x == best)  # `is`: NaN equals nothing


def _finite(bound: BoundAll, deployments: Sequence[str]) -> Gate:
    names, raw = edges()
    overheads_us = (bound.queueing_us(np.array(PROMPTS, dtype=float)), bound.output_token_us(), bound.completion_us())
    times_us = np.column_stack([bound.steps_us(raw), *overheads_us])
    least_us = np.repeat([1.0, 0.0], [len(names), len(OVERHEADS)])
    if complaint := _complaint(deployments, (*names, *OVERHEADS), times_us, least_us):
        return Gate("finite", False, "", complaint)
    return Gate("finite", True, f"{len(names)} batches on {len(deployments)} deployments")


def _complaint(deployments: Sequence[str], names: Sequence[str], times_us: np.ndarray, least_us: np.ndarray) -> str:
    """A complaint about the first time that the clock would clamp, or "".

    times_us: float64[deployments, names]; least_us: float64[names], 1 for a step and 0 for an overhead.
    """
    inside = (times_us >= least_us) & (times_us <= MAX_TICKS)
    if inside.all():
        return ""
    d, i = divmod(int(inside.argmin()), len(names))
    x, least = times_us[d, i], least_us[i]
    took = "gives no number" if np.isnan(x) else f"{'the step would last' if least else 'would take'} {x:g} us"
    return f"{deployments[d]}, {names[i]}: {took}: it must be finite and within {least:g} and 1e10: {_remedy(x)}"


def _remedy(x: float) -> str:
    if np.isnan(x):
        return "keep every part finite, since inf - inf, inf / inf and 0 * inf are no numbers"
    if x < 0.0:
        return "subtract less, or take the max with a constant"
    return "add a constant, or take the max with one" if x < 1.0 else "lower a constant, or let it grow more slowly"


def _monotone(deployments: Sequence[str], steps_us: np.ndarray) -> Gate:
    swept = sweep()
    one, other = steps_us[:, swept.base], steps_us[:, swept.more]
    drops = 1.0 - other / one
    wrong = int(np.count_nonzero(drops > ROUNDING))
    pairs = f"{100 * wrong / drops.size:.1f} % of {drops.size:,} pairs"
    d, i = divmod(int(drops.argmax()), len(swept.more))
    worst = f"{deployments[d]}: {swept.names[swept.more[i]]}: {_apart(one[d, i], other[d, i])} us"
    measured = f"{pairs} get shorter, worst: {worst}" if wrong else pairs
    rule = f"more work must not take less time, at most {100 * MOST_VIOLATIONS:g} % of pairs may violate this"
    return verdict("monotone", wrong < MOST_VIOLATIONS * drops.size, measured, rule)


def _growth(deployments: Sequence[str], steps_us: np.ndarray) -> Gate:
    swept = sweep()
    one, other = steps_us[:, : len(swept.twice)], steps_us[:, swept.twice]
    ratios = other / one
    d, i = divmod(int(ratios.argmax()), len(swept.twice))
    step = f"{deployments[d]}: {swept.names[swept.twice[i]]}: {one[d, i]:,.0f} -> {other[d, i]:,.0f} us"
    measured = f"{ratios[d, i]:.2f} times at most: {step}"
    rule = f"twice the requests, tokens and context may take {MOST_GROWTH} times as long at most"
    return verdict("growth", bool(ratios[d, i] <= MOST_GROWTH), measured, rule)


def _apart(one: float, other: float) -> str:
    """`ONE -> OTHER` with enough decimals to tell them apart."""
    digits = next((d for d in range(17) if f"{one:.{d}f}" != f"{other:.{d}f}"), 0)
    return f"{one:,.{digits}f} -> {other:,.{digits}f}"
