"""A program that a model wrote, read kindly: Python that the language lacks is read if it needs no guessing.

Names that are assigned again get fresh names; `and`, `or`, `not` and chained comparisons become nested conditionals;
assignments under an `if` become conditionals. The meaning is the same, because the language is pure and total. All
other text is left as it is, and all its mistakes are listed.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from simulator.common.text import plain
from simulator.language.infer import infer
from simulator.language.ir import CALLS, Program
from simulator.language.parse import read
from simulator.language.source import MAX_BYTES, names
from simulator.language.unparse import unparse

MOST_IFS = 50  # of a function, whose statements are walked recursively; a program may have far fewer
MOST_LISTED = 8  # mistakes of a program
LONGEST_COMPLAINT = 1200  # characters
LONGEST_WHY = 250  # characters of one mistake
LONGEST_STEM = 56  # characters of a name that are kept in a fresh one, see source.NAME
ANSWER, PARSE = "answer", "parse"  # the stages at which a proposal without a program is refused, see Rejected
MODULES = ("math", "np", "numpy")  # `math.sqrt(x)` is read as `sqrt(x)`


@dataclass(frozen=True, slots=True)
class Written:
    """A program's text, and the name of each of its lines in a complaint."""

    text: str
    places: tuple[str, ...]


def whole(text: str, of: str = "") -> Written:
    """A text whose lines are called `line 1`, `line 2`, ... and then `of`."""
    return Written(text, tuple(f"line {i}{of}" for i in range(1, text.count("\n") + 2)))


@dataclass(frozen=True, slots=True)
class Idea:
    """A proposal in an answer: its title, its program's text, and why it cannot be used ("" if it can).

    stage: at which it is refused. notes: what its reader left out. program: None if it cannot be read; its lines are
    those of the text as written, which complaints call by their `places`. motivation: the prose about it. given: False
    if the answer has no proposal at all.
    """

    title: str
    text: str
    complaint: str = ""
    stage: str = field(default=ANSWER, compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)
    program: Program | None = field(default=None, compare=False)
    places: tuple[str, ...] = field(default=(), compare=False)
    motivation: str = field(default="", compare=False)
    given: bool = field(default=True, compare=False)


def understood(title: str, written: Written) -> Idea:
    """The idea with a program in its standard spelling, without comments and docstrings; or with all its mistakes."""
    notes: list[str] = []
    reading = read(written.text, rewrite=partial(rewrite, notes=notes))
    if not reading.mistakes:
        functions = tuple(replace(f, doc="") for f in reading.program.functions)
        program = replace(reading.program, doc="", functions=functions)
        return Idea(title, unparse(program), "", PARSE, tuple(notes), program, written.places)
    mistakes = [(mistake.line, mistake.why) for mistake in reading.mistakes]
    clashes = [clash for function in reading.program.functions for clash in infer(function).clashes]
    mistakes += [(clash.line, f"units: {clash.why}") for clash in clashes]
    complaint = complaint_of(written.places, sorted(mistakes, key=lambda m: m[0]))
    kept = written.text.encode("utf-8", "replace")[: MAX_BYTES + 1].decode("utf-8", "ignore")
    return Idea(title, kept, complaint, PARSE, tuple(notes), None, written.places)


def complaint_of(places: tuple[str, ...], mistakes: Iterable[tuple[int, str]]) -> str:
    """A complaint of one line: mistakes as (line, why), each with the place of its line; line 0 is no place."""
    placed = (f"{places[min(line, len(places)) - 1]}: {why}" if line and places else why for line, why in mistakes)
    lines = list(dict.fromkeys(plain(text, LONGEST_WHY) for text in placed))
    more = [f"and {len(lines) - MOST_LISTED} more"] if len(lines) > MOST_LISTED else []
    return plain("; ".join(lines[:MOST_LISTED] + more), LONGEST_COMPLAINT)


def rewrite(tree: ast.Module, notes: list[str]) -> ast.Module:
    """The module with what the language lacks rewritten, in place. Adds to `notes` what was left out."""
    tree.body = [node for node in tree.body if not _imports_mathematics(node)]
    constants = {name for table in _tables(tree) for key in table.keys if (name := _text(key))}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            _set_off_constants(node.args)
            if sum(isinstance(n, ast.If | ast.IfExp) for n in ast.walk(node)) <= MOST_IFS:
                Statements(node, constants).rewrite()
            _leave_out_unused(node, notes)
    used = {_text(n.slice) for n in ast.walk(tree) if isinstance(n, ast.Subscript)}
    for table in _tables(tree):
        entries = zip(table.keys, table.values, strict=True)
        kept = _used("CONSTANTS", [(_text(entry[0]), entry) for entry in entries], used, notes)
        table.keys, table.values = [key for key, _ in kept], [value for _, value in kept]
    return ast.fix_missing_locations(tree)


