"""`evolve simulate`: a trace, or an experiment's load, replayed by the host's clock, and the results as CSV."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from evaluator.host_summary import aggregate
from evolve import __version__
from evolve.host.cases import HostCase, program_text, read_case, read_trace
from evolve.host.emit import beyond_fit, program_for, unlike_host
from evolve.host.loss_figures import lines
from evolve.output.files import check_writable, digest_of
from evolve.output.files import save as save_file
from evolve.output.progress import Line
from evolve.output.terminal import say, warn
from evolve.run.program import Source
from simulator.clock.bind import Bound, bind
from simulator.clock.replay import Replay, replay_bound
from simulator.clock.run import NeverEnds
from simulator.common.errors import InputError
from simulator.common.json import JsonObject
from simulator.language.complete import DEFAULTS
from simulator.language.opcodes import assemble
from simulator.language.parse import parse
from simulator.serving.defaults import facts_of_engine, host_link_gb_per_s, settled
from simulator.serving.digests import data_hash
from simulator.serving.engine import Engine
from simulator.serving.experiment import Experiment
from simulator.serving.facts import omitted
from simulator.serving.gpu import Gpu, hardware_table, known_gpu
from simulator.serving.known import facts_of, named_deployment
from simulator.serving.load import Load, load_of, load_under, tier_limits
from simulator.serving.trace import Trace
from simulator.serving.traces.csv import in_milliseconds
from simulator.serving.traces.losses import Loss
from simulator.serving.traces.workload_spec import read_workload_spec

ROWS = 1 << 20  # rows of results written at a time


@dataclass(frozen=True)
class ReplayWork:
    """A load, the program bound to a deployment, and the number of each request.

    data: hash of the load's source. seeds: arrival seeds. where: the name of the load in error messages. files: those
    that were read. warnings: about the result, a line each. losses: what of a trace is not replayed.
    """

    load: Load
    bound: Bound
    number: np.ndarray
    data: str
    seeds: tuple[int, ...]
    where: str
    files: tuple[Path, ...] = ()
    warnings: tuple[str, ...] = ()
    losses: tuple[Loss, ...] = ()


@dataclass(frozen=True)
class CaseNames:
    """A model on GPUs, for programs that read deployment fields."""

    model: str
    hardware: str
    tp: int


def of_case(case_path: Path, trace_path: Path, source: Source | None, names: CaseNames | None) -> ReplayWork:
    """A trace under a case's limits, timed by the case's backend or by a program.

    A method that the program lacks is the language's, not the case's: a program means the same everywhere. Raises
    InputError for wrong files, and for a program that reads deployment fields which neither the case nor `names` gives.
    """
    case, bound, warnings = _case_alone(case_path, source, names)
    requests, number = read_trace(trace_path, case)
    warnings = (*in_milliseconds(requests.arrival_us / 1e6, trace_path.name), *warnings)
    files, load = (case_path, trace_path), case.load(requests)
    return ReplayWork(load, bound, number, digest_of(*files), (), str(trace_path), files, warnings)


def of_workload(
    case_path: Path, spec_path: Path, source: Source | None, names: CaseNames | None, seed: int | None
) -> ReplayWork:
    """A workload spec of the host under a case's limits, with arrival seed `seed` or its own, timed as in `of_case`."""
    case, bound, warnings = _case_alone(case_path, source, names)
    if case.users is not None:
        raise InputError(f"{case_path}: load and --workload exclude each other. Leave one of them out.")
    (workload, own_seed), files = read_workload_spec(spec_path), (case_path, spec_path)
    seed = own_seed if seed is None else seed
    load = load_under(workload, workload.name, seed, case.limits, case.replicas)
    number = np.arange(len(load.requests))
    return ReplayWork(load, bound, number, digest_of(*files), (seed,), str(spec_path), files, warnings)


def _case_alone(path: Path, source: Source | None, names: CaseNames | None) -> tuple[HostCase, Bound, tuple[str, ...]]:
    """The case in a file, with nothing else that names a model, the program bound to it, and warnings."""
    return bound_to(read_case(path), path, source, names, "A case names no model: give --model, --hardware and --tp.")


