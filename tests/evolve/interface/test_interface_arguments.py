"""Arguments that cannot be meant are errors of one line, before anything is written or computed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import evolve

FRAME = pd.DataFrame({"rate": [1.0], "e2e_ms": [2.0]})
SEVEN = "llama-2-7b", "H100", 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda e: e.load_experiments(FRAME), "experiments: a DataFrame is no experiment: give files (`evolve ingest --t"),
        (lambda e: e.predict("champion", None), "experiments: null is no experiment: give files"),
        (lambda e: e.fit("linear", "bundled", only=3), "only: 3: names no constants: give alpha, beta, a method, or names"),
        (lambda e: e.fit("linear", "bundled", method=["x"]), "method: ['x']: is not a method: choose one of auto"),
        (lambda e: e.fit("linear", "bundled", out=3), "out: 3: give a file to write"),
        (lambda e: e.load_run(FRAME), "path: a DataFrame: give the folder of a run"),
        (lambda e: e.resume(None), "path: null: give the folder of a run"),
        (lambda e: e.search(FRAME), "config: a DataFrame: give a bundled name, a YAML file, or its contents as a mapping"),
        (lambda e: e.search("smoke", workers="2"), "workers: '2': must be a whole number from 1 to 10,000"),
        (lambda e: e.search("smoke", on_progress="print"), "on_progress: 'print': cannot be called: give a function"),
        (lambda e: e.search("smoke", start=[3]), "start: 3: give programs by name or file, or evolve.Program"),
        (lambda e: e.Program(None), "program: null: give a shipped name, a file, RUN:ID, a text, or a run's champion"),
        (lambda e: e.Program("floor").queueing_us(1.5, SEVEN), "prompt_tokens: 1.5: must be a whole number from 1 to 10,0"),
        (lambda e: e.Program("floor").step_us(None, SEVEN), "batch: null: is no batch: give a list of (new tokens, tokens"),
        (lambda e: e.Program("floor").step_us([(10**12, 0)], SEVEN), "batch: (1000000000000, 0) * 1: are no requests: "),
        (lambda e: e.Program("floor").step_us([(1, 5)], (*SEVEN[:2], "1")), "deployment: TP degree: '1': must be a whole "),
        (lambda e: e.sweep("champion", vary=["rate"]), "vary: ['rate']: names no values: give a mapping such as"),
        (lambda e: e.sweep("champion", vary={"rate": [5]}, load_rps=9.0), "load_rps tries the rates of one, two, three"),
        (lambda e: e.sweep("champion", load_rps=-1.0), "load_rps: -1.0: must be requests/s above 0"),
        (lambda e: e.sweep("champion", ids="x"), "ids: x: no such experiment: the closest of 24 are "),
        (lambda e: e.sweep("champion", e.load_experiments()), "loads: an Experiment is no load: give files or plans, which"),
        (lambda e: e.sweep("champion", []), "loads: there are none: give files or plans"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_one_line(
    call: Callable[[Any], object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(evolve.InputError) as caught:
        call(evolve)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
