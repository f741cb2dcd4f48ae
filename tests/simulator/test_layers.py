"""Layers by kind, as read from config.json terms: sizes counted by hand, rules of layers at their boundaries.

tools/models.yaml has the terms of public models, from general knowledge of the published files.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from deployed import facts_of_terms
from model_table import PublicModel, layers_in_words, listed, row
from paths import ROOT
from public_configs import DEEPSEEK_V3, GPT_OSS_20B, LLAMA_4_SCOUT_FP8

from simulator.common.errors import InputError
from simulator.model.architecture import Architecture, architecture
from simulator.model.layers import Attention, Latent, Matrix, Recurrent
from simulator.serving.engine import Engine

BASE = yaml.safe_load("""{num_hidden_layers: 12, hidden_size: 1024, num_attention_heads: 16, num_key_value_heads: 4,
    vocab_size: 1000, intermediate_size: 2048, max_position_embeddings: 8192}""")
PUBLIC = {model.ident.split("/")[1]: model for model in listed() if model.config}


def read(terms: str = "", **more: Any) -> Architecture:
    """The architecture of the small model above with other terms, in YAML or by name."""
    return architecture({**BASE, **yaml.safe_load(f"{{{terms}}}"), **more}, "test")


def public(name: str) -> Architecture:
    config = PUBLIC[name].config
    assert config is not None
    return architecture(config, name)


def weights(matrices: tuple[Matrix, ...]) -> int:
    return sum(one.n * one.k for one in matrices)


@pytest.mark.parametrize("model", PUBLIC.values(), ids=PUBLIC)
def test_parameters_of_public_models_are_those_of_their_cards(model: PublicModel) -> None:
    assert model.config is not None
    f = facts_of_terms(model.config, "H100", Engine(total_kv_blocks=1000))
    assert f["model_params_b"] == pytest.approx(model.billions, rel=0.03) or model.why


# active parameters in billions of the cards; ours have both tables of embeddings
ACTIVE = """Qwen3-Next-80B-A3B-Instruct 3.9, DeepSeek-V2 21, MiniMax-Text-01 45.9, LongCat-Flash-Chat 27,
    ERNIE-4.5-300B-A47B-PT 47, Hunyuan-A13B-Instruct 13, Jamba-v0.1 12, AI21-Jamba-1.5-Large 94, granite-4.0-h-small 9,
    LFM2-8B-A1B 1.5, Kimi-Linear-48B-A3B-Instruct 3.5, dots.llm1.inst 14"""


@pytest.mark.parametrize("card", ACTIVE.split(","))
def test_active_parameters_are_those_of_the_cards(card: str) -> None:
    name, billions = card.split()
    f = facts_of_terms(PUBLIC[name].config or {}, "H100", Engine(total_kv_blocks=1000))
    assert f["active_params_b"] == pytest.approx(float(billions), rel=0.06)


def test_layers_that_see_everything_come_first() -> None:
    full, windowed = architecture(GPT_OSS_20B, "test").attention
    assert full == Attention(12, 64, 8, 64, 64) and windowed == Attention(12, 64, 8, 64, 64, window=128)
    assert read("sliding_window: 512").main.window == 512  # all have one
    kinds = ["chunked_attention", "sliding_attention", "full_attention"] * 4
    a = read("sliding_window: 512, attention_chunk_size: 2048", layer_types=kinds)
    assert [(of.window, of.chunked) for of in a.attention] == [(0, False), (2048, True), (512, False)]


def test_chunks_where_a_layer_has_positions() -> None:
    full, chunked = architecture(LLAMA_4_SCOUT_FP8, "test").attention
    assert (full.layers, chunked.layers, chunked.window, chunked.chunked) == (12, 36, 8192, True)
    assert read("attention_chunk_size: 64", no_rope_layers=[1, 0] * 6).main.layers == 6
    assert read("no_rope_layers: [1, 0]").attention == read().attention  # SmolLM3: positions alone


@pytest.mark.parametrize(
    ("terms", "windowed"),
    [
        ("model_type: mistral", range(12)),
        ("model_type: gemma2", range(0, 12, 2)),
        ("model_type: gemma3_text", [i for i in range(12) if i % 6 != 5]),
        ("model_type: cohere2", [i for i in range(12) if i % 4 != 3]),
        ("model_type: cohere2, sliding_window_pattern: 3", [i for i in range(12) if i % 3 != 2]),
        ("model_type: gemma3_text, _sliding_window_pattern: 2", range(0, 12, 2)),
        ("sliding_window_pattern: 1", ()),
        ("sliding_window_pattern: LLLG", [i for i in range(12) if i % 4 != 3]),
        ("global_attn_every_n_layers: 4", [i for i in range(12) if i % 4 != 3]),
        ("model_type: qwen2, use_sliding_window: true, max_window_layers: 8", range(8, 12)),
        ("model_type: qwen2, use_sliding_window: true, max_window_layers: 12", ()),
        ("use_sliding_window: false", ()),
        (f"use_sliding_window: false, layer_types: {['sliding_attention'] * 12}", ()),
        ("sliding_window: null", ()),
        (f"layer_types: {['full_attention'] * 12}", ()),
        (f"layer_types: {['full_attention', 'sliding_attention', 'sliding_attention'] * 4}", range(8)),
        (f"hybrid_layer_pattern: {[0, 1, 1] * 4}", range(8)),
    ],
)
def test_layers_with_a_window(terms: str, windowed: range) -> None:
    a = read(f"sliding_window: 1024, hidden_act: silu, head_dim: 64, {terms}", num_attention_heads=16)
    assert sum(of.layers for of in a.attention if of.window == 1024) == len(windowed)
    assert sum(of.layers for of in a.attention) == 12 and all(of.window in (0, 1024) for of in a.attention)


def test_layers_with_a_window_have_heads_of_their_own() -> None:
    mimo = read(
        "head_dim: 192, v_head_dim: 128, sliding_window: 128, swa_num_attention_heads: 16, swa_num_key_value_heads: 8, "
        "swa_head_dim: 192, swa_v_head_dim: 128",
        hybrid_layer_pattern=[0, 1, 1, 1] * 3,
    )
    assert mimo.attention == (Attention(3, 16, 4, 192, 128), Attention(9, 16, 8, 192, 128, window=128))
    assert mimo.main.matrices(1024) == (
        Matrix("QKV projection", 16 * 192 + 4 * (192 + 128), 1024),
        Matrix("attention output", 1024, 16 * 128, "columns"),
    )
    kinds = ["full_attention", "sliding_attention"] * 6
    other = {"num_attention_heads": 24, "num_attention_groups": 8, "head_dim": 64}
    step = read("sliding_window: 512", layer_types=kinds, attention_other_setting=other)
    assert step.attention == (Attention(6, 16, 4, 64, 64), Attention(6, 24, 8, 64, 64, window=512))
    gemma = "sliding_window: 512, head_dim: 64, global_head_dim: 128, num_global_key_value_heads: 2"
    assert read(f"{gemma}, attention_k_eq_v: true", layer_types=kinds).main == Attention(6, 16, 2, 128, 128)
    assert read(gemma, layer_types=kinds).main == Attention(6, 16, 4, 128, 128)


def test_latent_attention() -> None:
    """DeepSeek-V3: 187 million parameters a layer, 576 scalars of a token on every GPU."""
    a = architecture(DEEPSEEK_V3, "test")
    assert a.attention == (Attention(61, 128, 128, 192, 128, latent=Latent(512, 64, 128, 128, 1536)),)
    query, latent = 7168 * 1536 + 1536 * 128 * 192, 7168 * 576 + 512 * 128 * 256
    assert weights(a.main.matrices(7168)) == query + latent + 128 * 128 * 7168 == 187_105_280
    assert a.main.cached(8) == 576
    lite = public("DeepSeek-V2-Lite").main  # without a compressed query
    assert weights(lite.matrices(2048)) == 2048 * 16 * 192 + 2048 * 576 + 512 * 16 * 256 + 16 * 128 * 2048
    assert read("model_type: deepseek_v2").main.latent == Latent(512, 64, 128, 128, 1536)  # of its class


def test_sparse_attention_and_layers_that_share_an_indexer() -> None:
    """The indexer of DeepSeek-V3.2: 64 heads of 128 from the query's 1536, a key and 64 weights from 7168."""
    terms = {**DEEPSEEK_V3, "index_topk": 2048, "index_n_heads": 64, "index_head_dim": 128}
    a = architecture(terms, "test")
    more = weights(a.main.matrices(7168)) - 187_105_280
    assert more == 1536 * 64 * 128 + 7168 * 128 + 7168 * 64 and a.main.cached(1) == 576 + 128
    own, shared = architecture({**terms, "indexer_types": ["full"] * 21 + ["shared"] * 40}, "test").attention
    assert (own.layers, shared.layers) == (21, 40) and own.latent and shared.latent
    assert (own.latent.topk, shared.latent.topk, shared.latent.index_heads) == (2048, 2048, 0)
    assert weights(shared.matrices(7168)) == 187_105_280 and shared.cached(1) == 576


