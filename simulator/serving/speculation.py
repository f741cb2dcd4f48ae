"""Speculative decoding: vLLM's --speculative-config as settings of the engine, and the draft that they ask for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from simulator.common.errors import InputError, Section, shown
from simulator.common.json import JsonObject
from simulator.model.architecture import Architecture, architecture
from simulator.model.draft import DRAFT_MODEL, METHODS, OWN_LAYERS, Draft, draft_by, draft_of, own_layers
from simulator.serving.engine import Engine
from simulator.serving.model import Model, known_model

CONFIG = "speculative_config"
RENAMED = {"ngram_gpu": "ngram"}  # and every model's own `..._mtp`
LENGTH, RATES = "synthetic_acceptance_length", "synthetic_acceptance_rates"
PLAIN = (
    *("method", "model", "num_speculative_tokens", LENGTH, RATES, "rejection_sample_method", "draft_sample_method"),
    *("prompt_lookup_max", "prompt_lookup_min", "revision", "code_revision", "max_model_len", "draft_load_config"),
    *("disable_padded_drafter_batch", "use_local_argmax_reduction", "attention_backend", "moe_backend"),
)
"""Keys of vLLM's SpeculativeConfig that are read, or that change no cost that is modelled."""
COSTLY = (
    *("draft_tensor_parallel_size", "quantization", "kv_cache_dtype", "parallel_drafting", "enforce_eager"),
    *("num_speculative_tokens_per_batch_size", "enable_adaptive_verification", "use_heterogeneous_vocab"),
    *("disable_by_batch_size", "speculative_token_tree"),
)
"""Keys that change the cost of a step in ways that are not modelled."""


def unfolded(e: Section) -> Section:
    """The engine's settings with those that CONFIG, a mapping or vLLM's own JSON text of one, stands for in its place.

    Raises InputError for a text that is no mapping, for keys that are unknown or not modelled, and for a setting that
    is given twice.
    """
    if CONFIG not in e.raw:
        return e
    rest = {key: value for key, value in e.raw.items() if key != CONFIG}
    if not e.has(CONFIG):
        return Section(e.where, e.path, rest)
    given = e.raw[CONFIG]
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            given = None
    if not isinstance(given, Mapping):
        text = "give it as vLLM has it, as {method: eagle3, num_speculative_tokens: 3}"
        raise e.error(CONFIG, f"must be a mapping or its JSON, got {shown(e.raw[CONFIG])}", text)
    c = Section(e.where, e.at(CONFIG), given)
    c.only((*PLAIN, *COSTLY), (), "a key of vLLM's speculative_config")
    for key in COSTLY:
        if c.raw.get(key):
            raise c.error(key, f"is {shown(c.raw[key])}, which is not modelled", "leave it out for what is")
    settings = _settings(c)
    for key in settings:
        if e.has(key):
            raise e.error(key, f"is given beside {CONFIG}, which gives it too", "give it once")
    return Section(e.where, e.path, {**rest, **settings})


def _settings(c: Section) -> JsonObject:
    method = c.name("method", f"give one of {', '.join(METHODS)}")
    method = OWN_LAYERS if method.endswith("_mtp") else RENAMED.get(method, method)
    count = c.whole("num_speculative_tokens", "give the number of drafted tokens", least=1)
    settings: JsonObject = {"speculative_method": method, "num_speculative_tokens": count}
    if method == DRAFT_MODEL:
        settings["draft_model"] = c.name("model", "give a known model")
    if c.has(LENGTH):  # tokens of a step on average, the one that is always emitted included
        length = c.number(LENGTH, "give tokens of a step", least=1, most=1 + count)
        settings["speculative_acceptance"] = (length - 1.0) / count
    elif c.has(RATES):  # of each place in the draft, the chance that all up to it are accepted
        rates = c.raw[RATES]
        if not isinstance(rates, list) or len(rates) != count or not all(isinstance(x, int | float) for x in rates):
            raise c.error(RATES, f"must be {count} shares, got {shown(rates)}", "give one for each drafted token")
        settings["speculative_acceptance"] = sum(rates) / count
    return settings


def lacks_acceptance(engine: Engine) -> bool:
    """True if nobody said how many of the drafted tokens are accepted."""
    return engine.num_speculative_tokens > 0 and engine.speculative_acceptance is None


def check_acceptance(engine: Engine, where: str) -> None:
    """Raises InputError, which begins with `where`, if the acceptance of drafts is not given."""
    if lacks_acceptance(engine):
        raise InputError(
            f"{where}: cannot predict speculative decoding: how many drafted tokens are accepted depends on the texts. "
            "Give engine.speculative_acceptance, vLLM's draft acceptance rate, or to a plain `evolve predict` the E2E "
            "that was measured with it."
        )


def drafted(model: Model, served: Architecture, engine: Engine, where: str) -> Draft | None:
    """The draft of an engine; None without speculative decoding. `served`: the model's architecture in the engine.

    Raises InputError, which begins with `where`, for what no engine drafts with.
    """
    e, method, tokens = Section(where, "engine", {}), engine.speculative_method, engine.num_speculative_tokens
    if not tokens:
        for key in ("speculative_method", "speculative_acceptance", "draft_model"):
            if getattr(engine, key) is not None:
                raise e.error(key, "is given without num_speculative_tokens", "give both, or neither")
        return None
    if method is None:
        raise e.error("speculative_method", "is missing", f"give one of {', '.join(METHODS)}")
    if (method == DRAFT_MODEL) != (engine.draft_model is not None):
        problem = "is missing" if engine.draft_model is None else f"is given, and {method} drafts"
        raise e.error("draft_model", problem, "give a known model with speculative_method: draft_model alone")
    if engine.draft_model is not None:
        of = known_model(engine.draft_model, f"{where}: engine.draft_model {engine.draft_model}")
        return draft_by(replace(architecture(of, where), kv_bytes=served.kv_bytes), tokens)
    modules = own_layers(model.config)
    if method == OWN_LAYERS and not modules:
        problem = f"is {method}, and config.json of {model.called} has no layers that predict further tokens"
        raise e.error("speculative_method", problem, "give eagle3, or a model with num_nextn_predict_layers")
    return draft_of(method, tokens, served, modules)
