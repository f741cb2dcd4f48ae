"""How the population moves: generations of proposals, assessed anywhere, committed in order.

The archive depends on the configuration, the data and the seed only. Proposal i draws from a stream of its own;
the parents of a generation are chosen from the archive as it stood when the generation began.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from archive.archive import Archive, champion, finalists
from archive.elite import Elite
from archive.grid import Added
from archive.island import Island
from archive.journal import Journal
from archive.pareto import fitness
from evaluator.assess import Rejected, Scored, read
from evolve.bandit import Bandit
from evolve.config import Config
from evolve.pool import assess_text, polish_text, propose_text
from evolve.propose import operator_weights
from evolve.run_folder import empty_archive
from evolve.vocabulary import field_set
from simulator.language.key import key
from simulator.language.measure import constants, features, operations
from simulator.language.parse import parse
from simulator.language.unparse import unparse

Entry = dict[str, Any]
SURVIVORS = 48  # of an island, beside the cells of its grid
GREED = 8  # times as many compete on greedy islands: most of their children are of the very best
EXCESS = 0.1  # percent of merit for a percent of E2E that the worst experiment is beyond the rule's limit
TRANSFER_WITHIN = 2.0  # times the lowest joint error: who is farther off is not measured on models left out


@dataclass(frozen=True, slots=True)
class Proposal:
    """A text on its way: its number, the island it is for (None: all), what made it, and from which elites."""

    id: int
    island: int | None
    text: str
    operator: str
    parents: tuple[int, ...]


@dataclass
class State:
    """What the loop knows: rebuilt from the journal, changed by `commit` and migration only.

    fitted: candidates that reached fitting. stages: verdicts by stage of the cascade. seconds: CPU time by stage, of
    what was assessed since the start or the resumption; no choice depends on it. best: the champion's joint and
    transfer error (None: not measured) after every generation.
    """

    config: Config
    archive: Archive
    islands: list[Island]
    bandit: Bandit
    fitted: int = 0
    proposals: int = 0
    stages: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    best: list[tuple[float, float | None]] = field(default_factory=list)

    def champion(self) -> Elite | None:
        """The best so far, by the configuration's rule."""
        return champion(self.archive.members(), self.config.score.rule)


def first_state(config: Config) -> State:
    """Nothing proposed yet."""
    search = config.search
    islands = [Island(empty_archive(config).grid, SURVIVORS, search.grid) for _ in range(search.islands)]
    return State(config, empty_archive(config), islands, Bandit(operator_weights(search.operators)))


def evolve(
    config: Config,
    seeds: Sequence[tuple[str, str]],
    past: Sequence[Entry],
    journal: Journal,
    pool: Executor,
    watch: Callable[[State], None],
) -> State:
    """Run the loop to its end and return the final state.

    `seeds`: (name, text) of the first generation. `past`: the journal's entries so far; the loop goes on from
    there exactly as if it had never stopped. `pool`: of evolve.pool, which proposes and assesses. `watch` is called
    after every commit.
    """
    state = first_state(config)
    known = {entry["id"]: entry for entry in past}
    for generation in _generations(config, seeds, state, known, pool):
        _assess_generation(generation, config, state, known, journal, pool, watch)
        best = state.champion()
        state.best.append((best.joint, best.transfer) if best else (float("inf"), None))
        if _finished(config, state):
            break
    _polish_finalists(config, state, known, generation[-1].id + 1, journal, pool, watch)
    return state


def _polish_finalists(
    config: Config,
    state: State,
    known: dict[int, Entry],
    first: int,
    journal: Journal,
    pool: Executor,
    watch: Callable[[State], None],
) -> None:
    """The best forms once more, numbered from `first`, with constants that no proposal could give them; no part of the
    budget."""
    chosen = finalists(state.archive.members(), config.score.rule, config.search.finalists)
    numbered = list(enumerate(chosen, first))
    waiting = [(n, e, known[n] if n in known else pool.submit(polish_text, e.text)) for n, e in numbered]
    for number, elite, outcome in waiting:
        proposal = Proposal(number, None, elite.text, "polish", (elite.id,))
        _settle(proposal, elite.key, outcome, state, journal, watch, counted=False)


def _generations(
    config: Config, seeds: Sequence[tuple[str, str]], state: State, known: Mapping[int, Entry], pool: Executor
) -> Iterator[list[Proposal]]:
    yield [Proposal(i, None, text, f"seed:{name}", ()) for i, (name, text) in enumerate(seeds)]
    search = config.search
    first = len(seeds)
    for number in range(1, search.generations + 1):
        if not state.archive.by_id:
            return
        weights = state.bandit.chances() if search.bandit else state.bandit.prior
        pending: list[Callable[[], Proposal]] = []
        for i, island in enumerate(state.islands):
            island.select()
            parents = island.members()
            order = _fitness(parents, config, i)
            for _ in range(search.batch):
                n = first + len(pending)
                if n in known:  # it was made before, and what became of it is in the journal
                    pending.append(partial(Proposal, n, i, "", known[n]["operator"], tuple(known[n]["parents"])))
                else:
                    pending.append(_proposal(n, i, parents, order, config, weights, pool))
        first += len(pending)
        yield [made() for made in pending]
        if number % search.migrate_every == 0:
            migrate(state.islands, search.migrants)


def migrate(islands: Sequence[Island], count: int) -> None:
    """Copies of each island's fittest go to the next one round the ring."""
    if len(islands) < 2:
        return
    leaving = [island.fittest(count) for island in islands]
    for i, elites in enumerate(leaving):
        for elite in elites:
            islands[(i + 1) % len(islands)].add(elite)


