"""`evolve ingest --tracev2`: a trace as the host observes it becomes an experiment, and a fit finds what made it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from evolve.cli import run_command
from simulator.clock.replay import replay
from simulator.language.parse import parse
from simulator.serving.bundled import load_experiments
from simulator.serving.trace import NOT_COUNTED
from simulator.serving.traces.tracev2 import COLUMNS, read_recording

BASE_US, PREFILL_US, DECODE_US, QUEUE_US = 9000.0, 45.0, 400.0, 2500.0
KNOWN = f"""
def step_time(b, s, *, base: us = {BASE_US}, prefill: us/token = {PREFILL_US}, decode: us/request = {DECODE_US}):
    return base + prefill * b.prefill_tokens + decode * b.decode_reqs
def queueing_time(r, s, *, wait: us = {QUEUE_US}): return wait
def output_token_time(s, *, each: us = 0.0): return each
def completion_time(s, *, end: us = 0.0): return end
"""
FORM = KNOWN.replace(f"{BASE_US}", "4000.0").replace(f"{PREFILL_US}", "20.0").replace(f"{DECODE_US}", "20.0")
DATA = """
version: 1
experiments:
- id: truth
  model: llama-2-7b
  hardware: H100
  engine: {max_num_seqs: 64}
  workload:
    name: chat
    stages: [{rate: 4.0, duration_s: 120}, {rate: 8.0, duration_s: 120}]
    prompt_len: {uniform: {min: 100, max: 900}}
    output_len: {uniform: {min: 20, max: 200}}
"""
EPOCH_US = 1_790_000_000_000_000  # the clock of an observed trace's send and chunk times
WARM_UP = 20


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with header.yaml and seen.csv: the times of KNOWN, as `observe` writes them of a real engine."""
    home = tmp_path_factory.mktemp("observed")
    (home / "data.yaml").write_text(DATA)
    (home / "known.py").write_text(KNOWN)
    (home / "form.py").write_text(FORM)
    args = ("--id", "truth", "--experiments", home / "data.yaml", "--program", home / "known.py", "--quiet")
    assert run_command(["simulate", *map(str, args), "--export", "tracev2", "--out", str(home)]) == 0
    header = (home / "header.yaml").read_text().replace("generated", "real")
    (home / "header.yaml").write_text(header.replace("warm_up_requests: 0", f"warm_up_requests: {WARM_UP}"))
    head, *rows = (home / "trace.csv").read_text().splitlines()
    names = head.split(",")
    (home / "seen.csv").write_text("\n".join([head, *(",".join(_on_wall_clock(names, row)) for row in rows)]) + "\n")
    return home


def _on_wall_clock(names: list[str], row: str) -> list[str]:
    moved = ("send_time_us", "first_chunk_time_us", "last_chunk_time_us")
    values = dict(zip(names, row.split(","), strict=True))
    return [str(int(value) + EPOCH_US) if name in moved else value for name, value in values.items()]


