"""`evolve predict --sweep`: its rows are single predictions, its goodput a count over replays, its knees follow from both."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_world
import yaml
from commands import Capsys, as_json, evolve, flat, printed, refused

from evolve.plan import deployment
from evolve.plan.axes import axes_of, parse_axes
from evolve.plan.slo import parse_slo
from evolve.run.program import load
from simulator.clock.replay import Replay, replay
from simulator.common.errors import InputError
from simulator.serving.bundled import load_experiments
from simulator.serving.engine import Engine
from simulator.serving.experiment import Experiment
from simulator.serving.workload import Stage

RATES = (10, 50, 90, 110, 130, 150)  # requests/s around the most that the tiny world's deployments serve
SEEDS = (1, 2, 3)  # those of `evolve predict`
SLO = "ttft_p99=60ms,itl_mean=15ms"
LATENCIES = ("e2e_ms", "ttft_ms", "itl_ms")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "data.yaml"
    path.write_text(tiny_world.DATA)
    return path


def predicted(capsys: Capsys, *args: object, status: int = 0) -> dict[str, Any]:
    """The JSON of `evolve predict champion ARGS`, which ends with this exit status."""
    found: dict[str, Any] = as_json(capsys, "predict", "champion", *args, status=status)
    return found


def text(capsys: Capsys, *args: object, status: int = 0) -> str:
    return printed(capsys, "predict", "champion", *args, status=status)


def as_csv(found: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(found)))


def of_intervals(line: str) -> bool:
    """True if a warning is that intervals may be, or are, too narrow."""
    return "so the intervals" in line or line.startswith("the intervals are too narrow")


def single(capsys: Capsys, file: Path) -> dict[str, Any]:
    """The prediction of the experiment in this file without a sweep, but for intervals, of which a sweep has only
    whether everything holds at their upper ends."""
    [found] = predicted(capsys, "--experiments", file)["experiments"]
    found["warnings"] = [line for line in found["warnings"] if not of_intervals(line)]
    for name in LATENCIES:
        found["predicted"][name] = {q: found["predicted"][name][q] for q in ("mean", "p50", "p90", "p99")}
    return dict(found)


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


def test_rows_and_knees_are_those_of_single_predictions(data: Path, tmp_path: Path, capsys: Capsys) -> None:
    """The single predictions are of files that have that rate and TP degree, made without the code of the sweep."""
    at = "--experiments", data, "--id", "dense-chat"
    rates = ",".join(map(str, RATES))
    result = predicted(capsys, *at, "--sweep", f"rate={rates}", "--sweep", "tp=1,2", "--slo", SLO)
    knees = {}
    for tp in (1, 2):
        failing = {}
        for rate in RATES:
            expected = single(capsys, plan(tmp_path, "dense-chat", {"tensor_parallel": tp}, rate))
            [row] = [r for r in result["rows"] if (r["rate_rps"], r["tp"]) == (rate, tp)]
            figures = expected["predicted"]
            assert {name: row[name] for name in figures} == figures
            # a sweep looks at intervals near the knee only
            said = [line for line in row["warnings"] if not of_intervals(line)]
            assert [line for line in said if "is reached" not in line] == expected["warnings"]
            assert row["most_running"] <= 128 and (row["most_running"] == 128) == (said != expected["warnings"])
            share = expected["components"]["waiting"] / figures["e2e_ms"]["mean"]
            broken = {
                "ttft_p99": figures["ttft_ms"]["p99"] > 60.0,
                "itl_mean": figures["itl_ms"]["mean"] > 15.0,
                "queue grows": share > 0.05,
            }
            failing[rate] = [name for name, fails in broken.items() if fails]
            assert row["waiting_share"] == share and row["queue_grows"] == broken.pop("queue grows")
            assert row["fails"] == failing[rate] and row["holds"] == {name: not fails for name, fails in broken.items()}
        knees[tp] = next(rate for rate in RATES if failing[rate])
        [knee] = [k for k in result["knees"] if k["tp"] == tp]
        assert (knee["rate_rps"], knee["fails"]) == (knees[tp], failing[knees[tp]])
        assert knee["holds_up_to_rps"] == RATES[RATES.index(knees[tp]) - 1] and knee["last_rps"] == RATES[-1]
    assert RATES[0] < knees[1] < knees[2] < RATES[-1]


@pytest.mark.parametrize("ident, rate", [("dense-chat", 90), ("dense-overloaded", 70)])
def test_goodput_and_throughput_are_counts_over_replays(ident: str, rate: float, data: Path, capsys: Capsys) -> None:
    """Counted request by request. In the second one, clients give up after 5 s."""
    limits = "ttft_p99=60ms,e2e_mean=1s,itl_p50=20000us"
    at = "--experiments", data, "--id", ident, "--sweep", f"rate={rate}", "--slo", limits
    found = predicted(capsys, *at, status=1)
    [row] = found["rows"]
    assert found["slo_ms"] == {"ttft_p99": 60.0, "e2e_mean": 1000.0, "itl_p50": 20.0}
    e, replays = at_rates(ident, rate, data)
    rates = []  # of good, completed, offered requests and of tokens, per second
    for r in replays:
        good, completed, tokens, last_s = 0, 0, 0, e.workload.stages[0].duration_s
        for i in range(len(r.requests)):
            if r.completed[i]:
                completed += 1
                tokens += r.requests.output_len[i]
                last_s = max(last_s, (r.requests.arrival_us[i] + r.e2e_us[i]) / 1e6)
                good += bool(r.ttft_us[i] <= 60_000 and r.e2e_us[i] <= 1_000_000 and r.itl_us[i] <= 20_000)
            else:  # its client left
                last_s = max(last_s, r.requests.deadline_us[i] / 1e6)
        offered = len(r.requests) / e.workload.stages[0].duration_s
        rates.append((good / last_s, completed / last_s, offered, tokens / last_s))
    expected = np.mean(rates, axis=0)
    assert 0 < expected[0] < expected[1]
    keys = "goodput_rps", "completed_rps", "offered_rps", "output_tokens_per_s"
    assert [row[key] for key in keys] == pytest.approx(expected, rel=1e-12)
    assert row["offered_rps"] == rate and (row["gave_up"] > 0) == (ident == "dense-overloaded")


def test_answers_of_one_token_have_no_itl(tmp_path: Path, capsys: Capsys) -> None:
    file = plan(tmp_path, "dense-chat", {}, output_len=1)
    [row] = predicted(capsys, "--experiments", file, "--sweep", "rate=5", "--slo", "itl_p99=1us")["rows"]
    assert row["itl_ms"]["mean"] is None and row["holds"] == {"itl_p99": None} and row["fails"] == []
    assert row["goodput_rps"] == row["completed_rps"] > 4.5


def test_a_knee_may_be_the_lowest_rate_or_none(data: Path, capsys: Capsys) -> None:
    at = "--experiments", data, "--id", "dense-chat", "--sweep"
    [calm] = predicted(capsys, *at, "rate=1:9:4")["knees"]
    assert (calm["rate_rps"], calm["fails"], calm["holds_up_to_rps"], calm["last_rps"]) == (None, [], 9.0, 9.0)
    [full] = predicted(capsys, *at, "rate=300")["knees"]
    assert (full["rate_rps"], full["fails"], full["holds_up_to_rps"]) == (300.0, ["queue grows"], None)
    out = text(capsys, *at, "rate=5,300", "--sweep", "max_num_seqs=4,128")
    assert "Knee of dense-chat, max_num_seqs 4: rate 300: queue grows; holds up to 5\n" in out
    assert "Knee of dense-chat: none up to 5\n" in text(capsys, *at, "rate=5")
    out = text(capsys, *at, "rate=300", "--slo", "ttft_p99=1s", status=1)  # no rate keeps the limit
    assert "Knee of dense-chat: rate 300, the lowest: TTFT p99 fails, queue grows\n" in out


def test_a_combination_that_cannot_exist_is_a_row_with_a_reason(data: Path, capsys: Capsys) -> None:
    """Mixtral's 46.7 billion parameters of two bytes, 87 GiB, exceed one H100; 32 heads cannot be split by three."""
    args = "--experiments", data, "--id", "sparse-chat", "--sweep", "tp=1,2,3", "--sweep", "rate=0.01,4,1e6"
    result = predicted(capsys, *args)
    why = {(row["tp"], row["rate_rps"]): row["impossible"] for row in result["rows"]}
    assert why[1, 0.01] == why[1, 4.0] and why[1, 4.0].startswith("sparse-chat, tp 1: ")
    assert "engine.tensor_parallel leaves no room for KV cache, 87.0 GiB" in why[1, 4.0]
    assert why[3, 4.0].startswith("sparse-chat, tp 3: ") and "32 attention heads" in why[3, 4.0]
    assert why[2, 0.01].startswith("sparse-chat, tp 2, rate 0.01: workload.stages offer no request in 30 s")
    assert why[2, 1e6].startswith("sparse-chat, tp 2, rate 1000000: workload.stages offer 3e+07 requests")
    assert why[2, 4.0] is None
    for row in result["rows"]:
        assert (row["impossible"] is None) == (row["ttft_ms"] is not None) == (row["completed_rps"] is not None)
    assert [(knee["tp"], knee["rate_rps"], knee["last_rps"]) for knee in result["knees"]] == [(2, None, 4.0)]
    assert f"Impossible: {why[1, 4.0]}\n" in text(capsys, *args)
    rows = as_csv(text(capsys, *args, "--csv", "-"))
    assert [row["impossible"] for row in rows] == [row["impossible"] or "" for row in result["rows"]]


