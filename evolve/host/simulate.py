"""`evolve simulate`: a trace, or an experiment's load, replayed by the host's clock, and the results as CSV."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from evaluator.host_summary import aggregate
from evolve import __version__
from evolve.host.work import ReplayWork
from evolve.output.files import check_writable, draft_of
from evolve.output.progress import Line
from evolve.output.terminal import say, warn
from simulator.clock.replay import Replay, replay_bound
from simulator.clock.run import NeverEnds
from simulator.common.errors import InputError, unwritable
from simulator.common.json import JsonObject

ROWS = 1 << 20  # rows of results written at a time


@dataclass(frozen=True)
class Simulated:
    """The host's aggregate figures of a simulation, and how many times were outside [1, 1e10] us and clamped."""

    data: str
    seeds: tuple[int, ...]
    figures: Mapping[str, object]
    clamped: int

    @property
    def duration_s(self) -> float:
        """Until the clock's last event."""
        duration = self.figures["vllm_estimated_duration_s"]
        assert isinstance(duration, float)
        return duration

    def to_json(self) -> JsonObject:
        about = {"engine": __version__, "data": self.data, "seeds": list(self.seeds)}
        return {**about, **self.figures, "clamped_times": self.clamped}


class Output(Protocol):
    """A file, or files, that a simulation writes."""

    def check(self, inputs: tuple[Path, ...]) -> None:
        """Raises InputError, before any work, where it cannot be written or would replace what is read."""

    def write(self, replay: Replay, number: np.ndarray) -> None:
        """Write the results. Raises InputError if that fails."""


@dataclass(frozen=True)
class ReplayTable:
    """The completed requests as CSV (see `write_results`)."""

    path: Path

    def check(self, inputs: tuple[Path, ...]) -> None:
        check_output(self.path, inputs, "--out", ".csv", ".txt")

    def write(self, replay: Replay, number: np.ndarray) -> None:
        save(self.path, "--out", lambda file: write_results(replay, number, file))


def run(work: ReplayWork, outputs: Sequence[Output], quiet: bool) -> Simulated:
    """Simulate, and write the outputs.

    Raises InputError for an output that cannot be written or is what is read, and for a request that never completes.
    """
    for output in outputs:
        output.check(work.files)
    line = _SimulationLine(len(work.load.requests), quiet)
    try:
        replay = replay_bound(work.load, work.bound, account=True, progress=line.advance)
    except NeverEnds as e:
        row = work.number[e.row]
        raise InputError(
            f"{work.where}: {str(e).replace(f'request {e.row}', f'request_{row}')}: give more KV blocks, or a horizon"
        ) from None
    finally:
        line.close()
    for output in outputs:
        output.write(replay, work.number)
    for warning in work.warnings:
        warn(warning)
    refused = int((~work.load.accepted).sum())
    if refused:
        why = "are longer than max_model_len, or than all KV blocks, and were refused"
        warn(f"{refused:,} of {len(work.load.requests):,} requests {why}")
    if replay.clamped:
        warn(f"{replay.clamped:,} times were outside [1, 1e10] us and clamped")
    return Simulated(work.data, work.seeds, aggregate(replay), replay.clamped)


def check_output(path: Path, inputs: tuple[Path, ...], option: str, *suffixes: str) -> None:
    """Raises InputError where `option`'s file would replace what is read, and like `check_writable`."""
    for read in inputs:
        if path.exists() and read.exists() and path.samefile(read):
            raise InputError(f"{path}: is what is read: choose another {option}")
    check_writable(path, option, *suffixes)


def save(path: Path, option: str, write: Callable[[BinaryIO], None]) -> None:
    """Write `option`'s file, whole or not at all; a pipe or a terminal bit by bit. Raises InputError."""
    try:
        with draft_of(path) as draft, draft.open("wb") as file:
            write(file)
    except OSError as e:
        raise unwritable(path, e, f"choose another {option}") from None


def write_results(replay: Replay, number: np.ndarray, out: BinaryIO) -> None:
    """Write a row per completed request as the host does: request_id, arrival_us, input_len, output_len, ttft_us,
    e2e_us, itl_mean_us (the mean of its inter-token times in us, rounded to six decimals)."""
    r = replay.requests
    rows = np.flatnonzero(replay.completed)
    schema = pa.schema([
        ("request_id", pa.string()), ("arrival_us", pa.int64()), ("input_len", pa.int32()), ("output_len", pa.int32()),
        ("ttft_us", pa.int64()), ("e2e_us", pa.int64()), ("itl_mean_us", pa.float64()),
    ])  # fmt: skip
    options = csv.WriteOptions(quoting_style="none", quoting_header="none")
    with csv.CSVWriter(out, schema, write_options=options) as writer:
        for start in range(0, len(rows), ROWS):
            some = rows[start : start + ROWS]
            ids = pc.binary_join_element_wise("request", pa.array(number[some]).cast(pa.string()), "_")
            writer.write_batch(pa.record_batch(
                [ids, pa.array(r.arrival_us[some]), pa.array(r.input_len[some]), pa.array(r.output_len[some]),
                 pa.array(replay.ttft_us[some]), pa.array(replay.e2e_us[some]), pa.array(mean_gap(replay, some))],
                schema=schema,
            ))  # fmt: skip


def mean_gap(replay: Replay, rows: np.ndarray) -> np.ndarray:
    """Sum of a request's decode steps and per-token times over their number in us, to six decimals; 0 for none."""
    gaps = np.maximum(replay.requests.output_len[rows] - 1, 1)
    total = replay.decode_us[rows] + replay.token_us * np.maximum(replay.requests.output_len[rows] - 1, 0)
    mean = total / gaps
    rounded: np.ndarray = np.round(mean, 6)
    # numpy multiplies before it rounds, which can tip a value near a tie the other way than the host's rounding
    part = mean * 1e6 % 1.0
    for i in np.flatnonzero(np.abs(part - 0.5) < 1e-2):
        rounded[i] = round(float(mean[i]), 6)
    return rounded


class _SimulationLine(Line):
    """How far the simulation is, shown from its second second on."""

    def __init__(self, total: int, quiet: bool) -> None:
        super().__init__(quiet)
        self.total = total
        self.every_s = 1.0
        self.begun = self.shown
        self.first: int | None = None

    def advance(self, done: int) -> None:
        """So many requests are done."""
        if self.first is None:  # the time until now was compilation
            self.first, self.begun = done, time.monotonic()
        if done < self.total:
            left = (time.monotonic() - self.begun) * (self.total - done) / max(done - self.first, 1)
            self.update(lambda: f"{done:,} of {self.total:,} requests, {left:.0f} s left")


def print_aggregate(result: Simulated) -> None:
    """The figures, one a line."""
    figures = result.to_json()
    width = max(map(len, figures))
    for name, value in figures.items():
        if name not in ("engine", "data", "seeds", "instance_id"):
            say(f"{name:<{width}}  {value:,}" if isinstance(value, int) else f"{name:<{width}}  {value:.6g}")
