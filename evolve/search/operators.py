"""Typed offline operators: each turns one draft (and perhaps a second one) into a new draft, or None if it cannot.

They edit sums of terms, the shape of latency formulas, and keep the units consistent. A new constant gets the unit that
turns its term into microseconds, and a start value that makes the term a few percent of a typical step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from evolve.search.vocabulary import STEP_SWITCHES, Vocabulary
from simulator.language import units
from simulator.language.infer import unit_of
from simulator.language.ir import (
    Call,
    Choose,
    Compare,
    Const,
    Constant,
    Expr,
    Field,
    Neg,
    Number,
    Op,
    Program,
    rebuild,
    walk,
)
from simulator.language.terms import (
    US,
    Draft,
    all_fields,
    all_terms,
    basis_of,
    coefficient,
    coefficient_unit,
    factors,
    fresh,
    get,
    join,
    product,
    sites,
    split,
    stem,
)
from simulator.schema import KERNELS, marked

Rng = np.random.Generator
T = TypeVar("T")

_KERNELS = frozenset(Field("b", name) for name in KERNELS)
_THRESHOLDS, _PRESENT, _COUNTS = (
    frozenset(Field(f.scope, f.name) for f in marked(mark)) for mark in ("threshold", "presence", "count")
)
_SWITCHES = frozenset((*(Field(f.scope, f.name) for f in marked("switch")), *(Field("b", n) for n in STEP_SWITCHES)))
BENDS = ("sqrt", "log1p", "pow")
HALF, POWERS = 0.5, (0.0, 2.0)  # of a new power: start value and bounds
TYPICAL_STEP_US = 1e4
NEW_SHARE = 0.03  # start value of a new term, as a share of a typical step
FLOOR_US = 2000.0  # start value of a new floor


def add(d: Draft, other: Draft, words: Vocabulary, rng: Rng) -> Draft | None:
    """Add a new term to one of the sums."""
    site = _pick(sites(d.expr), rng)
    d, term = _new_term(d, words.basis(d.name, rng), words)
    return d.with_part(site, Op("+", get(d.expr, site), term))


def with_term(d: Draft, basis: Sequence[Expr], words: Vocabulary) -> Draft:
    """The draft plus `coefficient * basis`, with a new coefficient."""
    d, term = _new_term(d, basis, words)
    return replace(d, expr=Op("+", d.expr, term))


def drop(d: Draft, other: Draft, words: Vocabulary, rng: Rng) -> Draft | None:
    """Drop a term, or an argument of a max or min."""
    return _edit_site(d, rng, lambda parts: _without(parts, rng) if len(parts) > 1 else _unwrapped(parts, rng))


def swap(d: Draft, other: Draft, words: Vocabulary, rng: Rng) -> Draft | None:
    """Replace a field by another one of the same unit."""
    replaceable = [(path, field) for path, field in all_fields(d.expr) if words.alike(field, d.name)]
    if not replaceable:
        return None
    path, field = replaceable[rng.integers(len(replaceable))]
    choices = words.alike(field, d.name)
    return d.with_part(path, choices[rng.integers(len(choices))])


def wrap(d: Draft, other: Draft, words: Vocabulary, rng: Rng) -> Draft | None:
    """Put a floor under a sum, take the larger or smaller of its two parts, or a factor's root, logarithm or power."""
    kind = _pick(["floor", "max", "min", "sqrt", "log1p", "pow"], rng, [0.15, 0.3, 0.05, 0.2, 0.15, 0.15])
    if kind in BENDS:
        return _wrap_factor(d, kind, words, rng)
    site = _pick(sites(d.expr), rng)
    inside = get(d.expr, site)
    if kind == "floor":
        floor = Constant(fresh(d, "floor"), FLOOR_US, US)
        return d.with_constant(floor).with_part(site, Call("max", (Const(floor.name), inside)))
    parts = split(inside)
    if len(parts) < 2:
        return None
    chosen = rng.random(len(parts)) < 0.5
    if chosen.all() or not chosen.any():  # both parts need a term
        chosen[0] = not chosen[0]
    groups = [join([p for p, c in zip(parts, chosen, strict=True) if c == side]) for side in (True, False)]
    return d.with_part(site, Call(kind, tuple(groups)))


