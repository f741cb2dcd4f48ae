"""The errors of a program on many runs as tables, for a language model: by cell, by what runs share, by concurrency.

A run at fixed concurrency tells little by itself, and hundreds would fill a question; those of a cell err together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from archive.score import Errors
from evaluator.assess import AssessData
from evaluator.cells import mean_error, weighted_mean
from evaluator.diagnose.examine import EVERY, Examination
from evaluator.fit.fit import ratio_of
from evaluator.fit.problem import problem_of
from evaluator.group_out import groups, mean_errors
from simulator.kernels.curves import kernels
from simulator.kernels.roofline import DATASHEET, NEAREST
from simulator.language.ir import Program
from simulator.serving.experiment import Experiment
from simulator.serving.facts import Facts

# Clients of a closed load up to which runs count as alike, and the name of the bin.
BINS = ((8.0, "1-8"), (32.0, "9-32"), (128.0, "33-128"), (math.inf, "129+"))
AT_A_RATE = "at a rate"
SHARED = {
    "hardware": "GPU",
    "precisions": "precision",
    "models": "model",
    "parallelism": "parallelism",
    "tp": "TP degree",
    "architectures": "architecture",
    "versions": "engine version",
    "sources": "kind of load",
    EVERY: "own",
}
MARGINS = ("hardware", "precisions", "models", "parallelism", "tp")  # kinds of folds with a table of their own
SAME_PCT = 0.5  # points up to which errors count as the same
WIDEST = 999.0  # percent, of an error that is shown
COUNTED = ("elementwise", "small", "sampler")  # kernels that no table has on any GPU


@dataclass(frozen=True, slots=True)
class Listing:
    """A table of a question: its heading, then lines, the most telling first, which may be cut from the end.

    rest: what follows `and 3 more` where lines were cut. share: of the room, relative to other tables.
    """

    heading: str
    lines: tuple[str, ...] = ()
    rest: str = ""
    share: float = 1.0

    def text(self, most: int) -> str:
        """The heading and the first lines, and how many more there are."""
        more = [f"and {len(self.lines) - most} more{self.rest}"] if most < len(self.lines) else []
        return "\n".join([self.heading, *self.lines[:most], *more])


def whole(listings: Iterable[Listing]) -> str:
    """All lines of some listings."""
    return "\n\n".join(listing.text(len(listing.lines)) for listing in listings)


Groups = Mapping[str, Sequence[int]]  # positions of runs, by the name under which they are shown


def load_bin(e: Experiment) -> str:
    """The bin of a run by its clients, the most of its stages; AT_A_RATE of an open load."""
    if not e.workload.closed:
        return AT_A_RATE
    users = max(stage.level for stage in e.workload.stages)
    return next(name for most, name in BINS if users <= most)


def numbered(cells: Groups) -> dict[str, str]:
    """The short names of cells, `C1`, `C2`, ..., by which the lines of several tables name them."""
    return {name: f"C{i}" for i, name in enumerate(cells, 1)}


def by_group(rows: Sequence[Errors], of: Groups) -> tuple[Errors, ...]:
    """The signed means of the errors of every group, under its name."""
    values = _array(rows)
    return tuple(Errors(name, *_means(values[list(at)])) for name, at in of.items())


def tables(examination: Examination, data: AssessData, cells: Groups) -> list[Listing]:
    """Errors by cell, along concurrency, by what runs share, and the kernel tables that the cells stand on."""
    experiments = data.fit.experiments
    fitted, left_out = _array(examination.fitted), _array(examination.mean_left_out)
    sizes = _sizes(examination)
    numbers = numbered(cells)
    order = sorted(cells, key=lambda name: -float(np.nanmean(sizes[list(cells[name])])))
    bins = [load_bin(e) for e in experiments]
    without = ", ".join(SHARED[kind] for kind in examination.left_out)
    heads = [name for _, name in BINS if name in bins]
    lines = []
    for name in order:
        at = list(cells[name])
        own = [bins[i] for i in at]
        curves = "".join(f" | {_curve(fitted[at, k], own, heads)}" for k in (1, 2)) if heads else ""
        if set(own) == {AT_A_RATE}:
            curves = f" | {AT_A_RATE}"
        errors = f"{_shown(_means(fitted[at]))} | {_shown(_means(left_out[at]))}"
        lines.append(f"{numbers[name]} {name} | {len(at)} | {np.nanmean(sizes[at]):.1f} | {errors}{curves}")
    along = f" | fitted TTFT at {', '.join(heads)} clients | fitted ITL" if heads else ""
    heading = (
        "Cells (a model on a GPU in a precision), the largest error left out first. Percent, signed means over runs, "
        "(predicted - observed)/observed; E2E only where requests come at a rate. Left out: predicted by constants "
        f"fitted without its {without}, the mean over these; size: mean absolute. Tables below do not repeat a cell.\n"
        f"cell | runs | size | fitted E2E TTFT ITL | left out E2E TTFT ITL{along}"
    )
    found = [Listing(heading, tuple(lines), " with smaller errors", share=20.0)]
    whole = {tuple(at) for at in cells.values()}
    for kind in (kind for kind in MARGINS if kind in examination.left_out):
        of = groups(experiments, (kind,))[kind]
        rows, alone = _array(examination.left_out[kind]), {k: at for k, at in of.items() if tuple(at) not in whole}
        short = {_short(kind, name): at for name, at in alone.items()}
        title = f"By {SHARED[kind]} (runs | fitted | left out with its {SHARED[kind]})"
        found.append(_margin(title, short, fitted, rows, data.fit.run_weights))
    of_bins = {name: [i for i, b in enumerate(bins) if b == name] for name in (*heads, AT_A_RATE) if name in bins}
    if len(of_bins) > 1:
        title = "By clients (runs | fitted | left out)"
        found.append(_margin(title, of_bins, fitted, left_out, data.fit.run_weights, in_order=True))
    found.append(_kernel_tables({numbers[name]: [experiments[i] for i in cells[name]] for name in order}))
    return [listing for listing in found if listing.lines]


def disagreement(program: Program, data: AssessData, near: Mapping[int, Program], of: Groups) -> Listing:
    """The cells, or runs, where other near-optimal programs predict something else than `program`.

    Predictions are those of the mean field times the program's own ratio to a replay.
    """
    own = problem_of(program, data.fit)
    ratio = ratio_of(own, own.start, own.replay(own.start, allow_hostile=True))
    before = data.fit.errors_pct(own.predict(own.start) * ratio)
    changes = {}
    for number, other in near.items():
        problem = problem_of(other, data.fit)
        changes[number] = data.fit.errors_pct(problem.predict(problem.start) * ratio) - before
    ranked = []
    for name, at in of.items():
        means = {number: _means(change[list(at)]) for number, change in changes.items()}
        size = max((mean_error(*map(_size, mean)) or 0.0 for mean in means.values()), default=0.0)
        if size > SAME_PCT:
            ranked.append((size, f"{name} | {' | '.join(_shown(mean) for mean in means.values())}"))
    ranked.sort(key=lambda pair: -pair[0])
    names = " | ".join(f"{number}" for number in near)
    heading = (
        "Where near-optimal programs disagree: the predicted E2E TTFT ITL of others less A's, in points of error\n"
        f"where | {names}"
    )
    return Listing(heading, tuple(line for _, line in ranked), " where they differ less", share=2.0)


def _margin(
    title: str, of: Groups, fitted: np.ndarray, left_out: np.ndarray, weights: np.ndarray, in_order: bool = False
) -> Listing:
    """A line for each group of runs, the largest error left out first, or in the order of `of`."""
    ranked = []
    for name, at in of.items():
        runs = list(at)
        own, other = (_means(rows[runs], weights[runs]) for rows in (fitted, left_out))
        line = f"{name} | {len(runs)} | {_shown(own)} | {_shown(other)}"
        ranked.append((mean_error(*map(_size, other)) or 0.0, line))
    if not in_order:
        ranked.sort(key=lambda pair: -pair[0])
    return Listing(title, tuple(line for _, line in ranked), " with smaller errors", share=1.5)


def _kernel_tables(cells: Mapping[str, Sequence[Experiment]]) -> Listing:
    """The measured kernels that cells stand on, a line for those alike; those with kernels filled in come first."""
    found: dict[str, list[str]] = {}
    for name, runs in cells.items():
        filled = {kernel: how for e in runs for kernel, how in _filled_in(e).items()}
        ways = {how: [k for k, other in filled.items() if other == how] for how in sorted(filled.values())}
        text = "".join(f"; {how}: {', '.join(sorted(names))}" for how, names in ways.items())
        found.setdefault(f"{', '.join(sorted({_tables_of(e) for e in runs}))}{text}", []).append(name)
    lines = (
        f"{' '.join(names)} | {text}" for text, names in sorted(found.items(), key=lambda entry: ";" not in entry[0])
    )
    heading = (
        "Kernel tables of the cells, and kernels that are filled in from another type or shape; all others were timed "
        "in the cell's type, at or between its shapes"
    )
    return Listing(heading, tuple(lines), share=2.0)


def _tables_of(e: Experiment) -> str:
    facts: Facts = e.facts
    if facts.deployed is None:
        return "no tables"
    gpu = facts.deployed.gpu
    return f"{gpu.tables} at other peaks" if gpu.timed_on else gpu.tables


def _filled_in(e: Experiment) -> dict[str, str]:
    """How each kernel that was not timed as it is was filled in."""
    facts: Facts = e.facts
    found = dict[str, str]()
    for o in kernels(facts.deployed).operations if facts.deployed else ():
        other_type = o.timing.kernel.partition(" timed in ")[2]
        if other_type:
            found[o.curve] = f"timed in {other_type}"
        elif o.timing.kind == NEAREST or (o.timing.kind == DATASHEET and o.curve not in COUNTED):
            found.setdefault(o.curve, o.timing.kind)
    return found


def _short(kind: str, name: str) -> str:
    """The name of what runs share as cells have it."""
    return name.partition("-")[0] if kind == "hardware" else name.rpartition("/")[2]


def _sizes(examination: Examination) -> np.ndarray:
    """float64[runs]: mean absolute error left out, as in the leave-group-out error; fitted where none is left out."""
    of_kinds = [_array(rows) for rows in examination.left_out.values()] or [_array(examination.fitted)]
    sizes: np.ndarray = np.mean([mean_errors(rows) for rows in of_kinds], axis=0)
    return sizes


def _curve(errors: np.ndarray, bins: Sequence[str], heads: Sequence[str]) -> str:
    """The mean error in every bin, `.` in one without runs."""
    found = []
    for head in heads:
        mean = weighted_mean(
            [_known(x) for x, b in zip(errors, bins, strict=True) if b == head], _ones(bins.count(head))
        )
        found.append("." if mean is None else _signed_whole(mean))
    return " ".join(found)


def _array(rows: Sequence[Errors]) -> np.ndarray:
    """float64[runs, 3], NaN where an error is not known."""
    return np.array([[math.nan if x is None else x for x in row.figures] for row in rows]).reshape(-1, 3)


def _means(rows: np.ndarray, weights: Iterable[float] | None = None) -> tuple[float | None, float | None, float | None]:
    shares = _ones(len(rows)) if weights is None else [*weights]
    e2e, ttft, itl = (weighted_mean([_known(x) for x in column], shares) for column in rows.T)
    return e2e, ttft, itl


def _ones(count: int) -> list[float]:
    return [1.0] * count


def _known(x: float) -> float | None:
    return None if math.isnan(x) else float(x)


def _size(x: float | None) -> float | None:
    return None if x is None else abs(x)


def _shown(errors: Iterable[float | None]) -> str:
    return " ".join("-" if x is None else _signed_whole(x) for x in errors)


def _signed_whole(x: float) -> str:
    return f"{min(max(x, -WIDEST), WIDEST):+.0f}"
