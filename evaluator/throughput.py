"""How much of a load is served: requests and tokens of their answers per second, from replays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.clock.replay import Replay
from simulator.serving.load import NEVER
from simulator.serving.workload import Workload, duration_s


@dataclass(frozen=True, slots=True)
class Served:
    """Requests that complete, and tokens of their answers, per second until the last one has ended."""

    completed_rps: float
    output_tokens_per_s: float


NOTHING = Served(0.0, 0.0)


def served(workload: Workload, replays: Sequence[Replay]) -> Served:
    """The mean over the replays of a load."""
    done = [r.completed & counted(r, workload) for r in replays]
    tokens = [int(r.requests.output_len[d].sum(dtype=np.int64)) for r, d in zip(replays, done, strict=True)]
    lasting = [lasting_s(r, workload) for r in replays]
    return Served(per_s([int(d.sum()) for d in done], lasting), per_s(tokens, lasting))


def per_s(counts: Sequence[float], lasting: Sequence[float]) -> float:
    """The mean of these counts, each over its seconds."""
    return float(np.mean([count / s if s > 0.0 else 0.0 for count, s in zip(counts, lasting, strict=True)]))


def counted(replay: Replay, workload: Workload) -> np.ndarray:
    """bool: the requests that rates count; of a closed load not those of its warm-up, which is a load of its own."""
    stage = replay.requests.stage
    return np.asarray(stage >= 0) if workload.closed else np.ones(len(stage), bool)


def lasting_s(replay: Replay, workload: Workload) -> float:
    """Seconds until no more requests arrive, and all have completed or been given up; from the end of a warm-up on."""
    r = replay.requests
    begin_us = int(r.arrival_us[counted(replay, workload)].min(initial=NEVER)) if workload.closed else 0
    completed_us = (r.arrival_us + replay.e2e_us)[replay.completed]
    given_up_us = r.deadline_us[replay.spread(replay.run.gave_up)]
    last_us = max(int(completed_us.max(initial=0)), int(given_up_us.max(initial=0)))
    return max(duration_s(workload), (last_us - begin_us) / 1e6)
