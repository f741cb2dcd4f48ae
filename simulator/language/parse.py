"""Text -> Program. `ast.parse` reads it, a whitelist translates it, anything else is a one-line complaint.

The text is never compiled, executed or imported. `unparse` is the inverse.
"""

from __future__ import annotations

import ast
import difflib
import io
import math
import re
import tokenize
import warnings
from dataclasses import dataclass, field

from simulator.errors import InputError
from simulator.language import units
from simulator.language.ir import (
    CALLS,
    COMPARISONS,
    FREE_LITERALS,
    METHODS,
    Call,
    Choose,
    Compare,
    Const,
    Constant,
    Expr,
    Field,
    Function,
    Guard,
    Let,
    Local,
    Neg,
    Number,
    Op,
    Program,
)
from simulator.schema import FIELDS

MAX_BYTES = 20_000
MAX_DEPTH = 100  # levels of the syntax tree; whatever recurses over it needs a few frames a level
MAX_BITS = 1024  # of a whole number: float64 holds no larger one
NAME = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)

_OPERATORS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_COMPARE: dict[type[ast.cmpop], str] = dict(
    zip((ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq), COMPARISONS, strict=True)
)


class ProgramError(InputError):
    """The text is not a program of the language. Message: `where:line: why`."""


@dataclass
class Scope:
    """What a name means inside one function, and the constants found so far."""

    objects: tuple[str, ...]
    constants: dict[str, Constant]
    where: str
    dialect: bool = False
    taken: frozenset[str] = frozenset()
    locals: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)

    def fail(self, node: ast.AST, why: str) -> ProgramError:
        return ProgramError(f"{self.where}:{getattr(node, 'lineno', 1)}: {why}")

    def lift(self, value: float) -> Const:
        """A number in a formula becomes a constant of its own, under a name that the text does not use."""
        n = 1
        while f"k{n}" in self.constants or f"k{n}" in self.taken:
            n += 1
        self.constants[f"k{n}"] = Constant(f"k{n}", value)
        self.used.add(f"k{n}")
        return Const(f"k{n}")


def parse(text: str | bytes, where: str = "program") -> Program:
    """The program that `text` spells; raises ProgramError naming the line and what to do about it.

    `where` is the file's name in complaints. The original proposal's dialect (`predict_step_time(b)` with
    `b['prefill_tokens']` and `CONSTANTS = {...}`) is read into the same representation.
    """
    tree = _syntax_tree(text, where)
    from simulator.language.dialect import is_dialect, translate

    if is_dialect(tree):
        return translate(tree, where)
    doc, statements = _docstring(tree.body)
    functions: dict[str, Function] = {}
    for node in statements:
        if not isinstance(node, ast.FunctionDef):
            why = f"only functions may stand here, not {_kind(node)}: remove it"
            raise ProgramError(f"{where}:{node.lineno}: {why}")
        if node.name in functions:
            raise ProgramError(f"{where}:{node.lineno}: {node.name} is defined twice: keep one")
        functions[node.name] = _function(node, where)
    if "step_time" not in functions:
        raise ProgramError(f"{where}:1: no step_time: define `def step_time(b, s, *, ...): return ...`")
    return Program(tuple(functions[name] for name in METHODS if name in functions), doc)


def _syntax_tree(text: str | bytes, where: str) -> ast.Module:
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(raw) > MAX_BYTES:
        raise ProgramError(f"{where}:1: {len(raw)} bytes, at most {MAX_BYTES} are read: shorten the program")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise ProgramError(f"{where}:1: not UTF-8 text (byte {e.start}): give a program's text") from None
    if "\0" in text:
        raise ProgramError(f"{where}:1: binary data: give a program's text")
    if not text.strip():
        raise ProgramError(f"{where}:1: empty: define `def step_time(b, s, *, ...): return ...`")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except SyntaxError as e:
        huge = "int_max_str_digits" in e.msg
        why = _TOO_LARGE if huge else f"not valid syntax ({e.msg}): mend the text"
        raise ProgramError(f"{where}:{e.lineno or 1}: {why}") from None
    except (RecursionError, MemoryError):
        raise ProgramError(f"{where}:1: {_TOO_DEEP}") from None
    except (ValueError, tokenize.TokenError) as e:
        raise ProgramError(f"{where}:1: cannot be read ({str(e).splitlines()[0]}): mend the text") from None
    for token in tokens:  # the syntax tree has normalised names, which may hide what was written
        if token.type == tokenize.NAME and not NAME.fullmatch(token.string):
            why = f"name {token.string[:40]!r} is not plain ASCII of at most 64 characters: rename it"
            raise ProgramError(f"{where}:{token.start[0]}: {why}")
    _screen(tree, where)
    return tree


