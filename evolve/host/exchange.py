"""Files exchanged with the host: traces as TraceV2, in and out, and results as JSON that its `calibrate` reads."""

from __future__ import annotations

import io
import json
import math
import shlex
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, TextIO

import numpy as np

from evaluator.host_summary import aggregate
from evolve.calibrate.coefficients import has_coefficients
from evolve.host.cases import ALPHA, HostCase, engine_of, limits_from, read_case
from evolve.host.simulate import CaseNames, ReplayWork, bound_to, check_output, mean_gap, save
from evolve.output.files import digest_of
from evolve.output.terminal import command
from evolve.run.program import Source
from simulator.clock.replay import Replay, replay_bound
from simulator.clock.run import NeverEnds
from simulator.common.errors import InputError, unwritable
from simulator.serving.digests import LATER
from simulator.serving.experiment import Experiment
from simulator.serving.limits import HOST_ENGINE
from simulator.serving.load import EngineLimits, Load
from simulator.serving.traces import tracev2
from simulator.serving.traces.tracev2 import CASE, NEVER, Header, Recording, TraceServer, read_header, read_recording
from translate_go.guide import HORIZON_US, longest
from translate_go.naming import DEFAULT
from translate_go.target import TARGETS, THRESHOLD

HEADER, DATA = "header.yaml", "trace.csv"
RESULTS = "host-results.json"  # that the host writes
BUILT_IN = "trained-physics"  # the host's own backend whose form seeds/trained_physics.py has
EXPORT = "--out"
_FLAGS = TARGETS["blis-4"].flags
# setting of a case -> the host's flag for it
FLAGS = {**_FLAGS, "total_kv_blocks": _FLAGS["kv_blocks"], "long_prefill_token_threshold": THRESHOLD}


def of_tracev2(
    header_path: Path,
    data_path: Path,
    case_path: Path | None,
    source: Source | None,
    model: str | None,
    hardware: str | None,
    tp: int | None,
) -> ReplayWork:
    """A trace in TraceV2, timed by a program or by a case's backend.

    The limits are those of the case, else those of the header, else the host's defaults. The model and the tensor
    parallelism are the header's unless given. Raises InputError for wrong files, and for a program that reads
    deployment fields without a GPU or a model to take them from.
    """
    header = read_header(header_path)
    limits = {**HOST_ENGINE, **_given(header.server)}
    if case_path:
        case = read_case(case_path, limits)
    elif source:
        case = HostCase(limits_from(limits), dict.fromkeys(ALPHA, 0.0), None)
    else:
        raise InputError("--tracev2 has no step times. Give --program, or a --case with step_linear_kv.")
    served = model or header.server.model
    if hardware and not served:
        raise InputError(f"{header_path}: no model is named. Give --model.")
    names = CaseNames(served, hardware, tp or header.server.tensor_parallel or 1) if served and hardware else None
    missing = "--hardware" if served else "--model, --hardware and --tp"
    bound, warnings = bound_to(case, case_path or header_path, source, names, f"Give {missing}.")
    trace = read_recording(header_path, data_path)
    files = (header_path, data_path, case_path) if case_path else (header_path, data_path)
    assumed = () if case_path else (_assumed(header_path, header.server),)
    warnings = (*header.notes, *assumed, *warnings)
    load, where = Load(trace.requests, case.limits), str(data_path)
    return ReplayWork(load, bound, trace.number, digest_of(*files), (), where, files, warnings, trace.losses)


def _given(server: TraceServer) -> dict[str, int]:
    settings = {name: getattr(server, name) for name in ("block_size", "max_num_seqs", "max_model_len")}
    return {key: value for key, value in settings.items() if value is not None}


def _assumed(header: Path, server: TraceServer) -> str:
    """The warning about engine settings that are the host's defaults, and how to give others."""
    assumed = {key: value for key, value in HOST_ENGINE.items() if key not in _given(server)}
    settings = ", ".join(f"{key}={value}" for key, value in assumed.items())
    case = header.with_name(CASE)
    if case.exists():
        remedy = f"Give --case {case} for those that the trace was exported with."
    else:
        remedy = f"For others, give --case FILE with {json.dumps({'engine': assumed})} in the file."
    return f"{header}: lacks engine settings, so these are the host's defaults: {settings} (0: no limit). {remedy}"