def bound_to(
    case: HostCase, where: Path, source: Source | None, names: CaseNames | None, remedy: str
) -> tuple[HostCase, Bound, tuple[str, ...]]:
    """The case in the file `where` with its KV offload in blocks, the program, or else its backend, bound to its
    deployment, and warnings.

    Raises InputError if there is neither, and, with the remedy, for deployment fields that are not known.
    """
    if source is None:
        text = program_text(case)
        if text is None:
            raise InputError(f"{where}: no step_linear_kv. Add it, or name a --program.")
        program = parse(text)
    else:
        program = program_for(source)
    facts = _facts(case, names)
    code = assemble(program)
    unknown = sorted({name for _, name in code.statics} - facts.keys())
    if unknown:
        fields = ", ".join(f"s.{name}" for name in unknown)
        raise InputError(f"{source.name if source else where}: the program reads {fields}, which are unknown. {remedy}")
    if case.engine.kv_offloading_size:
        if names is None:
            raise InputError(f"{where}: engine.kv_offloading_size: the bytes of a KV block are unknown. {remedy}")
        case = replace(case, limits=replace(case.limits, tier=tier_limits(_engine(case, names), facts)))
    of_program = _warnings(source, case, where) if source else ()
    of_deployment = _doubts(source, names, facts) if source and names else ()
    return case, bind(code, program.theta, facts), (*of_program, *of_deployment, *omitted(facts))


def _warnings(source: Source, case: HostCase, case_path: Path) -> tuple[str, ...]:
    lacking = [f.name for f in DEFAULTS if source.program.function(f.name) is None]
    if not lacking or source.record or not any(case.alpha.values()):
        return source.cautions
    missing = ", ".join(lacking)
    return (*source.cautions, f"{case_path}: alpha belongs to the case's own backend; {source.name} has no {missing}")


def _doubts(source: Source, names: CaseNames, facts: Mapping[str, float]) -> tuple[str, ...]:
    """Warn if no engine can have the deployment, and if it is unlike every fitted run, one line each."""
    hardware = str(hardware_table()[names.hardware]["name"])
    beyond = beyond_fit(source, f"{names.model} on {names.tp} {hardware}", facts, hardware)
    try:
        named_deployment(names.model, names.hardware, names.tp)
    except InputError as e:  # the weights do not fit, say
        return (f"{e}; the simulation uses the limits of the case", *beyond)
    return beyond


def _facts(case: HostCase, names: CaseNames | None) -> dict[str, float]:
    """The deployment fields that a case gives; all of them if a model is named."""
    limits = case.limits
    if names is None:
        values = limits.max_seqs, limits.budget, limits.max_model_len, limits.block, limits.blocks
        fields = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size", "kv_blocks")
        own = facts_of_engine(settled(Engine(max_num_seqs=limits.max_seqs), Gpu()))
        return dict(zip(fields, map(float, values), strict=True)) | own
    return facts_of(names.model, names.hardware, _engine(case, names))


def _engine(case: HostCase, names: CaseNames) -> Engine:
    """The engine of a case on named GPUs."""
    limits, rate = case.limits, case.engine.kv_offload_gb_per_s
    if case.engine.kv_offloading_size and not rate:
        rate = host_link_gb_per_s(known_gpu(names.hardware, f"--hardware {names.hardware}"))
    return replace(
        case.engine,
        tensor_parallel=names.tp,
        max_num_seqs=limits.max_seqs,
        max_num_batched_tokens=limits.budget,
        max_model_len=limits.max_model_len or None,
        block_size=limits.block,
        total_kv_blocks=limits.blocks,
        long_prefill_token_threshold=limits.threshold,
        kv_offload_gb_per_s=rate,
    )


def of_experiment(experiment: Experiment, source: Source, seed: int) -> ReplayWork:
    """An experiment's requests with arrival seed `seed`, timed by a program."""
    if experiment.pools:
        problem = "cannot simulate separate pools as one instance of the host"
        raise InputError(f"experiment {experiment.id!r}: {problem}: use `evolve predict`")
    program = program_for(source)
    load = load_of(experiment, seed, host_rules=True)
    bound = bind(assemble(program), program.theta, experiment.facts)
    source_of_load = experiment.workload.source
    of_trace = source_of_load.notes if isinstance(source_of_load, Trace) else ()
    of_file = experiment.spec.notes if experiment.spec else ()
    warnings = (*of_file, *of_trace, *source.cautions, *omitted(experiment.facts), *unlike_host([experiment], "blis-4"))
    number, data = np.arange(len(load.requests)), data_hash([experiment])
    return ReplayWork(load, bound, number, data, (seed,), experiment.id, warnings=warnings)


@dataclass(frozen=True)
class Simulated:
    """The host's aggregate figures of a simulation, and how many times were outside [1, 1e10] us and clamped."""

    data: str
    seeds: tuple[int, ...]
    figures: Mapping[str, object]
    clamped: int

    @property
    def duration_s(self) -> float:
        duration = self.figures["vllm_estimated_duration_s"]
        assert isinstance(duration, float)
        return duration

    def to_json(self) -> JsonObject:
        about = {"engine": __version__, "data": self.data, "seeds": list(self.seeds)}
        return {**about, **self.figures, "clamped_times": self.clamped}


