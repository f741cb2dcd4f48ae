"""A run or a program as one JSON document, or as a snippet for a LaTeX document that loads amsmath."""

from __future__ import annotations

from collections.abc import Sequence

from archive.elite import Elite
from evolve import __version__
from evolve.export.latex import escaped, to_latex
from evolve.export.source import ExportSource, entries
from evolve.export.symbols import constant_symbols, constant_values
from evolve.inspect.lists import archive_json
from evolve.run.program import with_true_names
from evolve.summary.searched import Searched
from simulator.common.json import JsonObject
from simulator.language.ir import Program, inlined
from simulator.language.units import spell as spell_unit
from simulator.language.unparse import spell, unparse

_HEADS = ("id", "worst-3 E2E", "mean", "group-out", "E2E", "TTFT", "ITL", "operations", "constants")
_HEAD = r"% needs \usepackage{amsmath}"


def run_json(found: Searched) -> JsonObject:
    """The values of `evolve archive --json`, with the champion's id, and the constants and formulas of programs by id.

    Constants have the names under which programs are shown, in texts too.
    """
    members = {e.id: with_true_names(e) for e in found.archive.members()}
    archive = archive_json(found)
    for elite in (*archive["front"], *archive["grid"]):
        elite["text"] = members[elite["id"]].text
    programs = {str(id): _formulas(e.program) for id, e in members.items()}
    return archive | {"run": str(found.run.path), "champion": found.champion.id, "programs": programs}


def program_json(entry: ExportSource) -> JsonObject:
    """A program's text, constants and formulas."""
    return {"engine": __version__, "program": entry.name, "text": unparse(entry.program), **_formulas(entry.program)}


def _formulas(program: Program) -> JsonObject:
    """The constants by name, each method as one expression of the language, and all of them as LaTeX."""
    return {
        "values": constant_values(program),
        "formulas": {f.name: spell(inlined(f)) for f in program.functions},
        "latex": to_latex(program),
    }


def run_snippet(found: Searched) -> str:
    """The table of the run's front, errors in percent, and the champion's formula with its constants."""
    title = escaped(str(found.run.path))
    rows = [_row(e) for e in found.archive.front_by_size()]
    front = rf"% Pareto front of {title}, errors in percent as in the search; the champion is {found.champion.id}"
    table = _table("r" * len(_HEADS), _HEADS, rows)
    return "\n".join([_HEAD, front, *table, "", *_formula(entries(found)[0]), ""])


def program_snippet(entry: ExportSource) -> str:
    """The formula of a program with its constants."""
    return "\n".join([_HEAD, *_formula(entry), ""])


def _formula(entry: ExportSource) -> list[str]:
    symbols = constant_symbols(entry.program)
    rows = [
        (
            rf"$\mathit{{{escaped(c.constant.name)}}}$",
            escaped(c.method),
            f"{c.constant.value:g}",
            escaped(spell_unit(c.constant.unit)) if c.constant.unit is not None else "",
        )
        for c in symbols
    ]
    heads = ("constant", "of", "value", "unit")
    table = ["", *_table("llrl", heads, rows)] if rows else []
    return [f"% {escaped(entry.name)}: microseconds; x/0 is 0", r"\[", to_latex(entry.program), r"\]", *table]


def _table(columns: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [" & ".join(row) + r" \\" for row in (heads, *rows)]
    return [rf"\begin{{tabular}}{{{columns}}}", r"\hline", lines[0], r"\hline", *lines[1:], r"\hline", r"\end{tabular}"]


def _row(e: Elite) -> tuple[str, ...]:
    s = e.score
    figures = (s.worst3, s.mean_error, e.group_out, s.e2e, s.ttft, s.itl)
    return (str(e.id), *("--" if x is None else f"{x:.2f}" for x in figures), str(e.operations), str(e.constants))
