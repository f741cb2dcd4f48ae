"""How many tokens of each admission the prefix cache held, and how that is known.

Journeys count cached tokens as covered, so what was computed must come from elsewhere. In the order in which they are
believed: `snapshot` (the engine's own record of the request), `summary` (the step's prefill tokens, where only this
admission is unknown), `kv_events` (the blocks of the prompt that were stored meanwhile begin where the cached ones end;
none stored by an admission that got to its end: all full blocks were cached), `prompt` (the same prompt text had been
computed before). `short`: too short for a full block, or the engine does not cache. `none`: no evidence; taken as not
cached, as the published reconstruction does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evolve.ingest.columns import NONE, Columns
from evolve.ingest.derive.admissions import Admission
from evolve.ingest.derive.known import Known, Sources
from evolve.ingest.derive.stored import from_kv_events


def evidence(found: Sequence[Admission], sources: Sources) -> Known:
    """Every admission's cached tokens; where nothing tells, 0 with `none`."""
    known = Known([NONE] * len(found), ["none"] * len(found))
    for i, a in enumerate(found):
        if not sources.caching or a.target <= sources.block:
            known.settle(i, 0, "short")
    _from_snapshots(found, sources.snapshots, known)
    _from_summaries(found, sources, known)
    if sources.chains is not None and len(sources.chains):
        from_kv_events(found, sources, sources.chains, known)
    elif len(sources.same_prompt):
        _from_prompts(found, sources, known)
    _from_summaries(found, sources, known)
    known.cached = [max(c, 0) for c in known.cached]
    return known


def recorded(found: Sequence[Admission], snapshots: Columns) -> dict[tuple[int, int], tuple[int, int]]:
    """(tokens in the KV cache before it, tokens scheduled) by request and step: of prefills of several steps."""
    wanted = {(a.request, step) for a in found if not a.single for step in range(a.start, a.end + 1)}
    columns = (snapshots[name].tolist() for name in ("request", "step_id", "computed", "scheduled"))
    return {
        (request, step): (done, new)
        for request, step, done, new in zip(*columns, strict=True)
        if (request, step) in wanted and NONE not in (done, new)
    }


def _from_snapshots(found: Sequence[Admission], snapshots: Columns, known: Known) -> None:
    computed, effective = {}, {}
    starts = {(a.request, a.start) for a in found}
    columns = (snapshots[name].tolist() for name in ("request", "step_id", "prompt", "computed", "effective"))
    for request, step, prompt, done, length in zip(*columns, strict=True):
        if done != NONE and (request, step) in starts:
            computed[request, step] = done
        if length != NONE and prompt != NONE:
            effective[request] = prompt - length
    first = set()
    for i, a in enumerate(found):
        cached = computed.get((a.request, a.start))
        if cached is None and not a.again and a.request not in first:  # it is about the first admission
            cached = effective.get(a.request)
        first.add(a.request)
        if cached is not None and 0 <= cached < a.target:
            known.settle(i, cached, "snapshot")


def _from_summaries(found: Sequence[Admission], sources: Sources, known: Known) -> None:
    """A step's totals settle an admission of one step that is the only unknown in it."""
    s = sources.steps
    names = (
        "step_id",
        "summary_prefill_reqs",
        "summary_prefill_tokens",
        "summary_decode_reqs",
        "summary_decode_tokens",
    )
    totals = {row[0]: row[1:] for row in zip(*(s[name].tolist() for name in names), strict=True) if NONE not in row}
    at: dict[int, list[int]] = {}
    for i, a in enumerate(found):
        for step in range(a.start, a.end + 1):
            if step in totals:
                at.setdefault(step, []).append(i)
    steps, counts = np.unique(sources.first_decode_steps, return_counts=True)
    # with two batches in flight the first decode is scheduled before the first token is processed: counted as prefill
    early = dict(zip(steps.tolist(), counts.tolist(), strict=True)) if sources.asynchronous else {}
    for step, members in at.items():
        prefill_reqs, prefill_tokens, decode_reqs, decode_tokens = totals[step]
        prefill = [i for i in members if not found[i].again]
        if len(prefill) + early.get(step, 0) == prefill_reqs:  # nobody else is in the step
            _only_unknown(prefill, found, known, prefill_tokens - early.get(step, 0))
        again = [i for i in members if found[i].again]
        _only_unknown(again, found, known, decode_tokens - decode_reqs + len(again))


def _only_unknown(members: list[int], found: Sequence[Admission], known: Known, tokens: int) -> None:
    unknown = [i for i in members if known.cached[i] == NONE]
    if len(unknown) != 1 or not all(found[i].single and found[i].whole for i in members):
        return
    new = tokens - sum(found[i].target - known.cached[i] for i in members if i != unknown[0])
    if 1 <= new <= found[unknown[0]].target:
        known.settle(unknown[0], found[unknown[0]].target - new, "summary")


def _from_prompts(found: Sequence[Admission], sources: Sources, known: Known) -> None:
    """A prompt that was computed before is cached but for its last, partial block; a last token is always computed."""
    computed_at: dict[int, int] = {}  # prompt -> the step after which all of it was in the cache
    for a in sorted(found, key=lambda a: a.end):
        prompt = sources.same_prompt[a.request]
        if a.whole and prompt >= 0:
            computed_at.setdefault(prompt, a.end)
    for i, a in enumerate(found):
        prompt = sources.same_prompt[a.request]
        if known.cached[i] == NONE and not a.again and computed_at.get(prompt, a.start) < a.start:
            known.settle(i, (a.target - 1) // sources.block * sources.block, "prompt")
