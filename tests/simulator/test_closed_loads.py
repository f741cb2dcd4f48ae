"""Closed loads and caps in experiments files: read, written, refused, drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluator.score import predictions, score_set
from simulator.common.errors import InputError
from simulator.language.complete import complete
from simulator.language.parse import parse
from simulator.serving.bundled import load_specs
from simulator.serving.experiment import ALIKE, Experiment, deploy
from simulator.serving.load import load_of
from simulator.serving.spec import REQUESTS, WARMUP, Spec, read_spec
from simulator.serving.workload import at_users, mean_rate

LENGTHS = {"prompt_len": {"uniform": {"min": 80, "max": 100}}, "output_len": {"uniform": {"min": 8, "max": 10}}}
CLOSED = {"name": "bench", "concurrency": 4, "requests": 40, **LENGTHS}


def spec_of(**workload: Any) -> Spec:
    about = {"id": "a", "model": "llama-3.1-8b", "hardware": "H100-SXM-80GB"}
    return read_spec({**about, "workload": {"name": "bench", **workload}}, "test")


@pytest.mark.parametrize(
    "workload",
    [
        CLOSED,
        CLOSED | {"warmup_requests": 8, "think_time_s": {"uniform": {"min": 1.0, "max": 2.0}}, "ramp_s": 3.0},
        CLOSED | {"release": "host", "think_time_s": 0.5, "timeout_s": 20.0},
        LENGTHS
        | {"stages": [{"concurrency": 2, "requests": 20}, {"concurrency": 8, "requests": 16, "output_len": 30}]},
        LENGTHS | {"stages": [{"rate": 5.0, "duration_s": 9.0}], "max_in_flight": 3, "measured_from": "due"},
    ],
)
def test_what_is_read_is_written(workload: dict[str, Any]) -> None:
    spec = spec_of(**workload)
    entry = spec.to_entry()
    assert read_spec(entry, "again") == spec
    written = {key: value for key, value in entry["workload"].items() if key not in ("ignore_eos", "arrival")}
    assert written == {"name": "bench", **workload}


REFUSED = """
{"requests": None} => workload.requests must be a whole number
{"concurrency": 0} => workload.concurrency must be
{"concurrency": 1.5} => workload.concurrency must be
{"stages": [{"rate": 1.0, "duration_s": 60.0}]} => workload.concurrency and stages exclude each other
{"arrival": "poisson"} => workload.arrival and concurrency exclude each other
{"session": {"turns": 2, "think_time_s": 1}} => workload.session and concurrency exclude each other
{"max_in_flight": 3} => workload.max_in_flight applies to a load with a rate only
{"measured_from": "due"} => workload.measured_from applies to a load with a rate only
{"release": "engine"} => workload.release 'engine' is not known
{"ramp_s": -1} => workload.ramp_s must be
{"warmup_requests": 2.5} => workload.warmup_requests must be
"""


@pytest.mark.parametrize("row", REFUSED.strip().splitlines())
def test_what_cannot_be_is_one_line(row: str) -> None:
    changes, expected = row.split(" => ")
    with pytest.raises(InputError) as error:
        spec_of(**(CLOSED | eval(changes)))
    assert expected in str(error.value) and "\n" not in str(error.value)


def test_rates_and_users_are_not_mixed() -> None:
    stages = [{"rate": 1.0, "duration_s": 60.0}, {"concurrency": 2, "requests": 20}]
    with pytest.raises(InputError, match="stages have a rate in one, concurrency in another"):
        spec_of(stages=stages, **LENGTHS)
    for key, value in (("think_time_s", 1), ("ramp_s", 1), ("warmup_requests", 1)):
        with pytest.raises(InputError, match=f"{key} applies to a load with concurrency only"):
            spec_of(stages=stages[:1], **LENGTHS, **{key: value})
    closed, rated = spec_of(**CLOSED), spec_of(stages=stages[:1], **LENGTHS)
    with pytest.raises(InputError, match="rate is given, but the load has concurrency"):
        closed.vary(rate=5.0)
    with pytest.raises(InputError, match="concurrency is given, but the load has a rate"):
        rated.vary(concurrency=5)
    with pytest.raises(ValueError, match="has no number of users"):
        at_users(rated.workload, 5)
    assert mean_rate(closed.workload) is None


def test_a_warm_up_is_a_load_of_its_own_and_counts_in_no_figure() -> None:
    e = deploy(spec_of(**CLOSED, warmup_requests=8))
    load = load_of(e, 1)
    assert load.clients is not None and load.clients.first.tolist() == [0, 8, 48]
    assert load.requests.stage.tolist() == [-1] * 8 + [0] * 40
    program = complete(parse("def step_time(b, s): return 1000 + 10 * b.prefill_tokens"))
    [prediction] = predictions(program, score_set([e], [1]))
    assert prediction.predicted.summary is not None and prediction.predicted.summary.completed == 40
    # lengths are whole numbers from 0.8 of the most to it, as the clients draw them
    assert set(np.unique(load.requests.input_len)) <= set(range(80, 101))


def test_a_plan_has_ten_requests_for_each_client_after_two() -> None:
    """As InferenceX loads its runs (data/serving/README.md)."""
    spec = Spec.of("llama-3.1-8b", "H100", prompt_len=100, output_len=10, concurrency=4)
    [stage], clients = spec.workload.stages, spec.workload.clients
    assert clients is not None
    assert (stage.users, stage.requests, clients.warmup_requests) == (4, 4 * REQUESTS, 4 * WARMUP)
    wider = spec.vary(concurrency=8).workload
    assert (wider.stages[0].users, wider.stages[0].requests) == (8, 80)
    assert wider.clients is not None and wider.clients.warmup_requests == 16
    assert ALIKE in deploy(spec).notes and ALIKE not in deploy(spec.vary(concurrency=1)).notes


def test_a_trace_with_concurrency_gives_lengths_and_not_arrivals(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("input_len,output_len,e2e_ms,ttft_ms\n" + "100,5,50,20\n" * 6)
    (tmp_path / "e.yaml").write_text(
        "version: 1\nexperiments:\n- {id: a, model: llama-3.1-8b, hardware: H100-SXM-80GB, "
        "workload: {name: t, trace: t.csv, concurrency: 2}}\n"
    )
    [spec] = load_specs(str(tmp_path / "e.yaml"))
    e: Experiment = deploy(spec)
    assert e.observed and e.observed.summary and e.observed.summary.e2e_ms.mean == 50.0
    load = load_of(e, 1)
    assert load.clients is not None and load.clients.users.tolist() == [2] and not load.requests.arrival_us.any()
