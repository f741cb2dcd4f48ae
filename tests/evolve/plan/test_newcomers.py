"""From a raw config.json to Go: predict, fit on two runs, emit and check, for a model that the project does not ship.

The observed figures are made up: the shipped champion's predictions, moved by 5 to 15 percent and ten milliseconds, so
that a fit has something to find and can find it.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
from commands import Capsys, as_json, evolve, printed
from public_configs import GEMMA_2_9B

from translate_go import find_go

MODEL, NAME, CAPPED = "google/gemma-2-9b", "gemma", ("attn_logit_softcapping", "final_logit_softcapping")
# Of each load: its name, its stages and lengths, and the observed E2E and TTFT in ms in each stage.
LOADS = (
    (
        "chat",
        "stages: [{rate: 2, duration_s: 20}, {rate: 6, duration_s: 20}], prompt_len: 512, output_len: 128",
        ((1181.7, 49.3), (1296.1, 51.0)),
    ),
    (
        "code",
        "stages: [{rate: 3, duration_s: 20}, {rate: 8, duration_s: 20}], prompt_len: 900, output_len: 60",
        ((620.9, 61.4), (717.1, 66.6)),
    ),
)


def written(folder: Path) -> Path:
    """An experiments file with two runs of a model, whose config.json is pasted as it is."""
    pasted = textwrap.indent(json.dumps(GEMMA_2_9B, indent=2), "    ")
    text = "version: 1\nexperiments:\n"
    for load, workload, means in LOADS:
        stages = ", ".join(f"{{e2e_ms: {{mean: {e2e}}}, ttft_ms: {{mean: {ttft}}}}}" for e2e, ttft in means)
        text += f"""- id: {NAME}-{load}
  model: {MODEL}
  hardware: H100
  workload: {{name: {load}, {workload}}}
  observed: {{stages: [{stages}]}}
  model_config:
{pasted}
"""
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


@pytest.mark.slow
def test_from_config_json_to_go(tmp_path: Path, capsys: Capsys) -> None:
    file, program, go = written(tmp_path), tmp_path / "mine.py", tmp_path / "go"
    at = "--experiments", file
    before = as_json(capsys, "predict", "champion", *at, "--seeds", 1)
    for e in before["experiments"]:
        said = [text for text in e["warnings"] if "left out" in text or "ignored" in text or "not modelled" in text]
        assert len(said) == len(CAPPED) and all(text.startswith(note) for note, text in zip(CAPPED, said, strict=True))
    printed(capsys, "fit", "champion", *at, "--out", program)
    after = as_json(capsys, "predict", program, *at, "--seeds", 1)
    off, left = (found["mean_abs_error_pct"] for found in (before, after))
    assert off["e2e"] > 4 > 2 > left["e2e"]
    assert left["ttft"] < 0.5 * off["ttft"]
    printed(capsys, "show", "--check", program)
    checked = ["--check"] if find_go() else []
    assert evolve("emit", program, "--out", go, *at, "--id", f"{NAME}-chat", *checked) == 0
    out, err = capsys.readouterr()
    assert all(note in err for note in CAPPED)
    assert not checked or "10,037 of 10,037" in out
    assert f"{NAME}-chat" in (go / "INTEGRATION.md").read_text()
