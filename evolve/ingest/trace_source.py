"""The traces that `evolve ingest --trace` and `--tracev2` name, with their models and engine settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from evolve.ingest.options import Given
from evolve.ingest.quality import judge
from evolve.ingest.read.reports import LoadReport, Reports
from evolve.ingest.read.sources import shown_path, trace_ending
from evolve.output.files import digest_of
from simulator.common.errors import InputError, shown
from simulator.common.json import JsonObject
from simulator.common.text import listed
from simulator.serving.engine import SETTINGS, Setting
from simulator.serving.experiment import Experiment
from simulator.serving.model import known_models
from simulator.serving.observations import NOT_MEASURED, Observation, measured
from simulator.serving.trace import NOT_COUNTED, Recorded, Trace, latencies_ms, rows_by_stage, windows
from simulator.serving.traces.formats import TRACES, read_results
from simulator.serving.traces.read import trace_from
from simulator.serving.traces.result import Result
from simulator.serving.traces.tracev2 import CASE, NEVER, OK, STATUSES, Recording, read_recording

MOST_NAMED = 8  # files, or unknown words of status, that a message lists
REAL = "real"  # the mode of a trace that was measured
# Settings that change nothing once the KV blocks are known, or that few engines are started with.
INDIFFERENT = (
    *("name", "version", "gpu_memory_utilization"),
    *("kv_cache_dtype", "enforce_eager", "stream_interval"),
    *("data_parallel", "expert_parallel", "pipeline_parallel", "expert_routing", "prefill_schedule_interval"),
    *("kv_offloading_size", "kv_offload_gb_per_s", "kv_offload_latency_us", "offload_prompt_only"),
    "num_speculative_tokens",
)


@dataclass(frozen=True)
class TraceSource:
    """A trace or a result that was read: the name of its table and experiment, and its requests or their means.

    option: the one that names it on the command line. file: its name. trace: its requests, None for means alone.
    model: its model, if known. engine: its settings. overloaded: reasons why its latencies are those of a queue.
    simulated: true for simulated latencies. beside: a file with settings that are not in `engine`, or "". load,
    observed: what its experiment says of them, but for the trace.
    """

    name: str
    option: str
    file: str
    digest: str
    trace: Trace | None
    model: str | None
    engine: Mapping[str, Setting]
    overloaded: tuple[str, ...]
    simulated: bool = False
    beside: str = ""
    measured_on: str = ""  # the model that its file names, or ""
    notes: tuple[str, ...] = ()
    result: Result = field(default_factory=Result)
    load: JsonObject = field(default_factory=dict)
    observed: JsonObject = field(default_factory=dict)

    @property
    def where(self) -> str:
        """Its name in messages."""
        return f"{self.option} {self.file}"

    @property
    def measured(self) -> bool:
        """Whether it has latencies."""
        return bool(self.observed) or bool(self.trace and self.trace.recorded)


def of_files(files: Sequence[Path], model: str | None, given: Given) -> list[TraceSource]:
    """The traces in files of any of the formats.

    Raises InputError for a file that is no trace, and for a model or a GPU without the other.
    """
    if model is not None and given.hardware is None:
        raise InputError("--model and --hardware together make an experiment of a trace: give both, or neither")
    every = _read_all(files)
    sources = []
    for path, results in zip(files, every, strict=True):
        alike = sum(other.stem == path.stem for other in files) > 1  # as profile_export.jsonl of several runs
        stem = f"{path.resolve().parent.name}-{path.stem}" if alike else path.stem
        for result, label in zip(results, labels(results), strict=True):
            sources.append(_source(path, stem, label, result, model, given))
    return sources


def labels(results: Sequence[Result]) -> list[str]:
    """What tells the results of one file apart: nothing for one, else how requests were sent, numbered where alike."""
    if len(results) < 2:
        return [""] * len(results)
    names = [result.pacing.label if result.pacing else "trace" for result in results]
    seen = [names[:k].count(name) + 1 for k, name in enumerate(names)]
    return [f"{name}-{k}" if names.count(name) > 1 else name for name, k in zip(names, seen, strict=True)]


def _source(path: Path, stem: str, label: str, result: Result, model: str | None, given: Given) -> TraceSource:
    name, load = "-".join(filter(None, (stem, label))), result.load_entry(shown_path(path))
    digest = "-".join(filter(None, (digest_of(path), label)))
    model = _model_of(path.name, result.model, model, given)
    if result.rows is None:
        overloaded, observed = _means_overload(result, path.name), result.observed_entry()
        return TraceSource(
            *(name, "--trace", path.name, digest, None, model, given.engine, overloaded),
            measured_on=result.model,
            notes=result.about,
            result=result,
            load=load,
            observed=observed,
        )
    trace = trace_from(result.rows, path, path.name, timed="concurrency" not in load)
    overloaded = _overload(trace, queues="concurrency" not in load)
    return TraceSource(
        *(name, "--trace", path.name, digest, trace, model, given.engine, overloaded),
        measured_on=result.model,
        notes=(*trace.notes, *_capped(trace, load)),
        result=result,
        load=load,
    )


def _capped(trace: Trace, load: Mapping[str, int]) -> tuple[str, ...]:
    """A note if the cap on requests in flight was reached, so that requests were sent later than they were due."""
    cap = load.get("max_in_flight")
    if not cap or trace.recorded is None:
        return ()
    sent = trace.requests.arrival_us
    ended = np.sort(sent + np.nan_to_num(trace.recorded.e2e_ms) * 1e3)
    in_flight = np.arange(1, len(sent) + 1) - np.searchsorted(ended, sent, side="right")
    if in_flight.max() < cap:
        return ()
    text = f"up to {cap:,} requests of {trace.file} were in flight, which it allows at most (max_in_flight)"
    return (f"{text}: its times are when requests were sent, not when they were due",)


def _read_all(files: Sequence[Path]) -> list[list[Result]]:
    """The results in these files. Raises InputError for the first that has none, which names the others, too."""
    every, refused = [], dict[Path, InputError]()
    for path in files:
        try:
            results = _read(path)
            for result in results:
                result.load_entry(shown_path(path))
            every.append(results)
        except InputError as e:
            refused[path] = e
    if not refused:
        return every
    (first, error), *_ = refused.items()
    if len(files) == 1 or first.is_dir():
        raise error
    if len(refused) == 1:
        raise InputError(f"{error}, or leave this file out to read the others")
    others = listed([shown_path(path) for path in [*refused][1:]], MOST_NAMED)
    raise InputError(f"{error}; nor can these be read, {others}: leave all {len(refused)} out to read the others")


def _read(path: Path) -> list[Result]:
    if path.is_dir():
        ending = trace_ending(file.name for file in path.iterdir()) or TRACES[0]
        every = shown_path(path / f"*{ending}")
        raise InputError(f"{shown_path(path)}: is a folder: name the files in it, as in --trace {every}")
    return read_results(path)


def _model_of(file: str, says: str, model: str | None, given: Given) -> str | None:
    """The model that serves a trace: the one that is named, else what its file `says`, if that is known; None without
    a GPU.

    Raises InputError if there is a GPU but no model.
    """
    if model is not None or given.hardware is None:
        return model
    if says in given.models or says in known_models():
        return says
    why = f"was measured on {shown(says)}, which is not known" if says else "names no model"
    raise InputError(f"{shown_path(Path(file))}: {why}: give --model, or neither --model nor --hardware")


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
        trace = _observed(recording, header, data, bool(given.engine.get("kv_offloading_size")))
        if changed:
            trace = replace(trace, notes=(*trace.notes, f"--engine takes precedence: {changed}"))
        # Traces of several folders often have the same name.
        alike = sum(other.stem == data.stem for _, other in pairs) > 1
        source = TraceSource(
            name=f"{data.resolve().parent.name}-{data.stem}" if alike else data.stem,
            option="--tracev2",
            file=trace.file,
            digest=trace.digest,
            trace=trace,
            model=model or server.model,
            engine={**recorded, **given.engine},
            overloaded=_overload(trace),
            simulated=recording.header.mode != REAL,
            notes=trace.notes,
            beside=f"{CASE} next to the header has the exported ones" if header.with_name(CASE).exists() else "",
        )
        sources.append(source)
    return sources


def _observed(recording: Recording, header: Path, data: Path, offloading: bool) -> Trace:
    """The trace of a recording. offloading: KV offload is replayed.

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
    notes = _notes(recording, kept, int(unanswered.sum()), offloading, data.name)
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


def _notes(recording: Recording, kept: np.ndarray, unanswered: int, offloading: bool, name: str) -> list[str]:
    total, warm_up = len(recording.requests), int(recording.warm_up[kept].sum())
    whole, left_out = int((~recording.streamed[kept]).sum()), total - len(kept)
    notes = [*recording.header.notes, *(each.text for each in recording.losses if not (each.all_blocks and offloading))]
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


def _overload(trace: Trace, queues: bool = True) -> tuple[str, ...]:
    """The reasons why the latencies of a trace are those of a queue; none for a clean one.

    queues: False if no queue can grow, because a fixed number of clients wait for their answers.
    """
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
    return judge(Reports(run, stages) if queues else Reports(replace(run, ttft_s={})), None).reasons


def _means_overload(result: Result, file: str) -> tuple[str, ...]:
    """As `_overload`, of means. The queue of a burst is part of the load, and is replayed."""
    run = _report(result.stated, np.zeros(0), file)
    queues = result.pacing is not None and result.pacing.rate is not None
    return judge(Reports(run if queues else replace(run, ttft_s={})), None).reasons


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
