"""`evolve show`: what a program reached where it was fitted, its text and size, constants and dot products."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import mean

from evaluator.metrics import mean_abs
from evaluator.score import MEANS
from evolve import __version__
from evolve.calibrate.certainty import CERTAINTY, hard_to_tell_apart
from evolve.calibrate.result import ConstantChange
from evolve.inspect.refusal import reviews_table
from evolve.output.columns import NUMBER, Column, chosen, column, columns_of, figures, row_class, words, wrapped
from evolve.output.printing import LINES, more, points, prose, show
from evolve.output.table import Table, absolute_errors, bias_label, number
from evolve.output.terminal import say
from evolve.output.terms import legend
from evolve.run.program import Source
from evolve.run.records import ConstantRecord, Record
from evolve.run.selectors import known_constants
from simulator.common.json import JsonObject
from simulator.common.records import to_json
from simulator.common.text import counted
from simulator.language import measure
from simulator.language.affine import Affine, affine, thresholds
from simulator.language.bounds import (
    KERNEL_DEVIATION,
    at_bounds,
    bounds,
    clipped_exponents,
    kernel_factors,
    outside_bounds,
)
from simulator.language.infer import infer
from simulator.language.key import key
from simulator.language.unparse import spell, unparse

DOUBTFUL = 2.0  # standard deviations from 1 at which `show` doubts a factor of a measured kernel
# The host's names for its coefficients; those of an output token are numbered after those of the queue.
_COEFFICIENTS = {"step_time": "beta", "queueing_time": "alpha", "output_token_time": "alpha"}
LEGEND = """\
decided by: the fitted runs if more than 0.9 of what is known of the constant comes from them; a factor of a measured
kernel that they do not decide stays near 1. at a bound: the fitted runs would take it further, or do not show it"""


@dataclass(frozen=True, slots=True)
class ConstantOrigin:
    """A constant, and what decided its value.

    standard_error: in its unit, None if unknown or if it has none. bound: the bound that it is at, `low`, `high` or
    None. data_share: the share, 0 to 1, of what is known of it that comes from the fitted runs, not the prior; None if
    unknown. by: the verdict in words.
    """

    method: str
    name: str
    value: float
    unit: str | None
    standard_error: float | None
    bound: str | None
    data_share: float | None
    by: str


@row_class
class ShownConstant:
    """A constant of a program's text."""

    method: str = column("the method that it is of", paper=True)
    name: str = column("its name", paper=True)
    value: float = column("its value, in `unit`", paper=True)
    unit: str | None = column("its unit; missing: any", paper=True)
    annotated: bool = column("whether the text gives the unit; otherwise it was found")
    low: float = column("the least that it may be")
    high: float | None = column("the most that it may be; missing: no limit")
    enters: str = column("how it enters its method: `affine` or `otherwise`")
    deviations: float | None = column(
        "of a factor of a measured kernel, its distance from 1 in standard deviations of such factors"
    )

    @property
    def limits(self) -> str:
        return f"{self.low:g} to {'inf' if self.high is None else format(self.high, 'g')}"

    @property
    def outside(self) -> bool:
        return self.value < self.low or (self.high is not None and self.value > self.high)


CONSTANTS = (*columns_of(ShownConstant), *chosen(ConstantChange, "standard_error", "bound", "identified"))


@dataclass(frozen=True)
class Description:
    """A program, its constants, and its methods as dot products.

    certainty: how well its fit determined each constant, by `method.name`; None if unknown.
    """

    source: Source
    constants: tuple[ShownConstant, ...]
    products: Mapping[str, Affine]
    certainty: Mapping[str, ConstantRecord] | None

    @cached_property
    def thresholds(self) -> frozenset[str]:
        """The constants that stand in conditions alone, by `method.name`: times jump with them and have no slope."""
        return frozenset(f"{f.name}.{name}" for f in self.source.complete.functions for name in thresholds(f))

    @property
    def held(self) -> list[str] | None:
        """The constants that the last fit left as they were, by `method.name`; None if nothing was fitted."""
        return None if self.certainty is None else [name for name, c in self.certainty.items() if c.held]

    @property
    def counts(self) -> str:
        program = self.source.program
        counts = {
            "operation": measure.operations(program),
            "conditional": measure.conditionals(program),
            "constant": len(self.constants),
            "feature": len(measure.features(program)),
        }
        return f"{', '.join(counted(n, noun) for noun, n in counts.items())}, key {key(self.source.complete)}"

    def to_json(self) -> JsonObject:
        program, record = self.source.program, self.source.record
        certainty = self.certainty
        return {
            "engine": __version__,
            "data": record.data if record else None,
            "seeds": list(record.seeds) if record else [],
            "name": self.source.name,
            "program": unparse(program),
            "key": key(self.source.complete),
            "methods": [f.name for f in program.functions],
            "operations": measure.operations(program),
            "conditionals": measure.conditionals(program),
            "complexity": measure.complexity(program),
            "features": list(measure.features(program)),
            "constants": to_json(self.constants),
            "products": {method: _products_json(dots) for method, dots in self.products.items()},
            "record": record.to_json() if record else None,
            "certainty": to_json(certainty),
        }


