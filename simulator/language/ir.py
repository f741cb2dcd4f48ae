"""The intermediate representation: every program, whatever its source, is one of these frozen values.

    Program   = doc, Function*
    Function  = name, Constant*, (Let | Guard)*, result: Expr
    Expr      = Number | Const | Field | Local | Neg | Op | Call | Choose
    Condition = Compare                 (truth is not a number: it only ever stands in Guard and Choose)

Every value is a float64. `x/0 = 0`; `sqrt`, `log`, `log1p` of a negative are those of 0, `log 0 = log 1e-12`;
`exp` clips its argument to 50; `pow(x, c) = pow(max(x, 0), c)` with c clipped to [-4, 4]; `max`, `min` pass
NaN on. The guards are the same in every back end, so that all of them agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from simulator.language.units import Unit

# name of each method -> the objects it sees
METHODS: dict[str, tuple[str, ...]] = {
    "step_time": ("b", "s"),
    "queueing_time": ("r", "s"),
    "output_token_time": ("s",),
    "completion_time": ("s",),
    "scheduling_time": ("s",),
    "preemption_time": ("s",),
}
# name of each function -> fewest and most arguments
CALLS = {
    "max": (2, 99), "min": (2, 99),
    "sqrt": (1, 1), "log": (1, 1), "log1p": (1, 1), "exp": (1, 1),
    "pow": (2, 2),
}  # fmt: skip
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
FREE_LITERALS = (0.0, 1.0, 2.0, 0.5)  # may stand in a formula; every other number is a constant


@dataclass(frozen=True, slots=True)
class Number:
    value: float


@dataclass(frozen=True, slots=True)
class Const:
    name: str


@dataclass(frozen=True, slots=True)
class Field:
    scope: str
    name: str


@dataclass(frozen=True, slots=True)
class Local:
    name: str


@dataclass(frozen=True, slots=True)
class Neg:
    value: Expr


@dataclass(frozen=True, slots=True)
class Op:
    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    args: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Compare:
    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Choose:
    condition: Compare
    then: Expr
    other: Expr


Expr = Number | Const | Field | Local | Neg | Op | Call | Choose
Node = Expr | Compare


@dataclass(frozen=True, slots=True)
class Let:
    """`name = value`: a fresh name, assigned once."""

    name: str
    value: Expr
    line: int = field(default=0, compare=False, repr=False)  # where it stands in its text, for complaints only


@dataclass(frozen=True, slots=True)
class Guard:
    """`if condition: return value`."""

    condition: Compare
    value: Expr
    line: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Constant:
    """A keyword-only default: what the fit may move.

    `unit` None is a wildcard, `bounds` None the default ones. Only finite bounds with a unit can be spelled.
    """

    name: str
    value: float
    unit: Unit | None = None
    bounds: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    constants: tuple[Constant, ...]
    body: tuple[Let | Guard, ...]
    result: Expr
    doc: str = ""
    line: int = field(default=0, compare=False, repr=False)  # of the final return


@dataclass(frozen=True, slots=True)
class Program:
    functions: tuple[Function, ...]
    doc: str = ""

    def function(self, name: str) -> Function | None:
        return next((f for f in self.functions if f.name == name), None)

    @property
    def theta(self) -> tuple[float, ...]:
        """All constants' values as one flat vector, function by function."""
        return tuple(c.value for f in self.functions for c in f.constants)

    def with_theta(self, theta: tuple[float, ...]) -> Program:
        """The same program with other constants; `theta` as long as `self.theta`."""
        values = iter(theta)
        functions = tuple(
            replace(f, constants=tuple(replace(c, value=float(next(values))) for c in f.constants))
            for f in self.functions
        )
        return replace(self, functions=functions)


def children(node: Node) -> tuple[Node, ...]:
    match node:
        case Neg(value):
            return (value,)
        case Op(_, left, right) | Compare(_, left, right):
            return (left, right)
        case Call(_, args):
            return args
        case Choose(condition, then, other):
            return (condition, then, other)
        case _:
            return ()


def walk(node: Node) -> Iterator[Node]:
    """The node and everything under it, parents first."""
    yield node
    for child in children(node):
        yield from walk(child)


def roots(function: Function) -> Iterator[Node]:
    """The outermost nodes of a function, in the order in which they stand in its text."""
    for statement in function.body:
        if isinstance(statement, Guard):
            yield statement.condition
        yield statement.value
    yield function.result


def nodes(function: Function) -> Iterator[Node]:
    for root in roots(function):
        yield from walk(root)


def rebuild(node: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """The expression with `change` applied to every sub-expression, children first."""
    match node:
        case Neg(value):
            node = Neg(rebuild(value, change))
        case Op(op, left, right):
            node = Op(op, rebuild(left, change), rebuild(right, change))
        case Call(name, args):
            node = Call(name, tuple(rebuild(a, change) for a in args))
        case Choose(Compare(op, left, right), then, other):
            condition = Compare(op, rebuild(left, change), rebuild(right, change))
            node = Choose(condition, rebuild(then, change), rebuild(other, change))
    return change(node)
