"""The chains of KV blocks that BlockStored events tell of: how deep in its sequence every run of new blocks begins."""

from __future__ import annotations

from array import array
from collections import defaultdict
from dataclasses import dataclass, field

from evolve.ingest.sources.kv_events import KvEvent


def _whole() -> array[int]:
    return array("q")


@dataclass(slots=True)
class Chains:
    """Runs of blocks stored on the GPU by one event each, in order of time, and what went to the offload tier.

    Of run n: `ts_s` and `batch` of its event; it is blocks `begin` to `end` of a sequence (counted from 0, end
    excluded); `before`: the run that holds the parent block, -1 at the sequence's first block.
    `ending_at`: runs by the depth at which they end.
    """

    ts_s: array[float] = field(default_factory=lambda: array("d"))
    batch: array[int] = field(default_factory=_whole)
    begin: array[int] = field(default_factory=_whole)
    end: array[int] = field(default_factory=_whole)
    before: array[int] = field(default_factory=_whole)
    ending_at: defaultdict[int, array[int]] = field(default_factory=lambda: defaultdict(_whole))
    commits: dict[tuple[str, int], int] = field(default_factory=dict)  # (request, batch) -> blocks
    orphans: int = 0  # runs whose parent was stored before the file begins
    block_size: int | None = None
    first_s: float = float("inf")
    last_s: float = float("-inf")
    _hashes: array[int] = field(default_factory=lambda: array("Q"))  # of all runs' blocks
    _first: array[int] = field(default_factory=_whole)  # where a run's begin
    _run_of: dict[int, int] = field(default_factory=dict)  # hash -> the latest run that holds it

    def __len__(self) -> int:
        return len(self.ts_s)

    def add(self, event: KvEvent) -> None:
        self.first_s, self.last_s = min(self.first_s, event.ts_s), max(self.last_s, event.ts_s)
        if event.type == "CacheStoreCommitted" and event.request and event.blocks is not None:
            at = event.request, event.batch
            self.commits[at] = self.commits.get(at, 0) + event.blocks
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

    def _depth(self, block: int, number: int) -> int:
        first = self._first[number]
        length = self.end[number] - self.begin[number]
        return self.begin[number] + self._hashes.index(block, first, first + length) - first

    def last(self, number: int) -> int:
        """The hash of a run's last block, which stands for all that comes before it."""
        return self._hashes[self._first[number] + self.end[number] - self.begin[number] - 1]

    def path(self, number: int) -> list[int]:
        """The hashes of a sequence's blocks up to the end of a run."""
        found: list[int] = []
        end = self.end[number]
        while number >= 0:
            begin, first = self.begin[number], self._first[number]
            found[:0] = self._hashes[first : first + end - begin]
            end, number = begin, self.before[number]
        return found

    def root(self, number: int, since_s: float, most: int) -> int:
        """The first block of the chain of runs up to `number`, of which at most `most` more were stored since then."""
        while most > 0 and self.before[number] >= 0 and self.ts_s[self.before[number]] >= since_s:
            number, most = self.before[number], most - 1
        return self.begin[number]
