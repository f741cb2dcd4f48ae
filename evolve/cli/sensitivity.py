"""`evolve sensitivity`: how far predictions move with the settings of the engine."""

from __future__ import annotations

import click

from evolve.cli.endings import print_json
from evolve.cli.options import (
    TableFiles,
    caps_options,
    ids_option,
    load,
    quiet,
    quiet_option,
    tables_options,
    written_and_named,
)
from evolve.output.progress import Line
from evolve.plan.sensitivity import sensitivity as measure
from evolve.plan.sensitivity_view import print_sensitivities


@click.command()
@click.argument("program", default="champion")
@click.option("--experiments", metavar="FILE", help="Whose engines to change [default: the runs the project ships].")
@ids_option()
@click.option(
    "--seeds", type=click.IntRange(1, 100), default=3, show_default=True, help="Arrival seeds to average over."
)
@tables_options("a row for each value of a setting as CSV")
@click.option("--json", "as_json", is_flag=True, help="Every figure as JSON.")
@quiet_option
@caps_options
def sensitivity(
    program: str, experiments: str | None, ids: tuple[str, ...], seeds: int, tables: TableFiles, as_json: bool,
    caps: dict[str, int],
) -> int:  # fmt: skip
    """Show how far predicted latencies move with each setting of the engine.

    By replays, max_num_seqs, max_num_batched_tokens, max_model_len and the TP degree are halved and doubled, prefix
    caching and chunked prefill are switched over, one at a time. The output has elasticities of E2E, TTFT and ITL, or
    for a switch the change in percent; and which values are impossible, make the queue grow, or lie outside what the
    program was fitted on. Exit status 1 if no request of any experiment completes.

    \b
    evolve sensitivity champion --id llama-2-7b-tp1-general
    evolve sensitivity champion --experiments plan.yaml
    evolve sensitivity mine.py --experiments plan.yaml --csv sensitivity.csv
    """
    result = measure(load(program, caps), written_and_named(experiments, ids), range(1, seeds + 1), Line(quiet()))
    tables.write("sensitivity", "sensitivity", result)
    if as_json and not tables.on_stdout:
        print_json(result.to_json())
    elif not tables.on_stdout:
        print_sensitivities(result)
    return 0 if any(e.figures_ms["e2e"] is not None for e in result.experiments) else 1
