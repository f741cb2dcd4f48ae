"""The command `simulate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from evolve.cli.endings import print_json
from evolve.cli.options import caps_options, load, named_experiment, only_id, quiet_flag, two_files, whole_names
from evolve.host.deployments import of_experiment as deployment_of
from evolve.host.exchange import BUILT_IN, ResultsFile, TraceFolder, as_tracev2, backend_of, header_of, of_tracev2
from evolve.host.simulate import (
    CaseNames,
    Output,
    ReplayTable,
    ReplayWork,
    of_case,
    of_experiment,
    of_workload,
    print_aggregate,
    run,
)
from evolve.output.printing import prose
from evolve.output.terminal import command, suggest
from evolve.run.program import TRAINED_PHYSICS, Source
from simulator.common.errors import InputError


@click.command()
@click.option("--case", "case", type=click.Path(path_type=Path), help="Engine limits and backend constants, JSON.")
@click.option("--trace", type=click.Path(path_type=Path), help="One request per row, CSV; with --case.")
@click.option(
    "--tracev2",
    nargs=2,
    metavar="HEADER DATA",
    type=click.Path(path_type=Path),
    callback=two_files,
    help="Instead: a trace of the host, YAML and CSV, with the limits of its header, or of --case.",
)
@click.option(
    "--workload",
    type=click.Path(path_type=Path),
    help="Instead of --trace: a workload spec of the host, YAML; with --case.",
)
@click.option("--experiments", metavar="FILE", help="File of the experiment named by --id [default: shipped runs].")
@click.option("--id", "experiment", metavar="ID", help="Simulate this experiment's load instead of a trace.")
@click.option(
    "--program",
    metavar="PROGRAM",
    help="Program that computes all times [default: the case's backend; with --id champion].",
)
@click.option(
    "--model",
    help="Model whose deployment fields the program reads; with --case, --hardware and --tp [default: the header's].",
)
@click.option("--hardware", help="GPU name, e.g. H100-SXM-80GB.")
@click.option(
    "--tp", type=click.IntRange(min=1), help="Tensor parallelism [default: the header's, or 1]; with --hardware."
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    help="Arrival seed [default: 1, or that of --workload]; with --id or --workload.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Write the completed requests here, CSV; with --export the folder of the trace.",
)
@click.option(
    "--export",
    type=click.Choice(["tracev2"]),
    help="Write the experiment's load as a trace that the host replays; with --id and --out.",
)
@click.option(
    "--results",
    type=click.Path(path_type=Path),
    help="Write the completed requests here, JSON that the host's calibrate reads.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the aggregate figures as JSON.")
@quiet_flag
@caps_options
def simulate(
    case: Path | None,
    trace: Path | None,
    tracev2: tuple[Path, Path] | None,
    workload: Path | None,
    experiments: str | None,
    experiment: str | None,
    program: str | None,
    model: str | None,
    hardware: str | None,
    tp: int | None,
    seed: int | None,
    out: Path | None,
    export: str | None,
    results: Path | None,
    as_json: bool,
    quiet: bool,
    caps: dict[str, int],
) -> int:
    """Replay a trace or a load exactly as the host simulator does.

    Times agree to the microsecond. A case holds `engine` (total_kv_blocks, block_size, max_num_seqs,
    max_num_batched_tokens, long_prefill_token_threshold, max_model_len; settings of drafts, of the KV cache's type and
    of KV offload), `replicas`, `alpha` and `step_linear_kv` in microseconds, and `horizon_us`. A trace has the columns
    arrival_s, input_len, output_len and optionally row, prefix_group, prefix_len, timeout_s; or it is in the host's own
    format, TraceV2.

    With --export tracev2, the folder --out gets header.yaml and trace.csv for the host. case.json there has the
    engine's limits, which a header cannot hold. For a closed load or KV offload there are workload.yaml, of which the
    host's own clients make the load, and kv-offload.yaml.

    \b
    evolve simulate --case case.json --trace trace.csv --out results.csv
    evolve simulate --case case.json --trace trace.csv --program champion --model llama-2-7b --hardware H100-SXM-80GB
    evolve simulate --id llama-2-7b-tp1-general --out requests.csv
    evolve simulate --id llama-2-7b-tp1-general --export tracev2 --out t/
    evolve simulate --tracev2 t/header.yaml t/trace.csv --case t/case.json --program champion --hardware H100
    evolve simulate --workload workload.yaml --case case.json
    """
    by_id = experiment is not None or experiments is not None
    loads = [name for name, file in (("tracev2", tracev2), ("workload", workload), ("trace", trace)) if file]
    if loads[:1] != ["trace"] and (len(loads) > 1 or (loads and by_id)):
        others = f"--{loads[1]}" if len(loads) > 1 else "--id and --experiments"
        raise InputError(f"--{loads[0]} is a load of its own: leave out {others}")
    given = any(each is not None for each in (tracev2, case, trace, workload))
    if given == by_id:
        known = "--case with --trace or --workload, or --tracev2, or --id"
        raise InputError(f"simulate needs {known}: give one of the three")
    outputs: list[Output] = []
    folder = None
    if given:
        if export:
            raise InputError("--export goes with --id: it writes an experiment's load")
        if seed is not None and workload is None:
            raise InputError("--seed goes with --id or --workload: a trace has its own arrivals")
        work = _of_trace(case, trace, tracev2, workload, program, caps, model, hardware, tp, seed)
    else:
        if model or hardware or tp is not None:
            raise InputError("--model, --hardware and --tp go with --case: an experiment has its own")
        if experiment is None:
            experiment = only_id(str(experiments))
        if export and out is None:
            raise InputError("--export needs --out: name a folder for the trace")
        named = named_experiment(experiments, experiment)
        source = load(program or "champion", caps)
        work = of_experiment(named, source, 1 if seed is None else seed)
        if export and out is not None:
            work = as_tracev2(work, named)
            header, gpu = header_of(named, work.load.limits), deployment_of(named).host_gpu
            folder = TraceFolder(out, header, gpu, backend_of(source), named, work.seeds[0])
    if folder:
        outputs.append(folder)
    elif out is not None:
        outputs.append(ReplayTable(out))
    if results:
        outputs.append(ResultsFile(results))
    result = run(work, outputs, quiet)
    if as_json:
        print_json(result.to_json())
        return 0
    print_aggregate(result)
    if folder:
        prose(f"{folder.path}: {', '.join(folder.files)}; times of {source.name}, arrival seed {work.seeds[0]}")
        limits = work.load.limits
        suggest(
            *_for_host(folder.backend, source, ["--experiments", experiments] if experiments else [], named.id),
            *folder.host_commands(limits, result.duration_s),
            *([folder.ingest_command(limits)] if named.replicas == 1 else []),  # a trace says nothing of replicas
        )
    return 0


def _for_host(backend: str, source: Source, known: Sequence[str], ident: str) -> list[str]:
    """The command that gives the host a program's times, if the host lacks them."""
    if backend != BUILT_IN:
        return [command("emit", source.name, "--into", "CHECKOUT", *known, "--id", ident)]
    return [] if source.name == TRAINED_PHYSICS else [command("emit", source.name, "--coefficients")]


def _of_trace(
    case: Path | None,
    trace: Path | None,
    tracev2: tuple[Path, Path] | None,
    workload: Path | None,
    program: str | None,
    caps: dict[str, int],
    model: str | None,
    hardware: str | None,
    tp: int | None,
    seed: int | None,
) -> ReplayWork:
    """The replay of a trace in either format, or of a workload spec."""
    unread = "--model goes with --program: the case's own backend reads no model"
    if tracev2:
        if (model or tp is not None) and not hardware:
            raise InputError("--model and --tp need --hardware: name the GPU")
        if hardware and not program:
            raise InputError(unread.replace("--model", "--hardware"))
        return of_tracev2(*tracev2, case, load(program, caps) if program else None, model, hardware, tp)
    whole_names(model, hardware, tp, "a case names no model")
    if case is None or (trace is None and workload is None):
        missing = "case is missing: it has the limits" if case is None else "trace is missing: it has the requests"
        raise InputError(f"--{missing} that are simulated")
    if model and not program:
        raise InputError(unread)
    names = CaseNames(model, hardware, tp or 1) if model and hardware else None
    source = load(program, caps) if program else None
    if workload is not None:
        return of_workload(case, workload, source, names, seed)
    assert trace
    return of_case(case, trace, source, names)
