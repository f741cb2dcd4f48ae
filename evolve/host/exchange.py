"""Files exchanged with the host: traces as TraceV2, in and out, loads as its own clients send them, its KV offload, and
results as JSON that its `calibrate` reads."""

from __future__ import annotations

import io
import json
import math
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, TextIO

import numpy as np

from evaluator.host_summary import aggregate
from evolve.calibrate.coefficients import has_coefficients
from evolve.host.cases import ALPHA, HostCase, case_of, engine_of, limits_from, read_case
from evolve.host.simulate import CaseNames, ReplayWork, bound_to, check_output, mean_gap, save
from evolve.output.files import digest_of
from evolve.output.terminal import command
from evolve.run.program import Source
from simulator.clock.replay import Replay, replay_bound
from simulator.clock.run import NeverEnds
from simulator.common.documents import yaml_text
from simulator.common.errors import InputError, unwritable
from simulator.common.json import JsonObject
from simulator.serving.deployment import served
from simulator.serving.digests import LATER
from simulator.serving.engine import AUTO, Engine
from simulator.serving.experiment import Experiment
from simulator.serving.limits import HOST_ENGINE
from simulator.serving.load import EngineLimits, Load
from simulator.serving.traces import tracev2
from simulator.serving.traces.tracev2 import CASE, NEVER, Header, Recording, TraceServer, read_header, read_recording
from simulator.serving.traces.workload_spec import left_out, unheld, workload_spec_text
from translate_go.guide import HORIZON_US, longest
from translate_go.naming import DEFAULT
from translate_go.target import TARGETS, THRESHOLD

