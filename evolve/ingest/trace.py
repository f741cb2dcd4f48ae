"""`evolve ingest --trace` and `--tracev2`: a trace as a table in our columns, and as an experiment.

A result of a load generator that has means alone is an experiment without a table."""

from __future__ import annotations

import filecmp
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from evolve.ingest.options import Given
from evolve.ingest.output import LINE_WIDTH, create
from evolve.ingest.read.sources import shown_path
from evolve.ingest.trace_source import TraceSource, assumed
from simulator.common.documents import parse_yaml, read_bytes, yaml_text
from simulator.common.errors import InputError, shown, unwritable
from simulator.common.files import draft_of, write_text
from simulator.common.json import JsonObject
from simulator.common.records import read_by
from simulator.model.names import note_on_model
from simulator.serving.bundled import BEGIN
from simulator.serving.experiment import Experiment, deploy
from simulator.serving.model import known_models
from simulator.serving.observations import OVERLOADED
from simulator.serving.spec import Spec, read_spec
from simulator.serving.trace import NOT_COUNTED, Trace, repeated_share, windows
from simulator.serving.traces.formats import HASH_TOKENS, HASHES, TURNS
from simulator.serving.workload_entry import NO_FILES

EXPERIMENTS, TABLES = "traces.yaml", ".parquet"
MARK = "# Written by evolve ingest --trace"  # how our experiments file begins, that of --tracev2 too
HEADER = """\
# Written by evolve ingest {}: each experiment replays the table that its workload names.
# A trace that is read again replaces its entry, and comments are not kept: edit a copy.
"""
OPTION = re.compile(r"--\w+")
ROWS = 1 << 17  # rows encoded at a time


@dataclass(frozen=True)
class Converted:
    """A trace, its table (None for means alone), and its experiment, None without a model and a GPU.

    replaced: True if an earlier call left another trace, or other settings, under this name. assumed: the engine
    settings without a source, as options. measured_on: a note on the model that its file names, if that may not be the
    experiment's. twice: another table of the same requests, or "".
    """

    source: TraceSource
    table: Path | None
    experiment: Experiment | None
    replaced: bool = False
    assumed: str = ""
    measured_on: str = ""
    twice: str = ""

    @property
    def notes(self) -> list[str]:
        """The notes on the trace, but for assumed settings and an overload."""
        same = f"has the same requests as {self.twice}: a fit to both counts them twice: leave one out"
        on = [self.measured_on] if self.measured_on else []
        return [*on, *self.source.notes, *([same] if self.twice else [])]

    @property
    def name(self) -> str:
        """The name of the trace, and of its table."""
        return self.source.name

    def to_json(self) -> JsonObject:
        trace, result = self.source.trace, self.source.result
        if trace:
            recorded = trace.recorded
            figures: JsonObject = {
                "requests": len(trace.requests),
                "duration_s": float(trace.requests.arrival_us[-1]) / 1e6,
                "prompt_tokens": _spread(trace.requests.input_len),
                "output_tokens": _spread(trace.requests.output_len),
                "repeated_share": repeated_share(trace.requests),
                "windows": int(trace.requests.stage.max()) + 1,
                "measured": int((~np.isnan(recorded.e2e_ms)).sum()) if recorded else 0,
            }
        else:
            prompt, answer = result.lengths
            figures = {
                "requests": result.requests,
                "prompt_tokens": {"mean": prompt},
                "output_tokens": {"mean": answer},
                "measured": result.stated.completed,
            }
        return {
            "trace": self.source.file,
            "table": str(self.table) if self.table else None,
            "digest": self.source.digest,
            **figures,
            "load": dict(self.source.load),
            "notes": [*self.notes, *([assuming(self.source, self.assumed)] if self.assumed else [])],
            "experiment": self.experiment.id if self.experiment else None,
            "replaced": self.replaced,
            "overloaded": list(self.source.overloaded),
        }


def convert(sources: Sequence[TraceSource], out: Path, given: Given) -> list[Converted]:
    """The traces, each written to `out` as a table in our columns; with a model and a GPU also as an experiment.

    Raises InputError for two traces of one name, and an `out` that cannot be written or has a file that is not ours.
    """
    names = [source.name for source in sources]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{name}: two traces have this name: rename one")
    create(out, EXPERIMENTS, MARK)
    entries: list[JsonObject] = []
    entered = set[str]()  # the options that name traces with an experiment
    described: list[Converted] = []
    for source in sources:
        experiment, lacking, on = None, "", ""
        if source.model is not None and given.hardware is not None:
            spec = _spec(source, source.model, given)
            experiment = deploy(spec)
            lacking = assumed(experiment, source.engine)
            about = [assuming(source, lacking)] if lacking else []
            served = source.model, experiment.model
            on = note_on_model(source.file, source.measured_on, served, known_models()) or ""
            notes = (*([on] if on else []), *source.notes, *about, *source.overloaded)
            entry = replace(spec, notes=notes).to_entry()
            if source.trace:
                entry["workload"]["trace"] = f"{source.name}{TABLES}"
            entries.append(entry)
            entered.add(source.option)
        elif source.measured_on:
            on = f"was measured on {shown(source.measured_on)}, as it says"
        table = out / f"{source.name}{TABLES}" if source.trace else None
        described.append(Converted(source, table, experiment, assumed=lacking, measured_on=on))
    earlier = _earlier(out) if entries else {}
    changed = {e["id"] for e in entries if e["id"] in earlier and earlier[e["id"]] != e}
    converted: list[Converted] = []
    try:
        written = [out / e["workload"]["trace"] for e in earlier.values() if "trace" in e["workload"]]
        for c in described:
            other, twice = False, ""
            if c.source.trace and c.table:
                with draft_of(c.table, kept=True) as draft:
                    write_table(c.source.trace, draft)
                    other = c.table.exists() and not filecmp.cmp(draft, c.table, shallow=False)
                others = [before.table for before in converted if before.table]
                others += [path for path in written if path.stem not in names]
                twice = _same(c.table, others) if c.source.trace.recorded else ""
            else:
                twice = _summed(c.source, sources)
            replaced = other or (c.experiment is not None and c.experiment.id in changed)
            converted.append(replace(c, replaced=replaced, twice=twice))
        if entries:
            every = {**earlier, **{e["id"]: e for e in entries}}
            raw = {"version": 1, "experiments": list(every.values())}
            text = yaml_text(raw, LINE_WIDTH)
            write_text(out / EXPERIMENTS, _header(out / EXPERIMENTS, entered) + text)
    except OSError as e:
        raise unwritable(shown_path(out), e, "choose another --out") from None
    return converted


