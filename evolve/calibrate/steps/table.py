"""Step tables: parquet files of scheduler steps, in one of two forms, read into arrays for each run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from evolve.ingest.read.traces import SUMMARY as ATTRIBUTES
from simulator.common.errors import InputError, unreadable
from simulator.schema import PREFILL_REQS, RECORDED

SCHEDULED = ("prefill_reqs", "decode_reqs", "scheduled_tokens", "prefill_tokens", "decode_tokens")
BLOCKS = ("blocks_total", "blocks_free")
# our name -> the column of a table written by `evolve ingest`
INGESTED = {
    "experiment": "experiment",
    "step_id": "step_id",
    "start_ns": "ts_start_ns",
    "duration_us": "duration_us",
    "running": "running_depth",
    **{name: f"summary_{name}" for name in SCHEDULED},
    **{name: f"kv_{name}" for name in BLOCKS},
    "sampled": "sampled",
    "asynchronous": "async_scheduling",
    "split": "split",
    "evidence": "evidence",
    **{f"b.{name}": name for name in RECORDED},
}
# our name -> the attribute of vLLM's step.BATCH_SUMMARY
SUMMARIES = {"experiment": "experiment_id"} | {
    name: ATTRIBUTES[column] for name, column in INGESTED.items() if column in ATTRIBUTES
}
SUMMARY = ("running", *SCHEDULED, *BLOCKS)
_MAY_LACK = ("experiment", "asynchronous", "split", "evidence")
_TORN = "is not a parquet file, or an incomplete one: name a step table or a folder of `evolve ingest`"
# our name -> the kind of its column, and what stands for null; all others are numbers
KINDS = {
    **dict.fromkeys(("experiment", "split", "evidence"), (pa.string(), "")),
    **dict.fromkeys(("sampled", "asynchronous"), (pa.int8(), -1)),
    **dict.fromkeys(("step_id", "start_ns"), (pa.int64(), 0)),
}


@dataclass(frozen=True)
class StepTable:
    """The steps of one run, a row each, sorted by step id, every id once.

    experiment: its name in the file, None if it has none. start_ns: int64, 0 where `sampled` (bool) is false. figures:
    float64 of SUMMARY and duration_us, NaN where null. raw: float64[rows, RAW], the batch from request journeys, rows
    of NaN where unknown, and NaN for `prompt_pairs` wherever there is prefill. evidence, split: str, "" where null.
    asynchronous: None if unknown. counts: rows that were dropped or moved, by what was wrong with them.
    """

    file: str
    experiment: str | None
    step_id: np.ndarray
    sampled: np.ndarray
    start_ns: np.ndarray
    figures: Mapping[str, np.ndarray]
    raw: np.ndarray
    evidence: np.ndarray
    split: np.ndarray
    asynchronous: bool | None
    counts: Mapping[str, int]

    def digest(self) -> str:
        """16 hex digits that identify the sampled steps by their ids and starts, whichever form the table has."""
        rows = np.stack([self.step_id[self.sampled], self.start_ns[self.sampled]])
        return sha256(rows.astype("<i8").tobytes()).hexdigest()[:16]


def read_steps(path: Path) -> list[StepTable]:
    """The runs of a step table, in the order in which they begin. Raises InputError for a file that is not one."""
    columns = _columns(path)
    if not columns["step_id"].size:
        raise InputError(f"{path}: holds no step: name another step table")
    names = columns["experiment"]
    return [_run(path, str(name) or None, names == name, columns) for name in dict.fromkeys(names.tolist())]


def _columns(path: Path) -> dict[str, np.ndarray]:
    """Every column under our name: float64 (NaN: null), str (""), flags int8 (-1), step_id and start_ns int64.

    has_step_id and has_start_ns (bool): whether these are not null.
    """
    try:
        with path.open("rb") as opened:
            form, table = _read(path, opened)
    except OSError as e:
        if e.errno is None:  # raised by Arrow: a page contradicts its header
            raise InputError(f"{path}: {_TORN}") from None
        raise unreadable(path, e, "name a parquet file or what `evolve ingest` wrote") from None
    except pa.ArrowException:
        raise InputError(f"{path}: {_TORN}") from None
    given = {name: table.column(column) for name, column in form.items() if column in table.column_names}
    columns = {name: _values(path, form.get(name, name), name, given.get(name), table.num_rows) for name in INGESTED}
    return columns | {f"has_{name}": given[name].is_valid().to_numpy() for name in ("step_id", "start_ns")}


def _read(path: Path, opened: Any) -> tuple[Mapping[str, str], Any]:
    file = pq.ParquetFile(opened)
    present = file.schema_arrow.names
    form = next((f for f in (INGESTED, SUMMARIES) if f["step_id"] in present), None)
    if form is None:
        raise InputError(f"{path}: is not a step table: it needs a column step_id (as of `evolve ingest`) or step.id")
    missing = [column for name, column in form.items() if column not in present and name not in _MAY_LACK]
    if missing:
        raise InputError(f"{path}: column {missing[0]} is missing: a step table has {', '.join(form.values())}")
    return form, file.read(columns=[column for column in form.values() if column in present])


def _values(path: Path, column: str, name: str, values: Any, rows: int) -> np.ndarray:
    """The column as numpy, with the null value of its kind where it has none; all null if `values` is None."""
    if values is None:
        # a table of summaries has no column `sampled`, because it holds sampled steps only
        values = pa.chunked_array([pa.array(np.full(rows, True)) if name == "sampled" else pa.nulls(rows)])
    kind, null = KINDS.get(name, (pa.float64(), float("nan")))
    given = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    fits = {
        pa.string(): pa.types.is_string(given) or pa.types.is_large_string(given),
        pa.int8(): pa.types.is_boolean(given),
        pa.int64(): pa.types.is_integer(given),
        pa.float64(): pa.types.is_integer(given) or pa.types.is_floating(given),
    }[kind]
    if not fits and not pa.types.is_null(given):
        wanted = {"string": "text", "int8": "true or false", "int64": "whole numbers", "double": "numbers"}[str(kind)]
        raise InputError(f"{path}: column {column} holds {given}, not {wanted}: write the table again")
    try:
        array: np.ndarray = values.cast(kind, safe=False).fill_null(null).to_numpy()
    except pa.ArrowException:
        raise InputError(f"{path}: column {column} cannot be read as {kind}: write the table again") from None
    return array.astype(str) if kind == pa.string() else array


def _run(path: Path, experiment: str | None, mine: np.ndarray, columns: Mapping[str, np.ndarray]) -> StepTable:
    """The steps of one run: the rows `mine` (bool) of the columns."""
    where = f"{path}: experiment {experiment!r}" if experiment else str(path)
    kept = np.flatnonzero(mine & columns["has_step_id"])
    ids = columns["step_id"][kept]
    unsorted = int((np.diff(ids) < 0).sum())
    ids, place = np.unique(ids, return_index=True)  # the first row of each id
    rows = kept[place]
    sampled = columns["sampled"][rows] == 1
    startless = sampled & ~columns["has_start_ns"][rows]
    modes = set(columns["asynchronous"][rows].tolist()) - {-1}
    if len(modes) > 1:
        raise InputError(f"{where}: async_scheduling is both true and false: a run has one, split the table")
    recorded = np.stack([columns[f"b.{name}"][rows] for name in RECORDED], axis=1)
    impossible = (np.isinf(recorded) | (recorded < 0)).any(axis=1)
    recorded[impossible | np.isnan(recorded).any(axis=1)] = np.nan
    prompt_pairs = np.where(recorded[:, [PREFILL_REQS]] == 0.0, 0.0, np.nan)
    raw = np.concatenate([recorded, prompt_pairs], axis=1)
    counts = {
        "rows without a step id": int(mine.sum()) - len(kept),
        "rows of a step id that was there before": len(kept) - len(rows),
        "rows out of order": unsorted,
        "sampled steps without a start": int(startless.sum()),
        "batches of impossible figures": int(impossible.sum()),
    }
    sampled &= ~startless
    start_ns = np.where(sampled, columns["start_ns"][rows], 0)
    found = {name: columns[name][rows] for name in (*SUMMARY, "duration_us")}
    evidence, split = columns["evidence"][rows], columns["split"][rows]
    mode, wrong = bool(modes.pop()) if modes else None, {what: n for what, n in counts.items() if n}
    return StepTable(str(path), experiment, ids, sampled, start_ns, found, raw, evidence, split, mode, wrong)
