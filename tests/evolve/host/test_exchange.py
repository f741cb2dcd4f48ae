"""`evolve simulate` with the host's formats: traces out and in again, and results as its calibrate reads them."""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from commands import Capsys, refused

from evolve.cli import run_command
from evolve.run.program import TRAINED_PHYSICS, load
from simulator.language.unparse import unparse
from simulator.serving.bundled import bundled_experiments, load_experiments
from simulator.serving.load import load_of
from simulator.serving.traces.tracev2 import COLUMNS, read_recording, with_one_prefix

PROGRAM = """
def step_time(b, s, *, base: us = 9000.0, prefill: us/token = 45.0, decode: us/request = 70.0,
              layer: us = 2.0):
    return base + prefill * b.prefill_tokens + decode * b.decode_reqs + layer * s.layers
"""
# Prompts of the first one repeat nothing; the second's share a prefix and have clients that give up
DATA = """
version: 1
experiments:
- id: plain
  model: llama-2-7b
  hardware: H100
  engine: {max_num_seqs: 8, total_kv_blocks: 400, max_num_batched_tokens: 512, long_prefill_token_threshold: 256}
  workload: {name: chat, stages: [{rate: 6.0, duration_s: 60}], prompt_len: 300, output_len: {uniform: {min: 20, max: 90}}}
- id: shared
  model: llama-2-7b
  hardware: H100
  engine: {max_num_seqs: 4, total_kv_blocks: 400}
  workload:
    name: shared
    stages: [{rate: 12.0, duration_s: 30}]
    shared_prefix: {groups: 3, system_prompt_len: 100, question_len: {uniform: {min: 20, max: 90}}}
    output_len: 60
    timeout_s: 3
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "data.yaml").write_text(DATA)
    (tmp_path / "p.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def simulate(capsys: Capsys, *args: str) -> tuple[int, str, str]:
    status = run_command(["simulate", *args])
    out, err = capsys.readouterr()
    return status, out, err


SHARED = ("--id", "shared", "--experiments", "data.yaml", "--program", "p.py")
PLAIN = ("--id", "plain", "--experiments", "data.yaml", "--program", "p.py")
EXPORT = (*PLAIN, "--export", "tracev2", "--out", "t")
BACK = ("--tracev2", "t/header.yaml", "t/trace.csv", "--case", "t/case.json", "--program", "p.py")


@pytest.mark.parametrize("name", ["plain", "shared"])
def test_a_trace_that_is_read_again_gives_the_results_of_the_experiment(name: str, files: Path, capsys: Capsys) -> None:
    by_id = ("--id", name, "--experiments", "data.yaml", "--program", "p.py", "--seed", "3")
    assert simulate(capsys, *by_id, "--out", "id.csv")[0] == 0
    status, out, err = simulate(capsys, *by_id, "--export", "tracev2", "--out", "t", "--results", "r.json")
    assert status == 0 and "differ" not in err
    assert "t: header.yaml, trace.csv, case.json" in out and "blis replay --trace-header t/header.yaml" in out
    assert "--max-num-seqs" in out and "--total-kv-blocks 400" in out

    experiment = next(e for e in load_experiments(files / "data.yaml") if e.id == name)
    sent, trace = load_of(experiment, 3).requests, read_recording(Path("t/header.yaml"), Path("t/trace.csv"))
    for column in ("arrival_us", "input_len", "output_len", "group", "shared_len", "deadline_us"):
        assert (getattr(sent, column) == getattr(trace.requests, column)).all(), column
    assert (sent.group >= 0).all() == (sent.deadline_us > 0).all() == (name == "shared")
    server = trace.header.server
    assert (server.model, server.tensor_parallel, server.block_size) == ("meta-llama/Llama-2-7b-hf", 1, 16)

    status, out, _ = simulate(capsys, *BACK, "--hardware", "H100", "--out", "back.csv", "--results", "s.json", "--json")
    assert status == 0
    assert Path("back.csv").read_text() == Path("id.csv").read_text()
    assert Path("s.json").read_text() == Path("r.json").read_text()
    rows = list(csv.DictReader(Path("id.csv").read_text().splitlines()))
    results = json.loads(Path("r.json").read_text())
    columns = ("input_len", "output_len", "ttft_us", "e2e_us", "itl_mean_us")
    expected = [[int(r["request_id"].removeprefix("request_")), *(float(r[c]) for c in columns)] for r in rows]
    keys = ("request_id", "input_tokens", "output_tokens", "ttft_us", "e2e_us", "itl_mean_us")
    assert [[r[key] for key in keys] for r in results] == expected
    done, timed_out = (trace.status == "ok").sum(), (trace.status == "timeout").sum()
    assert (done, done + timed_out) == (len(rows), len(sent)) and (timed_out > 0) == (name == "shared")


def test_the_hosts_command_is_complete(files: Path, capsys: Capsys) -> None:
    """A table selects by model, GPU and tensor parallelism; of the host's own form its own backend has the times."""
    export = ("--export", "tracev2", "--out", "t")
    (files / "mine.py").write_text(unparse(load(TRAINED_PHYSICS).complete.with_theta((1.0,) * 13)))
    for program, backend, before in (
        ("p.py", "fitted", ["evolve emit p.py --into CHECKOUT --experiments data.yaml --id plain"]),
        ("trained_physics", "trained-physics", []),
        ("mine.py", "trained-physics", ["evolve emit mine.py --coefficients"]),
    ):
        ran = simulate(capsys, "--id", "plain", "--experiments", "data.yaml", "--program", program, *export)
        *first, line, ingest = ran[1].partition("Next:\n")[2].splitlines()
        assert shlex.split(ingest)[1:5] == ["ingest", "--tracev2", "t/header.yaml", "t/trace.csv"]
        assert [shlex.join(["evolve", *shlex.split(text)[1:]]) for text in first] == before
        words = shlex.split(line)
        assert words[:2] == ["blis", "replay"]
        wanted = shlex.split(f"""
            --trace-header t/header.yaml --trace-data t/trace.csv --results-path t/host-results.json
            --model meta-llama/Llama-2-7b-hf --hardware H100 --tp 1 --latency-model {backend} --horizon 86400000000
            --cache-signal-delay 0 --snapshot-refresh-interval 0 --total-kv-blocks 400 --block-size-in-tokens 16
            --max-num-seqs 8 --max-num-batched-tokens 512 --long-prefill-token-threshold 256 --max-model-len 4096""")
        assert dict(zip(words[2::2], words[3::2], strict=True)) == dict(zip(wanted[::2], wanted[1::2], strict=True))


