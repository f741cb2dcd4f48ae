"""`evolve predict --against`: the predictions of two programs for the same experiments, and which is closer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evaluator.metrics import error_pct
from evaluator.score import MEANS
from evaluator.statistics import mean_interval
from evolve.output.columns import figures, words
from evolve.output.printing import LINES, more, note, prose, say_once, show
from evolve.output.table import Table
from evolve.output.terminal import say
from evolve.plan.forecast import Forecast, Forecasts
from simulator.common.json import JsonObject
from simulator.common.records import to_json

SEED = 0  # of the bootstrap
MOST_ROWS = 15  # lines of rows without -v
LEGEND = """\
other, % more: the other program's mean against the first one's. use: fitted, in sample; new, not fitted; before,
only an ancestor was fitted; % fitted, the share that was"""


@dataclass(frozen=True, slots=True)
class Difference:
    """The absolute errors of the means of two programs over the observed experiments that they know in the same ways.

    latency: one of MEANS. uses: how the first and the other program know these experiments. first, other: mean absolute
    errors in percent. closer: in how many of `pairs` the first one is closer. points: the other's mean error less the
    first's, in percentage points; interval: its bootstrap interval of 95 % over experiments, None for fewer than two.
    """

    latency: str
    uses: tuple[str, str]
    first: float
    other: float
    closer: int
    pairs: int
    points: float
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class Rivalry:
    """The predictions of two programs for the same experiments under the same arrivals."""

    first: Forecasts
    other: Forecasts

    @property
    def pairs(self) -> list[tuple[Forecast, Forecast]]:
        """The two forecasts of every experiment."""
        return list(zip(self.first.experiments, self.other.experiments, strict=True))

    @property
    def differences(self) -> list[Difference]:
        """For every pair of uses and every latency of which means were observed: fitted and new runs are never averaged
        together."""
        by_uses: dict[tuple[str, str], list[tuple[Forecast, Forecast]]] = {}
        for first, other in self.pairs:
            by_uses.setdefault((first.use, other.use), []).append((first, other))
        found = (_difference(name, uses, pairs) for uses, pairs in by_uses.items() for name in MEANS)
        return [difference for difference in found if difference]

    def to_json(self) -> JsonObject:
        return self.first.to_json() | {"against": self.other.to_json(), "differences": to_json(self.differences)}


def _errors(pair: tuple[Forecast, Forecast], name: str) -> tuple[float | None, float | None]:
    """The signed errors of the means of one latency, percent."""
    a, b = ((f.summary.error_pct or {}).get(f"{name}_ms", {}).get("mean") for f in pair)
    return a, b


def _difference(latency: str, uses: tuple[str, str], pairs: Sequence[tuple[Forecast, Forecast]]) -> Difference | None:
    """The difference over these experiments; None where no mean was observed."""
    both = (_errors(pair, latency) for pair in pairs)
    errors = [(abs(a), abs(b)) for a, b in both if a is not None and b is not None]
    if not errors:
        return None
    first, other = (sum(column) / len(errors) for column in zip(*errors, strict=True))
    interval = mean_interval([b - a for a, b in errors], SEED)
    return Difference(latency, uses, first, other, sum(a < b for a, b in errors), len(errors), other - first, interval)


def print_against(result: Rivalry, explain: bool = False, verbose: bool = False) -> None:
    """Print which program is closer, the errors where anything was observed, and the predicted means."""
    first, other = result.first.name, result.other.name
    differences = result.differences
    left: list[str] = []
    for uses in dict.fromkeys(d.uses for d in differences):
        unfair = "" if uses[0] == uses[1] else ", an unfair comparison"
        prose(f"Experiments with use {uses[0]} by {first}, and {uses[1]} by {other}{unfair}:")
        for d in (d for d in differences if d.uses == uses):
            interval = f", 95 % interval {d.interval[0]:+.2f} to {d.interval[1]:+.2f}" if d.interval else ""
            errors = f"mean absolute error {d.first:.2f} % against {d.other:.2f} % ({d.points:+.2f} points{interval})"
            prose(f"- {d.latency.upper()}: {first} is closer in {d.closer} of {d.pairs}; {errors}")
    most = None if verbose else MOST_ROWS
    if differences:
        left += show(_errors_table(result), most)
    if verbose or not differences:
        left += show(_means_table(result), most)
    else:
        left.append("predicted means")
    if explain:
        note(f"{LEGEND}.")
    for forecasts in (result.first, result.other):
        if any(forecasts.warnings_by_id.values()):
            say(f"{forecasts.name}:", "bold")
        left += say_once(forecasts.warnings_by_id, lines=None if verbose else LINES // 2)
    more(left, explain)


def _means_table(result: Rivalry) -> Table:
    columns = [*words("experiment")]
    for name in MEANS:
        ms = figures(".2f" if name == "itl" else ".1f", name.upper(), f"other {name.upper()}")
        columns += [*ms, *figures("+.1f", "other, % more")]
    rows: list[list[object]] = []
    for pair in result.pairs:
        cells: list[object] = [pair[0].id]
        for name in MEANS:
            a, b = (getattr(getattr(f.summary.predicted, f"{name}_ms", None), "mean", None) for f in pair)
            cells += [a, b, error_pct(b, a)]
        rows.append(cells)
    averaged = f", mean over arrival seeds {list(result.first.seeds)}" if result.first.drawn else ""
    title = f"Predicted means of {result.first.name} against {result.other.name} in ms{averaged}"
    return Table.of(title, columns, rows)


def _errors_table(result: Rivalry) -> Table:
    heads = [head for name in MEANS for head in (name.upper(), f"other {name.upper()}")]
    rows = [
        (pair[0].id, pair[0].use, pair[1].use, *(x for name in MEANS for x in _errors(pair, name)))
        for pair in result.pairs
        if pair[0].summary.error_pct
    ]
    title = f"Errors of the means of {result.first.name} against {result.other.name}, percent of what was observed"
    return Table.of(title, [words("experiment", "use", "other use"), figures("+.1f", *heads)], rows)
