"""What the smaller commands print: archives, fields, predictions, and the inventory."""

from __future__ import annotations

import json
from typing import Any

from evaluator.experiments import bundled_experiments, data_hash, hardware_table, model_table
from evolve import __version__
from evolve.report.run import console, front_table, new_table, number, passes, show
from evolve.run.config import bundled_configs
from evolve.run.program import seed_names
from evolve.run.validations import calls_note
from simulator.schema import FIELDS


def archive_json(run: Any) -> dict[str, Any]:
    """The archive of a run as plain values; depends on its seed, data and settings only."""
    found = run.archive()
    return {
        "engine": run.about.engine,
        "data": run.about.data,
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


def fields_json() -> dict[str, Any]:
    """Every field a program may read, as plain values."""
    rows = [
        {"field": f"{f.scope}.{f.name}", "unit": f.unit, "meaning": f.meaning, "formula": f.formula}
        | ({"curve": f.curve, "at": f.at} if f.curve else {})
        for f in FIELDS.values()
    ]
    return {"engine": __version__, "data": None, "seeds": [], "fields": rows}


def print_fields() -> None:
    """Every field a program may read."""
    out = console()
    table = new_table("Fields: b the batch, s the deployment, r the request", "field|unit")
    table.add_column("meaning")
    table.add_column("formula")
    for f in FIELDS.values():
        formula = f"curve {f.curve} at {f.at}" if f.curve else f.formula or ""
        table.add_row(f"{f.scope}.{f.name}", f.unit, f.meaning, formula)
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
    if any(e["observed_components"] for e in result["experiments"]):
        print_parts(out, result)
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


# a part of the E2E: its name here, the predicted components that it is the sum of, and its name among the observed
PARTS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("queueing", ("queueing",), "arrival_to_queue"),
    ("waiting", ("waiting",), "waiting"),
    ("prefill steps", ("prefill_steps",), "prefill_steps"),
    ("decode steps", ("decode_steps",), "decode_steps"),
    ("after the last step", ("per_token", "completion"), "after_finish"),
    ("client", (), "client"),
)
PARTS_LEGEND = """\
Observed from request traces: queueing is arrival to queue; waiting is queued to first scheduled, which async scheduling
stamps one cycle early (prefill steps hold that cycle), and the gaps of preemptions; after the last step predicts
completion and the times per token; client is its E2E less the server's, of which nothing is predicted."""


def print_parts(out: Any, result: dict[str, Any]) -> None:
    """Predicted beside observed parts of the E2E, for the experiments that have them."""
    heads = "|".join(["experiment", *(f">{name}" for name, _, _ in PARTS), ">requests"])
    table = new_table("Parts of the mean E2E in ms, predicted / observed", heads)
    for e in result["experiments"]:
        seen = e["observed_components"]
        if not seen:
            continue
        cells = []
        for _, ours, theirs in PARTS:
            predicted = sum(e["components"][name] for name in ours) if ours else None
            cells.append(f"{number(predicted, 1, signed=False)} / {number(seen[theirs], 1, signed=False)}")
        table.add_row(e["id"], *cells, "-" if seen["requests"] is None else str(seen["requests"]))
    show(out, table)
    out.print(PARTS_LEGEND, style="dim", markup=False)


def inventory(folder: Any) -> dict[str, Any]:
    """Runs below `folder`, shipped programs and configurations, known models and GPUs."""
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
