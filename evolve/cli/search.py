"""The commands `run`, `pilot` and `resume`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from evolve.cli.endings import Ended
from evolve.cli.llm_options import limit_options, llm_config, llm_options
from evolve.cli.options import (
    explain_option,
    explaining,
    list_option,
    quiet_flag,
    run_options,
    verbose,
    verbose_option,
)
from evolve.cli.pools import Where, carry_out, pool_options
from evolve.output.terminal import say, warn
from evolve.run.checkpoint import absolute, best_programs, is_checkpoint
from evolve.run.config import Config
from evolve.run.config_file import load_config
from evolve.run.folder import COMPARISON, RunFolder, open_run, rewind
from evolve.run.measurements import of_files
from evolve.search import run as run_module
from evolve.search.llm.configured import configured, offer, with_models
from evolve.search.llm.setup import replay, with_limits
from evolve.search.pool.pool import Pool
from evolve.summary.llm import NO_ANSWER, unanswered
from evolve.summary.result import RunReport
from evolve.summary.run import print_run
from evolve.validate import seeds
from evolve.validate.costs import Costs, without_answers
from evolve.validate.seeds import Repeats, RepeatsReport, pilot_generations
from evolve.validate.views import print_repeats
from simulator.common.errors import InputError
from simulator.common.text import counted

known_option = click.option(
    "--all", "baselines", is_flag=True, help="Also print the errors of the baselines on each experiment."
)


@click.command()
@list_option("--models", "models", "A,B", "Fit only these models, Hugging Face ids or aliases (repeatable).")
@click.option(
    "--start",
    metavar="PROGRAM",
    multiple=True,
    help="Also start from this program: a file, RUN:ID, shipped name, or OpenEvolve checkpoint folder (repeatable).",
)
@click.option("--only-start", is_flag=True, help="Start only from the programs of --start, not from the shipped ones.")
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of runs, each with its own seed. The report has the spread of their results.",
)
@click.option(
    "--replay",
    metavar="RUN",
    type=click.Path(path_type=Path),
    help="Repeat a run of language models offline, with its recorded answers.",
)
@click.option(
    "--ideas",
    metavar="N",
    type=click.IntRange(min=1),
    help="A research loop of N ideas of language models: hypothesis, gates, fit, review, a folder in RUN/ideas.",
)
@known_option
@llm_options
@run_options
@explain_option
@verbose_option
def run(
    models: tuple[str, ...],
    start: tuple[str, ...],
    only_start: bool,
    ideas: int | None,
    repeats: int,
    replay: Path | None,
    baselines: bool,
    llm: dict[str, Any],
    **options: Any,
) -> int:
    """Search for latency models, and report the best.

    With --proposer auto, language models propose programs too: one bandit shares the budget among models and operators
    by what they gain for their candidates and dollars. With llm, models propose alone. Every request is journalled with
    its cost before it is sent, and no limit is exceeded. With --repeats, all repeats share the limits equally.

    \b
    evolve run --budget 1000                      the bundled measurements
    evolve run --config smoke                    20 to 30 seconds
    evolve run --experiments mine.yaml --out runs/mine
    evolve run --start mine.py --start runs/0001:137
    evolve run --start evolved/checkpoint_500    the best programs of OpenEvolve
    evolve run --repeats 5                       seeds 0 to 4, with the spread of the results
    evolve run --proposer auto --max-usd 2       with the model of your key, e.g. OPENAI_API_KEY
    evolve run --proposer llm --llm openai/mine --api-base http://127.0.0.1:8000/v1
    evolve run --ideas 10 --llm openai/gpt-5.4-mini     idea by idea, each with its findings: RUN/RESEARCH.md
    evolve run --replay runs/0007                the same archive again, from its journal
    """
    if replay is not None:
        return _replay(replay, options, baselines)
    if ideas:
        llm.setdefault("proposer", "llm")
    config = _starting_from(llm_config(_config(options, models), llm), start, only_start)
    if ideas:
        config = _of_ideas(config, ideas)
    for spec in start:
        if is_checkpoint(Path(spec)) and not options["quiet"]:
            say(best_programs(Path(spec), config.caps).note, err=True)
    with options["where"].pool(options["quiet"]) as pool:  # before there is a folder: a cluster may not be there
        if line := offer(config, repeats):
            pool.line.note(line)
        config = with_models(config, pool.line.note)
        if repeats > 1:
            several = seeds.start(config, repeats, options["out"], note=pool.line.note)
            return _work_repeats(several, pool, options["as_json"])
        started = run_module.start(config, options["out"], pool.line.note)
        return _work_run(started, pool, options["as_json"], baselines)


@click.command()
@click.option("--model", required=True, help="Hugging Face id or alias, e.g. llama-2-7b.")
@click.option(
    "--generations",
    type=click.IntRange(min=1),
    help="Generations of each repeat [default: 100; with language models, those of 180 rounds of questions: 60].",
)
@click.option(
    "--repeats",
    type=click.IntRange(min=2),
    default=3,
    show_default=True,
    help="Number of runs, each with its own seed.",
)
@llm_options
@run_options
@explain_option
@verbose_option
def pilot(model: str, generations: int | None, repeats: int, llm: dict[str, Any], **options: Any) -> int:
    """Repeat a short search on one model: does a full search pay?

    It does if the median mean error of the repeats is below the best baseline by more than their interquartile range.
    Baselines, the starting programs among them, have one set of constants, fitted on the same experiments. A pilot has
    one population (search.islands: 1). Without --budget each repeat has 800 candidates: a minute in all for a bundled
    model on two cores. With language models it has as many generations as ask 180 times in a row: an hour, if an answer
    takes 20 seconds. All repeats share --max-usd, --max-calls and --max-tokens equally.

    \b
    evolve pilot --model llama-2-7b
    evolve pilot --model llama-2-7b --proposer auto --llm openai/gpt-5.4-mini --max-usd 3
    """
    if "," in model:
        raise InputError(f"--model {model}: a pilot has one model: name one, or use `evolve run --models {model}`")
    config = llm_config(_config(options, (model,)), llm)
    with options["where"].pool(options["quiet"]) as pool:
        config = with_models(config, pool.line.note)
        search = replace(config.search, generations=generations or pilot_generations(config), islands=1)
        config = replace(config, search=search, budget=options["budget"] or search.generations * search.batch)
        several = seeds.start(config, repeats, options["out"], pilot=True, note=pool.line.note)
        return _work_repeats(several, pool, options["as_json"])


def _starting_from(config: Config, programs: tuple[str, ...], only: bool) -> Config:
    """The configuration with the command line's programs to start from."""
    if only and not (programs or config.search.start):
        raise InputError("--only-start leaves no program to start from: name one with --start")
    specs = map(absolute, programs)
    search = replace(config.search, start=(*config.search.start, *specs), only_start=only or config.search.only_start)
    return replace(config, search=search)


