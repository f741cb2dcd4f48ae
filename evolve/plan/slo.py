"""Service-level objectives: limits on latencies, of a run and of each request, read from `--slo`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from evaluator.score import MEANS
from simulator.clock.replay import Replay
from simulator.common.errors import InputError, nearest, shown
from simulator.serving.limits import MOST_MS
from simulator.serving.observations import QUANTITIES, Observation

SLOWER = 2  # requests that are to be slower than a percentile
US = {"us": 1, "ms": 1_000, "s": 1_000_000}
NAMES = tuple(f"{latency}_{quantity}" for latency in MEANS for quantity in QUANTITIES)
ALIASES = {"tpot": "itl"}  # vLLM's name: each request's mean time per token after the first
QUANTITY = f"end it in {', '.join(f'_{q}' for q in QUANTITIES)}"
FORM = "write LATENCY_QUANTITY=TIME, e.g. ttft_p99=500ms,itl_p99=50ms"
_TIME = re.compile(r"([0-9]{1,15}(?:\.[0-9]{0,15})?)(us|ms|s)")


@dataclass(frozen=True, slots=True)
class SloLimit:
    """The most that a latency may be. `latency` is one of score.MEANS, `quantity` one of experiment.QUANTITIES."""

    latency: str
    quantity: str
    most_us: float

    @property
    def name(self) -> str:
        return f"{self.latency}_{self.quantity}"

    @property
    def words(self) -> str:
        """Its name for readers: `TTFT p99`."""
        return f"{self.latency.upper()} {self.quantity}"

    @property
    def figure(self) -> str:
        """Its name among the figures that may have intervals (evaluator.intervals.STATISTICS)."""
        return self.latency if self.quantity == "mean" else self.name

    @property
    def most_ms(self) -> float:
        return self.most_us / 1e3

    def holds(self, run: Observation | None) -> bool | None:
        """True if the run's figure is within the limit; None without such a figure."""
        value_ms = self.of(run)
        return None if value_ms is None else bool(value_ms <= self.most_ms)

    def of(self, run: Observation | None) -> float | None:
        """The run's figure in ms; None without one."""
        value_ms: float | None = getattr(getattr(run, f"{self.latency}_ms"), self.quantity) if run else None
        return value_ms


def parse_slo(words: Sequence[str], where: str = "--slo") -> tuple[SloLimit, ...]:
    """The limits in words like `ttft_p99=500ms`. Raises InputError, which begins with `where`, for anything else.

    >>> [(limit.name, limit.most_ms) for limit in parse_slo(["ttft_p99=0.5s", "itl_mean=50ms"])]
    [('ttft_p99', 500.0), ('itl_mean', 50.0)]
    """
    limits: dict[str, SloLimit] = {}
    for word in words:
        name, _, most = (piece.strip() for piece in word.partition("="))
        limit = slo_limit(name, most, f"{where} {word}")
        if limit.name in limits:
            raise InputError(f"{where} {word}: {limit.name} is limited twice: give one limit")
        limits[limit.name] = limit
    return tuple(limits.values())


def slo_limit(name: str, most: object, where: str) -> SloLimit:
    """The limit on a figure like `ttft_p99`, at most a time like `500ms`. Raises InputError, which begins with `where`,
    for anything else."""
    begin, _, quantity = name.partition("_")
    begin = ALIASES.get(begin, begin)
    if f"{begin}_{quantity}" not in NAMES:
        remedy = QUANTITY if begin in MEANS else nearest(name, NAMES)
        raise InputError(f"{where}: {shown(name)} is not a figure: {FORM if '<' in name or '>' in name else remedy}")
    time = _TIME.fullmatch(most) if isinstance(most, str) else None
    most_us = float(Decimal(time[1]) * US[time[2]]) if time else 0.0
    if not 0.0 < most_us <= 1e3 * MOST_MS:
        problem = f"{name} must be a time above 0 with its unit (us, ms, s), got {shown(most)}"
        raise InputError(f"{where}: {problem}: {FORM}")
    return SloLimit(begin, quantity, most_us)


def meeting(replay: Replay, limits: Sequence[SloLimit]) -> np.ndarray:
    """bool per request: completed with its own latencies within every limit, whichever quantity the limit is on.

    So does vLLM's benchmark count goodput (vllm/benchmarks/serve.py), where the ITL of a request is named tpot. A
    request of one output token has no ITL that could exceed a limit.
    """
    own_us = {"e2e": replay.e2e_us, "ttft": replay.ttft_us, "itl": replay.itl_us}
    good = replay.completed.copy()
    for limit in limits:
        good &= own_us[limit.latency] <= limit.most_us
    return good


def few_requests(limits: Sequence[SloLimit], run: Observation | None) -> list[str]:
    """A line for each limit on a percentile of so few requests that hardly any is slower."""
    count = (run.completed or 0) if run else 0
    return [
        f"{limit.name} of {count} requests depends on the slowest few: lengthen the stages"
        for limit in limits
        if on_few(limit, count)
    ]


def on_few(limit: SloLimit, count: int) -> bool:
    """True for a limit on a percentile of so few requests that hardly any is slower."""
    share = 0.0 if limit.quantity == "mean" else 1.0 - int(limit.quantity[1:]) / 100.0
    return 0.0 < count * share < SLOWER
