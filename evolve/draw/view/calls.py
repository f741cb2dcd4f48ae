"""The calls to language models of a run: totals by model and a row per request, without prompts and answers."""

from __future__ import annotations

from collections.abc import Sequence

from evolve.search.llm.ledger import rows, summary
from simulator.common.json import JsonObject

_TOTALS = ("requests", "tokens_in", "tokens_out", "usd", "possibly_usd")
_ROW = ("call", "attempt", "model", "tokens_in", "tokens_out", "usd", "possibly_usd", "seconds", "outcome", "verdict")


def slim(line: JsonObject) -> JsonObject:
    """The part of a journal line, about a model's proposal, that the ledger needs."""
    return {key: line[key] for key in ("kind", "call", "verdict", "stage") if key in line}


def ledger_json(lines: Sequence[JsonObject]) -> JsonObject | None:
    """The ledger of these journal lines; None if no model was called."""
    totals = summary(lines)
    if not totals:
        return None
    models = {
        name: {key: of_model[key] for key in (*_TOTALS, "outcomes")} for name, of_model in totals["models"].items()
    }
    return {
        "totals": {key: totals[key] for key in _TOTALS},
        "models": models,
        "rows": [{key: getattr(row, key) for key in _ROW} for row in rows(lines)],
    }
