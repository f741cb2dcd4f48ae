"""A report in a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from evolve.output.columns import words, wrapped
from evolve.output.printing import Block, Code, more, note, prose, show
from evolve.output.printing import page as page_of
from evolve.output.table import Table
from evolve.output.terminal import say
from evolve.output.terms import legend
from evolve.report.accuracy import SampleErrors
from evolve.report.adoption import RULE, Adoption
from evolve.report.dimension import LEVELS, Dimension
from evolve.report.report import Report

TITLE = "Report on {}"


def verdicts_table(report: Report) -> Table:
    """A row for each dimension: its verdict and the figures that decide it."""
    rows = [(d.title, d.verdict.level, d.verdict.sentence) for d in report.dimensions]
    return Table.of("Verdicts", [words("dimension", "verdict"), wrapped("because")], rows)


def errors_table(adoption: Adoption) -> Table:
    """A row for each sample of runs: the mean errors there."""
    return Table.of_rows("Mean absolute errors in percent", SampleErrors, adoption.errors)


def answer(adoption: Adoption) -> str:
    """The verdict on adoption and its use, a sentence."""
    verdict = f"{adoption.verdict[0].upper()}{adoption.verdict[1:]}"
    return f"{verdict}: for {adoption.use}." if adoption.use else f"{verdict}."


def not_looked_at(report: Report) -> list[str]:
    """A line on the dimensions that the report lacks, if it lacks any."""
    return [f"Not looked at: `{report.look}`."] if report.look else []


def print_report(report: Report, explain: bool = False) -> None:
    """Print the verdict, why, and the verdicts on dimensions; then a section for each dimension that has tables.

    explain: rules and the meanings of terms, too.
    """
    prose(TITLE.format(report.name), "bold")
    if report.adoption:
        prose(answer(report.adoption), "bold")
        prose(f"{report.adoption.because} {report.about}")
        say()
        show(errors_table(report.adoption))
    else:
        prose(report.about)
        say()
    show(verdicts_table(report))
    for line in [*(f"- missing: {line}" for line in report.missing), *not_looked_at(report)]:
        prose(line)
    for number, dimension in report.sections:
        say()
        say(f"{number}. {dimension.title}: {dimension.verdict.level}", "bold")
        prose(dimension.verdict.sentence)
        say()
        for exhibit in dimension.exhibits:
            show(exhibit.table)
            say("\n".join(["Again:", *(f"  {line}" for line in exhibit.repeat)]), "dim")
            say()
        for caveat in dimension.caveats:
            prose(f"- {caveat}")
    if not explain:
        more(["rules of the verdicts"])
        return
    say()
    legend("data share", "held out", "identified", "in sample", "baseline", "limits")
    for title, rule in rules(report).items():
        note(f"{title}: {rule}.")


def rules(report: Report) -> dict[str, str]:
    """The rule of each verdict, and the meanings of levels."""
    own = {"Adoption": RULE} if report.adoption else {}
    levels = "; ".join(f"{level}: {meaning}" for level, meaning in LEVELS.items())
    return {**own, **{d.title: d.verdict.rule for d in report.dimensions}, "Verdicts": levels}


def page(report: Report) -> str:
    head: list[Block] = [f"# {TITLE.format(report.name)}"]
    if report.adoption:
        head += [
            f"**{answer(report.adoption)}** {report.adoption.because} {report.about}",
            errors_table(report.adoption),
        ]
    else:
        head.append(report.about)
    about: list[Block] = [
        verdicts_table(report),
        [f"missing: {line}" for line in report.missing],
        *not_looked_at(report),
        f"Program, key `{report.key}`, data `{report.data}`:",
    ]
    sections = (block for number, dimension in report.sections for block in _section(number, dimension))
    return page_of([*head, *about, Code(report.program, "python"), *sections])


def _section(number: int, d: Dimension) -> Iterator[Block]:
    yield from (f"## {number}. {d.title}: {d.verdict.level}", d.verdict.sentence, f"Rule: {d.verdict.rule}.")
    for exhibit in d.exhibits:
        yield from (f"**{exhibit.table.title}**", exhibit.table, Code("\n".join(exhibit.repeat), "sh"))
    yield d.caveats
