"""The names of models: the same model in a benchmark's file and in an experiment."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from simulator.common.errors import shown

FAMILIES = (
    *("codellama", "command", "deepseek", "falcon", "gemma", "glm", "gpt", "granite", "kimi", "llama", "minimax"),
    *("mistral", "mixtral", "nemotron", "olmo", "phi", "qwen", "starcoder", "yi"),
)
SIZE = re.compile(r"(?:\d+x)?\d+(?:\.\d+)?[bm]")  # as 70b, 8x7b, 270m
# Parts of a name that do not change what a step costs: tuning, layout of the files, version and date of the weights.
FORM = re.compile(r"instruct|chat|it|hf|base|meta|v\d+(\.\d+)*|\d{4}")
Table = Mapping[str, Mapping[str, Any]]


def note_on_model(file: str, said: str, names: Collection[str], models: Table) -> str | None:
    """A note if the model that a file was measured on, `said`, is not, or not surely, that of the experiment.

    `names`: the names of the experiment's model, the first as it is written. None where a name means the same model, or
    one with the same config.json.
    """
    if not said or any(_core(name) == _core(said) for name in names):
        return None
    alike = {str(entry["id"]): name for name, entry in models.items() if _core(name) == _core(said)}
    other = said if said in models else next(iter(alike.values())) if len(alike) == 1 else None
    configs = [models[name]["config"] for name in names if name in models]
    if other and models[other]["config"] in configs:
        return None
    own, theirs = (_traits(each) for each in (names, [said]))
    if (other and configs) or any(a and b and not a & b for a, b in zip(own, theirs, strict=True)):
        written = next(iter(names))
        return f"{file} was measured on {shown(said)}, as it says, not on {written}: name the model that was measured"
    return f"{file} was measured on {shown(said)}, as it says"


def _parts(name: str) -> list[str]:
    last = name.rstrip("/").rsplit("/", 1)[-1].lower()
    return [part for part in re.split(r"[-_ :]+", last) if part]


def _core(name: str) -> frozenset[str]:
    """The parts of a name that tell the model, as qwen2.5 and 7b."""
    parts = _parts(name)
    return frozenset(part for part in parts if not FORM.fullmatch(part)) or frozenset(parts)


def _traits(names: Collection[str]) -> tuple[set[str], set[str]]:
    """The families that names mention, and the sizes."""
    parts = [part for name in names for part in _parts(name)]
    families = {family for family in FAMILIES for part in parts if re.match(r"[a-z]*", part)[0] == family}  # type: ignore[index]
    return families, {part for part in parts if SIZE.fullmatch(part)}
