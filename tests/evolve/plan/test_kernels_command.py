"""`evolve kernels`: the table and the JSON of shipped models and of any config.json, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import Capsys, as_json, printed, refused

from evaluator.judge.physics import roofline_us
from evolve import __version__
from evolve.plan.kernels import DECODES
from simulator.clock.fields import Active, BatchFields
from simulator.kernels.roofline import KINDS
from simulator.kernels.tables import tables
from simulator.serving.engine import Engine
from simulator.serving.known import facts_of

LLAMA_LIKE, MOE, MLA = yaml.safe_load_all("""
{model_type: llama, hidden_size: 3072, num_hidden_layers: 28, num_attention_heads: 24, num_key_value_heads: 8,
 head_dim: 128, intermediate_size: 8192, vocab_size: 128256, torch_dtype: bfloat16, tie_word_embeddings: true}
---
{model_type: qwen3_moe, hidden_size: 2048, num_hidden_layers: 48, num_attention_heads: 32, num_key_value_heads: 4,
 head_dim: 128, intermediate_size: 6144, moe_intermediate_size: 768, num_experts: 128, num_experts_per_tok: 8,
 vocab_size: 151936, max_position_embeddings: 40960}
---
{model_type: deepseek_v2, hidden_size: 2048, num_hidden_layers: 27, num_attention_heads: 16, num_key_value_heads: 16,
 intermediate_size: 10944, moe_intermediate_size: 1408, n_routed_experts: 64, n_shared_experts: 2,
 num_experts_per_tok: 6, first_k_dense_replace: 1, kv_lora_rank: 512, qk_rope_head_dim: 64, vocab_size: 102400,
 max_position_embeddings: 163840}
