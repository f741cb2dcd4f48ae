"""Prompts of a run, to be read: what would be sent, what was, and what came back."""

from __future__ import annotations

from typing import Any

import numpy as np

from evolve.propose.llm import notes, prompt
from evolve.propose.llm.calls import Book, Line, Messages, calls_of, order
from evolve.propose.llm.question import families
from evolve.propose.llm.setup import prompts_of
from evolve.propose.parents import entrants, order_of
from evolve.run.config import Config
from evolve.run.data import chosen
from evolve.run.folder import Run
from evolve.search.assessor import diagnose_text, executor
from evolve.search.state import State, commit, first_state
from simulator.errors import InputError
from simulator.stream import stream

Told = tuple[Messages, dict[str, Any]]


def would_send(run: Run, number: int) -> Told:
    """The question that has program `number` to be changed, as the run's archive, rejections and notes stand now.

    Raises InputError if that is no scored proposal of the run.
    """
    config, entries = run.config, run.entries()
    state = first_state(config)
    for entry in entries:
        commit(state, entry)
    if number not in state.archive.by_id:
        raise InputError(f"{run.path}: {number} is no scored proposal: `evolve archive {run.path}` lists the ids")
    fitted, _ = chosen(config.data)
    executor(1, fitted, config)
    base = state.archive.by_id[number]
    rng = stream(config.seed, 1 + max(entry["id"] for entry in entries), 1)
    others = _others(state, config, number, rng)
    kinds = prompt.kinds(config.llm.programs, rng)
    moe = frozenset(e.id for e in fitted if e.facts["is_moe"])
    diagnosis = diagnose_text(base.text)
    messages = prompt.messages(prompts_of(run), state, base, others, kinds, diagnosis, _notes(run), moe)
    return messages, _about(run)


def _others(state: State, config: Config, number: int, rng: np.random.Generator) -> list[Any]:
    members = [e for e in state.archive.members() if e.id != number]
    if not members:
        return []
    size = entrants(config, 0)[1]
    first, more = families(members, order_of(members, config, 0), (size, size), config.llm.parents, rng)
    return [first, *more][: config.llm.parents - 1]


def _notes(run: Run) -> str:
    """The latest notes in the run's journal."""
    book = calls_of(run.lines())
    found = [name for name in book.answers if name.split("/")[1] == "notes"]
    return notes.kept(book.text(max(found, key=order))) if found else ""


def was_sent(run: Run, number: int) -> Told:
    """The messages that a model's proposal `number` answers. Raises InputError if it is none."""
    book, line = _answer(run, number)
    return book.messages(line["prompt"]), _about(run) | {x: line[x] for x in ("call", "model", "prompt", "sample")}


def was_answered(run: Run, number: int) -> Told:
    """The answer that a model's proposal `number` is from. Raises InputError if it is none."""
    book, line = _answer(run, number)
    shown = ("call", "model", "version", "tokens_in", "tokens_out", "usd", "seconds", "finish")
    return (("assistant", book.text(line["call"])),), _about(run) | {name: line[name] for name in shown}


def _answer(run: Run, number: int) -> tuple[Book, Line]:
    """The run's book, and its line of the answer that proposal `number` is from."""
    lines = run.lines()
    book = calls_of(lines)
    for entry in lines:
        if "verdict" in entry and entry["id"] == number and entry.get("call") in book.answers:
            return book, book.answers[entry["call"]]
    raise InputError(f"{run.path}: {number} is no proposal of a language model: "
                     f"`evolve archive {run.path} --by proposer` says who proposed")  # fmt: skip


def _about(run: Run) -> dict[str, Any]:
    return {"engine": run.about["engine"], "data": run.about["data"], "seeds": run.config.score.arrival_seeds}


def print_messages(messages: Messages) -> None:
    """Every message in full, a line with its role before it where there are several."""
    for role, text in messages:
        if len(messages) > 1:
            print(f"---- {role} ----")
        print(text.rstrip("\n"))
