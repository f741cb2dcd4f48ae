"""A folder of traces as tables, compared with the sample's expected.json.

The sample and its expectations are not part of the project; `expected.json` was written by the sample's maker from the
simulated engine's own records.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from paths import SHARED
from trace_records import MODEL, TINY

from evolve.cli import run_command

HERE = SHARED / "samples"
RUN = "20260101-000000-tiny-llama-tp1-general"
EXPECTED = json.loads((HERE / "expected.json").read_text()) if HERE.exists() else {}

pytestmark = pytest.mark.skipif(not HERE.exists(), reason="the sample folder is not on this machine")


def ingest(folder: Path, out: Path) -> dict[str, Any]:
    """The tables as lists of rows, `quality` and `experiments`."""
    config = out.with_name("config.json")
    config.write_text(json.dumps(TINY))
    options = ["--hardware", "H100-SXM-80GB", "--quiet", "--model-config", f"{MODEL}={config}"]
    assert run_command(["ingest", str(folder), "--out", str(out), *options]) == 0
    found: dict[str, Any] = {p.stem: pq.read_table(p).to_pylist() for p in (out / folder.name).glob("*.parquet")}
    found["quality"] = json.loads((out / folder.name / "quality.json").read_text())
    found["experiments"] = yaml.safe_load((out / "experiments.yaml").read_text())["experiments"]
    return found


@pytest.fixture(scope="module", params=["sampled", "every step"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The folder as it is, and with the traces that have every step and every snapshot."""
    folder = tmp_path_factory.mktemp("sample") / RUN
    shutil.copytree(HERE / RUN, folder)
    if request.param == "every step":
        shutil.copyfile(HERE / "traces-all-steps.json", folder / "traces.json")
    return {"kind": request.param, **ingest(folder, folder.with_name("out"))}


def by_id(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {r["request_id"]: r for r in found["requests"]}


def test_intervals(found: dict[str, Any]) -> None:
    rows = by_id(found)
    for ident, expected in EXPECTED["intervals"].items():
        phases = [
            {"phase": "PREFILL" if i.pop("prefill") else "DECODE", **i} for i in map(dict, rows[ident]["intervals"])
        ]
        assert phases == expected


def test_published_batches(found: dict[str, Any]) -> None:
    ids = [r["request_id"] for r in found["requests"]]
    mine = {}
    for row in found["steps"]:
        entries = row["published"]
        if entries:
            prefill = [(ids[e["request"]], e["tokens"]) for e in entries if e["prefill"]]
            decode = [(ids[e["request"]], e["context"]) for e in entries if not e["prefill"]]
            mine[row["step_id"]] = sorted(prefill), sorted(decode)
    assert mine == {
        r["step_id"]: (
            sorted((e["request_id"], e["tokens_this_step"]) for e in r["prefill_reqs"]),
            sorted((e["request_id"], e["context_length"]) for e in r["decode_reqs"]),
        )
        for r in EXPECTED["reconstructed_steps"]
    }


def true_batches() -> dict[int, list[tuple[Any, ...]]]:
    def entry(e: dict[str, Any]) -> tuple[Any, ...]:
        return e["request_id"], e["role"] == "prefill", e["new_tokens"], e["kv_before"]

    return {r["step_id"]: sorted(map(entry, r["entries"])) for r in EXPECTED["true_steps"]}


def test_corrected_batches_are_the_true_ones(found: dict[str, Any]) -> None:
    ids = [r["request_id"] for r in found["requests"]]
    mine = {
        row["step_id"]: sorted((ids[e["request"]], e["prefill"], e["new_tokens"], e["kv_before"]) for e in row["batch"])
        for row in found["steps"]
        if row["batch"]
    }
    assert mine == true_batches() and len(mine) == EXPECTED["counts"]["non_empty_steps"] == 59


SAME = """prompt_tokens output_tokens queueing_us prefill_processing_us decode_processing_us processing_us first_step
    last_step finish_status client_index"""
LABELS = {
    **{name: name for name in SAME.split()},
    **{"ttft_us": "server_ttft_us", "e2e_us": "server_e2e_us", "num_preemptions": "preemptions"},
    **{"alpha_pre_us": "arrival_to_queue_us", "alpha_post_us": "finish_to_departure_us", "api_request_id": "api_id"},
}
"""Names of labels in expected.json, and their columns."""


def test_labels(found: dict[str, Any]) -> None:
    rows = by_id(found)
    assert len(rows) == len(EXPECTED["labels"]) == EXPECTED["counts"]["requests"] == 13
    for label in EXPECTED["labels"]:
        row = rows[label["request_id"]]
        for name, value in label.items():
            if name in LABELS:
                # the expected times are differences of floats in us at 8e11 us, good to 1e-3
                expected = pytest.approx(value, abs=2e-3) if isinstance(value, float) else value
                assert row[LABELS[name]] == expected, name
        assert (row["queueing_us"] is None or row["finish_status"] == "aborted") == (not row["usable"])
        assert (row["first_token_ns"] is None) == label["failed"]
    assert found["quality"]["requests"]["complete_journeys"] == EXPECTED["counts"]["complete_lifecycle"]
    assert found["quality"]["requests"]["preemptions"] == EXPECTED["counts"]["preemptions"]


def test_kv_blocks_and_clocks(found: dict[str, Any]) -> None:
    kv = {name: found["quality"]["kv"][name] for name in EXPECTED["kv"]}
    assert kv == EXPECTED["kv"]
    clocks, true = found["quality"]["clocks"], EXPECTED["clock_offsets_s"]
    assert clocks["epoch_minus_server_s"] == pytest.approx(true["epoch_minus_server"], abs=1e-6)
    # the estimate lacks the time that a request takes to arrive, here 1.2 ms
    assert 0 < true["client_minus_server"] - clocks["client_minus_server_s"] < 0.005


def test_the_experiment_has_the_load_that_ran(found: dict[str, Any]) -> None:
    (experiment,) = found["experiments"]
    assert experiment["source_run"] == RUN
    # profile.yaml asked for 2 x 4 prompts; results/config.yaml has 10 x 10
    assert experiment["workload"]["shared_prefix"]["groups"] == 10
    assert experiment["workload"]["stages"] == [{"rate": 6.0, "duration_s": 1.0}, {"rate": 7.0, "duration_s": 1.0}]
    assert experiment["engine"]["total_kv_blocks"] == 63 and experiment["engine"]["max_num_batched_tokens"] == 256
    parts = experiment["x_components_ms"]
    assert experiment["x_components_requests"] == 11
    assert sum(parts.values()) == pytest.approx(experiment["observed"]["summary"]["e2e_ms"]["mean"], abs=1e-3)


def test_nothing_private_is_carried_along(found: dict[str, Any]) -> None:
    text = json.dumps({k: v for k, v in found.items() if k != "kind"}, default=str)
    assert not any(word in text for word in ("/workspace", "/mnt", "192.0.2", "localhost", "synthetic prompt"))


def test_score_steps_reads_the_ingested_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ingest(HERE / RUN, tmp_path / "out")
    capsys.readouterr()
    assert run_command(["fit", "--score-steps", "floor", "--steps", str(tmp_path / "out"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    (run,) = result["experiments"]
    assert run["id"] == "tiny-llama-tp1-general"
