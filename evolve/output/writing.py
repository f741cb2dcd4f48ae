"""Frames as CSV, Parquet and LaTeX, in files or on standard output.

In CSV and LaTeX the values of a list are joined by `; `. Text is written as it is, with two exceptions: in CSV, text
that a spreadsheet would read as a formula begins with an apostrophe; and on standard output control characters are
visible, as everywhere. Parquet keeps lists and text unchanged.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from evolve.output.columns import Column
from evolve.output.files import draft_of
from evolve.output.terminal import say
from simulator.common.errors import InputError, unwritable

STDOUT = "-"
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # with which a spreadsheet lets a formula begin
DIGITS = 4  # significant, of numbers in LaTeX
UNITS = {"pct": "%", "ms": "ms", "us": "us", "rps": "requests/s"}  # of the last part of a column's name
SPELLED = {"e2e": "E2E", "ttft": "TTFT", "itl": "ITL", "tp": "TP", "mape": "MAPE", "usd": "USD", "worst3": "worst 3"}


def write_csv(frame: pd.DataFrame, columns: Sequence[Column], file: str) -> None:
    """Write the frame as CSV, missing values empty, to a file, or to standard output for `-`.

    Raises InputError if the file cannot be written.
    """
    _write(csv(frame, columns), file, "--csv")


def write_latex(frame: pd.DataFrame, columns: Sequence[Column], file: str) -> None:
    """Write the frame's `paper` columns as a LaTeX tabular to a file, or to standard output for `-`.

    Raises InputError if the file cannot be written, or if jinja2 is not installed.
    """
    _write(latex(frame, columns), file, "--latex")


def write_parquet(frame: pd.DataFrame, columns: Sequence[Column], file: str) -> None:
    """Write the frame as Parquet. Raises InputError if the file cannot be written."""
    safe = frame.assign(**{c.name: frame[c.name].map(_encodable, na_action="ignore") for c in columns if _text(c)})
    path = Path(file)
    try:
        with draft_of(path) as draft:
            safe.to_parquet(draft, index=False)
    except OSError as e:
        raise unwritable(path, e, "choose another --parquet") from None


def csv(frame: pd.DataFrame, columns: Sequence[Column]) -> str:
    r"""The frame as CSV.

    >>> from evolve.output.columns import frame, several, text
    >>> columns = [text("model", ""), several("parents", "")]
    >>> print(csv(frame(columns, [{"model": "=cmd", "parents": (1, 2)}, {"model": "llama-2-7b"}]), columns), end="")
    model,parents
    '=cmd,1; 2
    llama-2-7b,
    """
    cells = frame.assign(**_each(frame, columns, lambda c: _no_formula(_encodable(_joined(c)))))
    return str(cells.to_csv(index=False, lineterminator="\n"))


def latex(frame: pd.DataFrame, columns: Sequence[Column]) -> str:
    """The `paper` columns of the frame as a LaTeX tabular, text escaped, under heads for readers.

    Raises InputError if jinja2 is missing.

    >>> from evolve.output.columns import frame, number
    >>> columns = [number("e2e_mean_ms", "", paper=True)]
    >>> print(latex(frame(columns, [{"e2e_mean_ms": 1234.56}]), columns))
    \\begin{tabular}{r}
    \\toprule
    E2E mean (ms) \\\\
    \\midrule
    1235 \\\\
    \\bottomrule
    \\end{tabular}
    <BLANKLINE>
    """
    try:
        importlib.import_module("jinja2")
    except ImportError:
        raise InputError("--latex: needs the extra: pip install 'evolve-latency[view]'") from None
    shown = [c for c in columns if c.paper]
    cells = frame[[c.name for c in shown]].assign(
        **_each(frame, shown, lambda c: _encodable(" ".join(_joined(c).split())))
    )
    flags = {c.name: cells[c.name].map({True: "yes", False: "no"}) for c in shown if c.kind == "true or false"}
    cells = cells.assign(**flags).rename(columns={c.name: head(c.name) for c in shown})
    return str(cells.to_latex(index=False, escape=True, na_rep="", float_format=lambda x: f"{x:.{DIGITS}g}"))


def head(name: str) -> str:
    """What a table for readers calls a column.

    >>> head("ttft_p99_ms"), head("worst3_pct"), head("output_tokens_per_s")
    ('TTFT p99 (ms)', 'worst 3 (%)', 'output tokens per s')
    """
    *words, last = name.split("_")
    unit = f" ({UNITS[last]})" if words and last in UNITS else ""
    spelled = [SPELLED.get(word, word) for word in (words if unit else [*words, last])]
    return " ".join(spelled) + unit


def _each(frame: pd.DataFrame, columns: Sequence[Column], change: Callable[[object], str]) -> dict[str, pd.Series]:
    """The columns of text and of lists with every value changed, missing ones left as they are."""
    return {c.name: frame[c.name].map(change, na_action="ignore") for c in columns if _text(c) or c.kind == "list"}


def _text(column: Column) -> bool:
    return column.kind == "text"


def _joined(value: object) -> str:
    return "; ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _encodable(text: str) -> str:
    """The text with lone surrogates, which no file can hold, spelled as in Python."""
    return text.encode("utf-8", "backslashreplace").decode()


def _no_formula(text: str) -> str:
    return f"'{text}" if text.startswith(FORMULA) else text


def _write(text: str, file: str, option: str) -> None:
    if file == STDOUT:
        say(text, end="")
        return
    path = Path(file)
    try:
        with draft_of(path) as draft:
            draft.write_text(text, "utf-8", newline="")
    except OSError as e:
        raise unwritable(path, e, f"choose another {option}") from None