def test_a_long_replay_has_days_enough(files: Path, capsys: Capsys) -> None:
    """Some 360 requests of about 55 steps of 1,000 s each, 8 at a time, take some 28 days."""
    (files / "p.py").write_text("def step_time(b, s, *, base: us = 1e9): return base\n")
    ran = simulate(capsys, *EXPORT, "--json", "--quiet")
    took_us = 1e6 * json.loads(ran[1])["vllm_estimated_duration_s"]
    assert took_us > 10 * 86_400e6
    ran = simulate(capsys, *EXPORT)
    horizon_us = int(ran[1].partition("--horizon ")[2].split()[0])
    assert horizon_us % 86_400_000_000 == 0 and 2 * took_us <= horizon_us < 2 * took_us + 86_400e6


def test_the_chunks_of_a_trace_are_the_simulated_times(files: Path, capsys: Capsys) -> None:
    """The program adds no time after the last token but 50 us, which the host's last chunk leaves out."""
    (files / "p.py").write_text(PROGRAM + "\ndef completion_time(s, *, t: us = 50.0): return t\n")
    ran = simulate(capsys, *EXPORT, "--results", "r.json")
    assert ran[0] == 0
    trace, results = read_recording(Path("t/header.yaml"), Path("t/trace.csv")), json.loads(Path("r.json").read_text())
    arrival = trace.requests.arrival_us
    assert (trace.first_us - arrival).tolist() == [r["ttft_us"] for r in results]
    assert (trace.last_us - arrival + 50).tolist() == [r["e2e_us"] for r in results]


def test_of_shipped_runs_repeated_prompts_are_kept_and_little_is_lost() -> None:
    """Their 100 prompts are sent over and over; what the 10 of a group have in common is lost at the first of each."""
    for e in bundled_experiments():
        requests = load_of(e, 1).requests
        held, lost = with_one_prefix(requests)
        assert 0 < lost < 0.02, e.id
        assert len(np.unique(held.group)) == 100 and (held.arrival_us == requests.arrival_us).all(), e.id


