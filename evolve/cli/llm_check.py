"""The command that asks a language model one question: llm-check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import click

from archive.archive import Archive
from archive.elite import Elite
from archive.population import Population
from archive.proposal import SEED, Proposal
from evaluator.assess import NO_LIMITS
from evolve import __version__
from evolve.cli.endings import Ended, print_json
from evolve.cli.llm_options import two_prices
from evolve.output.progress import Line
from evolve.run.config import Config, DataSettings, SearchSettings
from evolve.run.config_file import config_from, to_mapping
from evolve.run.data import chosen
from evolve.run.folder import first_population
from evolve.run.llm_settings import LlmSettings
from evolve.run.program import seed_texts
from evolve.search.assessor import Admitted, Live
from evolve.search.llm import servers, setup, templates
from evolve.search.llm.calls import Messages
from evolve.search.llm.check import ask, print_check
from evolve.search.llm.fault import REMEDIES, CallFault
from evolve.search.llm.preview import question_about
from evolve.search.llm.prices import Unpriced
from evolve.search.llm.question import taken_forms
from evolve.search.pool.local import local
from evolve.search.workers import workers_of
from simulator.common.errors import InputError
from simulator.common.streams import stream
from simulator.serving.digests import data_hash
from simulator.serving.experiment import Experiment

MODELS = ("llama-2-7b", "mixtral-8x7b")  # one dense model and one mixture of experts, so that it takes seconds


@click.command("llm-check")
@click.argument("model", metavar="MODEL")
@click.option("--api-base", metavar="URL", default="", help="OpenAI-compatible server of a model named openai/NAME.")
@click.option("--price", metavar="IN,OUT", help="USD per million tokens in and out; 0,0: free.")
@click.option("--max-usd", type=click.FloatRange(min=0), default=0.5, show_default=True,
              help="Ask nothing that may cost more.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="As JSON, with the text of every proposal.")
def llm_check(model: str, api_base: str, price: str | None, max_usd: float, as_json: bool) -> int:
    """Ask a language model one question of a run, and say what the answer costs and how much of it is usable.

    MODEL is named as litellm names it. One request is sent: it shows the best of the shipped programs, fitted to the
    bundled runs of two models, and asks for four better ones, as the first question of a run does. Nothing is kept.

    Exit status: 0 if at least one proposal parses, 1 if none does or no answer came, 2 for wrong input, a missing or a
    refused key, or a question that may cost more than --max-usd.

    \b
    evolve llm-check openai/gpt-5.4-mini
    evolve llm-check openai/mine --api-base http://127.0.0.1:8000/v1
    evolve llm-check openai/new --price 0.5,1.5 --max-usd 0.1 --json
    """
    config = _config(model, api_base, price, max_usd)
    name = next(iter(config.llm.ensemble()))
    try:
        prices = setup.priced(config)
    except Unpriced:
        remedy = "give --price IN,OUT in USD per million tokens (0,0 for a model of your own)"
        raise InputError(f"{name}: its price is unknown: {remedy}") from None
    servers.plan(config, prices, templates.bundled())
    fitted, _ = chosen(config.data)
    messages, base, archive = _question(config, fitted)
    try:
        check = ask(config, messages, base, taken_forms(archive), prices[name])
    except CallFault as fault:
        cost = "nothing was charged" if fault.unpaid else "it may have been charged all the same"
        line = f'{name}: {fault.kind}, "{fault.words}", {cost}: {REMEDIES[fault.kind]}'
        raise InputError(line) if fault.setup else Ended(line, 1) from None
    if as_json:
        about = {"engine": __version__, "data": data_hash(fitted), "seeds": config.score.arrival_seeds}
        print_json(about | check.to_json())
    else:
        print_check(check)
    return 0 if check.parsed else 1


def _config(model: str, api_base: str, price: str | None, max_usd: float) -> Config:
    """The configuration of a run with this model alone on little data. Raises InputError for an impossible option."""
    prices = {} if price is None else {model: _price(price)}
    llm = LlmSettings(models=(model,), api_base=api_base, prices=prices, max_usd=max_usd)
    search, data = SearchSettings(islands=1, proposer="llm"), DataSettings(models=MODELS)
    return config_from(to_mapping(replace(Config(), data=data, search=search, llm=llm)), "command line")


def _price(text: str) -> list[float]:
    price = two_prices(text)
    if not price:
        raise InputError(f"--price {text}: give IN,OUT in USD per million tokens, e.g. 0.5,1.5")
    return price


def _question(config: Config, fitted: Sequence[Experiment]) -> tuple[Messages, Elite, Archive]:
    """The question about the best shipped program, that program, and the archive of all shipped programs."""
    workers = workers_of(local(1, Line(quiet=True)), fitted, config)
    population = _shipped(config, Live(config, workers))
    archive = population.archive
    base = min(archive.members(), key=lambda e: e.joint)
    messages = question_about(templates.bundled(), config, population, base.id, stream(config.seed, 1),
                              lambda text: workers.diagnose(text).result())  # fmt: skip
    return messages, base, archive


def _shipped(config: Config, assessor: Live) -> Population:
    """The population that a search starts with."""
    population, seeds = first_population(config), seed_texts()
    admission = Admitted(population.archive.keys, len(seeds), lambda program: NO_LIMITS)
    started = [assessor.begin(Proposal(i, None, text, SEED + name, ()), admission)
               for i, (name, text) in enumerate(seeds)]  # fmt: skip
    for pending in started:
        if pending:
            population.tell(pending().outcome)
    return population