def as_tracev2(work: ReplayWork, experiment: Experiment) -> ReplayWork:
    """The work with the requests that TraceV2 can hold, and the limits that the host has: this one is simulated.

    A warning says how that changes the prefix cache and the mean TTFT.
    """
    requests = work.load.requests
    if work.load.limits.lanes > 1:
        text = "data_parallel or pipeline_parallel: a case for the host has one rank of one stage"
        raise InputError(f"{work.where}: {text}. Export one without.")
    if not work.load.limits.caching:  # then equal prompts count as different
        none = np.full(len(requests), -1, np.int32)
        requests = replace(requests, prompt=none, group=none, chains=None)
    held, lost = tracev2.with_one_prefix(requests)
    own = work.load.limits
    limits = replace(limits_from(engine_of(own)), drafts=own.drafts, acceptance=own.acceptance)
    exported = replace(work, load=Load(held, limits, work.load.clients))
    if experiment.workload.closed:
        exported = replace(exported, warnings=(*work.warnings, _own_client(experiment)))
    tier = work.load.limits.tier
    if not lost and not tier:
        return exported
    (hits, ttft_ms), (hits_left, ttft_ms_left) = (_cached(each) for each in (work, exported))
    causes = ["TraceV2 has one prefix per request"] if lost else []
    if tier:
        causes.append("the case has no KV offload, which the host replays by other rules: its loads take no time")
    text = (
        f"{experiment.id}: {', and '.join(causes)}. {hits_left:.1f} % of the prompts' KV blocks are cached "
        f"instead of {hits:.1f} %, and the mean TTFT is {ttft_ms_left:.1f} ms instead of {ttft_ms:.1f}"
    )
    return replace(exported, warnings=(*exported.warnings, text))


def _own_client(experiment: Experiment) -> str:
    """The note on the arrivals of a closed load, which in a trace are those that this program's answers gave."""
    stages, clients = experiment.workload.stages, experiment.workload.clients
    text = f"{experiment.id}: arrivals in the trace are those that this program's answers gave"
    think_s = clients.think_time_s.fixed if clients else 0.0
    if len(stages) > 1 or think_s is None or (clients and clients.warmup_requests):
        return f"{text}; the host's own client has one stage, a fixed time to think and no warm-up"
    flags = {
        "--concurrency": stages[0].users,
        "--think-time-ms": f"{1e3 * think_s:g}",
        "--num-requests": stages[0].requests,
    }
    own = shlex.join(["blis", "run", *(str(word) for pair in flags.items() for word in pair), "--timeout", "-1"])
    return f"{text}; the host's own client makes them itself: `{own}`, with lengths of its own"


def _cached(work: ReplayWork) -> tuple[float, float]:
    """Percent of the prompts' KV blocks in the cache, and mean TTFT in ms, by the host's own count."""
    try:
        figures = aggregate(replay_bound(work.load, work.bound, account=True))
    except NeverEnds:
        return math.nan, math.nan
    hits, ttft_ms = figures["cache_hit_rate"], figures["ttft_mean_ms"]
    assert isinstance(hits, float) and isinstance(ttft_ms, float)
    return 100.0 * hits, ttft_ms


def header_of(experiment: Experiment, limits: EngineLimits) -> Header:
    engine = experiment.engine
    server = TraceServer(
        type=engine.name,
        model=experiment.model,
        tensor_parallel=engine.tensor_parallel,
        max_num_seqs=limits.max_seqs,
        block_size=limits.block,
        gpu_memory_utilization=engine.gpu_memory_utilization,
        max_model_len=limits.max_model_len or None,
    )
    return Header("generated", 0, server)


