"""What ran in each step: prefills without the tokens that the cache held, recomputations in full, chunks that fit.

Long prefills share a step's token budget as the engine's scheduler hands it out: running requests first, in order of
their first step, then new ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from evolve.ingest.columns import Columns
from evolve.ingest.derive.admissions import Admission
from evolve.ingest.derive.known import EXACT, Known
from evolve.ingest.derive.segments import Segments

SURE = ("assumed", "inferred", "exact")
"""How sure a step's batch is: a cached prefix is without evidence, follows from other records, or was recorded."""


def prefills(
    found: Sequence[Admission],
    known: Known,
    decode: Segments,
    budget: int,
    recorded: Mapping[tuple[int, int], tuple[int, int]],
) -> Columns:
    """Prefill entries ordered by step: int64 columns step, request, tokens, kv_before (tokens in the KV cache), first
    (1: the admission's first chunk), again (1: a recomputation after the first token), whole (1: all of an admission
    that got to its end, so that its tokens tell its cached prefix), sure (index of SURE).

    `recorded`: (kv_before, tokens) of chunks of long prefills by request and step, where the engine recorded them.
    """
    rows: list[tuple[int, ...]] = []
    used: dict[int, int] = {}  # step -> tokens of prefills that are settled
    for i, a in enumerate(found):
        if a.single and a.whole:
            new = a.target - known.cached[i]
            used[a.start] = used.get(a.start, 0) + new
            rows.append((a.start, a.request, new, known.cached[i], 1, a.again, 1, _sure(known.how[i])))
    longer = [i for i, a in enumerate(found) if not (a.single and a.whole)]
    steps = np.unique(np.concatenate([np.arange(found[i].start, found[i].end + 1) for i in longer] or [np.arange(0)]))
    beside = dict(zip(steps.tolist(), decode.counts(steps).tolist(), strict=True))
    at: dict[int, list[int]] = {}
    for i in longer:
        for step in range(found[i].start, found[i].end + 1):
            at.setdefault(step, []).append(i)
    there = {i: known.cached[i] for i in longer}
    for step in steps.tolist():
        left = budget - beside[step]
        for i in at[step]:
            a = found[i]
            # new requests of this step that need one chunk only come after the running ones
            room = left - (used.get(step, 0) if a.start == step else 0)
            sure = min(_sure(known.how[i]), 1)
            if (a.request, step) in recorded:
                there[i], new = recorded[a.request, step]
                sure = SURE.index("exact")
            else:
                rest = a.target - there[i]
                new = rest if a.whole and step == a.end else min(room, rest - (a.end - step) * a.whole)
            if new <= 0:
                continue
            first = there[i] == known.cached[i]
            rows.append((step, a.request, new, there[i], first, a.again, 0, sure))
            there[i] += new
            left -= new
    table = np.array(sorted(rows), dtype=np.int64).reshape(-1, 8)
    names = ("step", "request", "tokens", "kv_before", "first", "again", "whole", "sure")
    return {name: table[:, j] for j, name in enumerate(names)}


def _sure(how: str) -> int:
    return 0 if how == "none" else 2 if how in EXACT else 1
