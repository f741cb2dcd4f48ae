"""RUN/summary.md: a run as a page of Markdown that can be pasted into a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evolve.report.llm import lines
from evolve.report.run import bias_label, mean_cells, number, passes, rule_text, thinned, transfer_text
from evolve.run.folder import Run
from evolve.run.validations import calls


def write(run: Run, report: dict[str, Any]) -> None:
    """Write the summary of `report` (that of `evolve.search.run.work`) into the run's folder."""
    (run.path / "summary.md").write_text(markdown(run, report, len(calls(run.path))), "utf-8")


def markdown(run: Run, report: dict[str, Any], validations: int) -> str:
    """The page; `validations`: how often held-out errors of this run have been looked at."""
    best = report["champion"]
    parts = [f"# Search for latency models: {run.path.name}", _facts(run, report)]
    if best is None:
        reasons = [f"- {n} at {stage}, e.g. {why}" for stage, n, why in report["rejected"]]
        return "\n\n".join([*parts, "No candidate could be scored.", "\n".join(reasons)]) + "\n"
    parts += [
        "## Champion",
        f"Proposal {best['id']}, {best['operations']} operations, {best['constants']} constants, key `{best['key']}`.",
        f"```python\n{best['text'].strip()}\n```",
        _choice(report, validations),
        "## Errors",
        "Signed errors of the means in percent, (predicted - observed)/observed, over arrival seeds "
        f"{', '.join(map(str, report['seeds']))}. Pass: within 10 % E2E, 15 % TTFT, 15 % ITL.",
        _errors(report),
        bias_label([r for r in report["errors"] if r["experiment"] in report["fitted"]]),
        "## Beside known answers",
        f"Mean absolute errors in percent over the {len(report['fitted'])} fitted experiments.",
        _means(report),
        "## Front",
        f"Worst 3, joint error, transfer, complexity: {len(thinned(report['front']))} of {len(report['front'])} "
        "programs, from the simplest to the largest.",
        _front(report),
        *_models(report),
        "## Going on",
        _commands(run, best["id"]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def table(heads: str, rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; heads separated by |, a leading > aligns right."""
    names = heads.split("|")
    lines = [[n.removeprefix(">") for n in names], ["---:" if n.startswith(">") else "---" for n in names], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _facts(run: Run, report: dict[str, Any]) -> str:
    config, fitted = run.config, report["fitted"]
    return table("what|value", [
        ["started", run.about.started],
        ["engine", report["engine"]],
        ["data", f"{report['data']} ({', '.join(config.data.files)})"],
        ["configuration", config.name],
        ["seed of the search", str(report["seed"])],
        ["budget", f"{config.budget} candidates; used: {report['candidates']} of {report['proposals']} proposals"],
        [f"fitted, {len(fitted)} experiments", ", ".join(fitted)],
    ])  # fmt: skip


def _choice(report: dict[str, Any], validations: int) -> str:
    rule, best, seed = report["rule"], report["champion"], report["best_seed"]
    text = (
        f"How it was chosen: {rule_text(rule)}. **In sample**: the errors on the fitted experiments are "
        "those of a fit on these very runs, and program "
        f"and constants were **chosen with hindsight** among {report['candidates']} candidates. What is marked "
        "predicted was not fitted."
    )
    if seed is not None:
        text += (
            f"\n\nThe best seed ({seed['operator'].removeprefix('seed:')}, fitted) has a joint error of "
            f"{seed['joint']:.2f} % and a worst 3 of {seed['worst3']:.2f} %; the champion {best['joint']:.2f} % and "
            f"{best['worst3']:.2f} %, by the arrival seeds of the search."
        )
    if told := transfer_text(best):
        text += "\n\n" + told.replace("\n", " ")
    if validations:
        times = "once" if validations == 1 else f"{validations} times"
        text += (
            f"\n\nHeld-out errors were computed {times} for this run (validate.jsonl): the more often they are looked "
            "at before a choice, the less they are held out."
        )
    return text


def _errors(report: dict[str, Any]) -> str:
    rows = []
    for row in report["errors"]:
        name = row["experiment"]
        quality = report["quality"][name]
        use = "fitted" if name in report["fitted"] else "predicted" + ("" if quality == "clean" else f", {quality}")
        rows.append([name, use, *(number(row[x]) for x in ("e2e", "ttft", "itl")), passes(row)])
    return table("experiment|use|>E2E|>TTFT|>ITL|limits", rows)


def _means(report: dict[str, Any]) -> str:
    fitted = set(report["fitted"])
    ours = [r for r in report["errors"] if r["experiment"] in fitted]
    rows = [["**champion**", *mean_cells(ours)]]
    rows += [[name, *mean_cells([r for r in found if r["experiment"] in fitted])]
             for name, found in report["known"].items()]  # fmt: skip
    for name, found in report["published"].items():
        if chosen := [r for r in found if r["experiment"] in fitted]:
            rows.append([name if "published" in name else f"{name} (published)", *mean_cells(chosen)])
    for quality in ("clean", "overloaded"):
        left = [r for r in report["errors"]
                if r["experiment"] not in fitted and report["quality"][r["experiment"]] == quality]  # fmt: skip
        if left:
            rows.append([f"champion on predicted runs, {quality}", *mean_cells(left)])
    return table("model|>E2E|>TTFT|>ITL|>over", rows)


def _front(report: dict[str, Any]) -> str:
    rows = [
        [str(e["id"]), *(number(e[x], 2, signed=False) for x in ("worst3", "joint", "transfer", "e2e", "ttft", "itl")),
         str(e["operations"]), str(e["constants"])]
        for e in thinned(report["front"])
    ]  # fmt: skip
    return table(">id|>worst 3|>joint|>transfer|>E2E|>TTFT|>ITL|>operations|>constants", rows)


def _models(report: dict[str, Any]) -> list[str]:
    """What language models proposed cost, where there were any."""
    if not report.get("llm"):
        return []

    return ["## Language models", "\n".join(f"- {line}" for line in lines(report["llm"], report["run"]))]


def _commands(run: Run, champion: int) -> str:
    program = f"{run.path}:{champion}"
    lines = [
        f"evolve archive {run.path} --grid",
        f"evolve show {program}",
        f"evolve check {program} --physics",
        f"evolve predict {program} --experiments plan.yaml",
        f"evolve emit {program} --target blis-4 --out go/ --check",
    ]
    return "```sh\n" + "\n".join(lines) + "\n```"
