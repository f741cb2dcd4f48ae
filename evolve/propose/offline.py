"""Offline proposals: an operator drawn by weight changes a copy of a parent; deterministic in its random stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from evolve.propose.operators import (
    add,
    cross,
    drop,
    exchange,
    ground,
    interact,
    plain_terms,
    swap,
    threshold,
    with_term,
    wrap,
)
from evolve.propose.terms import Draft, draft, function_of, get, places, sites
from evolve.propose.vocabulary import EAGER, PARTS, SIZES, SWITCHES, Vocabulary
from evolve.run.config import OPERATORS
from simulator.language.bounds import kernel_factors
from simulator.language.ir import METHODS, Call, Choose, Const, Expr, Field, Function, Neg, Op, Program, rebuild
from simulator.language.measure import Caps, complaints
from simulator.language.normal import Normal, reachable
from simulator.language.simplify import lean
from simulator.schema import KERNELS

Rng = np.random.Generator
Operator = Callable[[Draft, Draft, Vocabulary, Rng], Draft | None]

# by name: what changes a method's draft. `exchange` swaps whole methods; `explain` and `prune` need a Probe.
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
BENDING = ("wrap", "threshold")  # what makes more than a sum of terms
LOOKED_AT = 32  # new terms among which `explain` chooses, and as many refinements of those that are there


class Probe(Protocol):
    """What the data say of a program (see evaluator.diagnose.explain)."""

    def gains(self, program: Program, method: str, terms: Sequence[Sequence[Expr]]) -> np.ndarray:
        """The share of the residuals that each term would take away."""

    def costs(self, program: Program) -> np.ndarray:
        """How much the residuals would grow without each constant."""


def operator_weights(given: Mapping[str, float]) -> dict[str, float]:
    """The configuration's weights, those it leaves out 0; the defaults if it gives none."""
    return {name: given.get(name, 0.0 if given else default) for name, default in OPERATORS.items()}


def propose(
    first: Program,
    second: Program,
    words: Vocabulary,
    rng: Rng,
    evolve: str = "both",
    weights: Mapping[str, float] | None = None,
    probe: Probe | None = None,
    caps: Caps | None = None,
) -> tuple[Program, str]:
    """A changed copy of `first` and the operator's name. Deterministic in `rng`.

    `evolve`: which methods may change (step, queueing, both). `weights`: relative chances of the operators. Now and
    then two changes are made at once. Without a `probe` there is neither `explain` nor `prune`, beside measured kernels
    neither `wrap` nor `threshold`; what would be larger than `caps` is drawn again.
    """
    weights = operator_weights({}) if weights is None else weights
    never = (*(() if probe else PROBING), *(BENDING if words.measured else ()))
    names = [name for name, weight in weights.items() if weight > 0 and name not in never]
    if not names:
        return first, "none"
    chances = np.array([weights[name] for name in names])
    child, done = first, []
    for _ in range(2 if rng.random() < 0.25 else 1):
        for _ in range(20):
            name = names[rng.choice(len(names), p=chances / chances.sum())]
            changed = _apply(name, child, second, words, rng, evolve, probe)
            if changed is not None and not (caps and complaints(changed, caps)):
                child = changed
                done.append(name)
                break
    return child, "+".join(done) or "none"


def _apply(
    name: str, first: Program, second: Program, words: Vocabulary, rng: Rng, evolve: str, probe: Probe | None
) -> Program | None:
    operator = CHANGES.get(name)
    if name == "exchange":
        return exchange(first, second) if evolve == "both" else None
    if name == "prune":
        return _prune(first, words, evolve, probe)
    method = {"step": "step_time", "queueing": "queueing_time"}.get(evolve) or (
        "step_time" if rng.random() < 0.8 else "queueing_time"
    )
    mine, theirs = first.function(method), second.function(method)
    if mine is None or theirs is None:
        return None
    if operator is None:
        changed = _explain(first, draft(mine), words, rng, probe)
    else:
        changed = operator(draft(mine), draft(theirs), words, rng)
    if changed is None or _repeats(changed.expr) or _degree(changed.expr) > 1:
        return None
    new = function_of(changed)
    if words.measured and not _corrects(new):
        return None
    known = {f.name: f for f in first.functions} | {method: new}
    return Program(tuple(known[m] for m in METHODS if m in known), "")


