"""Offline proposals: an operator drawn by weight changes a copy of a parent; deterministic in its random stream."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from evolve.operators import add, cross, drop, exchange, ground, interact, swap, threshold, wrap
from evolve.terms import Draft, draft, function_of, get, places, sites
from evolve.vocabulary import Vocabulary
from simulator.language.ir import METHODS, Const, Expr, Program, rebuild

Rng = np.random.Generator
Operator = Callable[[Draft, Draft, Vocabulary, Rng], Draft | None]

# Relative weights. Symbolic regression tools spend most on growing, some on pruning, little on whole-module exchange.
OPERATORS: dict[str, tuple[Operator | None, float]] = {
    "add": (add, 0.18),
    "drop": (drop, 0.12),
    "swap": (swap, 0.12),
    "wrap": (wrap, 0.12),
    "interact": (interact, 0.10),
    "threshold": (threshold, 0.08),
    "cross": (cross, 0.10),
    "exchange": (None, 0.03),
    "ground": (ground, 0.06),
}


def propose(
    first: Program,
    second: Program,
    words: Vocabulary,
    rng: Rng,
    evolve: str = "both",
    weights: dict[str, float] | None = None,
) -> tuple[Program, str]:
    """A changed copy of `first` and the operator's name. Deterministic in `rng`.

    `evolve`: which methods may change (step, queueing, both). Now and then two changes are made at once.
    """
    weights = {name: (weights or {}).get(name, 0.0 if weights else default) for name, (_, default) in OPERATORS.items()}
    names = [name for name, weight in weights.items() if weight > 0]
    chances = np.array([weights[name] for name in names])
    child, done = first, []
    for _ in range(2 if rng.random() < 0.25 else 1):
        for _ in range(20):
            name = names[rng.choice(len(names), p=chances / chances.sum())]
            changed = _apply(name, child, second, words, rng, evolve)
            if changed is not None:
                child = changed
                done.append(name)
                break
    return child, "+".join(done) or "none"


def _apply(name: str, first: Program, second: Program, words: Vocabulary, rng: Rng, evolve: str) -> Program | None:
    operator = OPERATORS[name][0]
    if operator is None:
        return exchange(first, second) if evolve == "both" else None
    method = {"step": "step_time", "queueing": "queueing_time"}.get(evolve) or (
        "step_time" if rng.random() < 0.8 else "queueing_time"
    )
    mine, theirs = first.function(method), second.function(method)
    if mine is None or theirs is None:
        return None
    changed = operator(draft(mine), draft(theirs), words, rng)
    if changed is None or _repeats(changed.expr):
        return None
    new = function_of(changed)
    known = {f.name: f for f in first.functions} | {method: new}
    return Program(tuple(known[m] for m in METHODS if m in known), "")


def _repeats(expr: Expr) -> bool:
    """Whether some sum has two terms that differ in their constants only: no data can tell these apart."""
    blank = rebuild(expr, lambda n: Const("?") if isinstance(n, Const) else n)
    sums = [[term for _, term in places(get(blank, site))] for site in sites(blank)]
    return any(len(set(terms)) < len(terms) for terms in sums)
