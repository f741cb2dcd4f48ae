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
CHAT = evolve.Spec.of("llama-3.1-8b", "H100", rate=1, prompt_len=100, output_len=10)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda e: e.load_experiments(FRAME), "experiments: a DataFrame is no experiment: give files (`evolve ingest"),
        (lambda e: e.predict("champion", None), "experiments: null is no experiment: give files"),
        (lambda e: e.fit("linear", "bundled", only=3), "only: 3: names no constants: give alpha, beta, a method, or"),
        (lambda e: e.fit("linear", "bundled", method=["x"]), "method: ['x']: is not a method: choose one of auto"),
        (lambda e: e.fit("linear", "bundled", out=3), "out: 3: give a file to write"),
        (lambda e: e.load_run(FRAME), "path: a DataFrame: give the folder of a run"),
        (lambda e: e.resume(None), "path: null: give the folder of a run"),
        (lambda e: e.search(FRAME), "config: a DataFrame: give a bundled name, a YAML file, or its contents as a"),
        (lambda e: e.search("smoke", workers="2"), "workers: '2': must be a whole number from 1 to 10,000"),
        (lambda e: e.search("smoke", on_progress="print"), "on_progress: 'print': cannot be called: give a function"),
        (lambda e: e.search("smoke", start=[3]), "start: 3: give programs by name or file, or evolve.Program"),
        (lambda e: e.Program(None), "program: null: give a shipped name, a file, RUN:ID, a text, or a run's champion"),
        (lambda e: e.Program("floor").queueing_us(1.5, SEVEN), "prompt_tokens: 1.5: must be a whole number from 1 to"),
        (lambda e: e.Program("floor").step_us(None, SEVEN), "batch: null: is no batch: give a list of (new tokens,"),
        (lambda e: e.Program("floor").step_us([(10**12, 0)], SEVEN), "batch: (1000000000000, 0) * 1: are no requests:"),
        (lambda e: e.Program("floor").step_us([(1, 5)], (*SEVEN[:2], "1")), "deployment: TP degree: '1': must be a"),
        (lambda e: e.sweep("champion", vary=["rate"]), "vary: ['rate']: names no values: give a mapping such as"),
        (lambda e: e.sweep("champion", vary={"rate": []}), "vary: rate: 0 values: give 1 to 1,000"),
        (lambda e: e.sweep("champion", vary={"rates": [1]}), "vary: rates: cannot be varied: did you mean 'rate'?"),
        (lambda e: e.sweep("champion", vary={"tp": "1:2"}), "vary: tp: 1:2 has 2 parts: write FIRST:LAST:STEP"),
        (lambda e: e.sweep("champion", vary={"rate": "1:999:1", "tp": "1:99:1"}), "vary: 98,901 combinations, at most"),
        (lambda e: e.sweep("champion", slo={"ttft_p99": 500}), "slo: ttft_p99 must be a time above 0 with its unit"),
        (lambda e: e.sweep("champion", slo="ttft=500"), "slo: ttft=500: 'ttft' is not a figure: end it in _mean, "),
        (lambda e: e.fit("linear", "bundled", out="no/such/x.py"), "no/such/x.py: cannot be written (No such file or"),
        (lambda e: e.fit("linear", "bundled", out="x.txt"), "x.txt: a program's file ends in .py, its record is next"),
        (lambda e: e.fit("linear", "bundled", only=["bet"]), "only: bet: no such constant or method: did you mean"),
        (lambda e: e.search("smoke", out="."), ".: exists already, and nothing in it can be resumed: choose another"),
        (lambda e: e.load_run(""), "path: '': give the folder of a run"),
        (lambda e: e.Program(""), "program: '': give a shipped name, a file, RUN:ID, a text, or a run's champion"),
        (
            lambda e: e.deployments("champion", CHAT, vary=["tp"]),
            "vary: ['tp']: names no values: give a mapping such as",
        ),
        (
            lambda e: e.deployments("champion", CHAT, slo="ttft_p99=1"),
            "slo: ttft_p99=1: ttft_p99 must be a time above 0",
        ),
        (
            lambda e: e.deployments("champion", CHAT, prices={"H20": 1}),
            "prices H20: is not a known GPU: the closest are",
        ),
        (lambda e: e.deployments("champion", CHAT, prices={"H100": 0}), "prices H100=0: '0' is no price: write GPU="),
        (lambda e: e.deployments("champion", CHAT, prices={"H200": 2.5}), "prices: there is none of H100-SXM-80GB"),
        (lambda e: e.deployments("champion", CHAT, prices=2.5), "prices: 2.5: names no GPUs: give a mapping"),
        (lambda e: e.deployments("champion", "plan.yaml"), "load: 'plan.yaml': is no spec: give one, as"),
        (
            lambda e: e.deployments("champion", CHAT, vary={"gpus": [8]}),
            "experiment 'llama-3.1-8b': has no separate pools",
        ),
        (lambda e: e.deployments("champion", CHAT, vary={"rate": [5]}), "experiment 'llama-3.1-8b': has one load in a"),
        (lambda e: e.search("smoke", start=5), "start: 5: give programs by name or file, or evolve.Program"),
        (lambda e: e.sweep("champion", ids="x"), "ids: x: no such experiment: the closest of 24 are "),
        (lambda e: e.sweep("champion", []), "loads: there are none: give files"),
    ],
)
def test_what_cannot_be_meant_is_one_line(
    call: Callable[[Any], object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(evolve.InputError) as caught:
        call(evolve)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rate": float("nan")}, "llama-3.1-8b on H100, TP 1: workload.stages[0].rate must be finite, got nan"),
        ({"rate": -5}, "llama-3.1-8b on H100, TP 1: workload.stages[0].rate must be > 0, got -5"),
        ({"rate": "5"}, "llama-3.1-8b on H100, TP 1: workload.stages[0].rate must be a number, got '5'"),
        ({"prompt_len": 1000.5}, "llama-3.1-8b on H100, TP 1: prompt_len must be a whole number of tokens, got 1000.5"),
        ({"prompt_len": "100"}, "llama-3.1-8b on H100, TP 1: prompt_len must be a whole number of tokens, got '100'"),
        ({"output_len": {"constant": 3}}, "llama-3.1-8b on H100, TP 1: output_len must be a whole number of tokens,"),
        ({"model": "nomodel"}, "model nomodel: is not a known model"),
        ({"hardware": "H1000"}, "hardware H1000: is not a known GPU: the closest are H100, H200, A100-80;"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_when_it_is_made(given: dict[str, Any], message: str) -> None:
    spec = {"model": "llama-3.1-8b", "hardware": "H100", "rate": 5, "prompt_len": 1000, "output_len": 300}
    with pytest.raises(evolve.InputError) as caught:
        evolve.Spec.of(**(spec | given))
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


def test_a_plan_without_room_is_refused_where_it_is_predicted_unless_a_sweep_gives_it_room() -> None:
    large = evolve.Spec.of("llama-3.1-70b", "H100", rate=1, prompt_len=100, output_len=10)
    with pytest.raises(evolve.InputError, match="leaves no room for KV cache"):
        evolve.predict("floor", large)
    rows = evolve.sweep("floor", large, vary={"tp": [1, 4]}, seeds=1)
    assert "no room" in rows["impossible"][0] and rows["e2e_mean_ms"].notna().tolist() == [False, True]


def test_limits_are_texts_or_a_mapping() -> None:
    chat = evolve.Spec.of("llama-3.1-8b", "H100", rate=1, prompt_len=100, output_len=10)
    text, mapping = (
        evolve.sweep("floor", chat, seeds=1, slo=slo)
        for slo in ("ttft_p99=500ms,itl_mean=9ms", {"ttft_p99": "500ms", "itl_mean": "9ms"})
    )
    assert text.equals(mapping) and text["holds"].all()
