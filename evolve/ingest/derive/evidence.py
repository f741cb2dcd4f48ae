"""How many tokens of each admission the prefix cache held, and how that is known.

Journeys count cached tokens as covered, so what was computed must come from elsewhere. In the order in which they are
believed: `snapshot` (the engine's own record of the request), `summary` (the step's prefill tokens, where only this
admission is unknown), `kv_events` (the blocks of the prompt that were stored meanwhile begin where the cached ones end;
none stored by an admission that got to its end: all full blocks were cached), `prompt` (the same prompt text had been
computed before). `short`: too short for a full block, or the engine does not cache. `none`: no evidence; taken as not
cached, as the published reconstruction does.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from evolve.ingest.derive.admissions import Admission
from evolve.ingest.derive.blocks import Chains
from evolve.ingest.derive.columns import NONE, Columns

EXACT = ("snapshot", "summary", "short")
PUBLISHED_LATE_S = 0.002  # a batch of KV events is published while outputs are handled, so a moment after FIRST_TOKEN


@dataclass(slots=True)
class Known:
    """Cached tokens of each admission, NONE while unknown, and how that is known."""

    cached: list[int]
    how: list[str]

    def settle(self, i: int, cached: int, how: str) -> None:
        self.cached[i], self.how[i] = cached, how


@dataclass(frozen=True)
class Sources:
    """What there is to learn from.

    `core_ids`, `steps` and `snapshots` as in `Traces`. `same_prompt[request]`: the number of its prompt's text, -1
    where it is unknown; empty without client rows. `first_decode_steps`: of every request its first decode step.
    `epoch_offset_s`: wall clock less server clock. `block`: tokens of a KV block.
    """

    core_ids: Sequence[str]
    steps: Columns
    snapshots: Columns
    chains: Chains | None
    epoch_offset_s: float
    same_prompt: Sequence[int]
    first_decode_steps: np.ndarray
    block: int
    caching: bool
    asynchronous: bool


def evidence(found: Sequence[Admission], sources: Sources) -> Known:
    """Every admission's cached tokens; where nothing tells, 0 with `none`."""
    known = Known([NONE] * len(found), ["none"] * len(found))
    for i, a in enumerate(found):
        if not sources.caching or a.target <= sources.block:
            known.settle(i, 0, "short")
    _from_snapshots(found, sources.snapshots, known)
    _from_summaries(found, sources, known)
    if sources.chains is not None and len(sources.chains):
        _from_kv_events(found, sources, sources.chains, known)
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