def _explain(program: Program, mine: Draft, words: Vocabulary, rng: Rng, probe: Probe | None) -> Draft | None:
    """Of several new terms, and of its own times another factor, the one that explains most of what the program gets
    wrong, beside what is there. Beside measured kernels only terms that it does not have: more factors are no
    correction."""
    assert probe is not None
    own = plain_terms(mine)
    terms: list[list[Expr]] = [basis for basis in (words.basis(mine.name, rng) for _ in range(LOOKED_AT)) if basis]
    if words.measured:
        there = {frozenset(term) for term in own}
        terms = [term for term in terms if frozenset(term) not in there]
    else:
        for _ in range(LOOKED_AT if own else 0):
            factor = words.basis(mine.name, rng)
            terms.append([*own[rng.integers(len(own))], *factor[: 2 if rng.random() < 0.5 else 1]])
    if not terms:
        return None
    gains = probe.gains(program, mine.name, terms)
    best = int(gains.argmax())
    return with_term(mine, terms[best], words) if gains[best] > 0.0 else None


# What grows with the tokens that running requests have in their context.
_CONTEXT = frozenset(
    [
        "kv_sum",
        "kv_mean",
        "kv_max",
        "kv_decode_sum",
        "kv_decode_mean",
        "kv_decode_max",
        "kv_read_us",
        "decode_kv_read_us",
        "decode_attention_us",
        "kernel_decode_attention_us",
        "kernel_us",
        "attention_flops",
        "total_flops",
        "total_bytes",
    ]
)


def _degree(expr: Expr) -> int:
    """The degree of a step in the contexts of its requests, 2 for whatever is no polynomial. Attention reads every
    token of a context once, so offline proposals keep to 1; replays then remember steps as lines, too."""
    match expr:
        case Field("b", name):
            return 2 if name == "kv_var" else int(name in _CONTEXT)
        case Neg(value):
            return _degree(value)
        case Op("*", left, right):
            return _degree(left) + _degree(right)
        case Op("/", left, right):
            return 2 if _degree(right) else _degree(left)
        case Op(_, left, right):
            return max(_degree(left), _degree(right))
        case Call("max" | "min", args):
            return max(map(_degree, args))
        case Call(_, args):
            return 2 * max(map(_degree, args))
        case Choose(_, then, other):
            return max(_degree(then), _degree(other))
    return 0


_SIZES = frozenset(f"s.{name}" for name in SIZES)
_SWITCHES = frozenset(f"s.{name}" for name in SWITCHES)
_EAGER = frozenset((f"b.{name}", "b.uncaptured") for name in EAGER)
_PARTS = frozenset(f"b.{name}" for name in PARTS)


def _corrects(function: Function) -> bool:
    """Whether the method is a sum of measured kernels and of corrections: one count of the batch, one size of the model
    and its switches. All kernels, or none, each in every step: what the runs at hand would not miss, other models do.
    Those of many launches may stand once more for steps without a captured graph. Products of several counts or sizes,
    floors, roots and logarithms hold for the measured models only: a few models cannot tell them apart."""
    normal = Normal(expand=False)
    root = normal.function(function)
    seen: set[tuple[str, ...]] = set()
    if any(normal.atoms[i].kind not in ("const", "field") for i in reachable(normal, root)):
        return False
    for m, _ in root:
        fields = [normal.atoms[i].name for i, _ in m if normal.atoms[i].kind == "field"]
        if any(power != 1 for i, power in m if normal.atoms[i].kind == "field"):
            return False
        if any(name[2:] in KERNELS for name in fields):
            kernel = tuple(sorted(fields))
            if kernel in seen or (len(kernel) > 1 and kernel not in _EAGER):
                return False
            seen.add(kernel)
            continue
        counts = [name for name in fields if name not in _SIZES | _SWITCHES]
        if len(counts) > 1 or "b.uncaptured" in counts or sum(name in _SIZES for name in fields) > 1:
            return False
        if function.name == "queueing_time" and len(fields) > 1:
            return False
    return not seen or {kernel[0] for kernel in seen if len(kernel) == 1} >= _PARTS


def _prune(program: Program, words: Vocabulary, evolve: str, probe: Probe | None) -> Program | None:
    """Without the constant that the data would miss least, and the terms it multiplies. Kernels are not offered."""
    assert probe is not None
    methods = ("step_time", "queueing_time") if evolve == "both" else (f"{evolve}_time",)
    offered = np.array([f.name in methods and c.value > 0.0 for f in program.functions for c in f.constants])
    if words.measured:
        offered &= ~np.array(kernel_factors(program))
    if sum(offered) < 2:
        return None
    cost = np.where(offered, probe.costs(program), np.inf)
    theta = list(program.theta)
    theta[int(cost.argmin())] = 0.0
    shorter = lean(program.with_theta(tuple(theta)))
    whole = not words.measured or all(map(_corrects, shorter.functions))
    return shorter if whole and len(shorter.theta) < len(program.theta) else None


def _repeats(expr: Expr) -> bool:
    """Whether some sum has two terms that differ in their constants only: no data can tell these apart."""
    blank = rebuild(expr, lambda n: Const("?") if isinstance(n, Const) else n)
    sums = [[term for _, term in places(get(blank, site))] for site in sites(blank)]
    return any(len(set(terms)) < len(terms) for terms in sums)
