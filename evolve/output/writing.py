"""Rows as CSV and LaTeX, in files or on standard output.

The values of a list are joined by `; `. Text is written as it is, with two exceptions: in CSV, text that a spreadsheet
would read as a formula begins with an apostrophe; and on standard output control characters are visible.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable
from pathlib import Path

from evolve.output.columns import NUMBER, Columns, RowLike, columns, values
from evolve.output.files import save
from evolve.output.terminal import say

STDOUT = "-"
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # with which a spreadsheet lets a formula begin
DIGITS = 4  # significant, of numbers in LaTeX
_ESCAPES = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash ",
    "~": r"\textasciitilde ",
    "^": r"\textasciicircum ",
}


def write(text: str, file: str, option: str) -> None:
    """Write text to a file, or to standard output for `-`. Raises InputError naming `option` if that fails."""
    if file == STDOUT:
        say(text, end="")
        return
    save(Path(file), option, lambda draft: draft.write_text(text, "utf-8", newline=""), text)


def csv_text(declared: Columns, rows: Iterable[RowLike]) -> str:
    r"""Rows as CSV; missing values are empty.

    >>> from evolve.output.columns import several, text
    >>> rows = [{"model": "=cmd", "parents": (1, 2)}, {"model": "llama-2-7b"}]
    >>> print(csv_text([text("model", ""), several("parents", "")], rows), end="")
    model,parents
    '=cmd,1; 2
    llama-2-7b,
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    shown = columns(declared)
    writer.writerow([c.name for c in shown])
    for row in values(shown, rows):
        writer.writerow([_csv_cell(value, c.kind == NUMBER) for value, c in zip(row, shown, strict=True)])
    return file.getvalue()


def latex_text(declared: Columns, rows: Iterable[RowLike]) -> str:
    """The `paper` columns of rows as a LaTeX tabular, text escaped, under heads for readers.

    >>> from evolve.output.columns import number
    >>> print(latex_text([number("e2e_mean_ms", "", paper=True)], [{"e2e_mean_ms": 1234.56}]))
    \\begin{tabular}{r}
    \\toprule
    E2E mean (ms) \\\\
    \\midrule
    1235 \\\\
    \\bottomrule
    \\end{tabular}
    <BLANKLINE>
    """
    every = columns(declared)
    shown = [c for c in every if c.paper]
    lines = [[_latex(c.title) for c in shown]]
    for row in values(every, rows):
        lines.append([_latex_cell(value, c.kind == NUMBER) for value, c in zip(row, every, strict=True) if c.paper])
    head, *body = (" & ".join(line) + r" \\" for line in lines)
    begin = rf"\begin{{tabular}}{{{''.join('r' if c.right else 'l' for c in shown)}}}"
    return "\n".join([begin, r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}", ""])


def encodable(text: str) -> str:
    """The text with lone surrogates, which no file can hold, spelled as in Python."""
    return text.encode("utf-8", "backslashreplace").decode()


def _joined(value: object) -> str:
    return "; ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _is_missing(value: object) -> bool:
    return value is None or value != value


def _csv_cell(value: object, number: bool) -> str:
    if _is_missing(value):
        return ""
    if isinstance(value, str | tuple | list):
        text = encodable(_joined(value))
        return f"'{text}" if text.startswith(FORMULA) else text
    return repr(float(value)) if number else str(value)  # type: ignore[arg-type]


def _latex_cell(value: object, number: bool) -> str:
    if _is_missing(value):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if number:
        return f"{value:.{DIGITS}g}"
    return _latex(encodable(" ".join(_joined(value).split())))


def _latex(text: str) -> str:
    return "".join(_ESCAPES.get(character, character) for character in text)


FORMATS: dict[str, Callable[[Columns, Iterable[RowLike]], str]] = {"csv": csv_text, "latex": latex_text}