def test_a_deployment_that_cannot_exist_leaves_others_their_rows(tmp_path: Path, capsys: Capsys) -> None:
    """Mixtral has no room on one H100. Its written engine does not count where a sweep replaces it."""
    big, small = plan(tmp_path, "sparse-chat", {"tensor_parallel": 1}), plan(tmp_path, "dense-chat", {})
    both = tmp_path / "both.yaml"
    entries = [yaml.safe_load(file.read_text())["experiments"][0] for file in (big, small)]
    both.write_text(yaml.safe_dump({"version": 1, "experiments": entries}))
    every = predicted(capsys, "--experiments", both, "--sweep", "tp=1,2", "--sweep", "rate=5")["rows"]
    why = {(row["experiment"], row["tp"]): row["impossible"] for row in every}
    assert [at for at, reason in why.items() if reason] == [("sparse-chat", 1)]
    assert "no room for KV cache" in why["sparse-chat", 1]
    for file, tp in ((plan(tmp_path, "sparse-chat", {"tensor_parallel": 2}), 2), (small, 1)):
        [alone] = predicted(capsys, "--experiments", file, "--sweep", f"tp={tp}", "--sweep", "rate=5")["rows"]
        assert alone in every
    assert "no room for KV cache" in refused(capsys, "predict", "--experiments", both, "--slo", "ttft_p99=1s")
    # A mistake is named, also one of a deployment without room.
    load = entries[0]["workload"] | {"output_len": "fifty"}
    for key, value in (("engine.tensor_parallel", {"tensor_parallel": "one"}), ("workload.output_len", load)):
        wrong = entries[0] | {key.split(".")[0]: value}
        both.write_text(yaml.safe_dump({"version": 1, "experiments": [wrong, entries[1]]}))
        assert f"{key} must be" in refused(capsys, "predict", "--experiments", both, "--sweep", "tp=2")


