"""The command `drift`."""

from __future__ import annotations

import click

from evolve.calibrate.drift import NONE
from evolve.calibrate.drift import drift as drift_of
from evolve.calibrate.drift_view import print_drift
from evolve.cli.endings import print_json
from evolve.cli.options import caps_options, ids_option, load, named_experiments, quiet_option


@click.command()
@click.argument("program", default="champion")
@click.option("--experiments", metavar="FILE", required=True, help="The new runs, with observations.")
@ids_option()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@quiet_option
@caps_options
def drift(program: str, experiments: str, ids: tuple[str, ...], as_json: bool, caps: dict[str, int]) -> int:
    """Check whether a program still predicts new runs.

    The command compares the residuals of E2E, TTFT and ITL in every load stage with the program's held-out errors. If
    they are larger, it fits the constants before the queue (alpha), those of the step (beta), and then all again to the
    new runs. The smallest set that restores the residuals is the one to recalibrate. If none does, the form no longer
    fits. Exits with status 1 if anything drifted, or if too few errors of the program are known to tell.

    \b
    evolve drift champion --experiments tonight.yaml
    """
    result = drift_of(load(program, caps), named_experiments(experiments, ids))
    following = result.next_command(experiments)
    if as_json:
        print_json(result.to_json() | {"next": following})
    else:
        print_drift(result, experiments)
    return 0 if result.verdict == NONE else 1
