"""The command `llm`: prompt, check."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import click

from evolve.cli.endings import Ended, finish, print_json
from evolve.cli.llm_options import two_prices
from evolve.cli.values import StrictGroup
from evolve.output.columns import figures, words, wrapped
from evolve.output.printing import prose, show
from evolve.output.table import Table
from evolve.output.terminal import command, say
from evolve.run.config import Config, DataSettings, SearchSettings
from evolve.run.config_file import config_from, to_mapping
from evolve.run.folder import open_run
from evolve.run.llm_settings import LlmSettings
from evolve.search.llm.calls import unpack
from evolve.search.llm.client import LONGEST_WORDS, CallFault, count_tokens
from evolve.search.llm.preview import ModelCheck, check_model, was_answered, was_sent, would_send
from simulator.common.errors import InputError
from simulator.common.text import plain

MODELS = ("llama-2-7b", "mixtral-8x7b")  # one dense model and one mixture of experts, so that it takes seconds


@click.group(cls=StrictGroup)
def llm() -> None:
    """Look at questions to language models, and check a model before a run.

    \b
    evolve llm check openai/gpt-5.4-mini
    evolve llm prompt runs/0001 137
    """


# "-1" is read as an ID, and not as an option that does not exist
@llm.command(context_settings={"ignore_unknown_options": True})
@click.argument("run_path", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("proposal", metavar="ID")
@click.option("--sent", is_flag=True, help="Print the messages sent for the model's proposal ID.")
@click.option("--answer", is_flag=True, help="Print the answer to them, verbatim.")
@click.option("--tokens", is_flag=True, help="Print only the number of tokens, by the tokenizer of OpenAI's models.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the messages with their roles.")
def prompt(run_path: Path, proposal: str, sent: bool, answer: bool, tokens: bool, as_json: bool) -> int:
    """Print the question that would ask a language model to improve a program of a run. Nothing is sent.

    ID is the program's number. The run may be offline. The other programs in the question are drawn at random, in a run
    again for every question.

    \b
    evolve llm prompt runs/0001 137
    evolve llm prompt runs/0001 137 --tokens         to compare with a model's context
    evolve llm prompt runs/0007 137 --sent
    evolve llm prompt runs/0007 137 --answer
    """
    if sent and answer:
        raise InputError("--sent prints the question, --answer the answer. Give one of them.")
    run = open_run(run_path)
    if not re.fullmatch("[0-9]{1,18}", proposal):
        raise InputError(f"{proposal}: is not the number of a proposal: `{command('archive', run_path)}` lists them")
    number = int(proposal)
    if answer:
        messages, about = was_answered(run, number)
    elif sent:
        messages, about = was_sent(run, number)
    else:
        messages, about = would_send(run, number)
    if tokens:
        counted = [(role, count_tokens([(role, text)])) for role, text in messages]
        total = sum(tokens for _, tokens in counted)
        if as_json:
            print_json(
                about | {"messages": [{"role": role, "tokens": tokens} for role, tokens in counted], "tokens": total}
            )
        else:
            say(f"{total:,} tokens: {', '.join(f'{role} {tokens:,}' for role, tokens in counted)}")
    elif as_json:
        print_json(about | {"messages": [{"role": role, "content": text} for role, text in messages]})
    else:
        for role, text in messages:
            if len(messages) > 1:
                say(f"---- {role} ----")
            say(text.rstrip("\n"))
    return 0


@llm.command()
@click.argument("model", metavar="MODEL")
@click.option("--api-base", metavar="URL", default="", help="OpenAI-compatible server of a model named openai/NAME.")
@click.option("--price", metavar="IN,OUT", help="USD per million tokens in and out; 0,0: free.")
@click.option(
    "--max-usd", type=click.FloatRange(min=0), default=0.5, show_default=True, help="Ask nothing that may cost more."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON with the text of every proposal.")
def check(model: str, api_base: str, price: str | None, max_usd: float, as_json: bool) -> int:
    """Ask a language model one question of a run, and show the cost and the usable proposals.

    MODEL is a name that litellm knows. One request is sent. Like the first question of a run, it shows the best shipped
    program, fitted to the bundled runs of two models, and asks for four better ones. Nothing is kept.

    Exit status: 0 if at least one proposal parses; 1 if none does, or no answer came; 2 for wrong input, a missing or
    refused key, or a question that may cost more than --max-usd.

    \b
    evolve llm check openai/gpt-5.4-mini
    evolve llm check openai/mine --api-base http://127.0.0.1:8000/v1
    evolve llm check openai/new --price 0.5,1.5 --max-usd 0.1 --json
    """
    config = _config(model, api_base, price, max_usd)
    try:
        checked = check_model(config)
    except CallFault as fault:
        line = f"cannot ask {model}: {fault.advice}"
        raise InputError(line) if fault.setup else Ended(line, 1) from None
    finish(checked, as_json, _print)
    return 0 if checked.parsed else 1


def _print(check: ModelCheck) -> None:
    """Print the answer's cost and its proposals."""
    answered, price = check.answered, check.price
    tools = "it can call tools" if check.tools else "it cannot call tools"
    if check.tools is None:
        tools = "litellm does not list it, so it may or may not call tools"
    prose(f"{answered.model} answered as {answered.version} in {answered.seconds:.1f} s; {tools}.")
    counted = " (no credible count: the most that the request can have taken)" if answered.uncounted else ""
    prose(
        f"{answered.tokens_in} tokens in, {answered.tokens_out} out{counted}: {answered.usd:.4f} USD, at "
        f"{price[0]:g} USD per million tokens in and {price[1]:g} out."
    )
    if check.nothing:
        text = plain(unpack(answered.answer), LONGEST_WORDS)
        begins = f', which begins "{text}"' if text else ""
        prose(
            f"None of {check.asked} proposals: {check.nothing}{begins}. Name a model that answers in the form of the "
            "question, or read its server's log."
        )
        return
    prose(
        f"{len(check.candidates)} of {check.asked} proposals read: {check.parsed} parse, and a search would fit "
        f"{check.usable}.\n"
    )
    rows = [
        (i, c.idea.title, "no" if c.idea.complaint else "yes", c.refused.why if c.refused else "none")
        for i, c in enumerate(check.candidates, 1)
    ]
    show(Table.of("", [figures("d", ""), wrapped("proposal"), words("parses"), wrapped("complaint")], rows))


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
