"""The ensemble of near-optimal programs, and the champion among those nearest to it, by hand."""

from __future__ import annotations

import math

import pytest

from archive.champion import Rule, champion
from archive.elite import example
from archive.score import Errors
from evaluator.ensemble import MEMBERS, apart_pct, ensemble, final_champion

FIELDS = ("tokens", "batch_size", "decode_reqs", "prefill_reqs")


def text(*fields: str) -> str:
    return f"def step_time(b, s): return {' + '.join(f'b.{name}' for name in fields)}"


def test_the_ensemble_is_the_best_of_different_fields() -> None:
    rule = Rule("mean_error", worst_pct=10.0)
    elites = [
        example(id=1, key="1", mean_error=2.0, text=text("tokens")),
        example(id=2, key="2", mean_error=1.95, text=text("tokens")),  # better with the same fields
        example(id=3, key="3", mean_error=2.1, text=text("tokens", "batch_size")),
        example(id=4, key="4", mean_error=2.2, text=text("decode_reqs")),  # more than a tenth above the best
        example(id=5, key="5", mean_error=1.0, text=text("prefill_reqs"), consistent=False),
        example(id=6, key="6", mean_error=1.0, text=text("prefill_reqs"), rows=(Errors("run", 11.0, 0.0, 0.0),)),
    ]
    assert [e.id for e in ensemble(elites, rule)] == [2, 3]
    assert [e.id for e in ensemble(elites[4:5], rule)] == [5]  # nothing is consistent
    assert ensemble([], rule) == []
    alone = [
        example(id=i, key=str(i), mean_error=j, group_out=None, text=text(f))
        for i, j, f in ((1, 2.0, "tokens"), (2, 3.0, "batch_size"))
    ]
    assert [e.id for e in ensemble(alone, Rule("group_out"))] == [1]  # near by the mean error, as nothing else is known
    read = {i: [f for j, f in enumerate(FIELDS) if i >> j & 1] for i in range(1, 16)}
    many = [example(id=i, key=str(i), text=text(*fields)) for i, fields in read.items()]
    assert [e.id for e in ensemble(many, rule)] == list(range(1, MEMBERS + 1))


def test_a_program_alone_with_its_predictions_is_not_the_champion() -> None:
    rule = Rule("mean_error", within=0.05, nearer=0.5)
    steps = {1: "1000 * b.tokens", 2: "1100 * b.tokens", 3: "1000 * b.tokens + 0 * b.batch_size", 4: "9 * b.tokens"}
    texts = {id: f"def step_time(b, s): return {step}" for id, step in steps.items()}
    elites = [
        example(id=id, key=str(id), mean_error=2.0 + id / 100, operations=9 - id, text=text)
        for id, text in texts.items()
    ]
    elites[3] = example(id=4, key="4", mean_error=3.0, operations=0, text=elites[3].text)  # beyond 5 % of the lowest
    assert champion(elites, rule).id == 3  # type: ignore[union-attr]
    # The ensemble is 1 and 3, which read other fields; their times are alike, and those of 2 are 1.1 times as long.
    apart = apart_pct(elites, rule)
    assert apart == pytest.approx({1: 0.0, 2: 100.0 * math.log(1.1), 3: 0.0}, abs=1e-9)
    assert champion(elites[:2], rule, apart).id == 1  # type: ignore[union-attr]
    assert champion(elites[:2], rule).id == 2  # type: ignore[union-attr]
    assert final_champion(elites, rule).id == 3  # type: ignore[union-attr]
    assert apart_pct([], rule) == {} and final_champion([], rule) is None
