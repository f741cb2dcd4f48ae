"""How the population moves: generations of proposals, assessed anywhere, committed in order.

The archive depends on the configuration, the data and the seed only. Proposal i draws from a stream of its own;
the parents of a generation are chosen from the archive as it stood when the generation began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from archive.archive import Archive
from archive.elite import Elite
from archive.journal import Journal
from archive.pareto import ranks
from evaluator.assess import Rejected, Scored, read
from evolve.config import Config
from evolve.pool import assess_text
from evolve.propose import propose
from evolve.run_folder import empty_archive
from evolve.vocabulary import Vocabulary, field_set
from simulator.language.key import key
from simulator.language.measure import constants, features, operations
from simulator.language.parse import parse
from simulator.language.unparse import unparse

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A text on its way: its number, what made it, and from which elites."""

    id: int
    text: str
    operator: str
    parents: tuple[int, ...]


@dataclass
class State:
    """What the loop knows: rebuilt from the journal, changed by `commit` only."""

    archive: Archive
    fitted: int = 0  # candidates that reached fitting
    proposals: int = 0
    best: list[float] = field(default_factory=list)  # lowest joint error after every generation


def evolve(
    config: Config,
    seeds: Sequence[tuple[str, str]],
    words: Vocabulary,
    past: Sequence[Entry],
    journal: Journal,
    pool: Executor,
    watch: Callable[[State], None],
) -> State:
    """Run the loop to its end and return the final state.

    `seeds`: (name, text) of the first generation. `past`: the journal's entries so far; the loop goes on from
    there exactly as if it had never stopped. `watch` is called after every commit.
    """
    state = State(empty_archive(config))
    known = {entry["id"]: entry for entry in past}
    for generation in _generations(config, seeds, words, state):
        _assess_generation(generation, config, state, known, journal, pool, watch)
        state.best.append(min((e.joint for e in state.archive.grid.cells.values()), default=float("inf")))
        if _finished(config, state):
            break
    return state


def _generations(
    config: Config, seeds: Sequence[tuple[str, str]], words: Vocabulary, state: State
) -> Iterator[list[Proposal]]:
    yield [Proposal(i, text, f"seed:{name}", ()) for i, (name, text) in enumerate(seeds)]
    first = len(seeds)
    for _ in range(config.search.generations):
        parents = state.archive.members()
        if not parents:
            return
        fitness = _fitness(parents, config)
        yield [_proposal(i, parents, fitness, config, words) for i in range(first, first + config.search.batch)]
        first += config.search.batch


def _proposal(
    number: int, parents: Sequence[Elite], fitness: Sequence[tuple[float, ...]], config: Config, words: Vocabulary
) -> Proposal:
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([config.seed, number])))
    first, second = (_tournament(parents, fitness, config.search.tournament, rng) for _ in range(2))
    child, operator = propose(
        parse(first.text), parse(second.text), words, rng, config.search.evolve, config.search.operators
    )
    return Proposal(number, unparse(child), operator, (first.id, second.id))


def _fitness(elites: Sequence[Elite], config: Config) -> list[tuple[float, ...]]:
    """What a tournament compares, smaller is fitter."""
    if config.search.selection == "lexicographic":
        return [(e.worst3, e.joint if e.itl is None else e.itl, float(e.complexity)) for e in elites]
    return [tuple(map(float, rank)) for rank in ranks([e.objectives for e in elites])]


def _tournament(
    elites: Sequence[Elite], fitness: Sequence[tuple[float, ...]], size: int, rng: np.random.Generator
) -> Elite:
    entrants = rng.integers(len(elites), size=size)
    return elites[min(entrants, key=lambda i: (fitness[i], elites[i].id))]


def _assess_generation(
    generation: list[Proposal],
    config: Config,
    state: State,
    known: dict[int, Entry],
    journal: Journal,
    pool: Executor,
    watch: Callable[[State], None],
) -> None:
    """Admit, assess and commit one generation, in the order of its proposals."""
    allowed = field_set(config.search.fields)
    taken, room = set(state.archive.keys), config.budget - state.fitted
    waiting: list[tuple[Proposal, str, Any]] = []
    for proposal in generation:
        if proposal.id in known:
            entry = known[proposal.id]
            room -= entry.get("key") is not None
            taken.add(entry.get("key") or "")
            waiting.append((proposal, "", entry))
            continue
        if room <= 0:
            break
        program = read(proposal.text, config.caps, allowed)
        if isinstance(program, Rejected):
            waiting.append((proposal, "", program))
            continue
        form = key(program)
        if form in taken:
            waiting.append((proposal, "", Rejected("duplicate", "this form was proposed before")))
            continue
        taken.add(form)
        room -= 1
        waiting.append((proposal, form, pool.submit(assess_text, unparse(program))))
    for proposal, form, outcome in waiting:
        if isinstance(outcome, dict):
            commit(state, outcome)
        else:
            verdict = outcome if isinstance(outcome, Rejected) else outcome.result()
            entry = _entry(proposal, form, verdict)
            journal.append([entry])
            commit(state, entry)
        watch(state)


def _entry(proposal: Proposal, form: str, verdict: Scored | Rejected) -> Entry:
    """The journal's line: everything the archive and the next proposals need, nothing of when or where."""
    entry: Entry = {"id": proposal.id, "operator": proposal.operator, "parents": list(proposal.parents)}
    if isinstance(verdict, Rejected):
        entry |= {"verdict": "rejected", "stage": verdict.stage, "why": verdict.why, "text": proposal.text}
        return entry | ({"key": form} if form else {})
    program, score = parse(verdict.text), verdict.score
    elite = Elite(
        id=proposal.id, key=form, text=verdict.text, operations=operations(program), constants=constants(program),
        features=len(features(program)), worst3=score.worst3, joint=score.joint, e2e=score.e2e, ttft=score.ttft,
        itl=score.itl, rows=tuple((r.experiment, r.e2e, r.ttft, r.itl) for r in score.rows),
        operator=proposal.operator, parents=proposal.parents,
    )  # fmt: skip
    return entry | {"verdict": "scored", "key": form, "elite": elite.to_json()}


def commit(state: State, entry: Entry) -> None:
    """Take one journal entry into the state."""
    state.proposals += 1
    if entry.get("key"):
        state.fitted += 1
        state.archive.keys.add(entry["key"])
    if entry["verdict"] == "scored":
        state.archive.add(Elite.from_json(entry["elite"]))


def _finished(config: Config, state: State) -> bool:
    if state.fitted >= config.budget:
        return True
    patience = config.search.patience
    if len(state.best) <= patience:
        return False
    before, now = state.best[-1 - patience], state.best[-1]
    return not now < before * (1.0 - config.search.patience_gain)
