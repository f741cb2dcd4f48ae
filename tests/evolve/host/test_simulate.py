"""`evolve simulate` and `evolve bench` as a user types them: files in, files out, and how bad input is refused."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import numpy as np
import pytest
from commands import Capsys, as_json, printed, refused
from paths import ROOT

from evolve.cli import run_command
from evolve.host import bench
from evolve.host.cases import read_case, read_trace
from simulator.clock.fast import CLOCKS
from simulator.serving.bundled import bundled_experiments
from translate_go.vectors import PROMPTS

CASE: dict[str, object] = json.loads("""{
  "name": "small", "why": "two requests that share 16 tokens, by hand",
  "alpha": {"base_us": 100, "per_output_token_us": 7.9, "completion_us": 50},
  "step_linear_kv": {"b0_us": 1000, "per_prefill_token_us": 10, "per_decode_request_us": 1,
                     "per_decode_kv_token_us": 0.5, "floor_us": 1},
  "engine": {"total_kv_blocks": 100, "block_size": 16, "max_num_seqs": 4, "max_num_batched_tokens": 64},
  "horizon_us": null}""")
TRACE = """row,arrival_s,input_len,output_len,prefix_group,prefix_len
0,0.0,20,3,5,16
1,0.0005,24,1,5,16
2,0.0006,8,0,-1,0
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "case.json").write_text(json.dumps(CASE))
    (tmp_path / "trace.csv").write_text(TRACE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def simulate(capsys: Capsys, *args: str) -> tuple[int, str, str]:
    status = run_command(["simulate", *args])
    out, err = capsys.readouterr()
    return status, out, err


BOTH = ("--case", "case.json", "--trace", "trace.csv")


def test_the_deadline_of_a_completed_request_does_not_lengthen_the_run(files: Path, capsys: Capsys) -> None:
    """Two prompts of 20 tokens, one answer token each: the first is done with its step, begun at 100 us, before the
    second is queued at 1100 us, whose step takes 1000 + 200 us. Nobody waits for the 300 s that clients would."""
    (files / "trace.csv").write_text("arrival_s,input_len,output_len,timeout_s\n0,20,1,300\n0.001,20,1,300\n")
    told = json.loads(simulate(capsys, *BOTH, "--json")[1])
    assert (told["vllm_estimated_duration_s"], told["completed_requests"]) == (0.0023, 2)
    assert told["responses_per_sec"] == 2 / 0.0023


def test_by_hand(files: Path, capsys: Capsys) -> None:
    """Queued at 100, 600 and 700 us. Step at 100: 20 prompt tokens, 1200 us. Step at 1300: one decode with 20 tokens of
    context, requests 1 (8 tokens, 16 cached) and 2 (8 tokens): 1000 + 160 + 1 + 10 = 1171 us; both are done with it. Step
    at 2471: one decode with 21 of context: 1011.5 -> 1011 us. TTFT adds 7 us, each further token 7, a completion 50.
    """
    status, out, _ = simulate(capsys, *BOTH, "--out", "results.csv", "--json")
    assert status == 0
    rows = list(csv.DictReader((files / "results.csv").read_text().splitlines()))
    assert [list(r.values()) for r in rows] == [
        ["request_0", "0", "20", "3", str(1300 + 7), str(1307 + 1171 + 1011 + 14 + 50), "1098"],
        ["request_1", "500", "24", "1", str(2471 + 7 - 500), str(1978 + 50), "0"],
        ["request_2", "600", "8", "0", str(2471 + 7 - 600), str(1878), "0"],
    ]
    figures = json.loads(out)
    assert figures["completed_requests"] == 3 and figures["total_output_tokens"] == 4
    assert figures["vllm_estimated_duration_s"] == (2471 + 1011) / 1e6
    assert figures["cache_hit_rate"] == 1 / (1 + 2 + 1 + 1)  # blocks: one found; two, one and one taken
    assert figures["itl_mean_ms"] == (1171 + 1011 + 14) / 2 / 1e3
    assert (figures["seeds"], len(figures["data"])) == ([], 16)
    fields = dict(line.split() for line in simulate(capsys, *BOTH)[1].splitlines())  # by the host's names
    assert fields["completed_requests"] == "3" and fields["preemption_count"] == "0" and "e2e_p99_ms" in fields


def test_rows_may_stand_in_any_order(files: Path, capsys: Capsys) -> None:
    simulate(capsys, *BOTH, "--out", "a.csv")
    head, *rows = TRACE.splitlines()
    (files / "trace.csv").write_text("\n".join([head, *reversed(rows)]) + "\n")
    assert simulate(capsys, *BOTH, "--out", "b.csv")[0] == 0
    assert sorted((files / "a.csv").read_text().splitlines()) == sorted((files / "b.csv").read_text().splitlines())


def test_a_pipe_is_no_trace(files: Path, capsys: Capsys) -> None:
    os.mkfifo(files / "pipe")
    assert "pipe: is a pipe or a device" in refused(capsys, "simulate", "--case", "case.json", "--trace", "pipe")


def test_a_program_gives_all_times(files: Path, capsys: Capsys) -> None:
    step = "def step_time(b, s, *, a=500.0, c=1.0): return a + c * b.batch_size / s.max_num_seqs\n"
    (files / "mine.py").write_text(step)
    status, _, err = simulate(capsys, *BOTH, "--program", "mine.py", "--out", "results.csv")
    rows = list(csv.DictReader((files / "results.csv").read_text().splitlines()))
    # the language's queueing_time, not the case's alpha; a step of 24 decodes that is missed, the case has 4 seats; a step
    assert status == 0 and int(rows[0]["ttft_us"]) == 5000 + (500 + 24 // 4) + 500
    assert err.splitlines() == [
        "evolve: warning: no queueing_time: 5000 us from arrival to queue are assumed until `evolve fit` finds them",
        "evolve: warning: case.json: alpha belongs to the case's own backend; mine.py has no queueing_time, "
        "output_token_time, completion_time",
    ]
    assert simulate(capsys, *BOTH, "--program", "mine.py", "--quiet")[2] == err  # quiet is about progress
    (files / "mine.py").write_text("def step_time(b, s): return b.weight_read_us\n")
    status, _, err = simulate(capsys, *BOTH, "--program", "mine.py")
    assert status == 2 and "mine.py: the program reads s." in err and "give --model, --hardware and --tp" in err
    named = ("--program", "mine.py", "--model", "llama-2-7b", "--hardware", "H100-SXM-80GB")
    assert simulate(capsys, *BOTH, *named)[0] == 0


@pytest.mark.parametrize(
    "text", ["b.decode_reqs / b.decode_reqs * 1e300", "0 - 3 * b.tokens", "exp(b.tokens / s.block_size) * 0", "1e300"]
)
def test_hostile_steps_are_clamped_and_counted(files: Path, capsys: Capsys, text: str) -> None:
    (files / "mine.py").write_text(f"def step_time(b, s): return {text}\n")
    status, out, err = simulate(capsys, *BOTH, "--program", "mine.py", "--json")
    figures = json.loads(out)
    assert status == 0 and figures["completed_requests"] == 3 and figures["clamped_times"] > 0
    assert "were outside [1, 1e10] us and clamped" in err


def test_an_experiments_requests(files: Path, capsys: Capsys) -> None:
    status, out, _ = simulate(capsys, "--id", "llama-2-7b-tp1-codegen", "--out", "r.csv", "--json")
    figures = json.loads(out)
    assert status == 0 and figures["completed_requests"] == 9000 and figures["seeds"] == [1]
    assert len((files / "r.csv").read_text().splitlines()) == 9001
    other = json.loads(simulate(capsys, "--id", "llama-2-7b-tp1-codegen", "--seed", "2", "--json")[1])
    assert other["e2e_mean_ms"] != figures["e2e_mean_ms"]


def with_case(**changes: object) -> str:
    return json.dumps(CASE | changes)


BAD_CASES = {
    "{": "not valid JSON",
    "[]": "must be a mapping",
    with_case(extra=1): "extra is not a key of a case",
    with_case(engine={"block_size": 0}): "engine.block_size must be >= 1",
    with_case(engine={"block": 16}): "engine.block is not a key of a case",
    with_case(engine={"total_kv_blocks": 1.5}): "engine.total_kv_blocks must be a whole number",
    with_case(horizon_us=-1): "horizon_us must be >= 0",
    with_case(alpha={"base_us": "much"}): "alpha.base_us must be a number",
    with_case(step_linear_kv={"b0_us": float("nan")}): "NaN is no number",
    with_case(step_linear_kv=None): "no step_linear_kv",
}
BAD_TRACES = {
    "": "trace.csv:1: no column arrival_s",
    "arrival_s,input_len\n0,1\n": "trace.csv:1: no column output_len",
    "arrival_s,input_len,output_len\n": "no request",
    "arrival_s,input_len,output_len\n0,0,1\n": "trace.csv:2: input_len is 0. Give 1 to",
    "arrival_s,input_len,output_len\n0,5,1\n-1,5,1\n": "trace.csv:3: arrival_s is -1. Give seconds",
    "arrival_s,input_len,output_len\n0,5,1\nnan,5,1\n": "trace.csv:3: arrival_s is nan",
    "arrival_s,input_len,output_len\n0,5,1\n1,5,\n": "trace.csv:3: output_len is empty",
    "arrival_s,input_len,output_len\n0,5,1\n0,5,x\n": "trace.csv:3: output_len is 'x': give a number",
    "arrival_s,input_len,output_len\n0,5,99999999999\n": "trace.csv:2: output_len is '99999999999': give a number",
    "arrival_s,input_len,output_len,prefix_grp\n0,5,1,1\n": "trace.csv:1: unknown column 'prefix_grp'. Did you",
    "arrival_s,input_len,output_len,prefix_group\n0,5,1,1\n": "trace.csv:1: prefix_group and prefix_len go together",
    "arrival_s,input_len,output_len\n0,5,1,7\n": "trace.csv:2: has 4 fields but the header has 3: correct the line",
    "arrival_s,input_len,output_len,prefix_group,prefix_len\n0,5,1,0,6\n": "trace.csv:2: prefix_len is 6",
    "arrival_s,input_len,output_len,timeout_s\n0,5,1,-3\n": "trace.csv:2: timeout_s is -3",
    "arrival_s,input_len,output_len,timeout_s\n0,5,1,nan\n": "trace.csv:2: timeout_s is nan",
}


@pytest.mark.parametrize("text", BAD_CASES | BAD_TRACES, ids=lambda t: (BAD_CASES | BAD_TRACES)[t][:40])
def test_a_bad_case_or_trace_is_one_line(files: Path, capsys: Capsys, text: str) -> None:
    name = "case.json" if text in BAD_CASES else "trace.csv"
    (files / name).write_text(text)
    status, out, err = simulate(capsys, *BOTH, "--out", "results.csv")
    assert (status, out) == (2, "") and len(err.splitlines()) == 1 and not (files / "results.csv").exists()
    assert err.startswith(f"evolve: {name}") and (BAD_CASES | BAD_TRACES)[text] in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "give one of the three"),
        (("--case", "case.json"), "--trace is missing"),
        ((*BOTH, "--id", "x"), "give one of the three"),
        ((*BOTH, "--seed", "3"), "--seed goes with --id"),
        ((*BOTH, "--model", "llama-2-7b"), "--model and --hardware go together"),
        (("--experiments", "e.yaml"), "e.yaml: cannot be read"),
        (("--experiments", ROOT / "configs" / "experiments_h100.yaml"), "has 16 experiments: name one with --id"),
        (("--case", "no.json", "--trace", "trace.csv"), "no.json: cannot be read"),
        (("--case", "case.json", "--trace", "no.csv"), "no.csv: cannot be read"),
        ((*BOTH, "--out", "no/such/folder.csv"), "no/such/folder.csv: cannot be written"),
        ((*BOTH, "--out", "case.json/x"), "case.json/x: cannot be written"),
        ((*BOTH, "--out", "."), ".: is a folder"),
        ((*BOTH, "--out", ""), "--out '': names nothing"),
        ((*BOTH, "--out", "trace.csv"), "trace.csv: it is an input"),
        ((*BOTH, "--model", "llama-2-7b", "--hardware", "H100-SXM-80GB"), "--model goes with --program"),
        ((*BOTH, "--program", "case.json", "--tp", "2"), "--tp needs --model and --hardware: a case names no model"),
    ],
)
def test_bad_arguments_are_one_line(files: Path, capsys: Capsys, args: tuple[str, ...], message: str) -> None:
    assert message in refused(capsys, "simulate", *args)


