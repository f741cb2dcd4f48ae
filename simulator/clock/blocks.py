"""The KV cache block by block, as the host keeps it (blis-des-semantics 5, its main branch).

Blocks 0..N-1 have a reference count and the key of their content, -1 for none. The free ones are a doubly linked list:
taken from the head, released to the tail. For every key there is the block that holds it; the last writer wins. A key
identifies a block of a prompt *and* all blocks before it, so it plays the part of the host's chained hash. Blocks of
answers have a key where a later turn of the conversation has them in its prompt. A prompt that is sent once has no keys
until its request is preempted, because only then are its blocks looked up.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from simulator.common.jit import njit

FREE, HITS, MISSES = 0, 1, 2  # places in Cache.counts
REFERENCES, NEXT, BEFORE, KEY = 0, 1, 2, 3  # columns of Cache.blocks, so that a block's data is in one place of memory


class Cache(NamedTuple):
    """The blocks, which of them holds a key, counts, and the host memory behind them."""

    blocks: Any  # int32[N + 1, 4]; the last row closes the free list to a ring, before its head and behind its tail
    holder: Any  # int32[keys]: key -> block, -1 for none
    counts: Any  # int64[3]: free blocks; blocks found in the cache; blocks taken
    tier: Any  # tier.Tier


def new_cache(blocks: int, keys: int, tier: Any) -> Cache:
    """A cache with all blocks free, in order, and room for `keys` keys, before the memory of `tier`."""
    table = np.zeros((blocks + 1, 4), np.int32)
    ring = np.arange(blocks + 1, dtype=np.int32)
    table[:, NEXT], table[:, BEFORE], table[:, KEY] = np.roll(ring, -1), np.roll(ring, 1), -1
    return Cache(table, np.full(keys, -1, np.int32), np.array([blocks, 0, 0], np.int64), tier)


@njit
def take(blocks, holder, counts, key):  # type: ignore[no-untyped-def]
    """Take the free block that was released longest ago, for content `key`, and evict what it held. Returns it."""
    end = blocks.shape[0] - 1
    block = blocks[end, NEXT]
    after, old = blocks[block, NEXT], blocks[block, KEY]
    blocks[end, NEXT] = after
    blocks[after, BEFORE] = end
    if old >= 0:
        holder[old] = -1  # as the host does, even if another block holds the same content
    blocks[block, KEY] = key
    if key >= 0:
        holder[key] = block
    blocks[block, REFERENCES] = 1
    counts[FREE] -= 1
    counts[MISSES] += 1
    return block


@njit
def claim(blocks, counts, block):  # type: ignore[no-untyped-def]
    """Let one more request use this cached block."""
    if blocks[block, REFERENCES] == 0:
        before, after = blocks[block, BEFORE], blocks[block, NEXT]
        blocks[before, NEXT] = after
        blocks[after, BEFORE] = before
        counts[FREE] -= 1
    blocks[block, REFERENCES] += 1
    counts[HITS] += 1


@njit
def release(blocks, counts, row, count):  # type: ignore[no-untyped-def]
    """Release the first `count` blocks of `row`, the last one first."""
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
    """The block has become full: its content `key` can be found."""
    blocks[block, KEY] = key
    holder[key] = block
