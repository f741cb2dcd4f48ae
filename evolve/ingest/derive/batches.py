"""What ran in every scheduler step, twice: as published, and corrected with all the evidence that a folder has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evolve.ingest.columns import Columns
from evolve.ingest.derive import corrected, published
from evolve.ingest.derive.admissions import Admission, admissions
from evolve.ingest.derive.blocks import Chains
from evolve.ingest.derive.evidence import evidence, recorded
from evolve.ingest.derive.journeys import MOST_STEPS_IN_ALL, TOO_MANY, Life
from evolve.ingest.derive.known import Known, Sources
from evolve.ingest.derive.segments import Segments
from evolve.ingest.sources.traces import Traces


@dataclass(frozen=True)
class Batches:
    """Decode stretches and prefill entries, corrected and as published; requests are core requests of `Traces`.

    `decode.tokens` is what the KV cache held before the step, `published_decode.tokens` the published context, which is
    one more.
    `early`: of every request the step of its first decode, which async scheduling's summaries count as prefill.
    """

    decode: Segments
    prefill: Columns
    published_decode: Segments
    published_prefill: Columns
    early: np.ndarray
    asynchronous: bool
    admissions: tuple[Admission, ...]
    known: Known


def reconstruct(
    traces: Traces,
    lives: Sequence[Life],
    chains: Chains | None,
    epoch_offset_s: float,
    same_prompt: Sequence[int],
    budget: int,
    block: int,
    caching: bool,
    asynchronous: bool | None,
) -> Batches:
    """`budget`: max_num_batched_tokens. `asynchronous` None: whichever agrees with more of the steps' summaries."""
    ran = _within_reason(lives, traces.tally)
    found, stretches = admissions(ran, budget)
    decode = Segments.of(stretches)
    first = [i for life in ran for i in life.intervals if not i.prefill and not i.resumed]
    early = np.array([i.start for i in first], dtype=np.int64)
    if asynchronous is None:
        asynchronous = _looks_asynchronous(traces.steps, found, early)
    sources = Sources(
        traces.core_ids, traces.steps, traces.snapshots, chains, epoch_offset_s, same_prompt, early, block, caching,
        asynchronous,
    )  # fmt: skip
    known = evidence(found, sources)
    complete = [life for life in ran if life.complete]
    plain = published.decodes(complete)
    return Batches(
        decode, corrected.prefills(found, known, decode, budget, recorded(found, traces.snapshots)), plain,
        published.prefills(complete, plain, budget), early, asynchronous, tuple(found), known,
    )  # fmt: skip


def _within_reason(lives: Sequence[Life], tally: Counter[str]) -> list[Life]:
    """Sound journeys that ran, up to MOST_STEPS_IN_ALL of all of them; those beyond are counted."""
    ran = [life for life in lives if life.sound and life.scheduled_ns is not None and life.prompt > 0]
    steps = np.cumsum([life.steps() for life in ran])
    kept = int(np.searchsorted(steps, MOST_STEPS_IN_ALL, side="right"))
    tally[TOO_MANY] += len(ran) - kept
    return ran[:kept]


def _looks_asynchronous(steps: Columns, found: Sequence[Admission], early: np.ndarray) -> bool:
    """Async scheduling counts a request's first decode as prefill. True, vLLM's default, where nothing tells."""
    begun: Counter[int] = Counter(s for a in found if not a.again for s in range(a.start, a.end + 1))
    late: Counter[int] = Counter(early.tolist())
    with_early = without = 0
    for step, reqs in zip(steps["step_id"].tolist(), steps["summary_prefill_reqs"].tolist(), strict=True):
        if late[step]:
            with_early += reqs == begun[step] + late[step]
            without += reqs == begun[step]
    return with_early >= without
