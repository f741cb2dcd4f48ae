"""Offline proposals: an operator drawn by weight changes a copy of a parent. They depend on the random stream alone.

Some forms are never proposed, because the data at hand would reward them but they do not hold elsewhere:
- A step is at most linear in the contexts of its requests, because attention reads every token of a context once.
  Replays can then also remember steps as lines.
- No sum repeats a term with another constant, because no data can tell the two constants apart.
- If kernels are measured, a method is the sum of the kernels and of corrections (see `corrects`).

A user's programs and those of language models may be of any form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Protocol

import numpy as np

from evaluator.parts import FACTOR, TERM, dropped_parts
from evolve.run.config import OPERATORS
from evolve.search.operators import add, cross, drop, exchange, ground, interact, swap, threshold, with_term, wrap
from evolve.search.vocabulary import SIZES, STEP_SWITCHES, SUMMED_KERNELS, SWITCHES, Vocabulary
from simulator.language.bounds import kernel_factors
from simulator.language.ir import METHODS, Call, Choose, Const, Expr, Field, Function, Neg, Op, Program, rebuild, walk
from simulator.language.measure import Caps, complaints
from simulator.language.normal import Normal, Polynomial, reachable, unexpanded
from simulator.language.opcodes import CONTEXT, formula
from simulator.language.simplify import lean
from simulator.language.terms import Draft, all_terms, basis_of, coefficient, draft, function_of, get, sites, summands
from simulator.schema import KERNELS, READABLE

Rng = np.random.Generator
Operator = Callable[[Draft, Draft, Vocabulary, Rng], Draft | None]

# Operators that change one method. `exchange` swaps whole methods; `explain` and `prune` need a ResidualProbe.
CHANGES: dict[str, Operator] = {f.__name__: f for f in (add, drop, swap, wrap, interact, threshold, cross, ground)}
PROBING = ("explain", "prune")
CANDIDATES = 32  # how many new terms `explain` compares, and how many refinements of existing ones
DOUBLE_CHANGE = 0.25  # the chance of two changes in one proposal
DRAWS = 20  # of an operator, until one makes a change within the caps

_SIZES = frozenset(f"s.{name}" for name in SIZES)
_SWITCHES = frozenset((*(f"s.{name}" for name in SWITCHES), *(f"b.{name}" for name in STEP_SWITCHES)))
ISSUE, SCHEDULE = Field("s", "issue_us"), "s.schedule_us"
_SUMMED_KERNELS = frozenset(f"b.{name}" for name in SUMMED_KERNELS)


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
    Without a `probe`, `explain` and `prune` are never used. A change that would exceed `caps` is drawn again.
    """
    weights = operator_weights({}) if weights is None else weights
    unusable = () if probe else PROBING
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
    droppable = np.array([f.name in methods and c.value != 0.0 for f in program.functions for c in f.constants])
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


def simpler(program: Program, measured: bool) -> list[Program]:
    """The program without each term, and without each factor of a measured kernel, in turn.

    measured: only sums of measured kernels and corrections, as operators make them.
    """
    forms = [part.program for part in dropped_parts(program) if part.kind in (TERM, FACTOR) and part.program]
    return [form for form in forms if not measured or all(map(corrects, form.functions))]


# restrictions


def context_degree(expr: Expr) -> int:
    """The degree of an expression as a polynomial in the contexts of the requests; 2 if it is not a polynomial."""
    match expr:
        case Field("b", name):
            return 2 if name == "kv_var" else int(_grows_with_contexts(name))
        case Neg(value):
            return context_degree(value)
        case Op("*", left, right):
            return context_degree(left) + context_degree(right)
        case Op("/", left, right):
            return 2 if context_degree(right) else context_degree(left)
        case Op(_, left, right):
            return max(context_degree(left), context_degree(right))
        case Call("max" | "min", args):
            return max(map(context_degree, args))
        case Call(_, args):
            return 2 * max(map(context_degree, args))
        case Choose(_, then, other):
            return max(context_degree(then), context_degree(other))
    return 0


@cache
def _grows_with_contexts(name: str) -> bool:
    """True if a batch field grows with the tokens in the contexts of the running requests, as its formula says."""
    field = READABLE["b", name]
    if not (field.at or field.formula):
        return name in CONTEXT
    return any(n.scope == "b" and _grows_with_contexts(n.name) for n in walk(formula(name)) if isinstance(n, Field))


def repeats_a_term(expr: Expr) -> bool:
    """True if a sum has two terms that differ only in their constants."""
    blank = rebuild(expr, lambda n: Const("?") if isinstance(n, Const) else n)
    sums = [[term for _, term in summands(get(blank, site))] for site in sites(blank)]
    return any(len(set(terms)) < len(terms) for terms in sums)


def _without_floor(function: Function) -> Function:
    """The method without `max(..., s.issue_us)` around its result."""
    result = function.result
    if isinstance(result, Call) and result.name == "max" and len(result.args) == 2 and result.args[1] == ISSUE:
        return replace(function, result=result.args[0])
    return function


def corrects(function: Function) -> bool:
    """True if a method is a sum of measured kernels and of corrections.

    A correction multiplies at most one count of the batch, one size of the model, and switches; or a kernel and
    switches. It may bend: a root, a logarithm, a power, a limit or a choice of such products. Products of several
    counts or sizes fit the measured models only: a few models cannot tell them apart.

    Either every kernel is in the sum, once in every step, or none is: the runs at hand may not need a kernel that other
    models do. A sum of kernels has the time that the GPU waits for the scheduler, and as a floor the one that the host
    needs to issue a step: no run at hand shows either, and other engines and models do.
    """
    summed = _without_floor(function)
    normal, root = unexpanded(summed)
    kernels, scheduled = set[tuple[str, ...]](), False
    for powers, _ in root:
        factors = [(normal.atoms[i].name, power) for i, power in powers if normal.atoms[i].kind == "field"]
        fields = [name for name, _ in factors]
        if any(power != 1 for _, power in factors) or f"{ISSUE.scope}.{ISSUE.name}" in fields:
            return False
        switches = [name for name in fields if name in _SWITCHES]
        if SCHEDULE in fields:
            if powers != ((powers[0][0], 1),):
                return False
            scheduled = True
            continue
        if any(name[2:] in KERNELS for name in fields):
            kernel = tuple(sorted(fields))
            if kernel in kernels or len(fields) - len(switches) != 1:
                return False
            kernels.add(kernel)
            continue
        counts = [name for name in fields if name not in _SIZES | _SWITCHES]
        if len(counts) > 1 or sum(name in _SIZES for name in fields) > 1:
            return False
        if function.name == "queueing_time" and len(fields) - len(switches) > 1:
            return False
    bent = {normal.atoms[i].name for i in _inside(normal, root)}
    if any(name[2:] in KERNELS or name == f"{ISSUE.scope}.{ISSUE.name}" for name in bent):
        return False  # a kernel that bends is no measurement
    every = {kernel[0] for kernel in kernels if len(kernel) == 1} >= _SUMMED_KERNELS
    return not kernels or (every and scheduled and summed is not function)


def _inside(normal: Normal, root: Polynomial) -> set[int]:
    """The atoms that are reached from the root only through another one: inside a call or a choice."""
    top = {i for powers, _ in root for i, _ in powers}
    return {i for i in reachable(normal, root) if i not in top} | {
        j for i in top for arg in normal.atoms[i].args for powers, _ in arg for j, _ in powers
    }
