"""What the smaller commands print: archives, programs, fields, fits, predictions, and the inventory."""

from __future__ import annotations

from typing import Any

from evolve import __version__
from evolve.constants import known_constants, told
from evolve.report import bias_label, console, front_table, new_table, number, passes, show
from evolve.validate_log import calls_note


def archive_json(run: Any) -> dict[str, Any]:
    """The archive of a run as plain values; depends on its seed, data and settings only."""
    found = run.archive()
    return {
        "engine": run.about["engine"],
        "data": run.about["data"],
        "seed": run.config.seed,
        "seeds": run.config.score.arrival_seeds,
        "front": [e.to_json() for e in found.front_by_size()],
        "grid": [{"cell": list(cell), **e.to_json()} for cell, e in sorted(found.grid.cells.items())],
    }


def print_archive(run: Any, grid: bool, pareto: bool) -> None:
    out, found = console(), run.archive()
    if pareto:
        front = [e.to_json() for e in found.front_by_size()]
        show(out, front_table(front, f"Pareto front of {run.path}: worst 3, joint error, transfer, complexity"))
    if grid:
        cap, bins = found.grid.operation_cap, found.grid.operation_bins
        ops = [f">{i * cap // bins + 1}-{(i + 1) * cap // bins} op" for i in range(bins)]
        title = f"Best joint error in percent (id) by operations and features, {run.path}"
        table = new_table(title, "|".join(["features", *ops]))
        for row in range(found.grid.feature_bins):
            last = row == found.grid.feature_bins - 1
            cells = [found.grid.cells.get((column, row)) for column in range(bins)]
            label = f"{2 * row + 1}+" if last else f"{2 * row + 1}-{2 * row + 2}"
            table.add_row(label, *(f"{e.joint:.2f} ({e.id})" if e else "." for e in cells))
        show(out, table)
    out.print(f"Held-out figures: {calls_note(run.path)}.", markup=False, soft_wrap=True)


def show_json(source: Any) -> dict[str, Any]:
    """A program as plain values: text, counts, constants with units and bounds, dot products, record."""
    from simulator.language import measure
    from simulator.language.affine import affine
    from simulator.language.bounds import bounds
    from simulator.language.infer import infer
    from simulator.language.key import key
    from simulator.language.unparse import spell, unparse

    program = source.program
    pairs = iter(bounds(program))
    constants, products = [], {}
    for f in program.functions:
        units, found = infer(f).units, affine(f)
        for c in f.constants:
            low, high = next(pairs)
            constants.append({"method": f.name, "name": c.name, "value": c.value, "unit": units[c.name],
                              "annotated": c.unit is not None, "low": low,
                              "high": None if high == float("inf") else high,
                              "enters": "affine" if c.name in found.linear else "otherwise"})  # fmt: skip
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


def fields_json() -> dict[str, Any]:
    """Every field a program may read, as plain values."""
    from simulator.schema import FIELDS

    rows = [
        {"field": f"{f.scope}.{f.name}", "unit": f.unit, "meaning": f.meaning, "formula": f.formula}
        for f in FIELDS.values()
    ]
    return {"engine": __version__, "data": None, "seeds": [], "fields": rows}


def print_fields() -> None:
    """Every field a program may read."""
    from simulator.schema import FIELDS

    out = console()
    table = new_table("Fields: b the batch, s the deployment, r the request", "field|unit")
    table.add_column("meaning")
    table.add_column("formula")
    for f in FIELDS.values():
        table.add_row(f"{f.scope}.{f.name}", f.unit, f.meaning, f.formula or "")
    out.print(table)
    out.print("PI: a request's tokens done before the step. NN: its new tokens in the step.")


def print_prediction(result: dict[str, Any], name: str) -> None:
    """A row per experiment, errors only where something was observed, then every warning once."""
    out = console()
    compared = any(e["error_pct"] for e in result["experiments"])
    error = "|>error" if compared else ""
    heads = f"experiment|>E2E mean{error}|>p90|>p99|>TTFT mean{error}|>p90|>p99|>ITL mean{error}" + "|limits" * compared
    title = f"Predictions of {name} in ms, mean over arrival seeds {result['seeds']}"
    table = new_table(title + ("; error of the mean in percent" if compared else ""), heads)
    for e in result["experiments"]:
        cells, row = [e["id"]], {}
        for latency, quantities in (
            ("e2e", ("mean", "p90", "p99")),
            ("ttft", ("mean", "p90", "p99")),
            ("itl", ("mean",)),
        ):
            for q in quantities:
                cells.append(number(e["predicted"][f"{latency}_ms"][q], 2 if latency == "itl" else 1, signed=False))
                if q == "mean" and compared:
                    row[latency] = e["error_pct"][f"{latency}_ms"]["mean"] if e["error_pct"] else None
                    cells.append(number(row[latency]))
        table.add_row(*cells, *([passes(row)] if compared else []))
    show(out, table)
    total = {n: v for n, v in result["mean_abs_error_pct"].items() if v is not None}
    if total:
        figures = ", ".join(f"{n.upper()} {number(v, 2, signed=False)} %" for n, v in total.items())
        out.print(f"Mean absolute error: {figures}")
    where: dict[str, list[str]] = {}
    for e in result["experiments"]:
        for warning in e["warnings"]:
            where.setdefault(warning, []).append(e["id"])
    for warning, ids in where.items():
        names = "all" if len(ids) == len(result["experiments"]) > 1 else ", ".join(ids)
        out.print(f"- {warning} ({names})", style="dim", markup=False, soft_wrap=True)


def inventory(folder: Any) -> dict[str, Any]:
    """Runs below `folder`, shipped programs and configurations, known models and GPUs."""
    import json

    from evaluator.experiments import bundled_experiments, data_hash, hardware_table, model_table
    from evolve.config import bundled_configs
    from evolve.programs import seed_names

    runs = []
    for path in sorted(p.parent for p in [*folder.glob("*/run.json"), *folder.glob("*/seed-*/run.json")]):
        report = path / "report.json"
        best = json.loads(report.read_text())["champion"] if report.exists() else None
        runs.append({"run": str(path), "done": report.exists(), "joint": best["joint"] if best else None,
                     "champion": best["id"] if best else None})  # fmt: skip
    models = {str(e["id"]): list(e["aliases"]) for e in model_table().values()}
    hardware = {str(e["name"]): list(e["aliases"]) for e in hardware_table().values()}
    return {
        "engine": __version__,
        "data": data_hash(bundled_experiments()),
        "seeds": [],
        "runs": runs,
        "programs": seed_names(),
        "configs": bundled_configs(),
        "models": models,
        "hardware": hardware,
    }


def print_inventory(found: dict[str, Any]) -> None:
    out = console()
    out.print("[bold]Runs[/bold]" + ("" if found["runs"] else ": none yet; `evolve run` makes one"))
    for run in found["runs"]:
        state = f"champion {run['champion']}, joint error {run['joint']:.2f} %" if run["joint"] is not None else (
            "no candidate scored" if run["done"] else f"unfinished: evolve resume {run['run']}")  # fmt: skip
        out.print(f"  {run['run']}: {state}")
    out.print("[bold]Programs[/bold]: " + ", ".join(found["programs"]))
    out.print("[bold]Configurations[/bold]: " + ", ".join(found["configs"]))
    for title in ("models", "hardware"):
        out.print(f"[bold]{title.capitalize()}[/bold]")
        for name, aliases in found[title].items():
            out.print(f"  {name}" + (f" ({', '.join(aliases)})" if aliases else ""))