def _products_json(dots: Affine) -> JsonObject:
    pieces = []
    for piece in dots.pieces:
        terms = [{"constant": t.constant, "feature": spell(t.feature)} for t in piece.terms]
        pieces.append({"where": list(piece.taken), "terms": terms})
    return {"affine": dots.whole, "complete": dots.complete, "pieces": pieces}


def describe(source: Source) -> Description:
    """Everything that `evolve show` shows of a program."""
    program = source.program
    limits, deviating = iter(bounds(program)), iter(kernel_factors(program))
    products = {f.name: affine(f) for f in program.functions}
    constants = []
    for f in program.functions:
        units = infer(f).units
        for c in f.constants:
            low, high = next(limits)
            entered = "affine" if c.name in products[f.name].linear else "otherwise"
            deviations = (c.value - 1) / KERNEL_DEVIATION if next(deviating) else None
            unit, most = (units[c.name], c.unit is not None), None if high == math.inf else high
            constants.append(ShownConstant(f.name, c.name, c.value, *unit, low, most, entered, deviations))
    return Description(source, tuple(constants), products, known_constants(source.record, source.complete))


def constant_rows(description: Description) -> list[dict[str, object]]:
    """The rows of CONSTANTS: the constants in the order of the text, and how well the fit determined them."""
    rows = []
    for c in description.constants:
        sure = (description.certainty or {}).get(f"{c.method}.{c.name}")
        known = {n: getattr(sure, n) for n in ("standard_error", "bound", "identified")} if sure else {}
        rows.append({**to_json(c), **known})
    return rows


def print_show(
    description: Description, origins: Sequence[ConstantOrigin] = (), explain: bool = False, verbose: bool = False
) -> None:
    """Print the errors on the fitted runs, the text without its docstring, its size and the largest doubts, in about
    40 lines of the shipped champion.

    verbose: the docstring, features, constants with their `origins`, dot products, and errors by run, too. explain: a
    further table explains the terms.
    """
    program, record = description.source.program, description.source.record
    prose(_answer(record), "bold")
    if record is None and description.source.foreign:
        prose(f"- {description.source.foreign}", "bold")
    say("\n" + unparse(program if verbose else replace(program, doc="")).rstrip())
    prose(f"{description.source.name}: {description.counts}")
    for text in record.cautions if record else ():
        prose(f"- {text}", "bold")
    correlated = {name: c.correlated for name, c in (description.certainty or {}).items()}
    doubts = (*at_limits(description), *_doubts(description.constants), *hard_to_tell_apart(correlated, verbose))
    left = points(doubts, "doubt", None if verbose else LINES)
    if record and record.proposal and record.proposal.call:
        prose(f"Proposed in call {record.proposal.call}: {record.proposal.idea or 'no idea given'}")
        if record.proposal.reviews:
            left.append("reviews")
            if verbose:
                show(reviews_table(record.proposal.reviews))
    if verbose:
        prose("features: " + ", ".join(measure.features(program)))
        if description.certainty and explain:
            legend("standard error", "data share", also=LEGEND)
        show(_constants_table(description, origins))
        show(_products_table(description.products))
        if record:
            show(_errors_table(record))
    else:
        left = ["features", "constants", "dot products", *(["errors by run"] if record else []), *left]
    if not explain:  # an explanation follows
        more([] if verbose else left, definitions="meaning and origin of terms")


