"""Syntax tree -> statements and expressions of the IR: a whitelist, with a message for everything else."""

from __future__ import annotations

import ast
import difflib
import math
from dataclasses import dataclass, field
from functools import cached_property

from simulator.common.errors import shown
from simulator.common.text import plain
from simulator.language import ir
from simulator.language.ir import CALLS, COMPARISONS, FREE_LITERALS, METHODS, Expr
from simulator.language.source import TOO_LARGE, ProgramError, kind, names
from simulator.schema import FIELDS, PER_SECOND, READABLE

MOST_MISTAKES = 20  # of one text: looking for the names that are near takes time

LONGEST = 100  # characters of a field's name in a message
MISSPELLED = 0.85  # likeness to a field's name from which another name is a mistake rather than a constant
_OPERATORS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_COMPARE: dict[type[ast.cmpop], str] = dict(
    zip((ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq), COMPARISONS, strict=True)
)


class Enough(Exception):
    """MOST_MISTAKES were found: the rest of the text is not read."""


@dataclass
class Scope:
    """The meaning of names inside one function, and the constants read so far.

    A mistake is added to `mistakes`, and reading goes on: an expression with a mistake is 0, which has any unit. If
    there is no such list, the mistake is raised.
    """

    objects: tuple[str, ...]
    constants: dict[str, ir.Constant]
    where: str
    tree: ast.AST | None = None  # the function
    mistakes: list[ProgramError] | None = None
    locals: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    lifted: int = 0
    original: bool = False  # a function in the original proposal's spelling

    @cached_property
    def taken(self) -> frozenset[str]:
        """The names in the function, for a number that becomes a constant."""
        return names(self.tree) if self.tree else frozenset()

    def fail(self, node: ast.AST, why: str) -> ProgramError:
        """The error about a node, to be raised."""
        return ProgramError(self.where, getattr(node, "lineno", 1), why)

    def note(self, error: ProgramError) -> None:
        """Add a mistake, or raise it. Raises Enough after the last one that is looked for."""
        if self.mistakes is None:
            raise error
        self.mistakes.append(error)
        if len(self.mistakes) >= MOST_MISTAKES:
            raise Enough

    def near(self, name: str) -> str:
        """Fields or names that an unknown name may mean, "" if none is alike."""
        known = sorted({*self.constants, *self.locals})
        fields = [f"{o}.{n}" for o, n in FIELDS if o in self.objects and n == name]
        return " or ".join(fields or difflib.get_close_matches(name, known, n=1))

    def lift(self, value: float) -> ir.Const:
        """Make a number in a formula a constant, under a name that the text does not use."""
        self.lifted += 1
        while (name := f"k{self.lifted}") in self.constants or name in self.taken:
            self.lifted += 1
        self.constants[name] = ir.Constant(name, value)
        self.used.add(name)
        return ir.Const(name)


def block(statements: list[ast.stmt], scope: Scope, owner: ast.AST) -> tuple[tuple[ir.Let | ir.Guard, ...], Expr, int]:
    """The statements of a body: assignments and early returns, then the final return and its line.

    Statements after an `if` that returns are read as its `else`.

    >>> tree = ast.parse("x = b.tokens\\nreturn x + 1")
    >>> _, result, line = block(tree.body, Scope(("b", "s"), {}, "mine.py"), tree)
    >>> spell(result), line
    ('x + 1', 2)
    """
    body: list[ir.Let | ir.Guard] = []
    rest = list(statements)
    while rest:
        node = rest.pop(0)
        match node:
            case ast.Return(value=ast.expr() as value):
                if rest:
                    scope.note(scope.fail(rest[0], "nothing may follow a return: remove it"))
                return tuple(body), expression(value, scope), node.lineno
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if taken := name in (*scope.locals, *scope.constants, *scope.objects, *CALLS, "CONSTANTS"):
                    scope.note(scope.fail(node, f"the name {name!r} is taken: assign to a fresh one"))
                let = ir.Let(name, expression(value, scope), node.lineno)
                if not taken:
                    body.append(let)
                    scope.locals.add(name)
            case ast.If(test=test, body=[ast.Return(value=ast.expr() as value)], orelse=orelse):
                body.append(ir.Guard(_condition(test, scope), expression(value, scope), node.lineno))
                rest = [*orelse, *rest]
            case _:
                scope.note(scope.fail(node, _foreign(node)))
                body += _skipped(node, scope)
    scope.note(scope.fail(owner, "no return at the end: add one"))
    return tuple(body), ir.Number(0.0), getattr(owner, "lineno", 1)


