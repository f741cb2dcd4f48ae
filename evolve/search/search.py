"""How the population moves: generations of proposals, assessed anywhere, committed in order.

The archive depends on the configuration, the data and the seed only (and, where language models propose, on their
answers). Proposal i draws from a stream of its own; the parents of a generation are chosen from the archive as it
stood when the generation began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, Protocol

from archive.champion import finalists
from archive.elite import Elite
from archive.island import Island
from archive.journal import Journal
from evaluator.assess import Rejected, Scored, read
from evolve.propose.parents import entrants, order_of, tournament
from evolve.propose.vocabulary import field_set
from evolve.run.config import OPERATORS, Config
from evolve.search.assessor import assess_text, polish_text, propose_text
from evolve.search.state import Entry, Proposal, State, commit, first_state
from simulator.language.key import key
from simulator.language.measure import constants, features, operations
from simulator.language.parse import parse
from simulator.language.unparse import unparse
from simulator.stream import stream

TRANSFER_WITHIN = 2.0  # times the lowest joint error: who is farther off is not measured on models left out


class Models(Protocol):
    """Language models that propose (see evolve.propose.llm.proposer)."""

    stopped: str  # why no more calls are made, and the run ends; "" while it goes on

    def open(self, generation: int, state: State, begun: bool, passed: bool) -> None:
        """A generation begins; `begun`: the journal has some of its verdicts, `passed`: all that there will be."""

    def claim(
        self, number: int, left: int, ahead: int, island: int, parents: Sequence[Elite], order: Sequence[Any]
    ) -> int | None:
        """How many of the `left` proposals from `number` on a model is asked for, after `ahead` of the generation; 0:
        an operator makes the first; None: its place stays empty."""

    def ask(self) -> bool:
        """Put every question of the generation; whether it goes on."""

    def proposal(self, number: int) -> Proposal | None:
        """What a model proposes; None where its place stays empty."""

    def unanswered(self, number: int) -> bool:
        """Whether no answer came, so that an operator takes the place."""

    def end(self, state: State) -> None:
        """The last generation is over."""


def evolve(
    config: Config,
    seeds: Sequence[tuple[str, str]],
    past: Sequence[Entry],
    journal: Journal,
    pool: Executor,
    watch: Callable[[State], None],
    models: Models | None = None,
) -> State:
    """Run the loop to its end and return the final state.

    `seeds`: (name, text) of the first generation. `past`: the journal's entries so far; the loop goes on from
    there exactly as if it had never stopped. `pool`: of evolve.search.assessor, which proposes and assesses.
    `watch` is called after every commit. `models`: language models that propose too, or alone.
    """
    state = first_state(config)
    known = {entry["id"]: entry for entry in past}
    for generation in _generations(config, seeds, state, known, pool, models):
        _assess_generation(generation, config, state, known, journal, pool, watch)
        best = state.champion()
        state.best.append((best.joint, best.transfer) if best else (float("inf"), None))
        if _finished(config, state):
            break
    if models and not models.stopped:
        models.end(state)
    if not (models and models.stopped):  # a run that ran out of money may go on
        _polish_finalists(config, state, known, state.numbered, journal, pool, watch)
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
    config: Config,
    seeds: Sequence[tuple[str, str]],
    state: State,
    known: Mapping[int, Entry],
    pool: Executor,
    models: Models | None,
) -> Iterator[list[Proposal]]:
    first = state.numbered = len(seeds)
    yield [Proposal(i, None, text, f"seed:{name}", ()) for i, (name, text) in enumerate(seeds)]
    search = config.search
    for number in range(1, search.generations + 1):
        if not state.archive.by_id:
            return
        if models:
            after = first + search.batch * len(state.islands)
            settled = [n for n in range(first, after) if n in known]
            passed = len(settled) == after - first or max(known, default=0) >= after
            models.open(number, state, bool(settled), passed)
        chances = state.bandit.chances() if search.bandit else state.bandit.prior
        weights = {name: chance for name, chance in chances.items() if name in OPERATORS}
        pending: list[Callable[[], Proposal | None]] = []
        for i, island in enumerate(state.islands):
            island.select()
            parents = island.members()
            order = order_of(parents, config, i)
            claimed: int | None = 0
            for left in range(search.batch, 0, -1):
                n = first + len(pending)
                if models and not claimed:
                    claimed = models.claim(n, left, len(pending), i, parents, order)
                if n in known:  # it was made before, and what became of it is in the journal
                    pending.append(partial(Proposal, n, i, "", known[n]["operator"], tuple(known[n]["parents"])))
                elif claimed is None:
                    pending.append(_nothing)
                elif models and claimed:
                    offline = partial(_proposal, n, i, parents, order, config, weights, pool)
                    pending.append(partial(_of_model, models, n, offline))
                else:
                    pending.append(_proposal(n, i, parents, order, config, weights, pool))
                claimed = max((claimed or 0) - 1, 0)
        if models and not models.ask():
            return
        first = state.numbered = first + len(pending)
        yield [proposal for made in pending if (proposal := made())]
        if number % search.migrate_every == 0:
            migrate(state.islands, search.migrants)


def _of_model(models: Models, number: int, offline: Callable[[], Callable[[], Proposal]]) -> Proposal | None:
    return offline()() if models.unanswered(number) else models.proposal(number)


def _nothing() -> None:
    """A place that stays empty."""


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
    rng = stream(config.seed, number)
    first, second = (tournament(parents, order, size, rng) for size in entrants(config, island))
    made = pool.submit(propose_text, first.text, second.text, rng, dict(weights))

    def proposal() -> Proposal:
        text, operator = made.result()
        return Proposal(number, island, text, operator, (first.id, second.id))

    return proposal


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
        program = proposal.refused or read(proposal.text, config.caps, allowed)
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
    if proposal.call:
        entry |= {"call": proposal.call, "idea": proposal.idea, "reviews": list(proposal.reviews)}
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