@dataclass(frozen=True)
class TraceFolder:
    """A folder with the simulated requests as TraceV2, HEADER and DATA, and the engine's limits as a case.

    hardware, backend: names on the host's command line.
    """

    path: Path
    header: Header
    hardware: str
    backend: str

    def check(self, inputs: tuple[Path, ...]) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise InputError(f"{self.path}: a file, but with --export, --out names a folder. Choose another.") from None
        except OSError as e:
            raise unwritable(self.path, e, f"choose another {EXPORT}") from None
        for name in self.files:
            check_output(self.path / name, inputs, EXPORT)

    def write(self, replay: Replay, number: np.ndarray) -> None:
        case = json.dumps({"engine": engine_of(replay.load.limits)}, indent=1) + "\n"
        trace = recording_of(replay, number, self.header)
        contents: dict[str, Callable[[TextIO], object]] = {
            HEADER: lambda file: file.write(tracev2.header_text(self.header)),
            DATA: partial(tracev2.write_data, trace),
            CASE: lambda file: file.write(case),
        }
        for name, write in contents.items():
            save(self.path / name, EXPORT, partial(_write, write))

    @property
    def files(self) -> tuple[str, ...]:
        return HEADER, DATA, CASE

    def ingest_command(self, experiment: Experiment, limits: EngineLimits) -> str:
        """The command line that makes an experiment of the trace again, with the settings that a header cannot hold."""
        held = asdict(self.header.server)
        engine = experiment.engine
        features = {
            "chunked_prefill": engine.chunked_prefill,
            "prefix_caching": limits.caching,
            "kv_cpu_offload": engine.kv_cpu_offload,
        }
        settings: dict[str, object] = {key: value for key, value in engine_of(limits).items() if key not in held}
        settings |= {name: str(on).lower() for name, on in features.items()}
        settings |= {name: str(value).lower() for name, value in engine.to_entry().items() if name in LATER}
        files = ("--tracev2", self.path / HEADER, self.path / DATA, "--out", self.path / "ingested")
        given = (word for key, value in settings.items() for word in ("--engine", f"{key}={value}"))
        return command("ingest", *files, "--hardware", experiment.hardware, *given)

    def host_command(self, limits: EngineLimits, duration_s: float) -> str:
        """The host's command line that replays the trace under these limits, for whole days: at least twice as long as
        the simulation took."""
        limits = replace(limits, max_model_len=longest(limits.max_model_len, limits.blocks, limits.block))
        server = self.header.server
        flags = {
            "--trace-header": self.path / HEADER,
            "--trace-data": self.path / DATA,
            "--results-path": self.path / RESULTS,
            "--model": server.model,
            "--hardware": self.hardware,
            "--tp": server.tensor_parallel,
            "--latency-model": self.backend,
            "--horizon": HORIZON_US * max(math.ceil(2e6 * duration_s / HORIZON_US), 1),
            "--cache-signal-delay": 0,
            "--snapshot-refresh-interval": 0,
            **{FLAGS[setting]: value for setting, value in engine_of(limits).items() if value},
        }
        if limits.drafts:
            flags["--num-speculative-tokens"] = limits.drafts
            flags["--speculative-acceptance-rate"] = repr(limits.acceptance)
        return shlex.join(["blis", "replay", *(str(word) for pair in flags.items() for word in pair)])


def backend_of(source: Source) -> str:
    """The host's name of the backend with the program's times: its own one if the program has that form."""
    return BUILT_IN if has_coefficients(source.complete) else DEFAULT.registered


def _write(write: Callable[[TextIO], object], file: BinaryIO) -> None:
    text = io.TextIOWrapper(file, "utf-8", newline="")
    write(text)
    text.detach()


def recording_of(replay: Replay, number: np.ndarray, header: Header) -> Recording:
    """The replayed requests with their results, as the host records its own: the last chunk comes with the last token,
    before the completion time."""
    r, done = replay.requests, replay.completed
    first = np.where(done, r.arrival_us + replay.ttft_us, NEVER)
    later = replay.decode_us + replay.token_us * np.maximum(r.output_len - 1, 0)
    left = replay.load.accepted & (r.deadline_us > 0)
    status = np.where(done, tracev2.OK, np.where(left, tracev2.TIMEOUT, tracev2.INCOMPLETE))
    return Recording(header, number, r, status, first, np.where(done, first + later, NEVER), np.full(len(r), True))


@dataclass(frozen=True)
class ResultsFile:
    """The completed requests as a JSON list of objects. Times are the server's.

    Keys: request_id, ttft_us, e2e_us, input_tokens, output_tokens and, unless it is 0, itl_mean_us.
    """

    path: Path

    def check(self, inputs: tuple[Path, ...]) -> None:
        check_output(self.path, inputs, "--results", ".json")

    def write(self, replay: Replay, number: np.ndarray) -> None:
        def lines(file: TextIO) -> None:
            for i, text in enumerate(_results(replay, number)):
                file.write(f"{',' if i else '['}\n{text}")
            file.write("\n]\n" if replay.completed.any() else "[]\n")

        save(self.path, "--results", partial(_write, lines))


def _results(replay: Replay, number: np.ndarray) -> Iterator[str]:
    rows = np.flatnonzero(replay.completed)
    rows = rows[np.argsort(number[rows], kind="stable")]
    names = ("request_id", "ttft_us", "e2e_us", "input_tokens", "output_tokens", "itl_mean_us")
    r = replay.requests
    times = replay.ttft_us[rows], replay.e2e_us[rows]
    columns = number[rows], *times, r.input_len[rows], r.output_len[rows], mean_gap(replay, rows)
    for values in zip(*(column.tolist() for column in columns), strict=True):
        row = dict(zip(names, values, strict=True))
        if not row["itl_mean_us"]:
            del row["itl_mean_us"]
        yield json.dumps(row)
