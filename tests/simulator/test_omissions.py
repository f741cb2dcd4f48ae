"""Every key of a config.json is modelled, warned about, known to be without effect, or refused; nothing is silent.

Public models' terms and parameter counts are written from general knowledge of their published files and cards.
"""

from __future__ import annotations

import csv
import pickle
from typing import Any

import pytest
import yaml
from deployed import facts_of_terms
from paths import ROOT
from public_configs import DEEPSEEK_V3, GEMMA_2_9B, GPT_OSS_20B, MISTRAL_7B_V01, PUBLIC, QWEN_2_5_32B

from simulator.common.errors import InputError
from simulator.kernels.curves import kernels
from simulator.model.architecture import KEYS, architecture
from simulator.model.config_keys import JUDGED, VERDICTS, KeyVerdict
from simulator.schema import CURVES
from simulator.serving.bundled import bundled_experiments
from simulator.serving.engine import Engine
from simulator.serving.experiment import deploy
from simulator.serving.facts import Facts, curve_of, omitted
from simulator.serving.gpu import hardware_table
from simulator.serving.known import GPU, measured_deployments
from simulator.serving.model import model_table
from simulator.serving.spec import read_spec

H100 = hardware_table()["H100"]
DEFAULTS = Engine()
LLAMA = yaml.safe_load("""{model_type: llama, num_hidden_layers: 4, hidden_size: 1024, num_attention_heads: 16,
    vocab_size: 1000, intermediate_size: 2048, max_position_embeddings: 8192, torch_dtype: bfloat16}""")


def facts_of(config: dict[str, Any], engine: Engine = DEFAULTS) -> Facts:
    return facts_of_terms(config, "H100", engine)


def omissions_of(config: dict[str, Any], engine: Engine = DEFAULTS) -> str:
    return "; ".join(omitted(facts_of(config, engine)))


def test_no_static_field_and_no_curve_of_the_bundled_deployments_has_changed() -> None:
    """Recorded before config.json keys were judged, those of the host's form when they came (test_host_form has a second
    writing of it); to the last bit, but for sums of curves."""
    known = {d.name: d.facts for d in measured_deployments() if d.hardware == GPU}
    known |= {e.id: e.facts for e in bundled_experiments()}
    with (ROOT / "tests" / "golden" / "static_fields.csv").open(newline="") as file:
        recorded = {row.pop("deployment"): row for row in csv.DictReader(file)}
    assert set(recorded) == set(known)
    for name, row in recorded.items():
        values = {k: f"{v:.17g}" for k, v in known[name].items() if k not in ("dp", "ep", "pp", "gpus")}
        assert values == {k: row[k] for k in values}, name
        for curve in CURVES:
            assert curve_of(known[name], curve).sum() == pytest.approx(float(row[f"curve {curve}"]), rel=1e-6), name
        assert omitted(known[name]) == (), name


def test_a_key_is_judged_once_and_what_is_read_is_modelled() -> None:
    names = [name for key in JUDGED for name in key.names]
    assert len(names) == len(set(names))
    assert {VERDICTS[key] for keys in KEYS.values() for key in keys} == {KeyVerdict.MODELLED}
    for entry in model_table().values():
        assert {VERDICTS[key] for key in entry["config"]} <= {KeyVerdict.MODELLED, KeyVerdict.FREE}


# billions of parameters of the text model: all, a token's
CARDS = """gemma-2-9b 9.24 9.24, Qwen2.5-32B-Instruct 32.8 32.8, Mistral-7B-v0.1 7.24 7.24, DeepSeek-V3 671 37,
    gpt-oss-20b 20.9 3.6, gemma-3-4b-it 3.88 3.88, Llama-4-Scout-FP8 107.8 17"""


@pytest.mark.parametrize("card", CARDS.split(","))
def test_parameters_of_public_models_are_those_of_their_cards(card: str) -> None:
    name, everything, active = card.split()
    f = facts_of({**PUBLIC[name], "_name_or_path": name}, Engine(tensor_parallel=8, total_kv_blocks=10_000))
    assert f["model_params_b"] == pytest.approx(float(everything), rel=0.003)
    # cards leave out an embedding table, of gpt-oss both, or the approximation of DeepSeek's latent attention
    assert f["active_params_b"] == pytest.approx(float(active), rel=0.17)