def test_what_a_trace_cannot_hold_is_said(files: Path, capsys: Capsys) -> None:
    """The results are those of the trace."""
    (files / "data.yaml").write_text(DATA.replace("{groups: 3,", "{groups: 3, prompts_per_group: 4,"))
    status, out, err = simulate(capsys, *SHARED, "--export", "tracev2", "--out", "t", "--json")
    told, again = json.loads(out), json.loads(simulate(capsys, *BACK, "--hardware", "H100", "--json")[1])
    assert {**told, "data": 0, "seeds": 0} == {**again, "data": 0, "seeds": 0}
    whole = json.loads(simulate(capsys, *SHARED, "--json")[1])
    rates = [f"{100 * each['cache_hit_rate']:.1f} %" for each in (told, whole)]
    ttfts = [f"{each['ttft_mean_ms']:.1f}" for each in (told, whole)]
    assert status == 0 and rates[0] != rates[1]
    assert "TraceV2 has one prefix per request" in err and all(figure in err for figure in (*rates, *ttfts))


def test_a_fit_to_an_ingested_export_keeps_its_caveats(files: Path, capsys: Capsys) -> None:
    """Settings are given, so that none is assumed. The times are a simulation's: program, `show` and Go say so."""
    for folder in ("t", "u"):
        _, out, _ = simulate(capsys, *PLAIN, "--export", "tracev2", "--out", folder)
        args = shlex.split(out.splitlines()[-1])[1:]
        assert run_command(args) == 0
        assert "assumed" not in capsys.readouterr().out
    ingested = "t/ingested/traces.yaml"
    assert run_command(["fit", "p.py", "--experiments", ingested, "--split", "--out", "mine.py"]) == 0
    out = capsys.readouterr().out
    assert "say nothing about a real engine" in out and "evolve emit" not in out
    assert run_command(["show", "mine.py"]) == 0
    assert "say nothing about a real engine" in " ".join(capsys.readouterr().out.split())
    assert run_command(["emit", "mine.py", "--experiments", ingested, "--id", "trace", "--out", "go"]) == 0
    go = " ".join(next(Path("go").glob("*.go")).read_text().replace("//", "").split())
    for text in (" ".join(Path("mine.py").read_text().split()), go):
        assert "the first 60 % of the requests of each" in text
        assert "The times of trace are a simulation's, not measured: these constants say nothing about a real" in text
    capsys.readouterr()
    # Two traces of one name are told apart by their folders; what --engine overrides is said.
    pairs = [word for folder in ("t", "u") for word in ("--tracev2", f"{folder}/header.yaml", f"{folder}/trace.csv")]
    assert run_command(["ingest", *pairs, "--out", "both", "--hardware", "H100", "--engine", "block_size=32"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "--engine takes precedence: block_size 32 (the header has 16)" in out
    assert [e.id for e in load_experiments(Path("both/traces.yaml"))] == ["t-trace", "u-trace"]
    assert run_command(["ingest", *pairs[:3], "--out", "none"]) == 0
    assert "no experiment: --hardware says where the trace is replayed" in capsys.readouterr().out
    assert run_command(["ingest", "t", "--out", "none"]) == 2
    said = "or a trace of the host with --tracev2 t/header.yaml t/trace.csv"
    assert said in capsys.readouterr().err.replace(f"{files}/", "")


def test_without_prefix_caching_nothing_is_shared(files: Path, capsys: Capsys) -> None:
    data = DATA.replace("400}\n  workload:\n", "400, prefix_caching: false}\n  workload:\n")
    (files / "data.yaml").write_text(data)
    assert simulate(capsys, *SHARED, "--out", "id.csv")[0] == 0
    status, _, err = simulate(capsys, *SHARED, "--export", "tracev2", "--out", "t")
    assert status == 0 and "TraceV2" not in err
    assert (read_recording(Path("t/header.yaml"), Path("t/trace.csv")).requests.group == -1).all()
    assert simulate(capsys, *BACK, "--hardware", "H100", "--out", "back.csv")[0] == 0
    assert Path("back.csv").read_text() == Path("id.csv").read_text()


def test_limits_are_the_cases_or_the_headers_or_the_hosts(files: Path, capsys: Capsys) -> None:
    """A step takes as long as there are seats, 1 us more for each: TTFT, two steps, shows which limit holds."""
    (files / "p.py").write_text("def step_time(b, s, *, a: us/request = 1.0): return a * s.max_num_seqs\n")
    assert simulate(capsys, *EXPORT)[0] == 0
    bare = BACK[:3]
    (files / "c.json").write_text('{"engine": {"max_num_batched_tokens": 2048, "max_num_seqs": 30}}')
    header = (files / "t" / "header.yaml").read_text()
    bare_header = header.split("server")[0]
    for text, case, seats in (header, (), 8), (header, ("--case", "c.json"), 30), (bare_header, (), 256):
        (files / "t" / "header.yaml").write_text(text)
        assert simulate(capsys, *bare, *case, "--program", "p.py", "--results", "r.json")[0] == 0
        assert json.loads(Path("r.json").read_text())[0]["ttft_us"] % 1000 == 2 * seats


def test_without_a_case_the_hosts_defaults_are_said(files: Path, capsys: Capsys) -> None:
    """The header gives seats and block size; 1,000,000 blocks and 2,048 tokens are the host's."""
    assert simulate(capsys, *EXPORT)[0] == 0
    bare = (*BACK[:3], "--program", "p.py", "--hardware", "H100")
    status, _, err = simulate(capsys, *bare)
    defaults = "total_kv_blocks=1000000, max_num_batched_tokens=2048, long_prefill_token_threshold=0 (0: no limit)"
    assert status == 0 and f"t/header.yaml: lacks engine settings, so these are the host's defaults: {defaults}" in err
    assert "Give --case t/case.json" in err
    assert "defaults" not in simulate(capsys, *BACK, "--hardware", "H100")[2]
    (files / "t" / "case.json").rename(files / "mine.json")
    err = simulate(capsys, *bare)[2]
    body = re.search(r"give --case FILE with (\{.*\}) in the file", err)
    assert body is not None
    (files / "own.json").write_text(body[1])
    ran = [simulate(capsys, *bare, *case, "--json")[1] for case in ((), ("--case", "own.json"))]
    first, second = ({**json.loads(text), "data": 0} for text in ran)
    assert first == second


def test_the_suggested_ingest_has_the_engine_that_was_simulated(files: Path, capsys: Capsys) -> None:
    """400 blocks and 512 tokens a step are in no header: the command that `simulate` suggests gives them."""
    out = simulate(capsys, *EXPORT)[1]
    words = shlex.split(next(line for line in out.splitlines() if " ingest " in line))
    command = words[words.index("ingest") :]
    assert run_command(command) == 0
    (experiment,) = load_experiments(Path("t/ingested/traces.yaml"))
    (original,) = [e for e in load_experiments(Path("data.yaml")) if e.id == "plain"]
    assert experiment.engine == replace(original.engine, max_model_len=4096)  # the model's own
    assert run_command(command[: command.index("--engine")]) == 0
    (assumed,) = load_experiments(Path("t/ingested/traces.yaml"))
    assert (assumed.engine.max_num_batched_tokens, assumed.engine.total_kv_blocks) == (2048, None)


def test_a_trace_without_completed_requests_gives_an_empty_list(files: Path, capsys: Capsys) -> None:
    (files / "case.json").write_text('{"step_linear_kv": {"b0_us": 10}, "horizon_us": 1}')
    (files / "trace.csv").write_text("arrival_s,input_len,output_len\n1,5,5\n")
    given = ("--case", "case.json", "--trace", "trace.csv", "--results", "r.json")
    assert simulate(capsys, *given)[0] == 0 and Path("r.json").read_text() == "[]\n"


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("--export", "tracev2", "--id", "plain"), "--export needs --out: name a folder"),
        ((*BACK, "--export", "tracev2", "--out", "u"), "--export goes with --id"),
        ((*BACK, "--id", "plain"), "--tracev2 is a load of its own"),
        ((*BACK, "--trace", "x.csv"), "--tracev2 is a load of its own"),
        ((*BACK, "--seed", "1"), "--seed goes with --id"),
        (BACK, "s.layers, which are unknown. Give --hardware"),
        ((*BACK, "--model", "llama-2-7b"), "--model and --tp need --hardware"),
        (BACK[:3], "--tracev2 has no step times"),
        (BACK[:5], "case.json: no step_linear_kv"),
        ((*BACK, "--hardware", "H100", "--out", "t/trace.csv"), "t/trace.csv: it is an input. Choose another --out"),
        ((*BACK, "--hardware", "H100", "--results", "t/header.yaml"), "Choose another --results"),
        ((*BACK, "--hardware", "H100", "--results", "t"), "t: is a folder: --results names a file"),
        (("--export", "tracev2", *PLAIN, "--out", "p.py"), "p.py: a file, but with --export, --out names a folder"),
    ],
)
def test_bad_command_lines_are_one_line(args: tuple[str, ...], problem: str, files: Path, capsys: Capsys) -> None:
    assert simulate(capsys, *EXPORT)[0] == 0
    assert problem in refused(capsys, "simulate", *args)


