"""A program that a model wrote, read kindly: what needs no guessing is understood, and all mistakes are listed."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

from evolve.search.llm.changes import WrittenChange
from evolve.search.llm.rewriting import MODULES, Statements, stored
from simulator.common.text import plain
from simulator.language.infer import infer
from simulator.language.ir import CALLS, Program
from simulator.language.parse import read
from simulator.language.source import MAX_BYTES
from simulator.language.unparse import unparse

MOST_IFS = 50  # of a function, whose statements are walked recursively; a program may have far fewer
MOST_LISTED = 8  # mistakes of a program
LONGEST_COMPLAINT = 1200  # characters
LONGEST_WHY = 250  # characters of one mistake


@dataclass(frozen=True, slots=True)
class Understood:
    """A program in its standard spelling, without comments and docstrings; or the text and what is wrong with it.

    `notes` say what was left out. `program` has the lines of the text as it was written.
    """

    text: str
    program: Program | None
    complaint: str
    notes: tuple[str, ...]


def understood(written: WrittenChange) -> Understood:
    """The program that a model wrote."""
    notes: list[str] = []
    reading = read(written.text, rewrite=partial(rewrite, notes=notes))
    program = reading.program
    if reading.mistakes:
        mistakes = [(mistake.line, mistake.why) for mistake in reading.mistakes]
        clashes = [clash for function in program.functions for clash in infer(function).clashes]
        mistakes += [(clash.line, f"units: {clash.why}") for clash in clashes]
        kept = written.text.encode("utf-8", "replace")[: MAX_BYTES + 1].decode("utf-8", "ignore")
        return Understood(kept, None, complaint_of(written.places, sorted(mistakes, key=lambda m: m[0])), tuple(notes))
    bare = replace(program, doc="", functions=tuple(replace(f, doc="") for f in program.functions))
    return Understood(unparse(bare), bare, "", tuple(notes))


def complaint_of(places: tuple[str, ...], mistakes: Iterable[tuple[int, str]]) -> str:
    """A complaint of one line: mistakes as (line, why), each with the place of its line; line 0 is no place."""
    lines = list(dict.fromkeys(_placed(places, *mistake) for mistake in mistakes))
    more = [f"and {len(lines) - MOST_LISTED} more"] if len(lines) > MOST_LISTED else []
    return plain("; ".join(lines[:MOST_LISTED] + more), LONGEST_COMPLAINT)


def _placed(places: tuple[str, ...], line: int, why: str) -> str:
    where = f"{places[min(line, len(places)) - 1]}: " if line and places else ""
    return plain(where + why, LONGEST_WHY)


def rewrite(tree: ast.Module, notes: list[str]) -> ast.Module:
    """The module with what the language lacks rewritten, in place. Adds to `notes` what was left out."""
    tree.body = [node for node in tree.body if not _imports_mathematics(node)]
    constants = {name for table in _tables(tree) for key in table.keys if (name := _text(key))}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            _set_off_constants(node.args)
            if sum(isinstance(n, ast.If | ast.IfExp) for n in ast.walk(node)) <= MOST_IFS:
                Statements(node, constants).rewrite()
            _leave_out_locals(node, notes)
            _leave_out_constants(node, notes)
    read = {_text(n.slice) for n in ast.walk(tree) if isinstance(n, ast.Subscript)}
    for table in _tables(tree):
        entries = [(key, value, _text(key)) for key, value in zip(table.keys, table.values, strict=True)]
        notes += [_unused("CONSTANTS", name) for _, _, name in entries if name and name not in read]
        kept = [(key, value) for key, value, name in entries if not name or name in read]
        table.keys, table.values = [key for key, _ in kept], [value for _, value in kept]
    return ast.fix_missing_locations(tree)


def _imports_mathematics(node: ast.stmt) -> bool:
    match node:
        case ast.Import(names=aliases):
            return all(alias.name in MODULES and (alias.asname or alias.name) in MODULES for alias in aliases)
        case ast.ImportFrom(module=module, names=aliases, level=0):
            return module in MODULES and all(alias.name in CALLS and alias.asname is None for alias in aliases)
        case _:
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


def _unused(where: str, name: str) -> str:
    return f"{where}: {name!r} is never used and was left out"


def _leave_out_locals(function: ast.FunctionDef, notes: list[str]) -> None:
    used: set[str] = set()
    kept: list[ast.stmt] = []
    for node in reversed(function.body):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) if name not in used:
                if not getattr(node, "fresh", False):
                    notes.append(_unused(function.name, name))
            case _:
                used |= _loaded([node])
                kept.append(node)
    function.body = kept[::-1]


def _leave_out_constants(function: ast.FunctionDef, notes: list[str]) -> None:
    args, used = function.args, _loaded(function.body)
    pairs = list(zip(args.kwonlyargs, args.kw_defaults, strict=True))
    notes += [_unused(function.name, arg.arg) for arg, _ in pairs if arg.arg not in used]
    args.kwonlyargs = [arg for arg, _ in pairs if arg.arg in used]
    args.kw_defaults = [default for arg, default in pairs if arg.arg in used]


def _loaded(nodes: Iterable[ast.AST]) -> set[str]:
    return {n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
