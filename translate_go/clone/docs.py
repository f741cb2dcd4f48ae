"""The edits of the host's documentation: a section in the guide on latency models, the flag in the reference."""

from __future__ import annotations

import re
import textwrap

from translate_go.clone.moved import Backend, Facts, already, moved
from translate_go.spelling import fact
from translate_go.target import TARGETS

_SECTION = """
## The {name} backend

{about}

```bash
{command}
```
"""
_ABOUT = (
    "`--latency-model {name}` selects a fitted latency model, `sim/latency/{file}`. Its constants are in the file, "
    "whose header has the program that it translates and what it was fitted on. {facts} It reads no coefficients: "
    "`--alpha-coeffs` and `--beta-coeffs` have no meaning for it, nor has expert or data parallelism."
)
_UNSIZED = (
    "The command reads neither `config.json` nor the hardware table for it, and sizes no KV cache: pass "
    "`--total-kv-blocks` and `--max-model-len`."
)
_FACTS: dict[Facts, str] = {
    "host": (
        "It takes the model's architecture from its `config.json` and the GPU from the hardware table, like the "
        "built-in backends."
    ),
    "table": (
        "The facts of its deployments are in the code too, where `--model`, `--hardware` and `--tp` select one; if "
        f"there is none, an error lists what there is. {_UNSIZED}"
    ),
    "baked": (
        "The facts of its one deployment are in the code too, and another `--model`, `--hardware` or `--tp` is an "
        f"error. {_UNSIZED}"
    ),
    "none": f"It reads no facts of model and GPU, so `--model` may be any. {_UNSIZED}",
}
_SETTINGS = " It reads the engine's settings from {flags}."


def with_section(path: str, text: str, backend: Backend, file: str) -> str:
    """The guide on latency models with a section on the backend at its end. `file`: that of the backend's type."""
    if not re.search(r"^# .*latency", text, re.IGNORECASE | re.MULTILINE):
        raise moved(path, "heading that names latency models")
    if f"## The {backend.registered} backend" in text:
        raise already(path, backend)
    facts = _FACTS[backend.facts]
    if backend.settings:
        flags = {fact(name): flag for name, flag in TARGETS["blis-4"].flags.items()}
        facts += _SETTINGS.format(flags=", ".join(f"`{flags[setting]}`" for setting in backend.settings))
    about = textwrap.fill(_ABOUT.format(name=backend.registered, file=file, facts=facts), 118, break_on_hyphens=False)
    section = _SECTION.format(name=backend.registered, about=about, command=backend.command)
    return text.rstrip("\n") + "\n" + section


def with_row(path: str, text: str, backend: Backend) -> str:
    """The reference of configuration whose table row of --latency-model names the backend."""
    found = re.search(r"^\|\s*`--latency-model`\s*\|.*\|[ \t]*$", text, re.MULTILINE)
    if found is None:
        raise moved(path, "table row of the flag `--latency-model`")
    at = found.start() + found.group().rindex("|")
    before = text[:at].rstrip(" ")
    return f"{before} `{backend.registered}`: see [the guide](../guide/latency-models.md). {text[at:]}"
