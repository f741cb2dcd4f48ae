"""Typed offline operators: each turns one draft (and perhaps a second) into a new one, or None.

They edit sums of terms, the shape that latency formulas have, and keep units sound: a new constant gets the unit
that makes its term microseconds, and a start value that makes it a few percent of a typical step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from evolve.propose.terms import (
    US,
    Draft,
    Path,
    draft,
    factors,
    fresh,
    function_of,
    get,
    join,
    places,
    product,
    put,
    sites,
    split,
    stem,
)
from evolve.propose.vocabulary import Vocabulary, coefficient_unit
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
    Function,
    Neg,
    Number,
    Op,
    Program,
    rebuild,
    walk,
)
from simulator.schema import KERNELS

Rng = np.random.Generator
_KERNELS = frozenset(Field("b", name) for name in KERNELS)
_THRESHOLDS = ("prefill_reqs", "prefill_tokens", "batch_size", "tokens", "kv_mean", "kv_sum", "decode_reqs")
NEW_SHARE = 0.03  # of a typical step: the start value of a new term


def add(d: Draft, other: Draft, words: Vocabulary, rng: Rng) -> Draft | None:
    """A new term in one of the sums."""
    site = _pick(sites(d.expr), rng)
    d, term = _new_term(d, words.basis(d.name, rng), words)
    return replace(d, expr=put(d.expr, site, Op("+", get(d.expr, site), term)))


def with_term(d: Draft, basis: Sequence[Expr], words: Vocabulary) -> Draft:
    """`coefficient * basis` added to the whole, the coefficient new."""
    d, term = _new_term(d, basis, words)
    return replace(d, expr=Op("+", d.expr, term))


def named(function: Function) -> Function:
    """The function with the constants of plain terms named after what they multiply: changes leave old names behind."""
    d = draft(function)
    renamed: dict[str, str] = {}
    for _, term in _terms(d.expr):
        coefficient = _coefficient(term, d)
        basis = [f for f in factors(term) if not isinstance(f, Const)]
        if coefficient is not None and basis:
            renamed[coefficient.name] = stem(basis)
    out: dict[str, Constant] = {}
    for old, constant in d.constants.items():
        rest = replace(d, constants={**out, **{n: c for n, c in d.constants.items() if n not in renamed}})
        name = fresh(rest, renamed[old]) if old in renamed else old
        out[name] = replace(constant, name=name)
        renamed[old] = name
    expr = rebuild(d.expr, lambda n: Const(renamed[n.name]) if isinstance(n, Const) else n)
    return function_of(Draft(d.name, expr, out), function.doc)


def plain_terms(d: Draft) -> list[list[Expr]]:
    """The factors beside the coefficient of every plain `constant * fields` term."""
    found = (factors(t) for _, t in _terms(d.expr) if _coefficient(t, d) is not None)
    bare: list[list[Expr]] = [[f for f in parts if not isinstance(f, Const)] for parts in found]
    return [parts for parts in bare if parts]


def drop(d: Draft, other: Draft, words: Vocabulary, rng: Rng) -> Draft | None:
    """One term less, or one argument of a max or min less."""
    return _edit_site(d, rng, lambda parts: _without(parts, rng) if len(parts) > 1 else _unwrapped(parts, rng))


def swap(d: Draft, other: Draft, words: Vocabulary, rng: Rng) -> Draft | None:
    """Another field of the same unit in a term."""
    found = [(path, term) for path, term in _leaves(d.expr) if isinstance(term, Field) and words.alike(term, d.name)]
    if not found:
        return None
    path, field = found[rng.integers(len(found))]
    assert isinstance(field, Field)
    choice = words.alike(field, d.name)
    return replace(d, expr=put(d.expr, path, choice[rng.integers(len(choice))]))


def wrap(d: Draft, other: Draft, words: Vocabulary, rng: Rng) -> Draft | None:
    """A floor under a sum, the larger or smaller of two parts, or a root or logarithm of a factor."""
    kind = _pick(["floor", "max", "min", "sqrt", "log1p"], rng, [0.15, 0.3, 0.05, 0.25, 0.25])
    if kind in ("sqrt", "log1p"):
        return _wrap_factor(d, kind, words, rng)
    site = _pick(sites(d.expr), rng)
    inside = get(d.expr, site)
    if kind == "floor":
        name = fresh(d, "floor")
        d = replace(d, constants={**d.constants, name: Constant(name, 2000.0, US)})
        return replace(d, expr=put(d.expr, site, Call("max", (Const(name), inside))))
    parts = split(inside)
    if len(parts) < 2:
        return None
    chosen = rng.random(len(parts)) < 0.5
    if chosen.all() or not chosen.any():
        chosen[0] = not chosen[0]
    groups = [join([p for p, c in zip(parts, chosen, strict=True) if c == side]) for side in (True, False)]
    return replace(d, expr=put(d.expr, site, Call(kind, tuple(groups))))


def interact(d: Draft, other: Draft, words: Vocabulary, rng: Rng) -> Draft | None:
    """A term multiplied by one more factor: a deployment scale or a batch count. Measured kernels stay as they are."""
    scalable = [
        p
        for p, t in _terms(d.expr)
        if _coefficient(t, d) is not None and not (words.measured and _KERNELS.intersection(factors(t)))
    ]
    if not scalable:
        return None
    path = _pick(scalable, rng)
    old = factors(get(d.expr, path))
    extra: list[Expr]
    if words.scales and rng.random() < 0.5:
        extra = list(words.scales[rng.integers(len(words.scales))])
    else:
        counts = [
            f for f in words.fields(d.name) if f.name in ("batch_size", "tokens", "tp_log2", "layers", "prefill_reqs")
        ]
        if not counts:
            return None
        extra = [counts[rng.integers(len(counts))]]
    if any(e in old for e in extra):
        return None
    basis = [f for f in old if not isinstance(f, Const)]
    d, term = _new_term(d, [*basis, *extra], words)
    return replace(d, expr=put(d.expr, path, term))


def threshold(d: Draft, other: Draft, words: Vocabulary, rng: Rng) -> Draft | None:
    """A term that has another coefficient on the other side of a threshold."""
    found = [p for p, t in _terms(d.expr) if _coefficient(t, d) is not None]
    counts = [f for f in words.fields(d.name) if f.scope == "b" and f.name in _THRESHOLDS]
    if not found or not counts:
        return None
    path, field = _pick(found, rng), counts[rng.integers(len(counts))]
    term = get(d.expr, path)
    limit: Expr = Number(0.0)
    if not field.name.startswith("prefill"):
        name = fresh(d, f"{field.name}_limit")
        size = words.typical[field.scope, field.name] * float(rng.choice([0.25, 0.5, 1.0, 1.5]))
        d = replace(d, constants={**d.constants, name: Constant(name, _round(size), unit_of(field, {}))})
        limit = Const(name)
    d, twin = _new_term(d, [f for f in factors(term) if not isinstance(f, Const)], words, like=term)
    return replace(d, expr=put(d.expr, path, Choose(Compare(">", field, limit), twin, term)))


def cross(d: Draft, other: Draft, words: Vocabulary, rng: Rng) -> Draft | None:
    """A term of the other parent, beside or instead of one of this one's."""
    donors = [t for _, t in _terms(other.expr) if t not in split(d.expr)]
    if not donors:
        return None
    d, term = _adopt(d, _pick(donors, rng), other)
    if rng.random() < 0.5:
        return _edit_site(d, rng, lambda parts: [*parts, term])
    return _edit_site(d, rng, lambda parts: [*_without(parts, rng), term] if len(parts) > 1 else None)


