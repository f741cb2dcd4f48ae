"""The KV cache, block by block, as the host keeps it (blis-des-semantics 5, its main branch).

Blocks 0..N-1 with a reference count and the key of their content, -1 for none; a doubly linked list of the free ones,
taken from the head, given back at the tail; for every key the block that holds it, last writer wins. A key stands for a
block of a prompt *and* all before it, so equal keys are equal chained hashes; blocks of answers need none, as no
prompt matches them. A prompt that nobody else sends has no keys until its request is preempted: before, nobody looks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from simulator.jit import njit

FREE, HITS, MISSES = 0, 1, 2  # places in Cache.counts
REFERENCES, NEXT, BEFORE, KEY = 0, 1, 2, 3  # columns of Cache.blocks: one block in one place of memory


class Cache(NamedTuple):
    """blocks: int32[N + 1, 4]; the last row stands before the head and behind the tail of the free list."""

    blocks: Any
    holder: Any  # key -> block, -1 for none
    counts: Any  # free blocks; blocks claimed from the cache; blocks taken


def new_cache(blocks: int, keys: int) -> Cache:
    """All blocks free, in order; room for `keys` keys."""
    table = np.zeros((blocks + 1, 4), np.int32)
    ring = np.arange(blocks + 1, dtype=np.int32)
    table[:, NEXT], table[:, BEFORE], table[:, KEY] = np.roll(ring, -1), np.roll(ring, 1), -1
    return Cache(table, np.full(keys, -1, np.int32), np.array([blocks, 0, 0], np.int64))


@njit
def take(blocks, holder, counts, key):  # type: ignore[no-untyped-def]
    """The free block that was released longest ago, for content `key`; what it held can no longer be found."""
    end = blocks.shape[0] - 1
    block = blocks[end, NEXT]
    after, old = blocks[block, NEXT], blocks[block, KEY]
    blocks[end, NEXT] = after
    blocks[after, BEFORE] = end
    if old >= 0:
        holder[old] = -1  # even if another block holds the same
    blocks[block, KEY] = key
    if key >= 0:
        holder[key] = block
    blocks[block, REFERENCES] = 1
    counts[FREE] -= 1
    counts[MISSES] += 1
    return block


@njit
def claim(blocks, counts, block):  # type: ignore[no-untyped-def]
    """One more request uses this cached block."""
    if blocks[block, REFERENCES] == 0:
        before, after = blocks[block, BEFORE], blocks[block, NEXT]
        blocks[before, NEXT] = after
        blocks[after, BEFORE] = before
        counts[FREE] -= 1
    blocks[block, REFERENCES] += 1
    counts[HITS] += 1


@njit
def release(blocks, counts, row, count):  # type: ignore[no-untyped-def]
    """Give back the first `count` blocks of `row`, last one first."""
    end = blocks.shape[0] - 1
    last = blocks[end, BEFORE]
    freed = np.int64(0)
    for i in range(count - 1, -1, -1):
        block = row[i]
        blocks[block, REFERENCES] -= 1
        if blocks[block, REFERENCES] == 0:
            blocks[last, NEXT] = block
            blocks[block, BEFORE] = last
            last = block
            freed += 1
    blocks[last, NEXT] = end
    blocks[end, BEFORE] = last
    counts[FREE] += freed


@njit
def name(blocks, holder, block, key):  # type: ignore[no-untyped-def]
    """The block became full and holds `key`."""
    blocks[block, KEY] = key
    holder[key] = block
