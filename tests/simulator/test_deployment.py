"""The static `s.` fields against hand computations from public config numbers, written out as arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from deployed import facts_of_terms

from simulator.common.errors import InputError
from simulator.model.architecture import architecture
from simulator.schema import HOST
from simulator.serving.engine import Engine
from simulator.serving.gpu import hardware_table
from simulator.serving.model import model_table

H100 = {"bf16_tflops": 989.5, "fp8_tflops": 1979.0, "memory_tb_per_s": 3.35, "link_gb_per_s": 450.0}
H100 |= {"usable_gib": 79.11}
FLOPS, FP8_FLOPS, BYTES, LINK = 989.5e6, 1979.0e6, 3.35e6, 450e3  # per us


def facts(name: str, engine: Engine, **config: Any) -> dict[str, float]:
    entry = model_table()[name]
    terms = {**entry["config"], "generation_config": entry["generation_config"], **config}
    return facts_of_terms(terms, H100, engine, "test")


# Llama-2-70B: 80 layers of width 8192, 64 heads of 128 with 8 KV heads, FFN 28672 (q and o 8192x8192 each, k and v
# 8192x1024 each, three FFN matrices: 68,451,041,280 layer parameters; lm_head 262,144,000).
# Mixtral-8x7B: 32 layers of width 4096, 32 heads of 128 with 8 KV heads, 8 experts of 14336, 2 active (attention
# 4096*4096*2 + 2*4096*1024 = 41,943,040 a layer, an expert 3*4096*14336 = 176,160,768; lm_head 131,072,000).
# Llama-4-Scout: 48 layers of width 5120, all MoE, 16 routed experts of 8192 (1 active) and a shared one; fp8 (attention
# 5120*5120*2 + 2*5120*1024 = 62,914,560 a layer in bf16, an expert 3*5120*8192 = 125,829,120). Its KV cache stays
# 16 bit.
# The all-reduces are two a layer, a ring 2*(tp-1)/tp.
BY_HAND = """
tp dp ep pp gpus | 4 1 1 1 4 | 2 1 1 1 2 | 2 1 1 1 2
tp_log2 is_moe is_fp8 | 2 0 0 | 1 1 0 | 1 1 1
is_4bit is_widened is_blackwell is_spread | 0 0 0 0 | 0 0 0 0 | 0 0 0 0
layers dense_layers moe_layers hidden | 80 80 0 8192 | 32 0 32 4096 | 48 0 48 5120
heads kv_heads kv_heads_per_gpu head_dim window | 64 8 2 128 0 | 32 8 4 128 0 | 40 8 4 128 0
ffn moe_ffn vocab experts active_experts | 28672 0 32000 0 0 | 14336 14336 32000 8 2 | 16384 8192 202048 16 1
sampling_sort repetition_penalty kv_blocks kv_cpu_offload | 1 0 31356 1 | 0 0 20000 0 | 1 0 13000 0
max_num_seqs max_num_batched_tokens max_model_len block_size | 128 2048 4096 16 | 128 2048 32768 16 | 128 2048 4096 16
cudagraph_capture_max graph_decode graph_mixed graph_piecewise | 2*128 1 1 0 | 2*128 1 1 0 | 2*128 1 1 0
async_scheduling stream_interval allreduce_rms_fusion | 1 1 0 | 1 1 0 | 1 1 0
draft_tokens | 0 | 0 | 0
schedule_us issue_us | 0 2500 | 0 2500 | 0 2500
flops_per_us bytes_per_us link_bytes_per_us | FLOPS BYTES LINK | FLOPS BYTES LINK | FP8_FLOPS BYTES LINK
model_params_b | (80*(2*67108864+2*8388608+3*234881024)+2*262144000)/1e9 | (32*(41943040+8*176160768)+2*131072000)/1e9 | (48*(62914560+17*125829120)+2*1034485760)/1e9
active_params_b | 68.97532928 | (32*(41943040+2*176160768)+2*131072000)/1e9 | (48*(62914560+2*125829120)+2*1034485760)/1e9
kv_bytes_per_token | 2*80*2*128*2 | 2*32*4*128*2 | 2*48*4*128*2
shared_weights_us | (68451041280*2/4+262144000*2/4)/BYTES | (32*41943040*2/2+131072000*2/2)/BYTES | (48*(2*62914560+125829120)/2+1034485760*2/2)/BYTES
experts_us | 0 | 32*8*176160768*2/2/BYTES | 48*16*125829120/2/BYTES
weights_us | 34356592640/BYTES | (1342177280+131072000+45097156608)/BYTES | (6039797760+1034485760+48318382080)/BYTES
kv_us_per_token | 81920/BYTES | 65536/BYTES | 98304/BYTES
gemm_us_per_token | 2*68451041280/4/FLOPS | 2*(1342177280+11274289152)/2/FLOPS | 2*48*(62914560+2*125829120)/2/FP8_FLOPS
attention_us_per_pair | 4*16*128*80/FLOPS | 4*16*128*32/FLOPS | 4*20*128*48/FP8_FLOPS
logits_us_per_row | 2*8192*32000/4/FLOPS+32000*4*2/BYTES | 4096*32000/FLOPS+256000/BYTES | 5120*202048/FP8_FLOPS+202048*8/BYTES
allreduce_us_per_token | 160*16384*2*0.75/LINK | 64*8192*2*0.5/LINK | 96*10240*2*0.5/LINK
"""
ENGINES = {
    "llama-2-70b": Engine(tensor_parallel=4, total_kv_blocks=31356, kv_cpu_offload=True),
    "mixtral-8x7b": Engine(tensor_parallel=2, total_kv_blocks=20000),
    "llama-4-scout": Engine(tensor_parallel=2, total_kv_blocks=13000, max_model_len=4096),
}


@pytest.mark.parametrize(("column", "name"), list(enumerate(ENGINES, 1)))
def test_every_field_equals_the_hand_computation(column: int, name: str) -> None:
    cells = [[cell.split() for cell in line.split(" | ")] for line in BY_HAND.strip().splitlines()]
    expected = {field: eval(x) for line in cells for field, x in zip(line[0], line[column], strict=True)}
    own = {field: value for field, value in facts(name, ENGINES[name]).items() if ("s", field) not in HOST}
    assert own == pytest.approx(expected, rel=1e-14)  # for those of the host's form see test_host_form.py


CARDS = """llama-2-7b 6.74, codellama-34b 33.7, qwen3-14b 14.8, llama-3.1-8b 8.03, mistral-nemo-12b 12.2, qwen2.5-7b 7.62,
    yi-34b 34.4, llama-3.1-70b 70.6, mixtral-8x22b 141.0, llama-4-scout 109.0"""


@pytest.mark.parametrize("card", CARDS.split(","))
def test_parameter_counts_agree_with_the_model_cards(card: str) -> None:
    name, billions = card.split()
    counted = facts(name, Engine(tensor_parallel=4))["model_params_b"]
    assert counted == pytest.approx(float(billions), rel=0.02)  # Scout's card counts the vision tower too


@pytest.mark.parametrize(("name", "tp", "known"), [("llama-2-70b", 4, 31356), ("codellama-34b", 2, 26602)])
def test_computed_kv_blocks_match_the_engines_own(name: str, tp: int, known: int) -> None:
    assert facts(name, Engine(tensor_parallel=tp))["kv_blocks"] == pytest.approx(known, rel=0.002)


def test_tied_embeddings_count_once() -> None:
    f = facts("llama-2-7b", Engine(), tie_word_embeddings=True)
    assert f["model_params_b"] == pytest.approx((6_738_149_376 - 32000 * 4096) / 1e9, rel=1e-14)


def test_kv_blocks_by_hand() -> None:
    # Llama-2-7B on one H100: (0.9*79.11 - 0.8) GiB less 2 * 6,738,149,376 bytes, 8 MiB blocks, one null
    room = (0.9 * 79.11 - 0.8) * 1024**3 - 2 * 6_738_149_376
    assert facts("llama-2-7b", Engine())["kv_blocks"] == room // (8 * 1024**2) - 1


def test_kv_blocks_of_a_rank_by_hand() -> None:
    """Mixtral on 4 H100: a GPU holds a quarter of the experts however they are shared, and its rank's share of the rest."""
    rest, experts = 32 * 41_943_040 + 2 * 131_072_000, 32 * 8 * 176_160_768
    room = (0.9 * 79.11 - 0.8) * 1024**3
    for tp, dp, ep in ((4, 1, 1), (4, 1, 4), (2, 2, 1), (2, 2, 4), (1, 4, 1), (1, 4, 4)):
        f = facts("mixtral-8x7b", Engine(tensor_parallel=tp, data_parallel=dp, expert_parallel=ep))
        block = 16 * 2 * 32 * 8 // tp * 128 * 2
        assert f["kv_blocks"] == (room - 2 * rest / tp - 2 * experts / 4) // block - 1
        assert f["experts_us"] == pytest.approx(2 * experts / 4 / BYTES)
        assert [f[name] for name in ("tp", "dp", "ep", "pp", "gpus")] == [tp, dp, ep, 1, 4]
    staged = facts("mixtral-8x7b", Engine(tensor_parallel=2, pipeline_parallel=2))  # half of the layers each
    block = 16 * 2 * 16 * 4 * 128 * 2
    assert staged["kv_blocks"] == (room - (2 * rest + 2 * experts) / 4) // block - 1
    dense = facts("llama-2-7b", Engine(data_parallel=4))  # each rank is a replica
    assert dense["kv_blocks"] == facts("llama-2-7b", Engine())["kv_blocks"]


