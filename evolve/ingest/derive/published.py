"""What ran in each step as the owners of the trace format reconstruct it: from journeys alone, prompts never cached.

Kept for comparison. What is wrong with it: prefix-cache hits count as computed, a resumed request decodes one token
where it recomputes all, and chunks are split greedily.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from evolve.ingest.columns import Columns
from evolve.ingest.derive.journeys import Life
from evolve.ingest.derive.segments import Segments


def decodes(lives: Iterable[Life]) -> Segments:
    """Decode entries; tokens: the context, the token being processed included."""
    return Segments.of(
        [(x.request, i.start, i.end, x.prompt + i.before) for x in lives for i in x.intervals if not i.prefill]
    )


def prefills(lives: Iterable[Life], decode: Segments, budget: int) -> Columns:
    """Prefill entries, int64 columns step, request, tokens, ordered by step and by first scheduled step.

    A prefill of one step takes its exact tokens, longer ones what the step's token budget leaves beside its decodes.
    """
    spans = [(i.start, x.request, i.end, i.tokens) for x in lives for i in x.intervals if i.prefill]
    remaining = {x.request: x.prompt for x in lives}
    by_step: dict[int, list[tuple[int, int, int, int]]] = {}
    for span in sorted(spans):
        for step in range(span[0], span[2] + 1):
            by_step.setdefault(step, []).append(span)
    steps = sorted(by_step)
    taken = decode.counts(np.array(steps, dtype=np.int64)).tolist()
    rows = []
    for step, beside in zip(steps, taken, strict=True):
        left = max(0, budget - beside)
        for start, request, end, tokens in by_step[step]:
            new = min(tokens, remaining[request]) if start == end else min(remaining[request], left)
            if new > 0:
                remaining[request] -= new
                left -= new
                rows.append((step, request, new))
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return {"step": table[:, 0], "request": table[:, 1], "tokens": table[:, 2]}