""")
EIGHT_BITS = {"group_0": {"weights": {"num_bits": 8, "type": "float"}}}
FP8 = LLAMA_LIKE | {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": EIGHT_BITS}}
INT4 = LLAMA_LIKE | {"quantization_config": {"quant_method": "awq", "bits": 4}}
NESTED = {"model_type": "mistral3", "text_config": LLAMA_LIKE, "vision_config": {"hidden_size": 1024}}


def written(folder: Path, config: dict[str, Any]) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return str(path)


def kernels(capsys: Capsys, *args: str) -> dict[str, Any]:
    """The JSON of `evolve kernels ARGS` on an H100."""
    found: dict[str, Any] = as_json(capsys, "kernels", *args, "--hardware", "H100")
    return found


def test_json_has_every_figure_and_the_source(capsys: Capsys) -> None:
    result = kernels(capsys, "mixtral-8x7b", "--tp", "2", "--context", "4096")
    deployment = ["model", "hardware", "tp", "settings", "weights", "kv_cache_bits"]
    deployment += ["weights_gib_per_gpu", "kv_cache_tokens"]
    assert list(result) == ["engine", *deployment, "tables", "steps", "operations", "notes"]
    assert (result["engine"], result["hardware"], result["tp"]) == (__version__, "H100-SXM-80GB", 2)
    about = tables("h100_sxm").about
    assert result["tables"] == {k: about[k] for k in ("gpu", "source", "sha256", "license", "copyright", "changes")}
    names = ["1 decode", "8 decodes", "32 decodes", "128 decodes", "prefill 2048"]
    assert [s["name"] for s in result["steps"]] == names
    facts = facts_of("mixtral-8x7b", "H100", Engine(tensor_parallel=2))
    batches = [(Active(0, 4096, 1),) * n for n in DECODES] + [(Active(2048, 0, 2048),)]
    for i, (step, batch) in enumerate(zip(result["steps"], batches, strict=True)):
        # what a program reads as b.kernel_us, operation by operation; curves are rounded to seven digits
        assert step["kernels_us"] == pytest.approx(BatchFields(batch, facts)["b", "kernel_us"], rel=1e-6)
        assert step["kernels_us"] == pytest.approx(sum(o["us"][i] for o in result["operations"]))
        assert step["roofline_us"] == roofline_us(batch, facts)
        assert sum(o["share"][i] for o in result["operations"]) == pytest.approx(1.0)
    by_name = {o["name"]: o for o in result["operations"]}
    assert set(by_name) >= {"QKV projection", "routed experts", "router", "decode attention: KV cache", "all-reduce"}
    assert all(o["provenance"] in KINDS and o["off_grid_octaves"] >= 0.0 for o in result["operations"])
    experts = by_name["routed experts"]
    assert (experts["provenance"], experts["calls"]) == ("measured", 32)
    assert experts["kernel"] == "vllm_unquantizedfusedmoe_triton_tritonexperts"
    assert experts["shape"] == "2 of 8 experts of 4096 x 7168"


def test_bounds_are_the_datasheets_without_launches(capsys: Capsys) -> None:
    """Llama-3.1-8B, one decode: weights over 3.35 TB/s; the KV cache of 1,025 tokens of 131,072 bytes."""
    bound = {o["name"]: o["datasheet_us"] for o in kernels(capsys, "llama-3.1-8b")["operations"]}
    qkv_bytes = 32 * (4096 * 6144 * 2 + 2 * (4096 + 6144))
    assert bound["QKV projection"][0] == pytest.approx(qkv_bytes / 3.35e6, rel=1e-9)
    assert bound["decode attention: KV cache"][0] == pytest.approx(1024 * 131072 / 3.35e6, rel=1e-9)
    assert bound["KV cache write"][0] == pytest.approx(32 * 4 * 1024 * 2 / 3.35e6, rel=1e-6)
    assert bound["decode attention: launch"] == [0.0] * 5
    # a prefill is bound by compute: 2 * 2048 * 4096 * 6144 FLOPs in each of 32 layers, at 989.5 TFLOP/s
    assert bound["QKV projection"][4] == pytest.approx(32 * 2 * 2048 * 4096 * 6144 / 989.5e6, rel=1e-9)


@pytest.mark.parametrize(
    ("config", "operations"),
    [
        (LLAMA_LIKE, {"feed-forward: down": "measured"}),  # 8192 to 3072
        (MOE, {"routed experts": "measured", "router": "measured"}),  # (2048, 768, 128, 8); 2048 to 128
        (MLA, {"routed experts": "nearest shape", "shared expert: down": "interpolated"}),
        (FP8, {"feed-forward: down": "measured"}),
        (INT4, {"feed-forward: down": "nearest shape"}),
        (NESTED, {"feed-forward: down": "measured"}),
    ],
    ids=["llama", "moe", "mla", "fp8", "int4", "nested"],
)
def test_any_config_json(config: dict[str, Any], operations: dict[str, str], tmp_path: Path, capsys: Capsys) -> None:
    """Also one without max_position_embeddings, and by the name of its folder."""
    result = kernels(capsys, written(tmp_path, config))
    operation_of = {o["name"]: o for o in result["operations"]}
    assert {name: operation_of[name]["provenance"] for name in operations} == operations
    assert all(s["kernels_us"] > 0.8 * s["roofline_us"] for s in result["steps"])
    assert kernels(capsys, str(tmp_path))["operations"] == result["operations"]


def test_fewer_bits_of_weights_are_read_faster(tmp_path: Path, capsys: Capsys) -> None:
    times = []
    for config in (LLAMA_LIKE, FP8, INT4):
        operations = kernels(capsys, written(tmp_path, config))["operations"]
        times.append(next(o["us"][0] for o in operations if o["name"] == "feed-forward: down"))
    assert times[0] > 1.2 * times[1] > 1.2 * times[2]


def test_the_table_has_the_figures_of_the_json(monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # room for calls, shapes and kernels
    lines = printed(capsys, "kernels", "llama-3.1-8b", "--hardware", "H100").splitlines()
    result = kernels(capsys, "llama-3.1-8b")
    rows = {line[:27].strip(): line[27:] for line in lines}
    for o in result["operations"]:
        if not any(o["us"]):
            assert o["name"] == "all-reduce" and "all-reduce" not in rows  # a single GPU
        else:
            cells = [f"{x:,.0f}" if x >= 99.95 else f"{x:.1f}" for x in o["us"]]
            assert rows[o["name"]].split()[:5] == cells and o["provenance"] in rows[o["name"]]
    assert rows["sum"].split()[:5] == [f"{s['kernels_us']:,.0f}" for s in result["steps"]]
    assert rows["roofline"].split() == [f"{s['roofline_us']:,.0f}" for s in result["steps"]]
    [source] = [line for line in lines if "aiconfigurator-core 0.12.0" in line]  # its licence demands the notice
    assert "Apache-2.0" in source and "NVIDIA" in source


def test_settings_of_the_engine_decide_the_kernels(monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    """In 8 bits all matrices but logits and routers have other kernels; whole experts on a GPU are wider."""
    monkeypatch.setenv("COLUMNS", "120")
    split = kernels(capsys, "mixtral-8x7b", "--tp", "2")
    given = ["--engine", "quantization=fp8", "--engine", "expert_parallel=2", "--engine", "kv_cache_dtype=fp8"]
    spread = kernels(capsys, "mixtral-8x7b", "--tp", "2", *given)
    assert (split["settings"], split["weights"]) == ({}, {"attention": "bf16", "experts": "bf16"})
    assert spread["settings"] == {"quantization": "fp8", "expert_parallel": 2, "kv_cache_dtype": "fp8"}
    assert spread["weights"] == {"attention": "fp8", "experts": "fp8"}
    assert (split["kv_cache_bits"], spread["kv_cache_bits"]) == (16, 8)
    before, after = ({o["name"]: o for o in result["operations"]} for result in (split, spread))
    changed = {name for name, o in after.items() if o["kernel"] != before[name]["kernel"]}
    assert {"QKV projection", "attention output", "routed experts"} <= changed
    assert not changed & {"logits", "router"}
    assert before["routed experts"]["shape"] == "2 of 8 experts of 4096 x 7168"
    assert after["routed experts"]["shape"] == "2 of 8 experts of 4096 x 14336"
    words = " ".join(printed(capsys, "kernels", "mixtral-8x7b", "--hardware", "H100", "--tp", "2", *given).split())
    assert "TP 2, quantization fp8, expert_parallel 2, kv_cache_dtype fp8:" in words
    # 45.1 billion parameters of experts, 1.3 of attention, and 0.26 of tables in 16 bits
    assert "Weights: attention fp8, experts fp8; 21.9 GiB on each GPU. KV cache of 8 bits with room for" in words
    assert f"{after['routed experts']['kernel']} (routed experts)" in words


def test_tokens_spread_evenly_over_experts_touch_more_of_them(capsys: Capsys) -> None:
    """8 tokens choose 2 of 8 experts: evenly all of them, by chance 8 x (1 - 0.75^8) = 7.2; one token 2 in any case."""
    even = kernels(capsys, "mixtral-8x7b", "--tp", "2", "--engine", "expert_routing=balanced")
    chance = kernels(capsys, "mixtral-8x7b", "--tp", "2")
    [one, eight, *_], [same, fewer, *_] = (
        next(o["us"] for o in result["operations"] if o["name"] == "routed experts") for result in (even, chance)
    )
    assert one == same and fewer == pytest.approx(eight * (1 - 0.75**8), rel=0.01)


def test_a_kv_cache_too_small_for_a_step_is_noted(capsys: Capsys) -> None:
    out = printed(capsys, "kernels", "codellama-34b", "--hardware", "H100", "--tp", "1")
    room = facts_of("codellama-34b", "H100", Engine())
    tokens = int(room["kv_blocks"] * room["block_size"])
    [note] = [line for line in out.splitlines() if "128 decodes at 1,024 tokens" in line]
    assert f"{tokens:,} tokens" in note and f"{tokens // 1025} such requests" in note


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        ("llama-3.1-9b --hardware H100", ["MODEL llama-3.1-9b:", "llama-3.1-8b, llama-3.1-70b, llama-2-7b"]),
        ("llama-3.1-8b --hardware H10", ["--hardware H10:", "H100, H200, A100"]),
        (
            "llama-3.1-8b --hardware H100-NVL",
            ["--hardware H100-NVL:", "A100-SXM-80GB, B200-SXM-180GB, B300-SXM-288GB, GB200-186GB"],
        ),
        ("llama-3.1-8b --hardware H100 --tp 3", ["--tp 3", "engine.tensor_parallel", "32 attention", "8 KV"]),
        ("llama-3.1-8b", ["--hardware"]),
        ("llama-3.1-8b --hardware H100 --tp 0", ["'--tp'"]),
        ("llama-3.1-70b --hardware H100", ["no room for KV cache"]),
        ("llama-3.1-8b --hardware H100 --engine tensor_parallel=2", ["--engine tensor_parallel:", "give --tp"]),
        ("llama-3.1-8b --hardware H100 --engine expert_routing=balanced", ["expert_routing", "no routed experts"]),
        ("llama-3.1-8b --hardware H100 --engine ep=2", ["--engine ep:", "expert_parallel"]),
    ],
)
def test_impossible_deployments_are_refused(args: str, parts: list[str], capsys: Capsys) -> None:
    line = refused(capsys, "kernels", *args.split())
    assert all(part in line for part in parts), line


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "No such file or directory"),
        ("{", "line 1: not valid JSON"),
        ("[1]", "not a JSON object"),
        ("\xff\xfe", "line 1: not valid JSON"),
        (json.dumps({k: v for k, v in LLAMA_LIKE.items() if k != "vocab_size"}), "model_config.vocab_size"),
    ],
)
def test_a_damaged_config_is_refused(text: str | None, problem: str, tmp_path: Path, capsys: Capsys) -> None:
    path = tmp_path / "config.json"
    if text is not None:
        path.write_bytes(text.encode("latin-1"))
    line = refused(capsys, "kernels", path, "--hardware", "H100")
    assert problem in line and str(path) in line
