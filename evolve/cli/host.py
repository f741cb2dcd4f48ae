"""The commands that replay like the host simulator or write Go for it: simulate, emit, bench."""

from __future__ import annotations

from pathlib import Path

import click

from evolve.cli.endings import print_json
from evolve.cli.options import caps_options, load, named_experiment, whole_names
from evolve.program import emit as emitting
from evolve.program.bench import bench as measure
from evolve.program.bench import print_bench
from evolve.program.into import check_place, emit_into
from evolve.program.simulate import Names, of_case, of_experiment, print_aggregate, run
from evolve.terminal import say
from simulator.errors import InputError
from translate_go.naming import DEFAULT, Name


@click.command()
@click.option("--case", "case", type=click.Path(path_type=Path), help="Engine limits and backend constants, JSON.")
@click.option("--trace", type=click.Path(path_type=Path), help="One request per row, CSV; with --case.")
@click.option("--experiments", metavar="FILE", help="File of the experiment named by --id [default: shipped runs].")
@click.option("--id", "experiment", metavar="ID", help="Simulate this experiment's load instead of a trace.")
@click.option("--program", metavar="PROGRAM",
              help="This program gives all times [default: the case's backend; with --id champion].")  # fmt: skip
@click.option("--model", help="The model whose deployment fields a program reads; with --case, --hardware and --tp.")
@click.option("--hardware", help="GPU name, e.g. H100-SXM-80GB.")
@click.option("--tp", type=click.IntRange(min=1), help="Tensor parallelism [default: 1]; with --model.")
@click.option("--seed", type=click.IntRange(min=0), help="Arrival seed [default: 1]; with --id.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the completed requests here, CSV.")
@click.option("--json", "as_json", is_flag=True, help="Print the aggregate figures as JSON.")
@click.option("--quiet", is_flag=True, help="No progress line.")
@caps_options
def simulate(case: Path | None, trace: Path | None, experiments: str | None, experiment: str | None,
             program: str | None, model: str | None, hardware: str | None, tp: int | None, seed: int | None,
             out: Path | None, as_json: bool, quiet: bool, caps: dict[str, int]) -> int:  # fmt: skip
    """Replay a trace, or an experiment's load, exactly as the host simulator does.

    Times agree to the microsecond. A case holds `engine` (total_kv_blocks, block_size, max_num_seqs,
    max_num_batched_tokens, long_prefill_token_threshold, max_model_len), `alpha` and `step_linear_kv` in microseconds,
    and `horizon_us`. A trace has the columns arrival_s, input_len, output_len and optionally row, prefix_group,
    prefix_len, timeout_s.

    \b
    evolve simulate --case case.json --trace trace.csv --out results.csv
    evolve simulate --case case.json --trace trace.csv --program my_model.py --json
    evolve simulate --case case.json --trace trace.csv --program champion --model llama-2-7b --hardware H100-SXM-80GB
    evolve simulate --id llama-2-7b-tp1-general --out requests.csv
    """
    given = case is not None or trace is not None
    if given == (experiment is not None or experiments is not None):
        raise InputError("simulate needs --case and --trace, or --id: give one of the two")
    whole_names(model, hardware, None)
    if given:
        if case is None or trace is None:
            raise InputError(f"--{'trace' if trace is None else 'case'} is missing: a trace needs a case's limits")
        if seed is not None:
            raise InputError("--seed goes with --id: a trace has its own arrivals")
        whole_names(model, hardware, tp, "a case names no model")
        if model and not program:
            raise InputError("--model goes with --program: the case's own backend reads no model")
        names = Names(model, hardware, tp or 1) if model and hardware else None
        work = of_case(case, trace, load(program, caps) if program else None, names)
    else:
        if model or tp is not None:
            raise InputError("--model, --hardware and --tp go with --case: an experiment has its own")
        if experiment is None:
            raise InputError("--experiments needs --id: name the experiment to simulate")
        work = of_experiment(
            named_experiment(experiments, experiment), load(program or "champion", caps), 1 if seed is None else seed
        )
    result = run(work, out, quiet)
    if as_json:
        print_json(result.to_json())
    else:
        print_aggregate(result)
    return 0


@click.command()
@click.argument("program", default="champion")
@click.option("--target", type=click.Choice(["blis-4", "blis-5"]), default="blis-4", show_default=True,
              help="blis-4: the host's main branch. blis-5: the frozen five-method interface.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the Go files.")
