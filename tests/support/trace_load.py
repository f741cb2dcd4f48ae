"""The load on the small engine: fixed prompts cycled, arrivals, and what the client's load generator records."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from trace_blocks import digest
from trace_records import BLOCK, Offsets, Options, Row

from simulator.common.streams import stream

PROMPTS, ARRIVALS, COINS, CLIENT, CLOCKS = range(5)  # second numbers of the streams
VOCABULARY = 32000
BURST_S = 0.03  # mean time after the beginning of a burst at which its requests arrive


class Prompt(NamedTuple):
    text: str
    tokens: list[int]
    digests: list[bytes]  # of its full blocks


@dataclass(frozen=True)
class Arrivals:
    """Per request, in order: server ns of the client's start, of ARRIVED and of the core's inbox; what it asks."""

    stage: list[int]
    schedule_delay: list[float]  # s
    start_ns: list[int]
    arrived_ns: list[int]
    inbox_ns: list[int]
    max_tokens: list[int]
    traced: list[bool]
    gives_up: list[str]  # "", waiting, prefill, decode
    stage_seconds: list[float]


def chain(tokens: Sequence[int], digests: list[bytes]) -> list[bytes]:
    """`digests` of a beginning of `tokens`, with those of the further full blocks appended."""
    for at in range(len(digests) * BLOCK, len(tokens) - BLOCK + 1, BLOCK):
        digests.append(digest(digests[-1] if digests else b"", tokens[at : at + BLOCK]))
    return digests


def lengths(o: Options, rng: np.random.Generator, mean: int, spread: int, count: int) -> np.ndarray:
    """Lengths in tokens: within `spread` of the mean, or lognormal with it as standard deviation, at most 4 means."""
    if not o.lognormal:
        return rng.integers(-spread, spread + 1, count) + mean
    variance = np.log1p((spread / mean) ** 2)
    drawn = np.exp(rng.normal(np.log(mean) - variance / 2, np.sqrt(variance), count))
    return np.clip(np.rint(drawn), 1, 4 * mean).astype(np.int64)


def prompts(o: Options) -> list[Prompt]:
    rng = stream(o.seed, PROMPTS)
    made = []
    for group in range(o.groups):
        system = rng.integers(1, VOCABULARY, o.system_len).tolist()
        for question in range(o.per_group):
            length = int(lengths(o, rng, o.question_len, o.question_spread, 1)[0])
            tokens = [*system, *rng.integers(1, VOCABULARY, length).tolist()]
            made.append(Prompt(f"synthetic system {group} question {question}", tokens, chain(tokens, [])))
    return made


def output_tokens(request: int, first: int, last: int) -> list[int]:
    """Tokens `first`..`last` - 1 of a request's answer: different for every request."""
    return [1 + (request * 7919 + j * 104729 + (request * j) % 251) % (VOCABULARY - 1) for j in range(first, last)]


def offsets(o: Options) -> tuple[Offsets, int]:
    """The clocks' differences, and the server's time in ns at which the engine starts."""
    rng = stream(o.seed, CLOCKS)
    server = int(rng.integers(10**5, 10**6)) * 10**9 + 250_000_000
    epoch = 1_767_225_600_000_000_000 - server  # 2026-01-01 00:00
    return Offsets(int(rng.integers(4 * 10**6, 4 * 10**7)) / 4, epoch), server


