"""The traces that `evolve ingest --trace` and `--tracev2` name, with what served them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from evolve.ingest.options import Given, Setting
from evolve.ingest.quality import judge
from evolve.ingest.read.reports import LoadReport, Reports
from evolve.ingest.read.sources import shown_path, trace_ending
from evolve.ingest.recording import engine_of, observed_trace, overridden
from simulator.common.errors import InputError, shown
from simulator.common.text import listed
from simulator.model.names import known_name
from simulator.serving.bundled import known_models
from simulator.serving.experiment import Observation
from simulator.serving.observations import measured
from simulator.serving.trace import Trace, latencies_ms, rows_by_stage
from simulator.serving.traces.formats import TRACES
from simulator.serving.traces.read import read_trace

MOST_NAMED = 8  # files that a message lists


@dataclass(frozen=True)
class TraceSource:
    """A trace that was read: the name of its table and experiment, and its requests.

    option: the one that names it on the command line. model: what serves it, if that is known. engine: its settings.
    overloaded: why its latencies are those of a queue. simulated: whether they are a simulation's. beside: where to
    find settings that are not in `engine`, or "".
    """

    name: str
    option: str
    trace: Trace
    model: str | None
    engine: Mapping[str, Setting]
    overloaded: tuple[str, ...] = ()
    simulated: bool = False
    beside: str = ""

    @property
    def where(self) -> str:
        """How messages name it."""
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
    """The trace in a file. Raises InputError for a folder, and for a file that is no trace."""
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
    if found := known_name(trace.model, known_models()):
        return found
    says = f"was measured on {shown(trace.model)}, which is not known" if trace.model else "names no model"
    raise InputError(f"{shown_path(Path(trace.file))}: {says}: give --model, or neither --model nor --hardware")


def of_recordings(pairs: Sequence[tuple[Path, Path]], model: str | None, given: Given) -> list[TraceSource]:
    """The traces in TraceV2, each a header and its data. Raises InputError for a file that is none."""
    sources = []
    for header, data in pairs:
        observed = observed_trace(header, data)
        trace, server = observed.trace, observed.server
        served = model or server.model
        if given.hardware and served is None:
            raise InputError(f"{shown_path(header)}: names no model: give --model")
        engine = engine_of(server, given.engine)
        if changed := overridden(server, given.engine):
            trace = replace(trace, notes=(*trace.notes, changed))
        about = _overload(trace), observed.simulated, observed.beside
        # Traces of several folders often have the same name.
        alike = sum(other.stem == data.stem for _, other in pairs) > 1
        name = f"{data.resolve().parent.name}-{data.stem}" if alike else data.stem
        sources.append(TraceSource(name, "--tracev2", trace, served, engine, *about))
    return sources


def _overload(trace: Trace) -> tuple[str, ...]:
    """Why the latencies of a trace are those of a queue, and of the requests that got through; nothing if clean."""
    figures = measured(trace, int(trace.requests.stage.max()) + 1)
    if figures is None or trace.recorded is None or figures.summary is None:
        return ()
    _, ttft, _ = latencies_ms(trace.requests, trace.recorded.e2e_ms, trace.recorded.ttft_ms)
    stages = rows_by_stage(trace.requests.stage, len(figures.stages))
    each = {
        k: _report(stage, ttft[rows], trace.file)
        for k, (stage, rows) in enumerate(zip(figures.stages, stages, strict=True))
    }
    run = _report(figures.summary, ttft[trace.requests.stage >= 0], trace.file)
    failed = (run.failed or 0) + trace.failed
    run = replace(run, requests=(run.completed or 0) + failed, failed=failed)
    return judge(Reports(run, each), None).reasons


def _report(o: Observation, ttft_ms: np.ndarray, source: str) -> LoadReport:
    """The report of requests with these figures."""
    quickest = np.nanmin(ttft_ms) if (~np.isnan(ttft_ms)).any() else None
    e2e, ttft = (
        {name: value / 1e3 for name, value in pairs if value is not None}
        for pairs in ((("mean", o.e2e_ms.mean),), (("mean", o.ttft_ms.mean), ("min", quickest)))
    )
    sent = (o.completed or 0) + (o.failed or 0)
    return LoadReport(source, sent, o.completed, o.failed, e2e, ttft, {}, {}, {}, {})
