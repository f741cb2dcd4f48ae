"""`python -m research`: the commands of this package."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from evolve.cli import main
from evolve.cli.entry import CONTEXT
from evolve.cli.llm_options import limit_options, llm_config, llm_options
from evolve.cli.options import list_option, quiet_flag
from evolve.cli.pools import Where, carry_out, pool_options
from evolve.cli.search import check_answers, of_files
from evolve.cli.values import StrictGroup
from evolve.output.terminal import warn
from evolve.run.config_file import load_config
from evolve.run.folder import next_path
from evolve.search.llm.configured import with_models
from evolve.search.pool.pool import Pool
from evolve.validate.costs import without_answers
from research import baselines as studies
from research.comparison import Comparison, ComparisonReport, again
from research.comparison_view import print_comparison
from research.engines.engines import engine_names
from research.leaderboard import leaderboard
from research.rejudged.command import rejudge


@click.group(cls=StrictGroup, context_settings=CONTEXT)
def research() -> None:
    """Compare methods, engines and beliefs by one protocol. From a clone only."""


@research.command()
@click.option(
    "--config",
    "config_name",
    default="default",
    show_default=True,
    metavar="NAME|FILE",
    help="Data, caps and gates of all engines, and the settings of our own.",
)
@click.option("--budget", type=click.IntRange(min=1), default=300, show_default=True, help="Candidates of each search.")
@click.option("--seeds", type=click.IntRange(min=1), default=5, show_default=True, help="Searches of each engine.")
@click.option(
    "--experiments",
    multiple=True,
    metavar="FILE",
    help="Fit the experiments in this file (repeatable) [default: the configuration's].",
)
@list_option("--only", "only", "A,B", "Only these engines (repeatable) [default: all].")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder to create or add to [default: runs/baselines/NNNN]."
)
@llm_options
@pool_options
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@quiet_flag
def baselines(
    config_name: str,
    budget: int,
    seeds: int,
    experiments: tuple[str, ...],
    only: tuple[str, ...],
    out: Path | None,
    llm: dict[str, Any],
    where: Where,
    as_json: bool,
    quiet: bool,
) -> int:
    """Compare our engine with other ways to search, under the same budget and the same evaluator.

    The engines are evolution (ours), random, climb (hill climbing), gp (plain genetic programming), and ours without
    one part: no-islands, no-grid, no-probe, no-bandit. All start from the same
    programs and have the same fits, gates, data and caps. The defaults make 13,500 candidates: a quarter of an hour on
    two cores.

    With --proposer auto or llm, evolution and its variants without a part ask language models, and no-models is ours
    with operators alone. --max-usd, --max-calls and --max-tokens are for all searches together, which have equal
    shares.

    \b
    python -m research baselines --budget 100 --seeds 3 --only evolution,random,climb
    python -m research baselines --experiments mine.yaml --only evolution,random
    python -m research baselines --config smoke --budget 300 --out runs/baselines/mine
    python -m research baselines --only evolution,no-models --proposer auto --llm openai/gpt-5.4-mini --max-usd 10
    python -m research resume runs/baselines/mine             continue after Ctrl-C
    """
    config = replace(with_models(llm_config(load_config(config_name), llm), warn), budget=budget)
    config = replace(config, data=of_files(config.data, experiments))
    engines = engine_names(only, models=config.search.proposer != "offline")
    with where.pool(quiet) as pool:
        comparison = studies.create(out or next_path(Path("runs/baselines")), config, engines, seeds)
        return _work_baselines(comparison, pool, as_json)


def _work_baselines(comparison: Comparison, pool: Pool, as_json: bool) -> int:
    """Finish all searches of a comparison.

    Status 1 if no engine has a median mean error at the full budget, or if no language model answered.
    """

    def good(report: ComparisonReport) -> bool:
        check_answers(report.costs, comparison.path)
        return report.any_scored

    return carry_out(studies.compare, comparison, pool, as_json, print_comparison, good, without_answers, again)


@research.command()
@click.argument("folder", type=click.Path(path_type=Path))
@limit_options("A new limit on what the searches of language models may spend in all")
@pool_options
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@quiet_flag
def resume(folder: Path, limits: dict[str, float], where: Where, as_json: bool, quiet: bool) -> int:
    """Continue a comparison of engines after an interruption, exactly as if there had been none."""
    comparison = studies.reopen(folder, limits)
    with where.pool(quiet) as pool:
        return _work_baselines(comparison, pool, as_json)


research.add_command(leaderboard)
research.add_command(rejudge)

if __name__ == "__main__":
    main(research)
