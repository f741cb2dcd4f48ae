"""Replicas, drafts, fp8 KV caches, KV offload and closed loads in the files that are exchanged with the host."""

from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path

import pytest
from commands import Capsys, refused

from evolve.cli import run_command
from evolve.host.cases import case_of, read_case
from evolve.host.exchange import offload_text
from simulator.serving.bundled import load_experiments
from simulator.serving.engine import Engine
from simulator.serving.load import limits_of

PROGRAM = """
def step_time(b, s, *, base: us = 9000.0, prefill: us/token = 45.0, decode: us/request = 70.0,
              kv: token = 300.0):
    return base + prefill * b.prefill_tokens + decode * b.decode_reqs + kv * s.kv_us_per_token
"""
DATA = """
version: 1
experiments:
- id: closed
  model: llama-2-7b
  hardware: H100
  replicas: 2
  engine: {max_num_seqs: 8, total_kv_blocks: 34, kv_cache_dtype: fp8, kv_offloading_size: 4, kv_offload_gb_per_s: 20,
           speculative_method: eagle3, num_speculative_tokens: 2, speculative_acceptance: 0.6}
  workload: {name: bench, concurrency: 10, requests: 60, release: host, think_time_s: 0.05,
             shared_prefix: {groups: 1, system_prompt_len: 200, question_len: {uniform: {min: 20, max: 90}}},
             output_len: {normal: {mean: 30, sd: 9, min: 5, max: 80}}}
- id: open
  model: llama-2-7b
  hardware: H100
  replicas: 3
  engine: {max_num_seqs: 4, total_kv_blocks: 200}
  workload: {name: chat, stages: [{rate: 9.0, duration_s: 20}], prompt_len: 300, output_len: {uniform: {min: 20, max: 90}}}
"""
BY_ID = ("--experiments", "data.yaml", "--program", "p.py", "--quiet")
OF_CASE = ("--case", "t/case.json", "--program", "p.py", "--hardware", "H100", "--quiet")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "data.yaml").write_text(DATA)
    (tmp_path / "p.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def simulate(capsys: Capsys, *args: str) -> tuple[str, str]:
    assert run_command(["simulate", *args]) == 0
    return capsys.readouterr()


def flags(line: str) -> dict[str, str]:
    words = shlex.split(line)
    return dict(zip(words[2::2], words[3::2], strict=True))


def test_a_closed_load_comes_back_from_every_file(files: Path, capsys: Capsys) -> None:
    """From the trace and from the workload spec, with drafts, fp8 KV cache, KV offload and two replicas in the case."""
    out, err = simulate(
        capsys, "--id", "closed", *BY_ID, "--seed", "2", "--export", "tracev2", "--out", "t", "--results", "r.json"
    )
    assert "t: header.yaml, trace.csv, case.json, workload.yaml, kv-offload.yaml;" in out
    assert "the host's replay refuses KV offload" in err and "holds no drafts" not in err
    simulate(capsys, "--tracev2", "t/header.yaml", "t/trace.csv", *OF_CASE, "--results", "trace.json")
    spec = ("--workload", "t/workload.yaml", "--model", "llama-2-7b")  # it has the seed
    simulate(capsys, *spec, *OF_CASE, "--results", "spec.json")
    results = Path("r.json").read_text()
    assert Path("trace.json").read_text() == results == Path("spec.json").read_text()
    assert json.loads(simulate(capsys, *spec, *OF_CASE, "--json")[0])["kv_blocks_loaded"] > 0

    case = read_case(Path("t/case.json"))
    e = next(e for e in load_experiments(Path("data.yaml")) if e.id == "closed")
    own = limits_of(e, host_rules=True)
    assert (case.limits.drafts, case.limits.acceptance, case.replicas) == (own.drafts, own.acceptance, 2)
    assert case.engine.kv_offloading_size == 4.0 and case.engine.kv_cache_dtype == "fp8"
    (files / "t" / "case.json").write_text(json.dumps(case_of(own, e.engine, 1)))
    simulate(capsys, *spec, *OF_CASE, "--results", "one.json")
    assert Path("one.json").read_text() != results  # the replicas matter


def test_the_hosts_own_clients_get_their_files_and_flags(files: Path, capsys: Capsys) -> None:
    out, _ = simulate(capsys, "--id", "closed", *BY_ID, "--export", "tracev2", "--out", "t")
    emit, replay, run = out.partition("Next:\n")[2].splitlines()
    assert " emit p.py " in emit and shlex.split(run)[:2] == ["blis", "run"]
    own = {"--workload-spec": "t/workload.yaml", "--kv-offload-config": "t/kv-offload.yaml"}
    own |= {"--metrics-path": "t/host-metrics.json"}
    shared = {"--kv-cache-dtype": "fp8", "--num-speculative-tokens": "2", "--speculative-acceptance-rate": "0.6"}
    shared |= {"--num-instances": "2", "--routing-policy": "round-robin", "--total-kv-blocks": "34"}
    assert own.items() | shared.items() <= flags(run).items() and shared.items() <= flags(replay).items()
    assert "--kv-offload-config" not in replay and "--trace-header" not in run


def test_an_open_load_over_replicas_comes_back(files: Path, capsys: Capsys) -> None:
    out, _ = simulate(capsys, "--id", "open", *BY_ID, "--export", "tracev2", "--out", "t", "--results", "r.json")
    assert "t: header.yaml, trace.csv, case.json; times" in out and " ingest " not in out
    *_, replay = out.splitlines()
    assert (flags(replay)["--num-instances"], flags(replay)["--routing-policy"]) == ("3", "round-robin")
    assert "--kv-cache-dtype" not in replay
    simulate(capsys, "--tracev2", "t/header.yaml", "t/trace.csv", *OF_CASE, "--results", "b.json")
    assert Path("b.json").read_text() == Path("r.json").read_text()


def test_request_i_goes_to_replica_i_mod_n(files: Path, capsys: Capsys) -> None:
    """Of a case's trace: the rows of each replica alone, at the same times."""
    limits = {"max_num_seqs": 2, "total_kv_blocks": 90}
    step = {"b0_us": 5_000, "per_prefill_token_us": 12.5, "per_decode_request_us": 40}
    rows = [f"{0.004 * i:.4f},{50 + 37 * i % 200},{5 + i % 7}" for i in range(30)]
    head = "arrival_s,input_len,output_len"
    found = []
    for name, replicas, some in (("all", 2, rows), ("even", 1, rows[::2]), ("odd", 1, rows[1::2])):
        Path("c.json").write_text(json.dumps({"engine": limits, "step_linear_kv": step, "replicas": replicas}))
        Path("t.csv").write_text("\n".join([head, *some]) + "\n")
        simulate(capsys, "--case", "c.json", "--trace", "t.csv", "--out", f"{name}.csv", "--quiet")
        table = csv.DictReader(Path(f"{name}.csv").read_text().splitlines())
        found.append([(r["arrival_us"], r["ttft_us"], r["e2e_us"]) for r in table])
    both, even, odd = found
    assert (both[::2], both[1::2]) == (even, odd) and len(both) == 30


def test_the_text_of_kv_offload() -> None:
    """The host's keys (cmd/kv_offload.go). It divides the bytes of one GPU by those of a block there; vLLM's size is
    that of all GPUs."""
    engine = Engine(tensor_parallel=4, kv_offloading_size=10.0, block_size=32, offload_prompt_only=False)
    assert offload_text(engine) == (
        "kv_offload:\n  cpu_bytes_to_use: 2684354560\n  block_size: 32\n  eviction_policy: lru\n"
        "  offload_prompt_only: false\n"
    )


@pytest.mark.parametrize(
    ("asked", "flag"), [("auto", None), ("bfloat16", "bf16"), ("fp8_e5m2", "fp8_e5m2"), ("fp8", "fp8")]
)
def test_the_type_of_the_kv_cache_has_the_hosts_name(asked: str, flag: str | None, files: Path, capsys: Capsys) -> None:
    (files / "data.yaml").write_text(
        DATA.replace("total_kv_blocks: 200", f"total_kv_blocks: 200, kv_cache_dtype: {asked}")
    )
    out, _ = simulate(capsys, "--id", "open", *BY_ID, "--export", "tracev2", "--out", "t")
    assert flags(out.splitlines()[-1]).get("--kv-cache-dtype") == flag


def test_a_load_that_no_spec_holds_is_named(files: Path, capsys: Capsys) -> None:
    data = DATA.replace(
        "concurrency: 10, requests: 60", "stages: [{concurrency: 2, requests: 9}, {concurrency: 4, requests: 9}]"
    )
    (files / "data.yaml").write_text(data)
    out, err = simulate(capsys, "--id", "closed", *BY_ID, "--export", "tracev2", "--out", "t")
    assert "no workload.yaml, as the host's workload spec cannot hold several stages" in err
    assert "case.json, kv-offload.yaml;" in out and "blis run" not in out
    (files / "data.yaml").write_text(DATA.replace("requests: 60", "requests: 60, warmup_requests: 6"))
    assert (
        "workload.yaml leaves out the warm-up of 6 requests"
        in simulate(capsys, "--id", "closed", *BY_ID, "--export", "tracev2", "--out", "t")[1]
    )


CASE = '{"engine": {"num_speculative_tokens": 2}, "step_linear_kv": {"b0_us": 10}}'


@pytest.mark.parametrize(
    ("case", "args", "problem"),
    [
        (CASE, (), "c.json: engine.speculative_acceptance is missing"),
        (
            '{"engine": {"kv_offloading_size": 4}, "step_linear_kv": {"b0_us": 10}}',
            (),
            "the bytes of a KV block are unknown",
        ),
        ('{"replicas": 0, "step_linear_kv": {"b0_us": 10}}', (), "c.json: replicas must be >= 1"),
        ('{"engine": {"kv_cache_dtype": "fp4"}}', (), "c.json: engine.kv_cache_dtype must be one of"),
        (
            '{"load": {"concurrency": 2}, "step_linear_kv": {"b0_us": 10}}',
            ("--workload", "w.yaml"),
            "load and --workload",
        ),
        (CASE, ("--workload", "w.yaml", "--trace", "t.csv"), "--workload is a load of its own: leave out --trace"),
        (CASE, ("--workload", "w.yaml", "--id", "open"), "--workload is a load of its own: leave out --id"),
    ],
)
def test_what_cannot_be_is_one_line(
    case: str, args: tuple[str, ...], problem: str, files: Path, capsys: Capsys
) -> None:
    (files / "c.json").write_text(case)
    (files / "t.csv").write_text("arrival_s,input_len,output_len\n0,5,5\n")
    given = args or ("--trace", "t.csv")
    assert problem in refused(capsys, "simulate", "--case", "c.json", *given)
