"""A run's front and champion, or a program, as a snippet for a LaTeX document that loads amsmath."""

from __future__ import annotations

from collections.abc import Sequence

from archive.elite import Elite
from evolve.export.latex import escaped, to_latex
from evolve.export.source import ExportSource, entries
from evolve.export.symbols import constant_symbols
from evolve.summary.searched import Searched
from simulator.language.units import spell

_HEADS = ("id", "worst 3", "joint", "transfer", "E2E", "TTFT", "ITL", "operations", "constants")


def run_snippet(found: Searched) -> str:
    """The table of the run's front, errors in percent, and the champion's formula with its constants."""
    title = escaped(str(found.run.path))
    rows = [_row(e) for e in found.archive.front_by_size()]
    return "\n".join([
        _HEAD,
        rf"% Pareto front of {title}, errors in percent as in the search; the champion is {found.champion.id}",
        *_table("r" * len(_HEADS), _HEADS, rows),
        "",
        *_formula(entries(found)[0]),
        "",
    ])  # fmt: skip


def program_snippet(entry: ExportSource) -> str:
    """The formula of a program with its constants."""
    return "\n".join([_HEAD, *_formula(entry), ""])


_HEAD = r"% needs \usepackage{amsmath}"


def _formula(entry: ExportSource) -> list[str]:
    symbols = constant_symbols(entry.program)
    rows = [
        (rf"$\mathit{{{escaped(c.constant.name)}}}$", escaped(c.method), f"{c.constant.value:g}",
         escaped(spell(c.constant.unit)) if c.constant.unit is not None else "")
        for c in symbols
    ]  # fmt: skip
    heads = ("constant", "of", "value", "unit")
    table = ["", *_table("llrl", heads, rows)] if rows else []
    return [f"% {escaped(entry.name)}: microseconds; x/0 is 0", r"\[", to_latex(entry.program), r"\]", *table]


def _table(columns: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [" & ".join(row) + r" \\" for row in (heads, *rows)]
    return [rf"\begin{{tabular}}{{{columns}}}", r"\hline", lines[0], r"\hline", *lines[1:], r"\hline", r"\end{tabular}"]


def _row(e: Elite) -> tuple[str, ...]:
    figures = (e.worst3, e.joint, e.transfer, e.e2e, e.ttft, e.itl)
    return (str(e.id), *("--" if x is None else f"{x:.2f}" for x in figures), str(e.operations), str(e.constants))