def _answer(record: Record | None) -> str:
    if record is None:
        return "No record of what it was fitted on."
    rows = [row._asdict() for row in record.errors if row.experiment in record.fitted]
    means = dict(zip(MEANS, absolute_errors(rows, mean), strict=True))
    figures = ", ".join(f"{name.upper()} {number(x, 2, signed=False)} %" for name, x in means.items() if x is not None)
    cells = [row for row in record.errors if row.experiment not in record.fitted]
    on = counted(len(rows), "fitted run")
    if cells:
        on = f"the {len(rows)} that are replayed of {counted(len(record.fitted), 'fitted run')}"
    text = f"Mean absolute error on {on}: {figures}. {bias_label(rows)}".rstrip()
    if not cells:
        return text
    ttft, itl = (number(mean_abs([getattr(row, name) for row in cells]), 2, signed=False) for name in ("ttft", "itl"))
    return f"{text.rstrip('.')}. By cell of the others: TTFT {ttft} %, ITL {itl} %."


def at_limits(description: Description) -> tuple[str, ...]:
    """A sentence for each constant that is outside its bounds, at one of them, or an exponent that `pow` clips."""
    program = description.source.program
    return (*outside_bounds(program), *at_bounds(program, description.held).values(), *clipped_exponents(program))


def _constants_table(description: Description, origins: Sequence[ConstantOrigin]) -> Table:
    """The constants of the text, and after them those that the host has at 0 besides."""
    shown = {(c.method, c.name): c for c in description.constants}
    columns = [*words("constant"), *figures("g", "value"), *wrapped("unit", "bounds"), *words("enters")]
    certain = bool(description.certainty)
    if description.source.record:
        columns += [CERTAINTY[0]] if certain else []
        columns += [Column("data share", NUMBER, format=".2f", missing="")] if certain else []
        columns += wrapped("decided by")
    rows = []
    for o in origins:
        cells: list[object] = [f"{o.method}.{o.name}", o.value, o.unit or "any", "", ""]
        if c := shown.get((o.method, o.name)):
            at_bound = " (at the bound)" if c.value in (c.low, c.high) else ""
            cells[2] = (c.unit or "any") + ("" if c.annotated else " (found)")
            cells[3] = c.limits + (" (OUTSIDE)" if c.outside else at_bound)
            cells[4] = "linearly" if c.enters == "affine" else "otherwise"
        if description.source.record:
            cells += [o.standard_error, None if o.bound else o.data_share] if certain else []
            cells.append(o.by)
        rows.append(cells)
    return Table.of("Constants", columns, rows)


def _doubts(constants: Sequence[ShownConstant]) -> list[str]:
    """A line for each factor of a measured kernel far from 1, where fit and measurement disagree."""
    return [
        f"{c.method}.{c.name} = {c.value:g}: {abs(c.deviations):.1f} standard deviations from the measurement (1, give "
        f"or take {KERNEL_DEVIATION:g}): the kernel is another one here, or the term covers something else too"
        for c in constants
        if c.deviations is not None and abs(c.deviations) >= DOUBTFUL
    ]


def _products_table(products: Mapping[str, Affine]) -> Table:
    """The dot product of each method, on each choice of branches if there are several: coefficients and features."""
    columns = [*words("method"), *wrapped("where"), *words("coefficient"), *wrapped("constant", "feature")]
    rows = list(_product_rows(products))
    shown = [i for i in range(len(columns)) if any(cells[i] for cells in rows)]
    filled = ([cells[i] for i in shown] for cells in rows)
    return Table.of("As dot products: the sum of constant * feature", [columns[i] for i in shown], filled)


def _product_rows(products: Mapping[str, Affine]) -> Iterator[list[str]]:
    used = {"alpha": 0, "beta": 0}
    for method, dots in products.items():
        letter = _COEFFICIENTS.get(method, "")
        first = last = used.get(letter, 0)
        for piece in dots.pieces:
            # the coefficients of every choice of branches are numbered from the same one
            where, n = " and ".join(piece.taken), first
            for term in piece.terms:
                name = f"{letter}[{n}]" if letter and term.constant else ""
                yield [method, where, name, term.constant or "-", spell(term.feature)]
                n += term.constant is not None
                method, where = "", ""  # only the first line of a piece has them
            last = max(last, n)
        used[letter] = last
        if not dots.complete:
            yield ["", "...", "", "", ""]


def _errors_table(record: Record) -> Table:
    when = f"{record.date}, engine {record.engine}, data {record.data}, arrival seeds {list(record.seeds)}"
    rows = [(r.experiment, r.e2e, r.ttft, r.itl) for r in record.errors]
    columns = [words("experiment"), figures("+.1f", "E2E", "TTFT", "ITL")]
    return Table.of(f"Fitted on ({when}): errors in percent", columns, rows)
