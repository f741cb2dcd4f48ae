"""The primitive set of plain genetic programming over our language.

Plain GP knows no units, and nearly every random formula breaks them. So units are types here (strongly typed GP,
Montana 1995): there is a type for each unit of the allowed fields, and for each unit that converts one of them to
microseconds (us/token, us/request, ...). The leaves of a type are its fields and a random constant. Constants have no
annotation, so that the language infers their units, and are fitted like any other. A tree may combine:

    T x T -> T       + - max min, for the types of quantities
    T x T -> one     a ratio, for the types of quantities
    one x T -> T     a multiple of anything
    us/T x T -> us   a cost, of products such as token*request too
    T > T ? us : us  a choice by tokens, requests or pure numbers
    one -> one       sqrt, log1p
    flop / (flop/us), byte / (byte/us) -> us
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from deap import gp

from evolve.search.vocabulary import Vocabulary
from simulator.language import units
from simulator.language.ir import Call, Choose, Compare, Expr, Field, Op
from simulator.language.units import Unit
from simulator.schema import FIELDS

US, ONE = units.read("us"), units.ONE
QUANTITIES = tuple(units.read(name) for name in ("us", "one", "token", "request", "byte", "flop"))
CHOSEN_BY = tuple(units.read(name) for name in ("token", "request", "one"))
PRODUCTS = (("token", "request"), ("token", "token"))  # of counts; their costs can be built factor by factor too
DIVIDED = (("flop", "flop/us"), ("byte", "byte/us"))
COST_US = 300.0  # what a new constant's term takes on a typical batch, within a factor of 10: a few percent of a step


class _Type(type):
    """The class of a unit's type, hashed by its number: deap draws from sets of types, whose order must not depend on
    memory addresses."""

    number: int

    def __hash__(cls) -> int:
        return cls.number


@dataclass(frozen=True)
class Language:
    """The primitive set, and how its primitives are written in our language."""

    pset: Any  # deap's
    types: dict[Unit, type]
    forms: dict[str, Callable[..., Expr]]  # the expression of a primitive, by its name
    leaves: dict[str, Field]  # by name


def language(words: Vocabulary) -> Language:
    """The typed primitives over the fields that step_time may read."""
    fields = {f.name: units.read(FIELDS[f.scope, f.name].unit) for f in words.step}
    typed = _units(set(fields.values()))
    types: dict[Unit, type] = {unit: _Type(f"t{i}", (), {"number": i, "unit": unit}) for i, unit in enumerate(typed)}
    pset = gp.PrimitiveSetTyped("step_time", [], types[US])
    forms: dict[str, Callable[..., Expr]] = {}

    def add(kind: str, form: Callable[..., Expr], takes: Sequence[Unit], gives: Unit) -> None:
        name = f"{kind}({','.join(map(units.spell, takes))})"
        if name not in forms and all(unit in types for unit in (*takes, gives)):
            forms[name] = form
            pset.addPrimitive(form, [types[u] for u in takes], types[gives], name=name)

    for unit in typed:
        add("*", partial(Op, "*"), (ONE, unit), unit)
        add("*", partial(Op, "*"), (units.over(US, unit), unit), US)
    for unit in (u for u in QUANTITIES if u in types):
        for op in "+-":
            add(op, partial(Op, op), (unit, unit), unit)
        for name in ("max", "min"):
            add(name, partial(_call, name), (unit, unit), unit)
        add("/", partial(Op, "/"), (unit, unit), ONE)
    for unit in CHOSEN_BY:
        add(">", _choose, (unit, unit, US, US), US)
    for name in ("sqrt", "log1p"):
        add(name, partial(_call, name), (ONE,), ONE)
    for left, right in DIVIDED:
        add("/", partial(Op, "/"), (units.read(left), units.read(right)), US)
    for left, right in PRODUCTS:
        a, b = units.read(left), units.read(right)
        both = units.times(a, b)
        add("*", partial(Op, "*"), (a, b), both)
        add("*", partial(Op, "*"), (units.over(US, both), a), units.over(US, b))
        add("+", partial(Op, "+"), (units.over(US, b), units.over(US, b)), units.over(US, b))
    for f in words.step:
        pset.addTerminal(f, types[fields[f.name]], name=f"{f.scope}.{f.name}")
    sizes = _sizes(words, typed)
    for unit in typed:
        pset.addEphemeralConstant(f"c({units.spell(unit)})", partial(_start, sizes[unit]), types[unit])
    return Language(pset, types, forms, {f"{f.scope}.{f.name}": f for f in words.step})


def _units(of_fields: set[Unit]) -> list[Unit]:
    """The units of fields, of products of counts, and of the conversions of these to microseconds."""
    typed = dict.fromkeys([US, ONE, *sorted(of_fields)])
    counts = [u for u in typed if u not in (US, ONE) and u[0] == 0]
    for left, right in PRODUCTS:
        a, b = units.read(left), units.read(right)
        if a in typed and b in typed:
            counts.append(units.times(a, b))
    typed |= dict.fromkeys(counts)
    typed |= dict.fromkeys(units.over(US, u) for u in counts)
    return list(typed)


def _sizes(words: Vocabulary, typed: Sequence[Unit]) -> dict[Unit, float]:
    """The start value of a constant, by unit: that of a field of the unit on a typical batch, or such that the
    constant's term takes COST_US."""
    typical: dict[Unit, list[float]] = {}
    for f in words.step:
        size = abs(words.typical[f.scope, f.name])
        if size > 0:
            typical.setdefault(units.read(FIELDS[f.scope, f.name].unit), []).append(size)
    sizes = {unit: float(np.median(values)) for unit, values in typical.items()} | {US: 10 * COST_US, ONE: 1.0}
    for left, right in PRODUCTS:
        a, b = units.read(left), units.read(right)
        if a in sizes and b in sizes:
            sizes.setdefault(units.times(a, b), sizes[a] * sizes[b])
    return {unit: sizes.get(unit) or COST_US / sizes.get(units.over(US, unit), 1.0) for unit in typed}


def _start(size: float) -> float:
    """A random start value within a factor of 10 of `size`, rounded to six digits."""
    return float(f"{size * 10 ** random.uniform(-1.0, 1.0):.6g}")


def _call(name: str, *args: Expr) -> Expr:
    return Call(name, args)


def _choose(left: Expr, right: Expr, then: Expr, other: Expr) -> Expr:
    return Choose(Compare(">", left, right), then, other)