@pytest.mark.parametrize(
    ("model", "engine", "problem"),
    [
        ("mixtral-8x7b", Engine(tensor_parallel=2, data_parallel=2, expert_parallel=2), "must be 1 or .* 4, got 2"),
        ("llama-2-7b", Engine(data_parallel=2, expert_parallel=2), "is 2, and the model has no routed experts"),
        ("llama-2-7b", Engine(pipeline_parallel=33), "is 33, and the model has 32 layers"),
        ("llama-2-7b", Engine(expert_routing="balanced"), "is balanced, and the model has no routed experts"),
        ("minimax-m2.5", Engine(tensor_parallel=8), "experts 1536 wide in blocks of 128 weights among 8 GPUs"),
    ],
)
def test_degrees_that_no_engine_has_are_refused(model: str, engine: Engine, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        facts(model, engine)


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
        ({"quantization_config": {"quant_method": "fp8"}}, 1.0),
        ({"quantization_config": compressed | float8}, 1.0),
        ({"quantization_config": compressed | int4}, 0.5),
        ({"_name_or_path": "someone/Llama-w4a16"}, 2.0),  # a name decides nothing
        ({"_name_or_path": "someone/Llama-FP8-dynamic"}, 2.0),
        (
            {"quantization_config": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}},
            4.5 / 8,
        ),  # 8 bits for 16 weights
    ):
        assert layer_bytes(**config) == pytest.approx(whole * size, rel=1e-12), config


