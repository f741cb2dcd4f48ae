"""A run's archive, or a program, as one JSON document: texts, constants by name, and formulas as text."""

from __future__ import annotations

from evolve import __version__
from evolve.export.latex import to_latex
from evolve.export.source import ExportSource
from evolve.export.symbols import constant_values
from evolve.inspect.lists import archive_json
from evolve.summary.searched import Searched
from simulator.common.json import JsonObject
from simulator.language.ir import Program, inlined
from simulator.language.parse import parse
from simulator.language.unparse import spell, unparse


def run_json(found: Searched) -> JsonObject:
    """What `evolve archive --json` prints, with the champion's id, and the constants and formulas of programs by id."""
    programs = {str(e.id): _formulas(parse(e.text)) for e in found.archive.members()}
    extra = {"run": str(found.run.path), "champion": found.champion.id, "programs": programs}
    return archive_json(found) | extra


def program_json(entry: ExportSource) -> JsonObject:
    """A program's text, constants and formulas."""
    return {
        "engine": __version__,
        "program": entry.name,
        "text": unparse(entry.program),
        **_formulas(entry.program),
    }


def _formulas(program: Program) -> JsonObject:
    """The constants by name, each method as one expression of the language, and all of them as LaTeX."""
    return {
        "values": constant_values(program),
        "formulas": {f.name: spell(inlined(f)) for f in program.functions},
        "latex": to_latex(program),
    }