@pytest.mark.parametrize(
    ("ids", "options", "status"),
    [
        ("dense-chat", "--sweep rate=5,300 --slo ttft_p99=1s", 0),  # one of the rates
        ("dense-chat", "--sweep rate=300 --slo ttft_p99=1s", 1),
        ("dense-chat", "--sweep rate=300", 0),  # nobody asked for limits
        ("dense-chat", "--sweep tp=1,2 --slo ttft_p99=1us", 1),
        # Mixtral has no room on one GPU, so none of its combinations keeps anything
        ("dense-chat,sparse-chat", "--sweep tp=1 --sweep rate=5 --slo ttft_p99=1s", 1),
        ("dense-chat,sparse-chat", "--sweep tp=2 --sweep rate=5 --slo ttft_p99=1s", 0),
    ],
)
def test_the_status_is_0_if_all_keep_the_limits_somewhere(ids: str, options: str, status: int, data: Path) -> None:
    """The dense deployment serves about 100 requests/s. No TTFT is below 1 us."""
    assert evolve("predict", "champion", "--experiments", data, "--id", ids, *options.split()) == status


def test_with_another_tp_measured_blocks_are_computed_from_memory(tmp_path: Path, capsys: Capsys) -> None:
    """400 blocks hold 18 requests, so many are preempted; two GPUs have room for far more (docs/ingest.md)."""
    file = plan(tmp_path, "dense-chat", {"total_kv_blocks": 400})
    one, two = predicted(capsys, "--experiments", file, "--sweep", "tp=1,2", "--sweep", "rate=60")["rows"]
    assert one["preemptions"] > 0 == two["preemptions"]
    noted = [
        any(line.startswith("total_kv_blocks was measured with tp 1") for line in of["warnings"]) for of in (one, two)
    ]
    assert noted == [False, True]
    free = plan(tmp_path, "dense-chat", {"tensor_parallel": 2}, 60)
    assert two["ttft_ms"] == single(capsys, free)["predicted"]["ttft_ms"]


def test_on_another_gpu_a_deployment_is_that_of_a_file(tmp_path: Path, capsys: Capsys) -> None:
    """The H100-NVL has no measured kernels (configs/hardware.yaml)."""
    file = plan(tmp_path, "dense-chat", {"total_kv_blocks": 400})
    args = "--experiments", file, "--sweep", "rate=10,30", "--sweep", "hardware=H100,H200,H100-NVL"
    result = predicted(capsys, *args)
    assert result["sweep"]["hardware"] == ["H100-SXM-80GB", "H200-SXM-141GB", "H100-NVL-94GB"]
    h100, h200, nvl = (row for row in result["rows"] if row["rate_rps"] == 30.0)
    assert nvl["impossible"].startswith("dense-chat, H100-NVL-94GB: kernels: ")
    note = "total_kv_blocks was measured with tp 1 on H100-SXM-80GB"
    assert [any(line.startswith(note) for line in row["warnings"]) for row in (h100, h200)] == [False, True]
    alone = plan(tmp_path, "dense-chat", {}, 30)
    alone.write_text(alone.read_text().replace("hardware: H100", "hardware: H200"))
    assert h200["ttft_ms"] == single(capsys, alone)["predicted"]["ttft_ms"]
    lines = text(capsys, *args, "--sweep", "tp=1,2").splitlines()
    served = next(
        re.split("  +", line.strip()) for line in lines if line.startswith("dense-chat, H200-SXM-141GB, tp 2")
    )
    assert served[1:] == ["2", "30 or more", "15.00 or more", "30 or more", "30 or more"]  # 15 for each GPU