def test_a_case_for_the_host_has_one_rank(files: Path, capsys: Capsys) -> None:
    data = files / "data.yaml"
    data.write_text(data.read_text().replace("engine: {", "engine: {data_parallel: 2, "))
    assert "a case for the host has one rank of one stage" in refused(capsys, "simulate", *EXPORT)
    status, _, err = simulate(capsys, *PLAIN, "--out", "id.csv")
    assert status == 0 and "batch of one rank" in err


def test_a_header_without_a_model_asks_for_one(files: Path, capsys: Capsys) -> None:
    assert simulate(capsys, *EXPORT)[0] == 0
    header = files / "t" / "header.yaml"
    header.write_text(header.read_text().split("server")[0])
    at = "simulate", *BACK, "--hardware", "H100"
    assert "t/header.yaml: no model is named. Give --model" in refused(capsys, *at)
    assert simulate(capsys, *BACK, "--hardware", "H100", "--model", "llama-2-7b")[0] == 0


ROW = dict.fromkeys(COLUMNS, "0") | dict.fromkeys(("session_id", "prefix_group", "slo_class", "model"), "")
ROW |= {"streaming": "true", "status": "ok"}
ENGINE = '{"engine": {"total_kv_blocks": %d, "max_num_batched_tokens": 2048}}'


