"""`evolve predict --load`: how many replicas of a deployment are enough for a load that they share equally."""

from __future__ import annotations

from collections.abc import Callable

from evolve.program.sweep_result import Row, replicas

IDLE = 0.005  # requests in flight on average, below which even p99 is that of requests that are alone


def shared(load_rps: float, start_rps: float, at: Callable[[float], Row], judged: Callable[[Row], Row]) -> list[Row]:
    """The rows of the shares that were tried, in ascending order of rate, until it is known how many replicas are the
    fewest with which everything holds, averaged over arrival seeds, under each alone, and at the upper ends of
    intervals.

    The first share is at most start_rps, the rate of the experiment's own load: far above the rate that a deployment
    serves, replays are long. `at` predicts a rate in requests/s; `judged` adds whether it holds at the upper ends.
    """
    tried: dict[int, Row] = {}

    def row(count: int) -> Row:
        if count not in tried:
            tried[count] = at(load_rps / count)
        return tried[count]

    def holds(count: int) -> bool:
        f = row(count).figures
        return f is not None and not f.fails

    def holds_by_seed(count: int) -> bool:
        f = row(count).figures
        return f is not None and f.seeds_holding == f.seeds

    def likely_holds(count: int) -> bool:
        if (f := row(count).figures) and f.likely is None:
            tried[count] = judged(tried[count])
        f = tried[count].figures
        return f is not None and f.likely is True

    def hopeless(count: int) -> bool:
        """Whether more replicas will not help either: each serves one request, or conversation, at a time, or none."""
        f = row(count).figures
        if f is None or f.run is None or f.most_running <= 1:
            return True
        return load_rps / count * (f.run.e2e_ms.mean or 0.0) / 1e3 < IDLE

    enough = _fewest(holds, hopeless, 0, replicas(load_rps, start_rps))
    if enough is not None:
        _fewest(holds_by_seed, hopeless, enough - 1, enough)
        tried[enough] = judged(row(enough))
        if (f := tried[enough].figures) and f.likely is not None:  # there are intervals
            _fewest(likely_holds, hopeless, enough - 1, enough)
    return [tried[count] for count in sorted(tried, reverse=True)]


def _fewest(holds: Callable[[int], bool], hopeless: Callable[[int], bool], few: int, many: int) -> int | None:
    """The smallest count above `few` with which something holds; None if that is hopeless.

    It does not hold with `few`. `many`, the first to be tried, is doubled until it holds, and the range between the two
    halved, as if what holds with a count also held with every larger one.
    """
    while not holds(many):
        if hopeless(many):
            return None
        few, many = many, 2 * many
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if holds(middle) else (middle, many)
    return many
