"""`evolve model`: models of the user's own, kept by name, and what a known model's config.json says."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import Any

from evolve import __version__
from evolve.output.files import write_json
from evolve.output.printing import prose
from simulator.common.documents import read_json
from simulator.common.errors import InputError, nearest, reason, unreadable, unwritable
from simulator.common.json import JsonObject
from simulator.model.architecture import Architecture
from simulator.model.omissions import affecting
from simulator.serving.deployment import deployment_facts
from simulator.serving.engine import Engine
from simulator.serving.gpu import known_gpu
from simulator.serving.known import GPU, HUGGING_FACE, model_names, read_config
from simulator.serving.model import (
    VARIABLE,
    Model,
    file_of,
    folder,
    known_model,
    known_models,
    model_table,
    own_models,
    own_names,
    reread,
)

CONFIG, GENERATION = "config.json", "generation_config.json"
# Without commas and blanks, so that an id can be an item of a list and of MODEL,HARDWARE,TP.
IDENT = re.compile(r"[A-Za-z0-9][\w.+-]*(/[\w.+-]+)?", re.ASCII)
LONGEST_IDENT = 100  # characters: it becomes the name of a file


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model by name. `path`: the file that keeps it, None if it is shipped.

    `generation_config`: sampling defaults that the engine applies, None if unknown. warnings: what the model has and
    no field counts. named: what gave the name to a model that was added.
    """

    ident: str
    path: Path | None
    architecture: Architecture
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any] | None
    warnings: tuple[str, ...]
    named: str = ""

    def to_json(self) -> JsonObject:
        about: JsonObject = {"engine": __version__, "data": None, "seeds": [], "id": self.ident}
        generation = None if self.generation_config is None else dict(self.generation_config)
        file, warnings = str(self.path) if self.path else None, list(self.warnings)
        config = {"config": dict(self.config), "generation_config": generation}
        return {**about, "file": file, **config, "warnings": warnings}


def add(source: str, ident: str | None, generation: Path | None, replace: bool) -> ModelEntry:
    """Keep the model of a config.json, or of a folder with one, under a name; sampling defaults from `generation`.

    Without `ident` the name is `_name_or_path` of the config, unless that is a path or a shipped model; else that of
    the file, or of the folder of a config.json. Without `generation` it is the generation_config.json next to it, if
    there is one. Raises InputError for a config that is not that of a model, and for a name that is taken.
    """
    path = Path(source) / CONFIG if Path(source).is_dir() else Path(source)
    if Path(source).is_dir() and not path.exists():
        raise InputError(f"{source}: the folder has no {CONFIG}: give a model's {CONFIG}, or a folder with one")
    config = _written(read_config(path))
    name, named = ident or str(config.get("_name_or_path")), "--id" if ident else "_name_or_path of its config.json"
    if ident is None and (not HUGGING_FACE.fullmatch(name) or name in model_table()):
        name, named = (path.resolve().parent.name, "its folder") if path.name == CONFIG else (path.stem, "its file")
    if not IDENT.fullmatch(name) or len(name) > LONGEST_IDENT:
        problem = "is not a name of letters, digits, . _ + - and at most one slash"
        raise InputError(f"--id {name[:LONGEST_IDENT]}: {problem}: give one, as --id my-model")
    if name in model_table():
        raise InputError(f"--id {name}: is a shipped model: give another --id")
    others = (other for other in (*model_table(), *own_names()) if other != name)
    if alike := next((other for other in others if other.lower() == name.lower()), None):
        text = f"is {alike} in other letters, which the host does not tell apart"
        raise InputError(f"--id {name}: {text}: give another --id")
    if file_of(name).exists() and not replace:
        raise InputError(f"--id {name}: is kept already in {file_of(name)}: give another --id, or --replace")
    beside = path.parent / GENERATION
    if generation is None and beside.is_file() and "generation_config" not in config:
        generation = beside
    entry: JsonObject = {"id": name, "config": config}
    if generation is not None:
        entry["generation_config"] = _sampling(generation)
    elif isinstance(given := config.get("generation_config"), dict):
        entry["generation_config"] = given
    terms = {**config, "generation_config": entry.get("generation_config") or {}}
    # Any deployment reads every key; this one needs neither room in memory nor a known longest sequence.
    where = str(path)
    deployment_facts(Model.of(terms, where), known_gpu(GPU, GPU), Engine(max_model_len=1, total_kv_blocks=1), where)
    try:
        folder().mkdir(parents=True, exist_ok=True)
        write_json(file_of(name), entry)
    except OSError as e:
        raise unwritable(folder(), e, f"set {VARIABLE} to another folder") from None
    reread()
    return replace_fields(show(name), named=named)