def _same(table: Path, others: Sequence[Path]) -> str:
    """The name of the first of the other tables that has the same bytes; "" if none does."""
    return next((other.stem for other in others if filecmp.cmp(table, other, shallow=False)), "")


def _summed(source: TraceSource, sources: Sequence[TraceSource]) -> str:
    """The name of the source with the requests that the means of `source` are of; "" if there is none."""
    stated = source.result.stated
    return next((other.name for other in sources if other.trace and other.result.stated == stated), "")


def _spec(source: TraceSource, model: str, given: Given) -> Spec:
    trace = source.trace
    files = replace(NO_FILES, trace=lambda *_: trace) if trace else NO_FILES
    return read_spec(entry_of(source, model, given), source.where, files)


def entry_of(source: TraceSource, model: str, given: Given) -> JsonObject:
    """The entry of an experiments file for a trace, or for the means of a result."""
    entry: JsonObject = {"id": source.name.replace(",", "-"), "model": model}
    if model in given.models:
        entry["model_config"] = dict(given.models[model])
    entry |= {"hardware": given.hardware, "engine": dict(source.engine)}
    trace = {"trace": source.trace.file} if source.trace else {}
    entry["workload"] = {"name": source.name, **trace, **source.load}
    if source.observed:
        entry["observed"] = dict(source.observed)
    if source.overloaded:
        entry["quality"] = OVERLOADED
    return entry


def assuming(source: TraceSource, options: str) -> str:
    """The note on settings of the engine that are assumed; they end it, as options."""
    blocks = "" if "total_kv_blocks" in source.engine else ", KV blocks from the GPU's memory and the others by default"
    text = f"engine settings without a source are assumed{blocks}"
    beside = f" ({source.beside})" if source.beside else ""
    return f"{text}; correct those that were different with `evolve ingest`{beside}: {options}"


def _earlier(out: Path) -> dict[str, JsonObject]:
    """By id, the experiments of earlier calls whose tables are still there. Raises InputError if they are damaged."""
    path = out / EXPERIMENTS
    if not path.exists():
        return {}
    raw = parse_yaml(read_bytes(path), shown_path(path), BEGIN)

    def by_id(raw: Any) -> dict[str, JsonObject]:
        if not all(isinstance(e["id"], str) for e in raw["experiments"]):  # as 1e3, which old releases did not quote
            raise TypeError
        return {e["id"]: e for e in raw["experiments"] if (out / e["workload"].get("trace", "")).exists()}

    return read_by(by_id, raw, shown_path(path), "move it away, or choose another --out")


def _header(path: Path, options: set[str]) -> str:
    """The first line of the experiments file, with the options of this call and of those before it."""
    earlier = path.read_text("utf-8").partition(":")[0] if path.exists() else ""
    return HEADER.format(" and ".join(sorted(options | set(OPTION.findall(earlier)))))


def write_table(trace: Trace, path: Path) -> None:
    """Write a trace as parquet, in the columns that a trace of ours has. Raises OSError."""
    r, recorded = trace.requests, trace.recorded
    owned = {TURNS if r.turns else "prompt": (r.prompt, r.prompt >= 0), "prefix_group": (r.group, r.group >= 0)}
    columns: dict[str, pa.Array] = {
        "arrival_s": pa.array(r.arrival_us / 1e6),
        "input_len": pa.array(r.input_len),
        "output_len": pa.array(r.output_len),
    }
    columns |= {name: pa.array(v, mask=~known) for name, (v, known) in owned.items() if known.any()}
    if (r.group >= 0).any():
        columns["prefix_len"] = pa.array(r.shared_len)
    if r.deadline_us.any():
        patience_s = (r.deadline_us - r.arrival_us) / 1e6
        columns["timeout_s"] = pa.array(patience_s, mask=r.deadline_us == 0)
    counted = r.stage != NOT_COUNTED
    if not counted.all() or not np.array_equal(r.stage, windows(r.arrival_us)):  # else a reader finds the same windows
        columns["stage"] = pa.array(r.stage)
    if recorded:
        times = ((f.name, getattr(recorded, f.name)) for f in fields(recorded))
        columns |= {name: pa.array(values, from_pandas=True) for name, values in times if values is not None}
    if r.chains:
        columns[HASHES] = pa.ListArray.from_arrays(pa.array(r.chains.first, pa.int32()), pa.array(r.chains.number))
        columns[HASH_TOKENS] = pa.array(np.full(len(r), r.chains.piece_len, np.int32))
    pq.write_table(pa.table(columns), path, compression="zstd", row_group_size=ROWS)


def _spread(lengths: np.ndarray) -> JsonObject:
    p50, p90, p99 = np.percentile(lengths, (50, 90, 99))
    return {"mean": float(lengths.mean()), "p50": float(p50), "p90": float(p90), "p99": float(p99)}