def _proposal(
    number: int,
    island: int,
    parents: Sequence[Elite],
    order: Sequence[tuple[float, ...]],
    config: Config,
    weights: Mapping[str, float],
    pool: Executor,
) -> Callable[[], Proposal]:
    """A proposal under way; called, it waits for the text."""
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([config.seed, number])))
    size = config.search.tournament * (GREED if _greedy(config, island) else 1)
    first, second = (_tournament(parents, order, entrants, rng) for entrants in (size, config.search.tournament))
    made = pool.submit(propose_text, first.text, second.text, rng, dict(weights))

    def proposal() -> Proposal:
        text, operator = made.result()
        return Proposal(number, island, text, operator, (first.id, second.id))

    return proposal


def _fitness(elites: Sequence[Elite], config: Config, island: int) -> list[tuple[float, ...]]:
    """What a tournament compares, smaller is fitter: NSGA-II's ranks, or on greedy islands the merit by which a
    champion is chosen, worsened by what its worst experiment is beyond the rule."""
    if config.search.selection == "lexicographic":
        return [(e.worst3, e.joint if e.itl is None else e.itl, float(e.complexity)) for e in elites]
    if _greedy(config, island):
        rule = config.score.rule
        beyond = [EXCESS * max(e.worst_e2e - rule.worst_pct, 0.0) for e in elites]
        return [
            (float(not e.sound), rule.merit(e) + more, float(e.complexity))
            for e, more in zip(elites, beyond, strict=True)
        ]
    return fitness(elites)


def _greedy(config: Config, island: int) -> bool:
    """Whether an island follows the merit: three of four do, and one that is alone."""
    return config.search.islands == 1 or island % 4 != 0


def _tournament(
    elites: Sequence[Elite], order: Sequence[tuple[float, ...]], size: int, rng: np.random.Generator
) -> Elite:
    entrants = rng.integers(len(elites), size=size)
    return elites[min(entrants, key=lambda i: (order[i], elites[i].id))]


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
    limit = TRANSFER_WITHIN * min((e.joint for e in state.archive.grid.cells.values()), default=float("inf"))
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
        waiting.append((proposal, form, pool.submit(assess_text, unparse(program), limit)))
    for proposal, form, outcome in waiting:
        _settle(proposal, form, outcome, state, journal, watch)


def _settle(
    proposal: Proposal,
    form: str,
    outcome: Any,
    state: State,
    journal: Journal,
    watch: Callable[[State], None],
    counted: bool = True,
) -> None:
    """Journal and commit what became of a proposal: the entry of a run that goes on, a rejection, or a pending verdict.
    `counted`: whether its form counts, as one that was fitted before does not."""
    if isinstance(outcome, dict):
        entry = outcome
    else:
        verdict, seconds = (outcome, {}) if isinstance(outcome, Rejected) else outcome.result()
        state.seconds.update(seconds)
        entry = _entry(proposal, form, verdict)
        if not counted:
            entry.pop("key", None)
        journal.append([entry])
    commit(state, entry)
    watch(state)


def _entry(proposal: Proposal, form: str, verdict: Scored | Rejected) -> Entry:
    """The journal's line: everything the archive and the next proposals need, nothing of when or where."""
    entry: Entry = {"id": proposal.id, "island": proposal.island, "operator": proposal.operator,
                    "parents": list(proposal.parents)}  # fmt: skip
    if isinstance(verdict, Rejected):
        entry |= {"verdict": "rejected", "stage": verdict.stage, "why": verdict.why, "text": proposal.text}
        return entry | ({"key": form} if form else {})
    program, score = parse(verdict.text), verdict.score
    elite = Elite(
        id=proposal.id, key=form, text=verdict.text, operations=operations(program), constants=constants(program),
        features=len(features(program)), worst3=score.worst3, joint=score.joint, e2e=score.e2e, ttft=score.ttft,
        itl=score.itl, rows=tuple((r.experiment, r.e2e, r.ttft, r.itl) for r in score.rows),
        operator=proposal.operator, parents=proposal.parents, transfer=verdict.transfer, sound=verdict.sound,
    )  # fmt: skip
    return entry | {"verdict": "scored", "key": form, "elite": elite.rounded().to_json()}


def commit(state: State, entry: Entry) -> None:
    """Take one journal entry into the state."""
    state.proposals += 1
    scored = entry["verdict"] == "scored"
    state.stages["scored" if scored else entry["stage"]] += 1
    if entry.get("key"):
        state.fitted += 1
        state.archive.keys.add(entry["key"])
    gained = False
    if scored:
        elite = Elite.from_json(entry["elite"])
        state.archive.add(elite)
        homes = state.islands if entry["island"] is None else [state.islands[entry["island"]]]
        gained = [island.add(elite) for island in homes] != [Added.NOT] * len(homes)
    if entry.get("key") and entry["island"] is not None:
        for name in entry["operator"].split("+"):
            state.bandit.learn(name, gained)


def _finished(config: Config, state: State) -> bool:
    if state.fitted >= config.budget:
        return True
    patience = config.search.patience
    if len(state.best) <= patience:
        return False
    before, now = (merit(state.best[i]) for i in (-1 - patience, -1))
    return not now < before * (1.0 - config.search.patience_gain)


def merit(best: tuple[float, float | None]) -> float:
    """Of a champion's joint and transfer error: their mean, the joint error where the other was not measured."""
    joint, transfer = best
    return joint if transfer is None else (joint + transfer) / 2.0