def _of_ideas(config: Config, ideas: int) -> Config:
    """The configuration as a research loop: in each generation one question for one program, asked again if it is sent
    back. Without judges the proposing models review, too."""
    proposer = config.search.proposer
    if proposer != "llm":
        raise InputError(f"--ideas are proposed by language models alone. Leave out --proposer {proposer}.")
    llm = configured(config.llm)
    if not llm.models:
        raise InputError("cannot find ideas without a language model. Set OPENAI_API_KEY or the like, or give --llm.")
    patience = max(config.search.patience, ideas)
    search = replace(config.search, generations=ideas, islands=1, batch=1, patience=patience)
    judges = llm.judges or tuple(llm.ensemble())
    loop = replace(llm, ideas=True, programs=1, rounds=2, notes_every=1, judges=judges)
    return replace(config, search=search, llm=loop)


def _replay(recording: Path, options: dict[str, Any], baselines: bool) -> int:
    """Repeat a recorded run. Raises InputError for an option that would change its settings."""
    context = click.get_current_context()
    for option in context.command.params:
        given = context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
        if given and option.name not in ("replay", "out", "workers", "baselines", "as_json", "quiet"):
            raise InputError(f"--replay {recording}: uses the recorded settings: leave out {option.opts[0]}")
    with options["where"].pool(options["quiet"]) as pool:
        return _work_run(replay(recording, options["out"]), pool, options["as_json"], baselines)


