"""Columns of frames: the name, kind and meaning of each, and frames made from rows.

Names carry their unit. `_pct` of a candidate is a mean absolute error; `_error_pct` is the signed error of one
experiment, (predicted - observed)/observed. A missing value is NaN in a column of numbers and `pandas.NA` elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

# Kind of a column -> pandas dtype. Strings are Python's, because text from files need not be encodable.
DTYPES = {
    "text": pd.StringDtype("python"),
    "number": "float64",
    "whole number": "Int64",
    "true or false": "boolean",
    "list": "object",
    "mapping": "object",
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `kind` is one of DTYPES. `paper`: LaTeX has it too, which has no room for all of them."""

    name: str
    kind: str
    meaning: str
    paper: bool = False


def text(name: str, meaning: str, paper: bool = False) -> Column:
    """A column of texts.

    >>> text("model", "model's id").kind
    'text'
    """
    return Column(name, "text", meaning, paper)


def number(name: str, meaning: str, paper: bool = False) -> Column:
    """A column of numbers.

    >>> number("e2e_mean_ms", "mean E2E").kind
    'number'
    """
    return Column(name, "number", meaning, paper)


def whole(name: str, meaning: str, paper: bool = False) -> Column:
    """A column of whole numbers.

    >>> whole("id", "proposal's number").kind
    'whole number'
    """
    return Column(name, "whole number", meaning, paper)


def flag(name: str, meaning: str, paper: bool = False) -> Column:
    """A column of true and false.

    >>> flag("sound", "contradicts no datasheet").kind
    'true or false'
    """
    return Column(name, "true or false", meaning, paper)


def several(name: str, meaning: str) -> Column:
    """A column of tuples.

    >>> several("parents", "ids").kind
    'list'
    """
    return Column(name, "list", meaning)


def mapping(name: str, meaning: str) -> Column:
    """A column of mappings.

    >>> mapping("correlated", "by name").kind
    'mapping'
    """
    return Column(name, "mapping", meaning)


def frame(columns: Sequence[Column], rows: Iterable[Mapping[str, object]]) -> pd.DataFrame:
    """The rows as a frame of these columns in this order; a row may lack columns.

    >>> frame([whole("id", ""), number("joint_pct", "")], [{"id": 7, "joint_pct": 2.5}, {"id": 8}])
       id  joint_pct
    0   7        2.5
    1   8        NaN
    """
    listed = list(rows)
    return pd.DataFrame({c.name: pd.Series([r.get(c.name) for r in listed], dtype=DTYPES[c.kind]) for c in columns})
