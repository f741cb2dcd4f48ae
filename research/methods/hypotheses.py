"""The hypotheses of the protocol, each judged for one entry: features, whole loads, and runs that were not fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evaluator.metrics import mean_abs
from evaluator.score import MEANS
from evaluator.statistics import signed_rank
from research.methods.entries import Errors
from research.methods.protocol import H1, H2, H3


@dataclass(frozen=True, slots=True)
class H1Verdict:
    """A ridge on the form's features against one on raw counts, over `pairs` runs: their mean errors in percent, by how
    many points the first is lower, p of the signed-rank test (None if all pairs are equal) and the smallest p that so
    many pairs can have."""

    pairs: int
    features_mape: float
    counts_mape: float
    points: float
    p: float | None
    smallest_p: float
    supported: bool

    def possible(self, alpha: float) -> bool:
        """True if so many pairs can support it."""
        return self.smallest_p < alpha


@dataclass(frozen=True, slots=True)
class H2Verdict:
    """Whole loads: mean absolute errors in percent, and how many runs are within the limits, of how many."""

    e2e: float | None
    ttft: float | None
    itl: float | None
    passing: int
    runs: int
    supported: bool


@dataclass(frozen=True, slots=True)
class H3Verdict:
    """Runs that were not fitted.

    holds: by kind of fold, True if all are predicted with a mean E2E error below the limit.
    open: kinds that were not left out; with any of them it is not supported.
    """

    holds: Mapping[str, bool]
    open: tuple[str, ...]
    supported: bool


def h1(rules: H1, pairs: Mapping[str, tuple[float, float]]) -> H1Verdict | None:
    """The verdict on these pairs, (features, raw counts) by run; None without any."""
    features, counts = ([pair[i] for pair in pairs.values()] for i in (0, 1))
    test = signed_rank(features, counts)
    if test is None:
        return None
    ours, theirs = sum(features) / test.pairs, sum(counts) / test.pairs
    points = theirs - ours
    supported = test.p is not None and test.p < rules.alpha and points >= rules.points
    return H1Verdict(test.pairs, ours, theirs, points, test.p, smallest_p(test.pairs), supported)


def smallest_p(pairs: int) -> float:
    """The p of Wilcoxon's two-sided signed-rank test if one side is better in every pair: 2 of the 2^pairs signs.

    >>> smallest_p(3), smallest_p(6)
    (0.25, 0.03125)
    """
    return 2.0 * 0.5**pairs


def h2(rules: H2, errors: Mapping[str, Errors], runs: int) -> H2Verdict:
    """The verdict on the errors by run, which have to be those of all `runs`."""
    means = {name: mean_abs([of_run[name] for of_run in errors.values()]) for name in MEANS}
    passing = sum(rules.holds(of_run) for of_run in errors.values())
    supported = len(errors) == runs and rules.holds(means)
    return H2Verdict(means["e2e"], means["ttft"], means["itl"], passing, runs, supported)


def h3(rules: H3, errors: Mapping[str, Mapping[str, Errors]], several: Sequence[str], runs: int) -> H3Verdict | None:
    """The verdict on the errors by kind of fold and run; `several`: the kinds that the runs have several of.

    Of each of these all `runs` have to be predicted. None without such a kind."""
    holds, still_open = {}, tuple(kind for kind in several if kind not in errors)
    for kind in several:
        if kind in still_open:
            continue
        of_kind = errors[kind]
        e2e = mean_abs([of_run["e2e"] for of_run in of_kind.values()])
        holds[kind] = len(of_kind) == runs and e2e is not None and e2e < rules.e2e
    return H3Verdict(holds, still_open, all(holds.values()) and not still_open) if several else None
