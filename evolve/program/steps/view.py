"""What `evolve score-steps` prints: figures per run and over all, by what kind of step, and what they rest on."""

from __future__ import annotations

from typing import Any

from evolve.program.steps.figures import GROUPS
from evolve.report.run import console, new_table, number, show

LEGEND = """\
MAPE: mean absolute error in percent; r: Pearson's, of predicted and observed; bias: mean signed error in percent.
phase and load: of the batch (load: requests in it, the same bins for all runs); split: of the sampled step, the first
60 % of a run's are train, the next 20 % valid; own batch: that of the measured step, neighbour's: of the one after;
evidence: how sure the batch is, as `evolve ingest` found it from journeys, or estimated from a summary."""
_HEADS = ">MAPE|>r|>bias|>predicted us|>observed us"


def print_score(result: dict[str, Any], quiet: bool) -> None:
    out = console()
    runs, total = result["experiments"], result["overall"]
    what = "cycles" if result["target"] == "cycle" else "sampled steps"
    only = "" if result["split"] == "all" else f", split {result['split']} only"
    title = f"step_time of {result['name']} against the {result['target_is']}{only}"
    table = new_table(title, f"run|>{what}|>usable|>scored|{_HEADS}")
    for e in runs:
        table.add_row(e["id"], str(e["candidates"]), str(e["usable"]), *_cells(e["all"]))
    if len(runs) > 1:
        table.add_section()
        counts = str(total["candidates"]), str(total["usable"])
        table.add_row(f"all {len(runs)} runs", *counts, *_cells(total["all"]), style="bold")
    show(out, table)
    if not quiet:
        _print_groups(out, runs, total)
    for text in [*_left(runs, what), *result["left_out"], *result["assumed"], fitted_text(result["fitted"])]:
        out.print(f"- {text}", style="dim", markup=False, soft_wrap=True)


def fitted_text(fitted: dict[str, Any]) -> str:
    """Whether the figures are in sample."""
    if fitted["steps_of"] is None:
        return "Nothing was fitted on these steps here; there is no record of what the program was fitted on."
    means = ", ".join(fitted["means_of"])
    also = f" The mean latencies of {means} were, of the same runs." if means else ""
    if not fitted["steps_of"]:
        return f"Nothing was fitted on these steps.{also}"
    return f"Fitted on the train split of the steps of {', '.join(fitted['steps_of'])}: see valid and test.{also}"


def _print_groups(out: Any, runs: list[dict[str, Any]], total: dict[str, Any]) -> None:
    table = new_table(f"By kind of step, over all {len(runs)} runs", f"by|kind|>runs|>steps|{_HEADS}")
    for name in GROUPS:
        for member, found in total[f"by_{name}"].items():
            having = sum(member in e[f"by_{name}"] for e in runs)
            table.add_row(name, member, str(having), *_cells(found))
        table.add_section()
    show(out, table)
    if len(runs) > 1:
        for name in GROUPS:
            members = list(total[f"by_{name}"])
            table = new_table(f"MAPE in percent (steps) by {name}", "|".join(["run", *(f">{m}" for m in members)]))
            for e in runs:
                table.add_row(e["id"], *(_short(e[f"by_{name}"].get(m)) for m in members))
            show(out, table)
    out.print(LEGEND, style="dim", markup=False)


def _cells(f: dict[str, Any]) -> list[str]:
    means = (number(f[name], 0, signed=False) for name in ("mean_predicted_us", "mean_observed_us"))
    return [str(f["steps"]), number(f["mape_pct"], 2, signed=False), number(f["pearson_r"], 3, signed=False),
            number(f["bias_pct"], 2), *means]  # fmt: skip


def _short(f: dict[str, Any] | None) -> str:
    return "-" if f is None else f"{number(f['mape_pct'], 1, signed=False)} ({f['steps']})"


def _left(runs: list[dict[str, Any]], what: str) -> list[str]:
    """Why rows and steps were dropped or moved, a line a run."""
    out = []
    for e in runs:
        if e["dropped"]:
            reasons = ", ".join(f"{n} {why}" for why, n in e["dropped"].items())
            out.append(f"{e['id']}: of its {what} not usable: {reasons}")
        if e["mended"]:
            out.append(f"{e['id']}: in its table " + ", ".join(f"{n} {w}" for w, n in e["mended"].items()))
    return out
