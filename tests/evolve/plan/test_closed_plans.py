"""Plans with a fixed concurrency: predictions, the curve over clients, its picture, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from commands import evolve
from results import VLLM_DETAILED

from evolve.plan.curve import curves_of, family
from evolve.run.program import load
from simulator.serving.bundled import SERVING, bundled_file, load_experiments

PLAN = "--model", "llama-3.1-8b", "--hardware", "H100", "--prompt-len", "400", "--output-len", "60"


def told(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, object]:
    assert evolve("predict", "champion", *PLAN, *words, "--seeds", "1", "--json") == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_throughput_and_latency_rise_with_the_clients(capsys: pytest.CaptureFixture[str]) -> None:
    """By Little's law clients = requests/s x E2E, but for the first requests and the last."""
    rows = told(capsys, "--sweep", "concurrency=1,4,16")["rows"]
    assert isinstance(rows, list)
    assert [row["concurrency"] for row in rows] == [1, 4, 16] and {row["rate_rps"] for row in rows} == {None}
    for name in ("output_tokens_per_s", "completed_rps"):
        values = [row[name] for row in rows]
        assert values == sorted(values)
    e2e_ms = [row["e2e_ms"]["mean"] for row in rows]
    assert e2e_ms == sorted(e2e_ms)
    for row in rows:
        assert row["completed"] == 10 * row["concurrency"] and not row["queue_grows"]
        assert row["completed_rps"] * row["e2e_ms"]["mean"] / 1e3 == pytest.approx(row["concurrency"], rel=0.05)


def test_a_plan_of_clients_is_that_of_the_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    [row] = told(capsys, "--sweep", "concurrency=4")["rows"]  # type: ignore[misc]
    [alone] = told(capsys, "--concurrency", "4")["experiments"]  # type: ignore[misc]
    assert alone["predicted"]["e2e_ms"]["mean"] == row["e2e_ms"]["mean"]
    assert (alone["completed_rps"], alone["concurrency"]) == (row["completed_rps"], 4)
    [longer] = told(capsys, "--concurrency", "4", "--requests", "80")["experiments"]  # type: ignore[misc]
    assert longer["predicted"]["completed"] == 80


def test_a_knee_along_the_clients(capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, "--sweep", "concurrency=1,64", "--slo", "itl_mean=7ms")
    [knee] = found["knees"]  # type: ignore[misc]
    assert (knee["concurrency"], knee["holds_up_to_concurrency"], knee["fails"]) == (64, 1, ["itl_mean"])
    assert evolve("predict", "champion", *PLAN, "--sweep", "concurrency=1,64", "--slo", "itl_mean=7ms") == 0
    assert "Knee of llama-3.1-8b: concurrency 64: ITL mean fails; holds up to 1" in capsys.readouterr().out


REFUSED = """
--rate 3 --concurrency 4 => --rate and --concurrency exclude each other
--rate 3 --requests 40 => --requests goes with --concurrency
--sweep concurrency=4 --sweep rate=3 => rate and concurrency exclude each other
--sweep concurrency=1.5 => concurrency: must be whole numbers
--concurrency 4 --sweep rate=1,2 => its clients wait for answers, so it has no rate: vary concurrency
"""


@pytest.mark.parametrize("row", REFUSED.strip().splitlines())
def test_what_does_not_go_together_is_one_line(row: str, capsys: pytest.CaptureFixture[str]) -> None:
    options, expected = row.split(" => ")
    assert evolve("predict", "champion", *PLAN, *options.split()) == 2
    complaint = capsys.readouterr().err.strip()
    assert expected in complaint and "\n" not in complaint


