"""The command that says what to measure next."""

from __future__ import annotations

from pathlib import Path

import click

from evolve.calibrate.probe import print_probe, trusted
from evolve.calibrate.probe import probe as probe_runs
from evolve.cli.endings import print_json
from evolve.cli.options import (
    caps_options,
    ids_option,
    list_option,
    load,
    named_experiments,
    quiet_option,
    whole_names,
)
from evolve.output.files import check_writable, write_text
from evolve.plan.loads import CANDIDATES, TARGETS, bases, grid, names, on
from simulator.common.documents import yaml_text
from simulator.common.errors import InputError, unwritable
from simulator.common.json import JsonObject
from simulator.serving.bundled import raw_entries
from simulator.serving.known import known_gpu, known_model

HEADER = "# Runs to measure, written by evolve probe: put what was measured under `observed`, then `evolve fit`.\n"


@click.command()
@click.argument("program", default="champion")
@click.option("--experiments", metavar="FILE", help="The runs whose intervals matter [default: a panel of loads on "
              "--model and --hardware].")  # fmt: skip
@ids_option("Only these of them (repeatable).")
@click.option("--model", help="What can be run: this model [default: those of the targets].")
@click.option("--hardware", metavar="GPU", help="What can be run: on this GPU [default: those of the targets].")
@list_option("--tp", "degrees", "N,N", "What can be run: these tensor-parallel degrees, the first of which a panel has "
             "(repeatable) [default: 1, 2, 4, 8 as far as they fit].")  # fmt: skip
@click.option("--budget-runs", type=click.IntRange(1, 20), default=3, show_default=True, help="Runs to choose.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the chosen runs here, as an experiments file.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@quiet_option
@caps_options
def probe(
    program: str, experiments: str | None, ids: tuple[str, ...], model: str | None, hardware: str | None,
    degrees: tuple[str, ...], budget_runs: int, out: Path | None, as_json: bool, caps: dict[str, int],
) -> int:  # fmt: skip
    """Choose the runs to measure next, so that predictions become surer.

    Of loads that the deployment sustains, those are chosen that are expected to narrow the intervals of the targets
    most, once the program is fitted on them. The output has the load generator's settings and the cost of each.

    \b
    evolve probe --model llama-3.1-8b --hardware H100 --budget-runs 3
    evolve probe champion --experiments plan.yaml --id my-plan --tp 1,2 --out next.yaml
    """
    source = load(program, caps)
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
    deployments = _deployments(experiments, {e.id for e in targets}, model, hardware)
    offered = [
        run
        for base, name in zip(deployments, names(deployments), strict=True)
        for run in grid(source.complete, base, tp, CANDIDATES, name)
    ]
    if not offered:
        raise InputError(
            "nothing can be run: no load fits the deployment without a queue: give other --tp or --hardware"
        )
    if not targets:
        first = offered[0].experiment.engine.tensor_parallel
        panel = grid(source.complete, deployments[0], (first,), TARGETS, "target-")
        targets = [run.experiment for run in panel]
    result = probe_runs(source, trust, targets, offered, budget_runs)
    if out:
        text = yaml_text({"version": 1, "experiments": [r.entry for r in result.runs]})
        try:
            write_text(out, HEADER + text)
        except OSError as e:
            raise unwritable(out, e, "choose another --out") from None
    if as_json:
        print_json(result.to_json())
    else:
        print_probe(result, out)
    return 0


def _degrees(numbers: tuple[str, ...]) -> tuple[int, ...]:
    if not all(n.isdecimal() and 0 < int(n) <= 10_000 for n in numbers):
        raise InputError(f"--tp {','.join(numbers)}: must be whole numbers above 0: write --tp 1,2")
    return tuple(map(int, numbers))


def _deployments(file: str | None, targets: set[str], model: str | None, hardware: str | None) -> list[JsonObject]:
    """The deployments that can be run, as entries of an experiments file without a load."""
    if model:
        known_model(model, f"--model {model}")
    if hardware:
        known_gpu(hardware, f"--hardware {hardware}")
    if model and hardware:
        return [{"model": model, "hardware": hardware}]
    if not file:
        raise InputError("what to predict is missing: give --experiments FILE, or --model and --hardware")
    entries = [entry for entry in raw_entries(file) if entry["id"] in targets]
    return bases([on(entry, model, hardware) for entry in entries])