def test_fp8_uses_the_fp8_peak_where_there_is_one() -> None:
    config = {**model_table()["llama-2-7b"]["config"], "quantization": "fp8"}
    for name, peak in {"H100": 1979.0e6, "A100 80GB": 312.0e6, "L40S": 733.0e6}.items():
        f = facts_of_terms(config, hardware_table()[name], Engine(), "test")
        assert (f["is_fp8"], f["flops_per_us"]) == (1, peak)


BASE = {"num_hidden_layers": 4, "hidden_size": 1024, "num_attention_heads": 16, "vocab_size": 1000}
BASE |= {"intermediate_size": 2048, "max_position_embeddings": 512}
QWEN2 = "num_experts: 60, moe_intermediate_size: 128, shared_expert_intermediate_size: 512, decoder_sparse_step: 2"
LLAMA4 = "model_type: llama4_text, num_local_experts: 16, interleave_moe_layer_step: 3, intermediate_size_mlp: 4096"
DEEPSEEK = "n_routed_experts: 64, moe_intermediate_size: 128"


@pytest.mark.parametrize(
    ("extra", "moe_layers", "experts", "moe_ffn", "shared_ffn"),
    [
        ("", 0, 0, 0, 0),
        ("num_local_experts: 1", 0, 0, 0, 0),
        ("num_local_experts: 8", 4, 8, 2048, 0),
        (f"{QWEN2}, mlp_only_layers: [3]", 1, 60, 128, 512),
        (f"{DEEPSEEK}, n_shared_experts: 2, first_k_dense_replace: 1", 3, 64, 128, 256),
        (f"{DEEPSEEK}, first_k_dense_replace: 0, moe_layer_freq: 2", 2, 64, 128, 0),
        (f"{DEEPSEEK}, moe_layer_freq: 2", 2, 64, 128, 0),
        (f"{DEEPSEEK}, moe_layer_freq: [0, 1, 0, 1]", 2, 64, 128, 0),
        (f"{DEEPSEEK}, first_k_dense_replace: 1, moe_layer_freq: [0, 1, 1, 1]", 3, 64, 128, 0),
        (LLAMA4, 1, 16, 2048, 2048),  # interleaved
    ],
)
def test_mixture_keys(extra: str, moe_layers: int, experts: int, moe_ffn: int, shared_ffn: int) -> None:
    terms = yaml.safe_load(f"{{{extra}}}")
    a = architecture({**BASE, "num_experts_per_tok": 1, **terms}, "test")
    assert (a.moe_layers, a.experts, a.moe_ffn, a.shared_ffn) == (moe_layers, experts, moe_ffn, shared_ffn)
    assert a.ffn == terms.get("intermediate_size_mlp", 2048)