EXPECTED = {
    "gemma-2-9b": ("sliding_window = 4096 in 21 of 42 layers", "attn_logit_softcapping", "final_logit_softcapping"),
    "Qwen2.5-32B-Instruct": (),  # use_sliding_window is false
    "Mistral-7B-v0.1": ("sliding_window = 4096 in 32 of 32 layers",),
    # query 7168*1536 + 1536*128*192, key-value 7168*576 + 512*128*256, output 128*128*7168; counted 4*7168*128*56
    "DeepSeek-V3": ("206 million parameters a layer instead of 187 million (over-", "num_nextn_predict_layers"),
    "gpt-oss-20b": ("sliding_window = 128 in 12 of 24 layers", "4-bit weights", "extra_weights_gib: 0.9"),
    "gemma-3-4b-it": ("sliding_window = 1024 in 29 of 34 layers", "vision encoders"),
    "Llama-4-Scout-FP8": ("attention_chunk_size = 8192 in 36 of 48", "extra_weights_gib: 2.8", "vision encoders"),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_what_is_left_out_of_public_models_is_said(name: str) -> None:
    texts = omitted(facts_of(PUBLIC[name], Engine(tensor_parallel=8, total_kv_blocks=10_000)))
    assert len(texts) == len(EXPECTED[name])
    assert all(part in text for part, text in zip(EXPECTED[name], texts, strict=True))


# the first key of a group: terms with an effect | without one
WITH = """
sliding_window: 512 | sliding_window: 512, use_sliding_window: false
kv_lora_rank: 64, qk_rope_head_dim: 16 | kv_lora_rank: null
index_topk: 2048 | index_topk: 8192
num_nextn_predict_layers: 1 | num_nextn_predict_layers: 0
attn_logit_softcapping: 50.0 | attn_logit_softcapping: null
final_logit_softcapping: 30.0 | final_logit_softcapping: null
vision_config: {hidden_size: 64} | vision_config: null
cross_attention_layers: [3] | cross_attention_layers: []
num_kv_shared_layers: 2 | num_kv_shared_layers: 0
use_parallel_residual: true | use_parallel_residual: false
"""


def terms_of(text: str) -> dict[str, Any]:
    terms: dict[str, Any] = yaml.safe_load(f"{{{text}}}")
    return terms


def test_a_key_warns_only_where_it_has_an_effect() -> None:
    pairs = [[terms_of(cell) for cell in line.split(" | ")] for line in WITH.strip().splitlines()]
    assert {next(iter(effect)) for effect, _ in pairs} == {
        key.names[0] for key in JUDGED if key.verdict is KeyVerdict.OMITTED
    }
    for effect, none in pairs:
        assert len(omitted(facts_of(LLAMA | effect))) == 1, effect
        assert omissions_of(LLAMA | none) == "", none


@pytest.mark.parametrize(
    ("terms", "layers"),
    [
        ("model_type: mistral", 12),
        ("model_type: gemma2", 6),
        ("model_type: gemma3_text", 10),
        ("model_type: cohere2, sliding_window_pattern: 4", 9),
        ("model_type: qwen2, use_sliding_window: true, max_window_layers: 8", 4),
        ("model_type: qwen2, use_sliding_window: true, max_window_layers: 12", 0),
        (f"layer_types: {['full_attention'] * 12}", 0),
        (f"layer_types: {['full_attention', 'sliding_attention', 'sliding_attention'] * 4}", 8),
    ],
)
def test_layers_with_a_window(terms: str, layers: int) -> None:
    windowed = LLAMA | {"num_hidden_layers": 12, "sliding_window": 1024, "hidden_act": "silu"}
    said = omissions_of(windowed | terms_of(terms))
    assert bool(said) == (layers > 0)
    assert not layers or said.startswith(f"sliding_window = 1024 in {layers} of 12 layers")


def test_a_window_that_no_request_exceeds_is_without_effect() -> None:
    def noted(prompt: int, answer: int, **engine: int) -> str:
        plan = yaml.safe_load("""{id: x, model: mine/mistral, hardware: H100,
            workload: {name: x, stages: [{rate: 1, duration_s: 5}]}}""")
        plan["engine"] = {"max_num_seqs": 128, "max_num_batched_tokens": 2048, **engine}
        plan["model_config"] = {**MISTRAL_7B_V01, "generation_config": {}}
        plan["workload"] |= {"prompt_len": prompt, "output_len": answer}
        return "; ".join(deploy(read_spec(plan, "plan.yaml")).notes)

    assert noted(4000, 96) == ""
    assert "sliding_window = 4096" in noted(4000, 97)
    assert omissions_of(MISTRAL_7B_V01, Engine(max_model_len=4096)) == ""
    assert "sliding_window" in omissions_of(MISTRAL_7B_V01, Engine(max_model_len=4097))


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"is_encoder_decoder": True}, "is_encoder_decoder is true, and no encoder is modelled"),
        ({"model_type": "bert"}, "model_type 'bert' is an encoder"),
        ({"model_type": "mamba2"}, "model_type 'mamba2' has state-space layers"),
        ({"linear_num_value_heads": 32}, "linear_num_value_heads is of state-space or linear-attention layers"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "layer_types has layers of type 'linear_attention'"),
        ({"layers_block_type": ["attention", "mamba"]}, "layer_types has layers of type 'mamba'"),
        ({"block_configs": [{"ffn": 1}]}, "block_configs gives every layer a size of its own"),
        ({"sliding_window": "wide"}, "sliding_window must be a whole number, got 'wide'"),
        ({"sliding_window": 512, "use_sliding_window": "no"}, "use_sliding_window must be true or false, got 'no'"),
    ],
)
def test_what_the_formulas_do_not_fit_is_refused_in_one_line(terms: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        facts_of(LLAMA | terms)
    assert str(caught.value).startswith(f"test: model_config.{message}") and "\n" not in str(caught.value)


def test_heads_that_do_not_divide_the_width_need_a_head_dim() -> None:
    """41 heads of 5120 would be of 124.9; the engine refuses them. Latent attention has widths of its own."""
    odd = LLAMA | {"hidden_size": 5120, "num_attention_heads": 41}
    with pytest.raises(InputError) as caught:
        architecture(odd, "test")
    assert str(caught.value).startswith("test: model_config.num_attention_heads must divide hidden_size (5120)")
    assert architecture(odd | {"head_dim": 128}, "test").head_dim == 128
    assert architecture(odd | {"kv_lora_rank": 512}, "test").heads == 41
    with pytest.raises(InputError, match="must divide"):
        architecture(LLAMA | {"num_attention_heads": 2048, "kv_lora_rank": 512}, "test")  # more heads than width


def test_every_refused_key_is_refused() -> None:
    values: dict[str, Any] = {"is_encoder_decoder": True, "layers_block_type": ["mamba"], "block_types": ["mamba"]}
    for key in (key for group in JUDGED if group.verdict is KeyVerdict.REFUSED for key in group.names):
        with pytest.raises(InputError):
            facts_of(LLAMA | {key: values.get(key, 1)})
        falsy = False if key == "is_encoder_decoder" else None
        assert facts_of(LLAMA | {key: falsy}) == facts_of(LLAMA), key


def test_a_hybrid_class_with_attention_alone_is_not_refused() -> None:
    assert facts_of(LLAMA | {"mamba_d_state": 128, "layer_types": ["attention"] * 4}) == facts_of(LLAMA)


def test_a_list_of_attention_alone_is_not_refused() -> None:
    assert facts_of(LLAMA | {"attn_type_list": [1, 1, 1, 1]}) == facts_of(LLAMA)
    with pytest.raises(InputError, match="attn_type_list"):
        facts_of(LLAMA | {"attn_type_list": [1, 0, 1, 1]})


def test_keys_without_effect_change_nothing() -> None:
    free = {name: 0.5 for name, verdict in VERDICTS.items() if verdict is KeyVerdict.FREE}
    f = facts_of(LLAMA | free)
    assert f == facts_of(LLAMA) and omitted(f) == ()


def test_an_unknown_key_is_named() -> None:
    assert omissions_of(LLAMA | {"x_mine": 1, "source": "here", "_attn_implementation": "flash"}) == ""
    assert omissions_of(LLAMA | {"num_experts_lately": 4}).startswith("unknown key num_experts_lately of config.json")
    many = omissions_of(LLAMA | {f"new_{i}": i for i in range(9)})
    assert many.startswith("unknown keys new_0, new_1,") and "new_7, ... of" in many and "new_8" not in many


UNGATED = """
6.65 model_type: opt, num_hidden_layers: 32, hidden_size: 4096, ffn_dim: 16384, num_attention_heads: 32, vocab_size: 50272, activation_function: relu
6.86 model_type: gpt_neox, num_hidden_layers: 32, hidden_size: 4096, hidden_act: gelu, intermediate_size: 16384, num_attention_heads: 32, vocab_size: 50432
15.96 model_type: starcoder2, num_hidden_layers: 40, hidden_size: 6144, intermediate_size: 24576, num_attention_heads: 48, num_key_value_heads: 4, vocab_size: 49152, tie_word_embeddings: false
6.92 model_type: falcon, num_hidden_layers: 32, hidden_size: 4544, multi_query: true, new_decoder_architecture: false, num_attention_heads: 71, vocab_size: 65024, num_kv_heads: 71, parallel_attn: true
15.5 model_type: gpt_bigcode, n_layer: 40, n_embd: 6144, n_head: 48, n_inner: 24576, n_positions: 8192, multi_query: true, vocab_size: 49152
1.56 model_type: gpt2, n_layer: 48, n_embd: 1600, n_head: 25, n_inner: null, n_positions: 1024, vocab_size: 50257
"""


@pytest.mark.parametrize("model", UNGATED.strip().splitlines())
def test_models_without_a_gate_have_two_matrices(model: str) -> None:
    """Billions of parameters of the models' cards, which include position embeddings and biases."""
    billions, terms = model.split(" ", 1)
    f = facts_of({"max_position_embeddings": 2048, **terms_of(terms)})
    assert f["model_params_b"] == pytest.approx(float(billions), rel=0.01)
    assert f.deployed is not None
    names = [operation.name for operation in kernels(f.deployed).operations]
    assert "feed-forward: up" in names and "feed-forward: gate and up" not in names


def test_an_activation_that_may_be_without_a_gate_is_said() -> None:
    assert omissions_of(LLAMA | {"model_type": "new", "hidden_act": "gelu"}).startswith(
        "gelu is taken as the activation of"
    )
    assert omissions_of(LLAMA | {"model_type": "new", "hidden_act": "silu"}) == ""
    assert architecture(LLAMA | {"model_type": "new", "hidden_act": "relu2"}, "test").mlp_matrices == 2


@pytest.mark.parametrize(
    ("terms", "longest"),
    [
        ({}, 8192),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}}, 16384),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, 16384),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 8192),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, 16384),
        ({"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "model_type": "gemma3_text"}, 8192),
    ],
)
def test_the_longest_sequence_is_lengthened_as_the_engine_does(terms: dict[str, Any], longest: int) -> None:
    assert facts_of(LLAMA | terms)["max_model_len"] == longest


