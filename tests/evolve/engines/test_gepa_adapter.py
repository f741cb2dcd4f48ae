"""GEPA, as released, evolves programs on our evaluator against a scripted server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gepa
import pytest
import tiny_world
from engine_answers import COUNT, START, answers, scripted
from llm_runs import DATA, environment
from llm_server import Server

from archive.proposal import Rejected
from evaluator.assess import assess, prepare, read
from evolve.engines.gepa import LatencyAdapter
from evolve.run.data import chosen
from evolve.search.vocabulary import field_set
from simulator.common.errors import InputError
from simulator.serving.known import datasheet_deployments


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> LatencyAdapter:
    folder = tmp_path_factory.mktemp("gepa")
    (folder / "data.yaml").write_text(DATA)
    settings = "search: {fields: datasheet}\ncaps: {conditionals: 0}"
    (folder / "mine.yaml").write_text(f"data: {{files: [{folder / 'data.yaml'}], predict_files: []}}\n{settings}\n")
    return LatencyAdapter(folder / "mine.yaml")


def group_out(adapter: LatencyAdapter, text: str) -> float:
    """The leave-group-out error by the pipeline of a search alone."""
    config = adapter.evaluator.config
    program = read(text, config.caps, field_set(config.search.fields))
    assert not isinstance(program, Rejected)
    data = prepare(chosen(config.data)[0], config.score.arrival_seeds, hardware=datasheet_deployments())
    scored = assess(program, data)
    assert not isinstance(scored, Rejected) and scored.consistent and scored.group_out
    return scored.group_out


def test_examples_are_cells_and_scores_are_errors_left_out(adapter: LatencyAdapter) -> None:
    assert adapter.cells == ["dense", "sparse"]  # of so few cells, the runs
    found = adapter.evaluate(adapter.cells, {"program": START}, capture_traces=True)
    mean = sum(found.scores) / 2
    assert 30 * (1 - mean) == pytest.approx(group_out(adapter, START), rel=1e-5)  # a journal has six digits
    alone = adapter.evaluate(["sparse"], {"program": START})
    assert alone.scores == found.scores[1:] and alone.trajectories is None


def test_the_question_has_errors_or_the_complaint(adapter: LatencyAdapter, tmp_path: Path) -> None:
    for text, says in (("def step_time(b, s): return x", "parse: "), *answers(tmp_path / "mark")):
        candidate = {"program": text}
        found = adapter.evaluate(adapter.cells, candidate, capture_traces=True)
        [record] = adapter.make_reflective_dataset(candidate, found, ["program"])["program"]
        assert record.get("complaint", "").startswith(says)
        assert says or {"diagnosis", "errors on runs left out"} < set(record)
        assert (found.scores == [-1.0, -1.0]) == bool(says)
    assert not (tmp_path / "mark").exists()


def test_a_program_that_is_not_consistent_scores_one_less(adapter: LatencyAdapter) -> None:
    text = "def step_time(b, s, *, floor: us = 4000.0):\n    return floor\n"
    verdict = adapter.evaluator.verdict(text)
    assert not isinstance(verdict, Rejected) and not verdict.consistent
    found = adapter.evaluate(adapter.cells, {"program": text})
    assert found.scores == pytest.approx([-error / 30 for _, error in verdict.cells])


def test_a_single_run_cannot_be_left_out(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot leave out 'dense-chat'"):
        LatencyAdapter(tiny_world.write(tmp_path, tiny_world.ONE, **tiny_world.BRIEF))


class Iterations:
    """Stops GEPA after so many iterations."""

    def __call__(self, state: Any) -> bool:
        return bool(state.i + 1 >= COUNT)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(scripted(tmp_path / "mark")) as server, patch.dict("os.environ", environment(), clear=True):
        yield server


def test_twenty_iterations_of_gepa(adapter: LatencyAdapter, server: Server, tmp_path: Path) -> None:
    result = gepa.optimize(
        seed_candidate={"program": START},
        trainset=adapter.cells,
        adapter=adapter,
        reflection_lm="openai/mine",
        reflection_lm_kwargs={"api_base": server.url},
        reflection_prompt_template=adapter.reflection_prompt,
        stop_callbacks=Iterations(),
    )
    assert len(server.seen) == COUNT and not (tmp_path / "mark").exists()
    question = server.seen[0].messages[-1]["content"]
    assert question.startswith("You improve performance models") and START.strip() in question
    assert "errors on runs left out" in question and "### Proposal" not in question

    seed, best = result.val_aggregate_scores[0], result.val_aggregate_scores[result.best_idx]
    texts = [text for text, says in answers(tmp_path / "mark") if not says]
    expected = {text.strip(): sum(adapter.evaluate(adapter.cells, {"program": text}).scores) / 2 for text in texts}
    assert best == max(expected.values()) > seed
    assert expected[result.best_candidate["program"]] == best
    assert 30 * (1 - best) == pytest.approx(group_out(adapter, result.best_candidate["program"]), rel=1e-5)
    assert all(not isinstance(adapter.evaluator.verdict(c["program"]), Rejected) for c in result.candidates)