def test_rates_of_a_request_in_minutes_have_digits(capsys: Capsys) -> None:
    """One request of 100 tokens in 300 s: 0.0033 requests/s, 0.33 tokens/s."""
    load = "--prompt-len", "1000", "--output-len", "100", "--sweep", "rate=0.004", "--seeds", "1"
    lines = text(capsys, "--model", "llama-3.1-8b", "--hardware", "H100", *load).splitlines()
    head = next(line for line in lines if " done " in line)
    cells = next(line for line in lines if line.startswith("0.004"))
    figures = dict(zip(head.split("  ")[::-1], re.split("  +", cells)[::-1], strict=False))
    assert (figures["done"], figures["tokens/s"]) == ("0.0033", "0.33")


def test_a_long_steady_queue_is_no_knee(tmp_path: Path, capsys: Capsys) -> None:
    """Prompts that prefill for 81 ms each. At 9 requests/s an M/D/1 queue is 73 % full, so that requests wait for 110 ms
    on average, a fifth of their E2E, the last ones no longer than the first; at 14, more come than are served."""
    file = plan(tmp_path, "dense-chat", {}, prompt_len=4000, output_len=10)
    file.write_text(file.read_text().replace("duration_s: 15", "duration_s: 150"))
    rows = {row["rate_rps"]: row for row in predicted(capsys, "--experiments", file, "--sweep", "rate=9,14")["rows"]}
    assert rows[9.0]["waiting_share"] > 0.1 and rows[9.0]["fails"] == [] and not rows[9.0]["queue_grows"]
    assert rows[14.0]["fails"] == ["queue grows"] and rows[14.0]["queue_grows"]


def test_the_most_requests_in_a_batch_are_counted_over_time(data: Path, capsys: Capsys) -> None:
    found = predicted(capsys, "--experiments", data, "--id", "dense-chat", "--sweep", "rate=40")
    _, replays = at_rates("dense-chat", 40, data)
    most = 0
    for r in replays:
        began = [r.requests.arrival_us[i] + r.queueing_us[i] + r.waiting_us[i] for i in range(len(r.requests))]
        ended = [began[i] + r.prefill_us[i] + r.decode_us[i] for i in range(len(r.requests))]
        most = max(most, *(sum(b <= t < e for b, e in zip(began, ended, strict=True)) for t in began))
    assert found["rows"][0]["most_running"] == most > 5


def test_seeds_that_hold_alone_are_counted(data: Path, capsys: Capsys) -> None:
    args = "--experiments", data, "--id", "dense-chat", "--sweep", "rate=40:75:5", "--slo", "ttft_p99=50ms"
    result = predicted(capsys, *args)
    sure = None
    for row in result["rows"]:
        _, replays = at_rates("dense-chat", row["rate_rps"], data)
        alone = [float(np.percentile(r.ttft_us[r.completed], 99)) <= 50_000 for r in replays]
        assert row["seeds_holding"] == sum(alone)
        sure = row["rate_rps"] if all(alone) and sure == (row["rate_rps"] - 5 if sure else None) else sure
    [knee] = result["knees"]
    assert {row["seeds_holding"] for row in result["rows"]} > {3}
    assert knee["holds_under_every_seed_up_to_rps"] == sure


def test_limits_alone_judge_the_experiments_as_they_are(data: Path, capsys: Capsys) -> None:
    args = "--experiments", data, "--id", "dense-chat,dense-code", "--slo", "ttft_p99=30ms"
    result = predicted(capsys, *args, status=1)
    assert result["sweep"] == {} and result["knees"] == []
    for row in result["rows"]:
        assert row["rate_rps"] is None and row["holds"]["ttft_p99"] == (row["ttft_ms"]["p99"] <= 30.0)
        assert row["fails"] == ([] if row["holds"]["ttft_p99"] else ["ttft_p99"])
    assert "TTFT p99 <= 30 ms" in text(capsys, *args, status=1)
    faster, slower = sorted(result["rows"], key=lambda row: row["ttft_ms"]["p99"])
    between = f"ttft_p99={(faster['ttft_ms']['p99'] + slower['ttft_ms']['p99']) / 2:.3f}ms"
    for row, fails in ((faster, []), (slower, ["ttft_p99"])):
        only = "--experiments", data, "--id", row["experiment"], "--slo", between
        [judged] = predicted(capsys, *only, status=len(fails))["rows"]
        assert judged["fails"] == fails


