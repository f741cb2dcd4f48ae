"""The original proposal's spelling: `def predict_step_time(b)`, `b['prefill_tokens']`, `CONSTANTS = {...}`.

It is read into the same representation. `b[...]` is a batch or a deployment field, `r[...]` a field of the request.
"""

from __future__ import annotations

import ast
import keyword

from simulator.common.errors import shown
from simulator.language.ir import CALLS, METHODS, Const, Constant, Expr, Function, Program
from simulator.language.reader import Scope, block, number, read_field
from simulator.language.source import NAME, ProgramError, docstring, kind
from simulator.schema import FIELDS

_HEADS = {f"predict_{name}": name for name in METHODS}


def is_dialect(tree: ast.Module) -> bool:
    """Whether a module is written in the dialect.

    >>> is_dialect(ast.parse("def predict_step_time(b): return b['tokens']"))
    True
    """
    return any(isinstance(n, ast.FunctionDef) and n.name in _HEADS for n in tree.body)


def translate(tree: ast.Module, where: str, mistakes: list[ProgramError]) -> Program:
    """The program that a module in the dialect spells. Adds its mistakes to `mistakes`, as `parse.read` does.

    >>> tree = ast.parse("def predict_step_time(b): return b['tokens'] + b['layers']")
    >>> spell(translate(tree, "mine.py", []).functions[0].result)
    'b.tokens + s.layers'
    """
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
    """Whether the head is `def predict_...(b)`, with one of the objects that the method may read and nothing else."""
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