def test_embeddings_are_tied_where_the_class_ties_them() -> None:
    assert architecture(GEMMA_2_9B, "test").tied
    assert not architecture(GEMMA_2_9B | {"tie_word_embeddings": False}, "test").tied
    assert not architecture(QWEN_2_5_32B, "test").tied


# quantization_config | bits of weights, and of attention | what is said
QUANTIZED = """
quant_method: awq, bits: 4, group_size: 128 | 4 4 | 4-bit weights
quant_method: gptq, bits: 8 | 8 8 | 8-bit integer weights
quant_method: fp8 | 8 8 |
quant_method: fp8, ignored_layers: [lm_head, model.layers.0.mlp.gate] | 8 8 |
quant_method: fp8, ignored_layers: [model.layers.0.mlp.gate_proj] | 8 8 | some layers in 16 bits
quant_method: fp8, ignored_layers: [model.layers.0.self_attn.q_proj] | 8 16 | attention is left
quant_method: modelopt, quant_algo: FP8, kv_cache_quant_algo: FP8 | 8 8 | KV cache is counted
quant_method: modelopt, quant_algo: NVFP4, exclude_modules: [lm_head] | 4 4 | 4-bit weights
quant_method: mxfp4, modules_to_not_convert: ["model.layers.*.self_attn"] | 4 16 | attention is left
quant_method: bitsandbytes, load_in_4bit: true | 4 4 | bitsandbytes widens
quant_method: bitsandbytes, load_in_8bit: true | 8 8 | bitsandbytes widens
"""


