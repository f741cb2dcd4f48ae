"""A search: generations of proposals, assessed in any order, then journalled and added in order.

The archive depends only on the configuration, the data, the seed and, if language models propose, on their answers.
All parents of a generation are chosen from the population at its beginning.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from archive.archive import Archive
from archive.champion import finalists, selection_score
from archive.elite import SEED, Elite
from archive.population import Offered, Population
from archive.proposal import JUDGES, POLISH, TRIM, Form, Proposal
from evaluator.assess import NO_LIMITS, AssessLimits
from evolve.run.config import Config, SearchSettings
from evolve.search.assessor import Admitted, Assessor, Pending
from evolve.search.offline import simpler
from evolve.search.proposer import ENDLESS, Proposer
from simulator.common.json import JsonObject
from simulator.common.text import counted
from simulator.language.complete import complete
from simulator.language.key import key
from simulator.language.unparse import unparse

# The leave-group-out error is not computed if the mean error exceeds this multiple of the lowest.
MEAN_ERROR_WITHIN = 2.0
TRIMS = 0.1  # share of the budget


class Appended(Protocol):
    """A keeper of a search's lines, such as a journal."""

    def append(self, entries: Sequence[JsonObject]) -> None:
        """Keep these lines after those before."""


class Search:
    """Asks a proposer, has its proposals assessed, journals the outcomes, and tells the population and the proposer.

    `watch` is called after every outcome, and `spent` with the number of every proposal that was assessed and what that
    took in CPU seconds. Outcomes are in the journal alone, so that memory does not grow with them; `refusals` has the
    reason of the first refusal of each stage, in their order, and `polished` how many finalists were scored again.
    `seconds` is the CPU time by stage of what was assessed since the process started; no choice depends on it. `ended`
    says why the search ended, if the proposer did not end it; "" until then.
    """

    def __init__(
        self,
        config: Config,
        population: Population,
        proposer: Proposer,
        assessor: Assessor,
        journal: Appended,
        watch: Callable[[Population], None] = lambda population: None,
        spent: Callable[[int, float], None] = lambda proposal, cpu_s: None,
    ) -> None:
        self.config, self.population, self.proposer = config, population, proposer
        self.assessor, self.journal, self.watch, self.spent = assessor, journal, watch, spent
        self.seconds: Counter[str] = Counter()
        self.refusals: dict[str, str] = {}
        self.polished = 0
        self.ended = ""

    def run(self, seeds: Sequence[tuple[str, str]]) -> None:
        """Search from the seed programs, (name, text), until the budget is used up or nothing improves."""
        population, search = self.population, self.config.search
        population.numbered = len(seeds)
        self._settle([Proposal(i, None, text, SEED + name, ()) for i, (name, text) in enumerate(seeds)])
        for generation in range(1, search.generations + 1):
            if self._finished():
                return
            if generation > 1 and (generation - 1) % search.migrate_every == 0:
                population.migrate(search.migrants)
            if not self._settle(self.proposer.ask(population, generation)):
                return
        self.ended = f"{counted(search.generations, 'generation')} are over (search.generations)"

    def trim(self) -> None:
        """Drop what does not earn its place on runs left out: refit the champion without each part in turn, until none
        of these forms is champion. This does not count against the budget, and takes at most TRIMS of it more."""
        best, room = None, int(TRIMS * self.config.budget)
        while (now := self.population.champion()) is not best and now is not None:
            best, trimming = now, list[Pending]()
            archive = self.population.archive
            admission = Admitted(archive.keys, ENDLESS, limits_of(archive, self.config.search))
            forms = simpler(complete(now.program), self.config.search.fields == "all")
            room -= len(forms)
            if room < 0:
                return
            for form in forms:
                number = self.population.numbered + len(trimming)
                pending = self.assessor.begin(Proposal(number, None, unparse(form), TRIM, (now.id,)), admission)
                assert pending, "there is room"
                trimming.append(pending)
            self.population.numbered += len(trimming)
            self._take_in(trimming)

    def polish(self) -> None:
        """Polish the constants of the finalists on the replays. This does not count against the budget."""
        members = self.population.archive.members()
        polishing: list[Pending] = []
        for elite in finalists(members, self.config.score.rule, self.config.search.finalists):
            number = self.population.numbered + len(polishing)
            proposal = Proposal(number, None, elite.text, POLISH, (elite.id,))
            polishing.append(self.assessor.begin_polish(proposal, elite))
        self._take_in(polishing)

    def _settle(self, proposals: Iterable[Proposal]) -> bool:
        """Assess one generation and add its outcomes. False if there were no proposals.

        Each assessment starts as soon as its proposal is made, while workers still make the later ones.
        """
        admission = Admitted(
            self.population.archive.keys,  # not a copy: what is taken is there after the generation anyway
            self.config.budget - self.population.fitted,
            # a research loop measures every idea
            (lambda form: NO_LIMITS)
            if self.config.llm.ideas
            else limits_of(self.population.archive, self.config.search),
        )
        assessing: list[Pending] = []
        for proposal in proposals:
            pending = self.assessor.begin(proposal, admission)
            if pending is None:
                break
            assessing.append(pending)
        if not assessing:
            return False
        self.proposer.tell(self._take_in(assessing))
        self.population.end_generation()
        return True

    def _take_in(self, assessing: Sequence[Pending]) -> list[Offered]:
        """Journal the outcomes and tell the population, in the order of the proposals."""
        population, offered = self.population, list[Offered]()
        for pending in assessing:
            settled = pending()
            outcome = settled.outcome
            self.seconds.update(settled.seconds)
            if not settled.remembered:
                self.journal.append([outcome.to_json()])
            if settled.seconds:
                self.spent(outcome.proposal.id, sum(settled.seconds.values()))
            kept = population.tell(outcome)
            if outcome.rejection and outcome.rejection.stage == JUDGES:
                # The form was not fitted, but proposing it again would only pay for the same review.
                population.archive.keys.add(key(complete(outcome.proposal.program)))
            if outcome.rejection:
                self.refusals.setdefault(outcome.rejection.stage, outcome.rejection.why)
            self.polished += outcome.elite is not None and outcome.proposal.operator == POLISH
            gain_pct = population.rule.gain_pct(outcome.elite, population.archive.by_id)
            offered.append(Offered(outcome, kept, gain_pct))
            self.watch(population)
        return offered

    def _finished(self) -> bool:
        """True if the budget is used up, or the champion has hardly improved for `patience` generations."""
        if self.population.fitted >= self.config.budget:
            self.ended = f"the budget of {counted(self.config.budget, 'candidate')} is used up"
            return True
        best, patience = self.population.best, self.config.search.patience
        if len(best) <= patience:
            return False
        before, now = selection_score(*best[-1 - patience]), selection_score(*best[-1])
        gain = self.config.search.patience_gain
        if now < before * (1.0 - gain):
            return False
        self.ended = (
            f"the selection score of the champion is not {100 * gain:g} % lower than {counted(patience, 'generation')} "
            "before (search.patience)"
        )
        return True


def limits_of(archive: Archive, settings: SearchSettings) -> Callable[[Form], AssessLimits]:
    """The limits of a candidate's assessment, by what the archive holds at the beginning of its generation."""
    grid = archive.grid
    mean_error = MEAN_ERROR_WITHIN * min((e.mean_error for e in _rivals(grid.cells.values())), default=math.inf)

    def limits(form: Form) -> AssessLimits:
        holder = grid.cells.get(grid.cell_of(form.operations, form.features))
        prunes = holder and holder.consistent and settings.prune_above
        most = settings.prune_above * holder.mean_error if holder and prunes else math.inf
        return AssessLimits(most, mean_error)

    return limits


def _rivals(elites: Iterable[Elite]) -> Sequence[Elite]:
    """The physically consistent ones, all if none is. The others never beat these, so their errors are no measure."""
    every = [*elites]
    return [e for e in every if e.consistent] or every
