"""Text -> Program. `ast.parse` reads the text, a whitelist translates it, anything else is a one-line error.

The text is never compiled, executed or imported. `unparse` is the inverse.
"""

from __future__ import annotations

import ast
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from simulator.language import units
from simulator.language.ir import CALLS, METHODS, Constant, Function, Program
from simulator.language.original import sound
from simulator.language.reader import Enough, Scope, block, number
from simulator.language.rewriting import rewrite
from simulator.language.source import MAX_BYTES, ProgramError, docstring, kind, screen, syntax_tree
from simulator.language.unparse import unparse


@lru_cache(maxsize=512)  # the same few texts are read again and again: seeds, ensembles, baselines
def parse(text: str | bytes, where: str = "program") -> Program:
    """The program that `text` spells. Raises ProgramError with the line and what to do about it.

    `where` is the file's name in messages.

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


def read(text: str | bytes, where: str = "program", notes: list[str] | None = None) -> ParsedText:
    """The program that `text` spells, with all its mistakes; `parse` raises the first one.

    A text that is not in the language's own spelling is rewritten first. With `notes`, what is never used is no
    mistake: it is left out, and they say so.

    >>> [mistake.why for mistake in read("def step_time(b, s, *, c=1.0): return b.tokenz").mistakes]
    ['unknown field b.tokenz: did you mean b.tokens?', "step_time: 'c' is never used: remove it"]
    """
    mistakes: list[ProgramError] = []
    program = Program((), "")
    try:
        tree, scope = syntax_tree(text, where), Scope((), {}, where, mistakes=mistakes)
        with suppress(Enough):
            program = _module(tree, where, mistakes)
        if mistakes:  # not in the language's own spelling
            mistakes.clear()
            unused = rewrite(tree, scope, notes)
            screen(tree, where)
            program = _module(tree, where, mistakes)
            for mistake in unused:
                scope.note(mistake)
        if not mistakes and (size := len((written := unparse(program)).encode())) > MAX_BYTES:
            why = f"written out it has {size} bytes, at most {MAX_BYTES} are read: shorten the program"
            mistakes.append(ProgramError(where, 1, why))
        elif not mistakes and any(getattr(node, "original", False) for node in tree.body):
            syntax_tree(written, where)  # the constants that it lacked may make it too deep
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
    original = getattr(node, "original", False)
    scope = Scope(objects, {}, where, node, mistakes, original=original)
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
    function = Function(node.name, tuple(scope.constants.values()), body, result, doc, line)
    return sound(function, scope) if original else function


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
