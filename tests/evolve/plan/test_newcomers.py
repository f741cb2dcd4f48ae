"""From a raw config.json to Go: predict, fit on two runs, emit and check, for models that the project does not ship.

The observed figures are made up: the shipped champion's predictions, moved by 5 to 15 percent and ten milliseconds, so
that a fit has something to find and can find it.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from public_configs import GEMMA_2_9B, QWEN_2_5_32B, Config

from evolve.cli import run_command
from translate_go import find_go

OWN: Config = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2560, "num_hidden_layers": 30,
    "num_attention_heads": 20, "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 9000,
    "vocab_size": 64000, "max_position_embeddings": 16384, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
    "hidden_act": "silu", "tie_word_embeddings": True, "torch_dtype": "bfloat16", "house_style": 3,
}  # fmt: skip

Means = tuple[tuple[float, float], tuple[float, float]]  # of E2E and TTFT in ms, for each of two stages

# model, config.json, TP, observed under chat and under code, what is said of the model
MODELS: dict[str, tuple[str, Config, int, Means, Means, tuple[str, ...]]] = {
    "gemma": ("google/gemma-2-9b", GEMMA_2_9B, 1, ((1181.7, 49.3), (1296.1, 51.0)), ((620.9, 61.4), (717.1, 66.6)),
              ("attn_logit_softcapping is left out", "final_logit_softcapping is left out")),
    "qwen": ("Qwen/Qwen2.5-32B-Instruct", QWEN_2_5_32B, 2, ((1824.9, 70.7), (2095.3, 75.3)),
             ((1009.4, 95.9), (1346.4, 119.7)), ()),
    "own": ("me/own-3b", OWN, 1, ((476.8, 30.9), (488.7, 31.6)), ((247.3, 34.5), (255.2, 35.1)),
            ("unknown key house_style of config.json ignored",)),
}  # fmt: skip
LOADS = {
    "chat": "stages: [{rate: 2, duration_s: 20}, {rate: 6, duration_s: 20}], prompt_len: 512, output_len: 128",
    "code": "stages: [{rate: 3, duration_s: 20}, {rate: 8, duration_s: 20}], prompt_len: 900, output_len: 60",
}


def written(folder: Path, name: str) -> str:
    """An experiments file with two runs of a model, whose config.json is pasted as it is."""
    model, config, tp, *observed, _ = MODELS[name]
    lines = ["version: 1", "experiments:"]
    for (load, workload), means in zip(LOADS.items(), observed, strict=True):
        stages = ", ".join(f"{{e2e_ms: {{mean: {e2e}}}, ttft_ms: {{mean: {ttft}}}}}" for e2e, ttft in means)
        lines += [f"- id: {name}-{load}", f"  model: {model}", "  hardware: H100", f"  engine: {{tensor_parallel: {tp}}}",
                  f"  workload: {{name: {load}, {workload}}}", f"  observed: {{stages: [{stages}]}}", "  model_config:",
                  textwrap.indent(json.dumps(config, indent=2), "    ")]  # fmt: skip
    path = folder / "mine.yaml"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def means(result: dict[str, Any]) -> dict[str, float]:
    figures: dict[str, float] = result["mean_abs_error_pct"]
    return figures


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_from_config_json_to_go(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*args: object) -> tuple[str, str]:
        assert run_command([str(arg) for arg in args]) == 0, capsys.readouterr().err
        out, err = capsys.readouterr()
        return out, err

    file, program, go = written(tmp_path, name), tmp_path / "mine.py", tmp_path / "go"
    notes = MODELS[name][-1]
    before = json.loads(run("predict", "champion", "--experiments", file, "--seeds", 1, "--json")[0])
    for e in before["experiments"]:
        said = [text for text in e["warnings"] if "left out" in text or "ignored" in text or "not modelled" in text]
        assert len(said) == len(notes) and all(text.startswith(note) for note, text in zip(notes, said, strict=True))
    run("fit", "champion", "--experiments", file, "--out", program)
    after = json.loads(run("predict", program, "--experiments", file, "--seeds", 1, "--json")[0])
    assert means(before)["e2e"] > 4 > 2 > means(after)["e2e"]
    # The stages last 20 s, which leaves qwen's TTFT at eight requests a second to the arrivals: it weighs little.
    assert means(after)["ttft"] < (1.1 if name == "qwen" else 0.5) * means(before)["ttft"]
    run("check", program)
    checked = ["--check"] if find_go() else []
    out, err = run("emit", program, "--out", go, "--experiments", file, "--id", f"{name}-chat", *checked)
    assert all(note in err for note in notes)
    assert not checked or "times equal to Python's, 10,000 random batches among them: 10,037 of 10,037" in out
    assert f"{name}-chat" in (go / "INTEGRATION.md").read_text()