def _imports_mathematics(node: ast.stmt) -> bool:
    if isinstance(node, ast.Import):
        return all(alias.name in MODULES and (alias.asname or alias.name) in MODULES for alias in node.names)
    if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module in MODULES:
        return all(alias.name in CALLS and alias.asname is None for alias in node.names)
    return False


def _set_off_constants(args: ast.arguments) -> None:
    """Arguments with a default are constants, also without the star that sets them off."""
    at = len(args.args) - len(args.defaults)
    if 0 <= at < len(args.args):
        args.kwonlyargs, args.kw_defaults = [*args.args[at:], *args.kwonlyargs], [*args.defaults, *args.kw_defaults]
        args.args, args.defaults = args.args[:at], []


def _tables(tree: ast.Module) -> list[ast.Dict]:
    """The tables of constants of a program in the original proposal's dialect."""
    return [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and stored(node) == {"CONSTANTS"}
    ]


def _text(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


T = TypeVar("T")


def _used(where: str, entries: Iterable[tuple[str, T]], used: Collection[str], notes: list[str]) -> list[T]:
    """The values of (name, value) entries whose names are used; of the others there is a note."""
    entries = list(entries)
    notes += [f"{where}: {name!r} is never used and was left out" for name, _ in entries if name and name not in used]
    return [value for name, value in entries if not name or name in used]


def _leave_out_unused(function: ast.FunctionDef, notes: list[str]) -> None:
    """Leave out variables and constants that are never used. Variables that the rewriting added need no note."""
    used: set[str] = set()
    kept: list[ast.stmt] = []
    for node in reversed(function.body):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) if name not in used:
                _used(function.name, [] if getattr(node, "fresh", False) else [(name, node)], used, notes)
            case _:
                used |= _loaded([node])
                kept.append(node)
    function.body, args = kept[::-1], function.args
    pairs = zip(args.kwonlyargs, args.kw_defaults, strict=True)
    constants = _used(function.name, [(pair[0].arg, pair) for pair in pairs], _loaded(kept), notes)
    args.kwonlyargs, args.kw_defaults = [arg for arg, _ in constants], [default for _, default in constants]