def interact(d: Draft, other: Draft, words: Vocabulary, rng: Rng) -> Draft | None:
    """Multiply a term by another factor: a deployment scale or a batch count. Measured kernels are left unchanged."""
    scalable = [
        path
        for path, term in all_terms(d.expr)
        if coefficient(term) is not None and not (words.measured and _KERNELS.intersection(factors(term)))
    ]
    if not scalable:
        return None
    path = _pick(scalable, rng)
    old = get(d.expr, path)
    extra: list[Expr]
    if words.scales and rng.random() < 0.5:
        extra = list(words.scales[rng.integers(len(words.scales))])
    else:
        counts = [f for f in words.fields(d.name) if f in _COUNTS]
        if not counts:
            return None
        extra = [counts[rng.integers(len(counts))]]
    if any(e in factors(old) for e in extra):
        return None
    d, term = _new_term(d, [*basis_of(old), *extra], words)
    return d.with_part(path, term)


def threshold(d: Draft, other: Draft, words: Vocabulary, rng: Rng) -> Draft | None:
    """Give a term another coefficient on the other side of a threshold."""
    paths = [path for path, term in all_terms(d.expr) if coefficient(term) is not None]
    counts = [f for f in words.fields(d.name) if f in _THRESHOLDS]
    if not paths or not counts:
        return None
    path, field = _pick(paths, rng), counts[rng.integers(len(counts))]
    term = get(d.expr, path)
    limit: Expr = Number(0.0)
    if field not in _PRESENT:
        name = fresh(d, f"{field.name}_limit")
        size = words.typical[field.scope, field.name] * float(rng.choice([0.25, 0.5, 1.0, 1.5]))
        d = d.with_constant(Constant(name, _round(size), unit_of(field, {})))
        limit = Const(name)
    d, twin = _new_term(d, basis_of(term), words, like=term)
    return d.with_part(path, Choose(Compare(">", field, limit), twin, term))


def cross(d: Draft, other: Draft, words: Vocabulary, rng: Rng) -> Draft | None:
    """Take a term from the other parent, as an addition or in place of an existing term."""
    donors = [term for _, term in all_terms(other.expr) if term not in split(d.expr)]
    if not donors:
        return None
    d, term = _adopt(d, _pick(donors, rng), other)
    if rng.random() < 0.5:
        return _edit_site(d, rng, lambda parts: [*parts, term])
    return _edit_site(d, rng, lambda parts: [*_without(parts, rng), term] if len(parts) > 1 else None)


def ground(d: Draft, other: Draft, words: Vocabulary, rng: Rng) -> Draft | None:
    """Turn a constant into a field or back: fix or free a coefficient, or tie a bare constant to a deployment field."""
    path, term = _pick(all_terms(d.expr), rng)
    basis = basis_of(term)
    if not basis:  # a bare constant becomes proportional to something of the deployment
        anchors = [f for f in words.fields(d.name) if f.scope == "s" and unit_of(f, {}) == US]
        extra: list[Expr] = []
        if anchors and rng.random() < 0.5:
            extra = [_pick(anchors, rng)]
        elif words.scales:
            extra = list(words.scales[rng.integers(len(words.scales))])
        if not extra:
            return None
        d, new = _new_term(d, extra, words, like=term)
    elif len(basis) < len(factors(term)):
        if coefficient_unit(basis, d.constants) == units.ONE:
            new = product(basis)
        else:  # without its coefficient it is not in microseconds, so a bare constant takes its place
            if any(isinstance(f, Field) and f.scope == "b" for f in basis):
                return None
            base = Constant(fresh(d, "base"), _round(abs(_size(term, d, words))), US)
            d, new = d.with_constant(base), Const(base.name)
    else:
        if isinstance(term, (Call, Choose, Number, Neg)) or any(isinstance(n, Const) for n in walk(term)):
            return None  # it has a constant already
        d, new = _new_term(d, basis, words, like=term)
    return d.with_part(path, new)


