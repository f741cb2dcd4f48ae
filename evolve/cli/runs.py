"""The commands on what there is: the archive of a run, its held-out errors, and the inventory."""

from __future__ import annotations

from pathlib import Path

import click

from evolve.cli.ending import fail, print_json
from evolve.cli.options import caps_options, load


@click.command()
@click.argument("run_path", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--grid", is_flag=True, help="The MAP-Elites grid: best joint error by operations and features.")
@click.option("--pareto", is_flag=True, help="The Pareto front (the default).")
@click.option("--by", type=click.Choice(["proposer"]), help="Who found what at which cost: operators and models.")
@click.option("--json", "as_json", is_flag=True, help="Everything as JSON.")
def archive(run_path: Path, grid: bool, pareto: bool, by: str | None, as_json: bool) -> int:
    """Show what a run kept, rebuilt from its journal.

    \b
    evolve archive runs/0001
    evolve archive runs/0001 --grid
    evolve archive runs/0001 --by proposer
    evolve archive runs/0001 --json > archive.json
    """
    from evolve.run_folder import open_run
    from evolve.views import archive_json, print_archive

    found = open_run(run_path)
    if by:
        from evolve.proposers import print_proposers, proposers

        result = proposers(found)
        print_json(result) if as_json else print_proposers(result)
        return 0
    if as_json:
        print_json(archive_json(found))
    else:
        print_archive(found, grid, pareto or not grid)
    return 0


@click.command()
@click.argument("run_path", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--folds",
    metavar="KIND,KIND",
    help="models, workloads, tp, files, stages [default: the configuration's, or all that apply].",
)
@click.option(
    "--budget", type=click.IntRange(min=1), help="Candidates of each fold's search [default: the configuration's, 500]."
)
@click.option(
    "--hindsight", is_flag=True, help="No search: the run's champion refitted in every fold; says so everywhere."
)
@click.option(
    "--against",
    metavar="PROGRAM",
    help="Compare with this form, refitted in every fold [default: the best known answer].",
)
@click.option("--again", is_flag=True, help="Although settings have changed since the first validate of this run.")
@click.option(
    "--workers", type=click.IntRange(min=1), help="Processes [default: all cores]; changes nothing but speed."
)
@click.option(
    "--csv", "table", metavar="FILE", type=click.Path(path_type=Path), help="Write a row per fold and experiment."
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option("--quiet", is_flag=True, help="No progress line.")
@caps_options
def validate(run_path: Path, folds: str | None, budget: int | None, hindsight: bool, against: str | None, again: bool,
             workers: int | None, table: Path | None, as_json: bool, quiet: bool,
             caps: dict[str, int]) -> int:  # fmt: skip
    """Held-out errors of a run: the whole search repeated in every fold without what is held out.

    Kinds of folds: leave one model, one workload, one TP degree or one experiments file out (models, workloads, tp,
    files), and the last load stage (stages). Figures go to RUN/validate.json too, every call to RUN/validate.jsonl.

    \b
    evolve validate runs/0001
    evolve validate runs/0001 --folds models,workloads --budget 300 --csv held_out.csv
    evolve validate runs/0001 --against champion --json
    evolve validate runs/0001 --hindsight
    """
    from evolve.choose import parse_list
    from evolve.cores import available_cores
    from evolve.run_folder import open_run
    from evolve.validation.csv_file import check_csv, write_csv
    from evolve.validation.report import print_validation
    from evolve.validation.validate import Options
    from evolve.validation.validate import validate as make
    from simulator.errors import InputError

    run = open_run(run_path)
    if run.config.search.proposer != "offline" and not hindsight:
        raise InputError(f"{run_path}: validate repeats the search in every fold, and would pay its models every time: "
                         "give --hindsight")  # fmt: skip
    if table is not None:
        check_csv(table)
    source = load(against, caps) if against else None
    options = Options(parse_list(folds), budget, hindsight, source, again, workers or available_cores(), quiet)
    try:
        result = make(run, options)
    except KeyboardInterrupt:
        return fail(f"interrupted; nothing is lost: the same `evolve validate {run_path} ...` goes on from there", 130)
    if table is not None:
        write_csv(result, table)
    if as_json:
        print_json(result)
    else:
        print_validation(result)
    return 0


@click.command()
@click.argument("run_path", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("number", metavar="ID", type=click.IntRange(min=0))
@click.option("--sent", is_flag=True, help="What was sent for the model's proposal ID instead.")
@click.option("--answer", is_flag=True, help="What came back for it, verbatim.")
@click.option("--json", "as_json", is_flag=True, help="As JSON: the messages with their roles.")
def prompt(run_path: Path, number: int, sent: bool, answer: bool, as_json: bool) -> int:
    """Print what a language model would be sent to improve program ID of a run, or was sent. Nothing is sent.

    Also of an offline run. Which programs stand beside ID is drawn; in a run it is drawn for every question anew.

    \b
    evolve prompt runs/0001 137
    evolve prompt runs/0007 137 --sent
    evolve prompt runs/0007 137 --answer
    """
    from evolve.llm.preview import print_messages, was_answered, was_sent, would_send
    from evolve.run_folder import open_run

    run = open_run(run_path)
    if answer:
        messages, about = was_answered(run, number)
    elif sent:
        messages, about = was_sent(run, number)
    else:
        messages, about = would_send(run, number)
    if as_json:
        print_json(about | {"messages": [{"role": role, "content": text} for role, text in messages]})
    else:
        print_messages(messages)
    return 0


@click.command("list")
@click.option(
    "--runs", "folder", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Where runs lie."
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def list_(folder: Path, as_json: bool) -> int:
    """List runs, shipped programs, configurations, models and GPUs.

    \b
    evolve list
    evolve list --runs elsewhere --json
    """
    from evolve.views import inventory, print_inventory

    if as_json:
        print_json(inventory(folder))
    else:
        print_inventory(inventory(folder))
    return 0