def test_experts_per_token_are_read_by_every_name_and_all_are_named_where_none_is_there() -> None:
    config = BASE | yaml.safe_load(f"{{{DEEPSEEK}}}")
    assert architecture(config | {"top_k_experts": 8}, "test").active == 8
    with pytest.raises(InputError, match=r"num_experts_per_tok is missing.*top_k_experts"):
        architecture(config, "test")


def test_room_that_the_engine_may_not_use_is_blamed_on_its_share() -> None:
    with pytest.raises(InputError, match=r"engine\.gpu_memory_utilization leaves no room"):
        facts_of_terms(BASE, H100, Engine(gpu_memory_utilization=0.001), "test")


def test_dbrx_keys_and_text_config() -> None:
    dbrx = yaml.safe_load("""{d_model: 6144, n_layers: 40, n_heads: 48, vocab_size: 100352, max_seq_len: 32768,
        attn_config: {kv_n_heads: 8}, ffn_config: {ffn_hidden_size: 10752, moe_num_experts: 16, moe_top_k: 4}}""")
    a = architecture(dbrx, "test")
    assert (a.hidden, a.layers, a.kv_heads, a.experts, a.active, a.longest) == (6144, 40, 8, 16, 4, 32768)
    assert (a.moe_ffn, a.head_dim, a.moe_layers) == (10752, 128, 40)
    assert architecture({**BASE, "text_config": {"hidden_size": 2048}}, "test").hidden == 2048