def _from_kv_events(found: Sequence[Admission], sources: Sources, chains: Chains, known: Known) -> None:
    """Runs of blocks that were stored while an admission was computed, and that end where its full blocks end, are its
    own: by their hashes where its prompt's are known, by the offload tier's word, or since nobody else's. A run goes
    with one admission. Of an admission that did not get to its end, runs of its prompt tell where it began."""
    prefill_ns = [a.until_ns - a.at_ns for a in found if a.single and a.whole and not a.again]
    usual_ns = float(np.median(prefill_ns)) if prefill_ns else 0.0
    paths = _paths(found, sources, chains, known, usual_ns)
    following = _following(found)
    taken: set[int] = set()
    unknown = []
    for i, a in enumerate(found):
        if known.cached[i] == NONE:
            unknown.append(i)
            continue
        own = [n for n in _stored(a, sources, chains, usual_ns) if chains.begin[n] * sources.block == known.cached[i]]
        taken.update(own[:1])
    for i in sorted(unknown, key=lambda i: found[i].again):
        a = found[i]
        since, until = _window(a, sources)
        if since > chains.last_s or until < chains.first_s:
            continue
        path = () if a.again else paths.get(_prompt(a, sources), ())
        if a.whole:
            runs = [n for n in _stored(a, sources, chains, usual_ns) if n not in taken]
            if path:
                runs = [n for n in runs if chains.last(n) == path[-1]]
            run = _own_run(runs, a, sources, chains, bool(path))
        else:
            run = _deepest(a, sources, chains, min(a.until_ns + usual_ns, following.get(i, inf)), path)
        if run is not None:
            known.settle(i, chains.root(run, since, a.end - a.start) * sources.block, "kv_events")
            taken.add(run)
        elif a.whole:
            known.settle(i, (a.target - 1) // sources.block * sources.block, "kv_events")


def _window(a: Admission, sources: Sources, until_ns: float | None = None) -> tuple[float, float]:
    """Between these wall-clock times in s the blocks of an admission are published."""
    until = (a.until_ns if until_ns is None else until_ns) / 1e9 + sources.epoch_offset_s
    return a.at_ns / 1e9 + sources.epoch_offset_s, until + PUBLISHED_LATE_S


def _stored(a: Admission, sources: Sources, chains: Chains, usual_ns: float) -> Sequence[int]:
    """Runs that end with the admission's last full block, stored while it was computed, in order of time."""
    # a recomputation has no FIRST_TOKEN; it takes about as long as a prefill
    until_ns = min(a.until_ns, a.at_ns + usual_ns * (a.end - a.start + 1)) if a.again else a.until_ns
    since, until = _window(a, sources, until_ns)
    runs = chains.ending_at.get(a.target // sources.block, array("q"))
    first = bisect_left(runs, since, key=chains.ts_s.__getitem__)
    return runs[first : bisect_right(runs, until, key=chains.ts_s.__getitem__)]


def _prompt(a: Admission, sources: Sources) -> int:
    return sources.same_prompt[a.request] if len(sources.same_prompt) else NONE


def _paths(
    found: Sequence[Admission], sources: Sources, chains: Chains, known: Known, usual_ns: float
) -> dict[int, list[int]]:
    """The hashes of the full blocks of every prompt: those of the several blocks (an answer's come one by one) that
    were stored during most of its admissions. None of a prompt without such ones, or with a tie."""
    votes: defaultdict[int, dict[int, list[int]]] = defaultdict(dict)  # prompt -> last hash -> runs
    for a, cached in zip(found, known.cached, strict=True):
        prompt = _prompt(a, sources)
        for n in _stored(a, sources, chains, usual_ns) if a.whole and not a.again and prompt >= 0 else ():
            begin = chains.root(n, _window(a, sources)[0], a.end - a.start)
            if chains.end[n] - begin > 1 and cached in (NONE, begin * sources.block):
                votes[prompt].setdefault(chains.last(n), []).append(n)
    paths: dict[int, list[int]] = {}
    for prompt, runs in votes.items():
        first, *others = sorted(runs.values(), key=len, reverse=True)
        if not others or len(first) > len(others[0]):
            paths[prompt] = chains.path(first[0])
    return paths


def _following(found: Sequence[Admission]) -> dict[int, int]:
    """When the request was admitted again, in ns, by the number of the admission before."""
    last: dict[int, int] = {}
    times = {}
    for i, a in enumerate(found):
        if a.request in last:
            times[last[a.request]] = a.at_ns
        last[a.request] = i
    return times


def _deepest(a: Admission, sources: Sources, chains: Chains, until_ns: float, path: Sequence[int]) -> int | None:
    """Of the runs of the admission's prompt that were stored until then, the one that ends deepest. What an abort left
    behind is published with the next output, unless the request was admitted again before."""
    since, until = (ns / 1e9 + sources.epoch_offset_s for ns in (a.at_ns, until_ns))
    runs = range(bisect_left(chains.ts_s, since), bisect_right(chains.ts_s, until))
    own = [n for n in runs if chains.end[n] <= len(path) and chains.last(n) == path[chains.end[n] - 1]]
    return max(own, key=lambda n: chains.end[n], default=None)


def _own_run(runs: Sequence[int], a: Admission, sources: Sources, chains: Chains, sure: bool) -> int | None:
    """The first that the offload tier names the request for, else the first of several blocks: a single one is more
    often the next block of somebody's answer, but in a recomputation or where the hash tells (`sure`). In a prefill of
    several steps it is the end of the longest chain that was stored meanwhile."""
    if len(runs) and not a.single:
        return min(runs, key=lambda n: chains.root(n, a.at_ns / 1e9 + sources.epoch_offset_s, a.end - a.start))

    def length(n: int) -> int:
        return chains.end[n] - chains.begin[n]

    named = {n: chains.commits.get((sources.core_ids[a.request], chains.batch[n])) for n in runs}
    alike = [n for n in runs if named[n] == length(n)]
    some = alike or [n for n in runs if named[n]] or [n for n in runs if length(n) > 1 or a.again or sure]
    return some[0] if some else None


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
