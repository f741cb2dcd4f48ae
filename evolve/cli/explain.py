"""The commands that say what a program does and where it is wrong: explain, diagnose."""

from __future__ import annotations

import click

from evolve.cli.endings import print_json
from evolve.cli.options import caps_options, experiments_for, ids_option, load, run_of
from evolve.inspect.diagnose import diagnose as diagnosed
from evolve.inspect.diagnose import observed
from evolve.inspect.diagnose_view import print_findings
from evolve.inspect.explain import explain as explained
from evolve.inspect.explain_view import print_explanation
from evolve.output.terminal import warn
from evolve.run.folder import check_data
from simulator.common.errors import InputError


@click.command()
@click.argument("program", default="champion")
@click.option("--experiments", metavar="FILE", help="Explain predictions of these [default: those of the program's "
              "run, else those the project ships].")  # fmt: skip
@ids_option()
@click.option("--json", "as_json", is_flag=True, help="As JSON, with the steps of every experiment.")
@caps_options
def explain(program: str, experiments: str | None, ids: tuple[str, ...], as_json: bool, caps: dict[str, int]) -> int:
    """Explain a program's predictions: what they are made of, what each term means, and where it comes from.

    Shows every term in words, and its share, in microseconds and percent, of the mean E2E and of steps that the runs
    have; then what decided each constant, the tables of measured kernels, and the program's ancestors in its search.

    \b
    evolve explain champion --id llama-2-7b-tp1-general
    evolve explain runs/0001:137 --id mixtral-8x7b-tp2-codegen,llama-2-70b-tp4-general
    evolve explain mine.py --experiments mine.yaml --json
    """
    source = load(program, caps)
    explanation = explained(source, experiments_for(source, experiments, ids))
    if as_json:
        print_json(explanation.to_json())
    else:
        print_explanation(explanation)
    return 0


@click.command()
@click.argument("program", default="champion")
@click.option("--experiments", metavar="FILE", help="Experiments with observations [default: those that the program's "
              "run fits, else those the project ships].")  # fmt: skip
@ids_option("Only these experiments, also such as are not clean (repeatable).")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@caps_options
def diagnose(program: str, experiments: str | None, ids: tuple[str, ...], as_json: bool, caps: dict[str, int]) -> int:
    """Show where and why a program is wrong, as questions to language models do.

    Signed errors by load stage, the fields that they go along with, the steps of the worst stages, and the terms that
    the residuals ask for or would miss least. For a program of a run, RUN:ID, experiments and arrival seeds are the
    run's, so that the figures are those of `evolve prompt`.

    \b
    evolve diagnose champion
    evolve diagnose runs/0001:137
    evolve diagnose mine.py --experiments mine.yaml --id my-run --json
    """
    source = load(program, caps)
    run = run_of(source)
    if run and not experiments and not ids:
        fitted, _ = run.experiments()
        try:
            check_data(run, fitted)
        except InputError as e:  # the figures are of the data as it is now
            warn(str(e))
        findings = diagnosed(source, fitted, run.config.score.arrival_seeds, run.config.search.fields)
    else:
        findings = diagnosed(source, observed(experiments_for(source, experiments, ids), named=bool(ids)))
    if as_json:
        print_json(findings.to_json())
    else:
        print_findings(findings)
    return 0
