"""Prefill and decode on separate pools of GPUs, as vLLM's disaggregated prefill and the host's pools have them.

A pool has so many instances of an engine. A request takes its turn among those of each pool when it arrives. The
prefill pool computes its prompt and no token, and frees its blocks. From the end of that step on its KV blocks, whole
ones, go to the decode pool: a transfer takes as long as the largest part of them that a GPU sends or receives over its
link, at least `latency_us` and at least 1 us, rounded up. Transfers do not share a link. What the decode pool makes of
it says simulator.clock.transferred.

The first token is that of the first decode step (vLLM's decode instance computes the last token of the prompt again).
As in the host an answer of N tokens takes N - 1 decode steps, one at least.

Unlike the host's, a prefill instance is busy until its step ends. There one whose whole batch ends is idle from the
beginning of the step on, so that a pool that only prefills is never full, whatever the load.

vLLM differs: its decode instance lets a request wait for blocks, looks the prompt up in its own prefix cache, and the
prefill instance keeps the blocks until they were fetched.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulator.common.json import JsonObject
from simulator.serving.engine import Engine

NODE = 8  # GPUs that one node's links connect
PREFILL, DECODE = "prefill", "decode"


@dataclass(frozen=True, slots=True)
class Pool:
    """So many instances of an engine."""

    instances: int
    engine: Engine

    @property
    def gpus(self) -> int:
        return self.instances * self.engine.gpus

    def to_entry(self) -> JsonObject:
        return {"instances": self.instances, "engine": self.engine.to_entry()}


@dataclass(frozen=True, slots=True)
class Pools:
    """The pools of a deployment; of one alone, requests end there or come there with their prompt computed.

    link_gb_per_s: of each GPU, in one direction; None: that of the GPUs of a node. latency_us: the least time of a
    transfer.
    """

    prefill: Pool | None
    decode: Pool | None
    link_gb_per_s: float | None = None
    latency_us: float = 0.0

    @property
    def instances(self) -> tuple[int, int]:
        """Those of prefill and of decode, 0 without such a pool."""
        return self.prefill.instances if self.prefill else 0, self.decode.instances if self.decode else 0

    @property
    def gpus(self) -> int:
        return sum(pool.gpus for pool in (self.prefill, self.decode) if pool)

    def of(self, prefill: int, decode: int) -> Pools:
        """So many instances of those pools that there are."""
        first, second = self.prefill, self.decode
        return replace(
            self,
            prefill=first and replace(first, instances=prefill),
            decode=second and replace(second, instances=decode),
        )

    def to_entry(self) -> JsonObject:
        """The keys of an experiments file."""
        entry: JsonObject = {key: pool.to_entry() for key in (PREFILL, DECODE) if (pool := getattr(self, key))}
        moved = {"link_gb_per_s": self.link_gb_per_s, "latency_us": self.latency_us or None}
        moved = {key: value for key, value in moved.items() if value is not None}
        return entry | ({"transfer": moved} if moved else {})
