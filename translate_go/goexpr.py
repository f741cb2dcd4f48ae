"""Go expressions as values, printed with the spacing of gofmt.

gofmt omits blanks around some operators, depending on depth and on the neighbouring operators (go/printer, nodes.go:
binaryExpr). The same few rules are implemented here, so that no toolchain is needed to print.
"""

from __future__ import annotations

from dataclasses import dataclass

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
        case Minus(Minus() as value):
            return f"-({show(value, LOWEST, _less(depth))})"
        case Minus(value):
            return f"-{show(value, UNARY, depth)}"
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
    """The precedence below which operators get blanks."""
    has4, has5, problem = _survey(expr)
    if problem:
        return problem + 1
    if has4 and has5:
        return 5 if depth == 1 else 4
    return 6 if depth == 1 else 4


def _survey(expr: Binary) -> tuple[bool, bool, int]:
    """Whether there are sums, and products, and the precedence of the tightest operator that needs blanks."""
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
