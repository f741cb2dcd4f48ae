"""Commands warn once of keys of a model's config.json that no field counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from commands import Capsys, as_json, evolve, printed
from public_configs import GEMMA_2_9B, MISTRAL_7B_V01

from evolve.ingest.options import parse_models

WINDOW = "a window of 4096 tokens in 21 of 42 layers"
CAPPED = "attn_logit_softcapping is left out"


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """Two experiments of gemma-2-9b, of which one has requests longer than the window, and a Mistral with short ones."""
    experiments = []
    for name, config, prompt in (
        ("short", GEMMA_2_9B, 500),
        ("long", GEMMA_2_9B, 5000),
        ("mistral", MISTRAL_7B_V01, 500),
    ):
        load = {"name": "x", "stages": [{"rate": 1.0, "duration_s": 5.0}], "prompt_len": prompt, "output_len": 20}
        model = {"model": f"mine/{config['model_type']}", "model_config": {**config, "generation_config": {}}}
        experiments.append({"id": name, **model, "hardware": "H100", "workload": load})
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump({"version": 1, "experiments": experiments}))
    return path


def said(text: str) -> list[str]:
    return [line for line in text.splitlines() if WINDOW in line or CAPPED in line]


def test_predict_warns_once_with_the_experiments(plan: Path, capsys: Capsys) -> None:
    args = "predict", "champion", "--experiments", plan, "--seeds", 1
    lines = said(printed(capsys, *args, "-v"))
    assert [line.rsplit("(", 1)[1] for line in lines] == ["short, long)", "long)"]
    warnings = {e["id"]: " ".join(e["warnings"]) for e in as_json(capsys, *args)["experiments"]}
    assert {name for name, text in warnings.items() if WINDOW in text} == {"long"}
    assert {name for name, text in warnings.items() if CAPPED in text} == {"short", "long"}


def test_fit_warns_too(plan: Path, capsys: Capsys) -> None:
    raw = yaml.safe_load(plan.read_text())
    for e in raw["experiments"]:
        e["observed"] = {"summary": {"e2e_ms": {"mean": 300.0}, "ttft_ms": {"mean": 40.0}}}
    plan.write_text(yaml.safe_dump(raw))
    args = "fit", "champion", "--experiments", plan, "--id", "short,long", "--only", "queueing_time"
    assert [line.rsplit("(", 1)[1] for line in said(printed(capsys, *args))] == ["all)", "long)"]
    warnings = as_json(capsys, *args)["warnings"]
    assert sum(WINDOW in text for text in warnings) == sum(CAPPED in text for text in warnings) == 1


def test_model_add_and_show_suggest_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    monkeypatch.setenv("EVOLVE_MODELS", str(tmp_path / "kept"))
    (tmp_path / "gemma.json").write_text(json.dumps(GEMMA_2_9B | {"rope_scalling": {"factor": 2}, "novel": 1}))
    shown = printed(capsys, "model", "add", tmp_path / "gemma.json")
    assert shown.replace("  named by its file\n", "") == printed(capsys, "model", "show", "gemma")
    meant = "unknown keys rope_scalling (did you mean 'rope_scaling'?), novel of config.json ignored"
    assert all(shown.count(text) == 1 for text in (WINDOW, CAPPED, meant))
    warnings = as_json(capsys, "model", "show", "gemma")["warnings"]
    assert len(warnings) == shown.count("  note: ") and any(meant in text for text in warnings)


def test_emit_warns_and_writes_it_next_to_the_go(plan: Path, tmp_path: Path, capsys: Capsys) -> None:
    assert (
        evolve("emit", "champion", "--out", tmp_path / "go", "--experiments", plan, "--id", "short,long,mistral") == 0
    )
    err = capsys.readouterr().err
    assert err.count(WINDOW) == 1 and f"short, long: {WINDOW}" in err
    text = " ".join((tmp_path / "go" / "INTEGRATION.md").read_text().split())
    assert text.count(WINDOW) == 1 and f"- short, long: {WINDOW}" in text
    assert "mistral: a window of 4096 tokens in 32 of 32 layers" in text
    assert evolve("emit", "champion", "--out", tmp_path / "plain", "--id", "llama-2-7b-tp1-general") == 0
    assert "sliding_window" not in (tmp_path / "plain" / "INTEGRATION.md").read_text()


def test_simulate_warns(plan: Path, capsys: Capsys) -> None:
    assert evolve("simulate", "--experiments", plan, "--id", "long") == 0
    assert f"evolve: warning: {WINDOW}" in capsys.readouterr().err


def test_kernels_warns(tmp_path: Path, capsys: Capsys) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GEMMA_2_9B))
    args = "kernels", path, "--hardware", "H100"
    assert f"Note: {CAPPED}" in printed(capsys, *args)
    assert any(WINDOW in note for note in as_json(capsys, *args, "--context", 4096)["notes"])


def test_check_warns_of_the_deployments_that_it_judges_on(plan: Path, capsys: Capsys) -> None:
    check = "show", "--check", "champion"
    assert as_json(capsys, *check)["left_out"] == []
    assert any(WINDOW in line for line in said(printed(capsys, *check, "--experiments", plan)))


def test_ingest_keeps_what_may_change_cost(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(GEMMA_2_9B | {"num_new_things": 3, "some_path": "/home/me", "_name_or_path": "/home/me"})
    )
    kept = parse_models([f"mine={path}"])["mine"]
    assert kept["sliding_window"] == 4096 and kept["num_new_things"] == 3 and kept["model_type"] == "gemma2"
    assert not {"some_path", "_name_or_path", "rope_theta", "architectures"} & set(kept)