@click.option("--into", metavar="CHECKOUT", type=click.Path(path_type=Path),
              help="Instead of --out: a clone of the host, which gets a branch with it, built and tested.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="With --into: only print the diff.")
@click.option(
    "--experiments", metavar="FILE", help="File of the experiments named by --id [default: the shipped runs]."
)
@click.option("--id", "ids", multiple=True, metavar="ID", help="Bake in this experiment's deployment (repeatable).")
@click.option("--model", help="Bake in this model (with --hardware and --tp) instead of experiments' deployments.")
@click.option("--hardware", help="GPU name, e.g. H100-SXM-80GB.")
@click.option("--tp", type=click.IntRange(min=1), help="Tensor parallelism [default: 1]; with --model.")
@click.option("--deployment", "named", multiple=True, metavar="MODEL,HARDWARE[,TP]",
              help="Bake in this model on this GPU (repeatable, also together with --id).")  # fmt: skip
@click.option("--host-facts", "for_host", is_flag=True,
              help="Bake none in: take every model and GPU of the host, from its own configuration.")  # fmt: skip
@click.option("--name", default=DEFAULT.registered, show_default=True,
              help="Name of the backend in the host, and of its files and Go identifiers.")  # fmt: skip
@click.option(
    "--check",
    "verify",
    is_flag=True,
    help="Build, vet, test and time it with the Go toolchain, and compare 10,000 random batches with Python; "
    "exit status 1 if anything fails.",
)
@caps_options
def emit(program: str, target: str, out: Path | None, into: Path | None, dry_run: bool, experiments: str | None,
         ids: tuple[str, ...], model: str | None, hardware: str | None, tp: int | None, named: tuple[str, ...],
         for_host: bool, name: str, verify: bool, caps: dict[str, int]) -> int:  # fmt: skip
    """Write a program as Go that runs unchanged in the host simulator.

    Named deployments are baked in: a few with a constructor each, many in a table by name. If none is named, the Go
    takes the facts of a deployment as arguments; but a program that reads measured kernels gets every known model on
    every GPU that has measurements. With --host-facts, one backend serves every --model, --hardware and --tp of the
    host, computed when it is constructed.

    \b
    evolve emit champion --target blis-4 --out go/ --id llama-2-7b-tp1-general
    evolve emit runs/0001:137 --target blis-5 --out go/ --check
    evolve emit champion --out go/ --model llama-3.1-70b --hardware H100-SXM-80GB --tp 4
    evolve emit kernels --out go/ --deployment llama-2-7b,H100-SXM-80GB --deployment llama-3.1-70b,H200-SXM-141GB,4
    evolve emit kernels --out go/ --check
    evolve emit champion --out go/ --name my-fit
    evolve emit champion --out go/ --host-facts --check
    evolve emit champion --into ../inference-sim --name my-fit --id llama-2-7b-tp1-general --dry-run
    evolve emit champion --into ../inference-sim --name my-fit --host-facts
    """
    backend = Name(name)
    check_place(target, out, into, dry_run, verify)
    source = load(program, caps)
    if experiments and not ids and not model:
        raise InputError("--experiments needs --id: name the experiment whose deployment is baked in")
    if (ids or experiments) and model:
        raise InputError("--id or --experiments and --model exclude each other: use --deployment to name several")
    if named and model:
        raise InputError("--deployment and --model exclude each other: use --deployment to name several")
    whole_names(model, hardware, tp, "an experiment has its own")
    if for_host and (ids or model or named):
        raise InputError(
            "--host-facts goes without --id, --model and --deployment: the host knows them"
        )
    named_by_id = [named_experiment(experiments, name, "repeat --id for each") for name in dict.fromkeys(ids)]
    deployments = [emitting.of_experiment(e) for e in named_by_id]
    deployments += [emitting.of_text(text) for text in dict.fromkeys(named)]
    if model and hardware:
        deployments = [emitting.of_names(model, hardware, tp or 1)]
    if for_host:
        emitted = emitting.emit_for_host(source, target, out, backend)
    else:
        emitted = emitting.emit_to(source, target, out, deployments, backend)
    done = into is None or emit_into(into, emitted, "\n".join(emitting.provenance(source)), dry_run)
    emitting.print_emitted(emitted, emitting.unlike_host(named_by_id))
    if not done:
        return 1
    return 0 if not verify or emitting.verify(emitted) else 1


@click.command()
@click.option("--most", type=click.IntRange(min=10_000), default=10_000_000, show_default=True,
              help="Requests in the longest trace.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.option("--quiet", is_flag=True, help="No progress lines.")
def bench(most: int, as_json: bool, quiet: bool) -> int:
    """Measure how fast replays and candidates are on this machine.

    Replays are compared with the same formula compiled into the clock, candidates with replays of their runs.

    \b
    evolve bench
    evolve bench --most 1000000 --json
    """
    result = measure(most, lambda text: None if quiet else say(f"{text} ...", err=True))
    if as_json:
        print_json(result.to_json())
    else:
        print_bench(result)
    return 0