def test_gates_are_as_wide_as_the_output() -> None:
    plain, gated = read(), read("attn_output_gate: true")
    assert gated.main.gated and weights(gated.main.matrices(1024)) - weights(plain.main.matrices(1024)) == 1024 * 1024
    assert read("model_type: qwen3_next").main.gated and read("model_type: afmoe").main.gated
    assert not read("model_type: qwen3_5_text, attn_output_gate: false").main.gated
    latent = "kv_lora_rank: 64, qk_nope_head_dim: 32, qk_rope_head_dim: 16, v_head_dim: 32"
    more = weights(read(f"{latent}, mla_use_output_gate: true").main.matrices(1024))
    assert more - weights(read(latent).main.matrices(1024)) == 1024 * 16 * 32


# kind, layers, key and value heads, their widths, convolution, inputs, outputs, others; counted from the models' classes
RECURRENT = {
    # q, k 16 * 128 each, v and gate 32 * 128 each, two scalars a value head
    "Qwen3-Next-80B-A3B-Instruct": ("gdn", 36, 16, 32, 128, 128, 4, 4096 + 8192 + 64, 4096, 4 * 8192),
    # q, k, v 32 * 128 each, 32 scalars, two narrow layers of 128 that widen to 4096
    "Kimi-Linear-48B-A3B-Instruct": (
        *("kda", 20, 32, 32, 128, 128, 4),
        *(3 * 4096 + 32 + 2 * 128, 4096, 2 * 128 * 4096 + 4 * 3 * 4096),
    ),
    # gate and inner 128 * 80 each, keys and queries of 8 groups of 128 each, 128 steps
    "NVIDIA-Nemotron-Nano-9B-v2": (
        *("mamba2", 27, 8, 128, 128, 80, 4),
        *(2 * 10240 + 2 * 1024 + 128, 10240, 4 * (10240 + 2 * 1024)),
    ),
    "granite-4.0-h-small": ("mamba2", 36, 1, 128, 128, 64, 4, 2 * 8192 + 256 + 128, 8192, 4 * (8192 + 256)),
    "Falcon-H1-7B-Base": ("mamba2", 44, 1, 24, 256, 128, 4, 2 * 3072 + 512 + 24, 3072, 4 * (3072 + 512)),
    # steps of rank 256 in and out, 16 keys and queries, decay, convolution
    "Jamba-v0.1": ("mamba", 28, 0, 8192, 16, 1, 4, 16384, 8192, 8192 * (2 * 256 + 2 * 16 + 16 + 4)),
    "MiniMax-Text-01": ("lightning", 70, 64, 64, 128, 128, 0, 4 * 8192, 8192, 0),
    "LFM2-1.2B": ("conv", 10, 0, 1, 0, 2048, 3, 6144, 2048, 3 * 2048),
    # two gates in 10 blocks of 256 x 256
    "recurrentgemma-2b": ("rglru", 18, 0, 1, 1, 2560, 4, 5120, 2560, 4 * 2560 + 2 * 10 * 256 * 256),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers_by_hand(name: str) -> None:
    assert public(name).recurrent == (Recurrent(*RECURRENT[name]),)


# scalars of a request in a layer: recurrent state, last tokens of the convolution; as vLLM's shapes have them
STATES = """Qwen3-Next-80B-A3B-Instruct 32*128*128 3*(2*16*128+32*128), Kimi-Linear-48B-A3B-Instruct 32*128*128 3*3*4096,
    NVIDIA-Nemotron-Nano-9B-v2 128*80*128 3*(10240+2*8*128), Jamba-v0.1 8192*16 3*8192, MiniMax-Text-01 64*128*128 0,
    LFM2-1.2B 0 2*2048, recurrentgemma-2b 2560 3*2560"""


@pytest.mark.parametrize("line", STATES.split(","))
def test_states_have_the_engines_shapes(line: str) -> None:
    name, state, window = line.split()
    (of,) = public(name).recurrent
    assert (of.state, of.window) == (eval(state), eval(window))


def test_hybrids_have_attention_where_their_class_has_it() -> None:
    assert public("Falcon-H1-7B-Base").main.layers == public("Falcon-H1-7B-Base").layers == 44  # in every layer, both
    jamba = public("Jamba-v0.1")
    assert (jamba.main.layers, jamba.dense_layers, jamba.moe_layers) == (4, 16, 16)
    nano = public("NVIDIA-Nemotron-Nano-9B-v2")  # a layer is attention, state space or feed-forward
    assert (nano.layers, nano.main.layers, nano.dense_layers, nano.mlp_matrices) == (56, 4, 25, 2)
    assert public("recurrentgemma-2b").attention == (Attention(8, 10, 1, 256, 256, window=2048),)
    assert public("recurrentgemma-2b").ffn == 7680
    assert read("full_attention_interval: 5").main.layers == 2  # layers 5 and 10
    assert read("full_attn_idxs: [0, 11]").main.layers == read("attn_layer_indices: [3, 4], mamba_n_heads: 32, "
        "ssm_state_size: 16").main.layers == 2  # fmt: skip


def test_a_pattern_gives_the_number_of_layers() -> None:
    terms = {key: value for key, value in BASE.items() if key != "num_hidden_layers"}
    terms |= {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_latent_size": 256, "n_shared_experts": 1}
    terms |= {"moe_shared_expert_intermediate_size": 512, "mlp_hidden_act": "relu2", "moe_intermediate_size": 128}
    terms |= {"mamba_num_heads": 32, "mamba_head_dim": 64, "ssm_state_size": 16, "n_groups": 2}
    for key, kinds in (
        ("layers_block_type", ["mamba", "moe", "attention", "moe"]),
        ("hybrid_override_pattern", "ME*E"),
    ):
        a = architecture({**terms, key: kinds}, "test")
        assert (a.layers, a.main.layers, a.recurrent[0].layers, a.moe_layers, a.dense_layers) == (4, 1, 1, 2, 0)
        assert (a.expert_hidden, a.shared_ffn, a.mlp_matrices) == (256, 512, 2)
    f = facts_of_terms({**terms, "hybrid_override_pattern": "ME*E"}, "H100", Engine(total_kv_blocks=100))
    attention, mamba = 1024 * (1024 + 2 * 256) + 1024 * 1024, 1024 * (2 * 2048 + 64 + 32) + 2048 * 1024
    assert attention + mamba + 4 * (2048 + 64) == a.mixing_parameters
    experts = 2 * (8 * 2 * 256 * 128 + 2 * 1024 * 512 + 2 * 1024 * 256)  # routed, shared, into and out of the latent
    assert f["model_params_b"] * 1e9 == pytest.approx(a.mixing_parameters + experts + 2 * 1000 * 1024)


def test_a_layer_of_longcat_has_two_attentions_and_two_mlps() -> None:
    a = public("LongCat-Flash-Chat")
    assert (a.layers, a.main.layers, a.dense_layers, a.moe_layers) == (28, 56, 56, 28)
    assert a.active == 8  # of 12 choices among 512 experts and 256 that do nothing


@pytest.mark.parametrize(
    ("terms", "moe_layers"),
    [
        (f"mlp_layer_types: {['dense'] * 3 + ['sparse'] * 9}", 9),
        ("moe_layers_enum: '4,5,6,11'", 4),
        (f"is_moe_layer: {[False] + [True] * 11}", 11),
        ("expert_layer_period: 2, expert_layer_offset: 1", 6),
        ("num_dense_layers: 2", 10),
        ("moe_layer_num_skipped: 1", 11),
        ("moe_layer_start_index: 2, moe_layer_end_index: 9, moe_layer_interval: 2", 4),  # layers 3, 5, 7, 9
        ("moe_layer_start_index: 3", 9),
    ],
)
def test_layers_with_experts(terms: str, moe_layers: int) -> None:
    a = read(f"num_experts: 8, moe_topk: [2, 2], moe_intermediate_size: [256, 256], {terms}")
    assert (a.moe_layers, a.dense_layers, a.active, a.moe_ffn) == (moe_layers, 12 - moe_layers, 2, 256)


def test_widths_of_shared_experts_and_dense_layers() -> None:
    moe = "num_experts: 8, num_experts_per_tok: 2, moe_intermediate_size: 256"
    assert read(f"{moe}, enable_moe_block: true").shared_ffn == 2048  # Gemma 4: a dense MLP beside the experts
    assert read(f"{moe}, moe_shared_expert_intermediate_size: 512, num_shared_experts: 2").shared_ffn == 1024
    assert read(f"{moe}, dense_intermediate_size: 4096, first_k_dense_replace: 2").ffn == 4096
    assert read("model_type: granitemoehybrid, num_local_experts: 0, shared_intermediate_size: 512").ffn == 512
    assert public("LFM2-1.2B").ffn == 8192  # two thirds of 12288


def test_the_text_part_of_a_multimodal_config_is_read() -> None:
    for wrapped in (
        {"text_config": BASE},
        {"llm_config": BASE},
        {"language_config": BASE},
        {"thinker_config": {"text_config": BASE, "audio_config": {"d_model": 64}}},
    ):
        assert architecture({"model_type": "wrapper", **wrapped}, "test") == read()


@pytest.mark.parametrize(
    ("terms", "problem"),
    [
        ("mamba_d_state: 16", "mamba_d_state is of recurrent layers, and no key says which layers these are"),
        (f"layer_types: {['linear_attention'] * 12}", "layer_types leaves no layer with attention"),
        ("attn_type_list: [0, 1]", "attn_type_list must say 0 or 1 of 12 layers"),
        ("no_rope_layers: all, attention_chunk_size: 64", "no_rope_layers must be a list of whole numbers"),
        ("linear_attn_config: 5", "linear_attn_config must be a mapping"),
        ("attn_layer_indices: [0], mamba_n_heads: 8", "ssm_state_size is missing"),
        ("moe_layers_enum: '1,x', num_experts: 4, num_experts_per_tok: 1", "moe_layers_enum must be a list of whole"),
        (
            "sliding_window: 64, swa_num_key_value_heads: 5",
            "num_attention_heads has 16 heads in layers with attention in",
        ),
        ("head_dim: [64, 32]", "head_dim gives layers different sizes"),
    ],
)
def test_a_malformed_layer_is_refused_in_one_line(terms: str, problem: str) -> None:
    with pytest.raises(InputError, match=r"^[^\n]*: [^\n]*$") as caught:
        read(terms)
    assert str(caught.value).startswith(f"test: model_config.{problem}")


def test_layers_in_words() -> None:
    assert layers_in_words(architecture(GPT_OSS_20B, "test")) == (
        "12 attention (64/8 heads of 64), 12 windows of 128 (64/8 heads of 64); 24 with 4 of 32 experts"
    )


def test_the_page_of_models_has_these_layers() -> None:
    """`python tools/model_table.py ARCHIVE ...` writes it again."""
    page = (ROOT / "docs" / "models.md").read_text().splitlines()
    assert [row(model, model.config) for model in PUBLIC.values() if model.config] == [
        line for line in page if any(line.startswith(f"| {model.ident} |") for model in PUBLIC.values())
    ]
