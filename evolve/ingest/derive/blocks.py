"""The chains of KV blocks that BlockStored events tell of: how deep in its sequence every run of new blocks begins."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from evolve.ingest.sources.kv_events import KvEvent


@dataclass(slots=True)
class Run:
    """Blocks stored on the GPU by one event: blocks `begin` to `end` of a sequence (counted from 0, end excluded).

    `before`: the run that holds the parent block, -1 at the sequence's first block.
    """

    ts_s: float
    batch: int
    begin: int
    end: int
    before: int


@dataclass(slots=True)
class Chains:
    """All runs in order of time, by the depth at which they end, and what was committed to the offload tier."""

    runs: list[Run] = field(default_factory=list)
    ending_at: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    commits: dict[tuple[str, int], int] = field(default_factory=dict)  # (request, batch) -> blocks
    orphans: int = 0  # runs whose parent was stored before the file begins
    block_size: int | None = None
    first_s: float = float("inf")
    last_s: float = float("-inf")
    _at: dict[int, tuple[int, int]] = field(default_factory=dict)  # hash -> (its run, its depth)

    def add(self, event: KvEvent) -> None:
        self.first_s, self.last_s = min(self.first_s, event.ts_s), max(self.last_s, event.ts_s)
        if event.type == "CacheStoreCommitted" and event.request and event.blocks is not None:
            at = event.request, event.batch
            self.commits[at] = self.commits.get(at, 0) + event.blocks
        if event.type != "BlockStored" or event.medium not in (None, "GPU") or not event.hashes:
            return
        self.block_size = self.block_size or event.block_size
        before, begin = (-1, 0) if event.parent is None else self._at.get(event.parent, (-2, -1))
        if before == -2:
            self.orphans += 1
            return
        begin += event.parent is not None
        number = len(self.runs)
        self.runs.append(Run(event.ts_s, event.batch, begin, begin + len(event.hashes), before))
        self.ending_at[begin + len(event.hashes)].append(number)
        for i, block in enumerate(event.hashes):
            self._at[block] = number, begin + i

    def root(self, number: int, since_s: float, most: int) -> int:
        """The first block of the chain of runs up to `number`, of which at most `most` more were stored since then."""
        run = self.runs[number]
        while most > 0 and run.before >= 0 and self.runs[run.before].ts_s >= since_s:
            run, most = self.runs[run.before], most - 1
        return run.begin
