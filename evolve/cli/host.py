"""The commands `emit` and `bench`."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from evolve.calibrate.coefficients import emit_coefficients
from evolve.cli.endings import finish
from evolve.cli.options import caps_options, ids_option, list_option, load, named_experiment, only_id, whole_names
from evolve.host import emit as emitting
from evolve.host.bench import bench as measure
from evolve.host.bench import print_bench
from evolve.host.deployments import gpus_of, of_experiment, of_names, of_text
from evolve.host.into import emit_into, place_of
from evolve.output.terminal import command, say
from evolve.run.program import CHAMPION, TRAINED_PHYSICS
from simulator.common.errors import InputError
from translate_go.emit import check_out
from translate_go.naming import DEFAULT, BackendName
from translate_go.target import HOSTS

GPUS = ("H100", "A100-SXM")  # of the host's own hardware table, as far as 0.4 MB go


@click.command()
@click.argument("program", required=False)
@click.option(
    "--host",
    "target",
    type=click.Choice([*HOSTS]),
    default="blis-4",
    show_default=True,
    help="blis-4: the host's main branch. blis-5: the frozen five-method interface. blis-kernel: the newest host, "
    "which asks a kernel.Kernel.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the Go files; with --coefficients, a file.")
@click.option(
    "--into",
    metavar="CHECKOUT",
    type=click.Path(path_type=Path),
    help="Instead of --out: a clone of the host. It gets a branch with the program, built and tested.",
)
@click.option("--dry-run", is_flag=True, help="With --into: only print the diff.")
@click.option(
    "--coefficients",
    is_flag=True,
    help="Instead of Go, write the YAML block of the host's trained-physics backend. PROGRAM must have its form "
    "[default: trained_physics].",
)
@click.option(
    "--experiments", metavar="FILE", help="File of the experiments named by --id [default: the shipped runs]."
)
@ids_option("Bake in these experiments' deployments (repeatable).")
@click.option("--model", help="Bake in this model (with --hardware and --tp) instead of experiments' deployments.")
@click.option("--hardware", help="GPU name, e.g. H100-SXM-80GB.")
@click.option("--tp", type=click.IntRange(min=1), help="Tensor parallelism [default: 1]; with --model.")
@click.option(
    "--deployment",
    "named",
    multiple=True,
    metavar="MODEL,HARDWARE[,TP]",
    help="Bake in this model on this GPU (repeatable, also together with --id).",
)
@click.option(
    "--host-facts",
    "for_host",
    is_flag=True,
    help="Bake in no deployment: serve every model and GPU of the host, from its own configuration.",
)
@list_option(
    "--gpus",
    "gpus",
    "GPU,GPU",
    f"With --host-facts: the GPUs whose measured kernels the Go has (repeatable) [default: {','.join(GPUS)}].",
)
@click.option(
    "--name",
    default=DEFAULT.registered,
    show_default=True,
    help="Name of the backend in the host, and of its files and Go identifiers.",
)
@click.option(
    "--check",
    "verify",
    is_flag=True,
    help="Build, vet, test and time the Go, and compare 10,000 random batches with Python. Exits with status 1 if "
    "anything fails, or a gate refuses the program.",
)
@caps_options
def emit(
    program: str | None,
    target: str,
    out: Path | None,
    into: Path | None,
    dry_run: bool,
    coefficients: bool,
    experiments: str | None,
    ids: tuple[str, ...],
    model: str | None,
    hardware: str | None,
    tp: int | None,
    named: tuple[str, ...],
    for_host: bool,
    gpus: tuple[str, ...],
    name: str,
    verify: bool,
    caps: dict[str, int],
) -> int:
    """Write a program as Go for the host simulator.

    The Go runs there unchanged. PROGRAM is the champion unless you name another.

    Named deployments are baked in: a few with a constructor each, many in a table by name. Without any, the Go takes
    the facts of a deployment as arguments. A program that reads measured kernels then gets every known model on every
    GPU with measurements. With --host-facts, one backend serves every --model, --hardware and --tp of the host. It
    computes their facts at construction.

    \b
    evolve emit champion --host blis-4 --out go/ --id llama-2-7b-tp1-general
    evolve emit runs/0001:137 --host blis-5 --out go/ --check
    evolve emit champion --host blis-kernel --out go/ --id llama-2-7b-tp1-general --check
    evolve emit champion --out go/ --model llama-3.1-70b --hardware H100-SXM-80GB --tp 4
    evolve emit kernels --out go/ --deployment llama-2-7b,H100-SXM-80GB --deployment llama-3.1-70b,H200-SXM-141GB,4
    evolve emit champion --out go/ --host-facts --check
    evolve emit champion --into ../inference-sim --name my-fit --id llama-2-7b-tp1-general --dry-run
    evolve emit --coefficients
    """
    backend = BackendName(name)
    if coefficients:
        of_deployments = experiments or ids or model or hardware or tp or named or for_host
        if of_deployments or verify or into or dry_run or caps or target != "blis-4" or backend != DEFAULT:
            raise InputError("--coefficients hold for every deployment, and are no Go: give only --out with it")
        emit_coefficients(load(program or TRAINED_PHYSICS, caps), out)
        return 0
    clone = place_of(target, out, into, dry_run, verify, backend)
    if out:
        check_out(out, backend)
    program = program or CHAMPION
    source = load(program, caps)
    if experiments and not ids and (named or for_host):
        raise InputError("--experiments needs --id: name the experiment whose deployment is baked in")
    if experiments and not ids and not model:
        ids = (only_id(experiments),)
    if (ids or experiments) and model:
        raise InputError("--id or --experiments and --model exclude each other: use --deployment to name several")
    if named and model:
        raise InputError("--deployment and --model exclude each other: use --deployment to name several")
    whole_names(model, hardware, tp, "an experiment has its own")
    if gpus and not for_host:
        raise InputError("--gpus goes with --host-facts: a deployment names its own GPU. Leave it out.")
    if for_host and (ids or model or named):
        raise InputError("--host-facts goes without --id, --model and --deployment: the host knows them")
    instead = "--deployment MODEL,HARDWARE,TP names a deployment without a run"
    named_by_id = [named_experiment(experiments, name, instead) for name in dict.fromkeys(ids)]
    deployments = [of_experiment(e) for e in named_by_id]
    deployments += [of_text(text) for text in dict.fromkeys(named)]
    if model and hardware:
        deployments = [of_names(model, hardware, tp or 1)]
    given = (
        *(("--name", backend.registered) if backend != DEFAULT else ()),
        *(("--host-facts",) if for_host else ()),
        *_repeated("--gpus", *gpus),
        *_repeated("--experiments", experiments),
        *_repeated("--id", *ids),
        *_repeated("--model", model),
        *_repeated("--hardware", hardware),
        *_repeated("--tp", tp),
        *_repeated("--deployment", *named),
        *(word for cap, most in caps.items() for word in (f"--max-{cap}", most)),
    )
    again = shlex.join(["evolve", "emit", program, *map(str, given)])
    if for_host:
        emitted = emitting.emit_for_host(source, target, out, backend, again, gpus_of(gpus or GPUS))
    else:
        emitted = emitting.emit_to(source, target, out, deployments, backend, again)
    notes = (*emitting.alike(deployments), *emitting.unlike_host(named_by_id, target))
    if clone and not source.fitted_before:
        notes += (f"{source.name}: has no record of a fit: `{command('fit', program, '--out', 'mine.py')}` fits it",)
    if clone is None:
        emitting.print_emitted(emitted, notes)
    elif not emit_into(clone, source, emitted, again, notes, dry_run):
        return 1
    return 0 if not verify or emitting.verify(emitted) else 1


def _repeated(option: str, *values: object) -> list[object]:
    """The option before each of its values, without None."""
    return [word for value in values if value is not None for word in (option, value)]


@click.command()
@click.option(
    "--most",
    type=click.IntRange(min=10_000),
    default=10_000_000,
    show_default=True,
    help="Requests in the longest trace.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--quiet", is_flag=True, help="No progress lines.")
def bench(most: int, as_json: bool, quiet: bool) -> int:
    """Measure the speed of replays and candidates on this machine.

    The output compares replays with the same formula compiled into the clock, and candidates with replays of runs.

    \b
    evolve bench
    """
    finish(measure(most, lambda text: None if quiet else say(f"{text} ...", err=True)), as_json, print_bench)
    return 0
