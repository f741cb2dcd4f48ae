"""RUN/summary.md: a run as a page of Markdown that can be pasted into a report."""

from __future__ import annotations

from archive.elite import Elite
from archive.proposal import SEED
from evolve.output.files import write_text
from evolve.output.printing import markdown
from evolve.output.table import Table, counted
from evolve.output.terminal import command
from evolve.run.folder import RunFolder
from evolve.run.validations import calls, sources_note
from evolve.summary.llm import lines
from evolve.summary.result import RunReport
from evolve.summary.run import bounds_texts, errors_table, fitted_bias, front_table, means_table, thinned
from evolve.summary.sentences import apart_text, rule_text, transfer_text, unsound_text
from simulator.common.text import visible


def write(run: RunFolder, report: RunReport) -> None:
    """Write the summary of a run into its folder."""
    text = page(run, report, len(calls(run.path)), sources_note(run.path))
    write_text(run.path / "summary.md", visible(text, keep="\n\t"))


def page(run: RunFolder, report: RunReport, validations: int, sources: str) -> str:
    """The page. `validations`: how often held-out errors of this run have been computed. `sources`: with which forms,
    if not by searches in the folds."""
    best = report.champion
    parts = [f"# Search for latency models: {run.path.name}", markdown(_facts(run, report))]
    if best is None:
        reasons = [f"- {r.count} at {r.stage}, e.g. {r.why}" for r in report.rejected]
        return "\n\n".join([*parts, "No candidate could be scored.", "\n".join(reasons)]) + "\n"
    shown = thinned(report.front, best)
    parts += [
        "## Champion",
        f"Proposal {best.id}, {best.operations} operations, {best.constants} constants, key `{best.key}`.",
        f"**{text}**" if (text := unsound_text(report)) else "",
        f"```python\n{best.text.strip()}\n```",
        "\n".join(f"- {text}" for text in bounds_texts(best)),
        _choice(report, best, validations, sources),
        "## Errors",
        "Signed errors of the means in percent, (predicted - observed)/observed, over arrival seeds "
        f"{', '.join(map(str, report.seeds))}. Pass: within 10 % E2E, 15 % TTFT, 15 % ITL.",
        markdown(errors_table(report, known=False)),
        fitted_bias(report),
        "## Comparison with known answers",
        f"Mean absolute errors in percent over the {len(report.fitted)} fitted experiments.",
        markdown(means_table(report)),
        "## Front",
        f"Worst 3, joint error, transfer, complexity: {len(shown)} of {len(report.front)} programs, from the simplest "
        "to the largest. Size: operations + constants. Sound: contradicts no datasheet.",
        markdown(front_table(shown, "Front")),
        *_models(report),
        "## Going on",
        _commands(run, best.id),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _facts(run: RunFolder, report: RunReport) -> Table:
    config, fitted = run.config, report.fitted
    ended = report.ended or report.calls.get("stopped", "")
    return Table.of("Run", "what|value", [
        ("started", run.about.started),
        ("engine", report.engine),
        ("data", f"{report.data} ({', '.join(config.data.files)})"),
        ("configuration", config.name),
        ("seed of the search", str(report.seed)),
        ("budget", f"{config.budget} candidates; used: {report.candidates} of {report.proposals} proposals"),
        *([("ended", ended)] if ended else []),
        (f"fitted, {counted(len(fitted), 'experiment')}", ", ".join(fitted)),
    ])  # fmt: skip


def _choice(report: RunReport, best: Elite, validations: int, sources: str) -> str:
    seed = report.best_seed
    text = (
        f"How it was chosen: {rule_text(report.rule, best.sound)}. **In sample**: the errors on the fitted experiments "
        "are those of a fit on these very runs, and program "
        f"and constants were **chosen with hindsight** among {report.candidates} candidates. Only what is marked "
        "fitted was fitted."
    )
    if seed is not None:
        text += (
            f"\n\nThe best seed ({seed.operator.removeprefix(SEED)}, fitted) has a joint error of "
            f"{seed.joint:.2f} % and a worst 3 of {seed.worst3:.2f} %; the champion {best.joint:.2f} % and "
            f"{best.worst3:.2f} %, by the arrival seeds of the search."
        )
    if transfer := transfer_text(best):
        text += "\n\n" + transfer
    if apart := apart_text(report):
        text += "\n\n" + apart
    if validations:
        times = "once" if validations == 1 else f"{validations} times"
        text += (
            f"\n\nHeld-out errors were computed {times} for this run (validate.jsonl): the more often they are looked "
            "at before a choice, the less they are held out."
        )
        text += f" {sources}" if sources else ""
    return text


def _models(report: RunReport) -> list[str]:
    """What the proposals of language models cost, if there were any."""
    if not report.calls:
        return []
    return ["## Language models", "\n".join(f"- {line}" for line in lines(dict(report.calls), report.run))]


def _commands(run: RunFolder, champion: int) -> str:
    program = f"{run.path}:{champion}"
    commands = [
        command("archive", run.path, "--grid"),
        command("show", program),
        command("check", program, "--physics"),
        command("predict", program, "--experiments", "plan.yaml"),
        command("emit", program, "--target", "blis-4", "--out", "go/", "--check"),
    ]
    return "```sh\n" + "\n".join(commands) + "\n```"
