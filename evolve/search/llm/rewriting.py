"""What models write in Python that the language does not have, as syntax that it has. The meaning is the same.

Names that are assigned again get fresh names; `and`, `or`, `not` and chained comparisons become nested conditionals;
assignments under an `if` become conditionals. All of this relies on the language being pure and total: it does not
matter whether or when an expression is evaluated. What cannot be read so is left as it is, and the parser complains.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence

from simulator.language.ir import CALLS
from simulator.language.source import names

LONGEST_STEM = 56  # characters of a name that are kept in a fresh one, see source.NAME
MODULES = ("math", "np", "numpy")  # `math.sqrt(x)` is read as `sqrt(x)`


class _Foreign(Exception):
    """The statements cannot be rewritten."""


class Statements(ast.NodeTransformer):
    """Rewrites the body of a function, statement by statement, into `out`.

    `current` maps each variable to the name that holds its value at this point.
    """

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
        """Put the rewritten statements into the function."""
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
        """Rewrites a statement; what remains of the `rest`."""
        match node:
            case ast.Return(value=ast.expr() as value):
                self.emit(ast.Return(self.visit(value)))
            case ast.If(test=test, body=body, orelse=orelse) if _returns(body):
                after = [*orelse, *rest]
                if not _is_simple(test) and _returns(after):
                    self.emit(ast.Return(self.choice(self.visit(test), self.value(body), self.value(after))))
                    return []
                self.emit(ast.If(self.visit(test), [self.located(ast.Return(self.value(body)))], []))
                return after
            case _:
                self.assignment(node)
        return [*rest]

    def value(self, statements: Sequence[ast.stmt]) -> ast.expr:
        """The value that statements return; what they assign is emitted."""
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
        """Rewrites an assignment, or an `if` that only assigns. Raises _Foreign for anything else."""
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self.assign(name, self.visit(value))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                self.assign(name, self.visit(value))
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
                self.assign(name, self.visit(ast.BinOp(ast.Name(name, ast.Load()), op, value)))
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
        """Emits an assignment. Under a condition, and to a name that has a meaning already, it is to a fresh name."""
        fresh = bool(self.branches) or name in self.assigned or name in self.reserved
        target = self.fresh(name) if fresh else name
        self.emit(ast.Assign([ast.Name(target, ast.Store())], value), fresh)
        self.assigned.add(target)
        self.current[name] = target

    def emit(self, node: ast.stmt, fresh: bool = False) -> None:
        node.fresh = fresh  # type: ignore[attr-defined]
        self.out.append(self.located(node))

    def located(self, node: ast.stmt) -> ast.stmt:
        return ast.copy_location(node, self.at)

    def fresh(self, name: str) -> str:
        """A name like this one that nothing has."""
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
        if isinstance(node.op, ast.Pow):
            return ast.copy_location(ast.Call(ast.Name("pow", ast.Load()), [left, right], []), node)
        return ast.copy_location(ast.BinOp(left, node.op, right), node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        match node:
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module in MODULES and name in CALLS:
                return ast.copy_location(ast.Name(name, ast.Load()), node)
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
            case ast.BoolOp(op=ast.Or(), values=[*values, last]):
                then = self.shared(then)
                result = self.choice(last, then, other)
                for value in reversed(values):
                    result = self.choice(value, then, result)
                return result
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


def _load(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def _is_simple(test: ast.expr) -> bool:
    """Whether a condition is not made of several comparisons."""
    match test:
        case ast.Compare(ops=ops):
            return len(ops) == 1
        case _:
            return not isinstance(test, ast.BoolOp | ast.UnaryOp)


def _returns(statements: Sequence[ast.stmt]) -> bool:
    """Whether the statements return on every path."""
    for node in statements:
        if isinstance(node, ast.Return):
            return True
        if isinstance(node, ast.If) and _returns(node.body) and _returns(node.orelse):
            return True
    return False


def stored(node: ast.AST) -> set[str]:
    """The names that are assigned to."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
