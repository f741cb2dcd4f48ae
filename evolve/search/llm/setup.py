"""Language models in a run: the checks and prices before it, the prompts kept with it, a new run from a recording."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path

from archive.elite import SEED
from archive.journal import Journal
from archive.proposal import is_outcome
from evolve.run import folder as run_folder
from evolve.run.config import Config
from evolve.run.config_file import config_from, to_mapping
from evolve.run.folder import RunFolder
from evolve.run.llm_settings import weighted
from evolve.run.program import seed_texts
from evolve.search.llm import client, prompt
from evolve.search.llm.calls import LlmCall, Messages, Price
from evolve.search.llm.documents import keep, kept, read_documents
from evolve.search.llm.prompt import Templates
from simulator.common.documents import parse_yaml
from simulator.common.errors import InputError
from simulator.common.files import plain_folder, write_text

FREE = (0.0, 0.0)
MARGIN = 4096  # tokens; programs, their errors and the front take about as many in a question


def names(config: Config) -> list[str]:
    return list(dict.fromkeys(weighted(name, "llm.models")[0] for name in config.llm.named))


# prices


def price_table() -> dict[str, list[float]]:
    """Our table: provider/model -> [input, output] in USD per million tokens. The file names its sources."""
    raw = resources.files("configs").joinpath("llm_prices.yaml").read_bytes()
    prices: dict[str, list[float]] = parse_yaml(raw, "configs/llm_prices.yaml", "list prices")
    return prices


def priced(config: Config) -> dict[str, Price]:
    """The price of every model: the user's, from our table, or listed by litellm; free on a server of the user's own.

    Raises InputError for a missing library, key or price, or an unknown provider.
    """
    models, llm, ours, prices = names(config), config.llm, price_table(), dict[str, Price]()
    client.check_keys(models, llm.api_base)
    own = client.own_models(models, llm.api_base)
    for model in models:
        price = llm.prices.get(model) or ours.get(model) or client.listed_price(model) or (FREE if model in own else ())
        if not price:
            raise InputError(
                f"cannot ask {model}: its price is unknown. "
                "Give --price in USD per million tokens in and out (0,0 for a model of your own)."
            )
        prices[model] = Price(*price)
    return prices


# before a run


def check(config: Config, searches: int = 1) -> list[str]:
    """A line on each model of a run before it is created (see plan). The limits are those of `searches` together.

    Raises InputError if no model is named, for bad prompts or documents, if the share of a search allows no question,
    and like `priced` and `plan`.
    """
    if not config.llm.models:
        raise InputError(
            f"cannot run --proposer {config.search.proposer} without a model. "
            "Give --llm provider/model, e.g. openai/gpt-5.4-mini, or llm.models in the configuration."
        )
    texts, prices, documents = _texts(config), priced(config), read_documents(config.llm)
    question = smallest_question(config, texts, documents.brief)
    lines = plan(config, prices, question)
    if not config.llm.cache:  # whose answers are free
        check_affordable(config, prices, question, searches)
    return [*documents.said, *lines]


def plan(config: Config, prices: Mapping[str, Price], smallest: Messages) -> list[str]:
    """A line for each model: its price, and the context that the smallest question takes.

    Raises InputError if a model's context has no room for it.
    """
    base, answer = config.llm.api_base, config.llm.answer_tokens
    own, context = client.own_models(list(prices), base), client.served(list(prices), base) if base else {}
    least = client.count_tokens(smallest)
    takes = f"a question takes {least} tokens or more, an answer up to {answer}"
    lines = []
    for model, price in prices.items():
        line = f"{model}: {price.input_usd:g} USD per million tokens in, {price.output_usd:g} out"
        if model in own and price == Price(*FREE) and model not in config.llm.prices:
            line = f"{model}: free, on a server of your own (--price {model}=IN,OUT if it is not)"
        if model in config.llm.ensemble():  # judges and the summariser are asked less
            fits = context.get(model.partition("/")[2])
            if fits is not None and least + answer > fits:
                raise InputError(
                    f"cannot ask {model}: {takes}, but its server takes {fits} in all. Serve it with a longer context "
                    f"(--max-model-len {least + answer + MARGIN} or more), or lower llm.answer_tokens."
                )
            line += f"; {takes}" if fits is None else f"; {takes}, of {fits} that fit"
        lines.append(line)
    return lines


def check_affordable(config: Config, prices: Mapping[str, Price], smallest: Messages, searches: int) -> None:
    """Raises InputError if an equal share of the limits for each search allows no model the smallest question."""
    llm = config.llm
    tokens_in, tokens_out = LlmCall(1, "propose", 0, "", smallest).most(llm.answer_tokens)
    usd, model = min((prices[name].usd(tokens_in, tokens_out), name) for name in llm.ensemble())
    each = "leaves" if searches == 1 else f"leaves each of {searches} searches"
    if usd > llm.max_usd / searches:
        enough = math.ceil(100 * searches * prices[model].usd(tokens_in + MARGIN, tokens_out)) / 100
        raise InputError(
            f"--max-usd {llm.max_usd:g}: {each} {llm.max_usd / searches:.4f} USD, but one question to {model} may take "
            f"{usd:.4f}. Give {enough:.2f} or more, or name a cheaper model."
        )
    tokens = tokens_in + tokens_out
    if llm.max_tokens and tokens > llm.max_tokens // searches:
        raise InputError(
            f"--max-tokens {llm.max_tokens}: {each} {llm.max_tokens // searches} tokens, but one question may take "
            f"{tokens}. Give {searches * (tokens + MARGIN)} or more."
        )


def smallest_question(config: Config, texts: Templates, brief: str = "") -> Messages:
    """The part that all questions of a run have: the task, the user's brief, and the template of a question."""
    return (("system", prompt.task(texts, config) + brief), ("user", texts["propose"]))