def test_without_a_rate_the_load_is_the_experiment_s_own(data: Path, tmp_path: Path, capsys: Capsys) -> None:
    at = "--experiments", data, "--id", "dense-chat"
    result = predicted(capsys, *at, "--sweep", "max_num_seqs=2,64", "--sweep", "max_num_batched_tokens=512")
    assert result["knees"] == [] and [row["rate_rps"] for row in result["rows"]] == [None, None]
    few, many = result["rows"]
    assert few["queue_grows"] and not many["queue_grows"] and many["goodput_rps"] is None
    assert many["offered_rps"] == 7.5  # 15 s at 5 requests/s, then 15 s at 10
    file = plan(tmp_path, "dense-chat", {"max_num_seqs": 64, "max_num_batched_tokens": 512})
    assert many["e2e_ms"] == single(capsys, file)["predicted"]["e2e_ms"]


def test_types_of_weights_are_those_of_files_that_say_so(data: Path, tmp_path: Path, capsys: Capsys) -> None:
    at = "--experiments", data, "--id", "dense-chat"
    plain, *others = predicted(capsys, *at, "--sweep", "weights=bf16,fp8,nvfp4")["rows"]
    assert plain["e2e_ms"] == single(capsys, plan(tmp_path, "dense-chat", {}))["predicted"]["e2e_ms"]
    for row in others:
        file = plan(tmp_path, "dense-chat", {"quantization": row["weights"]})
        assert row["e2e_ms"] == single(capsys, file)["predicted"]["e2e_ms"] != plain["e2e_ms"]
    assert [row["weights"] for row in others] == ["fp8", "nvfp4"]
    quantized = plan(tmp_path, "dense-chat", {"quantization": "fp8"})
    [other] = predicted(capsys, "--experiments", quantized, "--sweep", "weights=nvfp4")["rows"]
    assert other["e2e_ms"] == others[1]["e2e_ms"]  # in place of what the file says
    out = text(capsys, *at, "--sweep", "weights=bf16,fp8")
    assert "weights" in out and "fp8" in out


def test_a_quantized_checkpoint_is_swept_in_its_own_type_alone(tmp_path: Path, capsys: Capsys) -> None:
    made = plan(tmp_path, "dense-chat", {"tensor_parallel": 4, "max_model_len": 4096})
    [entry] = yaml.safe_load(made.read_text())["experiments"]
    file = tmp_path / "scout.yaml"
    file.write_text(yaml.safe_dump({"version": 1, "experiments": [entry | {"model": "llama-4-scout"}]}))
    rows = predicted(capsys, "--experiments", file, "--sweep", "weights=fp8,nvfp4")["rows"]
    assert rows[0]["impossible"] is None
    assert "engine.quantization is nvfp4, but the weights of llama-4-scout are stored in fp8" in rows[1]["impossible"]


def test_nothing_holds_without_completed_requests(tmp_path: Path, capsys: Capsys) -> None:
    file = plan(tmp_path, "dense-chat", {"max_model_len": 200})  # a prompt has 300 tokens
    result = predicted(capsys, "--experiments", file, "--sweep", "rate=2,4", "--slo", "ttft_p99=1s", status=1)
    assert all(row["refused"] and row["fails"] == ["nothing completes"] for row in result["rows"])
    assert result["rows"][0]["holds"] == {"ttft_p99": None} and result["rows"][0]["goodput_rps"] == 0.0
    assert result["knees"][0]["rate_rps"] == 2.0


def test_a_rate_at_which_clients_leave_does_not_hold(tmp_path: Path, capsys: Capsys) -> None:
    """Clients give up after 5 s, so the TTFT of those that are served keeps any limit above that."""
    args = "--experiments", plan(tmp_path, "dense-overloaded", {}), "--sweep", "rate=2,200", "--slo", "ttft_p99=6s"
    calm, busy = predicted(capsys, *args)["rows"]
    assert calm["fails"] == [] and calm["gave_up"] == 0
    assert busy["holds"] == {"ttft_p99": True} and busy["fails"] == ["queue grows", "requests fail"]


def traced(folder: Path, rows: list[str], **entry: Any) -> Path:
    """A file with one experiment under a trace with these rows of arrival, prompt and answer."""
    (folder / "t.csv").write_text("\n".join(["arrival_s,input_len,output_len", *rows, ""]))
    load = {"id": "burst", "model": "llama-2-7b", "hardware": "H100", "workload": {"name": "t", "trace": "t.csv"}}
    (folder / "trace.yaml").write_text(yaml.safe_dump({"version": 1, "experiments": [load | entry]}))
    return folder / "trace.yaml"