def ground(d: Draft, other: Draft, words: Vocabulary, rng: Rng) -> Draft | None:
    """Constant <-> field: a coefficient fixed to 1 or set free, a bare constant tied to a deployment field."""
    path, term = _pick(_terms(d.expr), rng)
    parts = factors(term)
    basis = [f for f in parts if not isinstance(f, Const)]
    if not basis:  # a bare constant becomes proportional to something of the deployment
        anchors = [f for f in words.fields(d.name) if f.scope == "s" and unit_of(f, {}) == US]
        extra = (
            [_pick(anchors, rng)]
            if anchors and rng.random() < 0.5
            else list(words.scales[rng.integers(len(words.scales))])
            if words.scales
            else []
        )
        if not extra:
            return None
        d, new = _new_term(d, extra, words, like=term)
    elif len(basis) < len(parts):
        if coefficient_unit(basis, d.constants) != units.ONE:
            if any(isinstance(f, Field) and f.scope == "b" for f in basis):
                return None
            name = fresh(d, "base")
            value = _round(abs(_size(term, d, words)))
            d, new = replace(d, constants={**d.constants, name: Constant(name, value, US)}), Const(name)
        else:
            new = product(basis)
    else:
        if isinstance(term, (Call, Choose, Number, Neg)) or any(isinstance(n, Const) for n in walk(term)):
            return None  # it has a constant of its own already
        d, new = _new_term(d, basis, words, like=term)
    return replace(d, expr=put(d.expr, path, new))


def exchange(a: Program, b: Program) -> Program | None:
    """The step time of one parent with the overheads of the other."""
    step, rest = a.function("step_time"), [f for f in b.functions if f.name != "step_time"]
    assert step is not None
    child = Program((step, *rest), "")
    return child if child.functions != a.functions else None


def _pick(items, rng: Rng, p=None):  # type: ignore[no-untyped-def]
    return items[rng.choice(len(items), p=p)]


