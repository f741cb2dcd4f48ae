"""The terms of a program in words, from the meanings and units of the fields that they read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from evaluator.parts import terms
from simulator.language.bounds import kernel_factors
from simulator.language.infer import infer
from simulator.language.ir import (
    Call,
    Choose,
    Const,
    Constant,
    Expr,
    Field,
    Function,
    Guard,
    Local,
    Neg,
    Number,
    Op,
    Program,
    rebuild,
    walk,
)
from simulator.language.unparse import spell, spell_condition
from simulator.schema import KERNELS, PHYSICAL, READABLE

AS_TABLE = 5e-4  # a factor this near to 1 rounds to 0.0 %
THOUSAND, MILLION = 1_000, 1_000_000
_CALLS = {
    "max": "the larger of {}",
    "min": "the smaller of {}",
    "sqrt": "the square root of {}",
    "log": "log of {}",
    "log1p": "log of 1 + {}",
    "exp": "exp of {}",
    "softplus": "softplus of {}",
    "pow": "{} as base and exponent",
}


@dataclass(frozen=True, slots=True)
class Reading:
    """An additive term of a method: its text, what it means, and the constants and fields that it reads."""

    method: str
    term: str
    meaning: str
    constants: tuple[str, ...]
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Product:
    """A term as a product: what multiplies and divides. `switches` are fields that are 0 or 1."""

    constants: tuple[Constant, ...]
    divisors: tuple[Constant, ...]
    quantities: tuple[Expr, ...]
    below: tuple[Expr, ...]
    switches: tuple[Field, ...]
    number: float

    @property
    def kernels(self) -> frozenset[str]:
        """The measured kernels that the quantities are made of; empty if they are made of anything else too."""
        read = frozenset(n.name for q in self.quantities for n in walk(q) if isinstance(n, Field))
        return read if read and not self.below and read <= frozenset(KERNELS) else frozenset()

    @property
    def datasheet(self) -> bool:
        return any(_all_physical(q) for q in self.quantities)


def readings(program: Program) -> tuple[Reading, ...]:
    """A reading of every term, method by method in the order of the program."""
    flags, found = iter(kernel_factors(program)), list[Reading]()
    for function in program.functions:
        factors = {c.name for c in function.constants if next(flags)}
        found += _of_function(function, factors)
    return tuple(found)


def _of_function(function: Function, factors: set[str]) -> list[Reading]:
    lets = _lets(function)
    units = infer(function).units
    constants = {c.name: c for c in function.constants}
    whole = {text: _inlined(term, lets) for text, term in terms(function).items()}
    products = {text: _product(term, constants) for text, term in whole.items()}
    plain = {kernel for p in products.values() if not p.switches for kernel in p.kernels}
    return [
        Reading(
            function.name,
            text,
            _meaning(products[text], units, factors, plain),
            tuple(dict.fromkeys(n.name for n in walk(term) if isinstance(n, Const))),
            tuple(dict.fromkeys(f"{n.scope}.{n.name}" for n in walk(term) if isinstance(n, Field))),
        )
        for text, term in whole.items()
    ]


def _lets(function: Function) -> dict[str, Expr]:
    lets: dict[str, Expr] = {}
    for statement in function.body:
        if not isinstance(statement, Guard):
            lets[statement.name] = _inlined(statement.value, lets)
    return lets


def _inlined(node: Expr, lets: Mapping[str, Expr]) -> Expr:
    return rebuild(node, lambda n: lets[n.name] if isinstance(n, Local) else n)


def _product(term: Expr, constants: Mapping[str, Constant]) -> _Product:
    above, below, number = list[Expr](), list[Expr](), 1.0
    stack = [(term, True)]
    while stack:
        node, on_top = stack.pop()
        match node:
            case Neg(inner):
                number = -number
                stack.append((inner, on_top))
            case Op("*", left, right):
                stack += [(right, on_top), (left, on_top)]
            case Op("/", left, right):
                stack += [(right, not on_top), (left, on_top)]
            case Number(value) if on_top:
                number *= value
            case _:
                (above if on_top else below).append(node)
    return _Product(
        tuple(constants[n.name] for n in above if isinstance(n, Const)),
        tuple(constants[n.name] for n in below if isinstance(n, Const)),
        tuple(n for n in above if not isinstance(n, Const) and not _is_switch(n)),
        tuple(n for n in below if not isinstance(n, Const)),
        tuple(n for n in above if isinstance(n, Field) and _is_switch(n)),
        number,
    )


def _is_switch(node: Expr) -> bool:
    return isinstance(node, Field) and READABLE[node.scope, node.name].meaning.startswith(("1 if ", "1 with "))


def _meaning(p: _Product, units: Mapping[str, str | None], factors: Iterable[str], plain: Iterable[str]) -> str:
    """The sentence. `factors`: the constants that multiply measured kernels; `plain`: kernels that another term has in
    every step."""
    what = " x ".join(_words(q, inside=len(p.quantities) > 1) for q in p.quantities)
    if p.below:
        what += " over " + " x ".join(_words(q, inside=True) for q in p.below)
    size = _size(p, units, set(factors), bool(what))
    again = ", once more" if p.switches and p.kernels and p.kernels <= set(plain) else ""
    only = "".join(f", only {meaning_of(s.scope, s.name)[2:]}" for s in p.switches)
    return f"{what}: {size}{again}{only}" if what else f"{size}{only}"


def _size(p: _Product, units: Mapping[str, str | None], factors: set[str], of_something: bool) -> str:
    value = p.number
    for c in p.constants:
        value *= c.value
    for c in p.divisors:
        value /= c.value
    if p.kernels and (not p.constants or {c.name for c in p.constants} <= factors) and not p.divisors:
        return _against_table(value, p.kernels)
    if p.datasheet and p.divisors and not p.constants:
        return f"at {100.0 / value:.0f} % of the datasheet's peak"
    if p.datasheet and not p.below and all(units[c.name] in ("one", None) for c in p.constants):
        return "the datasheet's time" if value == 1.0 else f"{_number(value)} times the datasheet's time"
    if p.divisors and not p.constants:
        return "over " + " x ".join(f"{_number(c.value)} {units[c.name] or ''}".rstrip() for c in p.divisors)
    unit = " x ".join(units[c.name] or "any unit" for c in p.constants if units[c.name] != "one")
    unit += "".join(f" / ({units[c.name] or 'any unit'})" for c in p.divisors if units[c.name] != "one")
    if unit:
        return _rate(value, unit, of_something)
    if not of_something:
        return _number(value)
    return "once" if value == 1.0 else f"{_number(value)} times"


def _against_table(factor: float, kernels: frozenset[str]) -> str:
    """A factor of measured kernels as a difference from the table; without a table, from what is counted."""
    measured = all("measured" in READABLE["b", name].meaning.split(", ")[0] for name in kernels)
    table = "the table" if measured else "the estimate"
    if abs(factor - 1.0) < AS_TABLE:
        return "as in the table" if measured else "as estimated"
    return f"{100.0 * abs(factor - 1.0):.1f} % {'faster' if factor < 1.0 else 'slower'} than {table}"


def _rate(value: float, unit: str, of_something: bool) -> str:
    """`22.4 us per 1,000 tokens` for 0.0224 us/token."""
    top, _, per = unit.partition("/")
    if not per or not per.isidentifier():
        return f"{_number(value)} {unit}{' for each' if of_something and unit == 'us' else ''}"
    for scale in (1, THOUSAND, MILLION):
        if abs(value) * scale >= 1.0 or scale == MILLION:
            many = f"{scale:,} {per}s" if scale > 1 else per
            return f"{_number(value * scale)} {top} per {many}"
    raise AssertionError


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000.0 else f"{value:.3g}"


def _all_physical(node: Expr) -> bool:
    match node:
        case Op("+" | "-", left, right):
            return _all_physical(left) and _all_physical(right)
        case Call("max" | "min", args):
            return all(map(_all_physical, args))
        case Field(_, name):
            return name in PHYSICAL
    return False


def _words(node: Expr, inside: bool = False) -> str:
    match node:
        case Field(scope, name):
            return meaning_of(scope, name)
        case Op("+" | "-" as op, left, right):
            text = f"{_words(left)} {op} {_words(right, inside=op == '-')}"
            return f"({text})" if inside else text
        case Op("*", left, right):
            return f"{_words(left, True)} x {_words(right, True)}"
        case Op("/", left, right):
            return f"{_words(left, True)} over {_words(right, True)}"
        case Neg(inner):
            return f"-{_words(inner, True)}"
        case Call(name, args):
            return _CALLS[name].format(" and ".join(_words(a, len(args) > 1) for a in args))
        case Choose(condition, then, other):
            return f"({_words(then)} if {spell_condition(condition)}, else {_words(other)})"
    return spell(node)  # a constant or a number


def meaning_of(scope: str, name: str) -> str:
    """A field's meaning without its details: up to the first full stop, semicolon or colon."""
    text = READABLE[scope, name].meaning
    for end in (". ", "; ", ": "):
        text = text.split(end)[0]
    return text
