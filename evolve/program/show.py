"""A program as plain values and as tables: text, counts, constants, its dot products, and what it reached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evolve import __version__
from evolve.report.run import bias_label, console, new_table, number, show
from evolve.run.selectors import known_constants, told
from simulator.language import measure
from simulator.language.affine import affine
from simulator.language.bounds import KERNEL_DEVIATION, bounds, kernel_factors
from simulator.language.infer import infer
from simulator.language.key import key
from simulator.language.unparse import spell, unparse

DOUBTFUL = 2.0  # standard deviations of a factor of measured kernels, from which on `show` says so


def show_json(source: Any) -> dict[str, Any]:
    """A program as plain values: text, counts, constants with units and bounds, dot products, record."""
    program = source.program
    pairs, measured = iter(bounds(program)), iter(kernel_factors(program))
    constants, products = [], {}
    for f in program.functions:
        units, found = infer(f).units, affine(f)
        for c in f.constants:
            low, high = next(pairs)
            constants.append({"method": f.name, "name": c.name, "value": c.value, "unit": units[c.name],
                              "annotated": c.unit is not None, "low": low,
                              "high": None if high == float("inf") else high,
                              "enters": "affine" if c.name in found.linear else "otherwise",
                              "deviations": (c.value - 1) / KERNEL_DEVIATION if next(measured) else None})  # fmt: skip
        products[f.name] = {
            "affine": found.whole,
            "complete": found.complete,
            "pieces": [
                {"where": list(piece.taken),
                 "terms": [{"constant": t.constant, "feature": spell(t.feature)} for t in piece.terms]}
                for piece in found.pieces
            ],
        }  # fmt: skip
    record = source.record or {}
    return {
        "engine": __version__,
        "data": record.get("data"),
        "seeds": record.get("seeds", []),
        "name": source.name,
        "program": unparse(program),
        "key": key(source.complete),
        "methods": [f.name for f in program.functions],
        "operations": measure.operations(program),
        "conditionals": measure.conditionals(program),
        "complexity": measure.complexity(program),
        "features": list(measure.features(program)),
        "constants": constants,
        "products": products,
        "record": source.record,
        "certainty": known_constants(source.record, source.complete),
    }


def counts(facts: dict[str, Any]) -> str:
    """How large the program of `show_json` is, and its key."""
    sizes = [f"{facts[name]} {name}" for name in ("operations", "conditionals")]
    sizes += [f"{len(facts[name])} {name}" for name in ("constants", "features")]
    return f"{', '.join(sizes)}, key {facts['key']}"


def limits(constant: dict[str, Any]) -> str:
    """The bounds of a constant of `show_json`."""
    return f"{constant['low']:g} to {'inf' if constant['high'] is None else format(constant['high'], 'g')}"


def outside(constant: dict[str, Any]) -> bool:
    """Whether a constant of `show_json` lies outside its bounds."""
    value, high = constant["value"], constant["high"]
    return bool(value < constant["low"] or (high is not None and value > high))


def doubts(constants: Sequence[dict[str, Any]]) -> list[str]:
    """The factors of measured kernels that lie far from 1, a line each: the fit and the measurement disagree."""
    return [
        f"{c['method']}.{c['name']} = {c['value']:g}: {abs(c['deviations']):.1f} standard deviations from the "
        "measurement (1, give or take 0.1): the kernel is another one here, or the term stands for something else too"
        for c in constants
        if c["deviations"] is not None and abs(c["deviations"]) >= DOUBTFUL
    ]


LEGEND = """\
standard error: how far off the constant may be, of this form on the runs it was fitted on, from the residuals;
identified: these runs decide it, not the prior; at a bound: they would take it further.
"""


def print_show(source: Any) -> None:
    out, facts = console(), show_json(source)
    out.print(facts["program"], markup=False, soft_wrap=True)
    out.print(f"{source.name}: {counts(facts)}")
    out.print("features: " + ", ".join(facts["features"]))
    known = facts["certainty"] or {}
    table = new_table(
        "Constants", "method|name|>value|unit|bounds|enters" + ("|>standard error|by the data" if known else "")
    )
    for c in facts["constants"]:
        certainty = told(known.get(f"{c['method']}.{c['name']}")) if known else ()
        at = " (at the bound)" if c["value"] in (c["low"], c["high"]) else ""
        at = " (OUTSIDE; a fit moves it in)" if outside(c) else at
        unit = c["unit"] or "any"
        unit += "" if c["annotated"] else " (found)"
        table.add_row(c["method"], c["name"], f"{c['value']:g}", unit, limits(c) + at, c["enters"], *certainty)
    show(out, table)
    for text in doubts(facts["constants"]):
        out.print(f"- {text}", markup=False, soft_wrap=True)
    if known:
        out.print(LEGEND, style="dim", markup=False)
    show(out, products_table(facts))
    record = source.record
    if record is None:
        out.print("No record of what it was fitted on.")
        return
    when = f"{record['date']}, engine {record['engine']}, data {record['data']}, arrival seeds {record['seeds']}"
    table = new_table(f"Fitted on ({when}): errors in percent", "experiment|>E2E|>TTFT|>ITL")
    for name, row in record["errors_pct"].items():
        table.add_row(name, *(number(row[x]) for x in ("e2e", "ttft", "itl")))
    show(out, table)
    out.print(bias_label(list(record["errors_pct"].values())))
    if record.get("call"):
        _print_origin(out, record)


def _print_origin(out: Any, record: dict[str, Any]) -> None:
    """Of a language model's proposal: its idea and what judges said before it was fitted."""
    out.print(f"Proposed in call {record['call']}: {record['idea'] or 'no idea given'}", markup=False, soft_wrap=True)
    if record["reviews"]:
        marks = [name for name in record["reviews"][0] if name not in ("judge", "remark")]
        table = new_table("Judges, before it was fitted: marks of 10", "|".join(["judge", *(f">{m}" for m in marks)]))
        table.add_column("remark", overflow="fold")
        for review in record["reviews"]:
            table.add_row(review["judge"], *(str(review[mark]) for mark in marks), review["remark"])
        show(out, table)


# as the host calls the coefficients; those of an output token follow those of the queue
_COEFFICIENTS = {"step_time": "beta", "queueing_time": "alpha", "output_token_time": "alpha"}


def products_table(facts: dict[str, Any]) -> Any:
    """The dot product of each method, of each branch where it has some: coefficients and features."""
    table = new_table("As dot products: the sum of constant * feature", "method|where|coefficient|constant|feature")
    used = {"alpha": 0, "beta": 0}
    for method, found in facts["products"].items():
        letter = _COEFFICIENTS.get(method, "")
        first = last = used.get(letter, 0)
        for piece in found["pieces"]:
            where, n = " and ".join(piece["where"]), first
            for term in piece["terms"]:
                name = f"{letter}[{n}]" if letter and term["constant"] else ""
                table.add_row(method, where, name, term["constant"] or "-", term["feature"])
                n += term["constant"] is not None
                method, where = "", ""
            last = max(last, n)
        used[letter] = last
        if not found["complete"]:
            table.add_row("", "...", "", "", "")
    return table
