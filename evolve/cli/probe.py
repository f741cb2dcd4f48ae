"""The command `probe`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import click

from evolve.calibrate.probe import print_probe, trusted
from evolve.calibrate.probe import probe as probe_runs
from evolve.cli import options
from evolve.cli.endings import finish
from evolve.cli.loads import Load, load_options
from evolve.cli.options import (
    caps_options,
    engine_option,
    explain_option,
    explaining,
    ids_option,
    list_option,
    named_experiments,
    quiet_option,
    whole_names,
)
from evolve.output.files import check_writable
from evolve.output.writing import write
from evolve.plan.loads import CANDIDATES, TARGETS, deployments, grid, new_deployment, prefixes
from simulator.common.documents import yaml_text
from simulator.common.errors import InputError
from simulator.serving.engine import Setting
from simulator.serving.experiment import Experiment, deploy
from simulator.serving.gpu import known_gpu
from simulator.serving.model import known_model
from simulator.serving.spec import Spec

HEADER = "# Runs to measure, written by evolve probe: put what was measured under `observed`, then `evolve fit`.\n"


@click.command()
@click.argument("program", default="champion")
@click.option(
    "--experiments",
    metavar="FILE",
    help="Target runs, whose intervals should narrow [default: a panel of loads on --model and --hardware].",
)
@ids_option("Only these of them (repeatable).")
@click.option("--model", help="Model of the runs to choose from [default: those of the targets].")
@click.option("--hardware", metavar="GPU", help="GPU of the runs to choose from [default: those of the targets].")
@list_option(
    "--tp",
    "degrees",
    "N,N",
    "Tensor-parallel degrees to choose from; a panel has the first (repeatable) [default: 1, 2, 4, 8 if they fit].",
)
@engine_option("Setting of the engine with --model, e.g. quantization=fp8 (repeatable).")
@load_options
@click.option("--budget-runs", type=click.IntRange(1, 20), default=3, show_default=True, help="Runs to choose.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the chosen runs here, as an experiments file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@quiet_option
@caps_options
@explain_option
def probe(
    program: str,
    experiments: str | None,
    ids: tuple[str, ...],
    model: str | None,
    hardware: str | None,
    degrees: tuple[str, ...],
    settings: Mapping[str, Setting],
    load: Load,
    budget_runs: int,
    out: Path | None,
    as_json: bool,
    caps: dict[str, int],
) -> int:
    """Choose the runs to measure next, for the surest predictions.

    The command chooses, among loads that the deployment sustains, those expected to narrow the intervals of the targets
    most after a fit. With --model and --hardware, the target is the load in the options, or else a panel of loads. The
    output has the load generator's settings and the cost of each.

    \b
    evolve probe --model llama-3.1-8b --hardware H100 --budget-runs 3
    evolve probe champion --experiments plan.yaml --id my-plan --tp 1,2 --out next.yaml
    """
    source = options.load(program, caps)
    trust = trusted(source)
    if out:
        check_writable(out, "--out")
        if out.exists():
            raise InputError(f"{out}: exists, perhaps with measurements: give --out another name, or remove it")
    if not experiments:
        whole_names(model, hardware, None)
    if ids and not experiments:
        raise InputError("--id names runs of a file: give --experiments FILE too")
    tp = _degrees(degrees)
    targets = named_experiments(experiments, ids) if experiments else []
    if settings and not (model and hardware):
        raise InputError("--engine goes with --model and --hardware: give these, or settings in the file")
    bases = _bases(targets, model, hardware, settings)
    offered = [
        run
        for base, prefix in zip(bases, prefixes(bases), strict=True)
        for run in grid(source.complete, base, tp, CANDIDATES, prefix)
    ]
    if not offered:
        raise InputError(
            "cannot choose a run: every load makes a queue on this deployment. Give another --tp or --hardware."
        )
    if load.given and model and hardware:
        targets = [_under(load, model, hardware, tp, settings)]
    if not targets:
        first = offered[0].experiment.engine.tensor_parallel
        panel = grid(source.complete, bases[0], (first,), TARGETS, "target-")
        targets = [run.experiment for run in panel]
    result = probe_runs(source, trust, targets, offered, budget_runs)
    if out:
        entries = yaml_text({"version": 1, "experiments": [r.spec.to_entry() for r in result.runs]})
        write(HEADER + entries, str(out), "--out")
    finish(result, as_json, partial(print_probe, out=out, explain=explaining()))
    return 0


def _under(load: Load, model: str, hardware: str, tp: Sequence[int], settings: Mapping[str, Setting]) -> Experiment:
    """The target that these options describe, on the first TP degree."""
    if load.lacking:
        raise InputError(f"a load lacks {', '.join(load.lacking)}: give all of it, or leave it out")
    return deploy(Spec.under(model, hardware, load.entry(), tp[0] if tp else 1, engine=settings, files=load.files))


def _degrees(numbers: tuple[str, ...]) -> tuple[int, ...]:
    if not all(n.isdecimal() and 0 < int(n) <= 10_000 for n in numbers):
        raise InputError(f"--tp {','.join(numbers)}: must be whole numbers above 0: write --tp 1,2")
    return tuple(map(int, numbers))


def _bases(
    targets: Sequence[Experiment], model: str | None, hardware: str | None, settings: Mapping[str, Setting]
) -> list[Spec]:
    """The deployments to choose from."""
    if model:
        known_model(model, f"--model {model}")
    if hardware:
        known_gpu(hardware, f"--hardware {hardware}")
    if model and hardware:
        return [new_deployment(model, hardware, **settings)]
    if not targets:
        raise InputError("probe needs targets. Give --experiments FILE, or --model and --hardware.")
    return deployments([e.spec for e in targets if e.spec], model, hardware)
