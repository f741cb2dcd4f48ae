"""How far measured runs lie from their predictions, and what explains it best, in one sentence of `evolve predict`.

A residual is log(observed / predicted) of the mean of a load stage, above 0 where the server is slower. Of all splits
in two (by TP, GPU, ..., load, lengths) the best is the one with the smallest p of an F test, that is with the largest
reduction of the squared residuals about their mean. It counts if p times the number of splits is below LEVEL. All
stages of a run are one observation where they cannot differ. `evolve drift` tests whether the residuals are noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy

from evaluator.group_out import COMMON
from evaluator.intervals import LEVELS
from evaluator.score import MEANS
from simulator.common.text import counted
from simulator.serving.experiment import Experiment
from simulator.serving.workload import output_lengths, prompt_lengths

LEAST_RUNS = 4  # two on either side of a split
LEVEL = 0.05  # of all splits together (Bonferroni)
OFF_PCT = 5.0  # smaller differences are not explained
# What runs may have in common, of evaluator.group_out, and its words.
SHARED = {
    "tp": "at TP {}",
    "hardware": "on {}",
    "models": "for {}",
    "precisions": "with {} weights",
    "parallelism": "with {}",
    "versions": "on version {}",
}
SETTINGS = "compare settings and versions with the other runs"
FORM = "`evolve show --diagnose` names terms that would explain it"
PACE = "no split explains it: a clock, a version or a setting"
FIRST = "only TTFT is off: time before the queue"
USUAL = ", or the program itself, whose held-out runs were off as far"


@dataclass(frozen=True, slots=True)
class MeasuredStage:
    """A load stage of a run. residuals: by latency of MEANS, of those that are known; outside: latencies of the run
    outside their 80 % intervals, None without intervals."""

    experiment: Experiment
    level: float
    residuals: dict[str, float]
    outside: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Runs on one side of a split, or all. where: in words, "" for all. slower_pct: by latency of MEANS, by how much
    the observed means are longer than predicted. outside: the runs whose latency lies outside its 80 % interval; None
    without intervals."""

    where: str
    runs: int
    slower_pct: dict[str, float]
    outside: int | None


@dataclass(frozen=True, slots=True)
class Deviation:
    """The deviation of the measured runs that a program was not fitted on. latency: the one that the split is of.

    group: the runs that are farther off; rest: the others, None without a split. share: of the squared residuals about
    their mean, what the split explains. cause: what to make of it, "" if nothing is off.
    """

    latency: str
    group: RunGroup
    rest: RunGroup | None
    share: float | None
    cause: str

    @property
    def sentence(self) -> str:
        g, name = self.group, self.latency
        others = [f"{n.upper()} {_longer(x)}" for n, x in g.slower_pct.items() if n != name]
        outside = [] if g.outside is None else [f"{g.outside} outside the {100 * LEVELS[0]:.0f} % interval"]
        about = ", ".join([counted(g.runs, "run"), *outside, *others])
        where = f"{g.where[:1].upper()}{g.where[1:]} your" if g.where else "Your"
        text = f"{where} server's {name.upper()} is {_longer(g.slower_pct[name])} than predicted ({about})"
        if self.rest:
            text += f", {self.rest.where} {_longer(self.rest.slower_pct[name])}"
        share = "" if self.share is None else f"This explains {100.0 * self.share:.0f} % of the squared error; "
        cause = f"{share}{self.cause}" if share else self.cause[:1].upper() + self.cause[1:]
        return f"{text}. {cause}." if cause else f"{text}."


def _longer(pct: float) -> str:
    return f"{abs(pct):.0f} % {'longer' if pct >= 0.0 else 'shorter'}"


@dataclass(frozen=True, slots=True)
class _Split:
    inside: tuple[bool, ...]
    where: tuple[str, str]
    remedy: str


def deviation(rows: Sequence[MeasuredStage]) -> Deviation | None:
    """The deviation of these stages: of the pace (ITL, or E2E without one) if it is off, else of TTFT if that is off.

    None without stages.
    """
    pace = "itl" if any("itl" in row.residuals for row in rows) else "e2e"
    found = [x for name in (pace, "ttft") if (x := _of(name, [r for r in rows if name in r.residuals]))]
    return next((d for d in found if d.cause), found[0]) if found else None


