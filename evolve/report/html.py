"""A report as one page of HTML: no script, nothing from elsewhere, light and dark, from telephones to wide screens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from importlib import resources

from evolve import __version__
from evolve.output.table import Table
from evolve.report.dimension import Dimension, Exhibit
from evolve.report.report import Report
from evolve.report.view import TITLE, answer, errors_table, not_looked_at
from simulator.common.text import visible

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def html(report: Report) -> str:
    """The page. All text of the report is escaped, and what would steer a browser is visible."""
    style = (resources.files("evolve.report") / "report.css").read_text("utf-8")
    title = _text(TITLE.format(report.name))
    seeds = ", ".join(map(str, report.seeds))
    foot = f"evolve {__version__}, key {_text(report.key)}, data {_text(report.data)}, arrival seeds {seeds}."
    body = "\n".join([f"<h1>{title}</h1>", *_first(report), *_all(report), f"<footer>{foot}</footer>"])
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="evolve report {__version__}">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def _text(text: str) -> str:
    return escape(visible(text, keep="\n\t"))


def _first(report: Report) -> Iterator[str]:
    if report.adoption:
        yield f'<p class="short"><strong>{_text(answer(report.adoption))}</strong> {_text(report.adoption.because)}</p>'
        yield from _table(errors_table(report.adoption))
    yield f"<p>{_text(report.about)}</p>"
    yield '<ol class="verdicts">'
    shown = [d for _, d in report.sections]
    for number, d in report.numbered:
        title = f'<a href="#{_text(d.name)}">{_text(d.title)}</a>' if d in shown else _text(d.title)
        yield (f'<li value="{number}">{title} {_badge(d.verdict.level)} <span>{_text(d.verdict.sentence)}</span></li>')
    yield "</ol>"
    if missing := [*report.missing, *not_looked_at(report)]:
        items = "".join(f"<li>{_text(line)}</li>" for line in missing)
        yield f'<section class="missing"><h2>Missing</h2><ul>{items}</ul></section>'
    yield f"<details><summary>The program</summary><pre>{_text(report.program)}</pre></details>"


def _badge(level: str) -> str:
    return f'<b class="level {level.replace(" ", "-")}">{_text(level)}</b>'


def _all(report: Report) -> Iterator[str]:
    for number, d in report.sections:
        yield f'<section id="{_text(d.name)}">'
        yield f"<h2>{number}. {_text(d.title)} {_badge(d.verdict.level)}</h2>"
        yield from _dimension(d)
        yield "</section>"


def _dimension(d: Dimension) -> Iterator[str]:
    yield f"<p>{_text(d.verdict.sentence)}</p>"
    yield f'<p class="rule">Rule: {_text(d.verdict.rule)}.</p>'
    for exhibit in d.exhibits:
        yield from _exhibit(exhibit)
    if d.caveats:
        yield f"<ul>{''.join(f'<li>{_text(caveat)}</li>' for caveat in d.caveats)}</ul>"


def _exhibit(exhibit: Exhibit) -> Iterator[str]:
    table = exhibit.table
    yield "<figure>"
    yield f"<figcaption>{_text(table.title)}</figcaption>"
    yield from _table(table)
    if table.caption:
        yield f'<p class="note">{_text(table.caption)}</p>'
    lines = "\n".join(map(_text, exhibit.repeat))
    yield f"<details><summary>How to repeat it</summary><pre>{lines}</pre></details>"
    yield "</figure>"


def _table(table: Table) -> Iterator[str]:
    kinds = [' class="number"' if c.right else "" for c in table.columns]
    yield '<div class="wide" tabindex="0"><table>'
    yield f"<thead>{_row('th', kinds, [c.title for c in table.columns])}</thead>"
    yield "<tbody>"
    for cells in table.cells():
        yield _row("td", kinds, cells)
    yield "</tbody></table></div>"


def _row(tag: str, kinds: Sequence[str], cells: Sequence[str]) -> str:
    inner = (f"<{tag}{kind}>{_text(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))
    return f"<tr>{''.join(inner)}</tr>"
