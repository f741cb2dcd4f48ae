"""Models that the model table does not have: their config.json, given by option, as `model_config` of an experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evolve.ingest.sources.reading import read_json
from evolve.ingest.sources.values import plain
from simulator.architecture import KEYS, architecture
from simulator.errors import InputError

_PARTS = ("text_config", "attn_config", "ffn_config")
_KEPT = {
    *(key for keys in KEYS.values() for key in keys), *_PARTS,
    "model_type", "tie_word_embeddings", "torch_dtype", "dtype", "quantization_config", "intermediate_size_mlp",
    "kv_lora_rank", "qk_rope_head_dim", "first_k_dense_replace", "moe_layer_freq", "interleave_moe_layer_step",
    "decoder_sparse_step", "mlp_only_layers", "shared_expert_intermediate_size", "n_shared_experts",
}  # fmt: skip
"""What `simulator.architecture` reads; the rest of a config.json, paths among it, is not carried along."""

_SAMPLING = ("top_p", "top_k", "repetition_penalty")
GENERATION = "generation_config.json"


def parse_models(pairs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`NAME=FILE` texts of --model-config: the terms of each model by its name. FILE is its config.json; what the
    generation_config.json beside it says of sampling is taken, too, because the engine applies it.

    Raises InputError for a file that cannot be read or is no config.json that the simulator understands.
    """
    given: dict[str, dict[str, Any]] = {}
    for pair in pairs:
        name, equals, file = (part.strip() for part in pair.partition("="))
        if not equals or not name or not file:
            raise InputError(
                f"--model-config {plain(pair)}: is not MODEL=FILE: give the model's id and its config.json"
            )
        where = f"--model-config {plain(file)}"
        raw = read_json(Path(file), where)
        if not isinstance(raw, Mapping):
            raise InputError(f"{where}: is not a mapping: give the model's config.json")
        config = _terms(raw)
        beside = Path(file).with_name(GENERATION)
        if beside.is_file():
            sampling = read_json(beside, f"--model-config {plain(str(beside))}")
            if isinstance(sampling, Mapping):
                config["generation_config"] = {k: sampling[k] for k in _SAMPLING if sampling.get(k) is not None}
        architecture({**config, "_name_or_path": name}, where)
        given[name] = config
    return given


def _terms(raw: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in raw.items() if key in _KEPT and value is not None}
    return {key: _terms(v) if key in _PARTS and isinstance(v, Mapping) else v for key, v in kept.items()}
