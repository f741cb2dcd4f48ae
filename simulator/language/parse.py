"""Text -> Program. `ast.parse` reads the text, a whitelist translates it, anything else is a one-line error.

The text is never compiled, executed or imported. `unparse` is the inverse.
"""

from __future__ import annotations

import ast
import keyword
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from simulator.common.errors import shown
from simulator.language import units
from simulator.language.ir import CALLS, METHODS, Const, Constant, Expr, Function, Program
from simulator.language.reader import Enough, Scope, block, number, read_field
from simulator.language.source import MAX_BYTES, NAME, ProgramError, docstring, kind, screen, syntax_tree
from simulator.language.unparse import unparse
from simulator.schema import FIELDS


@lru_cache(maxsize=512)  # the same few texts are read again and again: seeds, ensembles, baselines
def parse(text: str | bytes, where: str = "program") -> Program:
    """The program that `text` spells. Raises ProgramError with the line and what to do about it.

    `where` is the file's name in messages. The original proposal's dialect (`predict_step_time(b)` with
    `b['prefill_tokens']` and `CONSTANTS = {...}`) is read into the same representation.

    >>> parse("def step_time(b, s, *, c: us/token = 2.5): return c * b.tokens").theta
    (2.5,)
    """
    reading = read(text, where)
    for mistake in reading.mistakes:
        raise mistake
    return reading.program


@dataclass(frozen=True, slots=True)
class ParsedText:
    """A program, and the mistakes of its text in the order of reading. It has 0 where it has a mistake."""

    program: Program
    mistakes: tuple[ProgramError, ...]


def read(
    text: str | bytes, where: str = "program", rewrite: Callable[[ast.Module], ast.Module] | None = None
) -> ParsedText:
    """The program that `text` spells, with all its mistakes; `parse` raises the first one.

    `rewrite` changes the syntax tree before it is read.

    >>> [mistake.why for mistake in read("def step_time(b, s, *, c=1.0): return b.tokenz").mistakes]
    ['unknown field b.tokenz: did you mean b.tokens?', "step_time: 'c' is never used: remove it"]
    """
    mistakes: list[ProgramError] = []
    program = Program((), "")
    try:
        tree = syntax_tree(text, where)
        if rewrite:
            tree = rewrite(tree)
            screen(tree, where)
        program = _translate(tree, where, mistakes) if _is_dialect(tree) else _module(tree, where, mistakes)
        if not mistakes and (size := len(unparse(program).encode())) > MAX_BYTES:
            why = f"written out it has {size} bytes, at most {MAX_BYTES} are read: shorten the program"
            mistakes.append(ProgramError(where, 1, why))
    except ProgramError as e:
        mistakes.append(e)
    except Enough:
        pass  # the mistakes so far are enough
    return ParsedText(program, tuple(mistakes))


def _module(tree: ast.Module, where: str, mistakes: list[ProgramError]) -> Program:
    doc, statements = docstring(tree.body)
    functions: dict[str, Function] = {}
    for node in statements:
        if not isinstance(node, ast.FunctionDef):
            why = f"only functions are allowed here, not {kind(node)}: remove it"
            mistakes.append(ProgramError(where, node.lineno, why))
        elif node.name in functions:
            mistakes.append(ProgramError(where, node.lineno, f"{node.name} is defined twice: keep one"))
        elif node.name not in METHODS:
            why = f"unknown function {node.name!r}: the methods are {', '.join(METHODS)}"
            mistakes.append(ProgramError(where, node.lineno, why))
        else:
            functions[node.name] = _function(node, where, mistakes)
    if "step_time" not in functions:
        mistakes.append(ProgramError(where, 1, "no step_time: define `def step_time(b, s, *, ...): return ...`"))
    return Program(tuple(functions[name] for name in METHODS if name in functions), doc)


