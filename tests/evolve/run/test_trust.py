"""Trust files: they are read back, and damaged ones are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluator.ensemble import MEMBERS
from evaluator.intervals import STATISTICS, Disagreement, Residual
from evolve.run.program import load
from evolve.run.trust import CLASSES, Trust, read_trust, trust_of
from simulator.common.errors import InputError

FIGURES: dict[str, float | None] = dict.fromkeys(STATISTICS, 0.25) | {"ttft": None}


def inside(log_ratio: dict[str, Any], spread: dict[str, Any]) -> dict[str, Any]:
    return {"inside": [{"fold": "f", "experiment": "e", "log_ratio": log_ratio, "spread": spread}]}


KEPT = Trust("k", ("def step_time(b, s): return b.tokens",), (Residual("f", "e", FIGURES, FIGURES),), (), ())


def test_a_trust_is_read_back() -> None:
    assert read_trust(json.dumps(KEPT.to_json()).encode(), "trust.json") == KEPT
    doubt = Disagreement(FIGURES, 0.0)
    assert [KEPT.class_of(beyond, doubt) for beyond in (False, True)] == ["inside", "outside"]
    assert KEPT.class_of(False, Disagreement(FIGURES, 0.1)) == "saturated"
    assert replace(KEPT, data="d").class_of(False, doubt) == "outside"  # after a fit on own runs
    assert read_trust(json.dumps(replace(KEPT, data="d").to_json()).encode(), "trust.json").data == "d"
    reached = replace(KEPT, reach={"vocab": 2.0, "tp": 1.0}, call=2)
    assert read_trust(json.dumps(reached.to_json()).encode(), "trust.json") == reached
    assert reached.too_far({"vocab": 2.1, "tp": 2.0, "prompt_tokens": 9.0}) == {"tp": (2.0, 1.0)}
    assert KEPT.residuals("inside") == KEPT.inside and KEPT.residuals("outside") == ()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"key": None}, "key: must not be null. "),
        ({"ensemble": "p"}, "ensemble: must be a list, got 'p'. "),
        ({"ensemble": ["hello("]}, "ensemble: program 0 cannot be parsed. "),
        (inside({"e2e": 1e300}, {}), "inside[0].log_ratio: e2e must be from -50 to 50, got 1e+300. "),
        (inside({}, {"itl": -1.0}), "inside[0].spread: itl must be from 0 to 50, got -1. "),
        (inside({"e2e": "much"}, {}), "inside[0].log_ratio.e2e: must be a number, got 'much'. "),
        ({"reach": {"vocab": 0.5}}, "reach.vocab: must be from 1 to "),
        ({"inside": [{"fold": "f"}]}, "inside[0].experiment: is missing. "),
    ],
)
def test_a_damaged_file_is_one_line(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError) as error:
        read_trust(json.dumps(KEPT.to_json() | change).encode(), "trust.json")
    assert str(error.value).startswith(f"cannot read trust.json, {problem}") and "Remove it" in str(error.value)


def test_the_shipped_champion_has_trust_and_other_programs_have_not(tmp_path: Path) -> None:
    champion = load("champion")
    trust = trust_of(champion)
    assert trust is not None and champion.record and trust.key == champion.record.key
    assert all(trust.residuals(name) for name in CLASSES) and 2 <= len(trust.programs) <= MEMBERS
    assert trust_of(load("kernels")) is None
    copied = tmp_path / "mine.py"
    copied.write_text(champion.text)
    assert trust_of(load(str(copied))) is None


def test_outside_runs_of_two_folds_say_no_more_than_those_inside() -> None:
    def of(fold: str, closed: bool = True) -> Residual:
        return Residual(fold, f"run of {fold}", FIGURES, FIGURES, closed)

    near, rate = (of("a"), of("b")), (of("r", closed=False),)
    two = replace(KEPT, inside=(*near, *rate), outside=(of("c"), of("d")))
    assert two.residuals("outside", closed=True) == (*two.outside, *near)
    three = replace(two, outside=(*two.outside, of("e")))
    assert three.residuals("outside", closed=True) == three.outside and three.residuals("inside", closed=True) == near