def _loaded(nodes: Iterable[ast.AST]) -> set[str]:
    return {n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def stored(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


class _Foreign(Exception):
    pass


class Statements(ast.NodeTransformer):
    """Rewrites the body of a function into `out`. `current`: the names that hold the values of variables by now."""

    def __init__(self, function: ast.FunctionDef, constants: set[str]) -> None:
        args = function.args
        self.function = function
        self.reserved = {arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)} | {*CALLS, *constants}
        self.taken = {*names(function), *self.reserved, "CONSTANTS"}
        self.current: dict[str, str] = {}
        self.assigned: set[str] = set()
        self.out: list[ast.stmt] = []
        self.branches = 0  # how many conditions the statement is under
        self.at: ast.stmt = function  # where a statement that is added is said to stand

    def rewrite(self) -> None:
        rest = self.function.body
        while rest:
            node, rest = rest[0], rest[1:]
            emitted, current = len(self.out), dict(self.current)
            self.at = node
            try:
                rest = self.statement(node, rest)
            except _Foreign:
                del self.out[emitted:]
                self.at, self.current, self.branches = node, current, 0
                self.out.append(self.visit(node))
                self.assigned |= stored(node)
        self.function.body = self.out

    def statement(self, node: ast.stmt, rest: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Rewrite a statement, and return the remaining ones of the `rest`."""
        match node:
            case ast.Return(value=ast.expr() as value):
                self.emit(ast.Return(self.visit(value)))
            case ast.If(test=test, body=body, orelse=orelse) if _returns(body):
                after = [*orelse, *rest]
                several = isinstance(test, ast.BoolOp | ast.UnaryOp) or (isinstance(test, ast.Compare) and test.ops[1:])
                if several and _returns(after):
                    self.emit(ast.Return(self.choice(self.visit(test), self.value(body), self.value(after))))
                    return []
                self.emit(ast.If(self.visit(test), [ast.copy_location(ast.Return(self.value(body)), self.at)], []))
                return after
            case _:
                self.assignment(node)
        return [*rest]

    def value(self, statements: Sequence[ast.stmt]) -> ast.expr:
        """The value that statements return; their assignments are emitted."""
        before, at = dict(self.current), self.at
        self.branches += 1
        for i, node in enumerate(statements):
            self.at = node
            match node:
                case ast.Return(value=ast.expr() as value):
                    result: ast.expr = self.visit(value)
                    break
                case ast.If(test=test, body=body, orelse=orelse) if _returns(body):
                    after = [*orelse, *statements[i + 1 :]]
                    result = self.choice(self.visit(test), self.value(body), self.value(after))
                    break
                case _:
                    self.assignment(node)
        else:
            raise _Foreign
        self.branches -= 1
        self.current, self.at = before, at
        return result

    def assignment(self, node: ast.stmt) -> None:
        """Rewrite an assignment, or an `if` that only assigns. Raises _Foreign for anything else."""
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self.assign(name, self.visit(value))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                self.assign(name, self.visit(value))
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
                self.assign(name, self.visit(ast.BinOp(_load(name), op, value)))
            case ast.If(test=test, body=body, orelse=orelse):
                self.merge(self.visit(test), body, orelse)
            case ast.Pass():
                pass
            case _:
                raise _Foreign

    def merge(self, test: ast.expr, body: Sequence[ast.stmt], orelse: Sequence[ast.stmt]) -> None:
        """Assignments under a condition: both sides are evaluated, and each variable chooses between them."""
        before, at = dict(self.current), self.at
        self.branches += 1
        sides: list[dict[str, str]] = []
        for statements in (body, orelse):
            self.current = dict(before)
            for self.at in statements:
                self.assignment(self.at)
            sides.append(self.current)
        self.branches -= 1
        self.current, self.at = before, at
        then, other = sides
        for name in dict.fromkeys((*then, *other)):
            if then.get(name) == other.get(name):
                continue
            kept = name if name in self.reserved else None  # a constant has a value before it is assigned
            left, right = then.get(name, kept), other.get(name, kept)
            if left and right:
                self.assign(name, self.choice(test, _load(left), _load(right)))

    def assign(self, name: str, value: ast.expr) -> None:
        """Emit an assignment. Under a condition, and to a name that has a meaning already, it is to a fresh name."""
        fresh = bool(self.branches) or name in self.assigned or name in self.reserved
        target = self.fresh(name) if fresh else name
        self.emit(ast.Assign([ast.Name(target, ast.Store())], value), fresh)
        self.assigned.add(target)
        self.current[name] = target

    def emit(self, node: ast.stmt, fresh: bool = False) -> None:
        node.fresh = fresh  # type: ignore[attr-defined]
        self.out.append(ast.copy_location(node, self.at))

    def fresh(self, name: str) -> str:
        n = 2
        while (new := f"{name[:LONGEST_STEM]}_{n}") in self.taken:
            n += 1
        self.taken.add(new)
        return new

    # expressions

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """A rewritten copy, because the original is needed if a statement turns out to be foreign."""
        node = copy.copy(node)
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                setattr(node, name, [*value])
        return super().generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        name = self.current.get(node.id, node.id) if isinstance(node.ctx, ast.Load) else node.id
        return ast.copy_location(ast.Name(name, node.ctx), node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        test, then, other = self.visit(node.test), self.visit(node.body), self.visit(node.orelse)
        return ast.copy_location(self.choice(test, then, other), node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        left, right = self.visit(node.left), self.visit(node.right)
        is_power = isinstance(node.op, ast.Pow)
        new: ast.expr = ast.Call(_load("pow"), [left, right], []) if is_power else ast.BinOp(left, node.op, right)
        return ast.copy_location(new, node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        match node:
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module in MODULES and name in CALLS:
                return ast.copy_location(_load(name), node)
        return self.generic_visit(node)

    def choice(self, test: ast.expr, then: ast.expr, other: ast.expr) -> ast.expr:
        """The conditional `then if test else other`, with one comparison at a time."""
        match test:
            case ast.BoolOp(op=ast.And(), values=[*values, last]):
                other = self.shared(other)
                result = self.choice(last, then, other)
                for value in reversed(values):
                    result = self.choice(value, result, other)
                return result
            case ast.BoolOp(op=ast.Or(), values=values):
                negated: list[ast.expr] = [ast.UnaryOp(ast.Not(), value) for value in values]
                return self.choice(ast.BoolOp(ast.And(), negated), other, then)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self.choice(operand, other, then)
            case ast.Compare(left=left, ops=[_, _, *_] as ops, comparators=comparators):
                sides = [left, *map(self.shared, comparators[:-1]), comparators[-1]]
                pairs = [ast.Compare(sides[i], [op], [sides[i + 1]]) for i, op in enumerate(ops)]
                return self.choice(ast.BoolOp(ast.And(), list[ast.expr](pairs)), then, other)
            case _:
                return ast.IfExp(test, then, other)

    def shared(self, node: ast.expr) -> ast.expr:
        """An expression that can stand in several places: a name for it, unless it is one already."""
        if isinstance(node, ast.Name | ast.Constant | ast.Attribute):
            return node
        name = self.fresh("part")
        self.emit(ast.Assign([ast.Name(name, ast.Store())], node), fresh=True)
        return _load(name)


def _load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _returns(statements: Sequence[ast.stmt]) -> bool:
    """True if the statements return on every path."""
    return any(
        isinstance(node, ast.Return) or (isinstance(node, ast.If) and _returns(node.body) and _returns(node.orelse))
        for node in statements
    )
