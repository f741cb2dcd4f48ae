"""How many tokens of each admission the prefix cache held, and how that is known.

Journeys count cached tokens as covered, so the computed ones must come from elsewhere. The evidence, in the order in
which it is trusted:

- `snapshot`: the engine's own record of the request.
- `summary`: the step's prefill tokens, if this is the only admission in it that is unknown.
- `kv_events`: the stored blocks of the prompt begin where the cached ones end; an admission that ran to its end and
  stored none had all its full blocks cached.
- `prompt`: the same prompt text had been computed before.
- `short`: too short for a full block, or the engine does not cache.
- `none`: no evidence; taken as not cached, as the published reconstruction does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evolve.ingest.columns import NONE, Columns
from evolve.ingest.derive.admissions import Admission, Cached, Records
from evolve.ingest.derive.blocks import BlockChains, settle_from_blocks


def cached_tokens(admissions: Sequence[Admission], records: Records, chains: BlockChains | None) -> Cached:
    """Every admission's cached tokens; 0 with `none` where there is no evidence."""
    cached = Cached([NONE] * len(admissions), ["none"] * len(admissions))
    for i, a in enumerate(admissions):
        if not records.caching or a.target <= records.block:
            cached.settle(i, 0, "short")
    _from_snapshots(admissions, records.snapshots, cached)
    _from_summaries(admissions, records, cached)
    if chains is not None and len(chains):
        settle_from_blocks(admissions, records, chains, cached)
    elif len(records.same_prompt):
        _from_prompts(admissions, records, cached)
    _from_summaries(admissions, records, cached)  # once more: blocks and prompts leave steps with one unknown
    cached.tokens = [max(tokens, 0) for tokens in cached.tokens]
    return cached


def recorded_chunks(admissions: Sequence[Admission], snapshots: Columns) -> dict[tuple[int, int], tuple[int, int]]:
    """(tokens in the KV cache before the step, tokens scheduled) by request and step, for prefills of several steps."""
    wanted = {(a.request, step) for a in admissions if not a.single for step in range(a.start, a.end + 1)}
    columns = (snapshots[name].tolist() for name in ("request", "step_id", "computed", "scheduled"))
    return {
        (request, step): (computed, scheduled)
        for request, step, computed, scheduled in zip(*columns, strict=True)
        if (request, step) in wanted and NONE not in (computed, scheduled)
    }


def _from_snapshots(admissions: Sequence[Admission], snapshots: Columns, cached: Cached) -> None:
    computed, effective = {}, {}
    starts = {(a.request, a.start) for a in admissions}
    columns = (snapshots[name].tolist() for name in ("request", "step_id", "prompt", "computed", "effective"))
    for request, step, prompt, done, length in zip(*columns, strict=True):
        if done != NONE and (request, step) in starts:
            computed[request, step] = done
        if length != NONE and prompt != NONE:
            effective[request] = prompt - length
    seen = set()
    for i, a in enumerate(admissions):
        tokens = computed.get((a.request, a.start))
        if tokens is None and not a.again and a.request not in seen:  # the effective length is of the first admission
            tokens = effective.get(a.request)
        seen.add(a.request)
        if tokens is not None and 0 <= tokens < a.target:
            cached.settle(i, tokens, "snapshot")


def _from_summaries(admissions: Sequence[Admission], records: Records, cached: Cached) -> None:
    """A step's totals settle an admission of one step that is the only unknown in it."""
    names = (
        "step_id",
        "summary_prefill_reqs",
        "summary_prefill_tokens",
        "summary_decode_reqs",
        "summary_decode_tokens",
    )
    columns = (records.steps[name].tolist() for name in names)
    totals = {row[0]: row[1:] for row in zip(*columns, strict=True) if NONE not in row}
    in_step: dict[int, list[int]] = {}
    for i, a in enumerate(admissions):
        for step in range(a.start, a.end + 1):
            if step in totals:
                in_step.setdefault(step, []).append(i)
    steps, counts = np.unique(records.first_decode_steps, return_counts=True)
    # With two batches in flight the first decode is scheduled before the first token is processed, so the summary
    # counts it as prefill.
    early = dict(zip(steps.tolist(), counts.tolist(), strict=True)) if records.asynchronous else {}
    for step, members in in_step.items():
        prefill_reqs, prefill_tokens, decode_reqs, decode_tokens = totals[step]
        prefill = [i for i in members if not admissions[i].again]
        if len(prefill) + early.get(step, 0) == prefill_reqs:  # every prefill of the step is a known journey
            _settle_only_unknown(prefill, admissions, cached, prefill_tokens - early.get(step, 0))
        again = [i for i in members if admissions[i].again]
        _settle_only_unknown(again, admissions, cached, decode_tokens - decode_reqs + len(again))


def _settle_only_unknown(members: list[int], admissions: Sequence[Admission], cached: Cached, tokens: int) -> None:
    """Settle the only unknown one of `members`, which computed `tokens` tokens together in one step."""
    unknown = [i for i in members if cached.tokens[i] == NONE]
    if len(unknown) != 1 or not all(admissions[i].single and admissions[i].whole for i in members):
        return
    (i,) = unknown
    new = tokens - sum(admissions[j].target - cached.tokens[j] for j in members if j != i)
    if 1 <= new <= admissions[i].target:
        cached.settle(i, admissions[i].target - new, "summary")


def _from_prompts(admissions: Sequence[Admission], records: Records, cached: Cached) -> None:
    """A prompt computed before is cached except for its last, partial block; the last token is always computed."""
    computed_at: dict[int, int] = {}  # prompt -> the step after which all of it was in the cache
    for a in sorted(admissions, key=lambda a: a.end):
        prompt = records.same_prompt[a.request]
        if a.whole and prompt >= 0:
            computed_at.setdefault(prompt, a.end)
    for i, a in enumerate(admissions):
        prompt = records.same_prompt[a.request]
        if cached.tokens[i] == NONE and not a.again and computed_at.get(prompt, a.start) < a.start:
            cached.settle(i, (a.target - 1) // records.block * records.block, "prompt")
