"""The ensemble of near-optimal programs, by hand."""

from __future__ import annotations

from archive.champion import Rule
from archive.elite import example
from archive.score import Errors
from evaluator.ensemble import MEMBERS, ensemble

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
