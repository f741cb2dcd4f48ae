"""The commands on runs: their archive, the questions to their language models, and the inventory."""

from __future__ import annotations

from pathlib import Path

import click

from evolve.cli.endings import print_json
from evolve.propose.llm.preview import print_messages, was_answered, was_sent, would_send
from evolve.report.views import archive_json, inventory, print_archive, print_inventory
from evolve.run.data import chosen
from evolve.run.folder import Run, open_run
from evolve.search import workers
from evolve.search.attribution import attribution, print_attribution


@click.command()
@click.argument("run_path", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--grid", is_flag=True, help="The MAP-Elites grid: best joint error by operations and features.")
@click.option("--pareto", is_flag=True, help="The Pareto front (the default).")
@click.option("--by", type=click.Choice(["proposer"]), help="What each operator and model found, and at which cost.")
@click.option("--json", "as_json", is_flag=True, help="Everything as JSON.")
def archive(run_path: Path, grid: bool, pareto: bool, by: str | None, as_json: bool) -> int:
    """Show what a run kept, rebuilt from its journal.

    \b
    evolve archive runs/0001
    evolve archive runs/0001 --grid
    evolve archive runs/0001 --by proposer
    evolve archive runs/0001 --json > archive.json
    """
    run = open_run(run_path)
    if by:
        result = attribution(run)
        print_json(result.to_json()) if as_json else print_attribution(result)
    elif as_json:
        print_json(archive_json(run))
    else:
        print_archive(run, grid, pareto or not grid)
    return 0


@click.command()
@click.argument("run_path", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("number", metavar="ID", type=click.IntRange(min=0))
@click.option("--sent", is_flag=True, help="What was sent for the model's proposal ID.")
@click.option("--answer", is_flag=True, help="What came back for it, verbatim.")
@click.option("--json", "as_json", is_flag=True, help="As JSON: the messages with their roles.")
def prompt(run_path: Path, number: int, sent: bool, answer: bool, as_json: bool) -> int:
    """Print what a language model would be sent to improve a program of a run, or was sent. Nothing is sent.

    ID is the program's number; the run may be an offline one. The other programs in the question are drawn at random; a
    run draws them again for every question.

    \b
    evolve prompt runs/0001 137
    evolve prompt runs/0007 137 --sent
    evolve prompt runs/0007 137 --answer
    """
    run = open_run(run_path)
    if answer:
        messages, about = was_answered(run, number)
    elif sent:
        messages, about = was_sent(run, number)
    else:
        messages, about = would_send(run, number, lambda text: _diagnosis(run, text))
    if as_json:
        print_json(about | {"messages": [{"role": role, "content": text} for role, text in messages]})
    else:
        print_messages(messages)
    return 0


def _diagnosis(run: Run, text: str) -> str:
    """What the program's residuals on the run's experiments say, as a question shows it."""
    fitted, _ = chosen(run.config.data)
    return workers.start(1, fitted, run.config).diagnose(text).result()


@click.command("list")
@click.option(
    "--runs", "folder", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Folder of runs."
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def list_(folder: Path, as_json: bool) -> int:
    """List runs, shipped programs, configurations, models and GPUs.

    \b
    evolve list
    evolve list --runs elsewhere --json
    """
    if as_json:
        print_json(inventory(folder).to_json())
    else:
        print_inventory(inventory(folder))
    return 0
