"""Standardised residuals of load stages, and the tests of whether they are noise: see `evolve.calibrate.drift`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy

LEVEL = 0.01  # of all tests together (Bonferroni): the most false alarms
PACE, FIRST = CHANNELS = "pace", "ttft"  # ITL, or E2E without one; TTFT
NAMES = {PACE: "pace", FIRST: "TTFT"}
ALONE = 0.05  # share of runs outside the 95 % intervals of `evolve predict` by chance
BLIND_PCT = 100.0  # a shift that runs must show for their silence to mean anything: times that double


@dataclass(frozen=True, slots=True)
class StageResidual:
    """A load stage (from 0) of a run at `rate` requests/s or clients.

    log_ratio: log(observed / predicted) of E2E, TTFT and ITL; scale: how far off each may be, as a standard deviation.
    None where nothing was observed.
    """

    experiment: str
    model: str
    stage: int
    rate: float
    log_ratio: Mapping[str, float | None]
    scale: Mapping[str, float | None]

    def z(self, name: str) -> float | None:
        ratio, scale = self.log_ratio[name], self.scale[name]
        return None if ratio is None or scale is None else ratio / scale

    def latency_of(self, channel: str) -> str:
        """The latency of MEANS that shows a channel: of the pace ITL, or E2E where there is no ITL."""
        return "ttft" if channel == FIRST else "e2e" if self.z("itl") is None else "itl"

    def of_channel(self, channel: str) -> float | None:
        return self.z(self.latency_of(channel))

    def scale_of_channel(self, channel: str) -> float | None:
        """The standard deviation of that residual before it is standardised."""
        name = self.latency_of(channel)
        return None if self.z(name) is None else self.scale[name]


@dataclass(frozen=True, slots=True)
class ChannelTest:
    """A test of one channel: `shift` or `spread`, its statistic (t or F), degrees of freedom, and p; whether it
    rejects, at its share of LEVEL."""

    channel: str
    kind: str
    statistic: float
    freedom: tuple[int, int]
    p: float
    rejects: bool


def channel_tests(residuals: Sequence[StageResidual], freedom: int) -> tuple[ChannelTest, ...]:
    """The tests that these residuals allow, each at its share of LEVEL."""
    parts = [part for channel in CHANNELS for part in _statistics(residuals, channel, freedom)]
    return tuple(ChannelTest(*part, rejects=bool(part[-1] < LEVEL / len(parts))) for part in parts)


def more_than_chance(outside: int, runs: int) -> bool:
    """Return True if chance rarely takes so many of the runs outside their 95 % intervals.

    >>> more_than_chance(1, 1), more_than_chance(1, 2), more_than_chance(2, 7), more_than_chance(0, 1)
    (True, False, True, False)
    """
    return outside > 0 and float(scipy.stats.binom.sf(outside - 1, runs, ALONE)) < 1.01 * ALONE


def least_shift(residuals: Sequence[StageResidual], tests: Sequence[ChannelTest], channel: str) -> float | None:
    """The smallest shift of a channel that these runs would show, as a share of what is predicted; None without one.

    It is where the test of the mean over models rejects, at the mean scale of the residuals.
    """
    test = next((t for t in tests if (t.channel, t.kind) == (channel, "shift")), None)
    scales = [s for r in residuals if (s := r.scale_of_channel(channel)) is not None]
    if test is None or not scales:
        return None
    models = len({r.model for r in residuals if r.scale_of_channel(channel) is not None})
    critical = float(scipy.stats.t.isf(LEVEL / len(tests) / 2.0, test.freedom[1]))
    return math.expm1(critical / math.sqrt(models) * float(np.mean(scales)))


def least_shifts_pct(residuals: Sequence[StageResidual], tests: Sequence[ChannelTest]) -> dict[str, float | None]:
    """`least_shift` of every channel in percent."""
    shifts = {channel: least_shift(residuals, tests, channel) for channel in CHANNELS}
    return {channel: None if shift is None else 100.0 * shift for channel, shift in shifts.items()}


def blind(residuals: Sequence[StageResidual], tests: Sequence[ChannelTest]) -> list[str]:
    """The channels, by name, in which these runs would not even show a shift of BLIND_PCT."""
    shifts = least_shifts_pct(residuals, tests)
    return [NAMES[channel] for channel, pct in shifts.items() if pct is not None and pct > BLIND_PCT]


def _statistics(
    residuals: Sequence[StageResidual], channel: str, freedom: int
) -> list[tuple[str, str, float, tuple[int, int], float]]:
    """(channel, kind, statistic, degrees of freedom, p) of the shift, and of the spread if anything can differ."""
    known = [(r.model, z) for r in residuals if (z := r.of_channel(channel)) is not None]
    if not known:
        return []
    models = list(dict.fromkeys(model for model, _ in known))
    means = np.array([np.mean([z for m, z in known if m == model]) for model in models])
    shift = float(means.sum() / math.sqrt(len(means)))
    found = [(channel, "shift", shift, (1, freedom), float(2.0 * scipy.stats.t.sf(abs(shift), freedom)))]
    apart = np.square(means - means.mean()).sum() + sum((z - means[models.index(m)]) ** 2 for m, z in known)
    degrees = len(known) - 1
    if degrees:
        ratio = float(apart / degrees)
        found.append((channel, "spread", ratio, (degrees, freedom), float(scipy.stats.f.sf(ratio, degrees, freedom))))
    return found
