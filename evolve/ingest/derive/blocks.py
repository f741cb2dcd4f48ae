"""Chains of KV blocks: where in its sequence each stored run of blocks begins, and what that shows of cached prompts.

The blocks that an admission stored begin where its cached ones end.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from evolve.ingest.columns import NONE
from evolve.ingest.derive.admissions import Admission, Cached, Records
from evolve.ingest.read.kv_events import KvEvent

PUBLISHED_LATE_S = 0.002  # KV events are published while outputs are handled, so a moment after FIRST_TOKEN


def _integers() -> array[int]:
    return array("q")


@dataclass(slots=True)
class BlockChains:
    """Runs of blocks, each stored on the GPU by one event, in order of time; and what went to the offload tier.

    Run n was stored at `ts_s[n]` (wall clock) by an event of batch `batch[n]`. It is blocks `begin[n]` to `end[n]` of a
    sequence, counted from 0, end excluded. `before[n]` is the run with its parent block, -1 at the sequence's start.
    `ending_at` lists runs by the depth at which they end, `commits` the blocks committed by (request, batch).
    `orphans` counts runs whose parent was stored before the file begins.
    """

    ts_s: array[float] = field(default_factory=lambda: array("d"))
    batch: array[int] = field(default_factory=_integers)
    begin: array[int] = field(default_factory=_integers)
    end: array[int] = field(default_factory=_integers)
    before: array[int] = field(default_factory=_integers)
    ending_at: defaultdict[int, array[int]] = field(default_factory=lambda: defaultdict(_integers))
    commits: dict[tuple[str, int], int] = field(default_factory=dict)
    orphans: int = 0
    block_size: int | None = None
    first_s: float = inf
    last_s: float = -inf
    _hashes: array[int] = field(default_factory=lambda: array("Q"))  # of the blocks of all runs, one after the other
    _first: array[int] = field(default_factory=_integers)  # where a run's hashes begin
    _run_of: dict[int, int] = field(default_factory=dict)  # hash -> the latest run that holds it

    def __len__(self) -> int:
        return len(self.ts_s)

    def add(self, event: KvEvent) -> None:
        self.first_s, self.last_s = min(self.first_s, event.ts_s), max(self.last_s, event.ts_s)
        if event.type == "CacheStoreCommitted" and event.request and event.blocks is not None:
            key = event.request, event.batch
            self.commits[key] = self.commits.get(key, 0) + event.blocks
        if event.type != "BlockStored" or event.medium not in (None, "GPU") or not event.hashes:
            return
        self.block_size = self.block_size or event.block_size
        before, begin = -1, 0
        if event.parent is not None:
            before = self._run_of.get(event.parent, -1)
            if before < 0:
                self.orphans += 1
                return
            begin = self._depth(event.parent, before) + 1
        number, end = len(self), begin + len(event.hashes)
        self.ts_s.append(event.ts_s)
        self.batch.append(event.batch)
        self.begin.append(begin)
        self.end.append(end)
        self.before.append(before)
        self.ending_at[end].append(number)
        self._first.append(len(self._hashes))
        self._hashes.extend(event.hashes)
        for block in event.hashes:
            self._run_of[block] = number

    def _depth(self, block: int, run: int) -> int:
        first = self._first[run]
        return self.begin[run] + self._hashes.index(block, first, first + self.length(run)) - first

    def length(self, run: int) -> int:
        """How many blocks the run has."""
        return self.end[run] - self.begin[run]

    def last(self, run: int) -> int:
        """The hash of a run's last block, which identifies everything up to it."""
        return self._hashes[self._first[run] + self.length(run) - 1]

    def path(self, run: int) -> list[int]:
        """The hashes of a sequence's blocks up to the end of a run."""
        hashes: list[int] = []
        end = self.end[run]
        while run >= 0:
            begin, first = self.begin[run], self._first[run]
            hashes[:0] = self._hashes[first : first + end - begin]
            end, run = begin, self.before[run]
        return hashes

    def root(self, run: int, since_s: float, most: int) -> int:
        """The first block of the chain that ends with `run` and goes back at most `most` more runs, none before
        `since_s`."""
        while most > 0 and self.before[run] >= 0 and self.ts_s[self.before[run]] >= since_s:
            run, most = self.before[run], most - 1
        return self.begin[run]


