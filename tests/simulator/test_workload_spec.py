"""The host's workload spec: written and read back, and what no load here holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from simulator.common.errors import InputError
from simulator.serving.distribution import Distribution, constant
from simulator.serving.load import EngineLimits, load_under
from simulator.serving.spec import read_spec
from simulator.serving.traces.workload_spec import BEGIN_OVER, left_out, read_workload_spec, unheld, workload_spec_text
from simulator.serving.workload import HOST, Workload

LIMITS = EngineLimits(max_seqs=8, budget=2048, threshold=0, block=16, blocks=10_000)
LENGTHS = {
    "prompt_len": {"uniform": {"min": 80, "max": 100}},
    "output_len": {"normal": {"mean": 9, "sd": 2, "max": 30}},
}
CLOSED = {"concurrency": 4, "requests": 40, "release": "host"}
STAGE = {"rate": 4.0, "duration_s": 10}


def load_of(**workload: Any) -> Workload:
    about = {"id": "a", "model": "llama-3.1-8b", "hardware": "H100-SXM-80GB"}
    return read_spec({**about, "workload": {"name": "bench", **workload}}, "test").workload


def spec_of(tmp_path: Path, text: str) -> Workload:
    (tmp_path / "w.yaml").write_text(text)
    return read_workload_spec(tmp_path / "w.yaml")[0]


@pytest.mark.parametrize(
    "workload",
    [
        CLOSED | LENGTHS,
        CLOSED | LENGTHS | {"think_time_s": 0.000057, "timeout_s": 20.5},
        CLOSED | {"prompt_len": 300, "output_len": 5},
        CLOSED | {"shared_prefix": {"groups": 1, "system_prompt_len": 60, "question_len": 40}, "output_len": 5},
        {"stages": [STAGE]} | LENGTHS,
        {"stages": [STAGE | {"arrival": {"gamma": {"cv": 2.5}}, "output_len": 7}], "timeout_s": 3} | LENGTHS,
        {"stages": [STAGE], "arrival": "even", "prompt_len": 300, "output_len": 5},
    ],
)
def test_a_load_that_is_written_has_the_same_requests(workload: dict[str, Any], tmp_path: Path) -> None:
    own = load_of(**workload)
    assert not unheld(own) and not left_out(own)
    read = spec_of(tmp_path, workload_spec_text(own, "a", 1))
    assert (read.name, read.timeout_s) == ("a", own.timeout_s)
    ours, theirs = (load_under(w, "a", 3, LIMITS, 1) for w in (own, read))
    for column in ("arrival_us", "input_len", "output_len", "group", "shared_len", "deadline_us"):
        np.testing.assert_array_equal(getattr(ours.requests, column), getattr(theirs.requests, column), column)
    assert (ours.clients is None) == (theirs.clients is None) == ("stages" in workload)
    if ours.clients and theirs.clients:
        for column in ("first", "users", "spread_us", "think_us", "at_engine"):
            np.testing.assert_array_equal(getattr(ours.clients, column), getattr(theirs.clients, column), column)


def test_the_text_of_a_closed_load(tmp_path: Path) -> None:
    """The keys are those of the host's WorkloadSpec and ClientSpec (sim/workload/spec.go)."""
    own = load_of(**CLOSED, prompt_len={"uniform": {"min": 8, "max": 9}}, output_len=5, think_time_s=0.25)
    assert yaml.safe_load(workload_spec_text(own, "bench", 7)) == {
        "version": "2",
        "seed": 7,
        "category": "language",
        "num_requests": 40,
        "clients": [
            {
                "id": "bench",
                "concurrency": 4,
                "think_time_us": 250_000,
                "timeout": 0,
                "input_distribution": {"type": "empirical", "params": {"8": 1, "9": 1}},
                "output_distribution": {"type": "constant", "params": {"value": 5}},
                "streaming": True,
            }
        ],
    }


SPEC = """
version: "2"
seed: 42
category: language
aggregate_rate: 0
num_requests: 20
clients:
- {id: users, tenant_id: "", slo_class: "", rate_fraction: 0, concurrency: 2, arrival: {process: ""}, streaming: false,
   input_distribution: {type: empirical, params: {"819": 0.25, "820": 0.25, "821": 0.25, "822": 0.25}},
   output_distribution: {type: gaussian, params: {mean: 30, std_dev: 5, min: 10, max: 50}}}
"""


def test_users_are_read_as_the_host_has_them(tmp_path: Path) -> None:
    """They give up after 300 s unless told otherwise, and are free at the engine's completion."""
    w = spec_of(tmp_path, SPEC)
    [stage], source = w.stages, w.source
    assert (w.name, stage.users, stage.requests, w.timeout_s) == ("users", 2, 20, 300.0)
    assert w.clients and w.clients.release == HOST and w.clients.think_time_s == constant(0.0)
    assert source.question_len == Distribution("uniform", low=819, high=822)  # type: ignore[union-attr]
    assert source.output_len == Distribution("normal", mean=30.0, sd=5.0, low=10.0, high=50.0)  # type: ignore[union-attr]
    assert spec_of(tmp_path, SPEC.replace("concurrency: 2", "concurrency: 2, timeout: 0")).timeout_s is None


def test_keys_that_were_not_set_say_nothing(tmp_path: Path) -> None:
    """Go writes them with their zero values."""
    top = 'seed: 42\nhorizon: 0\ncohorts: []\nservegen_data: {path: "", span: 0}\nlora: {}\n'
    client = '- {prefix_group: "", prefix_length: 0, reasoning: {}, network: null, think_time_us: 0, lora: "", '
    text = SPEC.replace("seed: 42\n", top).replace("- {", client)
    assert spec_of(tmp_path, text) == spec_of(tmp_path, SPEC)