# with a run


def keep_prompts(run: RunFolder) -> None:
    """Write a run's prompt templates and documents to its folder, so that a resumed run uses the same words."""
    _write_prompts(run, _texts(run.config))
    keep(run.path, read_documents(run.config.llm))


def _write_prompts(run: RunFolder, texts: Templates) -> None:
    folder = plain_folder(run.path / prompt.FOLDER, make=True)
    for name, text in texts.items():
        write_text(folder / f"{name}.md", text)


def _texts(config: Config) -> Templates:
    return prompt.load(Path(config.llm.prompts)) if config.llm.prompts else prompt.bundled()


def task_of(config: Config) -> str:
    """The task of a question without how to answer, which other engines say in their own words."""
    return prompt.task(_texts(config), config).partition("# How to answer")[0].rstrip()


def prompts_of(run: RunFolder) -> Templates:
    """The prompt templates in a run's folder; the project's if it has none."""
    folder = plain_folder(run.path / prompt.FOLDER)
    return prompt.load(folder, kept=True) if folder.is_dir() else prompt.bundled()


def replay(recording: Path, out: Path | None) -> RunFolder:
    """A new run that starts with the calls of a recorded one and sends none itself.

    Raises InputError if the recording has no calls, or was made by another engine or on other data.
    """
    source = run_folder.open_run(recording)
    fitted, _ = source.experiments()
    run_folder.check_alike(source, fitted)
    calls = [line for line in source.each_line() if not is_outcome(line)]
    if not calls:
        raise InputError(
            f"cannot replay {recording}: it has no calls to language models. Name a run of --proposer llm or auto."
        )
    about = replace(source.about, replayed=str(recording))
    search, first = source.config.search, run_folder.read_start(source)
    if not search.only_start:  # this release may ship other seeds
        tried = {outcome.proposal.operator for outcome in source.outcomes()}
        shipped = [(name, text) for name, text in seed_texts() if f"{SEED}{name}" in tried]
        first += shipped
        search = replace(search, start=(*search.start, *(name for name, _ in shipped)), only_start=True)
    run = run_folder.create(out, replace(source.config, search=search), about)
    journal = Journal(run.journal)
    journal.append(calls)
    journal.close()
    _write_prompts(run, prompts_of(source))
    keep(run.path, kept(source.path))
    run_folder.write_start(run, first)
    return run


def with_limits(run: RunFolder, limits: dict[str, float]) -> RunFolder:
    """The run with other limits, written to its config.yaml. Raises InputError if it calls no language models."""
    if run.config.search.proposer == "offline" or run.about.replayed or run.about.forms_of:
        option = f"--{next(iter(limits)).replace('_', '-')}"
        raise InputError(f"cannot apply {option}: {run.path} calls no language model. Leave out {option}.")
    changed = {name: type(getattr(run.config.llm, name))(limit) for name, limit in limits.items()}
    config = config_from(to_mapping(replace(run.config, llm=replace(run.config.llm, **changed))), "command line")
    return run_folder.rewrite(run, config)
