"""What is known of admissions' cached prompts, and the sources it is learned from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evolve.ingest.columns import Columns
from evolve.ingest.derive.blocks import Chains

EXACT = ("snapshot", "summary", "short")


@dataclass(slots=True)
class Known:
    """Cached tokens of each admission, NONE while unknown, and how that is known."""

    cached: list[int]
    how: list[str]

    def settle(self, i: int, cached: int, how: str) -> None:
        self.cached[i], self.how[i] = cached, how


@dataclass(frozen=True)
class Sources:
    """What there is to learn from.

    `core_ids`, `steps` and `snapshots` as in `Traces`. `same_prompt[request]`: the number of its prompt's text, -1
    where it is unknown; empty without client rows. `first_decode_steps`: of every request its first decode step.
    `epoch_offset_s`: wall clock less server clock. `block`: tokens of a KV block.
    """

    core_ids: Sequence[str]
    steps: Columns
    snapshots: Columns
    chains: Chains | None
    epoch_offset_s: float
    same_prompt: Sequence[int]
    first_decode_steps: np.ndarray
    block: int
    caching: bool
    asynchronous: bool