@pytest.mark.parametrize(("count", "fails"), [(100, []), (99, ["requests fail"])])
def test_one_refused_request_in_99_does_not_hold(count: int, fails: list[str], tmp_path: Path, capsys: Capsys) -> None:
    rows = [f"{i},{9000 if i == 50 else 64},8" for i in range(count)]
    args = "--experiments", traced(tmp_path, rows, engine={"max_model_len": 4096}), "--sweep", "rate=1"
    result = predicted(capsys, *args)
    [row], [knee] = result["rows"], result["knees"]
    assert (row["refused"], row["fails"], row["seeds_holding"]) == (1, fails, int(not fails))
    assert knee["holds_up_to_rps"] == (None if fails else 1.0)
    assert knee["holds_under_every_seed_up_to_rps"] is None  # a trace has one load, for any seed
    assert "arrival seeds" not in text(capsys, *args)


def test_a_trace_whose_requests_arrive_at_once_has_no_rate(tmp_path: Path, capsys: Capsys) -> None:
    file = traced(tmp_path, ["0,300,50"] * 40)
    for asked in (("predict", "--sweep", "rate=1,2"), ("plan",)):
        said = refused(capsys, *asked, "--experiments", file)
        assert "experiment 'burst'" in said and "has no rate" in said
    assert len(predicted(capsys, "--experiments", file, "--sweep", "max_num_seqs=16,32")["rows"]) == 2


def test_a_queue_that_is_long_in_every_burst_does_not_grow(tmp_path: Path, capsys: Capsys) -> None:
    """Bursts of 60 wait for 4 places, most of their time, and the last burst as long as the first: no knee."""
    load = {"arrival": {"burst": {"size": 60}}, "stages": [{"rate": 2.0, "duration_s": 600}]}
    file = plan(tmp_path, "dense-chat", {"max_num_seqs": 4}, **load)
    [row] = predicted(capsys, "--experiments", file, "--sweep", "rate=2")["rows"]
    assert row["waiting_share"] > 0.5 and row["fails"] == []
    for warnings in (row["warnings"], single(capsys, file)["warnings"]):
        [line] = [line for line in warnings if " queue: " in line]
        assert "predicts a long queue" in line


def test_the_table_marks_a_queue_that_is_predicted_to_grow(tmp_path: Path, capsys: Capsys) -> None:
    """From a rate on at which requests still spend most of their time elsewhere: a load of 30 s that is barely too much."""
    four = plan(tmp_path, "dense-chat", {"max_num_seqs": 4}, stages=[{"rate": 2.0, "duration_s": 120}])
    growing, some = 0, 0
    for file, rates in ((four, "4:40:4"), (plan(tmp_path, "dense-chat", {}, rate=2), "90,110")):
        for row in predicted(capsys, "--experiments", file, "--sweep", f"rate={rates}")["rows"]:
            some += row["queue_grows"] and row["waiting_share"] < 0.5
            said = any("predicts a growing queue" in line for line in row["warnings"])
            assert ("queue grows" in row["fails"]) == said
            growing += said
    assert growing > some > 0  # also where most of the time is not spent in it


def test_later_turns_after_the_last_stage_are_not_offered(tmp_path: Path, capsys: Capsys) -> None:
    """Eight turns, 20 s of thought before each but the first: conversations last 140 s, stages 30 s."""
    load = {"session": {"turns": 8, "think_time_s": 20}, "shared_prefix": None, "prompt_len": 50}
    file = plan(tmp_path, "dense-chat", {}, **load)
    [row] = predicted(capsys, "--experiments", file, "--sweep", "rate=8")["rows"]
    assert row["completed"] == 8 * 30  # all are replayed
    # those that arrive in time: the first turn, and the second of conversations that open in the first 10 of 30 s
    assert row["offered_rps"] == pytest.approx(8 / 8 * (1 + 1 / 3), rel=0.15)
    [line] = [line for line in row["warnings"] if "later turns" in line]
    assert "the rate is not reached" in line
    assert any("later turns" in warning for warning in single(capsys, file)["warnings"])


def test_a_sweep_without_a_possible_combination_fails(data: Path, capsys: Capsys) -> None:
    out = text(capsys, "--experiments", data, "--id", "sparse-chat", "--sweep", "tp=1,3", status=1)
    assert "the queue grows" not in out  # no legend of tables that are not there