HEADER, DATA = "header.yaml", "trace.csv"
WORKLOAD, OFFLOAD = "workload.yaml", "kv-offload.yaml"
RESULTS, METRICS = "host-results.json", "host-metrics.json"  # that the host writes
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
    case, bound, warnings = bound_to(case, case_path or header_path, source, names, f"Give {missing}.")
    trace = read_recording(header_path, data_path)
    files = (header_path, data_path, case_path) if case_path else (header_path, data_path)
    assumed = () if case_path else (_assumed(header_path, header.server),)
    warnings = (*header.notes, *assumed, *warnings)
    load, where = Load(trace.requests, case.limits, replicas=case.replicas), str(data_path)
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
    """The work with the requests that TraceV2 can hold, and the limits that a case has: this one is simulated.

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
    limits = replace(limits_from(engine_of(own)), drafts=own.drafts, acceptance=own.acceptance, tier=own.tier)
    exported = replace(work, load=replace(work.load, requests=held, limits=limits))
    exported = replace(exported, warnings=(*work.warnings, *_about_load(experiment)))
    if not lost:
        return exported
    (hits, ttft_ms), (hits_left, ttft_ms_left) = (_cached(each) for each in (work, exported))
    text = (
        f"{experiment.id}: TraceV2 has one prefix per request. {hits_left:.1f} % of the prompts' KV blocks are cached "
        f"instead of {hits:.1f} %, and the mean TTFT is {ttft_ms_left:.1f} ms instead of {ttft_ms:.1f}"
    )
    return replace(exported, warnings=(*exported.warnings, text))


def _about_load(experiment: Experiment) -> Iterator[str]:
    """What a trace says of a closed load and of KV offload, and what WORKLOAD cannot hold of their load."""
    workload, offloads = experiment.workload, experiment.engine.kv_offloading_size
    if workload.closed:
        yield f"{experiment.id}: arrivals in the trace are those that this program's answers gave"
    if offloads:
        text = "the host's replay refuses KV offload for a trace that was made without it"
        yield f"{experiment.id}: {text}; its `run` has it, with its own latency models alone"
    if not (workload.closed or offloads):
        return
    if what := unheld(workload):
        yield f"{experiment.id}: no {WORKLOAD}, as the host's workload spec cannot hold {what}"
    elif lacks := left_out(workload):
        yield f"{experiment.id}: {WORKLOAD} leaves out {' and '.join(lacks)}"


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
    """A folder with the simulated requests as TraceV2, HEADER and DATA, and the engine's limits as a case. For a closed
    load or KV offload also the load as the host's own clients send it, and the file of its host memory.

    hardware, backend: names on the host's command line. seed: of the arrivals.
    """

    path: Path
    header: Header
    hardware: str
    backend: str
    experiment: Experiment
    seed: int

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
        e, trace = self.experiment, recording_of(replay, number, self.header)
        case = json.dumps(case_of(replay.load.limits, e.engine, e.replicas), indent=1) + "\n"
        contents: dict[str, Callable[[TextIO], object]] = {
            HEADER: lambda file: file.write(tracev2.header_text(self.header)),
            DATA: partial(tracev2.write_data, trace),
            CASE: lambda file: file.write(case),
            WORKLOAD: lambda file: file.write(workload_spec_text(e.workload, e.id, self.seed)),
            OFFLOAD: lambda file: file.write(offload_text(e.engine)),
        }
        for name in self.files:
            save(self.path / name, EXPORT, partial(_write, contents[name]))

    @property
    def files(self) -> tuple[str, ...]:
        of_load = (WORKLOAD,) if self.has_workload else ()
        return HEADER, DATA, CASE, *of_load, *((OFFLOAD,) if self.experiment.engine.kv_offloading_size else ())

    @property
    def has_workload(self) -> bool:
        """True if the host's own clients send the load, which its spec can hold."""
        workload = self.experiment.workload
        return bool(workload.closed or self.experiment.engine.kv_offloading_size) and not unheld(workload)

    def ingest_command(self, limits: EngineLimits) -> str:
        """The command line that makes an experiment of the trace again, with the settings that a header cannot hold."""
        held = asdict(self.header.server)
        engine = self.experiment.engine
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
        return command("ingest", *files, "--hardware", self.experiment.hardware, *given)

    def host_commands(self, limits: EngineLimits, duration_s: float) -> list[str]:
        """The host's command lines under these limits: the one that replays the trace, for whole days, at least twice
        as long as the simulation took; and the one that has its own clients send the load."""
        replayed = {
            "--trace-header": self.path / HEADER,
            "--trace-data": self.path / DATA,
            "--results-path": self.path / RESULTS,
            "--horizon": HORIZON_US * max(math.ceil(2e6 * duration_s / HORIZON_US), 1),
        }
        flags = self._flags(limits)
        commands = [_blis("replay", {**replayed, **flags})]
        if self.has_workload:
            offload = {"--kv-offload-config": self.path / OFFLOAD} if limits.tier else {}
            run = {"--workload-spec": self.path / WORKLOAD, **offload, "--metrics-path": self.path / METRICS}
            commands.append(_blis("run", {**run, **flags}))
        return commands

    def _flags(self, limits: EngineLimits) -> dict[str, object]:
        """The host's flags for the deployment."""
        limits = replace(limits, max_model_len=longest(limits.max_model_len, limits.blocks, limits.block))
        e, server = self.experiment, self.header.server
        flags: dict[str, object] = {
            "--model": server.model,
            "--hardware": self.hardware,
            "--tp": server.tensor_parallel,
            "--latency-model": self.backend,
            "--cache-signal-delay": 0,
            "--snapshot-refresh-interval": 0,
            **{FLAGS[setting]: value for setting, value in engine_of(limits).items() if value},
        }
        if (dtype := _kv_type(e)) is not None:
            flags["--kv-cache-dtype"] = dtype
        if limits.drafts:
            flags["--num-speculative-tokens"] = limits.drafts
            flags["--speculative-acceptance-rate"] = repr(limits.acceptance)
        if e.replicas > 1:
            flags |= {"--num-instances": e.replicas, "--routing-policy": "round-robin"}
        return flags


def _blis(verb: str, flags: Mapping[str, object]) -> str:
    return shlex.join(["blis", verb, *(str(word) for pair in flags.items() for word in pair)])


def _kv_type(e: Experiment) -> str | None:
    """The host's word for the type of the KV cache; None where it takes that of the model, as the host does."""
    given = e.engine.kv_cache_dtype
    if given != AUTO:
        return "bf16" if given == "bfloat16" else given
    asked = e.spec is not None and served(e.spec.model, e.engine, e.id).kv_bytes == 1  # by the checkpoint
    return "fp8" if asked else None


def offload_text(engine: Engine) -> str:
    """The host's file of host memory for KV blocks. It counts the bytes of each GPU, where vLLM counts those of all."""
    block: JsonObject = {
        "cpu_bytes_to_use": int((engine.kv_offloading_size or 0.0) * 2**30 / engine.tensor_parallel),
        "block_size": engine.block_size,
        "eviction_policy": "lru",
        "offload_prompt_only": engine.offload_prompt_only,
    }
    return yaml_text({"kv_offload": block})


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
