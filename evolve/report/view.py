"""A report in a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from evolve.output.columns import words, wrapped
from evolve.output.printing import markdown, note, prose, show
from evolve.output.table import Table
from evolve.output.terminal import say
from evolve.output.terms import legend
from evolve.report.dimension import Dimension, Exhibit
from evolve.report.report import Report
from simulator.common.text import visible

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
    lines = [f"# {TITLE.format(report.name)}", f"**In short.** {report.in_short}", markdown(verdicts_table(report))]
    if report.missing:
        lines.append("\n".join(f"- missing: {line}" for line in report.missing))
    lines += [f"Program, key `{report.key}`, data `{report.data}`:", f"```python\n{report.program}\n```"]
    for number, dimension in report.numbered:
        lines += _section(number, dimension)
    return visible("\n\n".join(lines), keep="\n\t") + "\n"


def _section(number: int, d: Dimension) -> Iterator[str]:
    yield f"## {number}. {d.title}: {d.verdict.level}"
    yield d.verdict.sentence
    yield f"Rule: {d.verdict.rule}."
    for exhibit in d.exhibits:
        yield from _exhibit(exhibit)
    if d.caveats:
        yield "\n".join(f"- {caveat}" for caveat in d.caveats)


def _exhibit(exhibit: Exhibit) -> Iterator[str]:
    yield f"**{exhibit.table.title}**"
    yield markdown(exhibit.table)
    yield "```sh\n" + "\n".join(exhibit.repeat) + "\n```"