def arrivals(o: Options, server_ns: int) -> Arrivals:
    rng = stream(o.seed, ARRIVALS)
    starts, stages, lasted, at = [], [], [], 0.05
    for stage, (rate, count) in enumerate(zip(o.rates, o.stage_requests(), strict=True)):
        bursts = -(-count // o.burst)
        times = at + np.repeat(np.cumsum(rng.exponential(o.burst / rate, bursts)), o.burst)[:count]
        if o.burst > 1:
            times = np.sort(times + rng.exponential(BURST_S, count))
        starts.append(times)
        stages += [stage] * count
        lasted.append(count / rate)
        at = max(at + count / rate, float(times[-1]) if count else at)
    n = o.requests
    delay = rng.uniform(1e-4, 8e-4, n)
    start = server_ns + (np.concatenate(starts) * 1e9).astype(np.int64)
    arrived = start + rng.integers(900_000, 1_600_000, n)
    inbox = arrived + rng.integers(2_500_000, 5_500_000, n)
    longest = lengths(o, rng, o.output_len, o.output_spread, n)
    coins = stream(o.seed, COINS)
    traced = coins.random(n) < o.journey_rate
    given_up = coins.random(n) < o.abort_share
    kinds = coins.integers(0, 3, n)
    where = [("waiting", "prefill", "decode")[k] if g else "" for k, g in zip(kinds, given_up, strict=True)]
    columns = (column.tolist() for column in (delay, start, arrived, inbox, longest, traced))
    return Arrivals(stages, *columns, where, lasted)


def api_id(seed: int, request: int) -> str:
    h = hashlib.md5(f"request {seed} {request}".encode()).hexdigest()
    return f"cmpl-{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def core_id(seed: int, request: int) -> str:
    return f"{api_id(seed, request)}-0-{hashlib.md5(f'core {seed} {request}'.encode()).hexdigest()[:8]}"


class Reading(NamedTuple):
    left_ns: int  # api.DEPARTED
    end_time: float
    token_times: tuple[float, ...]
    times: tuple[float, ...]  # as recorded
    output_tokens: int  # as re-tokenised


def read(o: Options, clocks: Offsets, request: int, token_ns: Sequence[int], finished_ns: int) -> Reading:
    """What the client sees of a finished request. Each token reaches it some 2 ms after the engine had it; a blank line
    follows within 40 us. In a coalesced read several tokens come with the last of them, 3 us apart."""
    rng = stream(o.seed, CLIENT, request)
    n = len(token_ns)
    left_ns = finished_ns + 1_850_000 + 1_710 * n + int(rng.integers(0, 200_000))
    at = np.asarray(token_ns, dtype=np.int64) + 2_000_000 + rng.integers(0, 250_000, n)
    if rng.random() < o.coalesced:
        ends = np.flatnonzero(np.append(rng.random(n - 1) < 0.4, True))  # a token that closes a read
        last = ends[np.searchsorted(ends, np.arange(n))]
        at = at[last] + 100_000 + 3_000 * (np.arange(n) - last)
    at = np.maximum.accumulate(at)
    blank = at + rng.integers(4_000, 40_000, n)
    blank[:-1] = np.minimum(blank[:-1], np.maximum(at[1:] - 500, at[:-1]))
    done = max(int(blank[-1]), left_ns + 150_000) + int(rng.integers(300_000, 700_000))
    final = done + int(rng.integers(4_000, 40_000))
    both = np.column_stack((at, blank)).ravel() if o.stamps == "2n+2" else at
    tail = [done, final] if o.stamps == "2n+2" else [done]
    whole = np.append(both, tail) * 1e-9 + clocks.client_minus_server_s
    quirk = rng.random()
    text = 0 if quirk < 0.04 else max(1, n - int(rng.integers(1, 1 + n))) if quirk < 0.12 else n + 1
    token_times = at * 1e-9 + clocks.client_minus_server_s
    end = (final + 200_000) * 1e-9 + clocks.client_minus_server_s
    times = (tuple(np.round(seconds, 9).tolist()) for seconds in (token_times, whole))
    return Reading(left_ns, round(end, 9), *times, text)


def row(a: Arrivals, clocks: Offsets, request: int, prompt: Prompt, reading: Reading | float) -> Row:
    """The client's row of a request; `reading` is the time at which it gave up for one that failed."""
    start = round(a.start_ns[request] * 1e-9 + clocks.client_minus_server_s, 9)
    common = (prompt.text, a.max_tokens[request])
    ending = (a.schedule_delay[request], a.stage[request])
    if isinstance(reading, float):
        return Row(start, round(reading, 9), *common, 0, 0, (), True, *ending)
    tokens = len(prompt.tokens) + 1  # a BOS
    return Row(start, reading.end_time, *common, tokens, reading.output_tokens, reading.times, False, *ending)
