"""What no replay has of a trace, in lines with the figures that it changes: as replayed, and with it where that can be
replayed after all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from simulator.clock.bind import Bound
from simulator.clock.replay import Replay, replay_bound
from simulator.clock.run import NeverEnds
from simulator.serving.trace import again
from simulator.serving.traces.losses import Loss


def lines(losses: Sequence[Loss], replay: Replay, bound: Bound) -> Iterator[str]:
    """A line for each loss of this replay, and one for turns that a client would send later."""
    for loss in losses:
        try:
            figures = _figures(loss, replay, bound)
        except NeverEnds:
            figures = ""
        yield f"{loss.text}; {figures}" if figures else loss.text
    requests = replay.requests
    if not requests.turns:
        return
    later, before = again(requests.prompt)
    ends_us = requests.arrival_us + replay.e2e_us
    early = int((replay.completed[before] & (requests.arrival_us[later] < ends_us[before])).sum())
    if early:
        text = f"{early:,} of {len(later):,} later turns are sent before the turn before is answered"
        yield f"{text}: a client waits for that, so more requests are in flight than it has, and queues are longer"


def _figures(loss: Loss, replay: Replay, bound: Bound) -> str:
    """The mean TTFT as replayed and with what is lost, or the share of cached blocks; "" if there is none."""
    load = replay.load
    if loss.observed is not None:
        return f"a replay finds {_cached(replay):.1f} % of those of prompts"
    if loss.alone is not None:
        rows = np.flatnonzero(loss.alone)
        alone = replay_bound(replace(load, requests=load.requests.of(rows)), bound)
        now, then = _ttft_ms(replay, rows), _ttft_ms(alone)
        return f"the mean TTFT of {loss.of} is {now:.1f} ms, and {then:.1f} ms if nothing else is served"
    if loss.shared is not None:
        instead, how = replace(load, requests=loss.shared), "with that context"
    elif loss.all_blocks:
        limits = replace(load.limits, blocks=max(load.written, load.limits.blocks))
        instead, how = replace(load, limits=limits), "if no block is evicted"
    else:
        return ""
    other = replay_bound(instead, bound)
    cached = f"{_cached(replay):.1f} and {_cached(other):.1f} % of the prompts' blocks are cached"
    return f"the mean TTFT is {_ttft_ms(replay):.1f} ms, and {_ttft_ms(other):.1f} ms {how} ({cached})"


def _ttft_ms(replay: Replay, rows: np.ndarray | None = None) -> float:
    """The mean TTFT of the completed requests among `rows`, by default all; NaN for none."""
    done = np.flatnonzero(replay.completed) if rows is None else rows[replay.completed[rows]]
    return float(replay.ttft_us[done].mean()) / 1e3 if len(done) else np.nan


def _cached(replay: Replay) -> float:
    """Percent of the whole KV blocks of completed prompts that were found in the cache."""
    done = replay.completed
    found, blocks = replay.spread(replay.run.cached)[done], replay.load.prompt_blocks[done]
    return 100.0 * float(found.sum()) / max(int(blocks.sum(dtype=np.int64)), 1)