_TOO_DEEP = f"nested too deeply, at most {MAX_DEPTH} levels are read: split it over assignments"
_TOO_LARGE = "a number too large for float64: give a finite one"


def _screen(tree: ast.Module, where: str) -> None:
    """Bound, without recursion, how deep everything after this recurses and how large a number it prints."""
    level: list[ast.AST] = [tree]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        for node in level:
            value = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
            if isinstance(value, int) and value.bit_length() > MAX_BITS:
                raise ProgramError(f"{where}:{getattr(node, 'lineno', 1)}: {_TOO_LARGE}")
    if level:
        raise ProgramError(f"{where}:{max(getattr(node, 'lineno', 1) for node in level)}: {_TOO_DEEP}")


KINDS = {
    "AnnAssign": "an annotated assignment", "Assert": "an assert", "Assign": "an assignment",
    "AsyncFor": "a loop", "AsyncFunctionDef": "an async function", "AsyncWith": "a with",
    "Attribute": "an attribute", "AugAssign": "`op=`", "Await": "an await", "BinOp": "arithmetic",
    "BoolOp": "and/or", "Break": "a break", "Call": "a call", "ClassDef": "a class",
    "Compare": "a comparison", "Continue": "a continue", "Delete": "a del", "Dict": "a dict",
    "DictComp": "a comprehension", "Expr": "a bare expression", "For": "a loop",
    "FormattedValue": "an f-string", "FunctionDef": "an inner function", "GeneratorExp": "a comprehension",
    "Global": "a global", "If": "an if", "IfExp": "a conditional", "Import": "an import",
    "ImportFrom": "an import", "Interpolation": "a t-string", "JoinedStr": "an f-string",
    "Lambda": "a lambda", "List": "a list", "ListComp": "a comprehension", "Match": "a match",
    "Name": "a name", "NamedExpr": "a walrus", "Nonlocal": "a nonlocal", "Pass": "a pass", "Raise": "a raise",
    "Return": "a return", "Set": "a set", "SetComp": "a comprehension", "Slice": "a slice",
    "Starred": "a star", "Subscript": "a subscript", "TemplateStr": "a t-string", "Try": "a try",
    "TryStar": "a try", "Tuple": "a tuple", "TypeAlias": "a type alias", "UnaryOp": "an operator",
    "While": "a loop", "With": "a with", "Yield": "a yield", "YieldFrom": "a yield",
}  # fmt: skip


def _kind(node: ast.AST) -> str:
    """What a complaint calls the node; short, and without line breaks."""
    match node:
        case ast.Constant(value=value):
            return repr(value)[:40]
        case _:
            return KINDS.get(type(node).__name__, type(node).__name__)


def names(tree: ast.AST) -> frozenset[str]:
    """All names that the text uses, whatever for."""
    found = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    return frozenset(found | {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)})


def _docstring(body: list[ast.stmt]) -> tuple[str, list[ast.stmt]]:
    match body:
        case [ast.Expr(value=ast.Constant(value=str(doc))), *rest]:
            return doc, rest
        case _:
            return "", body


