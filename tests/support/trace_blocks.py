"""Blocks of the small engine: vLLM's pool with reference counts, hashes chained to what stands before, LRU eviction."""

from __future__ import annotations

import hashlib
from array import array
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from trace_records import BLOCK


def digest(parent: bytes, tokens: Sequence[int]) -> bytes:
    """SHA-256 of a full block's tokens behind its parent's digest."""
    return hashlib.sha256(parent + array("I", tokens).tobytes()).digest()


def low64(of: bytes) -> int:
    """The hash as events of the GPU write it."""
    return int.from_bytes(of[-8:], "big")


class Pool:
    """GPU blocks. `events` gathers BlockStored and BlockRemoved until they are published."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(total))
        self.references = [0] * total
        self.content: list[bytes | None] = [None] * total
        self.holding: dict[bytes, dict[int, None]] = {}
        self.events: list[list[Any]] = []

    def hits(self, digests: Sequence[bytes], most: int) -> list[int]:
        """Blocks that hold the longest cached prefix of at most `most` blocks."""
        found = []
        for content in digests[:most]:
            blocks = self.holding.get(content)
            if not blocks:
                break
            found.append(next(iter(blocks)))
        return found

    def fits(self, hits: Sequence[int], fresh: int) -> bool:
        idle = sum(1 for block in hits if not self.references[block])
        return fresh + idle <= len(self.free)

    def take(self, hits: Sequence[int], fresh: int) -> list[int]:
        """The hits, held once more, and `fresh` blocks from the head of the free ones, whose contents are evicted."""
        for block in hits:
            if not self.references[block]:
                del self.free[block]
            self.references[block] += 1
        taken = list(hits)
        for _ in range(fresh):
            block, _ = self.free.popitem(last=False)
            self._forget(block)
            self.references[block] = 1
            taken.append(block)
        return taken

    def _forget(self, block: int) -> None:
        content = self.content[block]
        if content is None:
            return
        self.content[block] = None
        del self.holding[content][block]
        if not self.holding[content]:
            del self.holding[content]
        self.events.append(["BlockRemoved", [low64(content)], "GPU"])

    def give(self, blocks: Sequence[int]) -> None:
        """Release a request's blocks, its last first, so that prefixes are evicted last."""
        for block in reversed(blocks):
            self.references[block] -= 1
            if not self.references[block]:
                self.free[block] = None

    def store(self, blocks: Sequence[int], digests: Sequence[bytes], parent: bytes | None, tokens: list[int]) -> None:
        """Register a run of full blocks; contents that another block holds too are registered all the same."""
        for block, content in zip(blocks, digests, strict=True):
            self.content[block] = content
            self.holding.setdefault(content, {})[block] = None
        hashes = [low64(content) for content in digests]
        above = None if parent is None else low64(parent)
        self.events.append(["BlockStored", hashes, above, tokens, BLOCK, None, "GPU", None])


class Offload:
    """The CPU tier: stores committed by the scheduler, transfers begun in a later step and done two steps on."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held: OrderedDict[bytes, None] = OrderedDict()
        self.scheduler_events: list[list[Any]] = []
        self.worker_events: list[list[Any]] = []
        self.committed: list[tuple[int, str, list[bytes]]] = []  # step, request, contents
        self.begun: list[tuple[int, int, str, list[bytes]]] = []  # step, transfer, ...
        self.transfers = 0

    def commit(self, request_id: str, contents: Sequence[bytes], step: int) -> None:
        new = [content for content in contents if content not in self.held][: self.capacity]
        if not new:
            return
        over = len(self.held) + len(new) - self.capacity
        if over > 0:
            for _ in range(over):
                self.held.popitem(last=False)
            self.scheduler_events.append(["CacheEviction", "CPU", over, "lru", step, None])
        self.held.update(dict.fromkeys(new))
        self.scheduler_events.append(["CacheStoreCommitted", request_id, "CPU", len(new), step])
        self.committed.append((step, request_id, new))

    def handle(self, step: int) -> None:
        """The worker's news with the output of `step`, every transfer's twice as the fork reports them."""
        for begun, transfer, request_id, contents in [b for b in self.begun if b[0] + 2 <= step]:
            hashes = [b64encode(content).decode() for content in contents]
            self.worker_events.append(["BlockStored", hashes, None, [], BLOCK, None, "CPU", None])
            done = ["TransferCompleted", transfer, request_id, "GPU", "CPU", len(contents), True, begun]
            self.worker_events += [done, done]
        self.begun = [b for b in self.begun if b[0] + 2 > step]
        for _, request_id, contents in [c for c in self.committed if c[0] < step]:
            self.transfers += 1
            start = ["TransferInitiated", self.transfers, request_id, "GPU", "CPU", len(contents), step]
            self.worker_events += [start, start]
            self.begun.append((step, self.transfers, request_id, contents))
        self.committed = [c for c in self.committed if c[0] >= step]
