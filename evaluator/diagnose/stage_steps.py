"""The steps of a load stage as the tokens of its answers meet them, as batches of requests.

They give the mean of every batch field in the stage, and of a program's step time, which is what an ITL measures. The
pace of the steps is the observed ITL if there is one: then the batches are those that the server ran, independent of
the program.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from evaluator.fit.machine import BUDGET, COLD, COLD_LEN, DURATION, FULL_HITS, INPUT, OUTPUT, RATE, SEQS, UNCACHED
from simulator.clock.bind import Bound
from simulator.clock.fields import Active, BatchFields


@dataclass(frozen=True)
class StageSteps:
    """Steps that represent a stage, and the share of its tokens that each produces (float64[steps], summing to 1)."""

    shares: np.ndarray
    steps: tuple[BatchFields, ...]

    def mean(self, name: str) -> float:
        return sum(float(share) * step["b", name] for share, step in zip(self.shares, self.steps, strict=True))

    def step_us(self, bound: Bound) -> float:
        return float(self.shares @ bound.steps_us(np.array([list(step.raw.values()) for step in self.steps])))


def stage_steps(row: np.ndarray, pace_us: float, facts: Mapping[str, float]) -> StageSteps:
    """The steps of a stage, a row of `Stages.table`, if a step takes `pace_us`.

    rate x (output_len - 1) x pace requests decode at once (Little's law). They arrive at random, so a token meets all
    of them in addition to its own request (Mecke's theorem): one more than the mean over time, but at most the request
    limit and what the KV cache holds (without the savings of shared prefixes). Their contexts are spread evenly over
    the answer. A fractional number of requests is a mixture of the two neighbouring whole numbers.

    Prompts to compute also arrive at random: exp(-load) of the steps carry none, where load is the number that arrives
    per step; the other steps carry the remaining ones. The first use of a prompt is computed in full, later uses only
    as far as the cache does not hold them, in chunks that fit the token budget. Lengths are whole tokens.
    """
    wanted = row[RATE] * max(row[OUTPUT] - 1.0, 0.0) * pace_us
    held = facts["kv_blocks"] * facts["block_size"] / (row[INPUT] + row[OUTPUT] / 2.0)
    most = min(row[SEQS], max(held, 1.0))
    decodes = min(wanted + 1.0, most)
    served = row[RATE] * (min(most / wanted, 1.0) if wanted > 0.0 else 1.0)
    first = row[COLD] / (row[RATE] * row[DURATION])
    room = max(row[BUDGET] - decodes, 1.0)
    kinds = []  # (chunks that arrive during a step, tokens to compute of a prompt, in how many chunks)
    for share, tokens in ((first, row[COLD_LEN]), ((1.0 - first) * (1.0 - row[FULL_HITS]), row[UNCACHED])):
        if share > 0.0 and tokens > 0.0:
            chunks = math.ceil(tokens / room)
            kinds.append((served * share * chunks * pace_us, tokens, chunks))
    load = sum(kind[0] for kind in kinds)
    without = math.exp(-load)
    shares, steps = [], []
    for n, share_n in _whole(decodes):
        shares.append(share_n * without)
        steps.append(_decodes(n, row))
        for arriving, tokens, chunks in kinds:
            for k, share_k in _whole(load / (1.0 - without)):
                shares.append(share_n * (1.0 - without) * arriving / load * share_k)
                steps.append(_decodes(n, row) + [_chunk(row, tokens, chunks)] * k)
    return StageSteps(np.array(shares), tuple(BatchFields(batch, facts) for batch in steps))


def _whole(x: float) -> list[tuple[int, float]]:
    """The whole numbers around `x`, with shares that make `x` their mean."""
    low = math.floor(x)
    return [(n, share) for n, share in ((low, 1.0 - (x - low)), (low + 1, x - low)) if share > 0.0]


def _decodes(n: int, row: np.ndarray) -> list[Active]:
    prompt, span = round(row[INPUT]), max(row[OUTPUT] - 2.0, 0.0)
    return [Active(prompt, prompt + round(span * i / (n + 1)), 1) for i in range(1, n + 1)]


def _chunk(row: np.ndarray, tokens: float, chunks: int) -> Active:
    """The middle one of the chunks that compute the last `tokens` of a prompt."""
    prompt, new = round(row[INPUT]), max(round(tokens / chunks), 1)
    return Active(prompt, max(prompt - max(round((tokens + new) / 2.0), new), 0), new)