def _function(node: ast.FunctionDef, where: str) -> Function:
    if node.name not in METHODS:
        why = f"unknown function {node.name!r}: the methods are {', '.join(METHODS)}"
        raise ProgramError(f"{where}:{node.lineno}: {why}")
    objects = METHODS[node.name]
    scope = Scope(objects, {}, where, taken=names(node))
    args = node.args
    if node.decorator_list or node.returns is not None or getattr(node, "type_params", None):
        why = "decorators, return annotations and type parameters are not part of the language: remove them"
        raise scope.fail(node, why)
    plain = not (args.posonlyargs or args.vararg or args.kwarg or args.defaults)
    if not plain or tuple(a.arg for a in args.args) != objects or any(a.annotation for a in args.args):
        head = f"({', '.join(objects)}, *, constants...)"
        raise scope.fail(node, f"{node.name} takes {head}: write its head so")
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        if arg.arg in objects or arg.arg in scope.constants or arg.arg in CALLS:
            raise scope.fail(arg, f"the name {arg.arg!r} is taken: rename the constant")
        if default is None:
            raise scope.fail(arg, f"constant {arg.arg!r} has no value: give it a default, e.g. {arg.arg}=1.0")
        unit, bounds = _annotation(arg.annotation, scope) if arg.annotation else (None, None)
        scope.constants[arg.arg] = Constant(arg.arg, _number(default, scope), unit, bounds)
    doc, statements = _docstring(node.body)
    body, result = block(statements, scope, node)
    for unused in [n for n in (*scope.constants, *sorted(scope.locals)) if n not in scope.used]:
        raise scope.fail(node, f"{node.name}: {unused!r} is never used: remove it")
    return Function(node.name, tuple(scope.constants.values()), body, result, doc)


def block(statements: list[ast.stmt], scope: Scope, owner: ast.AST) -> tuple[tuple[Let | Guard, ...], Expr]:
    """Fresh assignments and early returns, then the final return. What follows an if's return is its else."""
    body: list[Let | Guard] = []
    rest = list(statements)
    while rest:
        node = rest.pop(0)
        match node:
            case ast.Return(value=ast.expr() as value):
                if rest:
                    raise scope.fail(rest[0], "nothing may follow a return: remove it")
                return tuple(body), expression(value, scope)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if name in (*scope.locals, *scope.constants, *scope.objects, *CALLS, "CONSTANTS"):
                    raise scope.fail(node, f"the name {name!r} is taken: assign to a fresh one")
                body.append(Let(name, expression(value, scope)))
                scope.locals.add(name)
            case ast.If(test=test, body=[ast.Return(value=ast.expr() as value)], orelse=orelse):
                body.append(Guard(_condition(test, scope), expression(value, scope)))
                rest = [*orelse, *rest]
            case ast.If():
                raise scope.fail(node, "an if may hold one return and nothing else: use `x if a < b else y`")
            case ast.Assign():
                raise scope.fail(node, "only a single name can be assigned: write `name = value`")
            case ast.Return():
                raise scope.fail(node, "a return without a value: return the time in microseconds")
            case _:
                remedy = "use assignments, `if ...: return` and return"
                raise scope.fail(node, f"{_kind(node)} is not part of the language: {remedy}")
    raise scope.fail(owner, "no return at the end: add one")


def expression(node: ast.expr, scope: Scope) -> Expr:
    """One expression; raises ProgramError for whatever is not on the whitelist."""
    match node:
        case ast.Constant():
            value = _number(node, scope)
            return Number(value) if value in FREE_LITERALS else scope.lift(value)
        case ast.Name(id=name):
            if name in scope.locals:
                scope.used.add(name)
                return Local(name)
            if name in scope.constants and not scope.dialect:
                scope.used.add(name)
                return Const(name)
            if name in scope.objects:
                raise scope.fail(node, f"{name} is not a number: read one of its fields")
            raise scope.fail(node, f"unknown name {name!r}: assign it first or make it a constant")
        case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner in scope.objects:
            return read_field(node, owner, name, scope)
        case ast.Attribute():
            seen = " and ".join(scope.objects)
            raise scope.fail(node, f"only fields of {seen} can be read here: use one of them")
        case ast.Subscript() if scope.dialect:
            from simulator.language.dialect import subscript

            return subscript(node, scope)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return Neg(expression(operand, scope))
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return expression(operand, scope)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return Op(_OPERATORS[type(op)], expression(left, scope), expression(right, scope))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return Choose(_condition(test, scope), expression(body, scope), expression(orelse, scope))
        case ast.Call():
            return _call(node, scope)
        case ast.BinOp(op=ast.Pow()):
            raise scope.fail(node, "`**` is not part of the language: write pow(x, c)")
        case ast.BinOp(op=op) | ast.UnaryOp(op=op):
            raise scope.fail(node, f"operator {type(op).__name__} is not part of the language: use + - * /")
        case ast.Compare():
            raise scope.fail(node, "a comparison is not a number: use it in `x if a < b else y`")
        case _:
            remedy = f"use fields, constants, + - * / and {', '.join(CALLS)}"
            raise scope.fail(node, f"{_kind(node)} is not part of the language: {remedy}")


