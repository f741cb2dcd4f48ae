"""Islands, migration, and what a population remembers of the outcomes it is told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from elites import elite

from archive.archive import Archive
from archive.champion import Rule
from archive.elite import Elite
from archive.grid import Grid
from archive.pareto import fitness
from archive.population import EXCESS, GREED, REMEMBERED, Island, Population, proposers, tournament
from archive.proposal import Outcome, Proposal, Rejected
from archive.score import Errors


def population(islands: int = 4, **more: object) -> Population:
    return Population(Archive(Grid()), [Island(Grid(), 10) for _ in range(islands)], Rule(), **more)  # type: ignore[arg-type]


def scored(number: int, island: int | None, operator: str = "add", **more: object) -> Outcome:
    found: Elite = elite(number, operator=operator, **more)  # type: ignore[arg-type]
    return Outcome(Proposal(number, island, found.text, operator, found.parents), found, found.key)


def rejected(number: int, stage: str = "units", key: str = "", operator: str = "add") -> Outcome:
    return Outcome(Proposal(number, 0, "text", operator, ()), Rejected(stage, "no"), key)


def test_migrants_go_round_the_ring() -> None:
    three = population(islands=3)
    for i, island in enumerate(three.islands):
        island.add(elite(10 * i, mean_error=1.0 + i))
        island.add(elite(10 * i + 1, mean_error=8.0, worst3=9.0, operations=20))  # dominated: stays
    three.migrate(1)
    assert [[e.id for e in island.members()] for island in three.islands] == [[0, 1, 20], [0, 10, 11], [10, 20, 21]]
    alone = population(islands=1)
    alone.islands[0].add(elite(1))
    alone.migrate(1)
    assert len(alone.islands[0].survivors) == 1


def test_a_seed_lands_on_every_island_and_a_child_on_its_own() -> None:
    four = population()
    assert four.tell(scored(0, None, "seed:floor"))
    assert four.tell(scored(1, 2, mean_error=1.0))
    assert [[e.id for e in island.members()] for island in four.islands] == [[0], [0], [0, 1], [0]]
    assert four.stages == {"scored": 2} and four.fitted == four.proposals == 2
    assert set(four.archive.by_id) == {0, 1} and four.archive.keys == {"k0", "k1"}
    assert not four.tell(scored(2, 2, mean_error=1.0, key="k1"))  # the same form, no better: no island keeps it


def test_only_fitted_rejections_count_against_the_budget() -> None:
    one = population(islands=1)
    for outcome in (rejected(0, "units"), rejected(1, "duplicate"), rejected(2, "replay", key="k2")):
        assert not one.tell(outcome)
    assert one.stages == {"units": 1, "duplicate": 1, "replay": 1}
    assert (one.proposals, one.fitted) == (3, 1) and one.archive.keys == {"k2"}
    for number in range(3, 3 + REMEMBERED):
        one.tell(rejected(number))
    assert [outcome.proposal.id for outcome in one.rejected] == list(range(3, 3 + REMEMBERED))


def test_every_proposer_has_its_counts() -> None:
    one = population(islands=1)
    one.tell(scored(0, 0, "add+drop"))
    one.tell(rejected(1, operator="add"))
    one.tell(rejected(2, "answer", operator="llm:openai/a+b"))
    assert proposers("add+drop") == ["add", "drop"] and proposers("llm:openai/a+b") == ["llm:openai/a+b"]
    assert one.reached["add", "proposals"] == 2 and one.reached["drop", "proposals"] == 1
    assert one.reached["add", "fitted"] == one.reached["add", "kept"] == 1
    assert one.reached["llm:openai/a+b", "proposals"] == 1 and one.reached["llm:openai/a+b", "fitted"] == 0


def test_the_champion_is_noted_after_every_generation() -> None:
    one = population(islands=1)
    one.end_generation()
    one.tell(scored(0, 0, mean_error=3.0, group_out=4.0))
    one.end_generation()
    one.tell(scored(1, 0, mean_error=2.0, group_out=2.5))
    one.end_generation()
    assert one.best == [(float("inf"), None), (3.0, 4.0), (2.0, 2.5)]
    assert one.champion() is one.archive.by_id[1]


def test_three_of_four_islands_follow_the_selection_score() -> None:
    four, alone = population(islands=4), population(islands=1)
    assert [four.greedy(i) for i in range(4)] == [False, True, True, True] and alone.greedy(0)
    assert four.entrants(0) == (3, 3) and four.entrants(1) == (3 * GREED, 3)
    good, worse = elite(0, mean_error=2.0, group_out=4.0), elite(1, mean_error=1.0, group_out=9.0)
    assert four.order([good, worse], 1) == [(0.0, 4.0, 15.0), (0.0, 9.0, 15.0)]
    far = elite(0, mean_error=2.0, group_out=4.0, rows=(Errors("a", -14.0, 0.0, 0.0),))  # 4 % too many
    inconsistent = replace(good, consistent=False)
    assert four.order([far, inconsistent], 1) == [(0.0, 4.0 + 4 * EXCESS, 15.0), (1.0, 4.0, 15.0)]
    unseen = elite(0, mean_error=2.0, group_out=4.0, rows=(Errors("a", None, 0.0, 0.0),))
    assert four.order([unseen], 1) == [(0.0, 4.0, 15.0)]
    assert four.order([good, worse], 0) == fitness([good, worse])
    by_steps = population(selection="lexicographic")
    assert by_steps.order([elite(0, worst3=7.0, itl=1.5), elite(1, itl=None)], 1) == [
        (7.0, 1.5, 15.0),
        (5.0, 3.0, 15.0),
    ]


def test_a_tournament_is_won_by_the_fittest_entrant_and_the_earlier_on_ties() -> None:
    elites = [elite(i) for i in range(4)]
    order = [(2.0,), (1.0,), (1.0,), (3.0,)]
    rng = np.random.default_rng(0)
    assert {tournament(elites, order, 50, rng).id for _ in range(5)} == {1}
    entrants = np.random.default_rng(3).integers(4, size=2)
    winner = tournament(elites, order, 2, np.random.default_rng(3))
    assert winner.id == min(entrants, key=lambda i: (order[i], i))


@pytest.mark.parametrize("count", [0, 2])
def test_migration_copies_that_many(count: int) -> None:
    two = population(islands=2)
    for i in range(3):
        two.islands[0].add(elite(i, mean_error=1.0 + i, worst3=1.0 + i))
    two.migrate(count)
    assert [e.id for e in two.islands[1].members()] == list(range(count))
