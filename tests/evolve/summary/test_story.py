"""The story of a run is the search's own: generations, places on islands, and the champion after every generation."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tiny_world
from elites import elite
from paths import ROOT

from archive.proposal import Outcome, Proposal, Rejected
from evolve.run.config import Config, SearchSettings
from evolve.run.folder import open_run
from evolve.search import search
from evolve.summary.result import read_report
from evolve.summary.story import POINTS, Story


def told(run: Path) -> Story:
    opened = open_run(run)
    story = Story(opened.config)
    for outcome in opened.outcomes():
        story.add(outcome)
    return story


@pytest.fixture(scope="module")
def migrating(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[bool]]:
    """A run whose islands exchange elites often, with its finalists, and what the search knew to be kept."""
    home = tmp_path_factory.mktemp("migrating")
    kept: list[bool] = []

    class Watched(search.Search):
        def _take_in(self, assessing: Any) -> Any:
            outcomes = super()._take_in(assessing)
            kept.extend(gained for _, gained, _ in outcomes)
            return outcomes

    settings = "{finalists: 1, islands: 2, batch: 4, migrate_every: 2, migrants: 1}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evolve.search.run.Search", Watched)
        run = tiny_world.run(tiny_world.write(home, search=settings, **tiny_world.BRIEF), home / "r", "--budget", 60)
    return run, kept


def test_the_champion_of_every_generation_is_the_one_that_the_report_has(migrating: tuple[Path, list[bool]]) -> None:
    run, kept = migrating
    story, best = told(run), read_report(run / "report.json").best
    assert [row.kept for row in story.rows] == kept and True in kept[20:]  # as the search knew it
    last = {row.generation: i + 1 for i, row in enumerate(story.rows) if row.generation is not None}
    points = {point.after: (point.champion.mean_error, point.champion.group_out) for point in story.points()}
    assert [points[last[generation]] for generation in range(len(best))] == list(best)


def test_generations_are_numbered_from_the_seeds_on(migrating: tuple[Path, list[bool]]) -> None:
    run, _ = migrating
    rows = told(run).rows
    seeds = sum(row.outcome.proposal.operator.startswith("seed:") for row in rows)
    assert seeds == 9  # the shipped programs but the champion
    generations = [row.generation for row in rows]
    assert generations[: seeds + 9] == [0] * 9 + [1] * 8 + [2]  # two islands of four places
    assert generations[-1] is None and rows[-1].outcome.proposal.operator == "polish"
    assert len(read_report(run / "report.json").best) == max(g for g in generations if g is not None) + 1


def outcome(number: int, island: int | None = 0, operator: str = "add") -> Outcome:
    return Outcome(Proposal(number, island, "x", operator, ()), elite(number, mean_error=50.0 - number / 10), "k")


def test_long_generations_have_points_in_between() -> None:
    story = Story(Config(search=SearchSettings(islands=1, batch=1000)))
    story.add(Outcome(Proposal(0, None, "x", "seed:a", ()), Rejected("units", "us + token")))
    assert not list(story.points())  # nothing is scored yet
    for number in range(1, 121):
        story.add(outcome(number))
    after = [point.after for point in story.points()]
    assert after[-1] == 121 and max(b - a for a, b in pairwise(after)) <= POINTS


def test_numbers_that_are_not_of_a_search_have_no_generation() -> None:
    story = Story(Config(search=SearchSettings(islands=2, batch=2)))
    story.add(outcome(0, None, "seed:a"))
    for number, island in ((1, 0), (2, 0), (3, 1), (4, 1), (90, 0), (91, 0)):
        story.add(outcome(number, island))
    assert [(row.generation, row.kept is None) for row in story.rows[4:]] == [(1, False), (None, True), (None, True)]
    assert story.outcome(91) and story.outcome(5) is None
    assert list(story.points())[-1].champion.id == 91  # the archive is exact all the same


def test_the_story_of_the_shipped_run_ends_with_its_archive() -> None:
    run = open_run(ROOT / "seeds" / "champion")
    story, archive = told(run.path), run.archive()
    assert story.population.archive.front == archive.front and story.population.archive.grid == archive.grid
    generations = [row.generation for row in story.rows if row.generation is not None]
    assert generations[-1] == 42  # (1340 - 9) / 32 proposals a generation; what is trimmed or polished has none
