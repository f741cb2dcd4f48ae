"""The free KV blocks as segments: what the fast clock knows of the host's list (blocks.py has it block by block).

A segment is what one request gave back of one owner, a prompt or a group, or of nobody that is looked for again (-1).
Blocks are taken from the first segment, given back behind the last; a claimed segment is left empty in its place.
"""

from __future__ import annotations

import numpy as np

from simulator.jit import njit


@njit
def eat(owner, count, present, lies, first, due):  # type: ignore[no-untyped-def]
    """Take `due` blocks from the head of the free list; returns where it begins now."""
    while due > 0:
        some = min(count[first], due)
        who = owner[first]
        count[first] -= some
        due -= some
        if who >= 0:
            present[who] -= some
        if count[first] == 0:
            if who >= 0:
                lies[who] = -1
            first += 1
    return first


@njit
def claim(owner, count, lies, who):  # type: ignore[no-untyped-def]
    """Take all that is left of the owner's segment out of the free list, if it has one; its blocks."""
    i = lies[who]
    if i < 0:
        return np.int64(0)
    blocks = np.int64(count[i])
    owner[i], count[i], lies[who] = -1, 0, -1
    return blocks


@njit
def give(owner, count, first, last, who, blocks):  # type: ignore[no-untyped-def]
    """Append `blocks` to the free list; returns its new end."""
    if who < 0 and last > first and owner[last - 1] < 0:
        count[last - 1] += blocks
        return last
    owner[last], count[last] = who, blocks
    return last + 1
