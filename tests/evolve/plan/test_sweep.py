"""`evolve predict --sweep`: its rows are single predictions, its goodput a count over replays, its knees follow from both."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_world
import yaml
from commands import evolve, refused

from evolve.plan import sweep as sweeping
from evolve.plan.axes import parse_axes
from evolve.plan.slo import parse_slo
from evolve.run.program import load
from simulator.clock.replay import Replay, replay
from simulator.common.errors import OWN_GPU, InputError
from simulator.serving.bundled import load_experiments
from simulator.serving.experiment import Engine, Experiment, Stage

RATES = (10, 50, 90, 110, 130)  # requests/s around the most that the tiny world's deployments serve
SEEDS = (1, 2, 3)  # those of `evolve predict`
SLO = "ttft_p99=60ms,itl_mean=15ms"
LATENCIES = ("e2e_ms", "ttft_ms", "itl_ms")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "data.yaml"
    path.write_text(tiny_world.DATA)
    return path


def printed(capsys: pytest.CaptureFixture[str], *args: object, status: int = 0) -> dict[str, Any]:
    """The JSON of `evolve predict champion ARGS`, which ends with this exit status."""
    capsys.readouterr()
    assert evolve("predict", "champion", *args, "--json") == status, capsys.readouterr().err
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    return value


def single(capsys: pytest.CaptureFixture[str], file: Path) -> dict[str, Any]:
    """What `evolve predict` without a sweep says of the experiment in this file, but for intervals, of which a
    sweep has only whether everything holds at their upper ends."""
    [e] = printed(capsys, "--experiments", file)["experiments"]
    found: dict[str, Any] = e
    found["warnings"] = [text for text in e["warnings"] if "so the intervals" not in text]
    for name in LATENCIES:
        found["predicted"][name] = {q: found["predicted"][name][q] for q in ("mean", "p50", "p90", "p99")}
    return found


def plan(folder: Path, ident: str, engine: dict[str, Any], rate: float | None = None, **workload: Any) -> Path:
    """A file with one experiment of the tiny world, without observations, on another engine or under another load."""
    [entry] = [e for e in yaml.safe_load(tiny_world.DATA)["experiments"] if e["id"] == ident]
    entry = {key: value for key, value in entry.items() if key not in ("observed", "quality")}
    lasting_s = sum(stage["duration_s"] for stage in entry["workload"]["stages"])
    entry["engine"] = {**entry.get("engine", {}), **engine}
    entry["workload"] |= workload
    if rate is not None:
        entry["workload"]["stages"] = [{"rate": rate, "duration_s": lasting_s}]
    path = folder / f"plan-{ident}-{rate}-{'-'.join(map(str, engine.values()))}.yaml"
    path.write_text(yaml.safe_dump({"version": 1, "experiments": [entry]}))
    return path


def at_rates(ident: str, rate: float, data: Path) -> tuple[Experiment, list[Replay]]:
    """The experiment of the tiny world at one rate for 30 s, and its replays, one by one."""
    [e] = [e for e in load_experiments(data) if e.id == ident]
    lasting_s = sum(stage.duration_s for stage in e.workload.stages)
    e = replace(e, workload=replace(e.workload, stages=(Stage(rate, lasting_s),)))
    return e, [replay(e, load("champion").complete, seed) for seed in SEEDS]


def test_rows_and_knees_are_what_single_predictions_say(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The single predictions are of files that have that rate and TP degree, made without the code of the sweep."""
    at = "--experiments", data, "--id", "dense-chat"
    rates = ",".join(map(str, RATES))
    result = printed(capsys, *at, "--sweep", f"rate={rates}", "--sweep", "tp=1,2", "--slo", SLO)
    knees = {}
    for tp in (1, 2):
        failing = {}
        for rate in RATES:
            file = plan(tmp_path, "dense-chat", {"tensor_parallel": tp}, rate)
            expected = single(capsys, file)
            [row] = [r for r in result["rows"] if (r["rate_rps"], r["tp"]) == (rate, tp)]
            predicted = expected["predicted"]
            assert {name: row[name] for name in predicted} == predicted
            # a sweep looks at intervals near the knee only
            said, alone = ([text for text in texts if "so the intervals" not in text]
                           for texts in (row["warnings"], expected["warnings"]))  # fmt: skip
            assert [text for text in said if "is reached" not in text] == alone
            assert row["most_running"] <= 128 and (row["most_running"] == 128) == (said != alone)
            share = expected["components"]["waiting"] / predicted["e2e_ms"]["mean"]
            assert row["waiting_share"] == share
            failing[rate] = [
                *(["ttft_p99"] if predicted["ttft_ms"]["p99"] > 60.0 else []),
                *(["itl_mean"] if predicted["itl_ms"]["mean"] > 15.0 else []),
                *(["queue grows"] if share > 0.05 else []),
            ]
            assert row["fails"] == failing[rate] and row["queue_grows"] == (share > 0.05)
            assert row["holds"] == {name: name not in failing[rate] for name in ("ttft_p99", "itl_mean")}
        knees[tp] = next(rate for rate in RATES if failing[rate])
        [knee] = [k for k in result["knees"] if k["tp"] == tp]
        assert (knee["rate_rps"], knee["fails"]) == (knees[tp], failing[knees[tp]])
        assert knee["holds_up_to_rps"] == RATES[RATES.index(knees[tp]) - 1] and knee["last_rps"] == RATES[-1]
    assert RATES[0] < knees[1] < knees[2] < RATES[-1]


