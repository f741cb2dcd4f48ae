"""What KV events tell of cached prompts: the blocks that an admission stored begin where the cached ones end."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from math import inf

import numpy as np

from evolve.ingest.columns import NONE
from evolve.ingest.derive.admissions import Admission
from evolve.ingest.derive.blocks import Chains
from evolve.ingest.derive.known import Known, Sources

PUBLISHED_LATE_S = 0.002  # a batch of KV events is published while outputs are handled, so a moment after FIRST_TOKEN


def from_kv_events(found: Sequence[Admission], sources: Sources, chains: Chains, known: Known) -> None:
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