def ingest(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    status = run_command(["ingest", "--tracev2", *map(str, args)])
    out, err = capsys.readouterr()
    return status, out, err


def edited(observed: Path, tmp_path: Path, request: int, **changes: str) -> Path:
    """A copy of the data in which one request is changed."""
    head, *rows = (observed / "seen.csv").read_text().splitlines()
    values = dict(zip(COLUMNS, rows[request].split(","), strict=True)) | changes
    rows[request] = ",".join(values.values())
    (tmp_path / "seen.csv").write_text("\n".join([head, *rows]) + "\n")
    return tmp_path / "seen.csv"


def test_trace_in_coefficients_and_held_out_error_out(
    observed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The times are those of KNOWN, so a fit of its form finds its constants again, and predicts the last fifth of the
    requests, which it has not seen. Each of the means that it sees is of few requests under random arrivals, and a fit
    approximates batches by their means: hence not exactly (-0.7, -6 and +5 %, and 0.8 % held out, when written)."""
    out = tmp_path / "out"
    status, text, err = ingest(
        capsys, observed / "header.yaml", observed / "seen.csv", "--out", out, "--hardware", "H100"
    )
    assert (status, err) == (0, "") and f"{WARM_UP} of 1,440 requests of seen.csv are warm-up" in " ".join(text.split())
    fit = ("fit", observed / "form.py", "--experiments", out / "traces.yaml", "--split", "--out", tmp_path / "f.py")
    assert run_command([*map(str, fit), "--json"]) == 0
    fitted = json.loads(capsys.readouterr().out)
    theta = {c: float(v) for c, v in re.findall(r"(\w+): us\S* = ([0-9.]+)", (tmp_path / "f.py").read_text())}
    assert theta["base"] == pytest.approx(BASE_US, rel=0.02)
    assert theta["prefill"] == pytest.approx(PREFILL_US, rel=0.10)
    assert theta["decode"] == pytest.approx(DECODE_US, rel=0.10)
    (held_out,) = fitted["later"]["test"]
    assert max(abs(held_out[metric]) for metric in ("e2e", "ttft", "itl")) < 2.0


def test_the_experiment_is_what_the_client_saw(
    observed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Means leave out warm-up requests, the load does not: KNOWN gives the observed times of every request again."""
    assert (
        ingest(capsys, observed / "header.yaml", observed / "seen.csv", "--out", tmp_path, "--hardware", "H100")[0] == 0
    )
    (experiment,) = load_experiments(tmp_path / "traces.yaml")
    engine = experiment.engine
    assert (experiment.id, experiment.model, experiment.quality) == ("seen", "meta-llama/Llama-2-7b-hf", "clean")
    assert (engine.tensor_parallel, engine.max_num_seqs, engine.block_size, engine.max_model_len) == (1, 64, 16, 4096)
    trace = read_recording(observed / "header.yaml", observed / "seen.csv")
    source = experiment.workload.source
    r = source.requests
    assert (r.arrival_us == trace.requests.arrival_us - trace.requests.arrival_us[0]).all()
    assert (r.stage == NOT_COUNTED).nonzero()[0].tolist() == list(range(WARM_UP))
    assert experiment.observed is not None and experiment.observed.summary is not None
    summary = experiment.observed.summary
    ttft_ms = (trace.first_us - trace.requests.arrival_us)[WARM_UP:] / 1e3
    e2e_ms = (trace.last_us - trace.requests.arrival_us)[WARM_UP:] / 1e3
    assert summary.ttft_ms.mean == pytest.approx(ttft_ms.mean()) and summary.e2e_ms.mean == pytest.approx(e2e_ms.mean())
    assert (summary.completed, summary.failed) == (1440 - WARM_UP, 0)
    again = replay(experiment, parse(KNOWN), 1)
    assert (again.ttft_us == trace.first_us - trace.requests.arrival_us).all()
    assert (again.e2e_us == trace.last_us - trace.requests.arrival_us).all()


@pytest.mark.parametrize("unanswered", [10, 300])
def test_failures_count_and_too_many_make_a_run_overloaded(
    unanswered: int, observed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Requests that time out or fail are replayed, and failed; those without an answer are left out, but count."""
    head, *rows = (observed / "seen.csv").read_text().splitlines()
    for i in range(100, 400):
        values = dict(zip(COLUMNS, rows[i].split(","), strict=True))
        values |= {"status": "timeout" if i % 2 else "error", "first_chunk_time_us": "0", "last_chunk_time_us": "0"}
        rows[i] = ",".join((values | ({"output_tokens": "0"} if i < 100 + unanswered else {})).values())
    (tmp_path / "seen.csv").write_text("\n".join([head, *rows]) + "\n")
    status, text, _ = ingest(
        capsys, observed / "header.yaml", tmp_path / "seen.csv", "--out", tmp_path / "o", "--hardware", "H100"
    )
    assert status == 0 and f"{unanswered} of 1,440 requests of seen.csv have no answer: left out" in " ".join(
        text.split()
    )
    (experiment,) = load_experiments(tmp_path / "o" / "traces.yaml")
    assert experiment.observed is not None and experiment.observed.summary is not None
    summary = experiment.observed.summary
    assert (summary.completed, summary.failed) == (1440 - 300 - WARM_UP, 300 - unanswered)
    assert experiment.quality == "overloaded"
    assert "21.13 % of 1,420 requests failed" in experiment.notes  # 300 / 1420, in the trace or not


def with_status(observed: Path, tmp_path: Path, *words: str, **others: str) -> Path:
    """A copy of the data with these status words in turn, and other changes in every line."""
    head, *rows = (observed / "seen.csv").read_text().splitlines()
    for i, row in enumerate(rows):
        values = dict(zip(COLUMNS, row.split(","), strict=True)) | {"status": words[i % len(words)]} | others
        rows[i] = ",".join(values.values())
    (tmp_path / "seen.csv").write_text("\n".join([head, *rows]) + "\n")
    return tmp_path / "seen.csv"


@pytest.mark.parametrize("mode", ["real", "generated"])
def test_a_trace_of_which_all_requests_failed_is_overloaded(
    mode: str, observed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = tmp_path / "h.yaml"
    header.write_text((observed / "header.yaml").read_text().replace("mode: real", f"mode: {mode}"))
    data = with_status(observed, tmp_path, "timeout", "error", "incomplete")
    status, text, _ = ingest(capsys, header, data, "--out", tmp_path / "o", "--hardware", "H100", "--json")
    (trace,) = json.loads(text)["traces"]
    assert status == 0 and trace["measured"] == 0
    assert "100.00 % of 1,420 requests failed" in trace["overloaded"]  # 1,440 less the warm-up
    (experiment,) = load_experiments(tmp_path / "o" / "traces.yaml")
    assert experiment.quality == "overloaded" and "100.00 % of 1,420 requests failed" in experiment.notes
    assert run_command(["fit", "floor", "--experiments", str(tmp_path / "o" / "traces.yaml")]) == 2
    assert "nothing to fit" in capsys.readouterr().err


def test_a_load_without_times_is_not_overloaded(
    observed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Completed requests whose times the file has not: nothing is known of how they fared."""
    data = with_status(observed, tmp_path, "ok", first_chunk_time_us="0", last_chunk_time_us="0")
    status, text, _ = ingest(capsys, observed / "header.yaml", data, "--out", tmp_path, "--hardware", "H100", "--json")
    (trace,) = json.loads(text)["traces"]
    assert status == 0 and (trace["measured"], trace["overloaded"]) == (0, [])
    assert any("there is nothing to fit or to compare" in note for note in trace["notes"])
    assert load_experiments(tmp_path / "traces.yaml")[0].quality == "clean"


def test_a_trace_without_any_answer_is_refused(
    observed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = with_status(observed, tmp_path, "error", output_tokens="0")
    status, _, err = ingest(capsys, observed / "header.yaml", data, "--out", tmp_path / "o", "--hardware", "H100")
    assert status == 2 and "seen.csv: output_tokens is 0 in every line" in err and err.count("\n") == 1


def test_unknown_words_of_status_are_named_once_with_their_counts(
    observed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """1,440 lines, of which every fourth says `OK` and every fourth nothing: both count as failed, and are named."""
    data = with_status(observed, tmp_path, "ok", "OK", "timeout", "")
    _, text, _ = ingest(capsys, observed / "header.yaml", data, "--out", tmp_path, "--hardware", "H100")
    said = " ".join(text.split())
    words = "'' 360, 'OK' 360: counted as failed (known are ok, timeout, error, incomplete)"
    assert said.count(f"unknown status in seen.csv: {words}") == 1
    assert "75.00 % of 1,420 requests failed" in said
    _, text, _ = ingest(capsys, observed / "header.yaml", observed / "seen.csv", "--out", tmp_path / "known")
    assert "unknown status" not in text


def test_of_many_unknown_words_a_few_are_named(
    observed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """1,440 words, of which one is known, would make a note that no experiments file may have."""
    data = with_status(observed, tmp_path, "ok", *(f"failed-{i:04}" for i in range(1, 1440)))
    ingest(capsys, observed / "header.yaml", data, "--out", tmp_path, "--hardware", "H100")
    (experiment,) = load_experiments(tmp_path / "traces.yaml")
    (note,) = [n for n in experiment.notes if "unknown status" in n]
    assert "'failed-0008' 1 and 1,431 more words: counted as failed" in note and "failed-0009" not in note


def test_the_experiments_file_says_which_options_wrote_it(
    observed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, gpu = tmp_path / "o", ("--hardware", "H100")
    file = out / "traces.yaml"
    assert ingest(capsys, observed / "header.yaml", observed / "seen.csv", "--out", out, *gpu)[0] == 0
    assert file.read_text().startswith("# Written by evolve ingest --tracev2: each experiment")
    (tmp_path / "own.csv").write_text("arrival_s,input_len,output_len\n0,100,10\n1,100,10\n")
    trace = ["ingest", "--trace", str(tmp_path / "own.csv"), "--out", str(out), "--model", "llama-2-7b", *gpu]
    for _ in range(2):
        assert run_command(trace) == 0
        assert file.read_text().startswith("# Written by evolve ingest --trace and --tracev2: each experiment")
    assert [e.id for e in load_experiments(file)] == ["seen", "own"]


def test_what_was_not_streamed_has_no_ttft(observed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = edited(observed, tmp_path, 50, streaming="false")
    status, text, _ = ingest(capsys, observed / "header.yaml", data, "--out", tmp_path / "o", "--json")
    assert status == 0
    assert "1 of 1,440 requests of seen.csv were not streamed: they have no TTFT and no ITL" in json.loads(text)["traces"][
        0]["notes"]  # fmt: skip


def test_options_take_precedence_over_the_header(
    observed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = (
        "--model",
        "mistral-nemo-12b",
        "--hardware",
        "H100",
        "--engine",
        "max_num_seqs=32",
        "--engine",
        "total_kv_blocks=5000",
    )
    status, *_ = ingest(capsys, observed / "header.yaml", observed / "seen.csv", "--out", tmp_path, *args)
    assert status == 0
    (experiment,) = load_experiments(tmp_path / "traces.yaml")
    assert "nemo" in experiment.model.lower()
    assert (experiment.engine.max_num_seqs, experiment.engine.total_kv_blocks) == (32, 5000)


def test_settings_that_nothing_gives_are_noted_and_can_be_pasted(
    observed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """7,403 blocks of 16 tokens are what the engine itself counted for this model on an H100 (configs)."""
    args = (observed / "header.yaml", observed / "seen.csv", "--out", tmp_path, "--hardware", "H100")
    _, text, _ = ingest(capsys, *args)
    line = next(line for line in text.splitlines() if line.startswith("  --engine "))
    assert line.split()[1::2] == [
        *("max_num_batched_tokens=2048", "chunked_prefill=true", "prefix_caching=true"),
        *("long_prefill_token_threshold=0", "kv_cpu_offload=false", "total_kv_blocks=7403"),
    ]
    beside = (
        "give `evolve ingest` those that were different (case.json beside the header has those it was exported with)"
    )
    assert beside in " ".join(text.split())
    (experiment,) = load_experiments(tmp_path / "traces.yaml")
    assert any(line.strip() in note for note in experiment.notes), "predict and fit repeat it"
    _, text, _ = ingest(capsys, *args, *line.split(), "--json")
    assert "assumed" not in text, "all are given"
    (tmp_path / "h.yaml").write_text((observed / "header.yaml").read_text())
    _, text, _ = ingest(capsys, tmp_path / "h.yaml", *args[1:])
    assert "those that were different:" in " ".join(text.split()) and "case.json" not in text


def test_what_a_trace_leaves_out_and_what_was_simulated_is_repeated_with_predictions(
    observed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of twelve requests fails without tokens: too few to call the run overloaded, but the load is lighter."""
    head, *rows = (observed / "seen.csv").read_text().splitlines()
    for i in range(0, len(rows), 12):
        values = dict(zip(COLUMNS, rows[i].split(","), strict=True))
        values |= {"status": "error", "output_tokens": "0", "first_chunk_time_us": "0", "last_chunk_time_us": "0"}
        rows[i] = ",".join(values.values())
    (tmp_path / "seen.csv").write_text("\n".join([head, *rows]) + "\n")
    (tmp_path / "h.yaml").write_text((observed / "header.yaml").read_text().replace("real", "generated"))
    _, text, _ = ingest(capsys, tmp_path / "h.yaml", tmp_path / "seen.csv", "--out", tmp_path, "--hardware", "H100")
    assert "evolve fit" not in text, "a simulation is nothing to fit"
    file = str(tmp_path / "traces.yaml")
    assert load_experiments(Path(file))[0].quality == "clean"
    assert run_command(["predict", str(observed / "known.py"), "--experiments", file]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "mode is generated: the times of seen.csv are a simulation's, not measured: errors are against that" in said
    lighter = "have no answer: left out (120 of them failed), so the replayed load is lighter than what the engine had"
    assert f"120 of 1,440 requests of seen.csv {lighter}" in said
    assert run_command(["fit", str(observed / "form.py"), "--experiments", file, "--only", "base"]) == 0
    out, err = capsys.readouterr()
    assert "mode is generated" in out + err and "the replayed load is lighter" in " ".join((out + err).split())


def test_without_a_gpu_there_is_a_table_alone(
    observed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text, _ = ingest(capsys, observed / "header.yaml", observed / "seen.csv", "--out", tmp_path)
    assert status == 0 and "no experiment: --hardware says" in text
    assert sorted(p.name for p in tmp_path.iterdir()) == ["seen.parquet"]


def test_simulated_times_are_called_so(observed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header = tmp_path / "h.yaml"
    header.write_text((observed / "header.yaml").read_text().replace("real", "replayed"))
    _, text, _ = ingest(capsys, header, observed / "seen.csv", "--out", tmp_path / "o")
    assert "mode is replayed: the times of seen.csv are a simulation's, not measured" in " ".join(text.split())


def test_bad_traces_are_refused_in_one_line(observed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header, out = observed / "header.yaml", ("--out", tmp_path / "o", "--hardware", "H100")
    data = edited(observed, tmp_path, 3, first_chunk_time_us=str(EPOCH_US - 5))
    status, _, err = ingest(capsys, header, data, *out)
    assert status == 2 and "seen.csv:5: first_chunk_time_us is before the request was sent" in err
    data = edited(observed, tmp_path, 3, last_chunk_time_us=str(EPOCH_US + 1))
    status, _, err = ingest(capsys, header, data, *out)
    assert status == 2 and "seen.csv:5: last_chunk_time_us is before the first chunk" in err
    (tmp_path / "h.yaml").write_text(header.read_text().replace(f": {WARM_UP}\n", ": 5000\n"))
    status, _, err = ingest(capsys, tmp_path / "h.yaml", observed / "seen.csv", *out)
    assert status == 2 and "lower warm_up_requests in the header" in err
    (tmp_path / "h.yaml").write_text(header.read_text().split("server")[0])
    status, _, err = ingest(capsys, tmp_path / "h.yaml", observed / "seen.csv", *out)
    assert status == 2 and "h.yaml: names no model: give --model" in err
    status, _, err = ingest(capsys, header, observed / "seen.csv", *out, tmp_path)
    assert status == 2 and "name one or the other" in err and not (tmp_path / "o").exists()
