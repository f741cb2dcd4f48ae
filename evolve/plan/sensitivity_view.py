"""Sensitivities in a terminal: a table for each experiment, and for several the spread over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from evaluator.intervals import FIGURES
from evolve.output.columns import figures, words, wrapped
from evolve.output.printing import LINES, more, note, prose, say_once, show
from evolve.output.table import Row, Table, number, row
from evolve.plan.sensitivity_result import Change, Effect, Sensitivities, Sensitivity, SensitivityPoint, value_text

NAMES = {"e2e": "E2E", "ttft": "TTFT", "itl": "ITL", "e2e_p99": "E2E p99"}  # of FIGURES
LEGEND = """\
Elasticity: d log(latency) / d log(setting) between the lowest and the highest possible value: at -0.5, twice the
setting makes the latency 29 % shorter. Of a switch: the change of the latency in percent. also: the other values that
were replayed. ±: the standard error of the mean over arrival seeds. E2E, TTFT, ITL: means. warnings:
where the queue grows or requests fail, so that the figures depend on how long the load lasts; where a value lies
outside what the program was fitted on, for a reason that the experiment as it is does not have."""
SPREAD_LEGEND = "Over experiments: the median, and in brackets the lowest and the highest."
DETAILED = 3  # experiments, at most, that have a table each beside the summary


def print_sensitivities(result: Sensitivities, explain: bool = False, verbose: bool = False) -> None:
    """Print the tables and every warning; of a few experiments, impossible values and those outside the fit, too."""
    averaged = f", means over arrival seeds {list(result.seeds)}" if result.drawn else ""
    prose(f"Sensitivity of {result.name} to the engine's settings{averaged}", "bold")
    several, left = len(result.experiments) > 1, list[str]()
    if several:
        show(_summary(result.experiments))
    if len(result.experiments) <= DETAILED:
        for of_one in result.experiments:
            show(_table(of_one))
        said = {of_one.experiment: _said(of_one) for of_one in result.experiments}
        left = say_once(said, lines=None if verbose else 2 * LINES)
    else:  # the notes on every experiment would bury the table
        prose("`--id ID` shows an experiment's own table and its impossible values; --json and --csv have all.")
    for warning in result.warnings:
        prose(f"- {warning}", "dim")
    if explain:
        note(f"{LEGEND} {SPREAD_LEGEND}" if several else LEGEND)
    more(left, explain)


def _table(of_one: Sensitivity) -> Table:
    own = ", ".join(f"{NAMES[name]} {number(ms, 1, signed=False)}" for name, ms in of_one.figures_ms.items())
    warnings = _warnings_of(of_one.fails, of_one.outside)
    title = f"{of_one.experiment}: {own} ms{f' ({warnings})' if warnings else ''}"
    latencies = figures("", *(NAMES[name] for name in FIGURES))
    columns = [words("setting", "own", "also"), latencies, wrapped("warnings")]
    return Table.of(title, columns, (_row(of_one, effect) for effect in of_one.effects))


def _row(of_one: Sensitivity, effect: Effect) -> Row:
    possible = [p for p in effect.points if p.impossible is None]
    return row(
        effect.setting,
        value_text(effect.own),
        ", ".join(value_text(p.value) for p in possible) or "-",
        *(_cell(effect, name) for name in FIGURES),
        "; ".join(f"{value_text(p.value)}: {text}" for p in effect.points if (text := _warnings(p, of_one))),
    )


def _cell(effect: Effect, figure: str) -> str:
    change, digits, unit = (
        (effect.elasticity[figure], 3, "") if effect.elasticity is not None else (_switched(effect, figure), 1, " %")
    )
    if change is None:
        return "-"
    error = "" if change.standard_error is None else f" ±{change.standard_error:.{digits}f}"
    return f"{number(change.mean, digits)}{error}{unit}"


def _switched(effect: Effect, figure: str) -> Change | None:
    """The change in percent after a switch is turned over; None if that is impossible."""
    [point] = effect.points
    return point.change_pct[figure] if point.change_pct else None


def _warnings(point: SensitivityPoint, of_one: Sensitivity) -> str:
    """The warnings at a value that the experiment's own value does not have."""
    return "impossible" if point.impossible else _warnings_of(point.fails, _further(point, of_one))


def _further(point: SensitivityPoint, of_one: Sensitivity) -> list[str]:
    """Where a value lies outside the fit, and the experiment as it is does not."""
    return [line for line in point.outside or () if line not in (of_one.outside or ())]


def _warnings_of(fails: Sequence[str], outside: Sequence[str] | None) -> str:
    return ", ".join([*fails, "outside the fit"] if outside else fails)


def _summary(every: Sequence[Sensitivity]) -> Table:
    columns = [words("setting"), figures("", *(NAMES[name] for name in FIGURES), "impossible", "fails", "outside")]
    title = f"{len(every)} experiments; values that are impossible, fail, or lie outside the fit"
    if outside := sum(bool(of_one.outside) for of_one in every):
        title = f"{title}; {outside} of the experiments lie outside it as they are"
    return Table.of(title, columns, (_summary_row(every, i) for i in range(len(every[0].effects))))


def _summary_row(every: Sequence[Sensitivity], setting: int) -> Row:
    """The row of the setting of this number."""
    effects = [of_one.effects[setting] for of_one in every]
    points = [(p, of_one) for of_one in every for p in of_one.effects[setting].points]
    counts = (
        sum(map(bool, of_points))
        for of_points in (
            [p.impossible for p, _ in points],
            [p.fails for p, _ in points],
            [_further(p, of_one) for p, of_one in points],
        )
    )
    return row(
        effects[0].setting,
        *(_spread(effects, name) for name in FIGURES),
        *(f"{count} of {len(points)}" for count in counts),
    )


def _spread(effects: Sequence[Effect], figure: str) -> str:
    """The median, lowest and highest elasticity, or change of a switch, over experiments."""
    numeric = effects[0].elasticity is not None
    changes = [e.elasticity[figure] if e.elasticity else _switched(e, figure) for e in effects]
    means = [change.mean for change in changes if change is not None]
    if not means:
        return "-"
    digits, unit = (3, "") if numeric else (1, " %")
    low, middle, high = (number(float(x), digits) for x in (min(means), np.median(means), max(means)))
    return f"{middle}{unit} [{low}, {high}]"


def _said(of_one: Sensitivity) -> list[str]:
    """Why values are impossible, which settings change with them, and where values lie outside: what the experiment has
    in common with them is said first."""
    said = [f"outside as it is: {line}" for line in of_one.outside or ()]
    return [*said, *(line for effect in of_one.effects for p in effect.points for line in _lines(effect, p, of_one))]


def _lines(effect: Effect, point: SensitivityPoint, of_one: Sensitivity) -> Iterable[str]:
    at = f"{effect.setting} {value_text(point.value)}"
    if point.impossible:
        yield f"impossible: {point.impossible}"
    if point.also:
        yield f"{at}: with {_settings(point.also)}, which vLLM needs without chunked prefill"
    for line in _further(point, of_one):
        yield f"outside at {at}: {line}"


def _settings(settings: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())
