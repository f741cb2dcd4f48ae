"""The static `s.` fields against hand computations from public config numbers, written out as arithmetic."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.common.errors import InputError
from simulator.model.architecture import architecture
from simulator.schema import FIELDS, HOST
from simulator.serving.bundled import bundled_experiments, hardware_table, model_table
from simulator.serving.deployment import deployment_facts
from simulator.serving.experiment import Engine

H100 = {"bf16_tflops": 989.5, "fp8_tflops": 1979.0, "memory_tb_per_s": 3.35, "link_gb_per_s": 450.0}
H100 |= {"usable_gib": 79.11}
FLOPS, FP8_FLOPS, BYTES, LINK = 989.5e6, 1979.0e6, 3.35e6, 450e3  # per us


def facts(name: str, engine: Engine, **config: Any) -> dict[str, float]:
    entry = model_table()[name]
    terms = {**entry["config"], "generation_config": entry["generation_config"], **config}
    return deployment_facts(terms, H100, engine, "test")


LLAMA_70B_TP4 = {  # 80 layers of width 8192, 64 heads of 128 with 8 KV heads, FFN 28672, vocabulary 32000
    "layers": 80, "dense_layers": 80, "moe_layers": 0, "hidden": 8192, "heads": 64, "kv_heads": 8,
    "kv_heads_per_gpu": 2, "head_dim": 128, "ffn": 28672, "moe_ffn": 0, "vocab": 32000, "experts": 0,
    "active_experts": 0, "tp": 4, "tp_log2": 2, "is_moe": 0, "is_fp8": 0,
    "sampling_sort": 1, "repetition_penalty": 0, "kv_blocks": 31356, "kv_cpu_offload": 1,
    # q and o 8192x8192 each, k and v 8192x1024 each, three FFN matrices; embedding and lm_head
    "model_params_b": (80 * (2 * 67_108_864 + 2 * 8_388_608 + 3 * 234_881_024) + 2 * 262_144_000) / 1e9,
    "active_params_b": 68.97532928,
    "max_num_seqs": 128, "max_num_batched_tokens": 2048, "max_model_len": 4096, "block_size": 16,
    "flops_per_us": FLOPS, "bytes_per_us": BYTES, "link_bytes_per_us": LINK,
    "kv_bytes_per_token": 81_920,  # 2 (K, V) * 80 layers * 2 heads * 128 * 2 bytes
    # 68,451,041,280 layer parameters and 262,144,000 of lm_head, 2 bytes each, a quarter per GPU
    "shared_weights_us": (68_451_041_280 * 2 / 4 + 262_144_000 * 2 / 4) / BYTES,
    "experts_us": 0,
    "weights_us": 34_356_592_640 / BYTES,
    "kv_us_per_token": 81_920 / BYTES,
    "gemm_us_per_token": 2 * 68_451_041_280 / 4 / FLOPS,
    "attention_us_per_pair": 4 * 16 * 128 * 80 / FLOPS,  # 16 heads per GPU
    "logits_us_per_row": 2 * 8192 * 32000 / 4 / FLOPS + 32000 * 4 * 2 / BYTES,
    "allreduce_us_per_token": 160 * 16384 * 2 * 0.75 / LINK,  # two a layer, 16 KiB, ring 2*(tp-1)/tp
}  # fmt: skip

MIXTRAL_TP2 = {  # 32 layers of width 4096, 32 heads of 128 with 8 KV heads, 8 experts of 14336, 2 active
    "layers": 32, "dense_layers": 0, "moe_layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8,
    "kv_heads_per_gpu": 4, "head_dim": 128, "ffn": 14336, "moe_ffn": 14336, "vocab": 32000, "experts": 8,
    "active_experts": 2, "tp": 2, "tp_log2": 1, "is_moe": 1, "is_fp8": 0,
    "sampling_sort": 0, "repetition_penalty": 0, "kv_blocks": 20000, "kv_cpu_offload": 0,
    "model_params_b": (32 * (41_943_040 + 8 * 176_160_768) + 2 * 131_072_000) / 1e9,
    "active_params_b": (32 * (41_943_040 + 2 * 176_160_768) + 2 * 131_072_000) / 1e9,
    "max_num_seqs": 128, "max_num_batched_tokens": 2048, "max_model_len": 32768, "block_size": 16,
    "flops_per_us": FLOPS, "bytes_per_us": BYTES, "link_bytes_per_us": LINK,
    "kv_bytes_per_token": 65_536,  # 2 * 32 * 4 * 128 * 2
    # attention 4096*4096*2 + 2*4096*1024 = 41,943,040 a layer; lm_head 131,072,000
    "shared_weights_us": (32 * 41_943_040 * 2 / 2 + 131_072_000 * 2 / 2) / BYTES,
    "experts_us": 45_097_156_608 * 2 / 2 / BYTES,  # 32 * 8 * 3*4096*14336
    "weights_us": (1_342_177_280 + 131_072_000 + 45_097_156_608) / BYTES,
    "kv_us_per_token": 65_536 / BYTES,
    "gemm_us_per_token": 2 * (1_342_177_280 + 11_274_289_152) / 2 / FLOPS,
    "attention_us_per_pair": 4 * 16 * 128 * 32 / FLOPS,
    "logits_us_per_row": 4096 * 32000 / FLOPS + 256_000 / BYTES,
    "allreduce_us_per_token": 64 * 8192 * 2 * 0.5 / LINK,
}  # fmt: skip

SCOUT_TP2 = {  # 48 layers of width 5120, all MoE: 16 routed experts of 8192 (1 active) and a shared one; fp8
    "layers": 48, "dense_layers": 0, "moe_layers": 48, "hidden": 5120, "heads": 40, "kv_heads": 8,
    "kv_heads_per_gpu": 4, "head_dim": 128, "ffn": 16384, "moe_ffn": 8192, "vocab": 202048, "experts": 16,
    "active_experts": 1, "tp": 2, "tp_log2": 1, "is_moe": 1, "is_fp8": 1,
    "sampling_sort": 1, "repetition_penalty": 0, "kv_blocks": 13000, "kv_cpu_offload": 0,
    # attention 5120*5120*2 + 2*5120*1024 = 62,914,560 a layer; an expert 3*5120*8192 = 125,829,120
    "model_params_b": (48 * (62_914_560 + 17 * 125_829_120) + 2 * 1_034_485_760) / 1e9,
    "active_params_b": (48 * (62_914_560 + 2 * 125_829_120) + 2 * 1_034_485_760) / 1e9,
    "max_num_seqs": 128, "max_num_batched_tokens": 2048, "max_model_len": 4096, "block_size": 16,
    "flops_per_us": FP8_FLOPS, "bytes_per_us": BYTES, "link_bytes_per_us": LINK,
    "kv_bytes_per_token": 98_304,  # 2 * 48 * 4 * 128 * 2: the cache stays 16 bit
    "shared_weights_us": (48 * (62_914_560 + 125_829_120) / 2 + 1_034_485_760 * 2 / 2) / BYTES,
    "experts_us": 48 * 16 * 125_829_120 / 2 / BYTES,
    "weights_us": (4_529_848_320 + 1_034_485_760 + 48_318_382_080) / BYTES,
    "kv_us_per_token": 98_304 / BYTES,
    "gemm_us_per_token": 2 * 48 * (62_914_560 + 2 * 125_829_120) / 2 / FP8_FLOPS,
    "attention_us_per_pair": 4 * 20 * 128 * 48 / FP8_FLOPS,
    "logits_us_per_row": 5120 * 202048 / FP8_FLOPS + 202048 * 8 / BYTES,
    "allreduce_us_per_token": 96 * 10240 * 2 * 0.5 / LINK,
}  # fmt: skip

HAND = {
    "llama-2-70b": (Engine(tensor_parallel=4, total_kv_blocks=31356, kv_cpu_offload=True), LLAMA_70B_TP4),
    "mixtral-8x7b": (Engine(tensor_parallel=2, total_kv_blocks=20000), MIXTRAL_TP2),
    "llama-4-scout": (Engine(tensor_parallel=2, total_kv_blocks=13000, max_model_len=4096), SCOUT_TP2),
}


@pytest.mark.parametrize("name", HAND)
def test_every_field_equals_the_hand_computation(name: str) -> None:
    engine, expected = HAND[name]
    own = {field: value for field, value in facts(name, engine).items() if ("s", field) not in HOST}
    assert own == pytest.approx(expected, rel=1e-14)  # for those of the host's form see test_host_form.py


def test_the_fields_are_those_of_the_schema() -> None:
    static = {field for scope, field in (*FIELDS, *HOST) if scope == "s"} - {"reference_step_us"}
    for experiment in bundled_experiments():
        assert set(experiment.facts) == static
        assert all(type(value) is float for value in experiment.facts.values())


@pytest.mark.parametrize(
    ("name", "billions"),
    [("llama-2-7b", 6.74), ("codellama-34b", 33.7), ("qwen3-14b", 14.8), ("llama-3.1-8b", 8.03),
     ("mistral-nemo-12b", 12.2), ("qwen2.5-7b", 7.62), ("yi-34b", 34.4), ("llama-3.1-70b", 70.6),
     ("mixtral-8x22b", 141.0), ("llama-4-scout", 109.0)],
)  # fmt: skip
def test_parameter_counts_agree_with_the_model_cards(name: str, billions: float) -> None:
    counted = facts(name, Engine(tensor_parallel=4))["model_params_b"]
    assert counted == pytest.approx(billions, rel=0.02)  # Scout's card counts the vision tower too


@pytest.mark.parametrize(("name", "tp", "known"), [("llama-2-70b", 4, 31356), ("codellama-34b", 2, 26602)])
def test_computed_kv_blocks_match_the_engines_own(name: str, tp: int, known: int) -> None:
    assert facts(name, Engine(tensor_parallel=tp))["kv_blocks"] == pytest.approx(known, rel=0.002)


def test_tied_embeddings_count_once() -> None:
    entry = model_table()["llama-2-7b"]["config"]
    f = deployment_facts({**entry, "tie_word_embeddings": True}, H100, Engine(), "test")
    assert f["model_params_b"] == pytest.approx((6_738_149_376 - 32000 * 4096) / 1e9, rel=1e-14)


def test_kv_blocks_by_hand() -> None:
    # Llama-2-7B on one H100: (0.9*79.11 - 0.8) GiB less 2 * 6,738,149,376 bytes, 8 MiB blocks, one null
    room = (0.9 * 79.11 - 0.8) * 1024**3 - 2 * 6_738_149_376
    assert facts("llama-2-7b", Engine())["kv_blocks"] == room // (8 * 1024**2) - 1


def test_more_memory_or_a_larger_share_gives_more_blocks() -> None:
    blocks = [facts("llama-2-7b", Engine(gpu_memory_utilization=u))["kv_blocks"] for u in (0.5, 0.7, 0.9)]
    assert blocks == sorted(set(blocks))


def test_a_model_that_does_not_fit_is_an_input_error() -> None:
    with pytest.raises(InputError) as caught:
        facts("llama-2-70b", Engine())
    assert str(caught.value) == (
        "test: engine.tensor_parallel leaves no room for KV cache, 128.5 GiB of weights per GPU of 79.11 "
        "GiB: "
        "use more or larger GPUs"
    )


def test_weights_by_precision() -> None:
    def layer_bytes(**config: Any) -> float:
        f = facts("llama-2-7b", Engine(total_kv_blocks=1000), **config)
        return f["shared_weights_us"] * f["bytes_per_us"] - 32000 * 4096 * 2  # lm_head stays 2 bytes

    whole = 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008)
    compressed = {"quant_method": "compressed-tensors"}
    int4 = {"config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}}}
    float8 = {"config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}}}
    for config, size in (
        ({}, 2.0),
        ({"torch_dtype": "float32"}, 2.0),  # vLLM serves it in 16 bits
        ({"quantization": "fp8"}, 1.0),
        ({"quantization_config": {"quant_method": "fp8"}}, 1.0),
        ({"quantization_config": compressed | float8}, 1.0),
        ({"quantization_config": compressed | int4}, 0.5),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, 0.5),
        ({"_name_or_path": "someone/Llama-w4a16"}, 0.5),
        ({"_name_or_path": "someone/Llama-FP8-dynamic"}, 1.0),
    ):
        assert layer_bytes(**config) == pytest.approx(whole * size, rel=1e-12), config


def test_fp8_uses_the_fp8_peak_where_there_is_one() -> None:
    config = {**model_table()["llama-2-7b"]["config"], "quantization": "fp8"}
    peaks = {"H100": 1979.0e6, "A100 80GB": 312.0e6, "L40S": 733.0e6}
    for name, peak in peaks.items():
        f = deployment_facts(config, hardware_table()[name], Engine(), "test")
        assert f["is_fp8"] == 1
        assert f["flops_per_us"] == peak


BASE = {"num_hidden_layers": 4, "hidden_size": 1024, "num_attention_heads": 16, "vocab_size": 1000}
BASE |= {"intermediate_size": 2048, "max_position_embeddings": 512}


@pytest.mark.parametrize(
    ("extra", "moe_layers", "experts", "moe_ffn", "shared_ffn"),
    [
        ({}, 0, 0, 0, 0),
        ({"num_local_experts": 1}, 0, 0, 0, 0),
        ({"num_local_experts": 8}, 4, 8, 2048, 0),
        ({"num_experts": 60, "moe_intermediate_size": 128, "shared_expert_intermediate_size": 512,
          "decoder_sparse_step": 2, "mlp_only_layers": [3]}, 1, 60, 128, 512),  # Qwen2-MoE
        ({"n_routed_experts": 64, "moe_intermediate_size": 128, "n_shared_experts": 2,
          "first_k_dense_replace": 1}, 3, 64, 128, 256),  # DeepSeek
        ({"n_routed_experts": 64, "moe_intermediate_size": 128, "first_k_dense_replace": 0,
          "moe_layer_freq": 2}, 2, 64, 128, 0),
        ({"model_type": "llama4_text", "num_local_experts": 16, "interleave_moe_layer_step": 3,
          "intermediate_size_mlp": 4096}, 1, 16, 2048, 2048),  # Llama-4, interleaved
    ],
)  # fmt: skip
def test_mixture_keys(extra: dict[str, Any], moe_layers: int, experts: int, moe_ffn: int, shared_ffn: int) -> None:
    a = architecture({**BASE, "num_experts_per_tok": 1, **extra}, "test")
    assert (a.moe_layers, a.experts, a.moe_ffn, a.shared_ffn) == (moe_layers, experts, moe_ffn, shared_ffn)
    assert a.ffn == extra.get("intermediate_size_mlp", 2048)


def test_dbrx_keys_and_text_config() -> None:
    dbrx = {
        "d_model": 6144, "n_layers": 40, "n_heads": 48, "vocab_size": 100352, "max_seq_len": 32768,
        "attn_config": {"kv_n_heads": 8},
        "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
    }  # fmt: skip
    a = architecture(dbrx, "test")
    assert (a.hidden, a.layers, a.kv_heads, a.experts, a.active, a.longest) == (6144, 40, 8, 16, 4, 32768)
    assert (a.moe_ffn, a.head_dim, a.moe_layers) == (10752, 128, 40)
    assert architecture({**BASE, "text_config": {"hidden_size": 2048}}, "test").hidden == 2048


def test_latent_attention_caches_one_vector_and_is_not_split() -> None:
    config = {**BASE, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    for tp in (1, 4):
        f = deployment_facts(config, H100, Engine(tensor_parallel=tp), "test")
        assert f["kv_bytes_per_token"] == 4 * (512 + 64) * 2


def test_few_kv_heads_are_replicated() -> None:
    f = deployment_facts({**BASE, "num_key_value_heads": 2}, H100, Engine(tensor_parallel=8), "test")
    assert f["kv_heads_per_gpu"] == 1
    assert f["kv_bytes_per_token"] == 2 * 4 * 1 * 64 * 2


@pytest.mark.parametrize(
    ("generation", "sort", "penalty"),
    [(None, 0, 0), ({}, 0, 0), ({"top_p": 1.0, "top_k": 0, "repetition_penalty": 1.0}, 0, 0),
     ({"top_p": 0.9}, 1, 0), ({"top_k": 20}, 1, 0), ({"repetition_penalty": 1.05}, 0, 1),
     ({"temperature": 0.6, "top_k": None}, 0, 0)],
)  # fmt: skip
def test_sampling_fields(generation: dict[str, Any] | None, sort: int, penalty: int) -> None:
    f = deployment_facts({**BASE, "generation_config": generation}, H100, Engine(), "test")
    assert (f["sampling_sort"], f["repetition_penalty"]) == (sort, penalty)


@pytest.mark.parametrize(
    ("config", "engine", "message"),
    [
        ({"hidden_size": None}, Engine(), "model_config.hidden_size must be a whole number, got null: copy "
         "the "
         "key from the model's config.json"),
        ({"num_hidden_layers": "32"}, Engine(), "model_config.num_hidden_layers must be a whole number, got "
         "'32': copy the key from the model's config.json"),
        ({"vocab_size": 0}, Engine(), "model_config.vocab_size must be >= 1, got 0: copy the key from the "
         "model's config.json"),
        ({}, Engine(tensor_parallel=3), "engine.tensor_parallel must divide the model's 16 attention heads "
         "and "
         "fit its 16 KV heads, got 3: choose a number of GPUs that splits the heads evenly"),
        ({"num_attention_heads": 12, "head_dim": 64, "num_key_value_heads": 6}, Engine(tensor_parallel=4),
         "engine.tensor_parallel must divide the model's "
         "12 attention heads and fit its 6 KV heads, got 4: choose a number of GPUs that splits the heads "
         "evenly"),
        ({"num_key_value_heads": 6}, Engine(), "model_config.num_key_value_heads must divide the 16 heads, got 6: "
         "copy the key from the model's config.json"),
        ({"layer_types": ["full_attention"]}, Engine(), "model_config.layer_types names 1 layers of 4: "
         "copy the key from the model's config.json"),
        ({"quantization": "marlin"}, Engine(), "model_config.quantization is not understood, got 'marlin': "
         "write quantization: fp8 or w4a16"),
        ({"max_position_embeddings": None}, Engine(), "engine.max_model_len is missing and model_config has "
         "no "
         "max_position_embeddings: give one of them"),
        ({"num_local_experts": 8}, Engine(), "model_config.num_experts_per_tok is missing: copy the key from "
         "the model's config.json"),
        ({"mlp_only_layers": 3, "num_experts": 8, "num_experts_per_tok": 2}, Engine(), "model_config."
         "mlp_only_layers must be a list, got 3: copy the key from the model's config.json"),
    ],
)  # fmt: skip
def test_impossible_deployments_are_one_line_errors(config: dict[str, Any], engine: Engine, message: str) -> None:
    with pytest.raises(InputError) as caught:
        deployment_facts({**BASE, **config}, H100, engine, "f.yaml: experiment 'x'")
    assert str(caught.value) == f"f.yaml: experiment 'x': {message}"


def test_a_missing_key_is_named() -> None:
    with pytest.raises(InputError, match=r"^t: model_config.vocab_size is missing: copy the key from"):
        deployment_facts({k: v for k, v in BASE.items() if k != "vocab_size"}, H100, Engine(), "t")


def test_extra_weights_leave_fewer_blocks() -> None:
    """4.4 GiB over two GPUs, in blocks of 16 tokens x 98,304 bytes (2 x 48 layers x 4 KV heads x 128 x 2): 1,501.9."""
    entry = model_table()["llama-4-scout"]
    gpu, engine = hardware_table()["H100-SXM-80GB"], Engine(tensor_parallel=2)
    config = {**entry["config"], "_name_or_path": entry["id"]}
    less = deployment_facts(config, gpu, engine, "here")["kv_blocks"]
    plain = {name: value for name, value in config.items() if name != "extra_weights_gib"}
    assert deployment_facts(plain, gpu, engine, "here")["kv_blocks"] - less in (1501, 1502)
    with pytest.raises(InputError, match="extra_weights_gib must be >= 0"):
        deployment_facts({**plain, "extra_weights_gib": -1}, gpu, engine, "here")