def _of(name: str, rows: Sequence[MeasuredStage]) -> Deviation | None:
    """The deviation of one latency."""
    if not rows:
        return None
    every = _group("", name, rows)
    if best := _best(name, rows):
        split, share = best
        sides = [[r for r, inside in zip(rows, split.inside, strict=True) if inside == side] for side in (True, False)]
        groups = [_group(where, name, side) for where, side in zip(split.where, sides, strict=True)]
        far, near = sorted(groups, key=lambda g: -abs(g.slower_pct[name]))
        return Deviation(name, far, near, share, split.remedy)
    if abs(every.slower_pct[name]) < OFF_PCT:
        return Deviation(name, every, None, None, "")
    usual = every.outside is not None and every.outside <= (1.0 - LEVELS[0]) * every.runs
    cause, fit = (FIRST, "evolve fit --only alpha") if name == "ttft" else (PACE, "evolve fit")
    why = f"{cause}{USUAL if usual else ''}; `{fit}` takes it"
    if every.runs < LEAST_RUNS:
        why = "too few runs to say why: measure more"
    return Deviation(name, every, None, None, why)


def _group(where: str, latency: str, rows: Sequence[MeasuredStage]) -> RunGroup:
    runs = {r.experiment.id: r for r in rows}
    means = {n: [r.residuals[n] for r in rows if n in r.residuals] for n in MEANS}
    slower = {n: 100.0 * math.expm1(float(np.mean(known))) for n, known in means.items() if known}
    known = [r.outside for r in runs.values() if r.outside is not None]
    return RunGroup(where, len(runs), slower, sum(latency in of for of in known) if known else None)


def _best(name: str, rows: Sequence[MeasuredStage]) -> tuple[_Split, float] | None:
    """The best split and the share that it explains, if it counts and its sides differ by OFF_PCT or more."""
    y = np.array([r.residuals[name] for r in rows])
    run = np.unique([r.experiment.id for r in rows], return_inverse=True)[1]
    splits = dict[tuple[bool, ...], _Split]()
    for split in _splits(rows):
        same = splits.get(split.inside)  # these runs cannot tell the two apart
        one, other = (f"{a} and {b}" for a, b in zip(same.where, split.where, strict=True)) if same else split.where
        splits[split.inside] = replace(same or split, where=(one, other))
    if not splits:
        return None
    tests = [(*_test(y, np.array(split.inside), run), split) for split in splits.values()]
    p, share, apart, split = min(tests, key=lambda test: test[0])
    return (split, share) if p * len(tests) < LEVEL and apart >= math.log1p(OFF_PCT / 100.0) else None


def _test(y: np.ndarray, inside: np.ndarray, run: np.ndarray) -> tuple[float, float, float]:
    """(p, share of the squares about the mean that the split explains, difference of the means); p = 1 if a side has
    fewer than two observations. run: int[stages], the number of the run of each stage."""
    stages, within = np.bincount(run), np.bincount(run, inside)
    if ((within == 0) | (within == stages)).all():  # the stages of a run are one observation
        y, inside = np.bincount(run, y) / stages, within > 0
    one, other = y[inside], y[~inside]
    if min(len(one), len(other)) < 2:
        return 1.0, 0.0, 0.0
    total = float(np.square(y - y.mean()).sum())
    left = float(np.square(one - one.mean()).sum() + np.square(other - other.mean()).sum())
    degrees = len(y) - 2
    f = (total - left) / max(left / degrees, 1e-12)
    share = 1.0 - left / total if total else 0.0
    p = float(
        scipy.special.betainc(degrees / 2, 0.5, degrees / (degrees + f))
    )  # of F; scipy.stats takes a second to load
    return p, share, abs(float(one.mean() - other.mean()))


def _splits(rows: Sequence[MeasuredStage]) -> Iterator[_Split]:
    """Every split: a value that runs have in common against the others, or a threshold of the load or of lengths."""
    for kind, words in SHARED.items():
        values = [COMMON[kind](r.experiment) for r in rows]
        several = list(dict.fromkeys(values))
        for value in several if len(several) > 2 else several[:-1]:
            other = "elsewhere" if len(several) > 2 else words.format(several[-1])
            yield _split([v == value for v in values], (words.format(value), other), SETTINGS)
    closed = {r.experiment.workload.closed for r in rows}
    numbers = {
        "prompt tokens": [float(prompt_lengths(r.experiment.workload).mean()) for r in rows],
        "answer tokens": [float(output_lengths(r.experiment.workload).mean()) for r in rows],
    }
    if len(closed) == 1:
        numbers = {"clients" if True in closed else "requests/s": [r.level for r in rows]} | numbers
    for unit, levels in numbers.items():
        for cut in sorted({*levels})[1:]:
            yield _split([level >= cut for level in levels], (f"from {cut:,.4g} {unit} on", "below"), FORM)


def _split(inside: Sequence[bool], where: tuple[str, str], remedy: str) -> _Split:
    """The split, with the first stage inside: so those of the same runs are equal."""
    if inside[0]:
        return _Split(tuple(inside), where, remedy)
    return _Split(tuple(not x for x in inside), (where[1], where[0]), remedy)
