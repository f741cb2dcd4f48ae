"""`evolve kernels`: the table and the JSON of shipped models and of any config.json, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evaluator.judge.physics import roofline_us
from evolve import __version__
from evolve.cli import run_command
from evolve.plan.kernels import DECODES, LEGEND
from simulator.clock.fields import Active, BatchFields
from simulator.kernels.roofline import KINDS
from simulator.kernels.tables import tables
from simulator.serving.experiment import Engine
from simulator.serving.known import facts_of

LLAMA_LIKE = {
    "model_type": "llama", "hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 24,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 8192, "vocab_size": 128256,
    "torch_dtype": "bfloat16", "tie_word_embeddings": True,
}  # fmt: skip
MOE = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936, "max_position_embeddings": 40960,
}  # fmt: skip
MLA = {
    "model_type": "deepseek_v2", "hidden_size": 2048, "num_hidden_layers": 27, "num_attention_heads": 16,
    "num_key_value_heads": 16, "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 64,
    "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "kv_lora_rank": 512,
    "qk_rope_head_dim": 64, "vocab_size": 102400, "max_position_embeddings": 163840,
}  # fmt: skip
FP8 = LLAMA_LIKE | {
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
    }
}
INT4 = LLAMA_LIKE | {"quantization_config": {"quant_method": "awq", "bits": 4}}
NESTED = {"model_type": "mistral3", "text_config": LLAMA_LIKE, "vision_config": {"hidden_size": 1024}}


@pytest.fixture
def kernels(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*args: str) -> tuple[int, str, str]:
        status = run_command(["kernels", *args])
        out, err = capsys.readouterr()
        return status, out, err

    return run


def written(folder: Path, config: dict[str, Any]) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return str(path)


def test_json_has_every_figure_and_the_source(kernels: Any) -> None:
    status, out, err = kernels("mixtral-8x7b", "--hardware", "H100", "--tp", "2", "--context", "4096", "--json")
    result = json.loads(out)
    assert (status, err) == (0, "")
    assert list(result) == ["engine", "model", "hardware", "tp", "tables", "steps", "operations", "notes"]
    assert (result["engine"], result["hardware"], result["tp"]) == (__version__, "H100-SXM-80GB", 2)
    about = tables("h100_sxm").about
    assert result["tables"] == {k: about[k] for k in ("gpu", "source", "sha256", "license", "copyright", "changes")}
    assert [s["name"] for s in result["steps"]] == [
        "1 decode",
        "8 decodes",
        "32 decodes",
        "128 decodes",
        "prefill 2048",
    ]
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


def test_the_nearest_shapes_efficiency_may_beat_the_datasheet_which_is_said(kernels: Any, tmp_path: Path) -> None:
    """The weights of 26 x 64 experts are 28.8 GB, or 8.6 ms at 3.35 TB/s."""
    result = json.loads(kernels(written(tmp_path, MLA), "--hardware", "H100", "--json")[1])
    [said] = [text for text in result["notes"] if "routed experts" in text]
    assert said == (
        "routed experts: 7,026 us at 128 decodes are below the 8,635 us that its bytes or FLOPs take at the GPU's "
        "peaks: the nearest measured shape's efficiency is too high for this one, which takes longer"
    )
    measured = json.loads(kernels("mixtral-8x7b", "--hardware", "H100", "--tp", "2", "--json")[1])
    assert not [text for text in measured["notes"] if "peaks" in text]


def test_bounds_are_the_datasheets_without_launches(kernels: Any) -> None:
    """Llama-3.1-8B, one decode: weights over 3.35 TB/s; the KV cache of 1,025 tokens of 131,072 bytes."""
    result = json.loads(kernels("llama-3.1-8b", "--hardware", "H100", "--json")[1])
    bound = {o["name"]: o["datasheet_us"] for o in result["operations"]}
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
def test_any_config_json(config: dict[str, Any], operations: dict[str, str], tmp_path: Path, kernels: Any) -> None:
    """Also one without max_position_embeddings, and by the name of its folder."""
    path = written(tmp_path, config)
    status, out, err = kernels(path, "--hardware", "H100", "--json")
    assert (status, err) == (0, "")
    result = json.loads(out)
    operation_of = {o["name"]: o for o in result["operations"]}
    assert {name: operation_of[name]["provenance"] for name in operations} == operations
    assert all(s["kernels_us"] > 0.8 * s["roofline_us"] for s in result["steps"])
    status, by_folder, _ = kernels(str(tmp_path), "--hardware", "H100", "--json")
    assert json.loads(by_folder)["operations"] == result["operations"]


def test_fp8_weights_are_read_faster_and_four_bits_faster_still(tmp_path: Path, kernels: Any) -> None:
    times = []
    for config in (LLAMA_LIKE, FP8, INT4):
        out = kernels(written(tmp_path, config), "--hardware", "H100", "--json")[1]
        times.append(next(o["us"][0] for o in json.loads(out)["operations"] if o["name"] == "feed-forward: down"))
    assert times[0] > 1.2 * times[1] > 1.2 * times[2]


def test_the_table(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # room for calls, shapes and kernels
    status, out, err = kernels("llama-3.1-8b", "--hardware", "H100")
    assert (status, err) == (0, "")
    title = "llama-3.1-8b on H100-SXM-80GB, TP 1: us of a step, 1,024 tokens of context a decode"
    legend, found, table = out.partition(title)
    assert "datasheet: the roofline of one operation" in legend
    lines = table.splitlines()
    assert found and LEGEND.split()[-5:] == legend.split()[-5:]
    assert lines[1].split() == ["operation", "1", "8", "32", "128", "prefill", "share", "from", "datasheet", "calls",
                                "shape", "kernel"]  # fmt: skip
    result = json.loads(kernels("llama-3.1-8b", "--hardware", "H100", "--json")[1])
    rows = {line[:27].strip(): line for line in lines}
    for o in result["operations"]:
        if not any(o["us"]):
            assert o["name"] == "all-reduce" and "all-reduce" not in rows  # a single GPU
            continue
        cells = [f"{x:,.0f}" if x >= 99.95 else f"{x:.1f}" for x in o["us"]]
        assert rows[o["name"]][27:].split()[:5] == cells
        assert f"{100 * o['share'][2]:.1f} %" in rows[o["name"]] and o["provenance"] in rows[o["name"]]
    sums = [f"{s['kernels_us']:,.0f}" for s in result["steps"]]
    assert rows["sum"][27:].split()[:5] == sums
    assert rows["roofline"][27:].split() == [f"{s['roofline_us']:,.0f}" for s in result["steps"]]
    assert (
        "Tables: PyPI package aiconfigurator-core 0.12.0, h100_sxm, Apache-2.0, Copyright (c) 2025-2026 NVIDIA" in out
    )
    assert "Note:" not in out


def test_a_kv_cache_too_small_for_a_step_is_said(kernels: Any) -> None:
    status, out, _ = kernels("codellama-34b", "--hardware", "H100", "--tp", "1")
    room = facts_of("codellama-34b", "H100", Engine())
    tokens = int(room["kv_blocks"] * room["block_size"])
    assert status == 0 and out.splitlines()[-1] == (
        f"Note: 128 decodes at 1,024 tokens of context: the KV cache has room for {tokens:,} tokens, "
        f"{tokens // 1025} such requests."
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("llama-3.1-9b", "--hardware", "H100"),
         "MODEL llama-3.1-9b: is neither a known model nor a config.json: the closest are llama-3.1-8b, llama-3.1-70b, llama-2-7b; "
         "`evolve list` has all, or keep your own with `evolve model add CONFIG`"),
        (("llama-3.1-8b", "--hardware", "H10"), "--hardware H10: is not a known GPU: the closest are H100, H200, A100; "
         "`evolve list` has all, or describe your own as `hardware: {...}` in an experiments file (docs/experiments.md)"),
        (("llama-3.1-8b", "--hardware", "H100-NVL"),
         "--hardware H100-NVL: has no measured kernels: choose one of A100-SXM-80GB, B200-SXM-180GB, H100-SXM-80GB, "
         "H200-SXM-141GB, L40S-48GB, RTX-PRO-6000-96GB"),
        (("llama-3.1-8b", "--hardware", "H100", "--tp", "3"),
         "MODEL llama-3.1-8b --tp 3: engine.tensor_parallel must divide the model's 32 attention heads and fit its 8 KV "
         "heads, got 3: choose a number of GPUs that splits the heads evenly"),
        (("llama-3.1-8b",), "Missing option '--hardware': see `evolve kernels --help`"),
        (("llama-3.1-8b", "--hardware", "H100", "--tp", "0"),
         "Invalid value for '--tp': 0 is not in the range x>=1: see `evolve kernels --help`"),
    ],
)  # fmt: skip
def test_refusals(args: tuple[str, ...], message: str, kernels: Any) -> None:
    assert kernels(*args) == (2, "", f"evolve: {message}\n")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "cannot be read (No such file or directory): give a model's config.json"),
        ("{", "line 1: not valid JSON, Expecting property name enclosed in double quotes: give a model's config.json"),
        ("[1]", "is not a JSON object: give a model's config.json"),
        ("\xff\xfe", "line 1: not valid JSON"),
    ],
)  # fmt: skip
def test_a_config_that_cannot_be_read(text: str | None, problem: str, tmp_path: Path, kernels: Any) -> None:
    path = tmp_path / "config.json"
    if text is not None:
        path.write_bytes(text.encode("latin-1"))
    status, out, err = kernels(str(path), "--hardware", "H100")
    assert (status, out) == (2, "") and err.startswith(f"evolve: {path}: {problem}") and err.count("\n") == 1


def test_a_config_with_a_key_missing_or_without_room(tmp_path: Path, kernels: Any) -> None:
    path = written(tmp_path, {k: v for k, v in LLAMA_LIKE.items() if k != "vocab_size"})
    status, out, err = kernels(path, "--hardware", "H100")
    assert (status, out) == (2, "") and "model_config.vocab_size is missing" in err and err.count("\n") == 1
    status, out, err = kernels("llama-3.1-70b", "--hardware", "H100")
    assert (status, out) == (2, "") and "leaves no room for KV cache" in err and err.count("\n") == 1


def test_help_has_examples_that_run(kernels: Any) -> None:
    status, out, _ = kernels("--help")
    assert status == 0
    examples = [line.split()[1:] for line in out.splitlines() if line.strip().startswith("evolve kernels ")]
    assert len(examples) == 3
    for words in examples[:2]:  # the third is of a file
        assert words[0] == "kernels" and kernels(*words[1:])[0] == 0
