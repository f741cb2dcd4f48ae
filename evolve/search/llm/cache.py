"""A folder of answers by (prompt, model, sample), so that another run need not pay for the same question again."""

from __future__ import annotations

import hashlib
import json
from lzma import LZMAError
from pathlib import Path

from evolve.output.files import write_text
from evolve.search.llm.calls import Answered, LlmCall, unpack
from simulator.common.documents import read_json
from simulator.common.errors import unwritable

KEPT = ("model", "version", "prompt", "sample", "tokens_in", "tokens_out", "usd", "seconds", "finish", "answer")


def find(folder: str, call: LlmCall) -> Answered | None:
    """The journal line for a call's answer; None if there is no answer or its file is damaged."""
    path = _path(folder, call)
    try:
        kept = read_json(path, "remove it")
        unpack(kept["answer"])
        line = Answered(call=call.name, attempt=0, cached=True, **{name: kept[name] for name in KEPT})
    except (OSError, ValueError, KeyError, TypeError, LZMAError):
        return None
    question = (line.prompt, line.model, line.sample)
    return line if question == (call.prompt, call.model, call.sample) else None


def keep(folder: str, call: LlmCall, answered: Answered) -> None:
    """Write an answer to the folder. Raises InputError if the folder cannot be written."""
    path = _path(folder, call)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps({name: getattr(answered, name) for name in KEPT}))
    except OSError as e:
        raise unwritable(f"--cache {folder}", e, "choose another folder") from None


def _path(folder: str, call: LlmCall) -> Path:
    identity = json.dumps([call.prompt, call.model, call.sample])
    return Path(folder) / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.json"