class Output(Protocol):
    """A file, or files, that a simulation writes."""

    def check(self, inputs: tuple[Path, ...]) -> None:
        """Raise InputError, before any work, if it cannot be written or would replace an input."""

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

    Raises InputError for an output that cannot be written or is an input, and for a request that never completes.
    """
    for output in outputs:
        output.check(work.files)
    line = _SimulationLine(len(work.load.requests), quiet)
    try:
        replay = replay_bound(work.load, work.bound, account=True, progress=line.advance)
    except NeverEnds as e:
        why = str(e).replace(f"request {e.row}", f"request_{work.number[e.row]}")
        raise InputError(f"{work.where}: {why}. Give more KV blocks, or a horizon.") from None
    finally:
        line.close()
    for output in outputs:
        output.write(replay, work.number)
    for warning in (*work.warnings, *lines(work.losses, replay, work.bound)):
        warn(warning)
    refused = int((~work.load.accepted).sum())
    if refused:
        requests = f"{refused:,} of {len(work.load.requests):,} requests"
        warn(f"{requests} are longer than max_model_len, or than all KV blocks, and were refused")
    if replay.clamped:
        warn(f"{replay.clamped:,} times were outside [1, 1e10] us and clamped")
    return Simulated(work.data, work.seeds, aggregate(replay), replay.clamped)


def check_output(path: Path, inputs: tuple[Path, ...], option: str, *suffixes: str) -> None:
    """Raise InputError if `option`'s file would replace an input, and like `check_writable`."""
    for read in inputs:
        if path.exists() and read.exists() and path.samefile(read):
            raise InputError(f"cannot write {path}: it is an input. Choose another {option}.")
    check_writable(path, option, *suffixes)


def save(path: Path, option: str, write: Callable[[BinaryIO], None]) -> None:
    """Write `option`'s file, whole or not at all; a pipe or a terminal bit by bit. Raises InputError."""

    def to(draft: Path) -> None:
        with draft.open("wb") as file:
            write(file)

    save_file(path, option, to)


def write_results(replay: Replay, number: np.ndarray, out: BinaryIO) -> None:
    """Write a row per completed request as the host does: request_id, arrival_us, input_len, output_len, ttft_us,
    e2e_us, itl_mean_us (the mean of its inter-token times in us, rounded to six decimals)."""
    r = replay.requests
    rows = np.flatnonzero(replay.completed)
    names = ("arrival_us", "input_len", "output_len")
    columns = {name: getattr(r, name) for name in names} | {"ttft_us": replay.ttft_us, "e2e_us": replay.e2e_us}
    kinds = {name: pa.from_numpy_dtype(values.dtype) for name, values in columns.items()}
    schema = pa.schema({"request_id": pa.string(), **kinds, "itl_mean_us": pa.float64()})
    options = csv.WriteOptions(quoting_style="none", quoting_header="none")
    with csv.CSVWriter(out, schema, write_options=options) as writer:
        for start in range(0, len(rows), ROWS):
            some = rows[start : start + ROWS]
            ids = pc.binary_join_element_wise("request", pa.array(number[some]).cast(pa.string()), "_")
            arrays = [ids, *(pa.array(values[some]) for values in columns.values()), pa.array(mean_gap(replay, some))]
            writer.write_batch(pa.record_batch(arrays, schema=schema))


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
    """The progress of the simulation, shown from its second second on."""

    def __init__(self, total: int, quiet: bool) -> None:
        super().__init__(quiet)
        self.total = total
        self.every_s = 1.0
        self.begun = self.shown
        self.first: int | None = None

    def advance(self, done: int) -> None:
        if self.first is None:  # the time until now was compilation
            self.first, self.begun = done, time.monotonic()
        if done < self.total:
            left = (time.monotonic() - self.begun) * (self.total - done) / max(done - self.first, 1)
            self.update(lambda: f"{done:,} of {self.total:,} requests, {left:.0f} s left")


def print_aggregate(result: Simulated) -> None:
    """Print the figures, one a line."""
    figures = result.to_json()
    width = max(map(len, figures))
    for name, value in figures.items():
        if name not in ("engine", "data", "seeds", "instance_id"):
            say(f"{name:<{width}}  {value:,}" if isinstance(value, int) else f"{name:<{width}}  {value:.6g}")
