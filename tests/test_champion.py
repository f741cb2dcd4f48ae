"""The shipped champion is what its record says, on the very runs it names."""

from __future__ import annotations

import json
from importlib import resources

import pytest

from evaluator.experiments import bundled_experiments, data_hash
from evaluator.score import errors, predictions, score_set
from evolve.programs import load
from simulator.language.key import key
from simulator.language.unparse import unparse

RECORD = json.loads(resources.files("seeds").joinpath("champion.json").read_text())
FITTED = [e for e in bundled_experiments() if e.id in RECORD["fitted"]]


def test_the_record_names_this_program_and_these_data() -> None:
    source = load("champion")
    assert source.record == RECORD
    assert key(source.complete) == RECORD["key"]
    assert unparse(source.program) == source.text
    assert len(FITTED) == len(RECORD["fitted"]) and data_hash(FITTED) == RECORD["data"]


def test_the_errors_are_those_of_the_record() -> None:
    source = load("champion")
    made = predictions(source.complete, score_set(FITTED, RECORD["seeds"]))
    for prediction, experiment in zip(made, FITTED, strict=True):
        again, told = errors(prediction, experiment), RECORD["errors_pct"][experiment.id]
        # exp, log and pow may differ in their last bit between machines, which can move a step by a microsecond
        assert (again.e2e, again.ttft, again.itl) == pytest.approx((told["e2e"], told["ttft"], told["itl"]), abs=0.05)


def test_no_fitted_run_is_off_by_more_than_five_percent() -> None:
    assert max(abs(row["e2e"]) for row in RECORD["errors_pct"].values()) <= 5.0
