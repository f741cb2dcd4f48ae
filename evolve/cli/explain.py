"""The commands that say what a program does and where it is wrong: explain."""

from __future__ import annotations

import click

from evolve.cli.endings import print_json
from evolve.cli.options import caps_options, load, named_experiments
from evolve.program.explain import explain as explained
from evolve.program.explain_view import print_explanation


@click.command()
@click.argument("program", default="champion")
@click.option("--experiments", metavar="FILE", help="Explain predictions of these [default: those the project ships].")
@click.option("--id", "ids", metavar="ID,ID", help="Only these experiments.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with the steps of every experiment.")
@caps_options
def explain(program: str, experiments: str | None, ids: str | None, as_json: bool, caps: dict[str, int]) -> int:
    """Explain a program's predictions: what they are made of, what each term means, and where it comes from.

    Shows every term in words, and its share, in microseconds and percent, of the mean E2E and of steps that the runs
    have; then what decided each constant, the tables of measured kernels, and the program's ancestors in its search.

    \b
    evolve explain champion --id llama-2-7b-tp1-general
    evolve explain runs/0001:137 --id mixtral-8x7b-tp2-codegen,llama-2-70b-tp4-general
    evolve explain mine.py --experiments mine.yaml --json
    """
    explanation = explained(load(program, caps), named_experiments(experiments, ids))
    if as_json:
        print_json(explanation.to_json())
    else:
        print_explanation(explanation)
    return 0
