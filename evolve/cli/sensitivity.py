"""The command `sensitivity`."""

from __future__ import annotations

from functools import partial

import click

from evolve.cli.endings import finish
from evolve.cli.options import (
    TableFiles,
    caps_options,
    explain_option,
    explaining,
    ids_option,
    load,
    named_specs,
    quiet,
    quiet_option,
    tables_options,
    verbose,
    verbose_option,
)
from evolve.output.progress import Line
from evolve.plan.sensitivity import sensitivity as measure
from evolve.plan.sensitivity_result import SENSITIVITY, sensitivity_rows
from evolve.plan.sensitivity_view import print_sensitivities


@click.command()
@click.argument("program", default="champion")
@click.option("--experiments", metavar="FILE", help="Experiments whose engines change [default: the shipped runs].")
@ids_option()
@click.option(
    "--seeds", type=click.IntRange(1, 100), default=3, show_default=True, help="Arrival seeds to average over."
)
@tables_options("a row for each value of a setting as CSV")
@click.option("--json", "as_json", is_flag=True, help="Print every figure as JSON.")
@quiet_option
@caps_options
@explain_option
@verbose_option
def sensitivity(
    program: str,
    experiments: str | None,
    ids: tuple[str, ...],
    seeds: int,
    tables: TableFiles,
    as_json: bool,
    caps: dict[str, int],
) -> int:
    """Show how predicted latencies react to each engine setting.

    The command replays each experiment with one setting changed at a time. It halves and doubles max_num_seqs,
    max_num_batched_tokens, max_model_len and the TP degree, and toggles prefix caching and chunked prefill. The output
    has elasticities of E2E, TTFT and ITL, or for a switch the change in percent. It marks values that are impossible,
    make the queue grow, or lie outside the fitted range. Exit status 1 if no request of any experiment completes.

    \b
    evolve sensitivity champion --id llama-2-7b-tp1-general
    evolve sensitivity champion --experiments plan.yaml
    evolve sensitivity mine.py --experiments plan.yaml --csv sensitivity.csv
    """
    result = measure(load(program, caps), named_specs(experiments, ids), range(1, seeds + 1), Line(quiet()))
    tables.write(SENSITIVITY, sensitivity_rows(result))
    if not tables.on_stdout:
        finish(result, as_json, partial(print_sensitivities, explain=explaining(), verbose=verbose()))
    return 0 if any(e.figures_ms["e2e"] is not None for e in result.experiments) else 1
