"""Prompt tokens that a replay computes because the prefix cache does not hold them."""

from __future__ import annotations

import numpy as np

from simulator.replay import Replay

PERCENTILE = 95


def new_tokens(replay: Replay) -> np.ndarray:
    """int64 per request in order of arrival: the prompt tokens not found in the cache at its last admission."""
    found = np.maximum(replay.spread(replay.run.cached), 0).astype(np.int64)
    return np.asarray(replay.requests.input_len - found * replay.load.limits.block)


def step_tokens(replay: Replay) -> int:
    """The most new prompt tokens that a request brings into one step: the 95th percentile over completed requests.

    The percentile leaves out the first uses of prompts that the cache holds from then on, unless they are many. The
    engine's limits of a step cap it. Requests that prefill in the same step are not added up.
    """
    new = new_tokens(replay)[replay.completed]
    if not len(new):
        return 0
    limits = replay.load.limits
    most = min(limits.budget, limits.threshold) if limits.threshold else limits.budget
    return min(int(np.percentile(new, PERCENTILE, method="lower")), most)


def evicted(replay: Replay) -> int:
    """How many requests compute at least a block of a prompt that was used before: the cache no longer holds it."""
    if not replay.load.limits.caching:
        return 0
    prompt = replay.requests.prompt
    repeated = prompt >= 0
    repeated[np.unique(prompt, return_index=True)[1]] = False
    return int((repeated & replay.completed & (new_tokens(replay) >= replay.load.limits.block)).sum())