def _config(options: dict[str, Any], models: tuple[str, ...]) -> Config:
    """The configuration, as changed by the command line. Raises InputError for measurements that cannot be."""
    config = load_config(options["config_name"])
    named = {"models": models, "workloads": options["workloads"], "exclude": options["exclude"]}
    data = replace(config.data, **{name: words for name, words in named.items() if words})
    data = of_files(data, options["experiments"])
    search = replace(config.search, evolve=options["methods"]) if options["methods"] else config.search
    top = {name: options[name] for name in ("budget", "seed") if options[name] is not None}
    return replace(config, data=data, caps=replace(config.caps, **options["caps"]), search=search, **top)


@click.command()
@click.argument("run_path", metavar="RUN", type=click.Path(path_type=Path))
@limit_options("New limit on the total cost of language models, all searches together")
@click.option(
    "--to",
    "line",
    metavar="LINE",
    type=click.IntRange(min=0),
    help="Continue from this line of the journal. Later lines are kept in another file.",
)
@pool_options
@known_option
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@quiet_flag
@explain_option
@verbose_option
def resume(
    run_path: Path,
    limits: dict[str, float],
    line: int | None,
    where: Where,
    baselines: bool,
    as_json: bool,
    quiet: bool,
) -> int:
    """Continue a run exactly where it was interrupted.

    Repeats continue too. Recorded answers of language models are reused. With a higher limit a run continues where the
    old limit stopped it. If the journal is damaged, --to continues from its last good line. Language models are asked,
    and paid, again for answers after that line.

    \b
    evolve resume runs/0001
    evolve resume runs/0007 --max-usd 5
    evolve resume runs/0001 --to 56
    """
    if (run_path / COMPARISON).is_file():
        raise InputError(f"{run_path}: compares engines: `python -m research resume {run_path}` continues it")
    if line is not None and seeds.is_repeats(run_path):
        raise InputError(f"{run_path}: has a journal for each of its searches: name the folder of one with --to")
    if seeds.is_repeats(run_path):
        repeats = seeds.reopen(run_path, limits)
        with where.pool(quiet) as pool:
            return _work_repeats(repeats, pool, as_json)
    run = open_run(run_path)
    if line is not None and (kept := rewind(run, line)):
        warn(f"lines after {line} are in {kept}")
    if limits:
        run = with_limits(run, limits)
    with where.pool(quiet) as pool:
        return _work_run(run, pool, as_json, baselines)


def _work_run(run: RunFolder, pool: Pool, as_json: bool, baselines: bool) -> int:
    """Finish a run. Status 1 if it has no champion, or if no language model that was to propose answered."""

    def good(report: RunReport) -> bool:
        if why := unanswered(dict(report.calls), report.run):
            raise Ended(why, 1)
        return report.champion is not None

    return carry_out(
        run_module.work,
        run,
        pool,
        as_json,
        partial(print_run, baselines=baselines, explain=explaining(), verbose=verbose()),
        good,
        without_answers,
    )


def _work_repeats(repeats: Repeats, pool: Pool, as_json: bool) -> int:
    """Finish all repeats. Status 1 if none has a champion, or if no language model that was to propose answered."""

    def good(report: RepeatsReport) -> bool:
        check_answers(report.costs, repeats.path)
        return bool(report.figures)

    return carry_out(
        seeds.work, repeats, pool, as_json, partial(print_repeats, explain=explaining()), good, without_answers
    )


def check_answers(costs: Costs | None, path: Path) -> None:
    """Raises Ended if the searches of a study asked language models, and none answered."""
    if costs and costs.total.requests and not costs.total.tokens_out:
        raise Ended(f"{path}: none of {counted(costs.total.requests, 'request')} was answered, {NO_ANSWER}", 1)
