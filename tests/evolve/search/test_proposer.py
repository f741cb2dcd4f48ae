"""The bandit by hand, and what the operators learn from the outcomes they are told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from elites import elite

from archive.champion import Rule
from archive.population import Offered
from archive.proposal import Outcome, Proposal, Rejected
from evolve.run.config import OPERATORS, Config
from evolve.run.folder import first_population
from evolve.search.proposer import DOUBT, FLOOR, MEMORY, Bandit, Operators, arms, places


def test_a_bandit_by_hand() -> None:
    bandit = Bandit({"add": 0.6, "drop": 0.4, "never": 0.0})
    chances = {name: FLOOR + (1 - 2 * FLOOR) * prior for name, prior in (("add", 0.6), ("drop", 0.4))}
    assert bandit.chances() == pytest.approx(chances)
    bandit.learn("add", True)
    bandit.learn("drop", False)
    bandit.learn("drop", False)
    rate = (1 + 1) / (1 + 1 + MEMORY + 2)
    worth = {"add": 0.6 * (1 + DOUBT * rate) / (1 + DOUBT), "drop": 0.4 * (DOUBT * rate) / (1 + MEMORY + DOUBT)}
    share = worth["add"] / sum(worth.values())
    assert bandit.chances()["add"] == pytest.approx(FLOOR + (1 - 2 * FLOOR) * share)

    bandit = Bandit({"add": 0.5, "drop": 0.5})
    for _ in range(5000):
        bandit.learn("drop", False)
        bandit.learn("add", True)
    assert FLOOR < bandit.chances()["drop"] < 0.15 and sum(bandit.chances().values()) == pytest.approx(1.0)


class Nowhere:
    """Workers that are never needed."""

    def propose(self, *args: object) -> object:
        raise AssertionError


def operators(**search: object) -> Operators:
    config = Config()
    return Operators(replace(config, search=replace(config.search, **search)), Nowhere())  # type: ignore[arg-type]


def outcome(operator: str, stage: str = "", island: int | None = 0) -> Outcome:
    verdict = Rejected(stage, "no") if stage else elite(1)
    return Outcome(Proposal(1, island, "text", operator, ()), verdict, "" if stage else "k1")


def test_the_seeds_teach_the_bandit_nothing_and_a_child_counts_for_its_operators() -> None:
    learning = operators()
    learning.tell([Offered(outcome("seed:floor", island=None), True, 0.0)])
    assert not learning.bandit.trials
    learning.tell([Offered(outcome("add"), True, 0.5)])
    assert learning.bandit.trials == {"add": 1.0} and learning.bandit.gains == {"add": 1.0}
    learning.tell([Offered(outcome("add+drop"), False, 0.5)])
    assert learning.bandit.trials == {"add": MEMORY + 1.0, "drop": 1.0}
    assert learning.bandit.gains == {"add": MEMORY, "drop": 0.0}
    learning = operators()
    learning.tell([Offered(outcome("add", "units"), False, 0.0)])
    assert not learning.bandit.trials
    learning.tell([Offered(outcome("llm:openai/a", "answer"), False, 0.0)])  # what a model fails to deliver counts
    assert learning.bandit.trials == {"llm:openai/a": 1.0} and learning.bandit.gains == {"llm:openai/a": 0.0}


def test_all_arms_of_auto_learn_the_fall_of_the_selection_score() -> None:
    learning = operators(proposer="auto")
    learning.tell([Offered(outcome("add"), True, 0.0), Offered(outcome("llm:openai/a"), False, 0.5)])
    assert learning.bandit.gains == {"add": 0.0, "llm:openai/a": 0.5}
    assert learning.bandit.trials == {"add": 1.0, "llm:openai/a": 1.0}


@pytest.mark.parametrize(
    ("group_out", "consistent", "gain_pct"),
    # the parent's is 4: 3.9 is 2.5 % lower, 3 is 25 %, of which 5 count; what is not measured or not lower is no gain
    [(3.9, True, 2.5), (3.0, True, 5.0), (4.1, True, 0.0), (None, True, 0.0), (3.9, False, 0.0)],
)
def test_the_gain_of_a_proposal_by_hand(group_out: float | None, consistent: bool, gain_pct: float) -> None:
    parents = {0: elite(0, group_out=4.0), 1: elite(1, group_out=1.0)}
    child = elite(2, group_out=group_out, consistent=consistent)
    assert Rule().gain_pct(child, parents) == pytest.approx(gain_pct)
    assert Rule().gain_pct(None, parents) == Rule().gain_pct(child, {}) == 0.0
    assert Rule().gain_pct(child, {0: elite(0, group_out=None)}) == 0.0


def test_without_the_bandit_the_chances_stay_as_configured() -> None:
    fixed, learning = operators(bandit=False), operators()
    for proposer in (fixed, learning):
        proposer.tell([Offered(outcome("add"), False, 0.5)] * 50)
    assert fixed.weights() == fixed.bandit.prior == arms(Config())
    assert learning.weights()["add"] < fixed.weights()["add"] / 2
    assert set(fixed.weights()) == set(OPERATORS)


def test_places_are_numbered_from_the_next_proposal_island_by_island() -> None:
    config = Config()
    population = first_population(replace(config, search=replace(config.search, islands=2)))
    assert list(places(population, 3)) == []  # no starting program was scored: nobody can be a parent
    assert list(operators().ask(population, 1)) == []
    population.numbered = 8
    population.tell(outcome("seed:floor", island=None))
    found = [(place.number, place.island, place.left) for place in places(population, 3)]
    assert found == [(8, 0, 3), (9, 0, 2), (10, 0, 1), (11, 1, 3), (12, 1, 2), (13, 1, 1)]
    assert all([e.id for e in place.parents] == [1] for place in places(population, 3))
