"""A report in a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from evolve.output.columns import words, wrapped
from evolve.output.printing import Block, Code, note, prose, show
from evolve.output.printing import page as page_of
from evolve.output.table import Table
from evolve.output.terminal import say
from evolve.output.terms import legend
from evolve.report.dimension import Dimension
from evolve.report.report import Report

TITLE = "Report on {}"
VERDICTS = "Verdicts"


def verdicts_table(report: Report) -> Table:
    """A row for each dimension: its verdict and the figures that decide it."""
    rows = [(d.title, d.verdict.level, d.verdict.sentence) for d in report.dimensions]
    return Table.of(VERDICTS, [words("dimension", "verdict"), wrapped("because")], rows)


def print_report(report: Report, explain: bool = False) -> None:
    """Print the paragraph at the top, the verdicts, then a section for each dimension; terms too if `explain`."""
    prose(TITLE.format(report.name), "bold")
    prose(f"In short: {report.in_short}")
    say()
    show(verdicts_table(report))
    for line in report.missing:
        prose(f"- missing: {line}")
    for number, dimension in report.numbered:
        say()
        say(f"{number}. {dimension.title}: {dimension.verdict.level}", "bold")
        prose(dimension.verdict.sentence)
        note(f"Rule: {dimension.verdict.rule}.")
        say()
        for exhibit in dimension.exhibits:
            show(exhibit.table)
            say("\n".join(["Again:", *(f"  {line}" for line in exhibit.repeat)]), "dim")
            say()
        for caveat in dimension.caveats:
            prose(f"- {caveat}")
    if explain:
        say()
        legend("data share", "held out", "identified", "in sample", "baseline", "limits")


def page(report: Report) -> str:
    head: list[Block] = [f"# {TITLE.format(report.name)}", f"**In short.** {report.in_short}", verdicts_table(report)]
    about: list[Block] = [
        [f"missing: {line}" for line in report.missing],
        f"Program, key `{report.key}`, data `{report.data}`:",
    ]
    sections = (block for number, dimension in report.numbered for block in _section(number, dimension))
    return page_of([*head, *about, Code(report.program, "python"), *sections])


def _section(number: int, d: Dimension) -> Iterator[Block]:
    yield from (f"## {number}. {d.title}: {d.verdict.level}", d.verdict.sentence, f"Rule: {d.verdict.rule}.")
    for exhibit in d.exhibits:
        yield from (f"**{exhibit.table.title}**", exhibit.table, Code("\n".join(exhibit.repeat), "sh"))
    yield d.caveats
