"""Offline proposals: an operator drawn by weight changes a copy of a parent. They depend on the random stream alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from evolve.run.config import OPERATORS
from evolve.search.operators import add, cross, drop, exchange, ground, interact, swap, threshold, with_term, wrap
from evolve.search.restrictions import context_degree, corrects, repeats_a_term
from evolve.search.vocabulary import Vocabulary
from simulator.language.bounds import kernel_factors
from simulator.language.ir import METHODS, Expr, Program
from simulator.language.measure import Caps, complaints
from simulator.language.simplify import lean
from simulator.language.terms import Draft, all_terms, basis_of, coefficient, draft, function_of

Rng = np.random.Generator
Operator = Callable[[Draft, Draft, Vocabulary, Rng], Draft | None]

# Operators that change one method. `exchange` swaps whole methods; `explain` and `prune` need a ResidualProbe.
CHANGES: dict[str, Operator] = {
    "add": add,
    "drop": drop,
    "swap": swap,
    "wrap": wrap,
    "interact": interact,
    "threshold": threshold,
    "cross": cross,
    "ground": ground,
}
PROBING = ("explain", "prune")
BENDING = ("wrap", "threshold")  # these make more than a sum of terms
CANDIDATES = 32  # how many new terms `explain` compares, and how many refinements of existing ones
DOUBLE_CHANGE = 0.25  # the chance of two changes in one proposal
DRAWS = 20  # of an operator, until one makes a change within the caps


class ResidualProbe(Protocol):
    """The residuals of programs (see evaluator.diagnose.explain)."""

    def gains(self, program: Program, method: str, terms: Sequence[Sequence[Expr]]) -> np.ndarray:
        """The share of the residuals that each term would remove."""

    def costs(self, program: Program) -> np.ndarray:
        """The growth of the residuals without each constant."""


def operator_weights(given: Mapping[str, float]) -> dict[str, float]:
    """The configuration's weights, 0 for operators that it leaves out; the defaults if it gives none."""
    return {name: given.get(name, 0.0 if given else default) for name, default in OPERATORS.items()}


def propose(
    first: Program,
    second: Program,
    words: Vocabulary,
    rng: Rng,
    evolve: str = "both",
    weights: Mapping[str, float] | None = None,
    probe: ResidualProbe | None = None,
    caps: Caps | None = None,
) -> tuple[Program, str]:
    """A changed copy of `first`, and the name of the operator, or of both as `add+drop`. Deterministic in `rng`.

    `evolve` says which methods may change (step, queueing, both), `weights` are relative chances of the operators.
    Without a `probe`, `explain` and `prune` are never used; with measured kernels, `wrap` and `threshold` are not. A
    change that would exceed `caps` is drawn again.
    """
    weights = operator_weights({}) if weights is None else weights
    unusable = {*(() if probe else PROBING), *(BENDING if words.measured else ())}
    names = [name for name, weight in weights.items() if weight > 0 and name not in unusable]
    if not names:
        return first, "none"
    chances = np.array([weights[name] for name in names])
    child, used = first, []
    for _ in range(2 if rng.random() < DOUBLE_CHANGE else 1):
        for _ in range(DRAWS):
            name = names[rng.choice(len(names), p=chances / chances.sum())]
            changed = _apply(name, child, second, words, rng, evolve, probe)
            if changed is not None and not (caps and complaints(changed, caps)):
                child = changed
                used.append(name)
                break
    return child, "+".join(used) or "none"


def _apply(
    name: str, first: Program, second: Program, words: Vocabulary, rng: Rng, evolve: str, probe: ResidualProbe | None
) -> Program | None:
    """`first` after one operator; None if it cannot be applied, or makes what the restrictions forbid."""
    if name == "exchange":
        return exchange(first, second) if evolve == "both" else None
    if name == "prune":
        return _prune(first, words, evolve, probe)
    method = {"step": "step_time", "queueing": "queueing_time"}.get(evolve) or (
        "step_time" if rng.random() < 0.8 else "queueing_time"
    )
    ours, theirs = first.function(method), second.function(method)
    if ours is None or theirs is None:
        return None
    if name == "explain":
        changed = _explain(first, draft(ours), words, rng, probe)
    else:
        changed = CHANGES[name](draft(ours), draft(theirs), words, rng)
    if changed is None or repeats_a_term(changed.expr) or context_degree(changed.expr) > 1:
        return None
    new = function_of(changed)
    if words.measured and not corrects(new):
        return None
    functions = {f.name: f for f in first.functions} | {method: new}
    return Program(tuple(functions[m] for m in METHODS if m in functions), "")


def _explain(program: Program, ours: Draft, words: Vocabulary, rng: Rng, probe: ResidualProbe | None) -> Draft | None:
    """The draft with the term that explains most of the program's residuals; None if no candidate explains any.

    Candidates are new terms, and terms that it has times another factor. With measured kernels they are only terms that
    it does not have yet, because a product with another factor is no correction.
    """
    assert probe is not None
    existing = [basis for _, term in all_terms(ours.expr) if coefficient(term) and (basis := basis_of(term))]
    drawn = (words.basis(ours.name, rng) for _ in range(CANDIDATES))
    candidates: list[list[Expr]] = [basis for basis in drawn if basis]
    if words.measured:
        present = {frozenset(basis) for basis in existing}
        candidates = [basis for basis in candidates if frozenset(basis) not in present]
    else:
        for _ in range(CANDIDATES if existing else 0):
            factor = words.basis(ours.name, rng)
            candidates.append([*existing[rng.integers(len(existing))], *factor[: 2 if rng.random() < 0.5 else 1]])
    if not candidates:
        return None
    gains = probe.gains(program, ours.name, candidates)
    best = int(gains.argmax())
    return with_term(ours, candidates[best], words) if gains[best] > 0.0 else None


def _prune(program: Program, words: Vocabulary, evolve: str, probe: ResidualProbe | None) -> Program | None:
    """The program without the constant that the data would miss least, and without the terms that it multiplies.

    Coefficients of measured kernels are never dropped.
    """
    assert probe is not None
    methods = ("step_time", "queueing_time") if evolve == "both" else (f"{evolve}_time",)
    droppable = np.array([f.name in methods and c.value > 0.0 for f in program.functions for c in f.constants])
    if words.measured:
        droppable &= ~np.array(kernel_factors(program))
    if sum(droppable) < 2:
        return None
    cost = np.where(droppable, probe.costs(program), np.inf)
    theta = list(program.theta)
    theta[int(cost.argmin())] = 0.0
    shorter = lean(program.with_theta(tuple(theta)))
    allowed = not words.measured or all(map(corrects, shorter.functions))
    return shorter if allowed and len(shorter.theta) < len(program.theta) else None