def exchange(a: Program, b: Program) -> Program | None:
    """The step time of one parent with the overheads of the other."""
    step, rest = a.function("step_time"), [f for f in b.functions if f.name != "step_time"]
    assert step is not None
    child = Program((step, *rest), "")
    return child if child.functions != a.functions else None


def _pick(items: Sequence[T], rng: Rng, chances: Sequence[float] | None = None) -> T:
    return items[rng.choice(len(items), p=chances)]


def _round(x: float) -> float:
    return float(f"{x:.6g}")


def _size(node: Expr, d: Draft, words: Vocabulary) -> float:
    return words.size(node, {c.name: c.value for c in d.constants.values()})


def _new_term(d: Draft, basis: Sequence[Expr], words: Vocabulary, like: Expr | None = None) -> tuple[Draft, Expr]:
    """`coefficient * basis` with a new coefficient. The term is as large as `like`, or a small share of a step."""
    size = abs(_size(product(basis), d, words)) if basis else 1.0
    goal = abs(_size(like, d, words)) if like is not None else NEW_SHARE * TYPICAL_STEP_US
    value = goal / size if size > 0 else 1.0
    value = _round(min(max(value, 1e-9), 1e9))
    constant = Constant(fresh(d, stem(basis)), value, coefficient_unit(basis, d.constants))
    return d.with_constant(constant), product([Const(constant.name), *basis])


def _edit_site(d: Draft, rng: Rng, change: Callable[[list[Expr]], list[Expr] | None]) -> Draft | None:
    """The draft with the terms of one of its sums changed; None if `change` leaves nothing."""
    site = _pick(sites(d.expr), rng)
    parts = change(split(get(d.expr, site)))
    return d.with_part(site, join(parts)) if parts else None


def _without(parts: list[Expr], rng: Rng) -> list[Expr]:
    dropped = rng.integers(len(parts))
    return [p for i, p in enumerate(parts) if i != dropped]


def _unwrapped(parts: list[Expr], rng: Rng) -> list[Expr] | None:
    """A lone max or min with one argument fewer, or one branch of a lone conditional."""
    match parts:
        case [Call("max" | "min" as name, args)]:
            kept = _without(list(args), rng)
            return [kept[0] if len(kept) == 1 else Call(name, tuple(kept))]
        case [Choose(_, then, other)]:
            return [then if rng.random() < 0.5 else other]
    return None


def _wrap_factor(d: Draft, call: str, words: Vocabulary, rng: Rng) -> Draft | None:
    """Turn `c * f` into `c'` times the root, logarithm or power of `f / norm`, a pure number. 0 and 1 have none."""
    wrappable = [
        (path, term, i)
        for path, term in all_terms(d.expr)
        if coefficient(term) is not None
        for i, part in enumerate(factors(term))
        if isinstance(part, Field) and part not in _SWITCHES
        if unit_of(part, {}) == units.ONE or words.norm(part) is not None
    ]
    if not wrappable:
        return None
    path, old, i = wrappable[rng.integers(len(wrappable))]
    parts = factors(old)
    field = parts[i]
    assert isinstance(field, Field)
    argument: Expr = field if unit_of(field, {}) == units.ONE else Op("/", field, words.norm(field))  # type: ignore[arg-type]
    bent = Call(call, (argument,))
    if call == "pow":
        power = Constant(fresh(d, "power"), HALF, units.ONE, POWERS)
        d, bent = d.with_constant(power), Call(call, (argument, Const(power.name)))
    basis = [bent if j == i else p for j, p in enumerate(parts) if not isinstance(p, Const)]
    d, term = _new_term(d, basis, words, like=old)
    return d.with_part(path, term)


def _adopt(d: Draft, term: Expr, donor: Draft) -> tuple[Draft, Expr]:
    """The donor's term, with its constants declared in the draft under fresh names."""
    names: dict[str, str] = {}

    def rename(node: Expr) -> Expr:
        nonlocal d
        if not isinstance(node, Const):
            return node
        if node.name not in names:
            names[node.name] = fresh(d, node.name)
            d = d.with_constant(replace(donor.constants[node.name], name=names[node.name]))
        return Const(names[node.name])

    term = rebuild(term, rename)
    return d, term