@pytest.mark.parametrize("line", QUANTIZED.strip().splitlines())
def test_quantization(line: str) -> None:
    details, bits, said = (cell.strip() for cell in line.split("|"))
    config = LLAMA | {"quantization_config": terms_of(details)}
    a, found = architecture(config, "test"), omissions_of(config)
    assert [a.weight_bits, a.formats.attention.bits] == [int(n) for n in bits.split()]
    assert said in found and bool(said) == bool(found)


def test_a_model_published_in_float32_costs_what_it_costs_in_16_bits() -> None:
    """vLLM's `--dtype auto` casts float32 checkpoints down; so the room in the KV cache is that of 16 bits too."""
    assert "serves it in 16 bits, and that is counted" in omissions_of(LLAMA | {"torch_dtype": "float32"})
    assert facts_of(LLAMA | {"torch_dtype": "float32"}) == facts_of(LLAMA | {"torch_dtype": "bfloat16"})


def test_memory_of_unquantized_attention_is_asked_for_until_it_is_given() -> None:
    """24 layers x 2 x 2880 x 64 x (64 + 8) parameters x 12 bits more = 0.89 GiB."""
    assert "the KV cache is over-estimated (give extra_weights_gib: 0.9 in model_config)" in omissions_of(GPT_OSS_20B)
    assert "the KV cache is over-estimated" not in omissions_of(GPT_OSS_20B | {"extra_weights_gib": 0.9})


def test_what_is_left_out_survives_the_way_to_a_worker() -> None:
    f = facts_of(GEMMA_2_9B)
    assert pickle.loads(pickle.dumps(f)).omitted == f.omitted != ()


def test_latent_attention_compares_what_is_counted_with_what_is_true() -> None:
    said = omissions_of(DEEPSEEK_V3, Engine(tensor_parallel=8, total_kv_blocks=1000))
    assert "prefill attention with 0.35 of its FLOPs (under-estimated)" in said  # 2 * 56 of 128 + 64 + 128
