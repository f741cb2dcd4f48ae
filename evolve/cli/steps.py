"""The command on measured scheduler steps: score-steps."""

from __future__ import annotations

from pathlib import Path

import click

from evolve.calibrate.steps.score import print_score
from evolve.calibrate.steps.score import score_steps as score
from evolve.calibrate.steps.sources import sources
from evolve.cli.endings import print_json
from evolve.cli.options import caps_options, ids_option, load
from simulator.serving.bundled import STEPS as SHIPPED
from simulator.serving.splits import SPLITS

STEPS = f"Step table: a parquet file, a folder of `evolve ingest`, or {SHIPPED}, which the project ships (repeatable)."
SYNC = "The engines did not schedule ahead: a cycle measures its own step, not the one before."


@click.command("score-steps")
@click.argument("program", default="champion")
@click.option("--steps", "steps", type=click.Path(path_type=Path), multiple=True, default=[Path(SHIPPED)],
              show_default=True, help=STEPS)  # fmt: skip
@click.option("--experiments", metavar="FILE", help="Their experiments [default: experiments.yaml of a folder, else "
              "the runs the project ships].")  # fmt: skip
@ids_option()
@click.option("--target", type=click.Choice(["cycle", "duration"]), default="cycle", show_default=True,
              help="cycle: start of a step to that of the next; duration: CPU time of schedule() only.")  # fmt: skip
@click.option("--split", type=click.Choice(["all", *SPLITS]), default="all", show_default=True,
              help="Only this part of each run: 60, 20 and 20 % of its sampled steps in time.")  # fmt: skip
@click.option("--sync", is_flag=True, help=SYNC)
@click.option("--json", "as_json", is_flag=True, help="Every figure as JSON, with the step ids of each split.")
@click.option("--quiet", is_flag=True, help="Only the table of runs, not by kind of step.")
@caps_options
def score_steps(program: str, steps: tuple[Path, ...], experiments: str | None, ids: tuple[str, ...], target: str,
                split: str, sync: bool, as_json: bool, quiet: bool, caps: dict[str, int]) -> int:  # fmt: skip
    """Score a program's step_time on sampled scheduler steps.

    The figures are error, correlation and bias, by kind of step. The time of a step is a cycle: from its start to that
    of the next step, where both were sampled. Under async scheduling a cycle is the cost of the step before. Nothing is
    fitted.

    \b
    evolve score-steps champion
    evolve score-steps my_model.py --steps ingested/ --split test
    evolve score-steps champion --steps steps.parquet --experiments mine.yaml --json
    """
    scores = score(load(program, caps), sources(steps, experiments, ids, sync), target, split)
    if as_json:
        print_json(scores.to_json())
    else:
        print_score(scores, quiet)
    return 0
