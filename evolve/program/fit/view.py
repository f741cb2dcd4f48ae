"""What `evolve fit` prints: constants before and after with what the data say of them, and errors before and after."""

from __future__ import annotations

from typing import Any

from evolve.program.fit.files import alias
from evolve.report.run import console, mean_cells, new_table, number, show
from evolve.run.selectors import told

APART, APART_PCT = 2.0, 5.0  # steps and stages disagree: the error per step grows by this factor, to more than this
LEGEND = """\
standard error: how far the constant may be off, from the residuals; moved: in standard errors. NOT identified: these
runs do not decide it; at a bound: they would take it further."""


def print_fit(result: dict[str, Any]) -> None:
    out = console()
    if result["program"] is not None:
        out.print(result["program"], markup=False, soft_wrap=True)
    if len(result["methods"]) > 1:
        show(out, _methods(result))
    show(out, _constants(result))
    own = {c["model"] for c in result["constants"]} - {None}
    if own:
        show(out, _by_model(result))
    out.print(LEGEND, style="dim", markup=False)
    title = "Errors of the means in percent, before -> after (fitted on these experiments)"
    table = new_table(title, "experiment|>E2E|>TTFT|>ITL")
    for old, new in zip(result["before"], result["after"], strict=True):
        table.add_row(new["experiment"], *(f"{number(old[x])} -> {number(new[x])}" for x in ("e2e", "ttft", "itl")))
    table.add_section()
    pairs = zip(mean_cells(result["before"])[:3], mean_cells(result["after"])[:3], strict=True)
    table.add_row("mean absolute", *(f"{a} -> {b}" for a, b in pairs), style="bold")
    show(out, table)
    if result["steps"]:
        _print_steps(out, result["steps"])
    free = result["degrees_of_freedom"]
    out.print(f"Degrees of freedom: {free['constants']} constants fitted, {free['effective']:.1f} of them decided by "
              f"{free['observations']} stage means; loss {result['loss']:.4g} ({result['method']})")  # fmt: skip
    if result["left_out"]:
        out.print("Left out (not clean, or without observed stages): " + ", ".join(result["left_out"]))
    if not result["out"]:
        out.print("Next: `--out mine.py` writes it, then `evolve emit mine.py --out DIR`", markup=False)
        return
    beside = "each with its record" if len(result["out"]) > 1 else "its record"
    out.print(f"Written: {', '.join(result['out'])}, {beside} beside it.", soft_wrap=True, markup=False)
    out.print(f"Next: `evolve emit {result['out'][0]} --out DIR`", soft_wrap=True, markup=False)


def _print_steps(out: Any, steps: dict[str, Any]) -> None:
    """Errors per step, and on what the first stage rests."""
    per, names = steps["per_step"], {"before": "before", "after_steps": "after steps", "after": "after the whole fit"}
    counts = {split: found["steps"] for split, found in per["before"].items()}
    title = f"Cycles of single steps, {len(steps['runs'])} runs: MAPE and bias in percent; fitted first, on train"
    table = new_table(title, "|".join(["constants", *(f">{s} ({n})|>bias" for s, n in counts.items())]))
    for key, name in names.items():
        cells = ((number(f["mape_pct"], 2, signed=False), number(f["bias_pct"], 2)) for f in per[key].values())
        table.add_row(name, *(cell for pair in cells for cell in pair))
    show(out, table)
    after_steps, after = (per[key]["train"]["mape_pct"] for key in ("after_steps", "after"))
    if after is not None and after > max(APART * after_steps, APART_PCT):
        out.print(
            f"Steps and load stages disagree under this form: per step it is {after:.1f} % off after the whole fit, "
            f"{after_steps:.1f} % after steps alone. Do not trust both.",
            style="bold",
            markup=False,
            soft_wrap=True,
        )
    runs = ", ".join(f"{r['id']} {r['fitted']} of {r['usable']}" for r in steps["runs"])
    out.print(f"- Fitted to cycles of the train split: {runs}; not to those for which a neighbour's batch with prefill "
              "stands in. The whole fit starts from there, and believes it within 30 %.", style="dim", markup=False,
              soft_wrap=True)  # fmt: skip
    for text in dict.fromkeys(r["assumed"] for r in steps["runs"] if r["assumed"]):
        out.print(f"- {text}", style="dim", markup=False, soft_wrap=True)
    if steps["left_out"]:
        out.print(f"- Steps not used, their experiments are not fitted: {', '.join(steps['left_out'])}", style="dim",
                  markup=False, soft_wrap=True)  # fmt: skip


def _constants(result: dict[str, Any]) -> Any:
    several = any(c["model"] for c in result["constants"])
    staged = result["steps"] is not None
    heads = ["method", "name", *["model"] * several, ">before", *[">after steps"] * staged, ">after"]
    table = new_table("Constants", "|".join([*heads, ">standard error", ">moved", "by the data"]))
    for c in result["constants"]:
        error, state = told(c)
        moved = "" if c["moved"] is None else f"{c['moved']:+.1f}"
        model = [alias(c["model"]) if c["model"] else "all"] if several else []
        between = [f"{c['after_steps']:g}"] if staged else []
        values = f"{c['before']:g}", *between, f"{c['after']:g}"
        table.add_row(c["method"], c["name"], *model, *values, error, moved, "held" if c["held"] else state)
    return table


def _by_model(result: dict[str, Any]) -> Any:
    """The constants that differ, a column each."""
    own = [c for c in result["constants"] if c["model"]]
    names = list(dict.fromkeys((c["method"], c["name"]) for c in own))
    table = new_table("By model", "|".join(["model", *(f">{name}" for _, name in names)]))
    for model in dict.fromkeys(c["model"] for c in own):
        values = {(c["method"], c["name"]): c["after"] for c in own if c["model"] == model}
        table.add_row(alias(model), *(f"{values[name]:g}" for name in names))
    return table


def _methods(result: dict[str, Any]) -> Any:
    title = "Methods: loss of the fit's own replays, mean absolute errors in percent; the best is kept"
    table = new_table(title, "method|>loss|>E2E|>TTFT|>ITL|>seconds")
    for m in result["methods"]:
        cells = [number(m[x], 2, signed=False) for x in ("e2e", "ttft", "itl")]
        style = "bold" if m["method"] == result["method"] else None
        table.add_row(m["method"], f"{m['loss']:.4g}", *cells, f"{m['seconds']:.2f}", style=style)
    return table
