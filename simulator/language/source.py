"""Text -> syntax tree, within limits of size and depth; and the names that messages use for pieces of syntax."""

from __future__ import annotations

import ast
import io
import re
import threading
import tokenize
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from simulator.common.errors import InputError

MAX_BYTES = 20_000
MAX_DEPTH = 100  # levels of the syntax tree: functions that recurse over it need a few frames a level
MAX_PIECES = 2_000  # expressions, about two an operation: functions that walk them all stay quick
MAX_BITS = 1024  # of a whole number: float64 holds no larger one
NAME = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)
_SUSPECT = re.compile(r"[^\x00-\x7f]|\w{65}")  # if it matches nowhere, every name is plain

Read = TypeVar("Read")

# One text at a time: Python 3.11 counts the depth of a syntax tree for all threads together, so two threads that
# parse at once can end in a SystemError (python/cpython#106905); and ignoring warnings holds for all threads too.
_READING = threading.Lock()


class ProgramError(InputError):
    """The text is not a program of the language. Message: `where:line: why`."""

    def __init__(self, where: str, line: int, why: str) -> None:
        super().__init__(f"{where}:{line}: {why}")
        self.where, self.line, self.why = where, line, why

    def __reduce__(self) -> tuple[type[ProgramError], tuple[str, int, str]]:
        return type(self), (self.where, self.line, self.why)  # so that a worker process can send it


def syntax_tree(text: str | bytes, where: str) -> ast.Module:
    """The syntax tree of a text. Raises ProgramError for one that is not Python, too large or too deep."""
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(raw) > MAX_BYTES:
        raise ProgramError(where, 1, f"{len(raw)} bytes, at most {MAX_BYTES} are read: shorten the program")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise ProgramError(where, 1, f"not UTF-8 text (byte {e.start}): give a program's text") from None
    if "\0" in text:
        raise ProgramError(where, 1, "binary data: give a program's text")
    if not text.strip():
        raise ProgramError(where, 1, "empty: define `def step_time(b, s, *, ...): return ...`")
    # The empty file name keeps the interpreter from looking up the line of a SyntaxError in a file.
    tree = _quietly(lambda: ast.parse(text, ""), where)
    screen(tree, where)
    if _SUSPECT.search(text):  # the syntax tree has normalised names, so look at the tokens as written
        for token in _quietly(lambda: list(tokenize.generate_tokens(io.StringIO(text).readline)), where):
            if token.type == tokenize.NAME and not NAME.fullmatch(token.string):
                why = f"name {token.string[:40]!r} is not plain ASCII of at most 64 characters: rename it"
                raise ProgramError(where, token.start[0], why)
    return tree


def _quietly(reading: Callable[[], Read], where: str) -> Read:
    """The result of Python's own reader, without its warnings and with its errors as ProgramError."""
    try:
        with _READING, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return reading()
    except SyntaxError as e:
        huge = "int_max_str_digits" in e.msg
        why = TOO_LARGE if huge else f"not valid syntax ({e.msg}): fix the text"
        raise ProgramError(where, e.lineno or 1, why) from None
    except (RecursionError, MemoryError):
        raise ProgramError(where, 1, _TOO_DEEP) from None
    except (ValueError, tokenize.TokenError) as e:
        raise ProgramError(where, 1, f"cannot be read ({str(e).splitlines()[0]}): fix the text") from None


_TOO_DEEP = f"nested too deeply, at most {MAX_DEPTH} levels are read: split it over assignments"
TOO_LARGE = "a number too large for float64: give a finite one"


# Leaves of the tree that are not visible in the text. They do not count as a level, so that a name is no deeper than
# the number for which `unparse` writes it.
_MARKS = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)


def screen(tree: ast.Module, where: str) -> None:
    """Reject trees that later functions could not walk or whose numbers they could not print. Does not recurse."""
    levels = list(_levels([tree]))
    if _pieces(levels) > MAX_PIECES:
        bodies = [part for node in tree.body for part in getattr(node, "body", [node])]
        if _pieces(_levels(bodies)) > MAX_PIECES:  # without the heads: many constants are fine
            limit = f"at most {MAX_PIECES} fields, constants, numbers and operations are read"
            raise ProgramError(where, 1, f"too long, {limit}: shorten the program")
    for depth, level in enumerate(levels):
        for node in level:
            if isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value.bit_length() > MAX_BITS:
                raise ProgramError(where, node.lineno, TOO_LARGE)
        if depth == MAX_DEPTH:
            raise ProgramError(where, max(getattr(node, "lineno", 1) for node in level), _TOO_DEEP)


def _pieces(levels: Iterable[list[ast.AST]]) -> int:
    """The number of expressions among these nodes."""
    return sum(isinstance(node, ast.expr) for level in levels for node in level)


def _levels(level: list[ast.AST]) -> Iterator[list[ast.AST]]:
    """These nodes, then level by level what is below them. Quicker than `ast.walk`, which every text would pay for."""
    while level:
        yield level
        parts = [getattr(node, name, None) for node in level for name in node._fields]
        below = [part for some in parts for part in (some if isinstance(some, list) else (some,))]
        level = [part for part in below if isinstance(part, ast.AST) and not isinstance(part, _MARKS)]


_NAMED = """
    AnnAssign an annotated assignment; Assert an assert; Assign an assignment; AsyncFor a loop;
    AsyncFunctionDef an async function; AsyncWith a with; Attribute an attribute; AugAssign `op=`; Await an await;
    BinOp arithmetic; BoolOp and/or; Break a break; Call a call; ClassDef a class; Compare a comparison;
    Continue a continue; Delete a del; Dict a dict; DictComp a comprehension; Expr a bare expression; For a loop;
    FormattedValue an f-string; FunctionDef an inner function; GeneratorExp a comprehension; Global a global;
    If an if; IfExp a conditional; Import an import; ImportFrom an import; Interpolation a t-string;
    JoinedStr an f-string; Lambda a lambda; List a list; ListComp a comprehension; Match a match; Name a name;
    NamedExpr a walrus; Nonlocal a nonlocal; Pass a pass; Raise a raise; Return a return; Set a set;
    SetComp a comprehension; Slice a slice; Starred a star; Subscript a subscript; TemplateStr a t-string; Try a try;
    TryStar a try; Tuple a tuple; TypeAlias a type alias; UnaryOp an operator; While a loop; With a with;
    Yield a yield; YieldFrom a yield
"""
KINDS = dict(entry.strip().split(maxsplit=1) for entry in _NAMED.split(";"))


def kind(node: ast.AST) -> str:
    """The node in messages: short, and without line breaks."""
    match node:
        case ast.Constant(value=value):
            return repr(value)[:40]
        case _:
            return KINDS.get(type(node).__name__, type(node).__name__)


def names(tree: ast.AST) -> frozenset[str]:
    """All names in the tree, of variables and of arguments."""
    named = (n for n in ast.walk(tree) if isinstance(n, ast.Name | ast.arg))
    return frozenset(n.id if isinstance(n, ast.Name) else n.arg for n in named)


def docstring(body: list[ast.stmt]) -> tuple[str, list[ast.stmt]]:
    """The docstring of a body ("" without one), and the other statements."""
    match body:
        case [ast.Expr(value=ast.Constant(value=str(doc))), *rest]:
            return doc, rest
        case _:
            return "", body
