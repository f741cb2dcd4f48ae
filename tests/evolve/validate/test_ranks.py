"""Ranks by hand: pairs that predictions invert, and the correlation of a criterion with held-out errors."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from archive.champion import Rule
from archive.elite import Elite, example
from archive.score import Errors
from evaluator.intervals import STATISTICS
from evolve.validate import ranks
from evolve.validate.held_out import Compared
from evolve.validate.ranks import BEST, Ranking, Selection, best_of, rankings, selection, selects

NONE: dict[str, float | None] = dict.fromkeys(STATISTICS)


def row(name: str, observed_ms: float | None, error_pct: float | None, known_pct: float | None = None) -> Compared:
    return Compared(name, NONE | {"e2e": observed_ms}, NONE | {"e2e": error_pct}, {"roofline": {"e2e": known_pct}})


def test_pairs_in_the_other_order_are_inversions() -> None:
    # predicted: a 110, b 99, c 300: of three pairs a and b are inverted, so tau is (2 - 1) / 3
    rows = [row("a", 100.0, 10.0, 0.0), row("b", 110.0, -10.0, 0.0), row("c", 200.0, 50.0, -60.0)]
    ours, roofline = rankings(rows, "tp", "runs", "e2e")
    assert ours == Ranking("tp", "runs", "e2e", "champion", 3, pytest.approx(1 / 3), [("a", "b")])
    assert roofline.program == "roofline" and roofline.inversions == [("a", "c"), ("b", "c")]  # c is predicted at 80
    [alone] = rankings([row("a", 100.0, 1.0), row("b", None, 1.0)], "tp", "runs", "e2e")
    assert alone == Ranking("tp", "runs", "e2e", "champion", 1, None, [])
    [alike] = rankings([row("a", 100.0, 0.0), row("b", 100.0, 5.0)], "tp", "load stages", "e2e")  # nothing to order
    assert (alike.count, alike.tau, alike.inversions) == (2, None, [])


def searched(monkeypatch: pytest.MonkeyPatch, elites: list[Elite]) -> float | None:
    """`selects` of a search with these elites, whose texts give their held-out errors in percent."""
    outcomes = [SimpleNamespace(elite=e) for e in elites]
    config = SimpleNamespace(score=SimpleNamespace(rule=Rule("mean_error")))
    run = SimpleNamespace(config=config, outcomes=lambda: outcomes)
    monkeypatch.setattr(ranks, "open_run", lambda _: run)
    monkeypatch.setattr(ranks, "score_set", lambda held, seeds: held)
    monkeypatch.setattr(ranks, "parse", float)
    monkeypatch.setattr(ranks, "error_rows", lambda pct, _: [Errors("e", pct, pct, pct)])
    return selects(*best_of(Path("run")), ())


def test_a_criterion_selects_if_it_orders_held_out_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    def elites(errors: list[float], **more: Any) -> list[Elite]:
        return [example(id=i, key=str(i), mean_error=1.0 + i / 1000, text=str(x), **more) for i, x in enumerate(errors)]

    assert searched(monkeypatch, elites([1.0, 2.0, 3.0, 4.0, 5.0])) == pytest.approx(1.0)
    assert searched(monkeypatch, elites([-5.0, -4.0, 3.0, 2.0, -1.0])) == pytest.approx(-1.0)  # absolute errors
    assert searched(monkeypatch, elites([1.0, 2.0, 3.0, 4.0])) is None  # too few
    assert searched(monkeypatch, elites([2.0] * 5)) is None  # all alike
    assert searched(monkeypatch, elites([1.0, 2.0, 3.0, 40.0, 35.0])) == pytest.approx(0.975, abs=0.01)  # a tie at 30 %
    assert searched(monkeypatch, elites([1.0, 2.0, 3.0, 4.0, 5.0], consistent=False)) is None
    # a form that came twice counts by its better programs
    polished = [example(id=9, key="0", mean_error=2.0, text="9.0")]
    assert searched(monkeypatch, elites([1.0, 2.0, 3.0, 4.0, 5.0]) + polished) == pytest.approx(1.0)
    worse = [(BEST - i) / 10 for i in range(BEST)]  # beyond the best hundred nothing counts
    assert searched(monkeypatch, elites([*worse, *range(10)])) == pytest.approx(-1.0)


def test_the_mean_is_over_the_folds_that_have_a_correlation() -> None:
    found = selection({"a": 0.2, "b": None, "c": 0.4}, 0)
    assert found.mean == pytest.approx(0.3) and found.correlations["b"] is None
    assert found.interval_95 is not None and 0.2 <= found.interval_95[0] <= found.interval_95[1] <= 0.4
    assert selection({"b": None}, 0) == Selection({"b": None}, None, None)
