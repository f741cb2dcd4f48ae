"""The intermediate representation: frozen values that every program is read into, and what they mean.

    Program   = doc, Function*
    Function  = name, Constant*, (Let | Guard)*, result: Expr
    Expr      = Number | Const | Field | Local | Neg | Op | Call | Choose
    Condition = Compare                 (truth is not a number: it occurs only in Guard and Choose)

Every value is a float64. `x/0 = 0`; `sqrt`, `log`, `log1p` of a negative are those of 0, `log 0 = log 1e-12`;
`exp` clips its argument to 50; `softplus(x) = log(1 + exp(x))`, computed so that nothing overflows;
`pow(x, c) = pow(max(x, 0), c)` with c clipped to [-4, 4]; `max` and `min` propagate NaN. These guards are the same in
every back end, so that all of them agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from simulator.language.forest import Forest
from simulator.language.units import Unit
from simulator.schema import TREES

# name of each method -> the objects it may read
METHODS: dict[str, tuple[str, ...]] = {
    "step_time": ("b", "s"),
    "queueing_time": ("r", "s"),
    "output_token_time": ("s",),
    "completion_time": ("s",),
    "scheduling_time": ("s",),
    "preemption_time": ("s",),
}
OVERHEADS = ("output_token_time", "completion_time")  # the methods that most engines' data leave at 0
# name of each function -> fewest and most arguments
CALLS = {
    **dict.fromkeys(("max", "min"), (2, 99)),
    **dict.fromkeys(("sqrt", "log", "log1p", "exp", "softplus"), (1, 1)),
    "pow": (2, 2),
}
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
FREE_LITERALS = (0.0, 1.0, 2.0, 0.5)  # allowed in a formula; every other number becomes a constant


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
    line: int = field(default=0, compare=False, repr=False)  # its line in the text, for messages only


@dataclass(frozen=True, slots=True)
class Guard:
    """`if condition: return value`."""

    condition: Compare
    value: Expr
    line: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Constant:
    """A keyword-only argument with a default, which the fit may change.

    `unit` None leaves the unit open, `bounds` None means the default ones. Only finite bounds with a unit can be
    spelled.
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
    """A program. forest: the ensemble of `b.trees`, which is not part of the text."""

    functions: tuple[Function, ...]
    doc: str = ""
    forest: Forest | None = None

    def function(self, name: str) -> Function | None:
        """The method of that name, or None."""
        return next((f for f in self.functions if f.name == name), None)

    @property
    def theta(self) -> tuple[float, ...]:
        """The values of all constants in one tuple, function by function."""
        return tuple(c.value for f in self.functions for c in f.constants)

    @property
    def reads_trees(self) -> bool:
        """True if it reads `b.trees`, so that it needs a forest."""
        return any(node == Field("b", TREES.name) for f in self.functions for node in nodes(f))

    def with_forest(self, forest: Forest) -> Program:
        """The program with this ensemble of trees."""
        return replace(self, forest=forest)

    def with_theta(self, theta: tuple[float, ...]) -> Program:
        """The program with other values for its constants, as many as `self.theta` has."""
        values = iter(theta)
        functions = tuple(
            replace(f, constants=tuple(replace(c, value=float(next(values))) for c in f.constants))
            for f in self.functions
        )
        return replace(self, functions=functions)


def children(node: Node) -> tuple[Node, ...]:
    """The operands of a node, in the order of the text."""
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
    """The node and everything below it, parents first."""
    yield node
    for child in children(node):
        yield from walk(child)


def roots(function: Function) -> Iterator[Node]:
    """The outermost nodes of a function, in the order of the text."""
    for statement in function.body:
        if isinstance(statement, Guard):
            yield statement.condition
        yield statement.value
    yield function.result


def nodes(function: Function) -> Iterator[Node]:
    """Every node of a function."""
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


def rebuilt(function: Function, change: Callable[[Expr], Expr]) -> Function:
    """The function with `change` applied to every sub-expression, children first, in conditions too."""
    body = list[Let | Guard]()
    for statement in function.body:
        match statement:
            case Let(name, value):
                body.append(Let(name, rebuild(value, change)))
            case Guard(Compare(op, left, right), value):
                condition = Compare(op, rebuild(left, change), rebuild(right, change))
                body.append(Guard(condition, rebuild(value, change)))
    return replace(function, body=tuple(body), result=rebuild(function.result, change))


def with_returns(function: Function, change: Callable[[Expr], Expr]) -> Function:
    """The function with `change` applied to each value that it returns, early returns included.

    >>> f = parse("def step_time(b, s):\\n if s.tp > 1: return b.tokens\\n return 2").functions[0]
    >>> spell(inlined(with_returns(f, lambda value: Op("*", Field("s", "tp"), value))))
    's.tp * b.tokens if s.tp > 1 else s.tp * 2'
    """
    body = tuple(replace(s, value=change(s.value)) if isinstance(s, Guard) else s for s in function.body)
    return replace(function, body=body, result=change(function.result))


def with_step_times(program: Program, change: Callable[[Expr], Expr]) -> Program:
    """The program with `change` applied to each time that its step_time returns."""
    changed = (with_returns(f, change) if f.name == "step_time" else f for f in program.functions)
    return replace(program, functions=tuple(changed))


def inlined(function: Function) -> Expr:
    """The function as one expression: without assignments, early returns as conditionals."""
    values: dict[str, Expr] = {}

    def without_locals(node: Expr) -> Expr:
        return rebuild(node, lambda n: values[n.name] if isinstance(n, Local) else n)

    guards: list[tuple[Compare, Expr]] = []
    for statement in function.body:
        match statement:
            case Let(name, value):
                values[name] = without_locals(value)
            case Guard(Compare(op, left, right), value):
                guards.append((Compare(op, without_locals(left), without_locals(right)), without_locals(value)))
    result = without_locals(function.result)
    for condition, value in reversed(guards):
        result = Choose(condition, value, result)
    return result
