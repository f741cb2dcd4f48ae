"""What a simulation has to do: the requests of a trace or an experiment, and a program bound to the deployment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evolve.host.cases import HostCase, program_text, read_case, read_trace
from evolve.host.emit import beyond_fit, unlike_host
from evolve.output.files import digest_of
from evolve.run.program import Source
from simulator.clock.bind import Bound, bind
from simulator.common.errors import InputError
from simulator.language.complete import DEFAULTS
from simulator.language.opcodes import assemble
from simulator.language.parse import parse
from simulator.serving.bundled import hardware_table
from simulator.serving.digests import data_hash
from simulator.serving.experiment import Engine, Experiment
from simulator.serving.facts import omitted
from simulator.serving.known import facts_of, named_deployment
from simulator.serving.load import EngineLimits, Load, load_of
from simulator.serving.trace import Trace
from simulator.serving.traces.arrivals import in_milliseconds


@dataclass(frozen=True)
class ReplayWork:
    """What to simulate: the load, the program bound to a deployment, and the number of each request.

    data: hash of what the load is made from. seeds: arrival seeds. where: the name of the load in error messages.
    files: what was read. warnings: what to know about the result, a line each.
    """

    load: Load
    bound: Bound
    number: np.ndarray
    data: str
    seeds: tuple[int, ...]
    where: str
    files: tuple[Path, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class CaseNames:
    """A model on GPUs, for programs that read deployment fields."""

    model: str
    hardware: str
    tp: int


def of_case(case_path: Path, trace_path: Path, source: Source | None, names: CaseNames | None) -> ReplayWork:
    """A trace under a case's limits, timed by the case's backend or by a program.

    A method that the program lacks is the language's, not the case's: a program means the same everywhere. Raises
    InputError for anything wrong with the files, and for a program that reads deployment fields that neither the case
    nor `names` gives.
    """
    case = read_case(case_path)
    remedy = "a case names no model: give --model, --hardware and --tp"
    bound, warnings = bound_to(case, case_path, source, names, remedy)
    requests, number = read_trace(trace_path)
    return ReplayWork(
        load=Load(requests, case.limits),
        bound=bound,
        number=number,
        data=digest_of(case_path, trace_path),
        seeds=(),
        where=str(trace_path),
        files=(case_path, trace_path),
        warnings=(*in_milliseconds(requests.arrival_us / 1e6, trace_path.name), *warnings),
    )


def bound_to(
    case: HostCase, where: Path, source: Source | None, names: CaseNames | None, remedy: str
) -> tuple[Bound, tuple[str, ...]]:
    """The program, or else the backend of the case in the file `where`, bound to its deployment; and what to know about
    it, a line each.

    Raises InputError if there is neither, and, with the remedy, for deployment fields that are not known.
    """
    if source is None:
        text = program_text(case)
        if text is None:
            raise InputError(f"{where}: has no step_linear_kv: add it, or name a --program")
        program = parse(text)
    else:
        program = source.complete
    facts = _facts(case.limits, names)
    code = assemble(program)
    unknown = sorted({name for _, name in code.statics} - facts.keys())
    if unknown:
        fields = ", ".join(f"s.{name}" for name in unknown)
        raise InputError(f"{source.name if source else where}: reads {fields}: {remedy}")
    of_program = _warnings(source, case, where) if source else ()
    of_deployment = _doubts(source, names, facts) if source and names else ()
    warnings = (*of_program, *of_deployment, *omitted(facts))
    return bind(code, program.theta, facts), warnings


def _warnings(source: Source, case: HostCase, case_path: Path) -> tuple[str, ...]:
    """Reasons not to rely on the program, and that the case's alpha does not replace it, a line each."""
    lacking = [f.name for f in DEFAULTS if source.program.function(f.name) is None]
    if not lacking or source.record or not any(case.alpha.values()):
        return source.cautions
    text = f"{case_path}: alpha is that of the case's own backend, not of {source.name}, which has no"
    return (*source.cautions, f"{text} {', '.join(lacking)}")


def _doubts(source: Source, names: CaseNames, facts: Mapping[str, float]) -> tuple[str, ...]:
    """Why no engine has the deployment, whatever the case's limits are, and that no fitted run was like it."""
    hardware = str(hardware_table()[names.hardware]["name"])
    beyond = beyond_fit(source, f"{names.model} on {names.tp} {hardware}", facts, hardware)
    try:
        named_deployment(names.model, names.hardware, names.tp)
    except InputError as e:  # the weights do not fit, say
        return (f"{e}; the limits are the case's all the same", *beyond)
    return beyond


def _facts(limits: EngineLimits, names: CaseNames | None) -> dict[str, float]:
    """The deployment fields that a case's limits give; all of them if a model is named."""
    limited = {
        "max_num_seqs": limits.max_seqs,
        "max_num_batched_tokens": limits.budget,
        "max_model_len": limits.max_model_len,
        "block_size": limits.block,
        "kv_blocks": limits.blocks,
    }
    facts = {name: float(value) for name, value in limited.items()}
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


def of_experiment(experiment: Experiment, source: Source, seed: int) -> ReplayWork:
    """An experiment's requests with arrival seed `seed`, timed by a program."""
    program = source.complete
    load = load_of(experiment, seed)
    bound = bind(assemble(program), program.theta, experiment.facts)
    source_of_load = experiment.workload.source
    of_trace = source_of_load.notes if isinstance(source_of_load, Trace) else ()
    return ReplayWork(
        load=load,
        bound=bound,
        number=np.arange(len(load.requests)),
        data=data_hash([experiment]),
        seeds=(seed,),
        where=experiment.id,
        warnings=(*of_trace, *source.cautions, *omitted(experiment.facts), *unlike_host([experiment])),
    )