def host_trace(name: str, rows: list[dict[str, object]], header: str = "") -> tuple[str, ...]:
    """The options that simulate a trace of these rows on 700 blocks and 8 seats: PROGRAM without deployment fields."""
    about = "trace_version: 3\ntime_unit: microseconds\nmode: real\nserver: {max_num_seqs: 8, block_size: 16}\n"
    Path(f"{name}.yaml").write_text(about + header)
    names = [*COLUMNS, *dict.fromkeys(key for row in rows for key in row if key not in COLUMNS)]
    lines = [",".join(str({**ROW, **row}[key]) for key in names) for row in rows]
    Path(f"{name}.csv").write_text("\n".join([",".join(names), *lines]) + "\n")
    Path("p.py").write_text("def step_time(b, s): return 5000 + 40 * b.prefill_tokens + 70 * b.decode_reqs\n")
    Path("c.json").write_text(ENGINE % 700)
    return "--tracev2", f"{name}.yaml", f"{name}.csv", "--case", "c.json", "--program", "p.py", "--json"


def sessions(absolute: bool) -> list[dict[str, object]]:
    """Ten sessions of three rounds, each 200 new tokens and an answer of 40."""
    return [
        {
            "request_id": 10 * turn + s,
            "session_id": f"s{s}",
            "round_index": turn,
            "input_tokens": 200 + 240 * turn * absolute,
            "output_tokens": 40,
            "arrival_time_us": 200_000 * s + 3_000_000 * turn,
        }
        for turn in range(3)
        for s in range(10)
    ]


def steady_rows(**columns: Callable[[int], object]) -> list[dict[str, object]]:
    """40 requests that come faster than they are served."""
    usual = {"input_tokens": 400, "output_tokens": 40}
    return [
        {"request_id": i, "arrival_time_us": 30_000 * i, **usual, **{name: of(i) for name, of in columns.items()}}
        for i in range(40)
    ]


