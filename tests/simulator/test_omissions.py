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
from public_configs import GEMMA_2_9B, MISTRAL_7B_V01, PUBLIC, QWEN_2_5_32B

from simulator.common.errors import InputError
from simulator.kernels.curves import kernels
from simulator.model.architecture import architecture
from simulator.model.config_keys import JUDGED, REFUSALS, VERDICTS, KeyVerdict
from simulator.model.terms import KEYS
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


LATER = (
    "dp",
    "ep",
    "pp",
    "gpus",
    "is_4bit",
    "is_widened",
    "is_blackwell",
    "is_spread",
    "draft_tokens",
)  # fields since the recording


def test_no_static_field_and_no_curve_of_the_bundled_deployments_has_changed() -> None:
    """Recorded before config.json keys were judged, those of the host's form when they came (test_host_form has a second
    writing of it); to the last bit, but for sums of curves."""
    known = {d.name: d.facts for d in measured_deployments() if d.hardware == GPU}
    known |= {e.id: e.facts for e in bundled_experiments()}
    with (ROOT / "tests" / "golden" / "static_fields.csv").open(newline="") as file:
        recorded = {row.pop("deployment"): row for row in csv.DictReader(file)}
    assert set(recorded) == set(known)
    for name, row in recorded.items():
        values = {k: f"{v:.17g}" for k, v in known[name].items() if k not in LATER}
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
    # cards leave out an embedding table, of gpt-oss both
    assert f["active_params_b"] == pytest.approx(float(active), rel=0.17)


