"""What a model's config.json asks for and no field counts is said wherever its figures are shown, once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from public_configs import GEMMA_2_9B, MISTRAL_7B_V01

from evolve.cli import run_command
from evolve.ingest.options import parse_models

WINDOW = "sliding_window = 4096 in 21 of 42 layers is not modelled"
CAPPED = "attn_logit_softcapping is left out"


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """Two experiments of gemma-2-9b, of which one has requests longer than the window, and a Mistral with short ones."""
    loads = {"short": (GEMMA_2_9B, 500), "long": (GEMMA_2_9B, 5000), "mistral": (MISTRAL_7B_V01, 500)}
    experiments = [
        {"id": name, "model": f"mine/{config['model_type']}", "hardware": "H100",
         "model_config": {**config, "generation_config": {}},
         "workload": {"name": "x", "stages": [{"rate": 1.0, "duration_s": 5.0}], "prompt_len": prompt, "output_len": 20}}
        for name, (config, prompt) in loads.items()
    ]  # fmt: skip
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump({"version": 1, "experiments": experiments}))
    return path


def done(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[str, str]:
    status = run_command([str(arg) for arg in args])
    out, err = capsys.readouterr()
    assert status == 0, err
    return out, err


def test_predict_says_it_once_with_the_experiments_it_concerns(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = done(capsys, "predict", "champion", "--experiments", plan, "--seeds", 1)[0]
    lines = [line for line in printed.splitlines() if WINDOW in line or CAPPED in line]
    assert len(lines) == 2
    assert lines[0].endswith("most in prefill (short, long)") and lines[1].endswith("(long)")


def test_predict_has_it_in_its_json(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = json.loads(done(capsys, "predict", "champion", "--experiments", plan, "--seeds", 1, "--json")[0])
    said = {e["id"]: " ".join(e["warnings"]) for e in result["experiments"]}
    assert {name for name, text in said.items() if WINDOW in text} == {"long"}
    assert {name for name, text in said.items() if CAPPED in text} == {"short", "long"}


def test_fit_says_it_too(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = yaml.safe_load(plan.read_text())
    for e in raw["experiments"]:
        e["observed"] = {"summary": {"e2e_ms": {"mean": 300.0}, "ttft_ms": {"mean": 40.0}}}
    plan.write_text(yaml.safe_dump(raw))
    args = "fit", "champion", "--experiments", plan, "--id", "short,long", "--only", "queueing_time"
    printed = done(capsys, *args)[0]
    lines = [line for line in printed.splitlines() if WINDOW in line or CAPPED in line]
    assert [line.rsplit("(", 1)[1] for line in lines] == ["all)", "long)"]
    warnings = json.loads(done(capsys, *args, "--json")[0])["warnings"]
    assert sum(WINDOW in text for text in warnings) == sum(CAPPED in text for text in warnings) == 1


def test_model_add_and_show_say_it_and_name_the_key_that_may_be_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EVOLVE_MODELS", str(tmp_path / "kept"))
    (tmp_path / "gemma.json").write_text(json.dumps(GEMMA_2_9B | {"rope_scalling": {"factor": 2}, "novel": 1}))
    shown = done(capsys, "model", "add", tmp_path / "gemma.json")[0]
    assert shown == done(capsys, "model", "show", "gemma")[0]
    meant = "unknown keys rope_scalling (did you mean 'rope_scaling'?), novel of config.json ignored"
    assert all(shown.count(text) == 1 for text in (WINDOW, CAPPED, meant))
    warnings = json.loads(done(capsys, "model", "show", "gemma", "--json")[0])["warnings"]
    assert len(warnings) == shown.count("  note: ") and any(meant in text for text in warnings)


def test_emit_says_it_and_writes_it_next_to_the_go(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = [part for name in ("short", "long", "mistral") for part in ("--id", name)]
    _, err = done(capsys, "emit", "champion", "--out", tmp_path / "go", "--experiments", plan, *ids)
    assert err.count(WINDOW) == 1 and f"evolve: warning: short, long: {WINDOW}" in err
    text = " ".join((tmp_path / "go" / "INTEGRATION.md").read_text().split())
    assert text.count(WINDOW) == 1 and f"The times leave out, for - short, long: {WINDOW}" in text
    assert "mistral: sliding_window = 4096 in 32 of 32 layers" in text
    done(capsys, "emit", "champion", "--out", tmp_path / "plain", "--id", "llama-2-7b-tp1-general")
    assert "The times leave out" not in (tmp_path / "plain" / "INTEGRATION.md").read_text()


def test_simulate_says_it(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"evolve: warning: {WINDOW}" in done(capsys, "simulate", "--experiments", plan, "--id", "long")[1]


def test_kernels_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GEMMA_2_9B))
    assert f"Note: {CAPPED}" in done(capsys, "kernels", path, "--hardware", "H100")[0]
    notes = json.loads(done(capsys, "kernels", path, "--hardware", "H100", "--context", 4096, "--json")[0])["notes"]
    assert any(WINDOW in note for note in notes)


def test_check_says_it_of_the_deployments_that_it_judges_on(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(done(capsys, "check", "champion", "--json")[0])["left_out"] == []
    printed = done(capsys, "check", "champion", "--experiments", plan)[0]
    assert any(line.startswith("- note: ") and WINDOW in line for line in printed.splitlines())


def test_ingest_keeps_what_may_change_cost(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(GEMMA_2_9B | {"num_new_things": 3, "some_path": "/home/me", "_name_or_path": "/home/me"})
    )
    kept = parse_models([f"mine={path}"])["mine"]
    assert kept["sliding_window"] == 4096 and kept["num_new_things"] == 3 and kept["model_type"] == "gemma2"
    assert not {"some_path", "_name_or_path", "rope_theta", "architectures"} & set(kept)