def _foreign(node: ast.stmt) -> str:
    match node:
        case ast.If():
            return "an if may hold one return and nothing else: use `x if a < b else y`"
        case ast.Assign():
            return "only a single name can be assigned: write `name = value`"
        case ast.Return():
            return "a return without a value: return the time in microseconds"
        case _:
            return f"{kind(node)} is not part of the language: use assignments, `if ...: return` and return"


def _skipped(node: ast.stmt, scope: Scope) -> list[ir.Let]:
    """Assignments in place of a statement that cannot be read: no complaint is about the names in it."""
    scope.used |= names(node)
    stored = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    fresh = sorted(stored - scope.locals - scope.constants.keys())
    scope.locals |= {*fresh}
    return [ir.Let(name, ir.Number(0.0), node.lineno) for name in fresh]


def expression(node: ast.expr, scope: Scope) -> Expr:
    """The expression that a syntax tree spells. Notes a mistake for anything that is not on the whitelist."""
    try:
        return _expression(node, scope)
    except ProgramError as e:
        scope.note(e)
        scope.used |= names(node)  # it would be wrong to say that they are not used
        for part in _parts(node):
            expression(part, scope)
        return ir.Number(0.0)


def _parts(node: ast.expr) -> list[ast.expr]:
    """The parts of an expression with a mistake that may have mistakes of their own."""
    match node:
        case ast.Call(args=args) if not (isinstance(node.func, ast.Name) and node.func.id in CALLS):
            return [arg for arg in args if not isinstance(arg, ast.Starred)]
        case ast.BinOp(left=left, op=op, right=right) if type(op) not in _OPERATORS:
            return [left, right]
        case _:
            return []


def _expression(node: ast.expr, scope: Scope) -> Expr:
    match node:
        case ast.Constant():
            value = number(node, scope)
            return ir.Number(value) if value in FREE_LITERALS else scope.lift(value)
        case ast.Name(id=name):
            if name in scope.locals:
                scope.used.add(name)
                return ir.Local(name)
            if name in scope.constants:
                scope.used.add(name)
                return ir.Const(name)
            if name in scope.objects:
                raise scope.fail(node, f"{name} is not a number: read one of its fields")
            meant = f"did you mean {near}?" if (near := scope.near(name)) else "assign it first or make it a constant"
            raise scope.fail(node, f"unknown name {name!r}: {meant}")
        case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner in scope.objects:
            return read_field(node, owner, name, scope)
        case ast.Attribute():
            seen = " and ".join(scope.objects)
            raise scope.fail(node, f"only fields of {seen} can be read here: use one of them")
        case ast.Subscript(value=ast.Name(id="CONSTANTS"), slice=ast.Constant(value=str(name))):
            raise scope.fail(node, f"CONSTANTS has no {shown(name)}: add it with a start value")
        case ast.Subscript(value=ast.Name(id=owner), slice=ast.Constant(value=str(name))) if (
            owner in scope.objects and meant_fields(name, scope.objects)
        ):
            return read_field(node, owner, name, scope)
        case ast.Subscript():
            remedy = "use b['field'], r['input_len'] or CONSTANTS['name']"
            raise scope.fail(node, f"a subscript of something else: {remedy}")
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return ir.Neg(expression(operand, scope))
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return expression(operand, scope)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return ir.Op(_OPERATORS[type(op)], expression(left, scope), expression(right, scope))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return ir.Choose(_condition(test, scope), expression(body, scope), expression(orelse, scope))
        case ast.Call():
            return _call(node, scope)
        case ast.BinOp(op=op) | ast.UnaryOp(op=op):
            raise scope.fail(node, f"operator {type(op).__name__} is not part of the language: use + - * /")
        case ast.Compare():
            raise scope.fail(node, "a comparison is not a number: use it in `x if a < b else y`")
        case _:
            remedy = f"use fields, constants, + - * / and {', '.join(CALLS)}"
            raise scope.fail(node, f"{kind(node)} is not part of the language: {remedy}")