def test_each_deployment_binds_a_program_once(data: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    calls = []
    for name in ("bind", "steps_of"):
        inner = getattr(deployment, name)
        monkeypatch.setattr(deployment, name, lambda *a, inner=inner, name=name: calls.append(name) or inner(*a))
    args = "--experiments", data, "--id", "dense-chat", "--sweep", "rate=2:20:2", "--sweep", "tp=1,2"
    assert len(predicted(capsys, *args)["rows"]) == 20
    assert sorted(calls) == ["bind"] * 2 + ["steps_of"] * 2


def test_csv_and_latex_have_the_rows_of_json(data: Path, tmp_path: Path, capsys: Capsys) -> None:
    args = "--experiments", data, "--id", "dense-chat,dense-code", "--sweep", "rate=10,90", "--slo", SLO
    result = predicted(capsys, *args)
    rows = as_csv(text(capsys, *args, "--csv", "-", "--latex", tmp_path / "s.tex"))
    assert len(rows) == len(result["rows"]) == 4
    for row, expected in zip(rows, result["rows"], strict=True):
        cells = {k: "" if v is None else str(v) for k, v in expected.items() if k != "holds" and k not in LATENCIES}
        cells |= {name: "; ".join(expected[name]) for name in ("fails", "warnings")}
        cells |= {f"{x.removesuffix('_ms')}_{q}_ms": str(v) for x in LATENCIES for q, v in expected[x].items()}
        assert {name: row.get(name) for name in cells} == cells and row["holds"] == str(not expected["fails"])
        [knee] = [k for k in result["knees"] if k["experiment"] == expected["experiment"]]
        assert row["knee"] == str(expected["rate_rps"] == knee["rate_rps"])
    assert (tmp_path / "s.tex").read_text().count(r" \\") == 5


AXES = {
    "rate=2:8:2": {"rate": (2.0, 4.0, 6.0, 8.0)},
    "rate=2:7:2": {"rate": (2.0, 4.0, 6.0)},
    "rate=0.1:0.5:0.1": {"rate": (0.1, 0.2, 0.3, 0.4, 0.5)},  # 0.1 + 2 * 0.1 is not 0.3 in float64
    "rate= 8,2,.5,2": {"rate": (0.5, 2.0, 8.0)},
    "rate=3:3:1": {"rate": (3.0,)},
    "tp=1:4:1": {"tp": (1, 2, 3, 4)},
    "max_num_seqs=128,64": {"max_num_seqs": (64, 128)},
    "max_num_batched_tokens=8192": {"max_num_batched_tokens": (8192,)},
    "weights=bf16, FP8,nvfp4,fp8": {"weights": ("bf16", "fp8", "nvfp4")},
    "hardware=L40S, H100,H100-SXM": {"hardware": ("L40S-48GB", "H100-SXM-80GB")},  # in the order given
}


@pytest.mark.parametrize("text", AXES)
def test_values_are_read_as_a_file_would_have_them(text: str) -> None:
    assert parse_axes([text]).values == AXES[text]


WRONG_AXES = """
rate: has no values | rate
rate: must be requests/s above 0 and up to 1,000,000, got '' | rate=
rate: must be requests/s above 0 and up to 1,000,000, got 'fast' | rate=fast
rate: must be requests/s above 0 and up to 1,000,000, got 0 | rate=0 | rate=2:40:0
rate: must be requests/s above 0 and up to 1,000,000, got -1 | rate=-1,2
rate: must be requests/s above 0 and up to 1,000,000, got 'nan' | rate=nan
rate: must be requests/s above 0 and up to 1,000,000, got 'snan' | rate=snan
rate: must be requests/s above 0 and up to 1,000,000, got 'inf' | rate=inf
rate: must be requests/s above 0 and up to 1,000,000, got 1E-999999 | rate=1e-999999 | rate=1:2:1e-999999
rate: must be requests/s above 0 and up to 1,000,000, got 1E+999999 | rate=1e999999
rate: 2:40 has 2 parts | rate=2:40
rate: 40:2:2 ends below where it begins | rate=40:2:2
rate: 2,000 values, at most 1,000 | rate=1:2000:1
tp: must be whole numbers from 1 to 10,000, got 1.5 | tp=1.5
tp: must be whole numbers from 1 to 10,000, got 0.5 | tp=1:4:0.5
max_num_seqs: must be whole numbers from 1 to 1,000,000, got 0 | max_num_seqs=0
hardware: '' is not in the hardware table | hardware=
hardware: 'H20' is not in the hardware table: the closest are H200, H100, B200 | hardware=H100,H20
weights: 'fp4' is not a type of weights: known are | weights=fp4
weights: 'fp8:bf16:1' is not a type of weights: known are | weights=fp8:bf16:1
max_num_seq: cannot be varied: did you mean 'max_num_seqs'? | max_num_seq=1
"""
REFUSED_AXES = [
    (text, said) for line in WRONG_AXES.split("\n")[1:-1] for said, *texts in [line.split(" | ")] for text in texts
]


@pytest.mark.parametrize(("text", "said"), REFUSED_AXES)
def test_bad_values_are_refused_with_their_key(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_axes([text])
    assert str(caught.value).startswith(f"--sweep {said}") and "\n" not in str(caught.value)


def test_axes_are_made_of_values_or_texts() -> None:
    values = axes_of({"rate": [np.float64(5), 2, 5.0], "tp": "1:3:1", "hardware": ["H100", "H100-SXM"]}, "vary: ")
    assert values == parse_axes(["rate=2,5", "tp=1,2,3", "hardware=H100"])
    for wrong in ({"rate": []}, {"rate": ["5"]}, {"rate": [True]}, {"tp": [1.5]}, {"hardware": [3]}, {"rates": [1]}):
        with pytest.raises(InputError, match=f"vary: {next(iter(wrong))}: "):
            axes_of(wrong, "vary: ")


def test_every_rank_of_a_deployment_has_gpus(tmp_path: Path, capsys: Capsys) -> None:
    """Replicas of two ranks are half as many as those of one, on about as many GPUs."""
    settings = [*parse_axes(["tp=1,2"]).settings("H100", Engine(data_parallel=4))]
    assert [(s.tp, s.data_parallel, s.gpus) for s in settings] == [(1, 4, 4), (2, 4, 8)]
    spread = Engine(tensor_parallel=4, expert_parallel=4)
    settings = [*parse_axes(["data_parallel=1,2"]).settings("H100", spread)]
    assert [(s.data_parallel, s.expert_parallel, s.gpus) for s in settings] == [(1, 4, 4), (2, 8, 8)]
    rows = []
    for ranks in (1, 2):
        file = plan(tmp_path, "dense-chat", {"tensor_parallel": 1, "data_parallel": ranks}, 1000.0)
        [row] = as_json(capsys, "plan", "--experiments", file, "--slo", "itl_mean=12ms")["rows"]
        assert row["gpus"] == ranks * row["replicas"]
        rows.append(row)
    assert rows[1]["replicas"] < rows[0]["replicas"] and 0.8 < rows[1]["gpus"] / rows[0]["gpus"] < 1.3


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        (["tp=1", "tp=2"], "tp is varied twice"),
        (["hardware=H100", "hardware=H200"], "hardware is varied twice"),
        (["rate=1:1000:1", "max_num_seqs=1:100:1"], "100,000 combinations, at most 10,000"),
    ],
)
def test_a_key_is_varied_once_and_not_too_often(axes: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_axes(axes)


WRONG_LIMITS = {
    "": "--slo : '' is not a figure: known are e2e_mean",
    "ttft_p95=1s": "--slo ttft_p95=1s: 'ttft_p95' is not a figure: end it in _mean, _p50, _p90, _p99",
    "tpot_p95=1s": "--slo tpot_p95=1s: 'tpot_p95' is not a figure: end it in _mean, _p50, _p90, _p99",
    "itl_p99=1s,tpot_p99=2s": "--slo tpot_p99=2s: itl_p99 is limited twice",
    "ttft_p99": "--slo ttft_p99: ttft_p99 must be a time above 0 with its unit (us, ms, s), got ''",
    "ttft_p99=500": "--slo ttft_p99=500: ttft_p99 must be a time above 0",
    "ttft_p99=0ms": "--slo ttft_p99=0ms: ttft_p99 must be a time above 0",
    "ttft_p99=-1s": "--slo ttft_p99=-1s: ttft_p99 must be a time above 0",
    "itl_p50=1s,ttft_p99=1s,ttft_p99=2s": "--slo ttft_p99=2s: ttft_p99 is limited twice",
}


def test_tpot_is_the_itl() -> None:
    """vLLM's name for the mean time per token after the first (docs/concepts.md)."""
    assert parse_slo(["tpot_p99=50ms"]) == parse_slo(["itl_p99=50ms"])


@pytest.mark.parametrize("text", WRONG_LIMITS)
def test_bad_limits_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_slo(text.split(","))
    assert str(caught.value).startswith(WRONG_LIMITS[text])


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ("--sweep rate=x", "--sweep rate: must be"),
        ("--sweep tp=1 --slo ttft_p99=1", "--slo ttft_p99=1: "),
        ("--slo ttft_p99=1s --part test", "--slo"),
        ("--sweep tp=1 --id nobody", "--id nobody: "),
        ("--sweep tp=1 --csv - --json", "--csv"),
    ],
)
def test_the_command_line_refuses_in_one_line(options: str, key: str, data: Path, capsys: Capsys) -> None:
    assert key in refused(capsys, "predict", "champion", "--experiments", data, *options.split())


def test_a_warning_of_many_deployments_counts_them(tmp_path: Path, capsys: Capsys) -> None:
    args = "--sweep", "max_num_seqs=1,2,4,8,16", "--sweep", "max_num_batched_tokens=512,2048", "--sweep", "rate=1"
    out = flat(capsys, "predict", "champion", "--experiments", plan(tmp_path, "dense-chat", {}), *args, "--seeds", "1")
    assert "(dense-chat max_num_seqs 1 max_num_batched_tokens 512 and 4 more of 10)" in out
