"""Write docs/models.md: the layers that are read from public models' config.json files, and what their parameters add to.

    python tools/model_table.py ARCHIVE ...

An archive is a zip file with `model_configs/ORGANISATION--MODEL_config.json` in any folder; nothing else of it is read.
Figures of cards, and the terms of models that no archive has, are in tools/models.yaml.
"""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from simulator.common.errors import InputError
from simulator.model.architecture import Architecture
from simulator.model.layers import Attention
from simulator.serving.deployment import deployment_facts
from simulator.serving.engine import Engine
from simulator.serving.gpu import gpu_named
from simulator.serving.model import Model

ROOT = Path(__file__).parents[1]
CLOSE = 0.03  # difference from the card that needs no reason
HEAD = """# Models

Layers that are read from public models' config.json files. Parameters are those of the text model, in billions, without
norms, biases, routers, encoders of images and sound, and layers that predict further tokens. The difference is from
the count that the model's card or name gives. `evolve model show MODEL` shows a model of yours.

Figures of cards are from general knowledge of the published cards. [Calibrate](calibrate.md) has the models with
measurements.

| model | layers | billions | active | card or name | difference |
|---|---|---|---|---|---|
"""
FOOT = """
Written by `tools/model_table.py` from published config.json files.
"""
RECURRENT = {
    "gdn": "gated delta net",
    "kda": "Kimi delta attention",
    "mamba2": "Mamba-2",
    "mamba": "Mamba",
    "lightning": "lightning attention",
    "conv": "short convolution",
    "rglru": "gated recurrence",
}


@dataclass(frozen=True, slots=True)
class PublicModel:
    """A model with the billions of parameters that its card gives. `why`: the reason of a difference."""

    ident: str
    config: dict[str, Any] | None
    billions: float
    source: str
    why: str


def listed() -> tuple[PublicModel, ...]:
    """The models of tools/models.yaml."""
    entries = yaml.safe_load((ROOT / "tools" / "models.yaml").read_text())
    return tuple(PublicModel(e["id"], e.get("config"), e["billions"], e["of"], e.get("why", "")) for e in entries)


def configs(archives: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The config.json files in archives, by the name of the model."""
    found = {}
    for archive in archives:
        with zipfile.ZipFile(archive) as file:
            for name in file.namelist():
                folder, _, base = name.rpartition("/")
                if folder.endswith("model_configs") and base.endswith("_config.json") and "hf_quant" not in base:
                    found[base.removesuffix("_config.json").replace("--", "/")] = json.loads(file.read(name))
    return found


def layers_in_words(a: Architecture) -> str:
    """The layers of a model by kind."""
    recurrent = [f"{of.layers} {RECURRENT[of.kind]}" for of in a.recurrent]
    dense = [f"{a.dense_layers} dense"] if a.dense_layers else []
    width = f" of width {a.expert_hidden}" if a.expert_hidden else ""
    routed = [f"{a.moe_layers} with {a.active} of {a.experts} experts{width}"] if a.moe_layers else []
    shared = ["shared expert"] if a.shared_ffn else []
    return f"{', '.join([*map(_attention, a.attention), *recurrent])}; {', '.join([*dense, *routed, *shared])}"


def _attention(of: Attention) -> str:
    kind = "attention"
    if of.latent:
        kind = "latent attention"
        if of.latent.topk:
            kind = f"sparse latent attention ({of.latent.topk}{'' if of.latent.index_heads else ', tokens of a layer before'})"
    if of.window:
        kind = f"{'chunks' if of.chunked else 'windows'} of {of.window}"
    heads = f"{of.heads} heads" if of.latent else f"{of.heads}/{of.kv_heads} heads of {of.head_dim}"
    return f"{of.layers} {kind}{', gated' if of.gated else ''} ({heads})"


def counted(ident: str, config: Mapping[str, Any]) -> tuple[float, float, str]:
    """Billions of parameters, those of a token, and the layers in words. Raises InputError for a refused model."""
    model = Model.of({key: value for key, value in config.items() if key != "quantization_config"}, ident)
    facts = deployment_facts(model, gpu_named("H100"), Engine(total_kv_blocks=1000), ident)
    return facts["model_params_b"], facts["active_params_b"], layers_in_words(model.architecture)


def row(model: PublicModel, config: Mapping[str, Any]) -> str:
    """The line of a model in the table."""
    card = f"{model.billions:g} ({model.source})"
    try:
        total, active, layers = counted(model.ident, config)
    except InputError as error:
        return f"| {model.ident} | refused: {str(error).removeprefix(f'{model.ident}: ')} | | | {card} | |"
    off = total / model.billions - 1
    if abs(off) > CLOSE and not model.why:
        print(f"{model.ident}: {100 * off:+.1f} % has no reason", file=sys.stderr)
    why = f": {model.why}" if model.why else ""
    return f"| {model.ident} | {layers} | {total:.4g} | {active:.4g} | {card} | {100 * off:+.1f} %{why} |"


def rows(archives: Iterable[str]) -> Iterator[str]:
    """A line of the table for each model."""
    known = configs(archives)
    for model in listed():
        config = model.config or known.get(model.ident)
        if config is None:
            raise InputError(f"{model.ident}: cannot find its config.json: give the archive that has it")
        yield row(model, config)


def main() -> None:
    (ROOT / "docs" / "models.md").write_text(HEAD + "\n".join(rows(sys.argv[1:])) + "\n" + FOOT)


if __name__ == "__main__":
    main()