def test_a_spec_has_a_seed(tmp_path: Path) -> None:
    for text, seed in ((SPEC, 42), (SPEC.replace("seed: 42\n", ""), 0)):
        (tmp_path / "w.yaml").write_text(text)
        assert read_workload_spec(tmp_path / "w.yaml")[1] == seed


@pytest.mark.parametrize(
    ("text", "mean"),
    [
        ("empirical, params: {100: 1, 300: 3}", 250.0),
        ("empirical, params: {100: 0.125, 300: 0.375}", 250.0),
        ("empirical, params: {7: 5}", 7.0),
        ("constant, params: {value: 1.5e+1}", 15.0),  # as Go writes large values
        ("gaussian, params: {mean: 90, std_dev: 0, min: 1, max: 50}", 50.0),  # cut off at max
        ("pareto_lognormal, params: {alpha: 1, xm: 1, mu: 4, sigma: 0.5, mix_weight: 0}", 61.87),  # exp(4.125)
    ],
)
def test_lengths_are_those_of_the_host(text: str, mean: float, tmp_path: Path) -> None:
    d = spec_of(tmp_path, SPEC.replace("gaussian, params: {mean: 30, std_dev: 5, min: 10, max: 50}", text)).source
    assert d.output_len.draw_whole(np.random.default_rng(1), 200_000).mean() == pytest.approx(mean, rel=0.01)  # type: ignore[union-attr]


REFUSED = """
num_requests: 20 => horizon: 5000000 | horizon is not read
num_requests: 20 => num_requests: 0 | num_requests is missing
category: language => category: reasoning | only texts are replayed
- {id: users, => - {id: users, reasoning: {multi_turn: {max_rounds: 2}}, | clients[0].reasoning is not replayed
- {id: users, => - {id: users, network: {rtt_ms: 2}, | clients[0].network is not replayed
- {id: users, => - {id: users, rate: 2, | clients[0].rate is not a key of a client
rate_fraction: 0 => rate_fraction: 1 | rate_fraction and concurrency exclude each other
concurrency: 2 => concurrency: 0 | aggregate_rate is missing
type: gaussian => type: exponential | type 'exponential' is not held by a load here
{mean: 30, std_dev: 5, min: 10, max: 50} => {mean: 30, std_dev: 5, min: 60, max: 50} | max 50 is less than min, 60
params: {"819": 0.25 => file: x.csv, params: {"819": 0.25 | file is not read
"819": 0.25 => "many": 0.25 | params.many is no number of tokens
version: "2" => cohorts: [{id: x}] | cohorts is not read
"""


@pytest.mark.parametrize("row", REFUSED.strip().splitlines())
def test_what_no_load_holds_is_one_line(row: str, tmp_path: Path) -> None:
    change, expected = row.split(" | ")
    old, new = change.split(" => ")
    assert old in SPEC
    with pytest.raises(InputError) as error:
        spec_of(tmp_path, SPEC.replace(old, new))
    assert "w.yaml: " in str(error.value) and expected in str(error.value) and "\n" not in str(error.value)


def test_two_clients_are_refused(tmp_path: Path) -> None:
    head, client = SPEC.split("- {id")
    with pytest.raises(InputError, match="clients has 2 entries"):
        spec_of(tmp_path, f"{head}- {{id{client}- {{id{client}")


@pytest.mark.parametrize(
    ("process", "expected"),
    [
        ("{process: weibull, cv: 2}", "process 'weibull' is not held"),
        ("{process: gamma, shape: 2}", "shape is not read"),
    ],
)
def test_arrivals_that_no_load_has_are_refused(process: str, expected: str, tmp_path: Path) -> None:
    text = SPEC.replace("aggregate_rate: 0", "aggregate_rate: 5").replace("concurrency: 2, ", "")
    with pytest.raises(InputError, match=expected):
        spec_of(tmp_path, text.replace('{process: ""}', process))


@pytest.mark.parametrize(
    ("workload", "what"),
    [
        ({"stages": [STAGE, STAGE]} | LENGTHS, "several stages"),
        ({"stages": [STAGE], "max_in_flight": 3} | LENGTHS, "a cap on the requests in flight"),
        ({"stages": [STAGE], "session": {"turns": 2, "think_time_s": 1}} | LENGTHS, "conversations"),
        ({"stages": [STAGE], "arrival": {"burst": {"size": 5}}} | LENGTHS, "arrivals in bursts"),
        (CLOSED | LENGTHS | {"think_time_s": {"uniform": {"min": 1.0, "max": 2.0}}}, "times to think that differ"),
        (CLOSED | LENGTHS | {"output_len": {"lognormal": {"mean": 9, "sd": 2, "max": 30}}}, "such lengths"),
        (CLOSED | LENGTHS | {"prompt_len": {"uniform": {"min": 1, "max": 200_001}}}, "such lengths"),
    ],
)
def test_what_no_spec_holds_is_named(workload: dict[str, Any], what: str) -> None:
    assert unheld(load_of(**workload)) == what


def test_a_warm_up_and_a_ramp_are_left_out() -> None:
    own = load_of(**CLOSED, **LENGTHS, warmup_requests=8, ramp_s=3.0)
    assert left_out(own) == ["the warm-up of 8 requests", BEGIN_OVER] and not unheld(own)


def test_users_who_think_begin_otherwise_than_the_hosts() -> None:
    """The host's begin over one time to think; ours all at once, without `ramp_s` or `release: host`."""
    about = {"concurrency": 4, "requests": 40, "think_time_s": 0.5} | LENGTHS
    assert left_out(load_of(**about)) == [BEGIN_OVER]
    assert not left_out(load_of(**about, ramp_s=0.5)) and not left_out(load_of(**about, release="host"))
