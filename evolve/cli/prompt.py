"""The command that prints what language models are asked, and what they answered."""

from __future__ import annotations

import re
from pathlib import Path

import click

from evolve.cli.endings import print_json
from evolve.output.progress import Line
from evolve.output.terminal import command, say
from evolve.run.folder import RunFolder, open_run
from evolve.search.llm.client import check_installed, count_tokens
from evolve.search.llm.preview import print_messages, was_answered, was_sent, would_send
from evolve.search.pool.local import local
from evolve.search.workers import workers_of
from simulator.common.errors import InputError


# "-1" is read as an ID, and not as an option that does not exist
@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("run_path", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("proposal", metavar="ID")
@click.option("--sent", is_flag=True, help="What was sent for the model's proposal ID.")
@click.option("--answer", is_flag=True, help="What came back for it, verbatim.")
@click.option(
    "--tokens", is_flag=True, help="Only how many tokens it has, as the tokenizer of OpenAI's models counts them."
)
@click.option("--json", "as_json", is_flag=True, help="As JSON: the messages with their roles.")
def prompt(run_path: Path, proposal: str, sent: bool, answer: bool, tokens: bool, as_json: bool) -> int:
    """Print what a language model would be sent to improve a program of a run, or was sent. Nothing is sent.

    ID is the program's number; the run may be an offline one. The other programs in the question are drawn at random; a
    run draws them again for every question.

    \b
    evolve prompt runs/0001 137
    evolve prompt runs/0001 137 --tokens         is it short enough for the context of a local model?
    evolve prompt runs/0007 137 --sent
    evolve prompt runs/0007 137 --answer
    """
    if sent and answer:
        raise InputError("--sent is what was asked, --answer what came back: give one of the two")
    run = open_run(run_path)
    if not re.fullmatch("[0-9]{1,18}", proposal):
        raise InputError(f"{proposal}: is not the number of a proposal: `{command('archive', run_path)}` lists them")
    number = int(proposal)
    if answer:
        messages, about = was_answered(run, number)
    elif sent:
        messages, about = was_sent(run, number)
    else:
        messages, about = would_send(run, number, lambda text: _diagnosis(run, text))
    if tokens:
        check_installed()
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
        print_messages(messages)
    return 0


def _diagnosis(run: RunFolder, text: str) -> str:
    """What the program's residuals on the run's experiments say, as a question shows it."""
    fitted, _ = run.experiments()
    return workers_of(local(1, Line()), fitted, run.config).diagnose(text).result()