def test_a_request_that_never_fits_is_named(files: Path, capsys: Capsys) -> None:
    """Prompt and output need 5 blocks of 16, there are 4: the host would preempt it forever."""
    (files / "case.json").write_text(with_case(engine={"total_kv_blocks": 4, "block_size": 16}))
    (files / "trace.csv").write_text("row,arrival_s,input_len,output_len\n7,0,8,8\n9,0,40,40\n")
    status, _, err = simulate(capsys, *BOTH)
    assert status == 2 and "request_9 is preempted for ever" in err.splitlines()[-1]
    (files / "case.json").write_text(with_case(engine={"total_kv_blocks": 4, "block_size": 16}, horizon_us=1_000_000))
    status, out, _ = simulate(capsys, *BOTH, "--json")
    figures = json.loads(out)
    assert status == 0 and figures["completed_requests"] == 1 and figures["preemption_count"] > 5
    assert figures["still_running"] + figures["still_queued"] == 1


def test_ticks_are_truncated_and_defaults_are_the_hosts(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text("{}")
    case = read_case(tmp_path / "c.json")
    limits = case.limits
    assert (limits.blocks, limits.block, limits.max_seqs, limits.budget) == (1_000_000, 16, 256, 2048)
    (tmp_path / "t.csv").write_text("arrival_s,input_len,output_len,timeout_s\n0.0000019,5,1,\n1.0000029,5,1,0.5\n")
    requests, number = read_trace(tmp_path / "t.csv", case)
    assert list(requests.arrival_us) == [1, 1_000_002] and list(number) == [0, 1]
    assert list(requests.deadline_us) == [0, 1_500_002]
    assert (requests.prompt == -1).all() and (requests.group == -1).all() and requests.input_len.dtype == np.int32


@pytest.mark.parametrize(
    ("model", "runs", "sizes"),
    [
        ("llama-2-70b-tp4-general", 1, (16_800, 50_000)),
        pytest.param("", 12, (132_000, 900_000), marks=pytest.mark.slow),
    ],
)
def test_bench_gives_every_figure(
    model: str, runs: int, sizes: tuple[int, int], tiny_run: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = [e for e in bundled_experiments() if e.id.startswith(model)]
    monkeypatch.setattr(bench, "bundled_experiments", lambda: chosen)
    for name, value in {"REPEATS": 1, "TEXTS": 50, "CANDIDATES": 3}.items():
        monkeypatch.setattr(bench, name, value)
    if model:
        monkeypatch.setattr(bench.folder, "shipped_run", lambda: tiny_run)
        # the clock of opcodes for that of the compiled formula, which takes longer to compile than all else here
        monkeypatch.setattr(bench, "build", lambda blocks, single, formula: CLOCKS[blocks + single])
    figures = as_json(capsys, "bench", "--most", "10000", "--quiet")
    assert {"affine", "general", "champion", "exact", "compiled"} == set(figures["replay_ms"])
    assert figures["fast"] == {"affine": runs, "general": runs, "champion": runs, "exact": 0}
    assert figures["requests"] == sizes[0] and figures["steps"] > sizes[1]
    for name in ("candidate_ms", "requests_per_s", "steps_per_s", "peak_mib"):
        assert figures[name] > 0
    cost = figures["candidate"]
    assert cost["candidates"] == 3 and set(cost["candidates_per_s"]) == {"1", "2"}
    assert cost["candidate_in_replays"] == figures["candidate_in_replays"]
    assert figures["candidate_in_replays"] == pytest.approx(sum(cost["stage_ms"].values()) / cost["replay_ms"])
    assert [row["requests"] for row in figures["scaling"]] == [10_000] and figures["scaling"][0]["seconds"] > 0


# A function is missing, is there with the language's own constants, or has others: (us before the queue, us per token).
STEP = "def step_time(b, s, *, k: us = 9000.0):\n    return k\n"
HEAD = "def queueing_time(r, s, *, a: us = {}, e: us/token = {}):\n    return a + e * r.input_len\n"
QUEUEING = {STEP: (5000, 0), STEP + HEAD.format(5000.0, 0.0): (5000, 0), STEP + HEAD.format(100.0, 2.5): (100, 2.5)}


@pytest.mark.parametrize("text", QUEUEING, ids=["missing", "default", "own"])
def test_a_missing_function_means_the_same_in_every_command(text: str, files: Path, capsys: Capsys) -> None:
    """One request of 60 tokens alone: its time to first token is the time before the queue and one step; in the host,
    which cannot compose ahead, the step that a busy engine's request misses comes on top, but not in its own form."""
    base_us, each_us = QUEUEING[text]
    missed_ms = 9 if each_us else 0
    ttft_ms = (base_us + 60 * each_us + 9000) / 1e3
    (files / "mine.py").write_text(text)
    (files / "trace.csv").write_text("arrival_s,input_len,output_len\n0,60,2\n")
    (files / "mine.yaml").write_text(
        "version: 1\nexperiments:\n- {id: a, model: llama-2-7b, hardware: H100, workload: {name: c, arrival: even, "
        "stages: [{rate: 1.0, duration_s: 1.0}], prompt_len: 60, output_len: 2}}\n"
    )
    experiment = ("--experiments", "mine.yaml", "--id", "a")
    by_case = as_json(capsys, "simulate", *BOTH, "--program", "mine.py")
    by_experiment = as_json(capsys, "simulate", *experiment, "--program", "mine.py")
    predicted = as_json(capsys, "predict", "mine.py", *experiment)["experiments"][0]["predicted"]
    assert by_case["ttft_mean_ms"] == by_experiment["ttft_mean_ms"] == ttft_ms + missed_ms
    assert predicted["ttft_ms"]["mean"] == ttft_ms
    e2e_ms = ttft_ms + 9
    assert by_case["e2e_mean_ms"] == by_experiment["e2e_mean_ms"] == e2e_ms + missed_ms
    assert predicted["e2e_ms"]["mean"] == e2e_ms
    assert run_command(["emit", "mine.py", *experiment, "--out", "go"]) == 0
    assert ("no queueing_time: 5000 us" in capsys.readouterr().err) == (text == STEP)
    # What `go test` holds QueueingTime to, on these prompts, and then the two overheads.
    times = ", ".join(str(int(base_us + n * each_us + 1000 * missed_ms)) for n in PROMPTS)
    recorded = (files / "go" / "fitted_test.go").read_text()
    assert f"[]int64{{{times}}},\n\t\t[]int64{{0, 0}}" in recorded


def test_prompts_that_are_too_long_are_counted_in_a_sentence(files: Path, capsys: Capsys) -> None:
    (files / "trace.csv").write_text("arrival_s,input_len,output_len\n0,20,1\n0,999999,1\n")
    status, _, err = simulate(capsys, *BOTH)
    assert (
        status == 0 and "1 of 2 requests are longer than max_model_len, or than all KV blocks, and were refused" in err
    )
    assert "were refused" in simulate(capsys, *BOTH, "--quiet")[2]


def test_a_deployment_that_cannot_be_or_is_beyond_the_fit_is_said(files: Path, capsys: Capsys) -> None:
    """llama-2-70b has 128.5 GiB of weights, an H100 79 GiB; no fitted run was at TP 16."""
    named = "--program", "champion", "--model", "llama-2-70b", "--hardware", "H100", "--tp"
    status, _, err = simulate(capsys, *BOTH, *named, "1")
    assert status == 0 and "leaves no room for KV cache, 128.5 GiB of weights" in err
    said = "llama-2-70b on 16 H100-SXM-80GB: beyond the fitted runs in TP degree"
    assert said not in err and said in simulate(capsys, *BOTH, *named, "16")[2]
    assert "warning" not in simulate(capsys, *BOTH, *named, "4")[2]


def test_the_only_experiment_of_a_file_needs_no_name(tmp_path: Path, capsys: Capsys) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(
        "version: 1\nexperiments:\n- {id: only-one, model: llama-2-7b, hardware: H100, workload: {name: x, "
        "stages: [{rate: 2, duration_s: 5}], prompt_len: 300, output_len: 20}}\n"
    )
    assert as_json(capsys, "simulate", "--experiments", file)["completed_requests"] > 0
    printed(capsys, "emit", "floor", "--experiments", file, "--out", tmp_path / "go")
    assert "only-one" in (tmp_path / "go" / "INTEGRATION.md").read_text()
    at = "--experiments", ROOT / "configs" / "experiments_h100.yaml", "--deployment", "llama-2-7b,H100"
    assert "--experiments needs --id" in refused(capsys, "emit", "floor", *at, "--out", tmp_path / "no")


def test_a_trace_that_looks_like_milliseconds_is_said(files: Path, capsys: Capsys) -> None:
    rows = [f"{500 * i},20,3" for i in range(1000)]
    (files / "trace.csv").write_text("\n".join(["arrival_s,input_len,output_len", *rows]))
    status, _, err = simulate(capsys, *BOTH)
    said = "warning: arrival_s of trace.csv spans 499,500 s, 6 days, and its 1,000 requests come 500 s apart"
    assert status == 0 and said in err
