"""Prompts of a run, for a reader: what would be sent, what was sent, and what came back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from archive.elite import Elite
from archive.population import Population
from archive.proposal import Outcome, is_outcome
from evolve.output.terminal import command, say
from evolve.run.config import Config
from evolve.run.folder import RunFolder, first_population
from evolve.search.llm import notes, prompt
from evolve.search.llm.call_log import CallLog, call_log, order
from evolve.search.llm.calls import Answered, Messages
from evolve.search.llm.question import draw_others
from evolve.search.llm.setup import prompts_of
from evolve.search.llm.templates import Templates
from evolve.summary.research import Issue, Research, generation
from simulator.common.errors import InputError
from simulator.common.json import JsonObject
from simulator.common.streams import stream

Preview = tuple[Messages, JsonObject]  # messages, and facts about them for the JSON output


def would_send(run: RunFolder, number: int, diagnose: Callable[[str], str]) -> Preview:
    """The question that asks to improve program `number`, from the run's current archive, rejections and notes.

    `diagnose` describes where a program text is wrong on the fitted experiments. Raises InputError if `number` is not a
    scored proposal of the run.
    """
    config, outcomes = run.config, run.outcomes()
    population = first_population(config)
    for outcome in outcomes:
        population.tell(outcome)
    if number not in population.archive.by_id:
        raise _no_base(run, number, outcomes)
    rng = stream(config.seed, 1 + max(outcome.proposal.id for outcome in outcomes), 1)
    research = Research()
    research.tell(outcomes)
    issues = research.issues(1 + max((generation(idea.proposal) for idea in research.ideas), default=0))
    messages = question_about(prompts_of(run), config, population, number, rng, diagnose, _notes(run), issues)
    return messages, _about(run)


def _no_base(run: RunFolder, number: int, outcomes: Sequence[Outcome]) -> InputError:
    """The error that proposal `number` is no program that could be improved."""
    ids = f"`{command('archive', run.path)}` lists the scored ones"
    outcome = next((outcome for outcome in outcomes if outcome.proposal.id == number), None)
    if outcome is None or outcome.rejection is None:
        return InputError(f"{run.path}: has no proposal {number}: {ids}")
    refused = f"{run.path}: proposal {number} was refused at {outcome.rejection.stage}, so nothing improves it"
    if not outcome.proposal.call:
        return InputError(f"{refused}: {ids}")
    sent, answer = (command("prompt", run.path, number, option) for option in ("--sent", "--answer"))
    return InputError(f"{refused}: `{sent}` prints what was sent for it, `{answer}` what came back")


def question_about(
    texts: Templates,
    config: Config,
    population: Population,
    number: int,
    rng: np.random.Generator,
    diagnose: Callable[[str], str],
    noted: str = "",
    issues: Sequence[Issue] = (),
) -> Messages:
    """The question that asks to improve program `number` of a population.

    `noted` are the latest notes, `issues` what judges had against the latest ideas.
    """
    base = population.archive.by_id[number]
    others = _others(population, config.llm.parents, base, rng)
    kinds = prompt.kinds(config.llm.programs, rng)
    asked = prompt.Asked(base, others, kinds, diagnose(base.text), "", noted, issues)
    return prompt.messages(texts, config, population, asked)


def _others(population: Population, shown: int, base: Elite, rng: np.random.Generator) -> tuple[Elite, ...]:
    """The other programs that a question of island 0 about `base` would show."""
    members = population.archive.members()
    order, entrants = population.order(members, 0), population.entrants(0)[1]
    return draw_others(members, order, entrants, shown - 1, base, population, rng)


def _notes(run: RunFolder) -> str:
    """The latest notes in the run's journal; "" if there are none."""
    log = call_log(run.lines())
    names = [name for name in log.answers if name.split("/")[1] == "notes"]
    return notes.kept(log.text(max(names, key=order))) if names else ""


def was_sent(run: RunFolder, number: int) -> Preview:
    """The messages that proposal `number` answers. Raises InputError if it is not a model's proposal."""
    log, line = _answer(run, number)
    about = _about(run) | {name: getattr(line, name) for name in ("call", "model", "prompt", "sample")}
    return log.messages(line.prompt), about


def was_answered(run: RunFolder, number: int) -> Preview:
    """The answer that proposal `number` comes from. Raises InputError if it is not a model's proposal."""
    log, line = _answer(run, number)
    shown = ("call", "model", "version", "tokens_in", "tokens_out", "usd", "seconds", "finish")
    return (("assistant", log.text(line.call)),), _about(run) | {name: getattr(line, name) for name in shown}


def _answer(run: RunFolder, number: int) -> tuple[CallLog, Answered]:
    """The log of the run's calls, and the line of the answer that proposal `number` comes from."""
    lines = run.lines()
    log = call_log(lines)
    outcome = next((entry for entry in lines if is_outcome(entry) and entry["id"] == number), None)
    if outcome is None:
        raise InputError(f"{run.path}: has no proposal {number}, and what came when the budget was full is none: "
                         f"`{command('archive', run.path)}` lists the scored ones")  # fmt: skip
    if outcome.get("call") in log.answers:
        return log, log.answers[outcome["call"]]
    raise InputError(f"{run.path}: {number} is not a proposal of a language model: "
                     f"`{command('archive', run.path, '--by', 'proposer')}` says who proposed")  # fmt: skip


def _about(run: RunFolder) -> JsonObject:
    return {"engine": run.about.engine, "data": run.about.data, "seeds": run.config.score.arrival_seeds}


def print_messages(messages: Messages) -> None:
    """Print every message in full; if there are several, each after a line with its role."""
    for role, text in messages:
        if len(messages) > 1:
            say(f"---- {role} ----")
        say(text.rstrip("\n"))