def _written(value: Any) -> Any:
    """A JSON value with NaN and Infinity, which Python writes but JSON does not know, as texts."""
    match value:
        case dict():
            return {key: _written(item) for key, item in value.items()}
        case list():
            return [_written(item) for item in value]
        case float() if not math.isfinite(value):
            return str(value)
        case _:
            return value


def _sampling(path: Path) -> JsonObject:
    try:
        raw = read_json(path, f"give the model's {GENERATION}", foreign=True)
    except OSError as e:
        raise unreadable(path, e, f"give the model's {GENERATION}") from None
    if not isinstance(raw, dict):
        raise InputError(f"{path}: is not a JSON object: give the model's {GENERATION}")
    sampling: JsonObject = _written(raw)
    return sampling


def remove(ident: str) -> Path:
    """Remove a model of the user's own, and return the file that kept it. Raises InputError if there is none."""
    path = file_of(ident)
    try:
        path.unlink()
    except FileNotFoundError:
        if ident in model_table():
            raise InputError(f"{ident}: is a shipped model: only your own can be removed") from None
        raise InputError(f"{ident}: is not a model of your own: `evolve model list` names them") from None
    except OSError as e:
        raise InputError(f"{path}: cannot be removed ({reason(e)}): check the folder's permissions") from None
    reread()
    return path


def show(ident: str) -> ModelEntry:
    """A known model. Raises InputError for an unknown name."""
    models = known_models()
    if ident not in models:
        raise InputError(f"{ident}: is not a known model: {nearest(ident, sorted(models))}")
    entry, model = models[ident], Model.of(known_model(ident, ident), ident)
    longest = model.architecture.longest or math.inf
    path = file_of(ident) if ident in own_models() else None
    warnings = tuple(o.text for o in affecting(model.omitted, longest))
    terms = entry["config"], entry.get("generation_config")
    return ModelEntry(str(entry["id"]), path, model.architecture, *terms, warnings)


def print_model(model: ModelEntry) -> None:
    """A line for each property that determines cost and memory."""
    a = model.architecture
    prose(f"{model.ident}: {model.path or 'shipped'}")
    dense = a.dense_layers
    lines = [
        f"{a.layers} layers of {a.hidden}, {a.heads} heads and {a.kv_heads} KV heads of {a.head_dim}",
        f"{dense} dense layers of {a.ffn}" if dense else "",
        f"{a.moe_layers} layers of {a.experts} experts of {a.moe_ffn}, {a.active} active" if a.moe_layers else "",
        f"vocabulary {a.vocab}, at most {a.longest} tokens" if a.longest else f"vocabulary {a.vocab}",
        _weights(a),
        f"sampling {_sampled(model.generation_config)}"
        if model.generation_config is not None
        else "sampling unknown, assumed without top_p, top_k, repetition penalty: --generation-config FILE --replace",
        _named_in_go(model.ident) if model.path else "",
        f"named by {model.named}" if model.named else "",
    ]
    for line in filter(None, lines):
        prose(f"  {line}")
    for text in model.warnings:
        prose(f"  note: {text}")


def _weights(a: Architecture) -> str:
    """The types of weights and KV cache where they are not those of the others."""
    words = {"dense": "dense layers", "shared": "shared experts"}
    others = [f"{words.get(part, part)} {f.name} of {f.bits:g}" for part, f in a.stored.items() if f != a.weights]
    name = "" if a.weights.bits == 16 else f", {a.weights.name}"
    cache = ["KV cache of 8 bits"] if a.kv_bytes == 1 else []
    return "; ".join([f"weights of {a.weights.bits:g} bits{name}", *others, *cache])


def _named_in_go(ident: str) -> str:
    """Under which names emitted Go knows a model of the user's own: the host calls a model as Hugging Face does."""
    if others := model_names(ident):
        return f"in emitted Go also {', '.join(others)}, as its config.json says"
    if HUGGING_FACE.fullmatch(ident):
        return ""
    name = f"in emitted Go {ident} alone: if the host calls it by its Hugging Face name, keep it under that"
    return f"{name}, --id ORGANISATION/{ident}"


def _sampled(terms: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {json.dumps(value)}" for name, value in terms.items()) or "defaults: none"


def print_own() -> None:
    """The models of the user's own, a line each."""
    own = own_models()
    if not own:
        prose(f"no models of your own in {folder()}: `evolve model add CONFIG.json` keeps one")
    for ident in own:
        prose(f"{ident}  {file_of(ident)}")
