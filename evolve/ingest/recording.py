"""`evolve ingest --tracev2`: a trace that the host observed, as recorded requests with how they fared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from evolve.ingest.options import ENGINE_KEYS, Setting
from evolve.output.files import digest_of
from simulator.common.errors import InputError, shown
from simulator.serving.experiment import NOT_MEASURED, Experiment
from simulator.serving.trace import NOT_COUNTED, Recorded, Trace, windows
from simulator.serving.traces.tracev2 import NEVER, OK, STATUSES, Recording, read_recording
from simulator.serving.traces.tracev2_header import CASE, TraceServer

REAL = "real"  # the mode of a trace that was measured
MOST_WORDS = 8  # unknown words of status that a note names
INDIFFERENT = ("name", "version", "gpu_memory_utilization")  # settings that change nothing once the KV blocks are known


@dataclass(frozen=True, slots=True)
class RecordedLatencies:
    """A trace that was measured, and what served it.

    simulated: whether its times are a simulation's. beside: where to find settings that its header cannot hold, or "".
    """

    trace: Trace
    server: TraceServer
    simulated: bool
    beside: str


def observed_trace(header: Path, data: Path) -> RecordedLatencies:
    """The trace in a header and its data.

    Latencies are the client's, from when a request was sent. Warm-up requests are replayed but part of no figure;
    requests without an answer are left out; others that did not complete are replayed, and counted as failed. Raises
    InputError naming file, line and remedy.
    """
    recording = read_recording(header, data)
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
    arrival = r.arrival_us - first
    stage = np.full(len(r), NOT_COUNTED, np.int32)
    stage[counted] = windows(arrival[counted])
    requests = replace(
        r, arrival_us=arrival, stage=stage, deadline_us=np.where(r.deadline_us > 0, r.deadline_us - first, 0)
    )
    e2e, ttft = e2e[kept], ttft[kept]
    measured_none = bool(np.isnan(e2e).all() and np.isnan(ttft).all())
    # That all failed is a result too, by which `overload` marks the trace.
    all_failed = bool((recording.status[kept][counted] != OK).all())
    recorded = None if measured_none and not all_failed else Recorded(e2e, ttft)
    notes = _notes(recording, kept, data.name)
    if measured_none and recording.header.mode == REAL:
        notes = (*notes, f"no request of {data.name} completed with its first_chunk_time_us and last_chunk_time_us: "
                 "there is nothing to fit or to compare")  # fmt: skip
    failed = int((_unanswered(recording) & ~recording.warm_up).sum())
    trace = Trace(data.name, digest_of(header, data), requests, recorded, notes, failed)
    beside = f"{CASE} beside the header has those it was exported with" if header.with_name(CASE).exists() else ""
    return RecordedLatencies(trace, recording.header.server, recording.header.mode != REAL, beside)


def _unanswered(recording: Recording) -> np.ndarray:
    """bool: requests that failed and have no tokens. A client that got no answer has no count of them, so most of what
    failed is so."""
    unanswered: np.ndarray = (recording.requests.output_len == 0) & (recording.status != OK)
    return unanswered


def _latencies(recording: Recording, data: Path) -> tuple[np.ndarray, np.ndarray]:
    """(E2E, TTFT) of each request in ms, NaN where it is not known. Raises InputError for times that go back."""
    r, first, last = recording.requests, recording.first_us, recording.last_us
    done = (recording.status == OK) & (first != NEVER) & (last != NEVER)
    for name, wrong in (("first_chunk_time_us", first < r.arrival_us), ("last_chunk_time_us", last < first)):
        if (done & wrong).any():
            line = recording.line[int((done & wrong).argmax())]
            before = "the request was sent" if name.startswith("first") else "the first chunk"
            raise InputError(f"{data}:{line}: {name} is before {before}: correct the times, or remove the line")
    e2e = np.where(done, (last - r.arrival_us) / 1e3, np.nan)
    return e2e, np.where(done & recording.streamed, (first - r.arrival_us) / 1e3, np.nan)


def _notes(recording: Recording, kept: np.ndarray, name: str) -> tuple[str, ...]:
    total, warm_up = len(recording.requests), int(recording.warm_up[kept].sum())
    notes = [*recording.header.notes]
    if recording.header.mode != REAL:
        text = f"mode is {recording.header.mode}: the times of {name} {NOT_MEASURED}"
        notes.append(f"{text}: errors are against that simulation and say nothing about a real engine")
    if warm_up:
        notes.append(f"{warm_up:,} of {total:,} requests of {name} are warm-up: replayed, but part of no figure")
    if (left_out := total - len(kept)) > 0:
        text = f"{left_out:,} of {total:,} requests of {name} have no answer: left out"
        failed = f" ({failed:,} of them failed)" if (failed := int(_unanswered(recording).sum())) else ""
        notes.append(f"{text}{failed}, so the replayed load is lighter than what the engine had")
    if whole := int((~recording.streamed[kept]).sum()):
        notes.append(f"{whole:,} of {total:,} requests of {name} were not streamed: they have no TTFT and no ITL")
    # The host reads whatever stands there, and its releases have added words: such a trace is no mistake, but whether
    # its requests completed is not known.
    words, counts = np.unique(recording.status, return_counts=True)
    unknown = [f"{shown(str(w))} {n:,}" for w, n in zip(words, counts.tolist(), strict=True) if w not in STATUSES]
    if unknown:
        known = ", ".join(STATUSES)
        more = f" and {len(unknown) - MOST_WORDS:,} more words" if len(unknown) > MOST_WORDS else ""
        text = f"unknown status in {name}: {', '.join(unknown[:MOST_WORDS])}{more}"
        notes.append(f"{text}: counted as failed (known are {known})")
    return tuple(notes)


def engine_of(server: TraceServer, given: Mapping[str, Setting]) -> dict[str, Setting]:
    """The engine settings that the header gives, and those of --engine, which take precedence."""
    return {**_of_header(server), **given}


def overridden(server: TraceServer, given: Mapping[str, Setting]) -> str:
    """A note on the settings of --engine that differ from the header's; "" if none does."""
    header = _of_header(server)
    other = [key for key, value in given.items() if key in header and header[key] != value]
    each = ", ".join(f"{key} {shown(given[key])} (the header has {shown(header[key])})" for key in other)
    return f"--engine takes precedence: {each}" if other else ""


def _of_header(server: TraceServer) -> dict[str, Setting]:
    return {key: value for key, value in asdict(server).items() if key in ENGINE_KEYS and value is not None}


def assumed(experiment: Experiment, given: Iterable[str]) -> str:
    """The engine settings of an experiment that are not among the `given`, as options; "" if there are none."""
    facts = experiment.facts
    computed = {"max_model_len": int(facts["max_model_len"]), "total_kv_blocks": int(facts["kv_blocks"])}
    settings = asdict(experiment.engine) | computed
    missing = [key for key in ENGINE_KEYS if key not in (*given, *INDIFFERENT)]
    return " ".join(f"--engine {key}={str(settings[key]).lower()}" for key in missing)