@pytest.mark.parametrize("ident, rate", [("dense-chat", 90), ("dense-overloaded", 70)])
def test_goodput_and_throughput_are_counts_over_replays(
    ident: str, rate: float, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Counted request by request. In the second one, clients give up after 5 s."""
    limits = "ttft_p99=60ms,e2e_mean=1s,itl_p50=20000us"
    found = printed(capsys, "--experiments", data, "--id", ident, "--sweep", f"rate={rate}", "--slo", limits, status=1)
    [row] = found["rows"]
    assert found["slo_ms"] == {"ttft_p99": 60.0, "e2e_mean": 1000.0, "itl_p50": 20.0}
    e, replays = at_rates(ident, rate, data)
    good, done, tokens, offered = [], [], [], []
    for r in replays:
        meeting, completed, answered, last_s = 0, 0, 0, e.workload.stages[0].duration_s
        for i in range(len(r.requests)):
            if r.completed[i]:
                completed += 1
                answered += r.requests.output_len[i]
                last_s = max(last_s, (r.requests.arrival_us[i] + r.e2e_us[i]) / 1e6)
                meeting += bool(r.ttft_us[i] <= 60_000 and r.e2e_us[i] <= 1_000_000 and r.itl_us[i] <= 20_000)
            else:  # its client left
                last_s = max(last_s, r.requests.deadline_us[i] / 1e6)
        good.append(meeting / last_s)
        done.append(completed / last_s)
        tokens.append(answered / last_s)
        offered.append(len(r.requests) / e.workload.stages[0].duration_s)
    assert 0 < sum(good) < sum(done)
    assert row["goodput_rps"] == pytest.approx(sum(good) / len(SEEDS), rel=1e-12)
    assert row["completed_rps"] == pytest.approx(sum(done) / len(SEEDS), rel=1e-12)
    assert row["output_tokens_per_s"] == pytest.approx(sum(tokens) / len(SEEDS), rel=1e-12)
    assert row["offered_rps"] == pytest.approx(sum(offered) / len(SEEDS), rel=1e-12) == rate
    assert (row["gave_up"] > 0) == (ident == "dense-overloaded")


def test_answers_of_one_token_have_no_itl_that_could_exceed_a_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = plan(tmp_path, "dense-chat", {}, output_len=1)
    [row] = printed(capsys, "--experiments", file, "--sweep", "rate=5", "--slo", "itl_p99=1us")["rows"]
    assert row["itl_ms"]["mean"] is None and row["holds"] == {"itl_p99": None} and row["fails"] == []
    assert row["goodput_rps"] == row["completed_rps"] > 4.5


def test_a_knee_may_be_the_lowest_rate_or_none(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = "--experiments", data, "--id", "dense-chat", "--sweep"
    [calm] = printed(capsys, *at, "rate=1:9:4")["knees"]
    assert (calm["rate_rps"], calm["fails"], calm["holds_up_to_rps"], calm["last_rps"]) == (None, [], 9.0, 9.0)
    [full] = printed(capsys, *at, "rate=300")["knees"]
    assert (full["rate_rps"], full["fails"], full["holds_up_to_rps"]) == (300.0, ["queue grows"], None)
    assert evolve("predict", "champion", *at, "rate=5,300", "--sweep", "max_num_seqs=4,128") == 0
    out = capsys.readouterr().out
    assert "Knee of dense-chat, max_num_seqs 4: rate 300: queue grows; holds up to 5\n" in out
    assert evolve("predict", "champion", *at, "rate=5") == 0
    assert "Knee of dense-chat: none up to 5\n" in capsys.readouterr().out
    assert evolve("predict", "champion", *at, "rate=300", "--slo", "ttft_p99=1s") == 1  # no rate keeps the limit
    assert "Knee of dense-chat: rate 300, the lowest: TTFT p99 fails, queue grows\n" in capsys.readouterr().out


def test_what_cannot_exist_is_a_row_that_says_why(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mixtral's 46.7 billion parameters of two bytes, 87 GiB, exceed one H100; 32 heads cannot be split by three."""
    args = "--experiments", data, "--id", "sparse-chat", "--sweep", "tp=1,2,3", "--sweep", "rate=0.01,4,1e6"
    result = printed(capsys, *args)
    why = {(row["tp"], row["rate_rps"]): row["impossible"] for row in result["rows"]}
    room = "engine.tensor_parallel leaves no room for KV cache, 87.0 GiB of weights per GPU of 79.11 GiB"
    assert why[1, 0.01] == why[1, 4.0] == f"sparse-chat, tp 1: {room}: use more or larger GPUs"
    assert "sparse-chat, tp 3: engine.tensor_parallel must divide the model's 32 attention heads" in why[3, 4.0]
    few = "workload.stages offer no request in 30 s: give a higher rate or a longer duration_s"
    assert why[2, 0.01] == f"sparse-chat, tp 2, rate 0.01: {few}"
    assert why[2, 1e6].startswith(
        "sparse-chat, tp 2, rate 1000000: workload.stages offer 3e+07 requests, at most 2e+07"
    )
    assert why[2, 4.0] is None
    for row in result["rows"]:
        assert (row["impossible"] is None) == (row["ttft_ms"] is not None) == (row["completed_rps"] is not None)
    assert [(knee["tp"], knee["rate_rps"], knee["last_rps"]) for knee in result["knees"]] == [(2, None, 4.0)]
    assert evolve("predict", "champion", *args, "--csv", tmp_path / "s.csv") == 0
    assert f"Impossible: {why[1, 4.0]}\n" in capsys.readouterr().out
    written = list(csv.DictReader(io.StringIO((tmp_path / "s.csv").read_text())))
    assert [row["impossible"] for row in written] == [row["impossible"] or "" for row in result["rows"]]


def test_a_deployment_that_cannot_exist_as_written_leaves_the_others_their_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mixtral has no room on one H100. What it is written with does not count where a sweep replaces it."""
    big, small = plan(tmp_path, "sparse-chat", {"tensor_parallel": 1}), plan(tmp_path, "dense-chat", {})
    both = tmp_path / "both.yaml"
    entries = [yaml.safe_load(file.read_text())["experiments"][0] for file in (big, small)]
    both.write_text(yaml.safe_dump({"version": 1, "experiments": entries}))
    every = printed(capsys, "--experiments", both, "--sweep", "tp=1,2", "--sweep", "rate=5")["rows"]
    why = {(row["experiment"], row["tp"]): row["impossible"] for row in every}
    assert [at for at, text in why.items() if text] == [("sparse-chat", 1)]
    assert why["sparse-chat", 1].startswith("sparse-chat, tp 1: engine.tensor_parallel leaves no room for KV cache")
    two = plan(tmp_path, "sparse-chat", {"tensor_parallel": 2})
    [alone] = printed(capsys, "--experiments", two, "--sweep", "tp=2", "--sweep", "rate=5")["rows"]
    assert alone in every
    [row] = [row for row in every if (row["experiment"], row["tp"]) == ("dense-chat", 1)]
    [alone] = printed(capsys, "--experiments", small, "--sweep", "tp=1", "--sweep", "rate=5")["rows"]
    assert row == alone
    found = printed(capsys, "--experiments", both, "--load", "5", status=1)  # nothing is enough for the big one
    loaded = {row["experiment"]: row["impossible"] for row in found["rows"]}
    assert loaded["dense-chat"] is None and loaded["sparse-chat"].startswith(
        "sparse-chat: engine.tensor_parallel leaves"
    )
    assert "leaves no room for KV cache" in refused(capsys, "predict", "--experiments", both, "--slo", "ttft_p99=1s")
    wrong = entries[0] | {"engine": {"tensor_parallel": "one"}}
    both.write_text(yaml.safe_dump({"version": 1, "experiments": [wrong, entries[1]]}))
    assert "engine.tensor_parallel must be" in refused(capsys, "predict", "--experiments", both, "--sweep", "tp=2")
    # Without room and with a mistake: that is named.
    wrong = entries[0] | {"workload": entries[0]["workload"] | {"output_len": "fifty"}}
    both.write_text(yaml.safe_dump({"version": 1, "experiments": [wrong, entries[1]]}))
    assert "workload.output_len must be" in refused(capsys, "predict", "--experiments", both, "--sweep", "tp=2")


def test_the_status_says_whether_every_experiment_keeps_the_limits_somewhere(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The dense deployment serves about 100 requests/s. No TTFT is below 1 us."""
    at = "predict", "champion", "--experiments", data, "--id", "dense-chat", "--sweep"
    both = "predict", "champion", "--experiments", data, "--id", "dense-chat,sparse-chat", "--sweep"
    assert evolve(*at, "rate=5,300", "--slo", "ttft_p99=1s") == 0  # one of the rates
    assert evolve(*at, "rate=300", "--slo", "ttft_p99=1s") == 1
    assert evolve(*at, "rate=300") == 0  # nobody asked for limits
    assert evolve(*at, "tp=1,2", "--slo", "ttft_p99=1us") == 1
    # Mixtral has no room on one GPU, so of it no combination keeps anything
    assert evolve(*both, "tp=1", "--sweep", "rate=5", "--slo", "ttft_p99=1s") == 1
    assert evolve(*both, "tp=2", "--sweep", "rate=5", "--slo", "ttft_p99=1s") == 0
    capsys.readouterr()


def test_with_another_tp_degree_measured_blocks_are_computed_from_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """400 blocks hold 18 requests, so many are preempted; two GPUs have room for far more (docs/experiments.md)."""
    file = plan(tmp_path, "dense-chat", {"total_kv_blocks": 400})
    one, two = printed(capsys, "--experiments", file, "--sweep", "tp=1,2", "--sweep", "rate=60")["rows"]
    note = "total_kv_blocks was measured with tp 1: here it is computed from memory"
    assert one["preemptions"] > 0 == two["preemptions"]
    assert note in two["warnings"] and note not in one["warnings"]
    free = plan(tmp_path, "dense-chat", {"tensor_parallel": 2}, 60)
    assert two["ttft_ms"] == single(capsys, free)["predicted"]["ttft_ms"]


def test_on_another_gpu_a_deployment_is_as_a_file_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The H100-NVL has no measured kernels (configs/hardware.yaml)."""
    file = plan(tmp_path, "dense-chat", {"total_kv_blocks": 400})
    args = "--experiments", file, "--sweep", "rate=10,30", "--sweep", "hardware=H100,H200,H100-NVL"
    result = printed(capsys, *args)
    assert result["sweep"]["hardware"] == ["H100-SXM-80GB", "H200-SXM-141GB", "H100-NVL-94GB"]
    rows = {(row["hardware"], row["rate_rps"]): row for row in result["rows"]}
    assert rows["H100-NVL-94GB", 30.0]["impossible"].startswith("dense-chat, H100-NVL-94GB: kernels: the program reads")
    note = "total_kv_blocks was measured with tp 1 on H100-SXM-80GB: here it is computed from memory"
    assert note in rows["H200-SXM-141GB", 30.0]["warnings"] and note not in rows["H100-SXM-80GB", 30.0]["warnings"]
    alone = plan(tmp_path, "dense-chat", {}, 30)
    alone.write_text(alone.read_text().replace("hardware: H100", "hardware: H200"))
    assert rows["H200-SXM-141GB", 30.0]["ttft_ms"] == single(capsys, alone)["predicted"]["ttft_ms"]
    assert evolve("predict", "champion", *args, "--sweep", "tp=1,2") == 0
    lines = capsys.readouterr().out.splitlines()
    head = lines.index("What each deployment serves, in requests/s")
    served = lines[head : lines.index("", head)]
    cells = {line.split("  ")[0]: re.split("  +", line.strip())[1:] for line in served if line.startswith("dense-chat")}
    assert cells["dense-chat, H200-SXM-141GB, tp 1"] == [
        "1",
        "30 or more",
        "30.00 or more",
        "30 or more",
        "30 or more ?",
    ]
    assert cells["dense-chat, H200-SXM-141GB, tp 2"] == [
        "2",
        "30 or more",
        "15.00 or more",
        "30 or more",
        "30 or more ?",
    ]
    assert cells["dense-chat, H100-NVL-94GB, tp 1"] == ["1", "impossible"]


def test_rates_of_a_request_in_minutes_have_digits(capsys: pytest.CaptureFixture[str]) -> None:
    """One request of 100 tokens in 300 s: 0.0033 requests/s, 0.33 tokens/s."""
    load = "--prompt-len", "1000", "--output-len", "100", "--sweep", "rate=0.004", "--seeds", "1"
    assert evolve("predict", "champion", "--model", "llama-3.1-8b", "--hardware", "H100", *load) == 0
    lines = capsys.readouterr().out.splitlines()
    head = next(line for line in lines if " done " in line)
    cells = next(line for line in lines if line.startswith("0.004"))
    figures = dict(zip(head.split("  ")[::-1], re.split("  +", cells)[::-1], strict=False))
    assert (figures["done"], figures["tokens/s"]) == ("0.0033", "0.33")


def test_a_queue_that_is_long_and_does_not_grow_is_no_knee(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Prompts that prefill for 95 ms each. At 6 requests/s an M/D/1 queue is 57 % full, so that requests wait for 63 ms
    on average, the last ones no longer than the first; at 14, more come than are served."""
    file = plan(tmp_path, "dense-chat", {}, prompt_len=4000, output_len=10)
    file.write_text(file.read_text().replace("duration_s: 15", "duration_s: 150"))
    rows = {row["rate_rps"]: row for row in printed(capsys, "--experiments", file, "--sweep", "rate=6,14")["rows"]}
    assert rows[6.0]["waiting_share"] > 0.1 and rows[6.0]["fails"] == [] and not rows[6.0]["queue_grows"]
    assert rows[14.0]["fails"] == ["queue grows"] and rows[14.0]["queue_grows"]


def test_the_most_requests_in_a_batch_are_counted_over_time(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "--experiments", data, "--id", "dense-chat", "--sweep", "rate=40")
    _, replays = at_rates("dense-chat", 40, data)
    most = 0
    for r in replays:
        began = [r.requests.arrival_us[i] + r.queueing_us[i] + r.waiting_us[i] for i in range(len(r.requests))]
        ended = [began[i] + r.prefill_us[i] + r.decode_us[i] for i in range(len(r.requests))]
        most = max(most, *(sum(b <= t < e for b, e in zip(began, ended, strict=True)) for t in began))
    assert found["rows"][0]["most_running"] == most > 5


def test_how_many_seeds_hold_alone_and_up_to_which_rate_all_do(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = "--experiments", data, "--id", "dense-chat", "--sweep", "rate=40:75:5", "--slo", "ttft_p99=50ms"
    result = printed(capsys, *args)
    sure = None
    for row in result["rows"]:
        _, replays = at_rates("dense-chat", row["rate_rps"], data)
        alone = [float(np.percentile(r.ttft_us[r.completed], 99)) <= 50_000 for r in replays]
        assert row["seeds_holding"] == sum(alone)
        sure = row["rate_rps"] if all(alone) and sure == (row["rate_rps"] - 5 if sure else None) else sure
    [knee] = result["knees"]
    assert {row["seeds_holding"] for row in result["rows"]} > {3}
    assert knee["holds_under_every_seed_up_to_rps"] == sure


def test_limits_alone_judge_the_experiments_as_they_are(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = "--experiments", data, "--id", "dense-chat,dense-code", "--slo", "ttft_p99=30ms"
    result = printed(capsys, *args, status=1)
    assert result["sweep"] == {} and result["knees"] == []
    for row in result["rows"]:
        assert row["rate_rps"] is None and row["holds"]["ttft_p99"] == (row["ttft_ms"]["p99"] <= 30.0)
        assert row["fails"] == ([] if row["holds"]["ttft_p99"] else ["ttft_p99"])
    assert evolve("predict", "champion", *args) == 1
    assert "TTFT p99 <= 30 ms" in capsys.readouterr().out
    faster, slower = sorted(result["rows"], key=lambda row: row["ttft_ms"]["p99"])
    between = f"ttft_p99={(faster['ttft_ms']['p99'] + slower['ttft_ms']['p99']) / 2:.3f}ms"
    for row, status in ((faster, 0), (slower, 1)):
        only = "--experiments", data, "--id", row["experiment"], "--slo", between
        [judged] = printed(capsys, *only, status=status)["rows"]
        assert judged["fails"] == ["ttft_p99"] * status


def test_without_a_rate_the_load_is_the_experiments_own_and_there_is_no_knee(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = "--experiments", data, "--id", "dense-chat"
    result = printed(capsys, *at, "--sweep", "max_num_seqs=2,64", "--sweep", "max_num_batched_tokens=512")
    assert result["knees"] == [] and [row["rate_rps"] for row in result["rows"]] == [None, None]
    few, many = result["rows"]
    assert few["queue_grows"] and not many["queue_grows"] and many["goodput_rps"] is None
    assert many["offered_rps"] == 7.5  # 15 s at 5 requests/s, then 15 s at 10
    file = plan(tmp_path, "dense-chat", {"max_num_seqs": 64, "max_num_batched_tokens": 512})
    assert many["e2e_ms"] == single(capsys, file)["predicted"]["e2e_ms"]


def test_where_nothing_completes_nothing_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = plan(tmp_path, "dense-chat", {"max_model_len": 200})  # a prompt has 300 tokens
    result = printed(capsys, "--experiments", file, "--sweep", "rate=2,4", "--slo", "ttft_p99=1s", status=1)
    assert all(row["refused"] and row["fails"] == ["nothing completes"] for row in result["rows"])
    assert result["rows"][0]["holds"] == {"ttft_p99": None} and result["rows"][0]["goodput_rps"] == 0.0
    assert result["knees"][0]["rate_rps"] == 2.0


def test_a_rate_at_which_requests_are_lost_does_not_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Clients give up after 5 s, so the TTFT of those that are served keeps any limit above that."""
    slo = "--slo", "ttft_p99=6s"
    file = plan(tmp_path, "dense-overloaded", {})
    result = printed(capsys, "--experiments", file, "--sweep", "rate=2,200", *slo)
    calm, busy = result["rows"]
    assert calm["fails"] == [] and calm["gave_up"] == 0
    assert busy["holds"] == {"ttft_p99": True} and busy["fails"] == ["queue grows", "requests fail"]
    trace = tmp_path / "t.csv"
    trace.write_text(
        "arrival_s,input_len,output_len\n" + "".join(f"{i},{9000 if i == 50 else 64},8\n" for i in range(100))
    )
    [entry] = yaml.safe_load(file.read_text())["experiments"]
    entry |= {"workload": {"name": "t", "trace": "t.csv"}, "engine": {"max_model_len": 4096}}
    for count, fails in ((100, []), (99, ["requests fail"])):  # one refused of 100 is not more than 1 %, of 99 it is
        trace.write_text("\n".join(trace.read_text().splitlines()[: count + 1]) + "\n")
        (tmp_path / "trace.yaml").write_text(yaml.safe_dump({"version": 1, "experiments": [entry]}))
        result = printed(capsys, "--experiments", tmp_path / "trace.yaml", "--sweep", "rate=1")
        [row], [knee] = result["rows"], result["knees"]
        assert (row["refused"], row["fails"], row["seeds_holding"]) == (1, fails, int(not fails))
        assert knee["holds_up_to_rps"] == (None if fails else 1.0)
        assert knee["holds_under_every_seed_up_to_rps"] is None  # a trace has one load, for any seed
    assert evolve("predict", "champion", "--experiments", tmp_path / "trace.yaml", "--sweep", "rate=1") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "arrival seeds" not in out and "requests fail: more than 1 % are refused" in out


def test_a_trace_whose_requests_arrive_at_once_has_no_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text("arrival_s,input_len,output_len\n" + "0,300,50\n" * 40)
    entry = {"id": "burst", "model": "llama-2-7b", "hardware": "H100", "workload": {"name": "t", "trace": "t.csv"}}
    file = tmp_path / "trace.yaml"
    file.write_text(yaml.safe_dump({"version": 1, "experiments": [entry]}))
    for asked in (("--sweep", "rate=1,2"), ("--load", "5")):
        said = refused(capsys, "predict", "champion", "--experiments", file, *asked)
        assert "experiment 'burst': all requests of its trace arrive at once, so it has no rate" in said
    assert len(printed(capsys, "--experiments", file, "--sweep", "max_num_seqs=16,32")["rows"]) == 2


def test_a_queue_that_is_long_in_every_burst_does_not_grow_in_words_either(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bursts of 60 wait for 4 places, most of their time, and the last burst as long as the first: no knee."""
    load = {"arrival": {"burst": {"size": 60}}, "stages": [{"rate": 2.0, "duration_s": 600}]}
    file = plan(tmp_path, "dense-chat", {"max_num_seqs": 4}, **load)
    [row] = printed(capsys, "--experiments", file, "--sweep", "rate=2")["rows"]
    assert row["waiting_share"] > 0.5 and row["fails"] == []
    for warnings in (row["warnings"], single(capsys, file)["warnings"]):
        [text] = [text for text in warnings if " queue: " in text]
        assert text.startswith(
            "the program predicts a long queue: requests wait longer than they are served, later ones"
        )


def test_where_a_growing_queue_is_predicted_the_table_says_that_the_queue_grows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a rate on at which requests still spend most of their time elsewhere: a load of 30 s that is barely too much."""
    four = plan(tmp_path, "dense-chat", {"max_num_seqs": 4}, stages=[{"rate": 2.0, "duration_s": 120}])
    growing, some = 0, 0
    for file, rates in ((four, "4:40:4"), (plan(tmp_path, "dense-chat", {}, rate=2), "90,100")):
        for row in printed(capsys, "--experiments", file, "--sweep", f"rate={rates}")["rows"]:
            some += row["queue_grows"] and row["waiting_share"] < 0.5
            said = any("predicts a growing queue" in text for text in row["warnings"])
            assert ("queue grows" in row["fails"]) == said
            growing += said
    assert growing > some > 0  # also where most of the time is not spent in it


def test_later_turns_after_the_last_stage_are_not_offered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Eight turns, 20 s of thought before each but the first: conversations last 140 s, stages 30 s."""
    load = {"session": {"turns": 8, "think_time_s": 20}, "shared_prefix": None, "prompt_len": 50}
    file = plan(tmp_path, "dense-chat", {}, **load)
    [row] = printed(capsys, "--experiments", file, "--sweep", "rate=8")["rows"]
    assert row["completed"] == 8 * 30  # all are replayed
    # those that arrive in time: the first turn, and the second of conversations that open in the first 10 of 30 s
    assert row["offered_rps"] == pytest.approx(8 / 8 * (1 + 1 / 3), rel=0.15)
    [text] = [text for text in row["warnings"] if "later turns" in text]
    assert text.endswith(": the rate is not reached: lengthen the stages")
    assert any("later turns" in warning for warning in single(capsys, file)["warnings"])


def test_a_sweep_without_a_possible_combination_fails(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = "--experiments", data, "--id", "sparse-chat"
    assert evolve("predict", "champion", *at, "--sweep", "tp=1,3") == 1
    assert "the queue grows" not in capsys.readouterr().out  # no legend of tables that are not there


def test_a_program_is_bound_and_its_steps_remembered_once_for_each_deployment(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []
    for name in ("bind", "steps_of"):
        inner = getattr(sweeping, name)
        monkeypatch.setattr(sweeping, name, lambda *a, inner=inner, name=name: calls.append(name) or inner(*a))
    args = "--experiments", data, "--id", "dense-chat", "--sweep", "rate=2:20:2", "--sweep", "tp=1,2"
    assert len(printed(capsys, *args)["rows"]) == 20
    assert sorted(calls) == ["bind"] * 2 + ["steps_of"] * 2


def test_csv_and_latex_have_the_rows_of_json(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = "--experiments", data, "--id", "dense-chat,dense-code", "--sweep", "rate=10,90", "--slo", SLO
    result = printed(capsys, *args)
    assert evolve("predict", "champion", *args, "--csv", "-", "--latex", tmp_path / "s.tex") == 0
    written = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(written) == len(result["rows"]) == 4
    for row, expected in zip(written, result["rows"], strict=True):
        for name in ("experiment", "rate_rps", "hardware", "tp", "max_num_seqs", "max_num_batched_tokens", "completed", "offered_rps",
                     "completed_rps", "output_tokens_per_s", "goodput_rps", "waiting_share", "queue_grows", "preemptions",
                     "refused", "gave_up"):  # fmt: skip
            assert row[name] == str(expected[name])
        for latency in LATENCIES:
            for q, value in expected[latency].items():
                assert row[f"{latency.removesuffix('_ms')}_{q}_ms"] == str(value)
        assert row["fails"] == "; ".join(expected["fails"]) and row["holds"] == str(not expected["fails"])
        [knee] = [k for k in result["knees"] if k["experiment"] == expected["experiment"]]
        assert row["knee"] == str(expected["rate_rps"] == knee["rate_rps"])
    assert (tmp_path / "s.tex").read_text().count(r" \\") == 5


def test_every_combination_of_the_other_keys_has_a_table_and_a_knee(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = "--experiments", data, "--id", "dense-chat", "--sweep", "rate=90,110", "--sweep", "tp=1,2", "--slo", SLO
    assert evolve("predict", "champion", *args) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(", means over arrival seeds [1, 2, 3], TTFT p99 <= 60 ms, ITL mean <= 15 ms")
    for tp in (1, 2):
        head = lines.index(f"dense-chat, tp {tp}")
        assert lines[head + 1].split()[:6] == ["rate", "fails", "TTFT", "mean", "TTFT", "p50"]
        assert [lines[head + n].split()[0] for n in (3, 4)] == ["90", "110"]
        assert lines[head + 6].startswith(f"Knee of dense-chat, tp {tp}: rate ")
    full = next(line for line in lines if line.split()[:1] == ["110"])
    assert full.split("110", 1)[1].strip().startswith("TTFT p99, ITL mean, queue ")
    [said] = [line for line in lines if "growing queue" in line]  # once, from the rate at which it begins
    assert said.startswith("- from rate 110: the program predicts a growing queue") and said.endswith(
        "(dense-chat tp 1)"
    )


AXES = {
    "rate=2:8:2": {"rate": (2.0, 4.0, 6.0, 8.0)},
    "rate=2:7:2": {"rate": (2.0, 4.0, 6.0)},
    "rate=0.1:0.5:0.1": {"rate": (0.1, 0.2, 0.3, 0.4, 0.5)},  # 0.1 + 2 * 0.1 is not 0.3 in float64
    "rate= 8,2,.5,2": {"rate": (0.5, 2.0, 8.0)},
    "rate=3:3:1": {"rate": (3.0,)},
    "tp=1:4:1": {"tp": (1, 2, 3, 4)},
    "max_num_seqs=128,64": {"max_num_seqs": (64, 128)},
    "max_num_batched_tokens=8192": {"max_num_batched_tokens": (8192,)},
    "hardware=L40S, H100,H100-SXM": {"hardware": ("L40S-48GB", "H100-SXM-80GB")},  # in the order given
}


@pytest.mark.parametrize("text", AXES)
def test_values_are_read_as_a_file_would_have_them(text: str) -> None:
    assert parse_axes([text]).values == AXES[text]


def test_combinations_are_those_of_the_other_keys() -> None:
    axes = parse_axes(["rate=1,2", "tp=1,2", "max_num_seqs=8,16"])
    settings = list(axes.settings("L40S-48GB", Engine(max_num_batched_tokens=512)))
    assert {s.hardware for s in settings} == {"L40S-48GB"}
    assert [(s.tp, s.max_num_seqs, s.max_num_batched_tokens) for s in settings] == [
        (1, 8, 512), (1, 16, 512), (2, 8, 512), (2, 16, 512)
    ]  # fmt: skip


FORMS = "write KEY=FIRST:LAST:STEP or KEY=A,B,C"
RATE = "must be requests/s above 0 and up to 1,000,000"
WRONG_AXES = {
    "rate": f"--sweep rate: has no values: {FORMS}",
    "rate=": f"--sweep rate=: {RATE}, got '': {FORMS}",
    "rate=fast": f"--sweep rate=fast: {RATE}, got 'fast': {FORMS}",
    "rate=0": f"--sweep rate=0: {RATE}, got '0': {FORMS}",
    "rate=-1,2": f"--sweep rate=-1,2: {RATE}, got '-1': {FORMS}",
    "rate=nan": f"--sweep rate=nan: {RATE}, got 'nan': {FORMS}",
    "rate=inf": f"--sweep rate=inf: {RATE}, got 'inf': {FORMS}",
    "rate=1e-999999": f"--sweep rate=1e-999999: {RATE}, got '1e-999999': {FORMS}",
    "rate=1e999999": f"--sweep rate=1e999999: {RATE}, got '1e999999': {FORMS}",
    "rate=2:40": f"--sweep rate=2:40: has 2 parts: {FORMS}",
    "rate=2:40:0": f"--sweep rate=2:40:0: {RATE}, got '0': {FORMS}",
    "rate=40:2:2": f"--sweep rate=40:2:2: ends below where it begins: {FORMS}",
    "rate=1:2000:1": "--sweep rate=1:2000:1: 2,000 values, at most 1,000: give a larger step",
    "tp=1.5": f"--sweep tp=1.5: must be whole numbers from 1 to 10,000, got '1.5': {FORMS}",
    "tp=1:4:0.5": f"--sweep tp=1:4:0.5: must be whole numbers from 1 to 10,000, got '0.5': {FORMS}",
    "max_num_seqs=0": f"--sweep max_num_seqs=0: must be whole numbers from 1 to 1,000,000, got '0': {FORMS}",
    "hardware=": "--sweep hardware=: '' is not in the hardware table: the closest are RTX-PRO-6000-96GB, RTX-PRO-6000, "
    f"RTX PRO 6000; `evolve list` has all, or {OWN_GPU}",
    "hardware=H100,H20": "--sweep hardware=H100,H20: 'H20' is not in the hardware table: the closest are H200, H100, B200; "
    f"`evolve list` has all, or {OWN_GPU}",
    "max_num_seq=1": "--sweep max_num_seq=1: 'max_num_seq' cannot be varied: did you mean 'max_num_seqs'?",
}


@pytest.mark.parametrize("text", WRONG_AXES)
def test_bad_values_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_axes([text])
    assert str(caught.value) == WRONG_AXES[text]


def test_a_key_is_varied_once_and_not_too_often() -> None:
    with pytest.raises(InputError, match="tp is varied twice: give all its values in one --sweep"):
        parse_axes(["tp=1", "tp=2"])
    with pytest.raises(InputError, match="hardware is varied twice"):
        parse_axes(["hardware=H100", "hardware=H200"])
    with pytest.raises(InputError, match="--sweep: 100,000 combinations, at most 10,000: give fewer values"):
        parse_axes(["rate=1:1000:1", "max_num_seqs=1:100:1"])


TIME = "must be a time above 0 with its unit (us, ms, s)"
FORM = "write LATENCY_QUANTITY=TIME, e.g. ttft_p99=500ms,itl_p99=50ms"
WRONG_LIMITS = {
    "": "--slo : '' is not a figure: known are e2e_mean, e2e_p50, e2e_p90, e2e_p99, itl_mean, itl_p50, itl_p90, itl_p99, "
        "ttft_mean, ttft_p50, ttft_p90, ttft_p99",
    "ttft_p95=1s": "--slo ttft_p95=1s: 'ttft_p95' is not a figure: end it in _mean, _p50, _p90, _p99",
    "tpot_p99=1s": "--slo tpot_p99=1s: 'tpot_p99' is not a figure: what vLLM calls TPOT is itl here, each request's mean "
    "time per token after the first",
    "ttft_p99": f"--slo ttft_p99: ttft_p99 {TIME}, got '': {FORM}",
    "ttft_p99=500": f"--slo ttft_p99=500: ttft_p99 {TIME}, got '500': {FORM}",
    "ttft_p99=0ms": f"--slo ttft_p99=0ms: ttft_p99 {TIME}, got '0ms': {FORM}",
    "ttft_p99=-1s": f"--slo ttft_p99=-1s: ttft_p99 {TIME}, got '-1s': {FORM}",
    "ttft_p99=1s,ttft_p99=2s": "--slo ttft_p99=1s,ttft_p99=2s: ttft_p99 is limited twice: give one limit",
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG_LIMITS)
def test_bad_limits_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_slo(text.split(","))
    assert str(caught.value) == WRONG_LIMITS[text]


def test_limits_have_units() -> None:
    found = parse_slo(["ttft_p99=0.5s", "itl_p50=7500us", "e2e_mean=12.25ms"])
    assert {limit.name: limit.most_ms for limit in found} == {"ttft_p99": 500.0, "itl_p50": 7.5, "e2e_mean": 12.25}


def test_the_command_line_refuses_in_one_line(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = "predict", "champion", "--experiments", data
    assert refused(capsys, *at, "--sweep", "rate=x").startswith("evolve: --sweep rate=x: must be requests/s above 0")
    assert "--slo ttft_p99=1: ttft_p99 must be a time" in refused(capsys, *at, "--sweep", "tp=1", "--slo", "ttft_p99=1")
    assert "--slo does not: give one" in refused(capsys, *at, "--slo", "ttft_p99=1s", "--part", "test")
    assert "--id nobody: no such experiment" in refused(capsys, *at, "--sweep", "tp=1", "--id", "nobody")
    assert "cannot be read" in refused(capsys, "predict", "champion", "--experiments", "no.yaml", "--sweep", "tp=1")
    assert "--csv and --json both" in refused(capsys, *at, "--sweep", "tp=1", "--csv", "-", "--json")


def test_a_warning_of_many_deployments_says_how_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = "--sweep", "max_num_seqs=1,2,4,8,16", "--sweep", "max_num_batched_tokens=512,2048", "--sweep", "rate=1"
    assert evolve("predict", "champion", "--experiments", plan(tmp_path, "dense-chat", {}), *args, "--seeds", "1") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "(dense-chat max_num_seqs 1 max_num_batched_tokens 512 and 4 more of 10)" in text
