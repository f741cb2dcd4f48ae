"""The command `show`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from evolve.cli.endings import finish, print_json
from evolve.cli.options import (
    TableFiles,
    caps_options,
    experiments_for,
    ids_option,
    load,
    named_experiments,
    quiet,
    quiet_option,
    run_of,
    tables_options,
    verbose,
    verbose_option,
)
from evolve.cli.pools import Where, pool_options
from evolve.inspect.ablation import Ablation, ablate
from evolve.inspect.ablation_view import AblationRow, ablation_rows, print_ablation
from evolve.inspect.assess import assess, print_assessment
from evolve.inspect.check import check, fields_json, print_check, print_fields
from evolve.inspect.diagnose import Findings, diagnose, observed
from evolve.inspect.diagnose_view import print_findings
from evolve.inspect.explain import Explanation, explain
from evolve.inspect.explain_view import print_explanation
from evolve.inspect.provenance import provenance
from evolve.inspect.refusal import print_refusal, refusal_of
from evolve.inspect.show import CONSTANTS, Description, constant_rows, describe, print_show
from evolve.output.terminal import warn
from evolve.run.folder import check_data, open_run
from evolve.run.program import Source
from simulator.common.errors import InputError

MODES = {
    "explain": "Explain every term in words, its share of the predicted times, and its origin. With another mode: "
    "explain the terms of its tables.",
    "diagnose": "Show signed errors by load stage, and the terms that could reduce them.",
    "ablate": "Drop each part in turn, fit the rest again, and show which parts earn their place.",
    "check": "Check language, caps, units and gates, as a search does.",
    "assess": "Fit and score it again, as the search of this run would.",
    "fields": "List the fields that programs may read; takes no PROGRAM.",
}


@click.command()
@click.argument("program", required=False)
@click.option("--explain", "explained", is_flag=True, help=MODES["explain"])
@click.option("--diagnose", "mode", flag_value="diagnose", help=MODES["diagnose"])
@click.option("--ablate", "mode", flag_value="ablate", help=MODES["ablate"])
@click.option("--check", "mode", flag_value="check", help=MODES["check"])
@click.option("--assess", "assessed", metavar="RUN", type=click.Path(path_type=Path), help=MODES["assess"])
@click.option("--against", metavar="PROGRAM", help="With --assess: compare with this program.")
@click.option("--fields", "mode", flag_value="fields", help=MODES["fields"])
@click.option("--physics", is_flag=True, help="With --check: compare with datasheets, TP, batch and model size, too.")
@click.option(
    "--experiments",
    metavar="FILE",
    help="Experiments of --explain, --diagnose, --ablate and --check [default: the program's run, or shipped runs].",
)
@ids_option()
@tables_options("a row for each constant, or with --ablate for each part, as CSV")
@partial(pool_options, default=1)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@quiet_option
@verbose_option
@caps_options
def show(
    program: str | None,
    explained: bool,
    mode: str | None,
    assessed: Path | None,
    against: str | None,
    physics: bool,
    experiments: str | None,
    ids: tuple[str, ...],
    tables: TableFiles,
    where: Where,
    as_json: bool,
    caps: dict[str, int],
) -> int:
    """Show a program; explain, diagnose, ablate or check it.

    The default output has its mean errors on the fitted runs, its text and its size; -v has the rest. For a
    refused proposal of a run, RUN:ID, it has the text, the reason, and the judges' reviews.

    --ablate fits every smaller form to all runs, and in folds without each model, TP degree, architecture and workload.
    A part earns its place if the error on these held-out runs grows without it.

    --check exits with status 2 if the text is no program with consistent units within the caps, and with status 1 if a
    gate refuses it.

    \b
    evolve show champion
    evolve show runs/0001:137 --explain
    evolve show champion --explain --id llama-2-7b-tp1-general
    evolve show runs/0001:137 --diagnose
    evolve show my_model.py --ablate --experiments mine.yaml --workers 4
    evolve show my_model.py --check --physics
    evolve show my_model.py --assess runs/0001 --against champion
    evolve show --fields
    evolve show champion --latex constants.tex
    """
    mode = "assess" if assessed else mode or ("explain" if explained else None)
    if against and not assessed:
        raise InputError("--against compares what --assess computes. Give --assess RUN, too.")
    _refuse_unused(mode, physics, tables, bool(experiments or ids))
    if mode == "fields":
        if program or experiments or ids:
            raise InputError("--fields lists the fields of all programs: leave out PROGRAM, --experiments and --id")
        if as_json:
            print_json(fields_json())
        else:
            print_fields(verbose())
        return 0
    program = program or "champion"
    if mode is None and not tables.files and (refusal := refusal_of(program)):
        finish(refusal, as_json, print_refusal)
        return 0
    source = load(program, None if mode == "assess" else caps)  # seeds and scored programs may exceed them
    match mode:
        case "explain":
            explanation = explain(source, experiments_for(source, experiments, ids))
            finish(explanation, as_json, partial(_print_explained, describe(source)))
        case "diagnose":
            finish(
                _diagnosis(source, experiments, ids),
                as_json,
                partial(print_findings, explain=explained, verbose=verbose()),
            )
        case "check":
            verdict = check(source, physics, named_experiments(experiments, ids))
            finish(verdict, as_json, partial(print_check, verbose=verbose()))
            return 0 if verdict.ok else 1
        case "assess":
            assert assessed
            programs = [source, *([load(against, None)] if against else [])]
            with where.pool(quiet()) as pool:
                found = assess(open_run(assessed), programs, pool)
            finish(found, as_json, partial(print_assessment, verbose=verbose()))
            return 0 if len(found.scored) == len(programs) else 1
        case "ablate":
            result = _ablation(source, experiments, ids, where)
            tables.write(AblationRow, ablation_rows(result))
            if not tables.on_stdout:
                finish(result, as_json, partial(print_ablation, explain=explained, verbose=verbose()))
        case _:
            description = describe(source)
            tables.write(CONSTANTS, constant_rows(description))
            if not tables.on_stdout:
                origins = provenance(source, ()).constants if verbose() else ()
                finish(description, as_json, partial(print_show, origins=origins, verbose=verbose()))
    return 0


def _print_explained(description: Description, explanation: Explanation) -> None:
    print_show(description, explanation.provenance.constants, explain=True, verbose=verbose())
    print_explanation(explanation)


def _refuse_unused(mode: str | None, physics: bool, tables: TableFiles, chosen: bool) -> None:
    """Raise InputError for an option that has no effect in this mode."""
    if physics and mode != "check":
        raise InputError("--physics applies only together with --check")
    if tables.files and mode not in (None, "ablate"):
        raise InputError(f"--{next(iter(tables.files))} writes constants or parts: leave out --{mode}")
    if chosen and mode in (None, "assess"):
        raise InputError("--experiments and --id need --explain, --diagnose, --ablate or --check: give one of them")


def _diagnosis(source: Source, experiments: str | None, ids: tuple[str, ...]) -> Findings:
    """The diagnosis on the chosen experiments; by default those of the program's run, as in questions to models."""
    run = run_of(source)
    if run is None or experiments or ids:
        return diagnose(source, observed(experiments_for(source, experiments, ids), named=bool(ids)))
    fitted, _ = run.experiments()
    try:
        check_data(run, fitted)
    except InputError as e:  # the figures are of the data as it is now
        warn(str(e))
    return diagnose(source, fitted, run.config.score.arrival_seeds, run.config.search.fields)


def _ablation(source: Source, experiments: str | None, ids: tuple[str, ...], where: Where) -> Ablation:
    run = None if experiments or ids else run_of(source)
    chosen = run.experiments()[0] if run else experiments_for(source, experiments, ids)
    with where.pool(quiet()) as pool:
        return ablate(source, chosen, pool)
