"""Columns of a CSV file by name, and times in them, with errors that name the line."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

from simulator.common.errors import NO_COMMA, InputError, shown, unreadable

UTC = re.compile(r"(\+00:?00|Z)\Z")  # how a date and time in UTC ends
CONVERTING = (
    "import pandas; d = pandas.read_{kind}('IN'); t = pandas.to_datetime(d['{name}'], format='ISO8601'); "
    "d['{name}'] = (t - t.min()).dt.total_seconds(); d.to_csv('OUT.csv', index=False)"
)
EMPTY = -np.inf  # an empty cell of a column of floats that may have some
# A service may be quiet: one of three requests an hour needs two weeks for MANY requests. So arrivals are doubted if
# their median gap is at least SPARSE_S and they are MANY or span LONG_S. The median, as nights may be silent.
SPARSE_S, MANY, LONG_S = 100.0, 1_000, 60 * 86_400.0
# Seconds since 1970 have ten digits until 2286, milliseconds have had twelve since 1973.
SECONDS_SINCE_1970, NO_DATE = 1e9, 1e11


def header(path: Path) -> list[str]:
    """The names in the first line. Raises InputError if the file cannot be read as text."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise InputError(f"{path}: is a pipe or a device, and a trace is read twice: save it as a file")
    try:
        with path.open("rb") as file:
            text = file.readline(65536).decode("utf-8-sig").strip()
    except OSError as e:
        raise unreadable(path, e, "name a CSV file") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}:1: is not text: name a CSV file") from None
    names = [name.strip().strip('"') for name in text.split(",")]
    if len(names) == 1 and (other := next((mark for mark in ";\t" if mark in text), None)):
        mark = "semicolons" if other == ";" else "tabs"
        raise InputError(f"{path}:1: has {mark} between the names of columns: separate columns by commas")
    return names


def mistyped(names: Sequence[str], known: Sequence[str]) -> dict[str, str]:
    """The missing known column by each unknown one that is nearly called so.

    >>> mistyped(["arrival_s", "e2e_s", "user"], ["arrival_s", "e2e_ms"])
    {'e2e_s': 'e2e_ms'}
    """
    absent = [name for name in known if name not in names]
    spelled = {_letters(name): name for name in absent}
    near = {name: get_close_matches(_letters(name), spelled, 1, 0.8) for name in names if name not in known}
    return {name: spelled[closest[0]] for name, closest in near.items() if closest}


def _letters(name: str) -> str:
    """The name without case and punctuation: `TTFT (ms)` is ttft_ms."""
    return re.sub(r"[^a-z0-9]", "", name.casefold())


def read_columns(
    path: Path, names: Sequence[str], kinds: Mapping[str, pa.DataType], may_be_empty: Collection[str]
) -> dict[str, np.ndarray]:
    """The columns in `kinds` of a file whose header has `names`; an empty cell is EMPTY in floats, and "" in texts.

    Raises InputError naming the line of a value of another kind.
    """
    parts: dict[str, list[np.ndarray]] = {name: [] for name in kinds}
    rows = 0
    try:
        reader = csv.open_csv(
            path,
            csv.ReadOptions(use_threads=False, block_size=1 << 24, column_names=list(names), skip_rows=1),
            convert_options=csv.ConvertOptions(
                column_types=dict(kinds), include_columns=list(kinds), null_values=[""], strings_can_be_null=False
            ),
        )
        for batch in reader:
            for name, kind in kinds.items():
                column = batch.column(name)
                if column.null_count and name not in may_be_empty:
                    at = rows + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
                    raise InputError(f"{path}:{line_of(path, at + 1)}: {name} is empty: give a number")
                column = column.fill_null(EMPTY) if pa.types.is_floating(kind) else column
                parts[name].append(column.to_numpy(zero_copy_only=False))
            rows += batch.num_rows
    except pa.ArrowInvalid as e:
        raise InputError(_complaint(path, names, " ".join(str(e).split()))) from None
    # joined one by one, and the parts of each freed, so that memory holds only one column twice
    return {name: np.concatenate(parts.pop(name) or [np.zeros(0)]) for name in kinds}


