"""A search: generations of proposals, assessed anywhere, taken in and journalled in order.

The archive depends on the configuration, the data, the seed and (where language models propose) their answers only. The
parents of a generation are chosen from the population at its beginning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from archive.champion import finalists, merit
from archive.journal import Journal
from archive.population import Population
from archive.proposal import JUDGES, POLISH, SEED, Outcome, Proposal
from evolve.propose.proposer import Proposer
from evolve.run.config import Config
from evolve.search.assessor import Admission, Assessor, Pending
from simulator.language.complete import complete
from simulator.language.key import key
from simulator.language.parse import parse

# Skip the expensive leave-one-model-out evaluation when the joint error exceeds this multiple of the best.
TRANSFER_WITHIN = 2.0


class Search:
    """Ask a proposer, have its proposals assessed, journal the outcomes, tell the population and the proposer.

    `watch` is called after every outcome. `seconds` is the CPU time by stage of what was assessed in this process's
    lifetime; no choice depends on it. `outcomes` has all of them in order, remembered ones included.
    """

    def __init__(
        self,
        config: Config,
        population: Population,
        proposer: Proposer,
        assessor: Assessor,
        journal: Journal,
        watch: Callable[[Population], None] = lambda population: None,
    ) -> None:
        self.config, self.population, self.proposer = config, population, proposer
        self.assessor, self.journal, self.watch = assessor, journal, watch
        self.seconds: Counter[str] = Counter()
        self.outcomes: list[Outcome] = []

    def run(self, seeds: Sequence[tuple[str, str]]) -> None:
        """Search from the seeds, (name, text), until the budget is used up or nothing improves any more."""
        population, search = self.population, self.config.search
        population.numbered = len(seeds)
        self._settle([Proposal(i, None, text, SEED + name, ()) for i, (name, text) in enumerate(seeds)])
        for generation in range(1, search.generations + 1):
            if self._finished() or not population.archive.by_id:
                return
            if generation > 1 and (generation - 1) % search.migrate_every == 0:
                population.migrate(search.migrants)
            proposals = self.proposer.ask(population, generation)
            if not proposals:
                return
            self._settle(proposals)

    def polish(self) -> None:
        """Polish the constants of the finalists on the replays; this is not part of the budget."""
        members = self.population.archive.members()
        begun: list[Pending] = []
        for elite in finalists(members, self.config.score.rule, self.config.search.finalists):
            number = self.population.numbered + len(begun)
            proposal = Proposal(number, None, elite.text, POLISH, (elite.id,))
            begun.append(self.assessor.begin_polish(proposal, elite))
        self._take_in(begun)

    def _settle(self, proposals: Sequence[Proposal]) -> None:
        """Assess one generation and take it in."""
        archive = self.population.archive
        best = min((e.joint for e in archive.grid.cells.values()), default=float("inf"))
        admission = Admission(set(archive.keys), self.config.budget - self.population.fitted, TRANSFER_WITHIN * best)
        begun: list[Pending] = []
        for proposal in proposals:
            pending = self.assessor.begin(proposal, admission)
            if pending is None:
                break
            begun.append(pending)
        self.proposer.tell(self._take_in(begun))
        self.population.end_generation()

    def _take_in(self, begun: Sequence[Pending]) -> list[tuple[Outcome, bool]]:
        """Journal the outcomes and tell the population, in the order of the proposals."""
        outcomes = []
        for pending in begun:
            settled = pending()
            outcome = settled.outcome
            self.seconds.update(settled.seconds)
            if not settled.remembered:
                self.journal.append([outcome.to_json()])
            gained = self.population.tell(outcome)
            if outcome.rejection and outcome.rejection.stage == JUDGES:
                # its form need not be proposed, and judged, again
                self.population.archive.keys.add(key(complete(parse(outcome.proposal.text))))
            self.outcomes.append(outcome)
            outcomes.append((outcome, gained))
            self.watch(self.population)
        return outcomes

    def _finished(self) -> bool:
        """Whether the budget is used up, or the champion has hardly improved for `patience` generations."""
        if self.population.fitted >= self.config.budget:
            return True
        best, patience = self.population.best, self.config.search.patience
        if len(best) <= patience:
            return False
        before, now = merit(best[-1 - patience]), merit(best[-1])
        return not now < before * (1.0 - self.config.search.patience_gain)
