"""Text -> syntax tree: what is read at all, how deep and how large; and what a complaint calls a piece of syntax."""

from __future__ import annotations

import ast
import io
import itertools
import re
import tokenize
import warnings
from collections.abc import Callable
from typing import TypeVar

from simulator.errors import InputError

MAX_BYTES = 20_000
MAX_DEPTH = 100  # levels of the syntax tree; whatever recurses over it needs a few frames a level
MAX_PIECES = 2_000  # expressions within expressions, some two an operation; whatever walks them all stays quick
MAX_BITS = 1024  # of a whole number: float64 holds no larger one
NAME = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)
_SUSPECT = re.compile(r"[^\x00-\x7f]|\w{65}")  # without it, every name is plain

Read = TypeVar("Read")


class ProgramError(InputError):
    """The text is not a program of the language. Message: `where:line: why`."""


def syntax_tree(text: str | bytes, where: str) -> ast.Module:
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
    # the interpreter reads the line of a SyntaxError from its file, and no file has an empty name
    tree = _quietly(lambda: ast.parse(text, ""), where)
    _screen(tree, where)
    if _SUSPECT.search(text):  # the syntax tree has normalised names, which may hide what was written
        for token in _quietly(lambda: list(tokenize.generate_tokens(io.StringIO(text).readline)), where):
            if token.type == tokenize.NAME and not NAME.fullmatch(token.string):
                why = f"name {token.string[:40]!r} is not plain ASCII of at most 64 characters: rename it"
                raise ProgramError(f"{where}:{token.start[0]}: {why}")
    return tree


def _quietly(reading: Callable[[], Read], where: str) -> Read:
    """What Python's own reader gives, without its warnings, and with our complaint for its errors."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return reading()
    except SyntaxError as e:
        huge = "int_max_str_digits" in e.msg
        why = TOO_LARGE if huge else f"not valid syntax ({e.msg}): mend the text"
        raise ProgramError(f"{where}:{e.lineno or 1}: {why}") from None
    except (RecursionError, MemoryError):
        raise ProgramError(f"{where}:1: {_TOO_DEEP}") from None
    except (ValueError, tokenize.TokenError) as e:
        raise ProgramError(f"{where}:1: cannot be read ({str(e).splitlines()[0]}): mend the text") from None


_TOO_DEEP = f"nested too deeply, at most {MAX_DEPTH} levels are read: split it over assignments"
TOO_LARGE = "a number too large for float64: give a finite one"


# leaves beside those that a person sees; left out, a name is as deep as the number that unparse replaces by it
_MARKS = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)


def _screen(tree: ast.Module, where: str) -> None:
    """Bound, without recursion, how far and how deep everything after this walks and how large a number it prints."""
    parts = (part for node in tree.body for part in getattr(node, "body", [node]))  # heads may list many constants
    pieces = (n for part in parts for n in ast.walk(part) if isinstance(n, ast.expr))
    if next(itertools.islice(pieces, MAX_PIECES, None), None) is not None:
        why = f"too long, at most {MAX_PIECES} fields, constants, numbers and operations are read: shorten the program"
        raise ProgramError(f"{where}:1: {why}")
    level: list[ast.AST] = [tree]
    for _ in range(MAX_DEPTH):
        level = [c for node in level for c in ast.iter_child_nodes(node) if not isinstance(c, _MARKS)]
        for node in level:
            value = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
            if isinstance(value, int) and value.bit_length() > MAX_BITS:
                raise ProgramError(f"{where}:{getattr(node, 'lineno', 1)}: {TOO_LARGE}")
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


def kind(node: ast.AST) -> str:
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


def docstring(body: list[ast.stmt]) -> tuple[str, list[ast.stmt]]:
    match body:
        case [ast.Expr(value=ast.Constant(value=str(doc))), *rest]:
            return doc, rest
        case _:
            return "", body
