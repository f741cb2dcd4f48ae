"""What predictions depend on, and where their intervals come from, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

from evaluator.sensitivity import CONSTANT, Origin, TermShare
from evolve.program.forecast import Forecast, what
from evolve.report.printing import note, show
from evolve.report.table import Row, Table, row, section

FEW = 6  # experiments that have up to LINES lines each; where there are more, each has one
LINES = 3
TERMS_LEGEND = """\
mostly: the terms of the program on which the mean E2E depends most. At 50 % it grows by 0.5 % if the term grows by 1 %.
Longer steps mean more requests at once, so shares add up to more than 100 %, near capacity to much more."""
ORIGINS_LEGEND = """\
interval mostly from: shares of the squared scale of its interval (docs/validation.md). held out: errors on held-out
runs; pace: steps 3 % shorter or longer; a field, or a method without fields: what the programs that fit equally well
disagree about, with how many of them differ in it from this one by more than 0.1 % of the E2E; constants: their
standard errors, a share that adds to no other, because errors on held-out runs contain them."""


def print_depends(experiments: Sequence[Forecast]) -> None:
    """Print the largest shares: up to LINES for each of FEW experiments, one for each of more."""
    if not any(e.depends_on for e in experiments):
        return
    doubted = any(e.origins for e in experiments)
    note(f"{TERMS_LEGEND} {ORIGINS_LEGEND}" if doubted else TERMS_LEGEND)
    few = len(experiments) <= FEW
    title = f"What the mean E2E depends on{'' if few else ' most (--json has more)'}"
    rows = [part for e in experiments for part in (section(_lines(e)) if few else [_line(e)])]
    if doubted:
        show(Table.of(title, f"experiment|~mostly|{'~' if few else ''}interval mostly from", rows))
    else:
        show(Table.of(title, "experiment|~mostly", (replace(part, cells=part.cells[:2]) for part in rows)))


def _lines(e: Forecast) -> list[Row]:
    terms, origins = map(_term, e.depends_on[:LINES]), map(_origin, e.origins[:LINES])
    first, *more = list(zip_longest(terms, origins, fillvalue="")) or [("-", "-")]
    return [row(e.id, *first), *(row("", *cells) for cells in more)]


def _line(e: Forecast) -> Row:
    """One row; of the interval only what adds up, as there is no room for the names of constants."""
    origins = [o for o in e.origins if o.kind != CONSTANT]
    return row(e.id, _term(e.depends_on[0]) if e.depends_on else "-", _origin(origins[0]) if origins else "-")


def _term(share: TermShare) -> str:
    return f"{100.0 * share.share:3.0f} % {share.term.text}"


def _origin(origin: Origin) -> str:
    return f"{100.0 * origin.share:3.0f} % {what(origin)}"