def _function(node: ast.FunctionDef, where: str, mistakes: list[ProgramError]) -> Function:
    objects = METHODS[node.name]
    scope = Scope(objects, {}, where, tree=node, mistakes=mistakes)
    args = node.args
    if node.decorator_list or node.returns is not None or getattr(node, "type_params", None):
        why = "decorators, return annotations and type parameters are not part of the language: remove them"
        scope.note(scope.fail(node, why))
    plain = not (args.posonlyargs or args.vararg or args.kwarg or args.defaults)
    if not plain or tuple(a.arg for a in args.args) != objects or any(a.annotation for a in args.args):
        head = f"({', '.join(objects)}, *, constants...)"
        scope.note(scope.fail(node, f"{node.name} takes {head}: write its head like that"))
        for arg in (*args.posonlyargs, *args.args):
            if arg.arg not in objects:
                scope.constants[arg.arg] = Constant(arg.arg, 0.0)  # as it was meant
                scope.used.add(arg.arg)
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        if arg.arg in objects or arg.arg in scope.constants or arg.arg in CALLS:
            scope.note(scope.fail(arg, f"the name {arg.arg!r} is taken: rename the constant"))
            continue
        scope.constants[arg.arg] = Constant(arg.arg, 0.0)
        try:
            scope.constants[arg.arg] = _constant(arg, default, scope)
        except ProgramError as e:
            scope.note(e)
    doc, statements = docstring(node.body)
    body, result, line = block(statements, scope, node)
    for unused in [n for n in (*scope.constants, *sorted(scope.locals)) if n not in scope.used]:
        scope.note(scope.fail(node, f"{node.name}: {unused!r} is never used: remove it"))
    return Function(node.name, tuple(scope.constants.values()), body, result, doc, line)


def _constant(arg: ast.arg, default: ast.expr | None, scope: Scope) -> Constant:
    if default is None:
        raise scope.fail(arg, f"constant {arg.arg!r} has no value: give it a default, e.g. {arg.arg}=1.0")
    unit, bounds = _annotation(arg.annotation, scope) if arg.annotation else (None, None)
    return Constant(arg.arg, number(default, scope), unit, bounds)


def _annotation(node: ast.expr, scope: Scope) -> tuple[units.Unit, tuple[float, float] | None]:
    """The unit and the bounds of `us/token**2` or `us/token[0, 5]`; bounds come after the last name."""
    bounds: list[tuple[float, float]] = []

    def read(node: ast.expr, last: bool) -> units.Unit:
        match node:
            case ast.Subscript(value=value, slice=ast.Tuple(elts=[low, high])) if last:
                bounds.append((number(low, scope), number(high, scope)))
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
                what = repr(node.id) if isinstance(node, ast.Name) else kind(node)
                bases = ", ".join(("one", *units.BASES))
                raise scope.fail(node, f"{what} is not a unit: use {bases} with * / **, e.g. us/token[0, 5]")

    unit = read(node, True)
    if any(abs(n) > 9 for n in unit):
        raise scope.fail(node, "a unit's exponents reach at most 9: use a simpler unit")
    if len(bounds) > 1 or (bounds and not bounds[0][0] <= bounds[0][1]):
        raise scope.fail(node, "bounds are one pair: give [low, high] with low <= high")
    return unit, bounds[0] if bounds else None


# The original proposal's spelling: `def predict_step_time(b)`, `b['prefill_tokens']`, `CONSTANTS = {...}`.
# `b[...]` is a batch or a deployment field, `r[...]` a field of the request.
_HEADS = {f"predict_{name}": name for name in METHODS}


def _is_dialect(tree: ast.Module) -> bool:
    return any(isinstance(n, ast.FunctionDef) and n.name in _HEADS for n in tree.body)


