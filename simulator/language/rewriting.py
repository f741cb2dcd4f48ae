"""Python that the language lacks, and the original proposal's spelling, as the language's own syntax tree.

Names that are assigned again get fresh names; `and`, `or`, `not` and chained comparisons become nested conditionals;
assignments under an `if` become conditionals; `x ** c` is `pow(x, c)`, and `x ** 2` is `x * x`, also below 0. The
meaning is the same, because the language is pure and total. All other text is left as it is, for the reader to refuse.

The original proposal has `def predict_step_time(b)` with `b['prefill_tokens']`, also for fields of the deployment, and
constants in `CONSTANTS = {...}`, as `CONSTANTS['c1']`, `c1` or `b['c1']`. Another name that is like no field, as in
`b['beta0']`, is a constant too; a fit finds its value.
"""

from __future__ import annotations

import ast
import copy
import keyword
from collections.abc import Iterable, Mapping, Sequence

from simulator.language.ir import CALLS, METHODS
from simulator.language.reader import Scope, meant_fields
from simulator.language.source import NAME, ProgramError, names
from simulator.schema import PER_SECOND, READABLE

MOST_IFS = 50  # of a function, whose statements are walked recursively; a program may have far fewer
LONGEST_STEM = 56  # characters of a name that are kept in a fresh one, see source.NAME
MODULES = ("math", "np", "numpy")  # `math.sqrt(x)` is read as `sqrt(x)`
# Where a constant without a value starts that multiplies one of CONTEXTS, or nothing; another one starts at 1.
CONTEXT_START, ADDED_START = 0.001, 100.0
CONTEXTS = tuple(f.name for f in READABLE.values() if f.name.startswith("kv_") and f.scope == "b" and f.unit == "token")
_HEADS = {f"predict_{name}": name for name in METHODS}


def rewrite(tree: ast.Module, scope: Scope, notes: list[str] | None = None) -> list[ProgramError]:
    """Bring the module to the language's own spelling, in place. Mistakes in CONSTANTS are noted in `scope`.

    With `notes`, what is never used is left out, and they say so; else the reader refuses it, and the errors about
    entries of CONSTANTS are returned.
    """
    tree.body = [node for node in tree.body if not _imports_mathematics(node)]
    tables = [node for node in tree.body if _is_table(node)]
    tree.body = [node for node in tree.body if node not in tables]
    values = _values(tables, scope)
    used: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            _set_off_constants(node.args)
            _write_out_head(node)
            Statements(node, values).rewrite()
            _leave_out_unused(node, notes)
            used |= {arg.arg for arg in node.args.kwonlyargs}
    unused = [name for name in values if name not in used]
    ast.fix_missing_locations(tree)
    if notes is None:
        return [scope.fail(values[name], f"constant {name!r} is never used: remove it") for name in unused]
    notes += [f"CONSTANTS: {name!r} is never used and was left out" for name in unused]
    return []


def _is_table(node: ast.stmt) -> bool:
    """True for `CONSTANTS = {...}`."""
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and stored(node) == {"CONSTANTS"}


def _values(tables: Iterable[ast.stmt], scope: Scope) -> dict[str, ast.expr]:
    """The entries of the tables of constants. Their names must be valid in our own spelling."""
    values: dict[str, ast.expr] = {}
    for table in tables:
        assert isinstance(table, ast.Assign) and isinstance(table.value, ast.Dict)
        for key, entry in zip(table.value.keys, table.value.values, strict=True):
            name = key.value if isinstance(key, ast.Constant) else None
            if not isinstance(name, str) or not _is_name(name):
                why = "a name in CONSTANTS is not a plain quoted identifier: rename it"
                scope.note(scope.fail(entry, why))
            elif name in values or name in ("b", "r", "s", "CONSTANTS", *CALLS):
                scope.note(scope.fail(entry, f"the name {name!r} is taken: rename the constant"))
            else:
                values[name] = entry
    return values


def _is_name(text: str) -> bool:
    return bool(NAME.fullmatch(text)) and not keyword.iskeyword(text)


def _write_out_head(function: ast.FunctionDef) -> None:
    """`def predict_step_time(b)` as `def step_time(b, s)`."""
    if function.name not in _HEADS:
        return
    function.name = _HEADS[function.name]
    function.original = True  # type: ignore[attr-defined]
    objects, args = METHODS[function.name], function.args
    if len(args.args) == 1 and args.args[0].arg in objects:
        args.args = [ast.arg(name) for name in objects]


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


def _leave_out_unused(function: ast.FunctionDef, notes: list[str] | None) -> None:
    """Leave out variables that the rewriting added and nothing uses, and with `notes` all others and constants too."""
    used: set[str] = set()
    kept: list[ast.stmt] = []
    unused: list[str] = []
    for node in reversed(function.body):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) if name not in used and getattr(node, "fresh", False):
                pass
            case ast.Assign(targets=[ast.Name(id=name)]) if name not in used and notes is not None:
                unused.append(name)
            case _:
                used |= _loaded([node])
                kept.append(node)
    function.body, args = kept[::-1], function.args
    if notes is None:
        return
    pairs = list(zip(args.kwonlyargs, args.kw_defaults, strict=True))
    unused += [arg.arg for arg, _ in pairs if arg.arg not in used]
    constants = [pair for pair in pairs if pair[0].arg in used]
    args.kwonlyargs, args.kw_defaults = [arg for arg, _ in constants], [default for _, default in constants]
    notes += [f"{function.name}: {name!r} is never used and was left out" for name in unused]


