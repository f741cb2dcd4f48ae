"""Chains of KV blocks: the place of each stored run of blocks in its sequence.

The blocks that an admission stored begin where its cached ones end.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from math import inf

from evolve.ingest.read.kv_events import KvEvent


class BlockChains:
    """Runs of blocks, each stored on the GPU by one event, in order of time, and the blocks in the offload tier.

    Run n was stored at `ts_s[n]` (wall clock) by an event of batch `batch[n]`. It is blocks `begin[n]` to `end[n]` of a
    sequence, counted from 0, end excluded. `before[n]` is the run with its parent block, -1 at the sequence's start.
    `ending_at` lists runs by the depth at which they end, `commits` the blocks committed by (request, batch).
    `orphans` counts runs whose parent was stored before the file begins.
    """

    def __init__(self) -> None:
        self.ts_s, self.batch = array("d"), array("q")
        self.begin, self.end, self.before = array("q"), array("q"), array("q")
        self.ending_at: defaultdict[int, array[int]] = defaultdict(lambda: array("q"))
        self.commits: Counter[tuple[str, int]] = Counter()
        self.orphans = 0
        self.block_size: int | None = None
        self.first_s, self.last_s = inf, -inf
        self._hashes = array("Q")  # of the blocks of all runs, one after the other
        self._first = array("q")  # where a run's hashes begin
        self._run_of: dict[int, int] = {}  # hash -> the latest run that holds it

    def __len__(self) -> int:
        return len(self.ts_s)

    def add(self, event: KvEvent) -> None:
        self.first_s, self.last_s = min(self.first_s, event.ts_s), max(self.last_s, event.ts_s)
        if event.type == "CacheStoreCommitted" and event.request and event.blocks is not None:
            self.commits[event.request, event.batch] += event.blocks
        if event.type != "BlockStored" or event.medium not in (None, "GPU") or not event.hashes:
            return
        self.block_size = self.block_size or event.block_size
        before, begin = -1, 0
        if event.parent is not None:
            before = self._run_of.get(event.parent, -1)
            if before < 0:
                self.orphans += 1
                return
            first = self._first[before]
            place = self._hashes.index(event.parent, first, first + self.length(before)) - first
            begin = self.begin[before] + place + 1
        run, end = len(self), begin + len(event.hashes)
        self.ts_s.append(event.ts_s)
        self.batch.append(event.batch)
        self.begin.append(begin)
        self.end.append(end)
        self.before.append(before)
        self.ending_at[end].append(run)
        self._first.append(len(self._hashes))
        self._hashes.extend(event.hashes)
        self._run_of.update(dict.fromkeys(event.hashes, run))

    def length(self, run: int) -> int:
        """The number of blocks of the run."""
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

    def ending(self, depth: int, since_s: float, until_s: float) -> Sequence[int]:
        """The runs that end at a depth and were stored between two times, in order."""
        runs = self.ending_at.get(depth, array("q"))
        first = bisect_left(runs, since_s, key=self.ts_s.__getitem__)
        return runs[first : bisect_right(runs, until_s, key=self.ts_s.__getitem__)]

    def between(self, since_s: float, until_s: float) -> range:
        """The runs that were stored between two times."""
        return range(bisect_left(self.ts_s, since_s), bisect_right(self.ts_s, until_s))