def ttft_ms(capsys: Capsys, *args: str) -> tuple[float, str]:
    """The mean TTFT, and what was said."""
    status, out, err = simulate(capsys, *args)
    assert status == 0, err
    return json.loads(out)["ttft_mean_ms"], err


def test_the_figure_of_lost_context_is_that_of_sessions_that_accumulate(files: Path, capsys: Capsys) -> None:
    """The same prompts, once as lengths alone and once with the context that they share."""
    growth, said = ttft_ms(capsys, *host_trace("g", sessions(False), "session_context_growth: accumulate\n"))
    assert "session_id" not in said
    absolute, said = ttft_ms(capsys, *host_trace("a", sessions(True)))
    assert growth < 0.8 * absolute
    # 200 + 40 tokens of 440 and 440 + 40 of 680 were said before: 720 of 1,320
    assert "session_id: 20 of 30 requests of a.csv are later turns of 10 sessions" in said and "54.5 %" in said
    assert f"the mean TTFT is {absolute:.1f} ms, and {growth:.1f} ms with that context" in said
    # whole blocks: 240 // 16 + 480 // 16 = 45 of 200 // 16 + 440 // 16 + 680 // 16 = 81
    assert "(0.0 and 55.6 % of the prompts' blocks are cached)" in said


def test_turns_that_overtake_the_answer_before_are_counted(files: Path, capsys: Capsys) -> None:
    """Rounds 100 ms apart, with answers that take 40 steps of more than 5 ms."""
    rows = [row | {"arrival_time_us": 100_000 * cast(int, row["round_index"])} for row in sessions(False)]
    _, said = ttft_ms(capsys, *host_trace("g", rows, "session_context_growth: accumulate\n"))
    assert "20 of 20 later turns are sent before the turn before is answered" in said


@pytest.mark.parametrize(
    ("column", "value", "other"),
    [("vllm_priority", 0, 5), ("slo_class", "critical", "batch"), ("model", "m/x", "m/y")],
)
def test_the_figure_of_urgent_requests_is_theirs_alone(
    column: str, value: object, other: object, files: Path, capsys: Capsys
) -> None:
    rows = steady_rows(**{column: lambda i: other if i % 4 == 0 else value})
    _, said = ttft_ms(capsys, *host_trace("t", rows), "--results", "all.json")
    alone, nothing = ttft_ms(capsys, *host_trace("alone", [row for row in rows if row[column] == value]))
    results = json.loads(Path("all.json").read_text())
    now = np.mean([r["ttft_us"] / 1e3 for r in results if r["request_id"] % 4])
    assert column in said and f"is {now:.1f} ms, and {alone:.1f} ms if nothing else is served" in said
    assert now > alone and column not in nothing


def test_the_figure_of_lost_offload_is_that_of_a_larger_cache(files: Path, capsys: Capsys) -> None:
    """Twelve prefixes of 50 blocks in turn do not fit into 400 blocks."""
    prefix = {"prefix_group": lambda i: f"g{i % 12}", "prefix_length": lambda i: 800}
    rows = steady_rows(**prefix, arrival_time_us=lambda i: 300_000 * i)
    args = host_trace("t", rows, "kv_offload: {cpu_bytes_to_use: 1}\n")
    Path("c.json").write_text(ENGINE % 400)
    small, said = ttft_ms(capsys, *args)
    Path("c.json").write_text(ENGINE % 4000)
    large, _ = ttft_ms(capsys, *args)
    assert large < 0.7 * small and f"is {small:.1f} ms, and {large:.1f} ms if no block is evicted" in said


def test_a_hit_rate_of_the_server_is_compared(files: Path, capsys: Capsys) -> None:
    """Of 75 whole blocks of each prompt, 50 are a prefix that all but the first find."""
    prefix = {"prefix_group": lambda i: "g", "prefix_length": lambda i: 800}
    rows = steady_rows(**prefix, arrival_time_us=lambda i: 300_000 * i)
    _, said = ttft_ms(capsys, *host_trace("t", rows, "observed_kv_metrics: {source: tiered, hit_rate: 0.625}\n"))
    assert "the server found 62.5 %" in said and f"a replay finds {100 * 39 * 50 / (40 * 75):.1f} %" in said
