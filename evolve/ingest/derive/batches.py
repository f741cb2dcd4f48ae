"""What ran in every scheduler step, reconstructed twice: corrected with all the evidence of a folder, and as published.

The published reconstruction uses journeys alone and is kept for comparison. It counts prefix-cache hits as computed,
lets a resumed request decode one token where it recomputes everything, and splits chunks greedily.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evolve.ingest.columns import Columns, DecodeSegments
from evolve.ingest.derive.admissions import EXACT, Admission, Cached, Records, admissions_of
from evolve.ingest.derive.blocks import BlockChains
from evolve.ingest.derive.evidence import cached_tokens, recorded_chunks
from evolve.ingest.derive.journeys import MOST_STEPS_IN_ALL, TOO_MANY, Journey
from evolve.ingest.read.traces import Traces
from simulator.schema import RECORDED

SURE = ("assumed", "inferred", "exact")
"""How sure a step's batch is: a cached prefix has no evidence, follows from other records, or was recorded."""


@dataclass(frozen=True)
class Batches:
    """Decode stretches and prefill entries, corrected and as published; requests are core requests of `Traces`.

    `decode.tokens` are the tokens in the KV cache before the step; `published_decode.tokens` is the published context,
    which is one more. `early` has the step of every request's first decode, which summaries count as prefill under
    async scheduling.
    """

    decode: DecodeSegments
    prefill: Columns
    published_decode: DecodeSegments
    published_prefill: Columns
    early: np.ndarray
    asynchronous: bool
    admissions: tuple[Admission, ...]
    cached: Cached


def reconstruct(
    traces: Traces,
    journeys: Sequence[Journey],
    chains: BlockChains | None,
    epoch_offset_s: float,
    same_prompt: Sequence[int],
    budget: int,
    block: int,
    caching: bool,
    asynchronous: bool | None,
) -> Batches:
    """The batches of a run. `budget` is max_num_batched_tokens, `block` the tokens of a KV block.

    `asynchronous` None: whichever agrees with more of the steps' summaries. Further arguments: see `Records`.
    """
    ran = _within_reason(journeys, traces.tally)
    admissions, stretches = admissions_of(ran, budget)
    decode = DecodeSegments.of(stretches)
    first = [i for journey in ran for i in journey.intervals if not i.prefill and not i.resumed]
    early = np.array([i.start for i in first], dtype=np.int64)
    if asynchronous is None:
        asynchronous = _looks_asynchronous(traces.steps, admissions, early)
    records = Records(
        traces.core_ids, traces.steps, traces.snapshots, epoch_offset_s, same_prompt, early, block, caching,
        asynchronous,
    )  # fmt: skip
    cached = cached_tokens(admissions, records, chains)
    complete = [journey for journey in ran if journey.complete]
    published = _published_decodes(complete)
    return Batches(
        decode=decode,
        prefill=_prefills(admissions, cached, decode, budget, recorded_chunks(admissions, traces.snapshots)),
        published_decode=published,
        published_prefill=_published_prefills(complete, published, budget),
        early=early,
        asynchronous=asynchronous,
        admissions=tuple(admissions),
        cached=cached,
    )


def _within_reason(journeys: Sequence[Journey], tally: Counter[str]) -> list[Journey]:
    """Sound journeys that ran, up to MOST_STEPS_IN_ALL steps together; those beyond are counted."""
    ran = [j for j in journeys if j.sound and j.scheduled_ns is not None and j.prompt > 0]
    steps = np.cumsum([j.steps() for j in ran])
    kept = int(np.searchsorted(steps, MOST_STEPS_IN_ALL, side="right"))
    tally[TOO_MANY] += len(ran) - kept
    return ran[:kept]


def _looks_asynchronous(steps: Columns, admissions: Sequence[Admission], early: np.ndarray) -> bool:
    """Whether summaries count a request's first decode as prefill, as under async scheduling; a tie gives True, vLLM's
    default."""
    begun: Counter[int] = Counter(s for a in admissions if not a.again for s in range(a.start, a.end + 1))
    first_decodes: Counter[int] = Counter(early.tolist())
    with_early = without = 0
    for step, reqs in zip(steps["step_id"].tolist(), steps["summary_prefill_reqs"].tolist(), strict=True):
        if first_decodes[step]:
            with_early += reqs == begun[step] + first_decodes[step]
            without += reqs == begun[step]
    return with_early >= without


def _prefills(
    admissions: Sequence[Admission],
    cached: Cached,
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
    used: dict[int, int] = {}  # step -> tokens of prefills that take one step
    for i, a in enumerate(admissions):
        if a.single and a.whole:
            new = a.target - cached.tokens[i]
            used[a.start] = used.get(a.start, 0) + new
            rows.append((a.start, a.request, new, cached.tokens[i], 1, a.again, 1, _sure(cached.how[i])))
    longer = [i for i, a in enumerate(admissions) if not (a.single and a.whole)]
    steps = np.unique(
        np.concatenate([np.arange(admissions[i].start, admissions[i].end + 1) for i in longer] or [np.arange(0)])
    )
    decoding = dict(zip(steps.tolist(), decode.counts(steps).tolist(), strict=True))
    in_step: dict[int, list[int]] = {}
    for i in longer:
        for step in range(admissions[i].start, admissions[i].end + 1):
            in_step.setdefault(step, []).append(i)
    held = {i: cached.tokens[i] for i in longer}  # tokens in the KV cache so far
    for step in steps.tolist():
        left = budget - decoding[step]
        for i in in_step[step]:
            a = admissions[i]
            # A running request may take all that is left, a new one what the new requests of one chunk leave.
            room = left - (used.get(step, 0) if a.start == step else 0)
            sure = min(_sure(cached.how[i]), 1)
            if (a.request, step) in recorded:
                held[i], new = recorded[a.request, step]
                sure = SURE.index("exact")
            else:
                rest = a.target - held[i]
                # A whole admission ends with its last step, and has at least a token in each: earlier steps leave them.
                new = rest if a.whole and step == a.end else min(room, rest - (a.end - step) * a.whole)
            if new <= 0:
                continue
            first = held[i] == cached.tokens[i]
            rows.append((step, a.request, new, held[i], first, a.again, 0, sure))
            held[i] += new
            left -= new
    table = np.array(sorted(rows), dtype=np.int64).reshape(-1, 8)
    names = ("step", "request", "tokens", "kv_before", "first", "again", "whole", "sure")
    return {name: table[:, j] for j, name in enumerate(names)}


def _sure(how: str) -> int:
    return 0 if how == "none" else 2 if how in EXACT else 1


def _published_decodes(journeys: Iterable[Journey]) -> DecodeSegments:
    """Published decode entries; `tokens` is the context, the token being processed included."""
    return DecodeSegments.of(
        [(j.request, i.start, i.end, j.prompt + i.before) for j in journeys for i in j.intervals if not i.prefill]
    )


def _published_prefills(journeys: Iterable[Journey], decode: DecodeSegments, budget: int) -> Columns:
    """Published prefill entries, int64 columns step, request, tokens, by step and by first scheduled step.

    A prefill of one step takes its exact tokens, longer ones what the decodes leave of the step's token budget.
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
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return {"step": table[:, 0], "request": table[:, 1], "tokens": table[:, 2]}


def raw_columns(rows: int, step: np.ndarray, prefill: np.ndarray, new: np.ndarray, progress: np.ndarray) -> Columns:
    """Batches as the host simulator's step time sees them: the columns of `simulator.schema.RECORDED`, float64[rows].

    Per entry: the row of its step, whether it is a prefill, its new tokens, and its progress before the step. The host
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
