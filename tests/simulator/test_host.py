"""The host simulator's own results: every row, every aggregate figure, by the fast clock, the exact and the plain."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from paths import SHARED
from plain_clock import host, step_function

from evaluator.host_summary import aggregate
from evolve.cli import run_command
from evolve.host.cases import program_text, read_case, read_trace
from evolve.host.simulate import write_results
from simulator.clock.bind import bind, ticks
from simulator.clock.replay import replay_bound
from simulator.language.opcodes import assemble
from simulator.language.parse import parse
from simulator.serving.load import Load

GOLDEN = SHARED / "golden"
# without eviction, preemption, horizon and clients that give up nothing needs the exact clock
_FAST = """01_light 02_saturation 03_chunk_budget 04_chunk_threshold 05_maxseqs 07_prefix 09_single_token 10_simultaneous
    11_alpha 12_big_beta0 15_full_hit 17_fractional 19_drop_and_zero_output 20_block32 40_linear_kv_02 40_linear_kv_10
    40_linear_kv_16"""
FAST = _FAST.split()
EXACT = ["06_tiny_kv", "06b_tiny_kv_livelock", "18_horizon", "23_prefill_preempt", "24_timeout", "40_linear_kv_23"]


def recorded(name: str) -> Path:
    if not GOLDEN.is_dir():
        pytest.skip(f"../shared absent: no recorded results of the host ({name})")
    return GOLDEN / name


def rows(path: Path) -> list[str]:
    return sorted(path.read_text().splitlines())


def test_every_recorded_case_is_compared() -> None:
    recorded("")
    assert sorted(d.name for d in GOLDEN.iterdir() if d.is_dir()) == sorted(FAST + EXACT)


@pytest.mark.parametrize("force_exact", [False, True], ids=["auto", "exact"])
@pytest.mark.parametrize("name", FAST + EXACT)
def test_rows_and_aggregates_are_the_hosts(name: str, force_exact: bool, tmp_path: Path) -> None:
    """Also of clients who would give up an hour after each arrival, when every request has completed: the host skips
    their alarms, so the recorded figures stay."""
    folder = recorded(name)
    case = read_case(folder / "case.json")
    requests, number = read_trace(folder / "trace.csv", case)
    program = parse(program_text(case) or "")
    bound = bind(assemble(program), program.theta, {})
    seen = replay_bound(Load(requests, case.limits), bound, force_exact=force_exact, account=True)
    assert seen.run.fast == (name in FAST and not force_exact)
    with (tmp_path / "results.csv").open("wb") as out:
        write_results(seen, number, out)
    assert rows(tmp_path / "results.csv") == rows(folder / "results.csv")
    if (folder / "aggregate.json").exists():
        figures = json.loads((folder / "aggregate.json").read_text())
        assert aggregate(seen) == figures
        if name in FAST:
            patient = replace(requests, deadline_us=requests.arrival_us + 3_600_000_000)
            seen = replay_bound(Load(patient, case.limits), bound, force_exact=force_exact, account=True)
            assert aggregate(seen) == figures


LONG = [pytest.param(name, marks=pytest.mark.slow) for name in ("15_full_hit", "24_timeout")]


@pytest.mark.parametrize("name", ["06_tiny_kv", "20_block32", "23_prefill_preempt", *LONG])
def test_the_plain_clock_agrees_with_the_host(name: str) -> None:
    """The yardstick itself, on the cases that need the most rules. The long ones are slow: the compiled clocks agree with
    the host on them, and with the yardstick on random loads."""
    folder = recorded(name)
    case = read_case(folder / "case.json")
    requests, number = read_trace(folder / "trace.csv", case)
    queueing = ticks(case.alpha["base_us"])
    assert case.alpha["per_input_token_us"] == 0
    told = {
        int(r["request_id"].removeprefix("request_")): int(r["ttft_us"]) - ticks(case.alpha["per_output_token_us"])
        for r in csv.DictReader((folder / "results.csv").read_text().splitlines())
    }
    step = step_function(parse(program_text(case) or ""), {})
    seen = host(requests, [queueing] * len(requests), case.limits, step)
    done = [r for r in seen.requests if r.state == "completed"]
    assert {int(number[r.row]): (r.first or 0) - r.arrival for r in done} == told


@pytest.mark.parametrize("name", ["24_timeout", "40_linear_kv_23"])
def test_simulate_writes_the_hosts_rows(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = recorded(name)
    out = tmp_path / "results.csv"
    files = ["--case", str(folder / "case.json"), "--trace", str(folder / "trace.csv")]
    assert run_command(["simulate", *files, "--out", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert rows(out) == rows(folder / "results.csv")
    assert told["completed_requests"] == len(rows(out)) - 1 and told["clamped_times"] == 0
    assert np.array_equal(
        read_trace(folder / "trace.csv", read_case(folder / "case.json"))[1], np.arange(told["injected_requests"])
    )


CLOSED = SHARED / "golden_closed"


@pytest.mark.parametrize("force_exact", [False, True], ids=["auto", "exact"])
@pytest.mark.parametrize(
    "name", sorted(p.name for p in CLOSED.iterdir() if p.is_dir()) if CLOSED.is_dir() else ["none"]
)
def test_closed_loads_are_the_hosts(name: str, force_exact: bool) -> None:
    """Every arrival, first and last chunk of the loads that the host itself made (golden_closed/README.md)."""
    if not CLOSED.is_dir():
        pytest.skip("../shared absent: no closed loads recorded by the host")
    folder = CLOSED / name
    case = read_case(folder / "case.json")
    requests, _ = read_trace(folder / "requests.csv", case)
    program = parse(program_text(case) or "")
    seen = replay_bound(
        case.load(requests), bind(assemble(program), program.theta, {}), force_exact=force_exact, account=True
    )
    with (folder / "requests.csv").open() as file:
        told = list(csv.DictReader(file))
    assert seen.run.fast == (name != "c07_few_blocks" and not force_exact)
    columns = seen.requests.arrival_us, seen.ttft_us, seen.e2e_us - seen.completion_us
    for key, values in zip(("arrival_us", "first_chunk_us", "last_chunk_us"), columns, strict=True):
        assert values.tolist() == [int(row[key]) for row in told], key
    figures, summary = aggregate(seen), json.loads((folder / "case.json").read_text())["host_summary"]
    assert {key: figures[key] for key in summary} == pytest.approx(summary)
