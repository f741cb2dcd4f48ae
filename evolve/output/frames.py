"""Rows as data frames and as Parquet, which keeps lists and text unchanged. Importing this imports pandas."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from evolve.output.columns import FLAG, LIST, MAPPING, NUMBER, TEXT, WHOLE, Columns, RowLike, columns, values
from evolve.output.files import save
from evolve.output.writing import encodable

# Kind of a column -> pandas dtype. Strings are Python's, because text from files need not be encodable.
DTYPES = {
    TEXT: pd.StringDtype("python"),
    NUMBER: "float64",
    WHOLE: "Int64",
    FLAG: "boolean",
    LIST: "object",
    MAPPING: "object",
}


def frame(declared: Columns, rows: Iterable[RowLike]) -> pd.DataFrame:
    """Rows as a data frame.

    >>> from evolve.output.columns import number, whole
    >>> frame([whole("id", ""), number("share", "")], [{"id": 7, "share": 0.5}, {"id": 8}])
       id  share
    0   7    0.5
    1   8    NaN
    """
    shown, of_rows = columns(declared), values(declared, rows)
    return pd.DataFrame({c.name: pd.Series([r[i] for r in of_rows], dtype=DTYPES[c.kind]) for i, c in enumerate(shown)})


def write_parquet(declared: Columns, rows: Iterable[RowLike], file: str) -> None:
    """Write rows as Parquet, each column with its meaning and unit. Raises InputError if the file cannot be written."""
    shown, made = columns(declared), frame(declared, rows)
    texts = {c.name: made[c.name].map(encodable, na_action="ignore") for c in shown if c.kind == TEXT}
    table = pa.Table.from_pandas(made.assign(**texts), preserve_index=False)
    about = {c.name: {"meaning": c.meaning, "unit": c.measured_in} for c in shown}
    fields = [field.with_metadata(about[field.name]) for field in table.schema]
    described = table.cast(pa.schema(fields, metadata=table.schema.metadata))
    save(Path(file), "--parquet", lambda draft: pq.write_table(described, draft))
