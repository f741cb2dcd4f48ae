"""The mean of several programs as one program.

Each method of each program is a sum of coefficient * feature. The mean has every feature once, with the mean of its
coefficients; a program without the feature counts as 0. Two features are the same if their normal forms agree at the
values of their constants. An expression that is not affine, such as a max, is a feature too, and keeps its constants.
Features with the same mean coefficient share a constant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from statistics import mean

from simulator.common.errors import InputError
from simulator.language import guarded, ir
from simulator.language.complete import complete
from simulator.language.evaluate import value
from simulator.language.infer import unit_of
from simulator.language.ir import METHODS, Expr, Function, Program, inlined, rebuild, walk
from simulator.language.normal import MAX_TERMS, ZERO, Normal, Polynomial
from simulator.language.simplify import lean
from simulator.language.source import MAX_PIECES
from simulator.language.units import ONE, Unit, over, read

ALONE = ir.Number(1.0)  # the feature of a term that is a constant
REQUIRED = ("step_time", "queueing_time")  # the methods whose absence does not mean 0
DIGITS = 12  # of a mean coefficient; later ones are the rounding of float64
LONGEST = 40  # characters of a name that is made from fields
_US = read("us")


@dataclass(frozen=True, slots=True)
class BlendTerm:
    """coefficient * feature. name: the constant that the coefficient comes from, "" for a number."""

    coefficient: float
    feature: Expr
    name: str = ""


def terms(function: Function) -> list[BlendTerm]:
    """The function as a sum of coefficient * feature; constants remain only inside features that are not affine.

    Raises InputError if the function is too large without its assignments.

    >>> text = "def step_time(b, s, *, c=2.0, d=3.0): x = c * b.tokens; return x - s.tp * (d + 1) / 2 + max(c, s.tp)"
    >>> [(t.coefficient, spell(t.feature)) for t in terms(parse(text).functions[0])]
    [(2.0, 'b.tokens'), (-2.0, 's.tp'), (1.0, 'max(c, s.tp)')]
    """
    whole = inlined(function)
    if sum(1 for _ in islice(walk(whole), MAX_PIECES + 1)) > MAX_PIECES:
        why = f"has more than {MAX_PIECES:,} parts without its assignments"
        raise InputError(f"{function.name}: {why}: leave the program out of the mean")
    return _terms(whole, {c.name: c.value for c in function.constants})


def _terms(node: Expr, constants: Mapping[str, float]) -> list[BlendTerm]:
    if not any(isinstance(n, ir.Field) for n in walk(node)):
        name = next((n.name for n in walk(node) if isinstance(n, ir.Const)), "")
        return [BlendTerm(value(node, constants, {}), ALONE, name)]
    match node:
        case ir.Neg(inner):
            return _negative(_terms(inner, constants))
        case ir.Op("+", left, right):
            return _terms(left, constants) + _terms(right, constants)
        case ir.Op("-", left, right):
            return _terms(left, constants) + _negative(_terms(right, constants))
        case ir.Op("*", left, right):
            one, other = _terms(left, constants), _terms(right, constants)
            if len(one) * len(other) <= MAX_TERMS:
                return [
                    BlendTerm(x.coefficient * y.coefficient, _product(x.feature, y.feature), x.name or y.name)
                    for x in one
                    for y in other
                ]
        case ir.Op("/", left, right):
            below = _terms(right, constants)
            if len(below) == 1:  # the inverse of a sum is not a sum
                divisor = below[0]
                return [
                    BlendTerm(
                        guarded.div(t.coefficient, divisor.coefficient), _quotient(t.feature, divisor.feature), t.name
                    )
                    for t in _terms(left, constants)
                ]
    return [BlendTerm(1.0, node)]


def _negative(some: Iterable[BlendTerm]) -> list[BlendTerm]:
    return [replace(t, coefficient=-t.coefficient) for t in some]


def _product(left: Expr, right: Expr) -> Expr:
    """The product, its factors in one row."""
    if ALONE in (left, right):
        return right if left == ALONE else left
    match right:
        case ir.Op("*" | "/" as op, first, last):
            return ir.Op(op, _product(left, first), last)
        case _:
            return ir.Op("*", left, right)


def _quotient(left: Expr, right: Expr) -> Expr:
    return left if right == ALONE else ir.Op("/", left, right)


@dataclass(slots=True)
class _Shared:
    """A feature of the mean with its coefficient in each program.

    first, constants: the number of the first function that has it, and its constants by name.
    """

    feature: Expr
    first: int
    constants: Mapping[str, ir.Constant]
    coefficients: list[float]
    name: str = ""

    @property
    def unit(self) -> Unit | None:
        """The unit of the coefficient, None if it is open."""
        of_feature = ONE if self.feature == ALONE else unit_of(self.feature, self.constants)
        return None if of_feature is None else over(_US, of_feature)


def blend(programs: Sequence[Program], doc: str = "") -> Program:
    """The program whose times are the means of these programs' times on every batch, but for rounding.

    Constants keep unique names. Raises InputError if a program is too large without its assignments, and if two read
    different ensembles of trees.

    >>> one = parse("def step_time(b, s, *, c=2.0): return c * b.tokens + b.kv_sum\\ndef queueing_time(r, s): return 8")
    >>> two = parse("def step_time(b, s, *, d=4.0): return d * b.tokens\\ndef queueing_time(r, s): return 6")
    >>> print(unparse(blend([one, two])), end="")
    def step_time(b, s, *, c: us/token = 3.0, kv_sum: us/token = 0.5):
        return c * b.tokens + kv_sum * b.kv_sum
    <BLANKLINE>
    <BLANKLINE>
    def queueing_time(r, s, *, k1: us = 7.0):
        return k1
    """
    whole = [complete(p) for p in programs]
    functions = []
    for method in METHODS:
        function = _mean(method, [p.function(method) for p in whole])
        if method in REQUIRED or function.result != ir.Number(0.0):
            functions.append(function)
    forests = list({p.forest for p in programs if p.forest and p.reads_trees})
    if len(forests) > 1:
        raise InputError("b.trees: the programs read different ensembles of trees: leave all but one out of the mean")
    return lean(Program(tuple(functions), doc, forests[0] if forests else None))


def _mean(method: str, functions: Sequence[Function | None]) -> Function:
    """The mean of the functions. None is a time of 0."""
    draft = _Draft()
    groups = _groups(_features(functions))
    uses = Counter(same[0].name for _, same in groups)
    signed: list[tuple[str, Expr]] = []
    for average, same in groups:
        first, sign = same[0], "+" if average > 0.0 else "-"
        features = [draft.renamed(one) for one in same]
        if abs(average) == 1.0 and (first.unit == ONE or not first.name):
            signed += [(sign, feature) for feature in features]
        else:
            stem = first.name if uses[first.name] == 1 else ""  # a name of several does not describe this one
            name = draft.declare(ir.Constant(stem or _stem(same), abs(average), first.unit))
            signed.append((sign, _product(ir.Const(name), _sum(("+", feature) for feature in features))))
    return Function(method, tuple(draft.constants.values()), (), _sum(signed))


def _sum(signed: Iterable[tuple[str, Expr]]) -> Expr:
    total: Expr | None = None
    for sign, term in signed:
        first = term if sign == "+" else ir.Neg(term)
        total = first if total is None else ir.Op(sign, total, term)
    return total or ir.Number(0.0)


def _features(functions: Sequence[Function | None]) -> list[_Shared]:
    """The features of all functions, each once, in the order in which they come up."""
    normal, shared = Normal(), dict[Polynomial, _Shared]()
    for i, function in enumerate(functions):
        if function is None:
            continue
        constants = {c.name: c for c in function.constants}
        for t in terms(function):
            form = normal.of(_in_numbers(t.feature, constants), {})
            if t.coefficient == 0.0 or form == ZERO:
                continue
            same = shared.setdefault(form, _Shared(t.feature, i, constants, [0.0] * len(functions)))
            same.coefficients[i] += t.coefficient
            same.name = same.name or t.name
    return list(shared.values())


def _in_numbers(feature: Expr, constants: Mapping[str, ir.Constant]) -> Expr:
    """The feature with the values of its constants."""
    return rebuild(feature, lambda n: ir.Number(constants[n.name].value) if isinstance(n, ir.Const) else n)


def _groups(features: Iterable[_Shared]) -> list[tuple[float, list[_Shared]]]:
    """The mean coefficients that are not 0, each with the features of one known unit that have it."""
    groups: dict[tuple[object, ...], tuple[float, list[_Shared]]] = {}
    for i, one in enumerate(features):
        if average := float(f"{mean(one.coefficients):.{DIGITS}g}"):
            of_its_own = i if one.unit is None else None
            groups.setdefault((average, one.unit, of_its_own), (average, []))[1].append(one)
    return list(groups.values())


@dataclass
class _Draft:
    """The constants of a function that is being made."""

    constants: dict[str, ir.Constant] = field(default_factory=dict)
    # (number of the function that a constant inside a feature is from, its name there) -> its name here
    names: dict[tuple[int, str], str] = field(default_factory=dict)

    def declare(self, constant: ir.Constant) -> str:
        """The name, made unique, under which the function has the constant from now on."""
        stem, n = constant.name, 1
        while (name := stem if n == 1 else f"{stem}_{n}") in self.constants:
            n += 1
        self.constants[name] = replace(constant, name=name)
        return name

    def renamed(self, one: _Shared) -> Expr:
        """The feature with its constants under their names here."""

        def here(node: Expr) -> Expr:
            if not isinstance(node, ir.Const):
                return node
            place = one.first, node.name
            if place not in self.names:
                self.names[place] = self.declare(one.constants[node.name])
            return ir.Const(self.names[place])

        return rebuild(one.feature, here)


def _stem(same: Sequence[_Shared]) -> str:
    """A name for the coefficient of these features: the fields that it multiplies, or `share` if there are several."""
    if len(same) > 1:
        return "share"
    fields = dict.fromkeys(n.name.removesuffix("_us") for n in walk(same[0].feature) if isinstance(n, ir.Field))
    return "_".join(fields)[:LONGEST].strip("_") or "base"
