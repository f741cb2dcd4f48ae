"""Token times out of the load generator's stamps.

Older releases stamp every line read of the event stream: n tokens, each followed by a blank line, then `[DONE]` and
its own: 2n + 2 stamps, of which every other one is a token. Its reported TPOT and ITL are therefore about half of the
truth. Releases since 2025-11-14 stamp events: n + 1. Where the server put several tokens into one event neither count
holds; then only the first time is known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evolve.ingest.columns import NONE
from evolve.ingest.sources.clients import Clients

LINES, EVENTS, OTHER = "2n+2", "n+1", "other"


@dataclass(frozen=True)
class TokenTimes:
    """Per client row: how many tokens it got (NONE unknown), the first one's time in s (NaN without), and which reading
    of its stamps holds. `times[i]`: every token's time in s on the client's clock, None where not known."""

    tokens: np.ndarray
    first_s: np.ndarray
    reading: tuple[str, ...]
    times: tuple[np.ndarray | None, ...]


def token_times(clients: Clients, tokens: np.ndarray) -> TokenTimes:
    """`tokens`: the true output length of every row, NONE where nothing tells; it is then taken from the stamps, read
    as most rows are whose length is known (none known: 2n + 2, if all counts are even)."""
    counts = np.diff(clients.bounds)
    known = (tokens != NONE) & (counts > 0)
    lines = int((counts[known] == 2 * tokens[known] + 2).sum())
    single = int((counts[known] == tokens[known] + 1).sum())
    usual = LINES if lines > single or (lines == single and not (counts % 2).any()) else EVENTS
    n = tokens.copy()
    guess = (tokens == NONE) & (counts > 2)
    n[guess] = (counts[guess] - 2) // 2 if usual == LINES else counts[guess] - 1
    first = np.full(len(n), np.nan)
    readings, times = [], []
    for i, (low, high) in enumerate(zip(clients.bounds[:-1].tolist(), clients.bounds[1:].tolist(), strict=True)):
        stamps, own = clients.stamps[low:high], int(n[i])
        reading, found = _read(stamps, own)
        readings.append(reading)
        times.append(found)
        if len(stamps):
            first[i] = stamps[0]
    return TokenTimes(n, first, tuple(readings), tuple(times))


def _read(stamps: np.ndarray, tokens: int) -> tuple[str, np.ndarray | None]:
    """Which reading holds, and the token times where one does."""
    if tokens < 1 or not len(stamps):
        return ("" if not len(stamps) else OTHER), None
    if len(stamps) == 2 * tokens + 2:
        return LINES, stamps[0::2][:tokens]
    if len(stamps) == tokens + 1:
        return EVENTS, stamps[:tokens]
    return OTHER, None
