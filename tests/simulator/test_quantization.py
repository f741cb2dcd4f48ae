"""Types of weights and KV cache, part by part, from configs as published checkpoints have them.

The configs are written for these tests, after those of compressed-tensors, ModelOpt, Quark, AutoAWQ and GPTQModel.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from deployed import facts_of_terms

from simulator.common.errors import InputError
from simulator.model.architecture import architecture
from simulator.model.quantization import with_quant_file
from simulator.serving.engine import Engine
from simulator.serving.experiment import deploy
from simulator.serving.gpu import hardware_table
from simulator.serving.spec import Spec, read_spec

DENSE: dict[str, Any] = yaml.safe_load("""{model_type: llama, num_hidden_layers: 4, hidden_size: 1024, vocab_size: 1000,
    num_attention_heads: 16, num_key_value_heads: 4, intermediate_size: 2048, max_position_embeddings: 8192}""")
# One dense layer, and three of eight experts and a shared one.
MOE = DENSE | yaml.safe_load("""{model_type: glm4_moe, n_routed_experts: 8, num_experts_per_tok: 2, n_shared_experts: 1,
    moe_intermediate_size: 512, first_k_dense_replace: 1}""")

INT4_GROUP = "weights: {num_bits: 4, type: int, strategy: group, group_size: 32, symmetric: true}, targets: [Linear]"
FP4_GROUP = "weights: {num_bits: 4, type: float, group_size: 16}, input_activations: {num_bits: 4}, targets: [Linear]"
# quantization_config of the dense model | type and bits of all its layers
ALIKE = f"""
quant_method: fp8 | fp8 8
quant_method: fp8, activation_scheme: dynamic, weight_block_size: [128, 128] | fp8_block 8
quant_method: fbgemm_fp8, modules_to_not_convert: [lm_head] | fp8 8
quant_method: modelopt, quant_algo: FP8, exclude_modules: [lm_head] | fp8 8
quant_method: modelopt, quant_algo: FP8_PB_WO | fp8_block 8
quant_method: modelopt, quant_algo: NVFP4, group_size: 16 | nvfp4 4.5
quant_method: modelopt, quant_algo: MXFP8 | fp8_block 8.25
quant_method: modelopt, quant_algo: W4A8_AWQ, group_size: 128 | int4 4.125
quant_method: modelopt, quantization: {{quant_algo: NVFP4}} | nvfp4 4.5
quant_method: modelopt, quant_algo: NVFP4, config_groups: {{g: {{{FP4_GROUP}}}}} | nvfp4 4.5
quant_method: compressed-tensors, config_groups: {{g: {{{INT4_GROUP}}}}} | int4 4.5
quant_method: compressed-tensors, config_groups: {{g: {{{FP4_GROUP}}}}} | nvfp4 4.5
quant_method: compressed-tensors, config_groups: {{g: {{{FP4_GROUP.replace("size: 16", "size: 32")}}}}} | mxfp4 4.25
quant_method: compressed-tensors, config_groups: {{g: {{weights: {{num_bits: 8, type: float, strategy: channel}}}}}} | fp8 8
quant_method: compressed-tensors, config_groups: {{g: {{weights: {{num_bits: 8, type: float, strategy: block}}}}}} | fp8_block 8
quant_method: compressed-tensors, config_groups: {{g: {{weights: {{num_bits: 8, type: int, strategy: channel}}}}}} | int8 8
quant_method: compressed-tensors, config_groups: {{g: {{weights: null, targets: [Linear]}}}} | bf16 16
quant_method: awq, bits: 4, group_size: 128, zero_point: true | int4 4.15625
quant_method: gptq, bits: 4, group_size: 64, sym: true | int4 4.25
quant_method: gptq, bits: 4, group_size: 128, sym: false | int4 4.15625
quant_method: gptq, bits: 8, group_size: -1 | int8 8
quant_method: auto-round, bits: 3, group_size: 128, sym: true | int3 3.125
quant_method: bitsandbytes, load_in_4bit: true, bnb_4bit_use_double_quant: true | int4 4.125
quant_method: quark, global_quant_config: {{weight: {{dtype: fp4, qscheme: per_group, group_size: 32}}}} | mxfp4 4.25
quant_method: quark, global_quant_config: {{weight: {{dtype: fp8_e4m3, qscheme: per_tensor}}}} | fp8 8
"""


@pytest.mark.parametrize("line", ALIKE.strip().splitlines())
def test_a_checkpoint_of_one_type(line: str) -> None:
    """A scale of 8 bits for 16 or 32 weights (NVFP4, MXFP4), of 16 bits, and perhaps a zero point, for a group of INT4."""
    details, expected = line.rsplit(" | ", 1)
    name, bits = expected.split()
    for key in "quantization_config", "compression_config":
        found = architecture({**DENSE, key: yaml.safe_load(f"{{{details}}}")}, "test").formats
        assert {(f.name, f.bits) for f in (found.attention, found.dense)} == {(name, float(bits))}


NVFP4 = "quant_method: modelopt, quant_algo: NVFP4"
GLOBS = "[lm_head, model.layers.0.self_attn*, model.layers.1.self_attn*, model.layers.2.self_attn*, 'model.layers.3.self_attn*']"
REGEXES = r"[lm_head, 're:.*self_attn.*', 're:.*shared_experts.*', 're:.*mlp\.(gate|up|gate_up|down)_proj.*']"
LAYERS = (
    "quantized_layers: {model.layers.0.mlp.gate_proj: {quant_algo: FP8}, model.layers.0.mlp.up_proj: {quant_algo: FP8}"
)
EXPERTS = "model.layers.{}.mlp.experts.{}.{}_proj: {{quant_algo: NVFP4, group_size: 16}}"
LISTED = ", ".join(EXPERTS.format(i, e, m) for i in (1, 2, 3) for e in range(8) for m in ("gate", "up", "down"))
# quantization_config of the mixture of experts | types of attention, dense layers, shared and routed experts
BY_PART = f"""
{NVFP4}, ignore: {GLOBS} | bf16 nvfp4 nvfp4 nvfp4
{NVFP4}, exclude_modules: ['*self_attn*', '*.mlp.shared_experts.*', '*.mlp.gate'] | bf16 nvfp4 bf16 nvfp4
{NVFP4}, exclude_modules: [model.layers.0.self_attn.q_proj, model.layers.0*] | nvfp4 bf16 nvfp4 nvfp4
{NVFP4}, ignore: [model.layers.0, vision_tower.encoder.layers.1.self_attn*, model.layers.4.mlp] | nvfp4 bf16 nvfp4 nvfp4
quant_method: compressed-tensors, config_groups: {{g: {{{INT4_GROUP}}}}}, ignore: {REGEXES} | bf16 bf16 bf16 int4
quant_method: fp8, modules_to_not_convert: [gate, e_score_correction_bias, lm_head] | fp8 fp8 fp8 fp8
quant_method: fp8, ignored_layers: [model.layers.1.mlp.experts, model.layers.2.mlp.experts] | fp8 fp8 fp8 bf16
quant_method: mxfp4, modules_to_not_convert: ["model.layers.*.self_attn"] | bf16 bf16 bf16 mxfp4
quant_method: modelopt, quant_algo: MIXED_PRECISION, {LAYERS}, {LISTED}}} | bf16 fp8 bf16 nvfp4
quant_method: compressed-tensors, config_groups: {{a: {{weights: {{num_bits: 8, type: float}}, targets: ['re:.*self_attn.*']}},
  b: {{{INT4_GROUP}}}}} | fp8 int4 int4 int4
