"""Per-request results as CSV, in the host simulator's own form."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from simulator.errors import InputError
from simulator.replay import Replay

ROWS = 1 << 20  # rows written at a time


def check_out(out: Path, inputs: tuple[Path, ...]) -> None:
    """Raises InputError, before any work, where results cannot be written or would replace what is read."""
    folder = out.resolve().parent
    if out.is_dir() or str(out) != str(out).rstrip("/"):
        raise InputError(f"{out}: is a folder: --out names a file")
    if not folder.is_dir():
        raise InputError(f"{out}: cannot be written (there is no folder {folder}): choose another --out")
    for path in inputs:
        if out.exists() and path.exists() and out.samefile(path):
            raise InputError(f"{out}: is what is read: choose another --out")


def save_results(replay: Replay, number: np.ndarray, out: Path) -> None:
    """`write_results` to `out`, whole or not at all: the name appears when the last row is written. A link is followed;
    what is no file, a pipe or a terminal, is written to as it is."""
    target = out.resolve()
    whole = not target.exists() or target.is_file()
    part = target.with_name(target.name + ".part") if whole else target
    try:
        with part.open("wb") as file:
            write_results(replay, number, file)
        if whole:
            part.replace(target)
    except OSError as e:
        raise InputError(f"{out}: cannot be written ({e.strerror or e}): choose another --out") from None
    finally:
        if whole:
            part.unlink(missing_ok=True)


def write_results(replay: Replay, number: np.ndarray, out: BinaryIO) -> None:
    """request_id, arrival_us, input_len, output_len, ttft_us, e2e_us, itl_mean_us of completed requests, as the host
    writes them: the mean of a request's inter-token times in us, rounded to six decimals."""
    r = replay.requests
    rows = np.flatnonzero(replay.completed)
    schema = pa.schema([
        ("request_id", pa.string()), ("arrival_us", pa.int64()), ("input_len", pa.int32()), ("output_len", pa.int32()),
        ("ttft_us", pa.int64()), ("e2e_us", pa.int64()), ("itl_mean_us", pa.float64()),
    ])  # fmt: skip
    with csv.CSVWriter(
        out, schema, write_options=csv.WriteOptions(quoting_style="none", quoting_header="none")
    ) as writer:
        for some in _slices(rows):
            ids = pc.binary_join_element_wise("request", pa.array(number[some]).cast(pa.string()), "_")
            writer.write_batch(pa.record_batch(
                [ids, pa.array(r.arrival_us[some]), pa.array(r.input_len[some]), pa.array(r.output_len[some]),
                 pa.array(replay.ttft_us[some]), pa.array(replay.e2e_us[some]), pa.array(_mean_gap(replay, some))],
                schema=schema,
            ))  # fmt: skip


def _slices(rows: np.ndarray) -> Iterator[np.ndarray]:
    for i in range(0, len(rows), ROWS):
        yield rows[i : i + ROWS]


def _mean_gap(replay: Replay, rows: np.ndarray) -> Any:
    """Sum of a request's decode steps and per-token times over their number, to six decimals; 0 for none."""
    gaps = np.maximum(replay.requests.output_len[rows] - 1, 1)
    total = replay.decode_us[rows] + replay.token_us * np.maximum(replay.requests.output_len[rows] - 1, 0)
    mean = total / gaps
    out = np.round(mean, 6)
    part = mean * 1e6 % 1.0
    for i in np.flatnonzero(np.abs(part - 0.5) < 1e-2):  # numpy multiplies before it rounds: near a tie that may tip
        out[i] = round(float(mean[i]), 6)
    return out
