"""The KV blocks that the fast clock knows: free blocks as segments, cached content as block counts of its owner.

blocks.py keeps the host's free list block by block. Here a segment stands for the blocks that one request released
together. Its owner is the prompt or group whose content the blocks hold, or -1 for content that no request looks up
(answers, and prompts that are sent once). Blocks are taken from the first segment and released behind the last one; a
segment that is claimed back stays in place, empty.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from simulator.common.jit import inlined


class Segments(NamedTuple):
    """Segments in the order of the free list, and for every owner (prompts first, then groups) what of it is cached."""

    owner: Any  # of each segment, or -1
    count: Any  # blocks left in each segment
    present: Any  # per owner: whole blocks that can be found; for a prompt, those after its group's prefix
    holders: Any  # per owner: running requests that hold these blocks
    lies: Any  # per owner: the segment its blocks are in while no request holds them, or -1
    groups: int  # the first owner that is a group


@inlined
def eat(f, first, due):  # type: ignore[no-untyped-def]
    """Take `due` blocks from the head of the free list, evicting what they hold. Returns the new first segment."""
    while due > 0:
        some = min(f.count[first], due)
        who = f.owner[first]
        f.count[first] -= some
        due -= some
        if who >= 0:
            f.present[who] -= some  # blocks are freed last first, so the owner loses its last blocks
        if f.count[first] == 0:
            if who >= 0:
                f.lies[who] = -1
            first += 1
    return first


@inlined
def claim(f, who):  # type: ignore[no-untyped-def]
    """Hold the owner's content for one more request. Returns the blocks that leave the free list for it."""
    f.holders[who] += 1
    i = f.lies[who]
    blocks = np.int64(0)
    if i >= 0:
        blocks = np.int64(f.count[i])
        f.owner[i], f.count[i], f.lies[who] = -1, 0, -1
    return blocks


@inlined
def give(f, first, last, who, blocks):  # type: ignore[no-untyped-def]
    """Append `blocks` of owner `who` to the free list. Returns its new end."""
    if who < 0 and last > first and f.owner[last - 1] < 0:
        f.count[last - 1] += blocks  # neither is looked up, so they need not be kept apart
    else:
        f.owner[last], f.count[last] = who, blocks
        last += 1
    return last


@inlined
def unhold(f, first, last, who):  # type: ignore[no-untyped-def]
    """One request fewer holds the owner's content; the last one frees it. Returns the list's end, blocks freed."""
    freed = np.int64(0)
    f.holders[who] -= 1
    if f.holders[who] == 0:
        f.lies[who] = last
        freed = f.present[who]
        last = give(f, first, last, who, freed)
    return last, freed


@inlined
def found_blocks(f, p, g, shared, whole):  # type: ignore[no-untyped-def]
    """Blocks of a prompt found in the cache, by its prompt `p` and group `g` (-1: none), or -1 if that is unproven.

    `shared`: blocks of the group's prefix; `whole`: whole blocks of the prompt.
    """
    cached = np.int64(0)
    if g >= 0:
        cached = np.int64(min(f.present[np.uintp(f.groups + g)], shared))
    if p >= 0:
        if cached == shared:
            cached = np.int64(min(shared + f.present[np.uintp(p)], whole))
        elif f.present[np.uintp(p)] > 0:
            cached = np.int64(-1)  # the rest is cut off from its prefix: it would be written a second time
    return cached


@inlined
def store(f, p, g, shared, reach):  # type: ignore[no-untyped-def]
    """The first `reach` whole blocks of a prompt are computed, so that they can be found."""
    if p >= 0:
        f.present[np.uintp(p)] = max(f.present[np.uintp(p)], reach - shared)
    if g >= 0:
        f.present[np.uintp(f.groups + g)] = max(f.present[np.uintp(f.groups + g)], min(reach, shared))


@inlined
def stored_twice(f, p, g, shared, held):  # type: ignore[no-untyped-def]
    """True if a request that has computed `held` whole blocks of its prompt is about to repeat content in the cache."""
    return (g >= 0 and held < shared and f.present[np.uintp(f.groups + g)] > held) or (
        p >= 0 and f.present[np.uintp(p)] > max(held - shared, 0)
    )
