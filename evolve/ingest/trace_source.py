"""The traces that `evolve ingest --trace` and `--tracev2` name, with their models and engine settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from evolve.ingest.options import Given
from evolve.ingest.quality import judge
from evolve.ingest.read.reports import LoadReport, Reports
from evolve.ingest.read.sources import shown_path, trace_ending
from evolve.output.files import digest_of
from simulator.common.errors import InputError, shown
from simulator.common.text import listed
from simulator.serving.engine import SETTINGS, Setting
from simulator.serving.experiment import Experiment
from simulator.serving.model import known_models
from simulator.serving.observations import NOT_MEASURED, Observation, measured
from simulator.serving.trace import NOT_COUNTED, Recorded, Trace, latencies_ms, rows_by_stage, windows
from simulator.serving.traces.formats import TRACES
from simulator.serving.traces.read import read_trace
from simulator.serving.traces.tracev2 import CASE, NEVER, OK, STATUSES, Recording, read_recording

MOST_NAMED = 8  # files, or unknown words of status, that a message lists
REAL = "real"  # the mode of a trace that was measured
# Settings that change nothing once the KV blocks are known, or that few engines are started with.
INDIFFERENT = (
    *("name", "version", "gpu_memory_utilization"),
    *("kv_cache_dtype", "enforce_eager", "stream_interval"),
)


@dataclass(frozen=True)
class TraceSource:
    """A trace that was read: the name of its table and experiment, and its requests.

    option: the one that names it on the command line. model: its model, if known. engine: its settings. overloaded:
    reasons why its latencies are those of a queue. simulated: true for simulated latencies. beside: a file with
    settings that are not in `engine`, or "".
    """

    name: str
    option: str
    trace: Trace
    model: str | None
    engine: Mapping[str, Setting]
    overloaded: tuple[str, ...]
    simulated: bool = False
    beside: str = ""

    @property
    def where(self) -> str:
        """Its name in messages."""
        return f"{self.option} {self.trace.file}"


def of_files(files: Sequence[Path], model: str | None, given: Given) -> list[TraceSource]:
    """The traces in files of any of the formats.

    Raises InputError for a file that is no trace, and for a model or a GPU without the other.
    """
    if model is not None and given.hardware is None:
        raise InputError("--model and --hardware together make an experiment of a trace: give both, or neither")
    return [
        TraceSource(path.stem, "--trace", trace, _model_of(trace, model, given), given.engine, _overload(trace))
        for path, trace in zip(files, _read_all(files), strict=True)
    ]


def _read_all(files: Sequence[Path]) -> list[Trace]:
    """The traces in these files. Raises InputError for the first that is none, which names the others, too."""
    traces, refused = [], dict[Path, InputError]()
    for path in files:
        try:
            traces.append(_read(path))
        except InputError as e:
            refused[path] = e
    if not refused:
        return traces
    (first, error), *_ = refused.items()
    if len(files) == 1 or first.is_dir():
        raise error
    if len(refused) == 1:
        raise InputError(f"{error}, or leave this file out to read the others")
    others = listed([shown_path(path) for path in [*refused][1:]], MOST_NAMED)
    raise InputError(f"{error}; nor can these be read, {others}: leave all {len(refused)} out to read the others")


def _read(path: Path) -> Trace:
    if path.is_dir():
        ending = trace_ending(file.name for file in path.iterdir()) or TRACES[0]
        every = shown_path(path / f"*{ending}")
        raise InputError(f"{shown_path(path)}: is a folder: name the files in it, as in --trace {every}")
    return read_trace(path, path.name)


def _model_of(trace: Trace, model: str | None, given: Given) -> str | None:
    """The model that serves a trace: the one that is named, else the file's, if that is known; None without a GPU.

    Raises InputError if there is a GPU but no model.
    """
    if model is not None or given.hardware is None:
        return model
    if trace.model in given.models:
        return trace.model
    if trace.model in known_models():
        return trace.model
    says = f"was measured on {shown(trace.model)}, which is not known" if trace.model else "names no model"
    raise InputError(f"{shown_path(Path(trace.file))}: {says}: give --model, or neither --model nor --hardware")


def of_recordings(pairs: Sequence[tuple[Path, Path]], model: str | None, given: Given) -> list[TraceSource]:
    """The traces in TraceV2, each a header and its data; --engine takes precedence over the settings of the header.

    Raises InputError, with file, line and remedy, for a file in another format.
    """
    sources = []
    for header, data in pairs:
        recording = read_recording(header, data)
        server = recording.header.server
        if given.hardware and not (model or server.model):
            raise InputError(f"{shown_path(header)}: names no model: give --model")
        recorded = {key: value for key, value in asdict(server).items() if key in SETTINGS and value is not None}
        changed = ", ".join(
            f"{key} {shown(value)} (the header has {shown(recorded[key])})"
            for key, value in given.engine.items()
            if recorded.get(key, value) != value
        )
        trace = _observed(recording, header, data)
        if changed:
            trace = replace(trace, notes=(*trace.notes, f"--engine takes precedence: {changed}"))
        # Traces of several folders often have the same name.
        alike = sum(other.stem == data.stem for _, other in pairs) > 1
        source = TraceSource(
            name=f"{data.resolve().parent.name}-{data.stem}" if alike else data.stem,
            option="--tracev2",
            trace=trace,
            model=model or server.model,
            engine={**recorded, **given.engine},
            overloaded=_overload(trace),
            simulated=recording.header.mode != REAL,
            beside=f"{CASE} next to the header has the exported ones" if header.with_name(CASE).exists() else "",
        )
        sources.append(source)
    return sources


def _observed(recording: Recording, header: Path, data: Path) -> Trace:
    """The trace of a recording.

    Latencies are the client's, from when a request was sent. Warm-up requests are replayed but part of no figure;
    requests without an answer are left out; others that did not complete are replayed, and counted as failed.
    """
    r = recording.requests
    e2e, ttft = _latencies(recording, data)
    kept = np.flatnonzero(r.output_len > 0)
    counted = ~recording.warm_up[kept]
    if not len(kept):
        raise InputError(f"{data}: output_tokens is 0 in every line: give the trace of requests that were answered")
    if not counted.any():
        text = f"no request with an answer has a number of {recording.header.warm_up_requests} or more"
        raise InputError(f"{data}: {text}, and those below are warm-up: lower warm_up_requests in the header")
    first = int(r.arrival_us[kept].min())
    r = r.of(kept)
    arrival, deadline = r.arrival_us - first, np.where(r.deadline_us > 0, r.deadline_us - first, 0)
    stage = np.full(len(r), NOT_COUNTED, np.int32)
    stage[counted] = windows(arrival[counted])
    requests = replace(r, arrival_us=arrival, stage=stage, deadline_us=deadline)
    e2e, ttft = e2e[kept], ttft[kept]
    measured_none = bool(np.isnan(e2e).all() and np.isnan(ttft).all())
    # That all failed is a result too, by which `_overload` marks the trace.
    all_failed = bool((recording.status[kept][counted] != OK).all())
    recorded = None if measured_none and not all_failed else Recorded(e2e, ttft)
    unanswered = (recording.requests.output_len == 0) & (recording.status != OK)
    notes = _notes(recording, kept, int(unanswered.sum()), data.name)
    if measured_none and recording.header.mode == REAL:
        text = f"no request of {data.name} completed with its first_chunk_time_us and last_chunk_time_us"
        notes.append(f"{text}: there is nothing to fit or to compare")
    failed = int((unanswered & ~recording.warm_up).sum())
    return Trace(data.name, digest_of(header, data), requests, recorded, tuple(notes), failed)


def _latencies(recording: Recording, data: Path) -> tuple[np.ndarray, np.ndarray]:
    """(E2E, TTFT) of each request in ms, NaN where it is not known. Raises InputError for times that go back."""
    r, first, last = recording.requests, recording.first_us, recording.last_us
    done = (recording.status == OK) & (first != NEVER) & (last != NEVER)
    backwards = {
        "first_chunk_time_us is before the request was sent": done & (first < r.arrival_us),
        "last_chunk_time_us is before the first chunk": done & (last < first),
    }
    for problem, wrong in backwards.items():
        if wrong.any():
            line = recording.line[int(wrong.argmax())]
            raise InputError(f"{data}:{line}: {problem}: correct the times, or remove the line")
    e2e = np.where(done, (last - r.arrival_us) / 1e3, np.nan)
    return e2e, np.where(done & recording.streamed, (first - r.arrival_us) / 1e3, np.nan)


def _notes(recording: Recording, kept: np.ndarray, unanswered: int, name: str) -> list[str]:
    total, warm_up = len(recording.requests), int(recording.warm_up[kept].sum())
    whole, left_out = int((~recording.streamed[kept]).sum()), total - len(kept)
    notes = [*recording.header.notes]
    if recording.header.mode != REAL:
        text = f"mode is {recording.header.mode}: the times of {name} {NOT_MEASURED}"
        notes.append(f"{text}: errors are against that simulation and say nothing about a real engine")
    if warm_up:
        notes.append(f"{warm_up:,} of {total:,} requests of {name} are warm-up: replayed, but part of no figure")
    if left_out:
        failed = f" ({unanswered:,} of them failed)" if unanswered else ""
        text = f"{left_out:,} of {total:,} requests of {name} have no answer: left out{failed}"
        notes.append(f"{text}, so the replayed load is lighter than the recorded one")
    if whole:
        notes.append(f"{whole:,} of {total:,} requests of {name} were not streamed: they have no TTFT and no ITL")
    # The host reads any word, and its releases have added some. It is unknown if such requests completed.
    words, counts = np.unique(recording.status, return_counts=True)
    unknown = [f"{shown(str(w))} {n:,}" for w, n in zip(words, counts.tolist(), strict=True) if w not in STATUSES]
    if unknown:
        text = f"unknown status in {name}: {listed(unknown, MOST_NAMED)}"
        notes.append(f"{text}: counted as failed (known are {', '.join(STATUSES)})")
    return notes


def _overload(trace: Trace) -> tuple[str, ...]:
    """The reasons why the latencies of a trace are those of a queue; none for a clean one."""
    r = trace.requests
    figures = measured(trace, int(r.stage.max()) + 1)
    if figures is None or trace.recorded is None or figures.summary is None:
        return ()
    _, ttft, _ = latencies_ms(r, trace.recorded.e2e_ms, trace.recorded.ttft_ms)
    rows = rows_by_stage(r.stage, len(figures.stages))
    stages = {k: _report(stage, ttft[rows[k]], trace.file) for k, stage in enumerate(figures.stages)}
    run = _report(figures.summary, ttft[r.stage >= 0], trace.file)
    failed = (run.failed or 0) + trace.failed
    run = replace(run, requests=(run.completed or 0) + failed, failed=failed)
    return judge(Reports(run, stages), None).reasons


def _report(o: Observation, ttft_ms: np.ndarray, source: str) -> LoadReport:
    quickest = None if np.isnan(ttft_ms).all() else np.nanmin(ttft_ms)
    e2e_s, ttft_s = (
        {name: ms / 1e3 for name, ms in each.items() if ms is not None}
        for each in ({"mean": o.e2e_ms.mean}, {"mean": o.ttft_ms.mean, "min": quickest})
    )
    return LoadReport(source, (o.completed or 0) + (o.failed or 0), o.completed, o.failed, e2e_s, ttft_s)


def assumed(experiment: Experiment, given: Iterable[str]) -> str:
    """The engine settings of an experiment that are not among the `given`, as options; "" if there are none."""
    facts = experiment.facts
    computed = {"max_model_len": int(facts["max_model_len"]), "total_kv_blocks": int(facts["kv_blocks"])}
    settings = asdict(experiment.engine) | computed
    missing = [key for key in SETTINGS if key not in (*given, *INDIFFERENT) and settings[key] is not None]
    return " ".join(f"--engine {key}={str(settings[key]).lower()}" for key in missing)
