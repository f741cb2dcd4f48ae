"""Records are read back, older ones too; damaged ones are refused in a line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from archive.score import Errors
from evolve.run.program import load
from evolve.run.records import ConstantRecord, FoundBy, Record, StepsRecord, read_record
from simulator.common.errors import InputError
from simulator.serving.bundled import bundled_experiments
from simulator.serving.digests import measurement_digest
from simulator.serving.experiment import Experiment
from simulator.serving.observations import Observed, Statistic

OLD = {
    **{"engine": "0.1.0", "data": "0123456789abcdef", "key": "fedcba9876543210", "date": "2026-01-01", "fitted": ["a"]},
    "errors_pct": {"a": {"e2e": 1.5, "ttft": None, "itl": -2.0}},
}
FULL = replace(
    Record("0.3.0", "d", "k", "2026-11-22", ("a",), (Errors("a", 1.5, None, -2.0),), {"a": "0123"}),
    seeds=(1, 2),
    fitted_from="floor",
    constants={"step_time.k": ConstantRecord(0.5, "low", False, {"step_time.n": -0.25})},
    fitted_with=("a", "b"),
    steps=StepsRecord("train", {"a": "4567"}, "quantile", 0.9, 0.01, 1.02, {"train": 0.9, "test": None}),
    found=FoundBy(7, 1.25, None),
)
KEYS = "engine data key date fitted measured seeds errors_pct fitted_from constants fitted_with steps found scope"


def test_a_record_survives_its_json_an_older_one_has_less_and_other_json_is_none() -> None:
    values = json.loads(json.dumps(FULL.to_json()))
    assert read_record(values, "r.json") == FULL and list(values) == KEYS.split()
    assert values["scope"] == "per-model" and values["errors_pct"] == OLD["errors_pct"]
    old = read_record(OLD, "r.json")
    assert old is not None and (old.seeds, old.ranges, old.constants) == ((), None, None)
    assert old.to_json() == {**OLD, "seeds": []}
    assert read_record({"name": "settings"}, "r.json") is None and read_record([1], "r.json") is None


def test_measurements_differ_even_if_they_are_itl_alone() -> None:
    def with_itl_alone(e: Experiment, observed: Observed) -> Experiment:
        summary, *stages = (
            o and replace(o, e2e_ms=Statistic(), ttft_ms=Statistic()) for o in (observed.summary, *observed.stages)
        )
        return replace(e, observed=Observed(summary, tuple(filter(None, stages))))

    shipped = bundled_experiments()
    assert len({measurement_digest(e) for e in shipped}) == len(shipped)
    seen = [(e, e.observed) for e in shipped if e.observed and e.observed.summary and e.observed.summary.itl_ms.mean]
    assert len({measurement_digest(with_itl_alone(*pair)) for pair in seen}) == len(seen) > 10


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"engine": None}, "engine: must not be null"),
        ({"fitted": "a"}, "fitted: must be a list, got 'a'"),
        ({"errors_pct": {"a": {"e2e": "much"}}}, "errors_pct.a.e2e: must be a number, got 'much'"),
        ({"constants": {"k": {"standard_error": []}}}, "constants.k.standard_error: must be a number, got []"),
        ({"constants": {"k": {"correlated": {"n": -2}}}}, "constants.k.correlated.n: must be from -1 to 1, got -2"),
        ({"steps": {"split": "train"}}, "steps.runs: is missing"),
    ],
)
def test_a_damaged_record_is_one_line(change: dict[str, Any], problem: str, tmp_path: Path) -> None:
    program, beside = tmp_path / "p.py", tmp_path / "p.json"
    program.write_text("def step_time(b, s, *, k: us = 9.0): return k")
    beside.write_text(json.dumps(OLD | change))
    with pytest.raises(InputError) as error:
        load(str(program))
    assert str(error.value) == f"cannot read {beside}, {problem}. Restore the record, or remove it."
    beside.write_text("{")
    with pytest.raises(InputError, match=r"p\.json: line 1: not valid JSON, .*: correct or remove the record"):
        load(str(program))