quant_method: compressed-tensors, config_groups: {{a: {{weights: {{num_bits: 4, type: float, group_size: 16}},
  targets: ['re:.*mlp.experts.*']}}}} | bf16 bf16 bf16 nvfp4
quant_method: gptq, bits: 4, group_size: 128, dynamic: {{'-:.*self_attn': {{}}, '+:.*shared_experts': {{bits: 8}}}} | bf16 int4 int8 int4
quant_method: auto-round, bits: 4, group_size: 128, extra_config: {{model.layers.0.mlp: {{bits: 16}}}} | int4 bf16 int4 int4
quant_method: quark, global_quant_config: {{weight: {{dtype: fp4, group_size: 32}}}}, exclude: ['*self_attn*'],
  layer_quant_config: {{'*shared_experts*': {{weight: {{dtype: fp8_e4m3}}}}}} | bf16 mxfp4 fp8 mxfp4
"""


@pytest.mark.parametrize("line", BY_PART.replace("\n  ", " ").strip().splitlines())
def test_a_checkpoint_of_several_types(line: str) -> None:
    details, expected = line.rsplit(" | ", 1)
    found = architecture(MOE | {"quantization_config": yaml.safe_load(f"{{{details}}}")}, "test").formats
    assert [f.name for f in (found.attention, found.dense, found.shared, found.experts)] == expected.split()


def test_a_part_has_the_type_of_most_of_its_layers_and_says_so() -> None:
    for left_out, name in (1, "fp8"), (3, "bf16"):
        ignored = [f"model.layers.{i}.self_attn" for i in range(left_out)]
        terms = MOE | {"quantization_config": {"quant_method": "fp8", "ignored_layers": ignored}}
        found = architecture(terms, "test").formats
        assert (found.attention.name, found.mixed) == (name, ("attention",))
    text_model = {"text_config": {**MOE, "quantization_config": {"quant_method": "fp8", "ignored_layers": ignored}}}
    assert architecture(text_model, "test").formats == found


def test_matrices_of_latent_attention_have_their_own_names() -> None:
    latent = MOE | {"kv_lora_rank": 64, "q_lora_rank": 64, "qk_rope_head_dim": 16}
    names = [
        f"model.layers.{i}.self_attn.{name}"
        for i in range(4)
        for name in ("q_a_proj", "kv_a_proj_with_mqa", "kv_b_proj")
    ]
    details = {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": names}
    assert architecture(latent | {"quantization_config": details}, "test").formats.attention.name == "bf16"


@pytest.mark.parametrize(
    ("details", "problem"),
    [
        ("quant_method: vptq", "quantization_config is not understood"),
        ("quant_method: fp8, ignored_layers: model.layers.0", "quantization_config.ignored_layers must be a list"),
        (
            "quant_method: fp8, ignored_layers: ['re:(a']",
            "quantization_config.ignored_layers has a pattern that cannot",
        ),
        ("quant_method: fp8, ignored_layers: ['re:(.+)+x']", "quantization_config.ignored_layers has a pattern that"),
        (
            f"quant_method: fp8, ignored_layers: [{'a, ' * 1001}]",
            "quantization_config has 1,001 patterns, at most 1,000",
        ),
        ("quantized_layers: {model.layers.0: {quant_algo: X}}", "quantization_config.quantized_layers has a type that"),
    ],
)
def test_what_is_not_understood_is_one_line(details: str, problem: str) -> None:
    with pytest.raises(InputError, match=r"^[^\n]*$") as caught:
        architecture(MOE | {"quantization_config": yaml.safe_load(f"{{{details}}}")}, "f.json")
    assert str(caught.value).startswith(f"f.json: model_config.{problem}")


def test_a_quant_file_counts_only_without_a_quantization_of_the_config() -> None:
    file = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    merged = architecture(with_quant_file(DENSE, file), "test")
    assert (merged.weights.name, merged.kv_bytes) == ("fp8", 1)
    awq = {"quant_method": "awq", "bits": 4}
    for own in {"quantization_config": awq}, {"text_config": {"quantization_config": awq}}:
        assert architecture(with_quant_file(DENSE | own, file), "test").weights.name == "int4"


FP8_CACHE = {"num_bits": 8, "type": "float", "dynamic": False}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": FP8_CACHE}
COMPRESSED = {"quant_method": "compressed-tensors", "kv_cache_scheme": FP8_CACHE}
COMPRESSED["config_groups"] = {"g": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}}


@pytest.mark.parametrize(
    ("details", "engine", "kv_bytes"),
    [
        (MODELOPT, Engine(), 1),
        (MODELOPT, Engine(version="0.14.0"), 1),
        (MODELOPT, Engine(version="0.13.0"), 2),
        (MODELOPT, Engine(kv_cache_dtype="bfloat16"), 2),
        (MODELOPT, Engine(version="0.13.0", kv_cache_dtype="fp8"), 1),
        (COMPRESSED, Engine(version="0.15.0"), 1),
        (COMPRESSED, Engine(version="0.14.1"), 2),
        ({"quant_method": "fp8", "kv_cache_scheme": FP8_CACHE}, Engine(), 2),  # vLLM heeds it of no other method
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "INT8"}, Engine(), 2),
    ],
)
def test_the_kv_cache_that_a_checkpoint_asks_for(details: dict[str, Any], engine: Engine, kv_bytes: int) -> None:
    """A token has 2 * 4 layers * 4 KV heads * 64 scalars."""
    f = facts_of_terms(DENSE | {"quantization_config": details}, "H100", engine)
    assert f["kv_bytes_per_token"] == 2 * 4 * 4 * 64 * kv_bytes


ATTENTION = 1024 * 1024 * 2 + 2 * 1024 * 256  # parameters of a layer
TABLES = 2 * 1000 * 1024 * 2  # bytes of embedding and lm_head
MATRICES = 3 * 1024


def test_memory_of_a_mixed_checkpoint_by_hand() -> None:
    """Attention and shared experts in 16 bits, the dense layer and the routed experts in 4.5."""
    details = {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "exclude_modules": ["*self_attn*", "*shared_experts*"],
    }
    f = facts_of_terms(MOE | {"quantization_config": details}, "H100", Engine())
    unrouted = 4 * ATTENTION * 2 + MATRICES * 2048 * 4.5 / 8 + 3 * MATRICES * 512 * 2
    routed = 3 * 8 * MATRICES * 512 * 4.5 / 8
    bytes_per_us = f["bytes_per_us"]
    assert f["shared_weights_us"] == pytest.approx((unrouted + TABLES / 2) / bytes_per_us, rel=1e-14)
    assert f["experts_us"] == pytest.approx(routed / bytes_per_us, rel=1e-14)
    usable = hardware_table()["H100"]["usable_gib"]
    room = (0.9 * usable - 0.8) * 2**30 - unrouted - routed - TABLES
    assert f["kv_blocks"] == room // (16 * f["kv_bytes_per_token"]) - 1
    assert f["is_fp8"] == 0


LOAD = {"name": "chat", "prompt_len": 100, "output_len": 10, "stages": [{"rate": 1.0, "duration_s": 60}]}


def spec(config: dict[str, Any], **engine: Any) -> Spec:
    entry = {"id": "a", "model": "mine", "model_config": config, "hardware": "H100", "engine": engine, "workload": LOAD}
    return read_spec(entry, "f.yaml")


@pytest.mark.parametrize(
    ("name", "bits", "fp8"),
    [("bf16", 16, 0), ("fp8", 8, 1), ("fp8_block", 8, 1), ("nvfp4", 4.5, 0), ("mxfp4", 4.25, 0), ("int4", 4.125, 0)],
)
def test_a_checkpoint_of_16_bits_is_served_in_another_type(name: str, bits: float, fp8: int) -> None:
    plain, e = deploy(spec(MOE)), deploy(spec(MOE, quantization=name))
    read = (e.facts[x] * e.facts["bytes_per_us"] for x in ("shared_weights_us", "experts_us"))
    layers = 4 * ATTENTION + MATRICES * 2048 + 3 * MATRICES * 512, 3 * 8 * MATRICES * 512
    assert list(read) == pytest.approx([layers[0] * bits / 8 + TABLES / 2, layers[1] * bits / 8], rel=1e-14)
    assert (e.facts["is_fp8"], e.weight_bits, e.engine.quantization) == (fp8, int(bits), name)
    assert (e.facts == plain.facts) == (name == "bf16")


def test_a_quantized_checkpoint_is_not_quantized_again() -> None:
    block = MOE | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    assert deploy(spec(block, quantization="fp8")).facts == deploy(spec(block)).facts  # as vLLM takes it
    for name in "bf16", "nvfp4":
        with pytest.raises(
            InputError, match=f"engine.quantization is {name}, but the weights of mine are stored in fp8"
        ):
            deploy(spec(block, quantization=name))
    with pytest.raises(
        InputError, match=r"engine.quantization must be one of bf16, fp8, fp8_block, nvfp4, mxfp4, int4"
    ):
        spec(MOE, quantization="awq")


def test_other_weights_have_their_own_room() -> None:
    known = spec(MOE, total_kv_blocks=1000)
    assert known.vary(quantization="fp8").engine.total_kv_blocks is None
    assert known.vary(max_num_seqs=64).engine.total_kv_blocks == 1000