def test_latent_attention_caches_one_vector_and_is_not_split() -> None:
    config = {**BASE, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    for tp in (1, 4):
        f = facts_of_terms(config, H100, Engine(tensor_parallel=tp), "test")
        assert f["kv_bytes_per_token"] == 4 * (512 + 64) * 2


def test_few_kv_heads_are_replicated() -> None:
    f = facts_of_terms({**BASE, "num_key_value_heads": 2}, H100, Engine(tensor_parallel=8), "test")
    assert f["kv_heads_per_gpu"] == 1
    assert f["kv_bytes_per_token"] == 2 * 4 * 1 * 64 * 2


@pytest.mark.parametrize(
    ("generation", "fields"),
    [
        ("null", (0, 0)),
        ("{}", (0, 0)),
        ("{top_p: 1.0, top_k: 0, repetition_penalty: 1.0}", (0, 0)),
        ("{temperature: 0.6, top_k: null}", (0, 0)),
        ("{top_p: 0.9}", (1, 0)),
        ("{top_k: 20}", (1, 0)),
        ("{repetition_penalty: 1.05}", (0, 1)),
    ],
)
def test_sampling_fields(generation: str, fields: tuple[int, int]) -> None:
    f = facts_of_terms({**BASE, "generation_config": yaml.safe_load(generation)}, H100, Engine(), "test")
    assert (f["sampling_sort"], f["repetition_penalty"]) == fields


@pytest.mark.parametrize(
    ("config", "tp", "problem"),
    [
        ("hidden_size: null", 1, "model_config.hidden_size must be a whole number, got null"),
        ("vocab_size: 900000000", 1, "engine.tensor_parallel leaves no room for KV cache"),
        ("num_attention_heads: 16", 3, "engine.tensor_parallel must divide the model's 16 attention heads"),
        ("num_attention_heads: 12, head_dim: 64, num_key_value_heads: 6", 4, "engine.tensor_parallel must divide"),
        ("num_key_value_heads: 6", 1, "model_config.num_key_value_heads must divide the 16 heads, got 6"),
        (f"{DEEPSEEK}, moe_layer_freq: [0, 1, 1]", 1, "model_config.moe_layer_freq does not say 0 or 1 of layer 3"),
        (f"{DEEPSEEK}, moe_layer_freq: [0, 1, 1, 2]", 1, "model_config.moe_layer_freq does not say 0 or 1 of layer 3"),
        (DEEPSEEK, 1, "model_config.num_experts_per_tok is missing"),
        ("layer_types: [full_attention]", 1, "model_config.layer_types names 1 layers of 4"),
        ("quantization: marlin", 1, "model_config.quantization is not understood, got 'marlin'"),
        ("max_position_embeddings: null", 1, "engine.max_model_len is missing"),
        ("num_local_experts: 8", 1, "model_config.num_experts_per_tok is missing"),
        (
            "mlp_only_layers: 3, num_experts: 8, num_experts_per_tok: 2",
            1,
            "model_config.mlp_only_layers must be a list",
        ),
    ],
)
def test_impossible_deployments_are_one_line_errors(config: str, tp: int, problem: str) -> None:
    with pytest.raises(InputError, match=r"^[^\n]*: [^\n]*$") as caught:
        facts_of_terms({**BASE, **yaml.safe_load(f"{{{config}}}")}, H100, Engine(tensor_parallel=tp), "f.yaml")
    assert str(caught.value).startswith(f"f.yaml: {problem}")


def test_extra_weights_leave_fewer_blocks() -> None:
    """1.6 GiB over two GPUs, in blocks of 16 tokens x 98,304 bytes (2 x 48 layers x 4 KV heads x 128 x 2): 546.1."""
    entry = model_table()["llama-4-scout"]
    gpu, engine = hardware_table()["H100-SXM-80GB"], Engine(tensor_parallel=2)
    config = {**entry["config"], "_name_or_path": entry["id"]}
    less = facts_of_terms(config, gpu, engine, "here")["kv_blocks"]
    plain = {name: value for name, value in config.items() if name != "extra_weights_gib"}
    assert facts_of_terms(plain, gpu, engine, "here")["kv_blocks"] - less in (546, 547)
    with pytest.raises(InputError, match="extra_weights_gib must be >= 0"):
        facts_of_terms({**plain, "extra_weights_gib": -1}, gpu, engine, "here")