EXPECTED = {
    "gemma-2-9b": ("a window of 4096 tokens in 21 of 42 layers", "attn_logit_softcapping", "final_logit_softcapping"),
    "Qwen2.5-32B-Instruct": (),  # use_sliding_window is false
    "Mistral-7B-v0.1": ("a window of 4096 tokens in 32 of 32 layers",),
    "DeepSeek-V3": ("num_nextn_predict_layers",),
    "gpt-oss-20b": (),  # memory of windows below 2,048 tokens is set aside
    "gemma-3-4b-it": ("vision encoders",),
    "Llama-4-Scout-FP8": ("chunks of 8192 tokens in 36 of 48", "vision encoders"),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_what_is_left_out_of_public_models_is_said(name: str) -> None:
    texts = omitted(facts_of(PUBLIC[name], Engine(tensor_parallel=8, total_kv_blocks=10_000)))
    assert len(texts) == len(EXPECTED[name])
    assert all(part in text for part, text in zip(EXPECTED[name], texts, strict=True))


# the first key of a group: terms with an effect | without one
WITH = """
num_nextn_predict_layers: 1 | num_nextn_predict_layers: 0
attn_logit_softcapping: 50.0 | attn_logit_softcapping: null
final_logit_softcapping: 30.0 | final_logit_softcapping: null
vision_config: {hidden_size: 64} | vision_config: null
cross_attention_layers: [3] | cross_attention_layers: []
num_kv_shared_layers: 2 | num_kv_shared_layers: 0
hc_mult: 4 | hc_mult: null
attn_res_block_size: 12 | attn_res_block_size: null
sparse_attention_config: {sparse_topk_blocks: 16, sparse_block_size: 128} | sparse_attention_config: null
hidden_size_per_layer_input: 256 | hidden_size_per_layer_input: 0
altup_num_inputs: 4 | altup_num_inputs: null
use_double_wide_mlp: true | use_double_wide_mlp: false
index_kpool: 4 | index_kpool: null
zero_expert_num: 256 | zero_expert_num: 0
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


def test_a_window_that_no_request_exceeds_is_without_effect() -> None:
    def noted(prompt: int, answer: int, **engine: int) -> str:
        plan = yaml.safe_load("""{id: x, model: mine/mistral, hardware: H100,
            workload: {name: x, stages: [{rate: 1, duration_s: 5}]}}""")
        plan["engine"] = {"max_num_seqs": 128, "max_num_batched_tokens": 2048, **engine}
        plan["model_config"] = {**MISTRAL_7B_V01, "generation_config": {}}
        plan["workload"] |= {"prompt_len": prompt, "output_len": answer}
        return "; ".join(deploy(read_spec(plan, "plan.yaml")).notes)

    assert noted(4000, 96) == ""
    assert "a window of 4096" in noted(4000, 97)
    assert omissions_of(MISTRAL_7B_V01, Engine(max_model_len=4096)) == ""
    assert "a window of 4096" in omissions_of(MISTRAL_7B_V01, Engine(max_model_len=4097))


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"is_encoder_decoder": True}, "is_encoder_decoder is true, and no encoder is modelled"),
        ({"model_type": "bert"}, "model_type 'bert' is an encoder"),
        ({"model_type": "mamba2"}, "model_type 'mamba2' has no attention"),
        ({"layer_types": ["mamba", "rwkv"]}, "layer_types has layers of type 'rwkv', which are not modelled"),
        ({"layers_block_type": ["mamba"] * 4}, "layers_block_type leaves no layer with attention"),
        ({"mamba_d_state": 128}, "mamba_d_state is of recurrent layers, and no key says which layers these are"),
        ({"attn_type_list": [1, 2, 1, 1]}, "attn_type_list must say 0 or 1 of 4 layers"),
        ({"attn_type_list": [1, 0, 1]}, "attn_type_list must say 0 or 1 of 4 layers"),
        ({"hybrid_layer_pattern": [0, 1]}, "hybrid_layer_pattern names 2 layers of 4"),
        ({"intermediate_size": [2048, 2048, 4096, 4096]}, "intermediate_size gives layers different sizes"),
        ({"compress_ratios": [0, 4, 128, 4]}, "compress_ratios compresses keys and values layer by layer"),
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
    assert set(REFUSALS) == {name for key in JUDGED if key.verdict is KeyVerdict.REFUSED for name in key.names}
    for key in REFUSALS:
        with pytest.raises(InputError):
            facts_of(LLAMA | {key: True})
        assert facts_of(LLAMA | {key: None}) == facts_of(LLAMA), key


def test_a_hybrid_class_with_attention_alone_is_not_refused() -> None:
    assert facts_of(LLAMA | {"mamba_d_state": 128, "layer_types": ["attention"] * 4}) == facts_of(LLAMA)
    assert facts_of(LLAMA | {"attn_type_list": [1, 1, 1, 1]}) == facts_of(LLAMA)


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


# quantization_config | what is said
QUANTIZED = """
quant_method: awq, bits: 4, group_size: 128 |
quant_method: gptq, bits: 8 | 8-bit integer weights
quant_method: fp8, ignored_layers: [lm_head, model.layers.0.mlp.gate] |
quant_method: fp8, ignored_layers: [model.layers.0.mlp.gate_proj] | some layers of dense in another type
quant_method: fp8, ignored_layers: [model.layers.0.self_attn] | some layers of attention in another type
quant_method: fp8, ignored_layers: [self_attn] |
quant_method: modelopt, quant_algo: FP8, kv_cache_quant_algo: FP8 |
quant_method: modelopt, quant_algo: FP8, kv_cache_quant_algo: INT8 | KV cache is counted in 16 bits
quant_method: quark, kv_cache_scheme: {num_bits: 8, type: float}, bits: 4 | KV cache is counted in 16 bits
quant_method: bitsandbytes, load_in_4bit: true | bitsandbytes widens
quant_method: bitsandbytes, load_in_8bit: true | bitsandbytes widens
"""


@pytest.mark.parametrize("line", QUANTIZED.strip().splitlines())
def test_quantization_that_is_not_counted_is_said(line: str) -> None:
    details, said = (cell.strip() for cell in line.split("|"))
    found = omissions_of(LLAMA | {"quantization_config": terms_of(details)})
    assert said in found and bool(said) == bool(found)


def test_a_model_published_in_float32_costs_what_it_costs_in_16_bits() -> None:
    """vLLM's `--dtype auto` casts float32 checkpoints down; so the room in the KV cache is that of 16 bits too."""
    assert "serves it in 16 bits, and that is counted" in omissions_of(LLAMA | {"torch_dtype": "float32"})
    assert facts_of(LLAMA | {"torch_dtype": "float32"}) == facts_of(LLAMA | {"torch_dtype": "bfloat16"})


def test_what_is_left_out_survives_the_way_to_a_worker() -> None:
    f = facts_of(GEMMA_2_9B)
    assert pickle.loads(pickle.dumps(f)).omitted == f.omitted != ()