def line_of(path: Path, row: int) -> int:
    """The number, from 1, of the line that holds row `row`, from 0, the header included: empty lines are no rows."""
    with path.open("rb") as file:
        filled = (number for number, text in enumerate(file, 1) if text.strip())
        return next(islice(filled, row, None), row + 1)


def seconds_of(texts: np.ndarray, name: str, place: Callable[[int], str]) -> np.ndarray:
    """float64: seconds from the first of these dates and times, as 2023-11-16 18:17:03.9799600, all in UTC.

    Raises InputError naming column `name` and `place(i)` if text i is neither.
    """
    if not len(texts):
        return np.zeros(0)
    plain = pa.array([UTC.sub("", text) for text in texts], pa.string())
    try:
        ns = plain.cast(pa.timestamp("ns")).cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid:
        wrong = next(i for i in range(len(plain)) if not _is_time(plain[i]))
        text = "give a date and time as 2023-11-16 18:17:03.97"
        raise InputError(f"{place(wrong)}: {name} is {shown(texts[wrong])}: {text}") from None
    return np.asarray((ns - ns.min()) / 1e9)


def in_seconds(kind: str, name: str) -> str:
    """The remedy for column `name` with dates, in a file that pandas reads as `kind`."""
    return f"give seconds; to convert, in Python: `{CONVERTING.format(kind=kind, name=name)}`"


def _is_time(text: pa.Scalar) -> bool:
    try:
        text.cast(pa.timestamp("ns"))
    except pa.ArrowInvalid:
        return False
    return True


def _complaint(path: Path, names: Sequence[str], why: str) -> str:
    """pyarrow's message with lines for rows and names for columns."""
    row, column = re.search(r"Row #(\d+)", why), re.search(r"column #(\d+)", why)
    value = re.search(r"invalid value '(.*)'", why)
    where = f"{path}:{line_of(path, int(row[1]) - 1)}" if row else str(path)
    if column and value:
        remedy = "give 1 or 0" if value[1].lower() in ("true", "false") else "give a number that fits"
        name = names[int(column[1])]
        if "," in value[1]:
            remedy = NO_COMMA
        elif name.endswith("_s") and _is_time(pa.scalar(UTC.sub("", value[1]))):
            remedy = in_seconds("csv", name)
        return f"{where}: {name} is {value[1]!r}: {remedy}"
    expected = re.search(r"Expected (\d+) columns, got (\d+)", why)
    if expected:
        return f"{where}: has {expected[2]} fields but the header has {expected[1]}: correct the line"
    return f"{where}: {why}: correct the file"


def in_milliseconds(arrival_s: np.ndarray, name: str) -> tuple[str, ...]:
    """A note if the arrivals of the trace `name`, in its unit, can hardly be in seconds.

    >>> in_milliseconds(np.arange(2_000) * 500.0, "ms.csv")[0].partition(": if")[0]
    'arrival_s of ms.csv spans 999,500 s, 12 days, and its 2,000 requests come 500 s apart (median)'
    >>> in_milliseconds(np.arange(500) * 1_200.0, "three an hour for a week.csv")
    ()
    """
    arrival_s = np.sort(arrival_s[~np.isnan(arrival_s)])
    if len(arrival_s) < 2:
        return ()
    first, span_s, gap_s = arrival_s[0], arrival_s[-1] - arrival_s[0], float(np.median(np.diff(arrival_s)))
    remedy = "they are ms, divide the column by 1,000"
    if first >= NO_DATE:
        return (f"arrival_s of {name} begins at {first:.0f}, which is no date in seconds since 1970: if {remedy}",)
    if first >= SECONDS_SINCE_1970 or gap_s < SPARSE_S or not (len(arrival_s) >= MANY or span_s >= LONG_S):
        return ()
    spans = f"arrival_s of {name} spans {span_s:,.0f} s, {span_s / 86_400:,.0f} days"
    return (f"{spans}, and its {len(arrival_s):,} requests come {gap_s:,.0f} s apart (median): if {remedy}",)
