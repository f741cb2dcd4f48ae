"""What the compiled clocks are given, what they fill in, and how they end."""

from __future__ import annotations

from typing import Any, NamedTuple

DONE, MORE, HOSTILE, UNPROVEN, STUCK, ROOM = range(6)
"""Everything happened; the step limit, call again; a step time that is none; the fast clock cannot prove itself equal;
a request that can never finish; the exact clock needs room for more keys."""



class Queue(NamedTuple):
    """Requests in the order in which they are queued; blocks are KV blocks (load.py)."""

    queued_us: Any
    input_len: Any
    output_len: Any
    prompt: Any
    group: Any
    shared_blocks: Any
    prompt_blocks: Any
    all_blocks: Any
    deadline_us: Any


class Rules(NamedTuple):
    """Limits as the compiled clocks see them. `watch`: cached content may be evicted, so blocks have to be counted;
    `once`: it may not stand in two places; `patient`: nobody gives up (the exact clock asks)."""

    max_seqs: int
    budget: int
    threshold: int
    block: int
    blocks: int
    horizon_us: int
    caching: bool
    watch: bool
    once: bool
    patient: bool
    hostile_stops: bool


class Times(NamedTuple):
    """Per request: admission and end of the prompt's last step (us), sum of decode steps (us), cached blocks."""

    start_us: Any
    first_us: Any
    decode_us: Any
    cached: Any


class Log(NamedTuple):
    """Per step from `first[0]` on: its duration in us and how many tokens it decoded. Empty arrays: not wanted."""

    us: Any
    tokens: Any
    first: Any
