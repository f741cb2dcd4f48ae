"""IR -> Go: expressions as values, printed with the spacing of gofmt, and the statements of a function.

Lets become `:=`, guards become early returns, conditionals become small if/else blocks. The order of evaluation is the
IR's, and no product may be fused with a following sum. On some machines Go fuses them, even through assignments and
inlined calls, unless the product is converted. So every product that is not just a factor becomes `float64(x * y)`.
(A quotient by a power of two may still be fused: it is exact, so nothing changes.) Numbers are folded beforehand,
because Go computes constant expressions exactly, where the IR rounds every step.

gofmt omits blanks around some operators, depending on depth and on the neighbouring operators (go/printer, nodes.go:
binaryExpr). `show` has the same few rules, so that no toolchain is needed to print.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from simulator.language.evaluate import value
from simulator.language.ir import (
    Call,
    Choose,
    Compare,
    Const,
    Expr,
    Field,
    Function,
    Guard,
    Let,
    Local,
    Neg,
    Node,
    Op,
    walk,
)
from translate_go.deployment import least
from translate_go.naming import HELPERS, GoNames, digits

LOWEST, UNARY = 0, 6
_PRECEDENCE = {"==": 3, "!=": 3, "<": 3, "<=": 3, ">": 3, ">=": 3, "+": 4, "-": 4, "*": 5, "/": 5}
_WIDTH = 100  # columns, with tabs as four; longer sums and calls are broken


@dataclass(frozen=True, slots=True)
class GoAtom:
    """A name, a selector or a literal, as text."""

    text: str


@dataclass(frozen=True, slots=True)
class Minus:
    value: GoExpr


@dataclass(frozen=True, slots=True)
class Binary:
    op: str
    left: GoExpr
    right: GoExpr

    @property
    def precedence(self) -> int:
        return _PRECEDENCE[self.op]


@dataclass(frozen=True, slots=True)
class CallOf:
    function: str
    args: tuple[GoExpr, ...]


GoExpr = GoAtom | Minus | Binary | CallOf


def show(expr: GoExpr, outer: int = LOWEST, depth: int = 1, newline: str = "") -> str:
    """The expression as gofmt prints it. With a `newline`, the outermost sum or call is broken by it."""
    match expr:
        case GoAtom(text):
            return text
        case Minus(Minus() as operand):
            return f"-({show(operand, LOWEST, _less(depth))})"
        case Minus(operand):
            return f"-{show(operand, UNARY, depth)}"
        case CallOf(function, args):
            inner = depth + (len(args) > 1)
            texts = [show(a, LOWEST, inner) for a in args]
            if newline and len(args) > 1:
                return f"{function}({newline}{(',' + newline).join(texts)},{newline[:-1]})"
            return f"{function}({', '.join(texts)})"
        case Binary(op, left, right):
            own = expr.precedence
            if own < outer:
                return f"({show(expr, LOWEST, _less(depth))})"
            blank = " " if own < _cutoff(expr, depth) else ""
            tight = isinstance(left, Binary) and left.precedence == own
            first = show(left, own, depth + (not tight), newline if tight and own == 4 else "")
            after = newline if newline and own == 4 else blank
            return f"{first}{blank}{op}{after}{show(right, own + 1, depth + 1)}"


def statement(prefix: str, expr: GoExpr, indent: str) -> list[str]:
    """The lines of `prefix expr`, broken after the outermost operators or arguments if it is too long."""
    line = f"{indent}{prefix}{show(expr)}"
    if len(line.expandtabs(4)) > _WIDTH:
        line = f"{indent}{prefix}{show(expr, newline=chr(10) + indent + chr(9))}"
    return line.split("\n")


def _less(depth: int) -> int:
    return max(depth - 1, 1)


def _cutoff(expr: Binary, depth: int) -> int:
    has4, has5, problem = _survey(expr)
    if problem:
        return problem + 1
    if has4 and has5:
        return 5 if depth == 1 else 4
    return 6 if depth == 1 else 4


def _survey(expr: Binary) -> tuple[bool, bool, int]:
    """True if there are sums, True if there are products, and the precedence of the tightest operator with blanks."""
    own = expr.precedence
    has4, has5, problem = own == 4, own == 5, 0
    nested = [expr.left] if isinstance(expr.left, Binary) and expr.left.precedence >= own else []
    nested += [expr.right] if isinstance(expr.right, Binary) and expr.right.precedence > own else []
    for child in nested:
        assert isinstance(child, Binary)
        below4, below5, below = _survey(child)
        has4, has5, problem = has4 or below4, has5 or below5, max(problem, below)
    if expr.op == "-" and isinstance(expr.right, Minus):
        problem = max(problem, 4)
    return has4, has5, problem


def literal(value: float, *, alone: bool = False) -> GoExpr:
    """A number in an expression. `alone`: Go infers a type from it, so that 2 must be written 2.0."""
    if math.isnan(value):
        return GoAtom("math.NaN()")
    if math.isinf(value):
        return GoAtom("math.Inf(1)" if value > 0 else "math.Inf(-1)")
    text = digits(abs(value))
    if alone and text.isdigit():
        text += ".0"
    return Minus(GoAtom(text)) if value < 0 else GoAtom(text)


def rounded(expr: GoExpr) -> GoExpr:
    """The expression, converted if it is a product, so that it cannot be fused with a sum."""
    if isinstance(expr, Binary) and expr.op == "*":
        return CallOf("float64", (expr,))
    return expr


class Lowering:
    """A Go function under construction: its identifiers, its lines, and the helpers that it calls."""

    def __init__(self, names: GoNames, field: Callable[[Field], GoExpr], helpers: set[str]) -> None:
        self.names = names
        self.field = field  # the Go expression of a field
        self.helpers = helpers
        self.constants: dict[str, float] = {}
        self.fixed: set[str] = set()  # lets that are made of constants only
        self.spelled: dict[str, GoExpr] = {}  # the Go expression of a constant or let
        self.lines: list[str] = []
        self.indent = "\t"

    def add(self, prefix: str, expr: GoExpr) -> None:
        """Add the statement `prefix expr`."""
        self.lines += statement(prefix, expr, self.indent)

    def body(self, function: Function) -> None:
        """Add all statements of a function. Its constants must be in `spelled`."""
        for part in function.body:
            match part:
                case Let(name, node):
                    self.let(name, node)
                case Guard(condition, node):
                    self.guard(condition, node)
        self.result(function.result)

    def let(self, name: str, node: Expr) -> None:
        """Add an assignment."""
        if self.is_fixed(node):
            self.fixed.add(name)
        if isinstance(node, Choose):
            self.spelled[name] = self.choose(node, name)
            return
        expr = rounded(self.number(node) or self.lower(node))
        self.spelled[name] = self.assign(name, expr)

    def assign(self, wish: str, expr: GoExpr) -> GoExpr:
        """Add a new variable, called `wish` if that is free. Returns it."""
        variable = self.names.fresh(wish)
        self.add(f"{variable} := ", expr)
        return GoAtom(variable)

    def guard(self, condition: Compare, node: Expr) -> None:
        """Add an early return."""
        self.block(condition, partial(self.result, node))

    def block(self, condition: Compare, fill: Callable[[], None]) -> None:
        """Add `if condition { ... }` around the lines that `fill` adds."""
        self.lines.append(f"{self.indent}if {show(self.condition(condition))} {{")
        outer = self.indent
        self.indent += "\t"
        fill()
        self.indent = outer
        self.lines.append(f"{self.indent}}}")

    def result(self, node: Expr) -> None:
        """Add `return node`, with a conditional as early returns."""
        while isinstance(node, Choose):
            self.guard(node.condition, node.then)
            node = node.other
        self.add("return ", rounded(self.lower(node)))

    def choose(self, node: Choose, wish: str = "choice") -> GoExpr:
        """Add a variable for the value of a conditional: the default, then what overrides it, last to first."""
        cases: list[Choose] = []
        rest: Expr = node
        while isinstance(rest, Choose):
            cases.append(rest)
            rest = rest.other
        variable = self.assign(wish, rounded(self.number(rest) or self.lower(rest)))
        for case in reversed(cases):
            self.block(case.condition, partial(self.override, variable, case.then))
        return variable

    def override(self, variable: GoExpr, node: Expr) -> None:
        """Add an assignment to a variable that exists."""
        self.add(f"{show(variable)} = ", rounded(self.lower(node)))

    def condition(self, node: Compare) -> GoExpr:
        return Binary(node.op, self.lower(node.left), self.lower(node.right))

    def number(self, node: Expr) -> GoExpr | None:
        """The expression as a number from which Go infers a type, or None if it is not one."""
        folded = self.folded(node)
        return None if folded is None else literal(folded, alone=True)

    def folded(self, node: Expr) -> float | None:
        """The value of an expression of numbers, or of constants that Go cannot compute; else None."""
        inside = list(walk(node))
        if any(isinstance(n, (Field, Local)) for n in inside):
            return None
        result = value(node, self.constants, {})
        if any(isinstance(n, Const) for n in inside) and all(map(math.isfinite, _steps(inside, self.constants))):
            return None
        return result

    def lower(self, node: Expr) -> GoExpr:
        """The Go expression. Adds statements for the conditionals inside it."""
        folded = self.folded(node)
        if folded is not None:
            return literal(folded)
        match node:
            case Const(name) | Local(name):
                return self.spelled[name]
            case Field():
                return self.field(node)
            case Neg(inner):
                return Minus(rounded(self.lower(inner)))
            case Op("/", left, right):
                return self.quotient(left, right)
            case Op("*", left, right):
                return Binary("*", self.factor(left, right), self.factor(right, left))
            case Op(op, left, right):
                return Binary(op, rounded(self.lower(left)), rounded(self.lower(right)))
            case Call("max" | "min" as name, args):  # the builtins propagate NaN as the IR does
                return CallOf(name, tuple(rounded(self.lower(a)) for a in args))
            case Call(name, args):
                return self.helper(f"safe{name.capitalize()}", *(rounded(self.lower(a)) for a in args))
            case Choose():
                return self.choose(node)
        raise AssertionError(node)

    def factor(self, node: Expr, other: Expr) -> GoExpr:
        """A factor. Go computes x * 2 and x / 0.5 as x + x, so a product next to a fixed number counts as a term."""
        expr = self.lower(node)
        return rounded(expr) if self.is_fixed(other) else expr

    def is_fixed(self, node: Expr) -> bool:
        """True if the Go compiler may know the value."""
        return not any(isinstance(n, Field) or (isinstance(n, Local) and n.name not in self.fixed) for n in walk(node))

    def quotient(self, left: Expr, right: Expr) -> GoExpr:
        """A guarded division, or a plain one if the divisor cannot be 0."""
        above, below = self.factor(left, right), self.lower(right)
        open_ = any(isinstance(n, (Field, Local)) for n in walk(right))
        divisor = 0.0 if open_ else value(right, self.constants, {})
        checked = isinstance(right, Field) and right.scope == "s" and right.name != "reference_step_us"
        if divisor != 0.0 or (checked and isinstance(right, Field) and least(right.name) > 0.0):
            return Binary("/", above, below)
        return self.helper("safeDiv", rounded(above), rounded(below))

    def helper(self, name: str, *args: GoExpr) -> GoExpr:
        assert name in HELPERS, f"{name}: add its text to translate_go/templates/helpers.txtar"
        self.helpers.add(name)
        return CallOf(self.names.name.of(name), args)


def _steps(inside: list[Node], constants: Mapping[str, float]) -> list[float]:
    return [value(n, constants, {}) for n in inside if not isinstance(n, Compare)]
