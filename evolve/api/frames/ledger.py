"""Frames of the ledger: a row for each request to a language model, and each answer from a cache."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

import pandas as pd

from evolve.output.columns import flag, frame, number, text, whole
from evolve.search.llm.ledger import LedgerRow

LEDGER = (
    text("call", "name of the call", paper=True),
    whole("attempt", "number of the attempt, from 0", paper=True),
    text("model", "the model that was asked", paper=True),
    text("version", "the model that answered, as it calls itself"),
    text("prompt", "digest of the prompt"),
    whole("sample", "number of the answer to this prompt"),
    whole("tokens_in", "tokens of the prompt", paper=True),
    whole("tokens_out", "tokens of the answer", paper=True),
    number("usd", "price", paper=True),
    number("possibly_usd", "the most that a request may have cost if its end is not known"),
    number("seconds", "time to the answer", paper=True),
    text("outcome", "`answered`, `cached`, `possibly paid`, or the kind of fault", paper=True),
    text("why", "the fault in words"),
    text("verdict", "what became of the programs in the answer"),
    flag("uncounted", "whether the server gave no credible count of tokens, so that the most is charged"),
)


def ledger(rows: Iterable[LedgerRow]) -> pd.DataFrame:
    """The requests in the order they were sent, then the answers from a cache."""
    return frame(LEDGER, map(asdict, rows))