def _round(x: float) -> float:
    return float(f"{x:.6g}")


def _terms(expr: Expr) -> list[tuple[Path, Expr]]:
    """Every term of every sum, except those that only hold sums themselves."""
    return [(p, t) for site in sites(expr) for p, t in places(get(expr, site), site)]


def _leaves(expr: Expr) -> list[tuple[Path, Expr]]:
    """Every field of every term, with its path."""
    found: list[tuple[Path, Expr]] = []

    def visit(node: Expr, path: Path) -> None:
        match node:
            case Field():
                found.append((path, node))
            case Neg(value):
                visit(value, (*path, 0))
            case Op(_, left, right):
                visit(left, (*path, 0))
                visit(right, (*path, 1))
            case Call(_, args):
                for i, arg in enumerate(args):
                    visit(arg, (*path, i))
            case Choose(_, then, other):
                visit(then, (*path, 1))
                visit(other, (*path, 2))

    visit(expr, ())
    return found


def _coefficient(term: Expr, d: Draft) -> Const | None:
    """The constant of a plain `constant * fields` term."""
    parts = factors(term)
    constants = [f for f in parts if isinstance(f, Const)]
    plain = all(isinstance(f, (Const, Field, Call)) or (isinstance(f, Op) and f.op == "/") for f in parts)
    return constants[0] if plain and len(constants) == 1 and not isinstance(term, Call) else None


def _size(node: Expr, d: Draft, words: Vocabulary) -> float:
    return words.size(node, {c.name: c.value for c in d.constants.values()})


def _new_term(d: Draft, basis: Sequence[Expr], words: Vocabulary, like: Expr | None = None) -> tuple[Draft, Expr]:
    """`coefficient * basis`, the coefficient new, as large as `like` or a small share of a typical step."""
    name = fresh(d, stem(basis))
    size = abs(_size(product(basis), d, words)) if basis else 1.0
    goal = abs(_size(like, d, words)) if like is not None else NEW_SHARE * 1e4
    value = goal / size if size > 0 else 1.0
    unit = coefficient_unit(basis, d.constants)
    value = _round(min(max(value, 1e-9), 1e9))
    d = replace(d, constants={**d.constants, name: Constant(name, value, unit)})
    return d, product([Const(name), *basis])


def _edit_site(d: Draft, rng: Rng, change: Callable[[list[Expr]], list[Expr] | None]) -> Draft | None:
    site = _pick(sites(d.expr), rng)
    parts = change(split(get(d.expr, site)))
    return replace(d, expr=put(d.expr, site, join(parts))) if parts else None


def _without(parts: list[Expr], rng: Rng) -> list[Expr]:
    gone = rng.integers(len(parts))
    return [p for i, p in enumerate(parts) if i != gone]


def _unwrapped(parts: list[Expr], rng: Rng) -> list[Expr] | None:
    match parts:
        case [Call("max" | "min" as name, args)]:
            kept = _without(list(args), rng)
            return [kept[0] if len(kept) == 1 else Call(name, tuple(kept))]
        case [Choose(_, then, other)]:
            return [then if rng.random() < 0.5 else other]
    return None


def _wrap_factor(d: Draft, call: str, words: Vocabulary, rng: Rng) -> Draft | None:
    """`c * f` becomes `c' * sqrt(f / norm)` or `c' * log1p(f / norm)`, the argument a pure number."""
    found = []
    for path, term in _terms(d.expr):
        parts = factors(term)
        for i, part in enumerate(parts):
            if isinstance(part, Field) and _coefficient(term, d) is not None:
                pure = unit_of(part, {}) == units.ONE
                if pure or words.norm(part) is not None:
                    found.append((path, parts, i))
    if not found:
        return None
    path, parts, i = found[rng.integers(len(found))]
    field = parts[i]
    assert isinstance(field, Field)
    argument: Expr = field if unit_of(field, {}) == units.ONE else Op("/", field, words.norm(field))  # type: ignore[arg-type]
    basis = [Call(call, (argument,)) if j == i else p for j, p in enumerate(parts) if not isinstance(p, Const)]
    d, term = _new_term(d, basis, words, like=product(parts))
    return replace(d, expr=put(d.expr, path, term))


def _adopt(d: Draft, term: Expr, donor: Draft) -> tuple[Draft, Expr]:
    """The donor's term with its constants renamed into the draft."""
    names: dict[str, str] = {}

    def rename(node: Expr) -> Expr:
        nonlocal d
        if not isinstance(node, Const):
            return node
        if node.name not in names:
            names[node.name] = fresh(d, node.name)
            constant = replace(donor.constants[node.name], name=names[node.name])
            d = replace(d, constants={**d.constants, constant.name: constant})
        return Const(names[node.name])

    term = rebuild(term, rename)
    return d, term
