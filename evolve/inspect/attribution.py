"""What each proposer, an operator or a language model, contributed to a run, and at what cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from archive.archive import Archive
from archive.champion import champion
from archive.population import proposers
from archive.proposal import MODEL, Outcome, ancestors
from evolve.output.columns import figures, integers, words
from evolve.output.printing import show
from evolve.output.table import Table
from evolve.output.terms import legend
from evolve.run.config import Config
from evolve.run.folder import RunFolder, empty_archive
from evolve.search.llm import ledger
from evolve.search.llm.calls import proposes, role
from simulator.common.json import JsonObject
from simulator.common.records import to_json

WORTH = ("share", "gain_pct_per_fitted", "gain_pct_per_usd")
COUNTS = ("proposals", "fitted", "scored", "members", "front", "champions", "ancestors")


@dataclass(frozen=True, slots=True)
class ProposerCost:
    """What the requests to a language model cost."""

    tokens: int  # in and out, without answers from a cache
    usd: float
    possibly_usd: float = 0.0  # the most that requests may have cost which have no answer


@dataclass(frozen=True, slots=True)
class Contribution:
    """What a proposer contributed to a run. A proposal of two operators counts for both."""

    proposals: int = 0
    fitted: int = 0  # reached fitting
    scored: int = 0
    members: int = 0  # in the archive now
    front: int = 0  # on its Pareto front now
    champions: int = 0  # were the champion when they were scored
    ancestors: int = 0  # of the champion, itself included
    gain_pct: float = 0.0  # sum over its candidates (see archive.champion.Rule)
    share: float = 0.0  # of the fitted candidates
    cost: ProposerCost | None = None  # None for an operator

    @property
    def gain_pct_per_fitted(self) -> float | None:
        """The mean gain of its fitted candidates; None if there is none."""
        return self.gain_pct / self.fitted if self.fitted else None

    @property
    def gain_pct_per_usd(self) -> float | None:
        """The gain for each USD; None for an operator, and for a model that costs nothing."""
        return self.gain_pct / self.cost.usd if self.cost and self.cost.usd else None

    def to_json(self) -> JsonObject:
        cost = asdict(self.cost) if self.cost else {"tokens": None, "usd": None, "possibly_usd": None}
        return {name: getattr(self, name) for name in (*COUNTS, *WORTH)} | cost


@dataclass(frozen=True, slots=True)
class Attribution:
    """The contributions of all proposers to a run, those with the most fitted candidates first."""

    run: RunFolder
    champion: int | None  # its proposal number
    proposers: dict[str, Contribution]

    def to_json(self) -> JsonObject:
        about = {"engine": self.run.about.engine, "data": self.run.about.data, "run": str(self.run.path)}
        seeds = {"seeds": self.run.config.score.arrival_seeds}
        return {**about, **seeds, "champion": self.champion, "proposers": to_json(self.proposers)}


def attribution(run: RunFolder) -> Attribution:
    """Who proposed what in a run, rebuilt from its journal."""
    outcomes = run.outcomes()
    archive, leaders = _leaders(run.config, outcomes)
    members, front = {e.id for e in archive.members()}, {e.id for e in archive.front}
    best = champion(archive.members(), run.config.score.rule)
    lineage = {best.id, *ancestors([best.id], {e.id: e.parents for e in archive.by_id.values()})} if best else set()
    counts: dict[str, dict[str, int]] = {}
    gains: defaultdict[str, float] = defaultdict(float)
    for outcome in outcomes:
        id = outcome.proposal.id
        among = (id in ids for ids in (members, front, leaders, lineage))
        reached = True, bool(outcome.key), bool(outcome.elite), *among
        for name in set(proposers(outcome.proposal.operator)):  # one may have acted twice
            of_name = counts.setdefault(name, dict.fromkeys(COUNTS, 0))
            for count, yes in zip(COUNTS, reached, strict=True):
                of_name[count] += yes
            gains[name] += run.config.score.rule.gain_pct(outcome.elite, archive.by_id)
    costs = costs_of(ledger.rows(run.calls()))
    names = dict.fromkeys([*counts, *costs])
    fitted = sum(bool(outcome.key) for outcome in outcomes) or 1
    contributions = {}
    for name in names:
        of_name = counts.get(name, dict.fromkeys(COUNTS, 0))
        contributions[name] = Contribution(
            **of_name, cost=costs.get(name), share=of_name["fitted"] / fitted, gain_pct=gains[name]
        )
    by_fitted = sorted(contributions.items(), key=lambda item: (-item[1].fitted, item[0]))
    return Attribution(run, best.id if best else None, dict(by_fitted))


def _leaders(config: Config, outcomes: Sequence[Outcome]) -> tuple[Archive, set[int]]:
    """The archive of these outcomes, and the ids of the elites that were its champion when they were scored."""
    archive, leaders = empty_archive(config), set[int]()
    for outcome in outcomes:
        if (
            outcome.elite
            and archive.add(outcome.elite)  # only a member can be the champion
            and champion(archive.members(), config.score.rule) is outcome.elite
        ):
            leaders.add(outcome.elite.id)
    return archive, leaders


def costs_of(requests: Sequence[ledger.LedgerRow]) -> dict[str, ProposerCost]:
    """The cost of each model by its proposer's name; of judges and notes apart, as ROLE:MODEL."""
    costs: dict[str, ProposerCost] = {}
    for request in requests:
        purpose = request.call.split("/")[1]
        name = MODEL + request.model if proposes(purpose) else f"{role(purpose)}:{request.model}"
        before = costs.get(name, ProposerCost(0, 0.0))
        paid = 0 if request.outcome == "cached" else (request.tokens_in or 0) + (request.tokens_out or 0)
        possibly = before.possibly_usd + request.possibly_usd
        costs[name] = ProposerCost(before.tokens + paid, before.usd + request.usd, possibly)
    return costs


LEGEND = """\
members: in the archive now; champions: were champion once scored; ancestors: of the champion; a proposal of several
operators, as add+drop, counts for each of them; polish: of finalists, which are not fitted again and do not count
against the budget; share: of all candidates; gain: percent by which its candidates lower the selection score of their
first parent, 5 at most, in the mean (a fit) or for each dollar (a USD); USD possibly: the most that requests without an
answer may have cost on top"""


def print_attribution(result: Attribution, explain: bool = False) -> None:
    """Print a row per proposer; the meanings of terms, too, if `explain`."""
    costs = [proposer.cost for proposer in result.proposers.values() if proposer.cost]
    columns = [words("proposer"), figures("d", *COUNTS)]
    if costs:
        columns += [figures(".0%", "share"), integers("tokens"), figures(".4f", "USD")]
        columns.append(figures(".2f", "gain a fit", "gain a USD"))
    if possibly := any(cost.possibly_usd for cost in costs):
        columns.append(figures(".4f", "USD possibly"))
    rows = []
    for name, proposer in result.proposers.items():
        cells: list[object] = [name, *(getattr(proposer, count) for count in COUNTS)]
        if costs:
            cost = proposer.cost
            cells += [proposer.share, cost and cost.tokens, cost and cost.usd]
            cells += [proposer.gain_pct_per_fitted, proposer.gain_pct_per_usd]
            cells += [cost and cost.possibly_usd] if possibly else []
        rows.append(cells)
    show(Table.of(f"Who found what, {result.run.path}; champion: {result.champion}", columns, rows))
    if explain:
        legend("mean error", "worst-3 E2E", "group-out", "Pareto front", also=LEGEND)