def _translate(tree: ast.Module, where: str, mistakes: list[ProgramError]) -> Program:
    """The program that a module in the dialect spells. Adds its mistakes to `mistakes`, as `read` does."""
    doc, statements = docstring(tree.body)
    values: dict[str, Constant] = {}
    functions: dict[str, Function] = {}
    spent: set[str] = set()
    for node in statements:
        match node:
            case ast.Assign(targets=[ast.Name(id="CONSTANTS")], value=ast.Dict() as table) if not functions:
                _read_constants(table, values, Scope((), {}, where, mistakes=mistakes))
            case ast.FunctionDef(name=head) if head in _HEADS and _one_object(node):
                method = _HEADS[head]
                scope = Scope(METHODS[method], dict(values), where, _subscript, node, mistakes)
                if method in functions:
                    scope.note(scope.fail(node, f"{head} is defined twice: keep one"))
                own_doc, rest = docstring(node.body)
                body, result, line = block(rest, scope, node)
                for unused in sorted(scope.locals - scope.used):
                    scope.note(scope.fail(node, f"{head}: {unused!r} is never used: remove it"))
                constants = tuple(c for c in scope.constants.values() if c.name in scope.used)
                spent |= scope.used
                functions[method] = Function(method, constants, body, result, own_doc, line)
            case _:
                what = "this function's head" if isinstance(node, ast.FunctionDef) else kind(node)
                remedy = "use CONSTANTS = {...} and def predict_step_time(b)"
                mistakes.append(ProgramError(where, node.lineno, f"{what} is not part of the language: {remedy}"))
    if "step_time" not in functions:
        mistakes.append(ProgramError(where, 1, "no predict_step_time: define `def predict_step_time(b): return ...`"))
    for name in sorted(values.keys() - spent):
        mistakes.append(ProgramError(where, 1, f"constant {name!r} is never used: remove it"))
    return Program(tuple(functions[m] for m in METHODS if m in functions), doc)


def _one_object(node: ast.FunctionDef) -> bool:
    """True if the head is `def predict_...(b)`, with one object that the method may read and nothing else."""
    args = node.args
    more = (args.posonlyargs, args.kwonlyargs, args.vararg, args.kwarg, args.defaults, node.decorator_list)
    return not any(more) and [a.arg for a in args.args] in [[name] for name in METHODS[_HEADS[node.name]]]


def _read_constants(table: ast.Dict, values: dict[str, Constant], scope: Scope) -> None:
    """Add the entries of `CONSTANTS = {...}` to `values`. Their names must be valid in our own spelling."""
    for key, entry in zip(table.keys, table.values, strict=True):
        name = key.value if isinstance(key, ast.Constant) else None
        if not isinstance(name, str) or not NAME.fullmatch(name) or keyword.iskeyword(name):
            scope.note(scope.fail(entry, "a name in CONSTANTS is not a plain quoted identifier: rename it"))
            continue
        if name in values or name in CALLS or name in ("b", "r", "s", "CONSTANTS"):
            scope.note(scope.fail(entry, f"the name {name!r} is taken: rename the constant"))
            continue
        values[name] = Constant(name, 0.0)
        try:
            values[name] = Constant(name, number(entry, scope))
        except ProgramError as e:
            scope.note(e)


def _subscript(node: ast.Subscript, scope: Scope) -> Expr:
    """The constant or field that `CONSTANTS['x']`, `b['field']` or `r['input_len']` spells."""
    match node:
        case ast.Subscript(value=ast.Name(id="CONSTANTS"), slice=ast.Constant(value=str(name))):
            if name not in scope.constants:
                raise scope.fail(node, f"CONSTANTS has no {shown(name)}: add it with a start value")
            scope.used.add(name)
            return Const(name)
        case ast.Subscript(value=ast.Name(id=owner), slice=ast.Constant(value=str(name))) if (
            owner in scope.objects and NAME.fullmatch(name)
        ):
            static = owner == "b" and ("b", name) not in FIELDS and ("s", name) in FIELDS
            return read_field(node, "s" if static else owner, name, scope)
        case _:
            remedy = "use b['field'], r['input_len'] or CONSTANTS['name']"
            raise scope.fail(node, f"a subscript of something else: {remedy}")