def _loaded(nodes: Iterable[ast.AST]) -> set[str]:
    return {n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def stored(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


class _Foreign(Exception):
    pass


class Statements(ast.NodeTransformer):
    """Rewrites the body of a function into `out`. `current`: the names that hold the values of variables by now."""

    def __init__(self, function: ast.FunctionDef, values: Mapping[str, ast.expr]) -> None:
        """values: those of the constants in CONSTANTS."""
        args = function.args
        self.function = function
        self.objects = METHODS.get(function.name, ())
        self.own = {arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)}
        self.values = dict(values)
        subscripts = [n for n in ast.walk(function) if isinstance(n, ast.Subscript) and isinstance(n.value, ast.Name)]
        products = [n for n in ast.walk(function) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mult)]
        factors = [side for n in products for side in (n.left, n.right)]
        of_contexts = [a for n in products for a, b in ((n.left, n.right), (n.right, n.left)) if _is_context(b)]
        for node in sorted(subscripts, key=lambda n: (n.lineno, n.col_offset)):
            if (name := self.constant(node)) and name not in self.own:
                start = CONTEXT_START if node in of_contexts else 1.0 if node in factors else ADDED_START
                self.values.setdefault(name, ast.copy_location(ast.Constant(start), node))
        self.reserved = {*self.own, *CALLS, *self.values}
        self.taken = {*names(function), *self.reserved, "CONSTANTS"}
        self.current: dict[str, str] = {}
        self.assigned: set[str] = set()
        self.out: list[ast.stmt] = []
        self.branches = 0  # how many conditions the statement is under
        self.at: ast.stmt = function  # where a statement that is added is said to stand

    def rewrite(self) -> None:
        rest = self.function.body
        few = sum(isinstance(n, ast.If | ast.IfExp) for n in ast.walk(self.function)) <= MOST_IFS
        while rest:
            node, rest = rest[0], rest[1:]
            emitted, current = len(self.out), dict(self.current)
            self.at = node
            try:
                if not few:
                    raise _Foreign
                rest = self.statement(node, rest)
            except _Foreign:
                del self.out[emitted:]
                self.at, self.current, self.branches = node, current, 0
                self.out.append(self.visit(node))
                self.assigned |= stored(node)
        self.function.body, args = self.out, self.function.args
        used = _loaded(self.out) - self.own - {*self.assigned}
        for name in [name for name in self.values if name in used]:
            args.kwonlyargs.append(ast.copy_location(ast.arg(name), self.values[name]))
            args.kw_defaults.append(self.values[name])

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
                self.emit(
                    ast.If(_truth(self.visit(test)), [ast.copy_location(ast.Return(self.value(body)), self.at)], [])
                )
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
            case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(), value=ast.expr() as value):
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
        match node:
            case ast.BinOp(op=ast.Pow(), right=ast.Constant(value=2)):
                left = self.shared(left)
                new: ast.expr = ast.BinOp(left, ast.Mult(), left)
            case ast.BinOp(op=ast.Pow()):
                new = ast.Call(_load("pow"), [left, right], [])
            case _:
                new = ast.BinOp(left, node.op, right)
        return ast.copy_location(new, node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if name := self.constant(node):
            return ast.copy_location(ast.Name(name, ast.Load()), node)  # also where a variable has this name
        match node:
            case ast.Subscript(value=ast.Name(id=owner), slice=ast.Constant(value=str(name))) if self.owner(
                owner, name
            ):
                field = ast.Attribute(_load(self.owner(owner, name)), name, ast.Load())
                return ast.fix_missing_locations(ast.copy_location(field, node))
        return self.generic_visit(node)

    def owner(self, owner: str, name: str) -> str:
        """The object of the field `owner[name]`, which may be one of the deployment; "" if there is no such field."""
        if owner not in self.objects:
            return ""
        if name in PER_SECOND and getattr(self.function, "original", False):
            return "s"
        return next((o for o in (owner, "s") if (o, name) in READABLE), "")

    def constant(self, node: ast.Subscript) -> str:
        """The constant that `CONSTANTS['c']` or `b['c']` means; "" if it means none."""
        match node:
            case ast.Subscript(value=ast.Name(id="CONSTANTS"), slice=ast.Constant(value=str(name))):
                return name if name in self.values else ""
            case ast.Subscript(value=ast.Name(id=owner), slice=ast.Constant(value=str(name))) if owner in self.objects:
                known = name in self.values or (_is_name(name) and not meant_fields(name, self.objects))
                return name if known and not self.owner(owner, name) else ""
        return ""

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
                return ast.IfExp(_truth(test), then, other)

    def shared(self, node: ast.expr) -> ast.expr:
        """An expression that can stand in several places: a name for it, unless it is one already."""
        if isinstance(node, ast.Name | ast.Constant | ast.Attribute):
            return node
        name = self.fresh("part")
        self.emit(ast.Assign([ast.Name(name, ast.Store())], node), fresh=True)
        return _load(name)


def _is_context(node: ast.expr) -> bool:
    return isinstance(node, ast.Subscript) and isinstance(key := node.slice, ast.Constant) and key.value in CONTEXTS


def _truth(test: ast.expr) -> ast.expr:
    """`b.tokens` as a condition: `b.tokens != 0`."""
    if not isinstance(test, ast.Attribute):
        return test
    return ast.copy_location(ast.Compare(test, [ast.NotEq()], [ast.Constant(0.0)]), test)


def _load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _returns(statements: Sequence[ast.stmt]) -> bool:
    """True if the statements return on every path."""
    return any(
        isinstance(node, ast.Return) or (isinstance(node, ast.If) and _returns(node.body) and _returns(node.orelse))
        for node in statements
    )
