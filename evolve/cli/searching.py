"""The commands that search: run, pilot, baselines, and resume, which goes on with any of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from evolve.cli.ending import work_baselines, work_repeats, work_run
from evolve.cli.options import run_options


@click.command()
@click.option("--models", metavar="A,B", help="Fit only these models (Hugging Face id or alias).")
@click.option("--repeats", type=click.IntRange(min=1), default=1, show_default=True,
              help="Runs under as many seeds, and the spread of what they reach.")  # fmt: skip
@run_options
def run(models: str | None, repeats: int, **options: Any) -> int:
    """Search for latency models and report the best.

    \b
    evolve run --budget 1000                      the bundled measurements
    evolve run --config smoke                    half a minute
    evolve run --models llama-2-7b,llama-2-70b   two of the models
    evolve run --experiments mine.yaml --out runs/mine
    evolve run --repeats 5                       seeds 0 to 4: how much of it is luck?
    """
    config = _config(options, models)
    if repeats > 1:
        from evolve.repeating.repeats import start as start_repeats

        made = start_repeats(config, repeats, options["out"])
        return work_repeats(made, options["workers"], options["as_json"], options["quiet"])
    from evolve.run import start

    return work_run(start(config, options["out"]), options["workers"], options["as_json"], options["quiet"])


@click.command()
@click.option("--model", required=True, help="Hugging Face id or alias, e.g. llama-2-7b.")
@click.option("--generations", type=click.IntRange(min=1), default=100, show_default=True, help="Of each repeat.")
@click.option("--repeats", type=click.IntRange(min=2), default=3, show_default=True, help="Runs, each with its seed.")
@run_options
def pilot(model: str, generations: int, repeats: int, **options: Any) -> int:
    """A short search on a single model, several times over: is it worth a full one?

    Escalate or stop: whether the median joint error of the repeats is below that of blackbox, the host's linear form
    fitted on the same runs, by more than the repeats differ (their interquartile range). A pilot has one population
    (search.islands: 1) and, unless --budget says otherwise, as many candidates as its generations propose: 800 a
    repeat, in all about a minute for the three runs of a bundled model on two cores.

    \b
    evolve pilot --model llama-2-7b
    evolve pilot --model mixtral-8x7b --generations 50 --repeats 5
    """
    from dataclasses import replace

    from evolve.repeating.repeats import start
    from simulator.errors import InputError

    if "," in model:
        raise InputError(f"--model {model}: a pilot is of one model: name one, or `evolve run --models {model}`")
    config = _config(options, model)
    search = replace(config.search, generations=generations, islands=1)
    budget = options["budget"] or generations * search.batch
    made = start(replace(config, search=search, budget=budget), repeats, options["out"], pilot=True)
    return work_repeats(made, options["workers"], options["as_json"], options["quiet"])


def _config(options: dict[str, Any], models: str | None) -> Any:
    """The configuration with what the command line overrides."""
    from dataclasses import replace

    from evolve.choose import parse_list
    from evolve.config import load_config

    config = load_config(options["config_name"])
    data = config.data
    if options["experiments"]:
        from evaluator.experiments import BUNDLED

        files = tuple(f if f in BUNDLED else str(Path(f).resolve()) for f in options["experiments"])
        data = replace(data, files=files, predict_files=())
    for name, text in (("models", models), ("workloads", options["workloads"]), ("exclude", options["exclude"])):
        if text is not None:
            changed: dict[str, Any] = {name: parse_list(text)}
            data = replace(data, **changed)
    search = replace(config.search, evolve=options["methods"]) if options["methods"] else config.search
    top = {name: options[name] for name in ("budget", "seed") if options[name] is not None}
    return replace(config, data=data, caps=replace(config.caps, **options["caps"]), search=search, **top)


@click.command()
@click.argument("run_path", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--workers", type=click.IntRange(min=1), help="Processes [default: all cores].")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--quiet", is_flag=True, help="No progress line.")
def resume(run_path: Path, workers: int | None, as_json: bool, quiet: bool) -> int:
    """Go on with a run, repeats or baselines that were interrupted or killed, exactly as if they had not been.

    \b
    evolve resume runs/0001
    """
    from evolve.baseline import compare
    from evolve.repeating import repeats
    from evolve.run_folder import open_run

    if compare.is_comparison(run_path):
        return work_baselines(compare.reopen(run_path), workers, as_json, quiet)
    if repeats.is_repeats(run_path):
        return work_repeats(repeats.reopen(run_path), workers, as_json, quiet)
    return work_run(open_run(run_path), workers, as_json, quiet)


@click.command()
@click.option("--config", "config_name", default="default", show_default=True, metavar="NAME|FILE",
              help="What is fitted, its caps and gates, and our engine's settings.")  # fmt: skip
@click.option("--budget", type=click.IntRange(min=1), default=300, show_default=True, help="Candidates of a search.")
@click.option("--seeds", type=click.IntRange(min=1), default=5, show_default=True, help="Searches of each engine.")
@click.option("--only", metavar="A,B", help="Only these engines [default: all].")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder to create or add to [default: runs/baselines/NNNN]."
)
@click.option("--workers", type=click.IntRange(min=1), help="Searches at a time [default: all cores].")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--quiet", is_flag=True, help="No progress line.")
def baselines(config_name: str, budget: int, seeds: int, only: str | None, out: Path | None, workers: int | None,
              as_json: bool, quiet: bool) -> int:  # fmt: skip
    """Compare our engine with other ways to search, under the same budget and the same evaluator.

    evolution (ours), random, climb (hill climbing), gp (plain genetic programming), openevolve (its database and
    islands); ours without a part: no-islands, no-grid, no-bandit. All start from the same programs, and all have the
    same fits, gates, data and caps. The defaults are 12,000 candidates: a quarter of an hour on two cores.

    \b
    evolve baselines --budget 100 --seeds 3 --only evolution,random,climb
    evolve baselines --config smoke --budget 300 --out runs/baselines/mine
    evolve resume runs/baselines/mine             go on after Ctrl-C
    """
    from dataclasses import replace

    from evolve.baseline.compare import create
    from evolve.baseline.engines import engine_names
    from evolve.config import load_config
    from evolve.run_folder import next_path

    engines, left_out = engine_names(only)
    for line in left_out:
        print(f"evolve: warning: {line}", file=sys.stderr)
    config = replace(load_config(config_name), budget=budget)
    made = create(out or next_path(Path("runs/baselines")), config, engines, seeds)
    return work_baselines(made, workers, as_json, quiet)
