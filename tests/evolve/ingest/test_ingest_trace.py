"""`evolve ingest --trace`: the written requests are those that were read; no file of others is overwritten."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from commands import evolve, refused
from trace_tables import AZURE, BENCHMARK, MOONCAKE, lines, written

from simulator.serving.bundled import load_experiments
from simulator.serving.traces.read import read_trace

WHERE = "--model", "llama-2-7b", "--hardware", "H100"


def files(home: Path) -> list[Path]:
    """A file of each kind, with pieces, groups, timeouts and latencies among them."""
    own = "arrival_s,input_len,output_len,prefix_group,prefix_len,timeout_s,prompt\n0,64,3,1,32,9.5,\n1.25,80,2,1,32,,4\n2,80,4,,,,4\n"
    return [
        written(home, "own.csv", own),
        written(home, "azure.csv", AZURE),
        written(home, "moon.jsonl", lines(MOONCAKE)),
        written(home, "bench.json", BENCHMARK),
    ]


def test_a_table_gives_the_requests_that_the_trace_gave(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces = files(tmp_path)
    named = [x for path in traces for x in ("--trace", path)]
    assert evolve("ingest", *named, "--out", tmp_path / "out", *WHERE, "--json") == 0
    told = {row["trace"]: row for row in json.loads(capsys.readouterr().out)["traces"]}
    runs = {e.id: e for e in load_experiments(tmp_path / "out" / "traces.yaml")}
    assert list(runs) == ["own", "azure", "moon", "bench"]
    for path in traces:
        was, now = read_trace(path, path.name), runs[path.stem].workload.source
        for name, column in vars(was.requests).items():
            if name != "chains":
                np.testing.assert_array_equal(getattr(now.requests, name), column, err_msg=f"{path.name} {name}")
        if was.requests.chains:
            for name in ("first", "number", "piece_len"):
                np.testing.assert_array_equal(getattr(now.requests.chains, name), getattr(was.requests.chains, name))
        assert (was.recorded is None) == (now.recorded is None)
        if was.recorded:
            np.testing.assert_array_equal(now.recorded.e2e_ms, was.recorded.e2e_ms)
        assert told[path.name]["requests"] == len(was.requests)
    # moon.jsonl: prompts of 3, 3 and 2 pieces, of which 2 and 1 were sent before
    assert told["moon.jsonl"]["repeated_share"] == pytest.approx(3 / 8)
    # own.csv: 32 of the second prompt by the group, and all 80 of the third by its number, of 224 tokens
    assert told["own.csv"]["repeated_share"] == pytest.approx((32 + 80) / 224)
    assert told["bench.json"]["measured"] == 2


def test_the_stages_of_a_file_are_kept(tmp_path: Path) -> None:
    rows = [f"{0.5 * i:g},200,20,{i // 240}" for i in range(720)]  # three stages of 240 requests, 120 s each
    (tmp_path / "staged.csv").write_text("\n".join(["arrival_s,input_len,output_len,stage", *rows]), "utf-8")
    out = tmp_path / "out"
    assert evolve("ingest", "--trace", tmp_path / "staged.csv", "--out", out, *WHERE) == 0
    (experiment,) = load_experiments(out / "traces.yaml")
    assert [stage.duration_s for stage in experiment.workload.stages] == [120.0, 120.0, 120.0]
    assert [stage.rate for stage in experiment.workload.stages] == pytest.approx([2.0, 2.0, 2.0], rel=0.01)


def test_further_traces_join_those_that_are_there(tmp_path: Path) -> None:
    """Files after a trace are traces too, as the shell writes `--trace *.csv`."""
    own, azure, moon, *_ = files(tmp_path)
    out = tmp_path / "out"
    assert evolve("ingest", "--trace", own, moon, "--out", out, *WHERE) == 0
    assert evolve("ingest", "--trace", azure, "--out", out, *WHERE, "--engine", "tensor_parallel=2") == 0
    entries = {e["id"]: e for e in yaml.safe_load((out / "traces.yaml").read_text())["experiments"]}
    assert list(entries) == ["own", "moon", "azure"]
    assert entries["azure"]["engine"] == {"tensor_parallel": 2}


def test_a_benchmark_names_its_model(tmp_path: Path) -> None:
    path = written(tmp_path, "bench.json", BENCHMARK | {"model_id": "Qwen/Qwen2.5-7B-Instruct"})
    assert evolve("ingest", "--trace", path, "--out", tmp_path / "out", "--hardware", "H100") == 0
    (e,) = load_experiments(tmp_path / "out" / "traces.yaml")
    assert e.model == "Qwen/Qwen2.5-7B-Instruct" and not any("measured on" in note for note in e.notes)


def test_another_model_than_the_benchmarks_is_noted_here_and_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, "bench.json", BENCHMARK | {"model_id": "Qwen/Qwen2.5-7B-Instruct"})
    assert evolve("ingest", "--trace", path, "--out", tmp_path / "out", *WHERE) == 0
    said = "was measured on 'Qwen/Qwen2.5-7B-Instruct', as it says, not on llama-2-7b: name the model that was measured"
    assert said in " ".join(capsys.readouterr().out.split())
    (e,) = load_experiments(tmp_path / "out" / "traces.yaml")
    assert f"bench.json {said}" in e.notes


def test_the_same_requests_twice_are_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = written(tmp_path, "bench.json", BENCHMARK)
    other = written(tmp_path, "copy.json", BENCHMARK | {"date": "today"})
    third = written(tmp_path, "third.json", BENCHMARK | {"ttfts": [0.05, 0.038, 0.0]})
    out = tmp_path / "out"

    def twice(*traces: Path) -> list[list[str]]:
        assert evolve("ingest", "--trace", *traces, "--out", out, *WHERE, "--json") == 0
        told = json.loads(capsys.readouterr().out)["traces"]
        return [[note for note in row["notes"] if "counts them twice" in note] for row in told]

    said = "has the same requests as bench: a fit to both counts them twice: leave one out"
    assert twice(first, other, third) == [[], [said], []]
    assert twice(other) == [[said]]  # of an earlier call
    moon = files(tmp_path)[2]
    again = written(tmp_path, "again.jsonl", moon.read_text())
    assert twice(moon, again) == [[], []]  # nothing was measured


def test_a_replaced_trace_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (own, *_), out = files(tmp_path), tmp_path / "out"

    def replaced(*options: str) -> bool:
        assert evolve("ingest", "--trace", own, "--out", out, *options, "--json") == 0
        [told] = json.loads(capsys.readouterr().out)["traces"]
        return bool(told["replaced"])

    assert not replaced(*WHERE) and not replaced(*WHERE)  # the same again
    assert replaced(*WHERE, "--engine", "tensor_parallel=2")
    own.write_text(own.read_text() + "3,80,4,,,,4\n")
    assert replaced() and not replaced()
    assert evolve("ingest", "--trace", own, "--out", out, *WHERE) == 0
    assert "own: replaces another trace, or other settings, of" in " ".join(capsys.readouterr().out.split())


def test_names_with_a_comma_and_traces_of_one_moment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "a,b.csv", "arrival_s,input_len,output_len\n5,64,3\n5,64,3\n")
    assert evolve("ingest", "--trace", path, "--out", tmp_path / "out", *WHERE) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "a,b: its experiment is a-b, because commas separate ids" in out
    assert "a,b 2 0 - 64 / 64 3 / 3 0 % 1 0" in out  # two requests in no time have no rate


def test_a_fit_is_suggested_for_a_measured_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own, *_, bench = files(tmp_path)  # a third of the benchmark's requests failed
    calm = written(tmp_path, "calm.csv", "arrival_s,input_len,output_len,e2e_ms\n0,64,3,20\n1,64,3,21\n")
    for path, suggested in ((calm, True), (bench, False), (own, False)):
        assert evolve("ingest", "--trace", path, "--out", tmp_path / path.stem, *WHERE) == 0
        assert (" --split --out mine.py" in capsys.readouterr().out) == suggested


def test_quality_is_judged_as_for_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of 100 requests 12 failed; or TTFT grows from 0.1 to 20 s."""
    failed = [[i, 100, 0 if i % 8 == 7 else 50, 400, 40] for i in range(100)]
    queued = [[i, 100, 50, 500 + 200 * i, 100 + 200 * i] for i in range(100)]
    calm = [[i, 100, 50, 400, 40] for i in range(100)]
    rows = {"failed": failed, "queued": queued, "calm": calm}
    head = "arrival_s,input_len,output_len,e2e_ms,ttft_ms"
    texts = {name: "\n".join([head, *(",".join(map(str, r)) for r in each)]) for name, each in rows.items()}
    paths = [written(tmp_path, f"{name}.csv", text + "\n") for name, text in texts.items()]
    named = [x for path in paths for x in ("--trace", path)]
    assert evolve("ingest", *named, "--out", tmp_path / "out", *WHERE, "--json") == 0
    told = {row["experiment"]: row["overloaded"] for row in json.loads(capsys.readouterr().out)["traces"]}
    assert told["failed"] == ["12.00 % of 100 requests failed"] and told["calm"] == []
    [why] = told["queued"]
    assert "requests wait for the engine" in why
    runs = {e.id: e.quality for e in load_experiments(tmp_path / "out" / "traces.yaml")}
    assert runs == {"failed": "overloaded", "queued": "overloaded", "calm": "clean"}


