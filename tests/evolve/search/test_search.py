"""Islands, migration and the bandit: small figures by hand, and what each setting changes in a run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from archive.island import Island
from evolve.search.bandit import DOUBT, FLOOR, MEMORY, Bandit
from evolve.search.state import commit, first_state
from test_archive import elite

from archive.grid import Grid
from evolve.run.config import Config
from evolve.search.search import merit, migrate
from simulator.language.complete import complete
from simulator.language.key import key
from simulator.language.parse import parse


def test_migrants_go_round_the_ring() -> None:
    islands = [Island(Grid(), 10) for _ in range(3)]
    for i, island in enumerate(islands):
        island.add(elite(10 * i, joint=1.0 + i))
        island.add(elite(10 * i + 1, joint=8.0, worst3=9.0, operations=20))  # dominated: stays
    migrate(islands, 1)
    assert [[e.id for e in island.members()] for island in islands] == [[0, 1, 20], [0, 10, 11], [10, 20, 21]]
    alone = [Island(Grid(), 10)]
    alone[0].add(elite(1))
    migrate(alone, 1)
    assert len(alone[0].survivors) == 1


def test_a_bandit_by_hand() -> None:
    bandit = Bandit({"add": 0.6, "drop": 0.4, "never": 0.0})
    assert bandit.chances() == pytest.approx(
        {"add": FLOOR + (1 - 2 * FLOOR) * 0.6, "drop": FLOOR + (1 - 2 * FLOOR) * 0.4}
    )
    bandit.learn("add", True)
    bandit.learn("drop", False)
    bandit.learn("drop", False)
    rate = (1 + 1) / (1 + 1 + MEMORY + 2)
    worth = {"add": 0.6 * (1 + DOUBT * rate) / (1 + DOUBT), "drop": 0.4 * (DOUBT * rate) / (1 + MEMORY + DOUBT)}
    share = worth["add"] / sum(worth.values())
    assert bandit.chances()["add"] == pytest.approx(FLOOR + (1 - 2 * FLOOR) * share)


def test_what_never_gains_keeps_the_floor() -> None:
    bandit = Bandit({"add": 0.5, "drop": 0.5})
    for _ in range(5000):
        bandit.learn("drop", False)
        bandit.learn("add", True)
    assert FLOOR < bandit.chances()["drop"] < 0.15 and sum(bandit.chances().values()) == pytest.approx(1.0)


def entry(number: int, island: int | None, operator: str = "add", **more: object) -> dict[str, object]:
    found = elite(number, operator=operator, key=f"k{number}", **more)
    return {
        "id": number,
        "island": island,
        "operator": operator,
        "key": found.key,
        "verdict": "scored",
        "elite": found.to_json(),
    }


def test_a_seed_lands_on_every_island_and_a_child_on_its_own() -> None:
    state = first_state(Config())
    commit(state, entry(0, None, "seed:floor"))
    commit(state, entry(1, 2, joint=1.0))
    assert [[e.id for e in island.members()] for island in state.islands] == [[0], [0], [0, 1], [0]]
    assert state.bandit.trials == {"add": 1.0} and state.bandit.gains == {"add": 1.0}
    assert state.stages == {"scored": 2} and state.fitted == 2


def refused(stage: str, operator: str = "llm:openai/a") -> dict[str, object]:
    text = "def step_time(b, s, *, base: us = 1.0):\n    return base + b.weight_read_us\n"
    return {
        "id": 0,
        "island": 0,
        "operator": operator,
        "verdict": "rejected",
        "stage": stage,
        "why": "no",
        "text": text,
    }


def test_what_judges_refused_is_not_judged_again() -> None:
    state = first_state(Config())
    commit(state, refused("judges"))
    assert state.archive.keys == {key(complete(parse(str(refused("judges")["text"]))))} and state.fitted == 0
    other = first_state(Config())
    commit(other, refused("units"))
    assert not other.archive.keys


def test_what_a_model_fails_to_deliver_counts_as_a_trial() -> None:
    state = first_state(Config())
    commit(state, refused("units", operator="add"))
    assert not state.bandit.trials
    commit(state, refused("answer"))
    assert state.bandit.trials == {"llm:openai/a": 1.0} and state.bandit.gains == {"llm:openai/a": 0.0}


def test_without_the_grid_parents_are_the_survivors_alone() -> None:
    config = Config()
    state = first_state(replace(config, search=replace(config.search, grid=False, islands=1)))
    commit(state, entry(0, None, "seed:floor", operations=3))
    state.islands[0].survivors.clear()
    assert state.islands[0].members() == []
    assert len(state.islands[0].grid.cells) == 1


def test_merit_by_hand() -> None:
    assert merit((2.0, 4.0)) == 3.0 and merit((2.0, None)) == 2.0
