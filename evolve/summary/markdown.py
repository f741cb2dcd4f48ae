"""RUN/summary.md: a run as a page of Markdown that can be pasted into a report."""

from __future__ import annotations

from archive.elite import SEED, Elite
from evolve.output.columns import words
from evolve.output.printing import Block, Code, page
from evolve.output.table import Table
from evolve.output.terminal import command
from evolve.run.folder import RunFolder
from evolve.run.validations import calls, sources_note
from evolve.summary.llm import lines
from evolve.summary.result import RunReport
from evolve.summary.run import bounds_texts, errors_table, fitted_bias, front_table, means_table, thinned
from evolve.summary.sentences import against_seed_text, group_out_text, inconsistent_text, rule_text
from simulator.common.files import write_text
from simulator.common.text import counted


def write(run: RunFolder, report: RunReport) -> None:
    blocks = _blocks(run, report, len(calls(run.path)), sources_note(run.path))
    write_text(run.path / "summary.md", page(blocks))


def _blocks(run: RunFolder, report: RunReport, validations: int, sources: str) -> list[Block]:
    """The page. `validations`: how often held-out errors of this run have been computed. `sources`: with which forms,
    if not by searches in the folds."""
    best = report.champion
    blocks: list[Block] = [f"# Search for latency models: {run.path.name}", _facts(run, report)]
    if best is None:
        reasons = [f"{r.count} at {r.stage}, e.g. {r.why}" for r in report.rejected]
        return [*blocks, "No candidate could be scored.", reasons]
    shown = thinned(report.front, best)
    return [
        *blocks,
        "## Champion",
        f"Proposal {best.id}, {best.operations} operations, {best.constants} constants, key `{best.key}`.",
        f"**{text}**" if (text := inconsistent_text(report)) else "",
        Code(best.text.strip(), "python"),
        list(bounds_texts(best)),
        *_choice(report, best, validations, sources),
        "## Errors",
        "Signed errors of the means in percent, (predicted - observed)/observed, over arrival seeds "
        f"{', '.join(map(str, report.seeds))}. Pass: within 10 % E2E, 15 % TTFT, 15 % ITL.",
        errors_table(report, baselines=False),
        fitted_bias(report),
        "## Comparison with baselines",
        f"Mean absolute errors in percent over the {len(report.fitted)} fitted experiments.",
        means_table(report),
        "## Pareto front",
        f"Worst-3 E2E, mean error, group-out and complexity: {len(shown)} of {len(report.front)} programs, from the "
        "simplest to the largest. Size: operations + constants. Consistent: contradicts no datasheet.",
        front_table(shown, "Pareto front"),
        *_models(report),
        "## Going on",
        Code(_commands(run, best.id), "sh"),
    ]


def _facts(run: RunFolder, report: RunReport) -> Table:
    config, fitted = run.config, report.fitted
    rows = [("started", run.about.started), ("engine", report.engine)]
    rows.append(("data", f"{report.data} ({', '.join(config.data.files)})"))
    rows += [("configuration", config.name), ("seed of the search", str(report.seed))]
    used = f"{config.budget} candidates; used: {report.candidates} of {report.proposals} proposals"
    rows.append(("budget", used))
    if ended := report.ended or report.calls.get("stopped", ""):
        rows.append(("ended", ended))
    rows.append((f"fitted, {counted(len(fitted), 'experiment')}", ", ".join(fitted)))
    return Table.of("Run", [words("what", "value")], rows)


def _choice(report: RunReport, best: Elite, validations: int, sources: str) -> list[str]:
    seed = report.best_seed
    paragraphs = [
        f"The champion is {rule_text(report.rule, best.consistent)}. **In sample**: the errors on the fitted "
        "experiments come from a fit to these runs. Program and constants were **chosen with hindsight** among "
        f"{report.candidates} candidates. Only experiments marked fitted were fitted."
    ]
    if seed is not None:
        paragraphs.append(
            f"The best seed ({seed.operator.removeprefix(SEED)}, fitted) has a mean error of "
            f"{seed.mean_error:.2f} % and a worst-3 E2E of {seed.worst3:.2f} %; the champion has "
            f"{best.mean_error:.2f} % and {best.worst3:.2f} %, by the arrival seeds of the search. "
            + against_seed_text(best, seed)
        )
    paragraphs += [group_out_text(best)]
    if validations:
        times = "once" if validations == 1 else f"{validations} times"
        paragraphs.append(
            f"Held-out errors were computed {times} for this run (validate.jsonl). Each look before a choice makes "
            "them less held out." + (f" {sources}" if sources else "")
        )
    return paragraphs


def _models(report: RunReport) -> list[Block]:
    """The cost of language models' proposals, if there were any."""
    if not report.calls:
        return []
    return ["## Language models", lines(dict(report.calls), report.run)]


def _commands(run: RunFolder, champion: int) -> str:
    program = f"{run.path}:{champion}"
    commands = [
        command("archive", run.path, "--grid"),
        command("show", program),
        command("show", program, "--check", "--physics"),
        command("predict", program, "--experiments", "plan.yaml"),
        command("emit", program, "--host", "blis-4", "--out", "go/", "--check"),
    ]
    return "\n".join(commands)
