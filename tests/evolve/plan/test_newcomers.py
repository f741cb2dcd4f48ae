"""From a raw config.json to Go: predict, fit on two runs, emit and check, for models that the project does not ship.

The observed figures are made up: the shipped champion's predictions, moved by 5 to 15 percent and ten milliseconds, so
that a fit has something to find and can find it.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
import yaml
from commands import Capsys, as_json, evolve, printed
from public_configs import GEMMA_2_9B, QWEN_2_5_32B, Config

from translate_go import find_go

OWN: Config = yaml.safe_load("""
{architectures: [LlamaForCausalLM], model_type: llama, hidden_size: 2560, num_hidden_layers: 30,
 num_attention_heads: 20, num_key_value_heads: 4, head_dim: 128, intermediate_size: 9000, vocab_size: 64000,
 max_position_embeddings: 16384, rms_norm_eps: 0.00001, rope_theta: 500000.0, hidden_act: silu,
 tie_word_embeddings: true, torch_dtype: bfloat16, house_style: 3}
""")


# model, config.json, TP, observed under chat and under code, what is said of the model
# model, config.json, TP, warnings of the model
MODELS: dict[str, tuple[str, Config, int, tuple[str, ...]]] = {
    "gemma": ("google/gemma-2-9b", GEMMA_2_9B, 1, ("attn_logit_softcapping", "final_logit_softcapping")),
    "qwen": ("Qwen/Qwen2.5-32B-Instruct", QWEN_2_5_32B, 2, ()),
    "own": ("me/own-3b", OWN, 1, ("unknown key house_style",)),
}
# E2E and TTFT in ms, in each of two stages, under chat and under code
MEANS = yaml.safe_load("""
gemma: [[[1181.7, 49.3], [1296.1, 51.0]], [[620.9, 61.4], [717.1, 66.6]]]
qwen: [[[1824.9, 70.7], [2095.3, 75.3]], [[1009.4, 95.9], [1346.4, 119.7]]]
own: [[[476.8, 30.9], [488.7, 31.6]], [[247.3, 34.5], [255.2, 35.1]]]
""")
LOADS = {
    "chat": "stages: [{rate: 2, duration_s: 20}, {rate: 6, duration_s: 20}], prompt_len: 512, output_len: 128",
    "code": "stages: [{rate: 3, duration_s: 20}, {rate: 8, duration_s: 20}], prompt_len: 900, output_len: 60",
}


def written(folder: Path, name: str) -> Path:
    """An experiments file with two runs of a model, whose config.json is pasted as it is."""
    model, config, tp, _ = MODELS[name]
    pasted = textwrap.indent(json.dumps(config, indent=2), "    ")
    text = "version: 1\nexperiments:\n"
    for (load, workload), means in zip(LOADS.items(), MEANS[name], strict=True):
        stages = ", ".join(f"{{e2e_ms: {{mean: {e2e}}}, ttft_ms: {{mean: {ttft}}}}}" for e2e, ttft in means)
        text += f"""- id: {name}-{load}
  model: {model}
  hardware: H100
  engine: {{tensor_parallel: {tp}}}
  workload: {{name: {load}, {workload}}}
  observed: {{stages: [{stages}]}}
  model_config:
{pasted}
"""
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_from_config_json_to_go(name: str, tmp_path: Path, capsys: Capsys) -> None:
    file, program, go = written(tmp_path, name), tmp_path / "mine.py", tmp_path / "go"
    notes = MODELS[name][-1]
    at = "--experiments", file
    before = as_json(capsys, "predict", "champion", *at, "--seeds", 1)
    for e in before["experiments"]:
        said = [text for text in e["warnings"] if "left out" in text or "ignored" in text or "not modelled" in text]
        assert len(said) == len(notes) and all(text.startswith(note) for note, text in zip(notes, said, strict=True))
    printed(capsys, "fit", "champion", *at, "--out", program)
    off, left = (
        before["mean_abs_error_pct"],
        as_json(capsys, "predict", program, *at, "--seeds", 1)["mean_abs_error_pct"],
    )
    assert off["e2e"] > 4 > 2 > left["e2e"]
    # The stages last 20 s, which leaves qwen's TTFT at eight requests a second to the arrivals: it weighs little.
    assert left["ttft"] < (1.1 if name == "qwen" else 0.5) * off["ttft"]
    printed(capsys, "show", "--check", program)
    checked = ["--check"] if find_go() else []
    assert evolve("emit", program, "--out", go, *at, "--id", f"{name}-chat", *checked) == 0
    out, err = capsys.readouterr()
    assert all(note in err for note in notes)
    assert not checked or "10,037 of 10,037" in out
    assert f"{name}-chat" in (go / "INTEGRATION.md").read_text()
