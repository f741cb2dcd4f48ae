"""`evolve simulate`: a trace, or an experiment's load, through the host's clock, request by request."""

from __future__ import annotations

import hashlib
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evaluator.deployments import facts_of
from evaluator.experiments import data_hash
from evaluator.summary import aggregate
from evolve import __version__
from evolve.program.cases import overheads_text, program_text, read_case, read_trace
from evolve.program.results import check_out, save_results
from evolve.report.progress import Line
from evolve.run.program import Source
from simulator.bind import Bound, bind
from simulator.clock.run import NeverEnds
from simulator.errors import InputError
from simulator.experiment.experiment import Engine, Experiment
from simulator.experiment.load import Limits, Load, load_of
from simulator.language.ir import Program
from simulator.language.opcodes import assemble
from simulator.language.parse import parse
from simulator.replay import replay_bound

OVERHEADS = {"queueing_time", "output_token_time", "completion_time"}


@dataclass(frozen=True)
class Work:
    """What to simulate, what the results are to say about it, and the number of each request."""

    load: Load
    bound: Bound
    number: np.ndarray
    about: dict[str, Any]
    where: str
    files: tuple[Path, ...] = ()  # what was read


@dataclass(frozen=True)
class Names:
    """A model on GPUs, for programs that read deployment fields."""

    model: str
    hardware: str
    tp: int


def of_case(case_path: Path, trace_path: Path, source: Source | None, names: Names | None) -> Work:
    """A trace under a case's limits, timed by its backend or by a program.

    Overheads that the program does not have are the case's. Raises InputError for anything wrong with the files, and
    for a program that reads deployment fields that nothing gives.
    """
    case = read_case(case_path)
    if source is None:
        text = program_text(case)
        if text is None:
            raise InputError(f"{case_path}: has no step_linear_kv: add it, or name a --program")
        program = parse(text)
    else:
        program = source.program
    missing = OVERHEADS - {f.name for f in program.functions}
    program = Program(program.functions + parse(_step(overheads_text(case, missing))).functions[1:], program.doc)
    facts = _facts(case.limits, names)
    code = assemble(program)
    unknown = sorted({name for _, name in code.statics} - facts.keys())
    if unknown:
        fields = ", ".join(f"s.{name}" for name in unknown)
        remedy = "a case names no model: give --model, --hardware and --tp"
        raise InputError(f"{source.name if source else case_path}: reads {fields}: {remedy}")
    requests, number = read_trace(trace_path)
    digest = hashlib.sha256(case_path.read_bytes())
    with trace_path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    about = {"data": digest.hexdigest()[:16], "seeds": []}
    load, bound = Load(requests, case.limits), bind(code, program.theta, facts)
    return Work(load, bound, number, about, str(trace_path), (case_path, trace_path))


def _step(overheads: str) -> str:
    """A whole program around overheads alone: the language wants a step time."""
    return "def step_time(b, s):\n    return 1\n\n" + overheads


def _facts(limits: Limits, names: Names | None) -> dict[str, float]:
    """The deployment fields that a case's limits give, and those of a model if one is named."""
    given = {
        "max_num_seqs": limits.max_seqs,
        "max_num_batched_tokens": limits.budget,
        "max_model_len": limits.max_model_len,
        "block_size": limits.block,
        "kv_blocks": limits.blocks,
    }
    facts = {name: float(value) for name, value in given.items()}
    if names is None:
        return facts
    engine = Engine(
        tensor_parallel=names.tp,
        max_num_seqs=limits.max_seqs,
        max_num_batched_tokens=limits.budget,
        max_model_len=limits.max_model_len or None,
        block_size=limits.block,
        total_kv_blocks=limits.blocks,
        long_prefill_token_threshold=limits.threshold,
    )
    return facts_of(names.model, names.hardware, engine)


def of_experiment(experiment: Experiment, source: Source, seed: int) -> Work:
    """An experiment's requests with arrival seed `seed`, timed by a program."""
    program = source.complete
    load = load_of(experiment, seed)
    about = {"data": data_hash([experiment]), "seeds": [seed]}
    bound = bind(assemble(program), program.theta, experiment.facts)
    return Work(load, bound, np.arange(len(load.requests)), about, experiment.id)


def run(work: Work, out: Path | None, quiet: bool) -> dict[str, Any]:
    """Simulate, write the per-request results to `out` if given, and return the host's aggregate fields."""
    if out is not None:
        check_out(out, work.files)
    line = _Simulated(len(work.load.requests), quiet)
    try:
        replay = replay_bound(work.load, work.bound, account=True, progress=line.advance)
    except NeverEnds as e:
        row = work.number[e.row]
        raise InputError(
            f"{work.where}: {str(e).replace(f'request {e.row}', f'request_{row}')}: give more KV blocks, or a horizon"
        ) from None
    finally:
        line.close()
    if out is not None:
        save_results(replay, work.number, out)
    if replay.clamped and not quiet:
        print(f"evolve: warning: {replay.clamped:,} times were outside [1, 1e10] us and clamped", file=sys.stderr)
    return {"engine": __version__, **work.about, **aggregate(replay), "clamped_times": replay.clamped}


class _Simulated(Line):
    """How far the simulation is, from the second second on."""

    def __init__(self, total: int, quiet: bool) -> None:
        super().__init__(quiet)
        self.total = total
        self.every_s = 1.0
        self.begun = self.shown
        self.first: int | None = None

    def advance(self, done: int) -> None:
        """So many requests are done."""
        if self.first is None:  # the time before went into compiling
            self.first, self.begun = done, time.monotonic()
        if done < self.total:
            left = (time.monotonic() - self.begun) * (self.total - done) / max(done - self.first, 1)
            self.update(lambda: f"{done:,} of {self.total:,} requests, {left:.0f} s left")


def print_aggregate(result: dict[str, Any]) -> None:
    """One field a line."""
    width = max(len(name) for name in result)
    for name, value in result.items():
        if name not in ("engine", "data", "seeds", "instance_id"):
            print(f"{name:<{width}}  {value:,}" if isinstance(value, int) else f"{name:<{width}}  {value:.6g}")