def settle_from_blocks(admissions: Sequence[Admission], records: Records, chains: BlockChains, cached: Cached) -> None:
    """Settle the admissions of which the stored blocks show how much was cached.

    A run belongs to an admission if it was stored while the admission was computed and ends where its full blocks end,
    and if one of these holds: its hashes are those of the prompt, the offload tier names the request, or no other
    admission can own it. A run belongs to one admission only. If an admission did not get to its end, any run of its
    prompt shows where it began; if it did and stored nothing, all its full blocks were cached.
    """
    prefill_ns = [a.until_ns - a.at_ns for a in admissions if a.single and a.whole and not a.again]
    usual_ns = float(np.median(prefill_ns)) if prefill_ns else 0.0
    paths = _paths(admissions, records, chains, cached, usual_ns)
    following = _following(admissions)
    taken: set[int] = set()
    unknown = []
    for i, a in enumerate(admissions):
        if cached.tokens[i] == NONE:
            unknown.append(i)
            continue
        stored = _stored(a, records, chains, usual_ns)
        taken.update([n for n in stored if chains.begin[n] * records.block == cached.tokens[i]][:1])
    # Prefills first: their runs are easier to recognise, which leaves fewer candidates for recomputations.
    for i in sorted(unknown, key=lambda i: admissions[i].again):
        a = admissions[i]
        since, until = _published(a, records)
        if since > chains.last_s or until < chains.first_s:
            continue
        path = () if a.again else paths.get(_prompt(a, records), ())
        if a.whole:
            runs = [n for n in _stored(a, records, chains, usual_ns) if n not in taken]
            if path:
                runs = [n for n in runs if chains.last(n) == path[-1]]
            run = _own_run(runs, a, records, chains, bool(path))
        else:
            run = _deepest(a, records, chains, min(a.until_ns + usual_ns, following.get(i, inf)), path)
        if run is not None:
            cached.settle(i, chains.root(run, since, a.end - a.start) * records.block, "kv_events")
            taken.add(run)
        elif a.whole:
            cached.settle(i, (a.target - 1) // records.block * records.block, "kv_events")


def _published(a: Admission, records: Records, until_ns: float | None = None) -> tuple[float, float]:
    """The wall-clock times in s between which the blocks of an admission are published."""
    until = (a.until_ns if until_ns is None else until_ns) / 1e9 + records.epoch_offset_s
    return a.at_ns / 1e9 + records.epoch_offset_s, until + PUBLISHED_LATE_S


def _stored(a: Admission, records: Records, chains: BlockChains, usual_ns: float) -> Sequence[int]:
    """Runs that end with the admission's last full block and were stored while it was computed, in order of time."""
    # A recomputation has no FIRST_TOKEN; it takes about as long as a prefill.
    until_ns = min(a.until_ns, a.at_ns + usual_ns * (a.end - a.start + 1)) if a.again else a.until_ns
    since, until = _published(a, records, until_ns)
    runs = chains.ending_at.get(a.target // records.block, array("q"))
    first = bisect_left(runs, since, key=chains.ts_s.__getitem__)
    return runs[first : bisect_right(runs, until, key=chains.ts_s.__getitem__)]


def _prompt(a: Admission, records: Records) -> int:
    return records.same_prompt[a.request] if len(records.same_prompt) else NONE


def _paths(
    admissions: Sequence[Admission], records: Records, chains: BlockChains, cached: Cached, usual_ns: float
) -> dict[int, list[int]]:
    """The hashes of the full blocks of every prompt: those of the runs stored during most of its admissions.

    Only runs of several blocks count, because those of an answer come one by one. A prompt without such runs, or with
    a tie, is left out.
    """
    votes: defaultdict[int, dict[int, list[int]]] = defaultdict(dict)  # prompt -> last hash -> runs
    for a, tokens in zip(admissions, cached.tokens, strict=True):
        prompt = _prompt(a, records)
        for n in _stored(a, records, chains, usual_ns) if a.whole and not a.again and prompt >= 0 else ():
            begin = chains.root(n, _published(a, records)[0], a.end - a.start)
            if chains.end[n] - begin > 1 and tokens in (NONE, begin * records.block):
                votes[prompt].setdefault(chains.last(n), []).append(n)
    paths: dict[int, list[int]] = {}
    for prompt, runs in votes.items():
        first, *others = sorted(runs.values(), key=len, reverse=True)
        if not others or len(first) > len(others[0]):
            paths[prompt] = chains.path(first[0])
    return paths


def _following(admissions: Sequence[Admission]) -> dict[int, int]:
    """When a request was admitted again, in ns, by the number of its previous admission."""
    last: dict[int, int] = {}
    times = {}
    for i, a in enumerate(admissions):
        if a.request in last:
            times[last[a.request]] = a.at_ns
        last[a.request] = i
    return times


def _deepest(a: Admission, records: Records, chains: BlockChains, until_ns: float, path: Sequence[int]) -> int | None:
    """Of the runs of the admission's prompt stored by then, the one that ends deepest.

    What an abort leaves behind is published with the next output, unless the request is admitted again before.
    """
    since, until = (ns / 1e9 + records.epoch_offset_s for ns in (a.at_ns, until_ns))
    runs = range(bisect_left(chains.ts_s, since), bisect_right(chains.ts_s, until))
    own = [n for n in runs if chains.end[n] <= len(path) and chains.last(n) == path[chains.end[n] - 1]]
    return max(own, key=lambda n: chains.end[n], default=None)


def _own_run(runs: Sequence[int], a: Admission, records: Records, chains: BlockChains, sure: bool) -> int | None:
    """The admission's own run: the first one for which the offload tier names the request, else the first one of
    several blocks.

    A single block is more often the next one of another request's answer, except in a recomputation or if the hashes
    match (`sure`). A prefill of several steps owns the end of the longest chain stored meanwhile.
    """
    if len(runs) and not a.single:
        return min(runs, key=lambda n: chains.root(n, a.at_ns / 1e9 + records.epoch_offset_s, a.end - a.start))
    named = {n: chains.commits.get((records.core_ids[a.request], chains.batch[n])) for n in runs}
    alike = [n for n in runs if named[n] == chains.length(n)]
    own = alike or [n for n in runs if named[n]] or [n for n in runs if chains.length(n) > 1 or a.again or sure]
    return own[0] if own else None
