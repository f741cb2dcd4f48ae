"""The batch of every scheduler step, reconstructed twice: corrected with all evidence of a folder, and as published.

The published reconstruction uses journeys alone and is kept for comparison. It counts prefix-cache hits as computed,
lets a resumed request decode one token where it recomputes everything, and splits chunks greedily.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evolve.ingest.columns import Columns, DecodeSegments, table
from evolve.ingest.derive.cached import EXACT, CachedTokens, Evidence, recorded_chunks
from evolve.ingest.derive.journeys import MOST_STEPS_IN_ALL, TOO_MANY, Admission, Journey, admissions_of
from simulator.schema import RECORDED

SURE = ("assumed", "inferred", "exact")
"""The certainty of a batch: a cached prefix has no evidence, follows from other records, or was recorded."""


@dataclass(frozen=True)
class Batches:
    """Decode intervals and prefill entries, corrected and as published; requests are core requests of `Traces`.

    `decode.tokens` are the tokens in the KV cache before the step; `published_decode.tokens` is the published context,
    which is one more. `first_decodes` has the step of every request's first decode, which summaries count as prefill
    under async scheduling.
    """

    decode: DecodeSegments
    prefill: Columns
    published_decode: DecodeSegments
    published_prefill: Columns
    first_decodes: np.ndarray
    asynchronous: bool
    admissions: Sequence[Admission]
    cached: CachedTokens


def reconstruct(journeys: Sequence[Journey], evidence: Evidence, budget: int) -> Batches:
    """The batches of a run. `budget` is max_num_batched_tokens.

    The steps' summaries decide if scheduling was asynchronous, unless the evidence does.
    """
    traces = evidence.traces
    ran = [j for j in journeys if j.plausible and j.scheduled_ns is not None and j.prompt > 0]
    kept = int(np.searchsorted(np.cumsum([j.steps for j in ran]), MOST_STEPS_IN_ALL, side="right"))
    traces.tally[TOO_MANY] += len(ran) - kept
    ran = ran[:kept]
    admissions, decoding = admissions_of(ran, budget)
    decode = DecodeSegments.of(decoding)
    first = [i.start for journey in ran for i in journey.intervals if not i.prefill and not i.resumed]
    first_decodes = np.array(first, dtype=np.int64)
    if evidence.asynchronous is None:
        evidence = replace(evidence, asynchronous=_looks_asynchronous(traces.steps, admissions, first))
    cached = CachedTokens(admissions, evidence, first_decodes)
    complete = [journey for journey in ran if journey.complete]
    # The published context includes the token being processed.
    published = DecodeSegments.of(
        [(j.request, i.start, i.end, j.prompt + i.before) for j in complete for i in j.intervals if not i.prefill]
    )
    return Batches(
        decode=decode,
        prefill=_prefills(admissions, cached, decode, budget, recorded_chunks(admissions, traces.snapshots)),
        published_decode=published,
        published_prefill=_published_prefills(complete, published, budget),
        first_decodes=first_decodes,
        asynchronous=bool(evidence.asynchronous),
        admissions=admissions,
        cached=cached,
    )


def _looks_asynchronous(steps: Columns, admissions: Sequence[Admission], first: Sequence[int]) -> bool:
    """True if summaries count a request's first decode as prefill, as under async scheduling, vLLM's default.

    A tie counts as True.
    """
    begun: Counter[int] = Counter(s for a in admissions if not a.again for s in range(a.start, a.end + 1))
    first_decodes = Counter(first)
    with_first = without = 0
    for step, reqs in zip(steps["step_id"].tolist(), steps["summary_prefill_reqs"].tolist(), strict=True):
        if first_decodes[step]:
            with_first += reqs == begun[step] + first_decodes[step]
            without += reqs == begun[step]
    return with_first >= without


def _prefills(
    admissions: Sequence[Admission],
    cached: CachedTokens,
    decode: DecodeSegments,
    budget: int,
    recorded: Mapping[tuple[int, int], tuple[int, int]],
) -> Columns:
    """Corrected prefill entries by step: without cached tokens, recomputations in full, and in chunks that fit.

    int64 columns step, request, tokens, kv_before (tokens in the KV cache), first (1: the admission's first chunk),
    again (1: a recomputation after the first token), whole (1: all of an admission that ran to its end, so that its
    tokens show its cached prefix), sure (index into SURE). `recorded` has (kv_before, tokens) of chunks that the engine
    recorded, by request and step.

    Long prefills share a step's token budget as the engine's scheduler hands it out: running requests first, in order
    of their first step, then new ones.
    """
    rows: list[tuple[int, ...]] = []
    used: Counter[int] = Counter()  # step -> tokens of prefills that take one step
    in_step: dict[int, list[int]] = {}  # step -> longer prefills
    for i, a in enumerate(admissions):
        if a.single and a.whole:
            new = a.target - cached.tokens[i]
            used[a.start] += new
            rows.append((a.start, a.request, new, cached.tokens[i], 1, a.again, 1, _sure(cached.how[i])))
        else:
            for step in range(a.start, a.end + 1):
                in_step.setdefault(step, []).append(i)
    steps = sorted(in_step)
    decoding = decode.counts(np.array(steps, dtype=np.int64)).tolist()
    held = dict(enumerate(cached.tokens))  # tokens in the KV cache so far
    for step, decodes in zip(steps, decoding, strict=True):
        left = budget - decodes
        for i in in_step[step]:
            a = admissions[i]
            # A running request may take the rest of the budget, a new one only the rest after one-chunk requests.
            room = left - used[step] if a.start == step else left
            sure = min(_sure(cached.how[i]), 1)
            if (a.request, step) in recorded:
                held[i], new = recorded[a.request, step]
                sure = SURE.index("exact")
            elif a.whole:
                # It ends with its last step, and has at least a token in each: earlier steps leave them.
                rest = a.target - held[i]
                new = rest if step == a.end else min(room, rest - (a.end - step))
            else:
                new = min(room, a.target - held[i])
            if new <= 0:
                continue
            rows.append((step, a.request, new, held[i], held[i] == cached.tokens[i], a.again, 0, sure))
            held[i] += new
            left -= new
    return table(sorted(rows), ("step", "request", "tokens", "kv_before", "first", "again", "whole", "sure"))


def _sure(how: str) -> int:
    return 0 if how == "none" else 2 if how in EXACT else 1


def _published_prefills(journeys: Iterable[Journey], decode: DecodeSegments, budget: int) -> Columns:
    """Published prefill entries, int64 columns step, request, tokens, by step and by first scheduled step.

    A prefill of one step takes its exact tokens; longer ones take the step's token budget less its decodes.
    """
    spans = [(i.start, j.request, i.end, i.tokens) for j in journeys for i in j.intervals if i.prefill]
    remaining = {j.request: j.prompt for j in journeys}
    by_step: dict[int, list[tuple[int, int, int, int]]] = {}
    for span in sorted(spans):
        for step in range(span[0], span[2] + 1):
            by_step.setdefault(step, []).append(span)
    steps = sorted(by_step)
    decoding = decode.counts(np.array(steps, dtype=np.int64)).tolist()
    rows = []
    for step, decodes in zip(steps, decoding, strict=True):
        left = max(0, budget - decodes)
        for start, request, end, tokens in by_step[step]:
            new = min(tokens, remaining[request]) if start == end else min(remaining[request], left)
            if new > 0:
                remaining[request] -= new
                left -= new
                rows.append((step, request, new))
    return table(rows, ("step", "request", "tokens"))


def raw_columns(rows: int, step: np.ndarray, prefill: np.ndarray, new: np.ndarray, progress: np.ndarray) -> Columns:
    """Batches as the host simulator's step time sees them: the columns of `simulator.schema.RECORDED`, float64[rows].

    Per entry: the row of its step, True for a prefill, its new tokens, and its progress before the step. The host
    counts a prefix hit as no progress yet: the first chunk after one has progress 0 (see `simulator/schema.py`), though
    attention reads the cached tokens.
    """
    decode = ~prefill

    def total(values: np.ndarray, which: np.ndarray) -> np.ndarray:
        return np.bincount(step[which], values[which], rows)

    def largest(values: np.ndarray, which: np.ndarray) -> np.ndarray:
        out = np.zeros(rows)
        np.maximum.at(out, step[which], values[which])
        return out

    every = np.ones(len(step), dtype=bool)
    one = np.ones(len(step))
    n, s1, s2 = total(one, every), total(progress, every), total(progress * progress, every)
    columns = {
        "prefill_reqs": total(one, prefill),
        "decode_reqs": total(one, decode),
        "prefill_tokens": total(new, prefill),
        "max_prefill_chunk": largest(new, prefill),
        "prefill_pairs": total(new * progress + new * (new + 1) // 2, prefill),
        "kv_sum": s1,
        "kv_max": largest(progress, every),
        "kv_var": np.divide(n * s2 - s1 * s1, n * n, out=np.zeros(rows), where=n > 0),
        "kv_decode_sum": total(progress, decode),
        "kv_decode_max": largest(progress, decode),
    }
    return {name: columns[name] for name in RECORDED}