def _call(node: ast.Call, scope: Scope) -> Expr:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name not in CALLS:
        what = repr(name) if name else _kind(node.func)
        raise scope.fail(node, f"cannot call {what}: the functions are {', '.join(CALLS)}")
    fewest, most = CALLS[name]
    if node.keywords or any(isinstance(a, ast.Starred) for a in node.args):
        raise scope.fail(node, f"{name} takes plain arguments only: remove keywords and stars")
    if not fewest <= len(node.args) <= most:
        wanted = f"{fewest} or more arguments" if most > fewest else f"{fewest} argument{'s' * (fewest > 1)}"
        raise scope.fail(node, f"{name} takes {wanted}, got {len(node.args)}: write its arguments so")
    args = tuple(expression(a, scope) for a in node.args)
    if name == "pow":
        exponent = args[1]
        while isinstance(exponent, Neg):
            exponent = exponent.value
        if not isinstance(exponent, Const | Number):
            why = "the exponent of pow must be a constant or a number: name it as a constant"
            raise scope.fail(node, why)
    return Call(name, args)


def _condition(node: ast.expr, scope: Scope) -> Compare:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
            return Compare(_COMPARE[type(op)], expression(left, scope), expression(right, scope))
        case ast.Compare():
            raise scope.fail(node, "one comparison with < <= > >= == != at a time: split it")
        case ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
            raise scope.fail(node, "and, or, not are not part of the language: nest conditionals")
        case _:
            raise scope.fail(node, "a condition must be a comparison: write one such as b.tokens > limit")


def read_field(node: ast.AST, owner: str, name: str, scope: Scope) -> Field:
    if (owner, name) not in FIELDS:
        seen = [f"{o}.{n}" for o, n in FIELDS if o in scope.objects]
        near = difflib.get_close_matches(f"{owner}.{name}", seen, n=1)
        remedy = f"did you mean {near[0]}?" if near else "see `evolve check --fields`"
        raise scope.fail(node, f"unknown field {owner}.{name}: {remedy}")
    if name == "reference_step_us" and scope.objects != METHODS["queueing_time"]:
        raise scope.fail(node, "s.reference_step_us is for queueing_time only: use another field here")
    return Field(owner, name)


def _number(node: ast.expr, scope: Scope) -> float:
    sign = 1.0
    while isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        sign = -sign if isinstance(node.op, ast.USub) else sign
        node = node.operand
    if not isinstance(node, ast.Constant) or type(node.value) not in (int, float):
        raise scope.fail(node, f"{_kind(node)} is not a number: give a plain number")
    try:
        value = float(node.value)  # type: ignore[arg-type]
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise scope.fail(node, _TOO_LARGE)
    return sign * value


def _annotation(node: ast.expr, scope: Scope) -> tuple[units.Unit, tuple[float, float] | None]:
    """`us/token**2` or `one[0.8, 3]`. Bounds may stand after the last name: `us/token[0, 5]`."""
    bounds: list[tuple[float, float]] = []

    def read(node: ast.expr, last: bool) -> units.Unit:
        match node:
            case ast.Subscript(value=value, slice=ast.Tuple(elts=[low, high])) if last:
                bounds.append((_number(low, scope), _number(high, scope)))
                return read(value, True)
            case ast.Name(id=name) if name == "one" or name in units.BASES:
                return units.base(name)
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return units.times(read(left, False), read(right, last))
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                return units.over(read(left, False), read(right, last))
            case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=n)) if type(n) is int and n <= 9:
                return units.power(read(left, False), n)
            case _:
                what = repr(node.id) if isinstance(node, ast.Name) else _kind(node)
                known = ", ".join(("one", *units.BASES))
                raise scope.fail(node, f"{what} is not a unit: use {known} with * / **, e.g. us/token[0, 5]")

    unit = read(node, True)
    if any(abs(n) > 9 for n in unit):
        raise scope.fail(node, "a unit's exponents reach at most 9: use a simpler unit")
    if len(bounds) > 1 or (bounds and not bounds[0][0] <= bounds[0][1]):
        raise scope.fail(node, "bounds are one pair: give [low, high] with low <= high")
    return unit, bounds[0] if bounds else None