def test_without_a_model_only_tables_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (own, *_) = files(tmp_path)
    assert evolve("ingest", "--trace", own, "--out", tmp_path / "out") == 0
    assert "--model and --hardware" in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["own.parquet"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--trace", "own.csv", "folder"], "folder: there is no such file"),
        (["folder", "--tracev2", "a", "b"], "name one or the other"),
        ([], "ingest reads folders, or --trace and --tracev2 files"),
        (["folder", "--model", "llama-2-7b"], "--model goes with --trace"),
        (["--trace", "own.csv", "--model", "llama-2-7b"], "--model and --hardware together"),
        (["--trace", "also/own.csv", "--trace", "also/own.csv"], "also-own: two traces have this name: rename one"),
        (["--trace", "none.csv"], "none.csv: there is no such file"),
        (["--trace", "also"], "also: is a folder: name the files in it, as in --trace also/*.csv"),
        (["--trace", "own.csv", "moon.jsonl", "bad.json"], "--output-details (SGLang), or leave this file out"),
        (["--trace", "bad.json", "own.csv", "worse.json", "none.json"], "worse.json, none.json: leave all 3 out"),
        (["--trace", "bench.json", "--hardware", "H100"], "bench.json: names no model: give --model"),
        (["--trace", "odd.json", "--hardware", "H100"], "odd.json: was measured on 'me/odd', which is not known"),
        (["--trace", "own.csv", "--hardware", "H1000", "--model", "llama-2-7b"], "--hardware H1000"),
        (["--trace", "own.csv", "--hardware", "H100", "--model", "llama-2-7"], "'llama-2-7' is not in the model table"),
    ],
)
def test_wrong_options_are_refused_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    files(tmp_path)
    written(tmp_path, "bad.json", {name: values for name, values in BENCHMARK.items() if name != "itls"})
    written(tmp_path, "worse.json", BENCHMARK | {"ttfts": []})
    written(tmp_path, "odd.json", BENCHMARK | {"model_id": "me/odd"})
    (tmp_path / "also").mkdir()
    (tmp_path / "also" / "own.csv").write_text((tmp_path / "own.csv").read_text())
    monkeypatch.chdir(tmp_path)
    assert message in refused(capsys, "ingest", *options, "--out", "out")
    assert not list(tmp_path.glob("out/*"))


def test_an_experiments_file_of_others_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (own, *_) = files(tmp_path)
    mine = written(tmp_path, "traces.yaml", "version: 1\nexperiments: []\n")
    assert "is not an output of ours" in refused(capsys, "ingest", "--trace", own, "--out", tmp_path, *WHERE)
    assert mine.read_text() == "version: 1\nexperiments: []\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("experiments: [", "traces.yaml: line 3: "),
        ("experiments: [{id: a}]", "is not what this release writes. Move it away"),
    ],
)
def test_an_experiments_file_that_was_damaged_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    (own, *_), out = files(tmp_path), tmp_path / "out"
    assert evolve("ingest", "--trace", own, "--out", out, *WHERE) == 0
    (out / "traces.yaml").write_text(f"# Written by evolve ingest --trace\n{text}\n")
    assert message in refused(capsys, "ingest", "--trace", own, "--out", out, *WHERE)