def _call(node: ast.Call, scope: Scope) -> Expr:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name not in CALLS:
        what = repr(name) if name else kind(node.func)
        raise scope.fail(node, f"cannot call {what}: the functions are {', '.join(CALLS)}")
    fewest, most = CALLS[name]
    if node.keywords or any(isinstance(a, ast.Starred) for a in node.args):
        raise scope.fail(node, f"{name} takes plain arguments only: remove keywords and stars")
    if not fewest <= len(node.args) <= most:
        wanted = "1 argument" if fewest == 1 else f"{fewest} arguments"
        if most > fewest:
            wanted = f"{fewest} or more arguments"
        raise scope.fail(node, f"{name} takes {wanted}, got {len(node.args)}: give it that many")
    args = tuple(expression(a, scope) for a in node.args)
    if name == "pow":
        exponent = args[1]
        while isinstance(exponent, ir.Neg):
            exponent = exponent.value
        if not isinstance(exponent, ir.Const | ir.Number):
            why = "the exponent of pow must be a constant or a number: name it as a constant"
            raise scope.fail(node, why)
    return ir.Call(name, args)


def _condition(node: ast.expr, scope: Scope) -> ir.Compare:
    try:
        return _comparison(node, scope)
    except ProgramError as e:
        scope.note(e)
        scope.used |= names(node)
        return ir.Compare("<", ir.Number(0.0), ir.Number(0.0))


def _comparison(node: ast.expr, scope: Scope) -> ir.Compare:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
            return ir.Compare(_COMPARE[type(op)], expression(left, scope), expression(right, scope))
        case ast.Compare():
            raise scope.fail(node, "one comparison with < <= > >= == != at a time: split it")
        case ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
            raise scope.fail(node, "and, or, not are not part of the language: nest conditionals")
        case _:
            raise scope.fail(node, "a condition must be a comparison: write one such as b.tokens > limit")


def read_field(node: ast.AST, owner: str, name: str, scope: Scope) -> ir.Field:
    """The field `owner.name`. Raises ProgramError for one that does not exist or is not allowed here."""
    if scope.original and owner == "s" and name in PER_SECOND:
        return ir.Field("s", name)  # simulator.language.original replaces it
    if (owner, name) not in READABLE:
        seen = [f"{o}.{n}" for o, n in FIELDS if o in scope.objects]
        near = difflib.get_close_matches(f"{owner}.{name}", seen, n=1)
        remedy = f"did you mean {near[0]}?" if near else "see `evolve show --fields`"
        raise scope.fail(node, f"unknown field {plain(f'{owner}.{name}', LONGEST)}: {remedy}")
    if name == "reference_step_us" and scope.objects != METHODS["queueing_time"]:
        raise scope.fail(node, "s.reference_step_us is for queueing_time only: use another field here")
    return ir.Field(owner, name)


def meant_fields(name: str, objects: tuple[str, ...]) -> list[str]:
    """The field that is almost spelled like this, if there is one."""
    return difflib.get_close_matches(name, [n for o, n in FIELDS if o in objects], n=1, cutoff=MISSPELLED)


def number(node: ast.expr, scope: Scope) -> float:
    """The value of a plain, finite number. Raises ProgramError for anything else."""
    sign = 1.0
    while isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        sign = -sign if isinstance(node.op, ast.USub) else sign
        node = node.operand
    if not isinstance(node, ast.Constant) or type(node.value) not in (int, float):
        raise scope.fail(node, f"{kind(node)} is not a number: give a plain number")
    try:
        value = float(node.value)  # type: ignore[arg-type]
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise scope.fail(node, TOO_LARGE)
    return sign * value