def test_the_curve_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = (
        "{id: bench, model: llama-3.1-8b, hardware: H100-SXM-80GB, workload: {name: b, concurrency: 4, requests: 40, "
    )
    entry += "prompt_len: 400, output_len: 60}, observed: {summary: {ttft_ms: {mean: 50}, itl_mean_ms: 7}}}"
    (tmp_path / "e.yaml").write_text(f"version: 1\nexperiments:\n- {entry}\n")
    out = tmp_path / "c.svg"
    assert evolve("plot", "champion", "--kind", "curve", "--experiments", tmp_path / "e.yaml", "--out", out) == 0
    assert "bench" in out.read_text()
    assert evolve("plot", "champion", "--kind", "curve", "--out", out) == 2
    assert "choose some with --id" in capsys.readouterr().err
    [curve] = curves_of(load("champion"), load_experiments(tmp_path / "e.yaml"), [1])
    assert (curve.own, [p.level for p in curve.predicted]) == ((4,), [1, 2, 4, 8, 16, 32, 64])
    [measured] = curve.measured
    # 4 clients at 50 + 59 x 7 ms an answer of 60 tokens
    assert measured.gpu_tokens_per_s == pytest.approx(4 * 60 / 0.463) and measured.client_tokens_per_s == 1e3 / 7


def test_results_of_a_load_generator_are_on_one_curve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files of vLLM's benchmark at two rates, with single requests, go through `evolve ingest --trace`."""
    per_request = {"input_lens": [600] * 40, "output_lens": [3] * 40, "ttfts": [0.04] * 40, "itls": [[0.01, 0.01]] * 40}
    for rate in (2, 8):
        times = {
            "start_times": [10.0 + i / rate for i in range(40)],
            "request_rate": rate,
            "num_prompts": 40,
            "completed": 40,
        }
        text = json.dumps(
            VLLM_DETAILED | per_request | times | {"total_input_tokens": 24000, "total_output_tokens": 120}
        )
        (tmp_path / f"rate-{rate}.json").write_text(text)
    files = [tmp_path / f"rate-{rate}.json" for rate in (2, 8)]
    assert evolve("ingest", "--trace", *files, "--out", tmp_path, "--model", "llama-3.1-8b", "--hardware", "H100") == 0
    [curve] = curves_of(load("champion"), load_experiments(tmp_path / "traces.yaml"), [1])
    assert not curve.closed and {p.level for p in curve.predicted} >= {*curve.own} == {p.level for p in curve.measured}
    # 40 requests in 39 gaps; answers of 3 tokens; 10 ms between them; one GPU
    for point, rate in zip(curve.measured, (2 * 40 / 39, 8 * 40 / 39), strict=True):
        assert point.level == pytest.approx(rate, rel=0.03)
        assert point.gpu_tokens_per_s == pytest.approx(3 * point.level) and point.client_tokens_per_s == pytest.approx(
            100.0
        )


def test_what_a_cap_holds_back_is_a_queue_that_grows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sixteen at once serve 9 requests/s of these: at 16/s more and more wait at the client, whatever TTFT says."""
    entry = "{id: cap, model: llama-3.1-8b, hardware: H100-SXM-80GB, workload: {name: b, prompt_len: 1000, output_len: 200, "
    entry += "stages: [{rate: 8, duration_s: 20}], max_in_flight: 16}}"
    (tmp_path / "e.yaml").write_text(f"version: 1\nexperiments:\n- {entry}\n")
    words = "--experiments", tmp_path / "e.yaml", "--sweep", "rate=2,16", "--seeds", "1", "--json"
    assert evolve("predict", "champion", *words) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["fails"] for row in rows] == [[], ["queue grows"]]


def test_loads_of_other_lengths_have_a_curve_of_their_own() -> None:
    """Launch scripts that follow the clients do not part loads; lengths do, whatever the name."""
    runs = {e.id: e for e in bundled_file(SERVING)}
    few, many = (runs[f"llama-3.1-70b-fp8-h100-tp2-1k-1k-c{n}"] for n in (4, 64))
    assert few.engine.max_num_seqs != many.engine.max_num_seqs and family(few) == family(many)
    long = replace(many.workload, source=runs["llama-3.1-70b-fp8-h100-tp2-1k-8k-c64"].workload.source)
    assert family(replace(many, workload=long)) != family(few)
