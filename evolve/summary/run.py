"""The report of a run: its tables and sentences, and how the terminal shows them, champion first.

`evolve.summary.markdown` writes the same tables to RUN/summary.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean, median

from archive.elite import Elite
from archive.proposal import SEED
from evaluator.known import ANSWERS, ONE_SET
from evaluator.score import Errors
from evolve.output.printing import prose, show
from evolve.output.table import Row, Table, arrival_seeds, bias_label, counted, mean_cells, number, passes, row
from evolve.output.terminal import GO_FOLDER, command, say, suggest
from evolve.output.terms import legend
from evolve.run.folder import is_run, open_run
from evolve.run.use import FITTED, NEW
from evolve.summary.llm import lines
from evolve.summary.result import RunReport, errors_of
from evolve.summary.sentences import apart_text, cascade_text, gap_text, rule_text, transfer_text, unsound_text
from simulator.common.json import JsonObject
from simulator.language.bounds import at_bounds
from simulator.language.parse import parse
from simulator.serving.experiment import CLEAN, OVERLOADED

# Column heads of the known answers in the table of errors; the table of means has their full names.
SHORT = {
    **{name: answer.short for name, answer in ANSWERS.items()},
    "blackbox per model (published)": "p-bbox",
    "regime ensemble with overhead floor (round 2)": "p-regime", "metadata power law (round 5)": "p-meta",
    "direct calibration per model (round 4, in sample)": "p-calib",
}  # fmt: skip
ERRORS_LEGEND = """\
use: fitted, so the errors are in sample; new, not fitted; or the quality for which it was not fitted. E2E, TTFT, ITL:
errors of an experiment's means over {seeds}"""
KNOWN_LEGEND = """\
naive: one step time for all; bbox: b0 + b1*prefill_tokens + b2*decode_reqs fitted for all, -m per model, -e per
experiment; roof: the datasheet alone; host: the host's own roofline, nothing fitted; kern: the sum of measured
kernels, nothing fitted; floor: larger of a floor and bytes over bandwidth; phys: the host's trained-physics form fitted
for all, -p with its published coefficients; p-: published, unsigned"""
PUBLISHED_LEGEND = """\
published: as their authors reported; a round is one of the rounds of that research; their ITL errors are against an
observed ITL that its load generator halved by mistake"""
MEANS_LEGEND = "runs: how many experiments the means are over"
FRONT_LEGEND = "size: operations + constants, the complexity; errors of {seeds}, which the search saw"
MOST_ROWS = 12  # of a front
FEW_RUNS = 3.0  # times the median from which on a mean shows a few runs only


def print_run(report: RunReport, known: bool = False) -> None:
    """The whole report of a run, champion first. `known`: with the known answers' errors on each experiment."""
    best = report.champion
    if best is None:
        reasons = "; ".join(f"{r.count} at {r.stage}, e.g. {r.why}" for r in report.rejected)
        prose(f"No candidate could be scored: {reasons}. Run: {report.run}")
        return
    counts = f"{counted(best.operations, 'operation')}, {counted(best.constants, 'constant')}, key {best.key}"
    say("\nChampion", "bold", end="")
    say(f" (proposal {best.id}, {counts})\n")
    say(best.text)
    if text := unsound_text(report):
        prose(text, "bold")
    for text in bounds_texts(best):
        prose(f"- {text}")
    seeds = ERRORS_LEGEND.format(seeds=arrival_seeds(report.seeds))
    legend("limits", also=f"{seeds}. {KNOWN_LEGEND}" if known else seeds)
    show(errors_table(report, known))
    if not known:
        say(f"Known answers on each experiment:\n  {command('resume', report.run, '--all')}\n")
    legend("known answer", also=f"{MEANS_LEGEND}. {PUBLISHED_LEGEND}" if report.published else MEANS_LEGEND)
    show(means_table(report))
    bias = fitted_bias(report)
    prose(f"{bias}, over the fitted experiments.\n" if bias else "")
    legend("joint error", "worst 3", "transfer error", "sound")
    say()
    _print_gain(report, best)
    prose("\n".join(text for text in (transfer_text(best), apart_text(report), gap_text(report)) if text) + "\n")
    legend("front", also=FRONT_LEGEND.format(seeds=arrival_seeds(report.search_seeds)))
    shown = thinned(report.front, best)
    show(front_table(shown, "Pareto front", best))
    if len(shown) < len(report.front):
        prose(f"{len(shown)} of {len(report.front)} programs, evenly by size; the champion is proposal {best.id}; all:")
        say(f"  {command('archive', report.run)}\n")
    prose(cascade_text(report))
    if report.calls:
        say("\nLanguage models", "bold")
        for text in lines(dict(report.calls), report.run):
            say(text) if "`" in text else prose(text)  # a command line stays whole
    counts = f"{report.candidates} candidates, {report.proposals} proposals, {report.accepted} accepted"
    identity = f"seed {report.seed}, engine {report.engine}, data {report.data}"
    prose(f"\nRun: {report.run} ({counts}, {identity})")
    program, path = f"{report.run}:{best.id}", Path(report.run)
    own = open_run(path).own_options if is_run(path) else []
    one = ["--id", report.fitted[0]] if own else []  # else the deployments of all known models would be baked in
    emit = command("emit", program, "--target", "blis-4", "--out", GO_FOLDER, *own, *one)
    suggest(command("archive", report.run), command("show", program), emit)


def bounds_texts(best: Elite) -> list[str]:
    """A sentence for each constant of the champion that is at a bound."""
    return list(at_bounds(parse(best.text)).values())


def thinned(front: Sequence[Elite], best: Elite) -> Sequence[Elite]:
    """At most MOST_ROWS programs of a front, evenly spaced from the simplest to the largest, and the champion."""
    if len(front) <= MOST_ROWS:
        return front
    shown = {i * (len(front) - 1) // (MOST_ROWS - 1) for i in range(MOST_ROWS)}
    return [e for i, e in enumerate(front) if i in shown or e.id == best.id]


def errors_table(report: RunReport, known: bool) -> Table:
    """A row per experiment: signed errors of the means, those outside the limits, and if `known` the E2E errors of the
    known answers."""
    answers = {**report.known, **report.published} if known else {}
    heads = "".join(f"|>{SHORT.get(name, name)}" for name in answers)
    title = "Errors of the means in percent, (predicted - observed)/observed"
    title += "; right: E2E of known answers" if known else ""
    e2e = {name: {r.experiment: r.e2e for r in rows} for name, rows in answers.items()}

    def cells(errors: Errors) -> Row:
        name, fitted = errors.experiment, errors.experiment in report.fitted
        quality = report.quality[name]
        use = FITTED if fitted else NEW if quality == CLEAN else quality
        theirs = [number(e2e[answer].get(name), signed=answer in report.known) for answer in answers]
        figures = map(number, (errors.e2e, errors.ttft, errors.itl))
        return row(name, use, *figures, passes(asdict(errors)), *theirs, style="" if fitted else "dim")

    return Table.of(title, "experiment|use|>E2E|>TTFT|>ITL|limits" + heads, map(cells, report.errors))


def means_table(report: RunReport) -> Table:
    """Mean absolute errors over the fitted experiments: the champion's, the best seed's, and the known answers'."""
    ours = _of(report.errors, report.fitted)
    rows = [row("champion", *mean_cells(ours), ONE_SET, style="bold")]
    if seed := report.best_seed:
        figures = [number(x, 2, signed=False) for x in (seed.e2e, seed.ttft, seed.itl)]
        name = f"best seed ({seed.operator.removeprefix(SEED)})"
        rows.append(row(name, *figures, str(len(ours)), f"{ONE_SET}; as the search scored it"))
    for name, errors in report.known.items():
        fitted = _of(errors, report.fitted)
        e2e = median_text(of["e2e"] for of in fitted)
        rows.append(row(name, *mean_cells(fitted), (ANSWERS[name].constants if name in ANSWERS else ONE_SET) + e2e))
    for name, errors in report.published.items():
        if chosen := _of(errors, report.fitted):
            rows.append(row(name, *mean_cells(chosen), "published; its ITL errors: against half the observed ITL"))
    for quality in (CLEAN, OVERLOADED):
        left = [name for name, q in report.quality.items() if q == quality and name not in report.fitted]
        if others := _of(report.errors, left):
            rows.append(row(f"champion on others, {quality}", *mean_cells(others), "not fitted", style="dim"))
    title = f"Mean absolute error in percent over the {len(report.fitted)} fitted experiments"
    return Table.of(title, "model|>E2E|>TTFT|>ITL|>runs|~constants", rows)


def median_text(e2e_pct: Iterable[float | None]) -> str:
    """The median absolute E2E error, where a few runs make the mean several times as large; else ""."""
    errors = [abs(x) for x in e2e_pct if x is not None]
    if not errors or mean(errors) <= FEW_RUNS * median(errors):
        return ""
    return f"; a few runs make the mean, the median E2E is {number(median(errors), 1, signed=False)}"


def _of(errors: Iterable[Errors], experiments: Collection[str]) -> list[JsonObject]:
    return [asdict(row) for row in errors_of(errors, experiments)]


def front_table(elites: Sequence[Elite], title: str, best: Elite | None = None) -> Table:
    """A row per program of a Pareto front: objectives, mean errors, size, and the operator that made it; bold for the
    champion, if `best` is one of them."""

    def cells(e: Elite) -> Row:
        figures = [number(x, 2, signed=False) for x in (e.worst3, e.joint, e.transfer, e.e2e, e.ttft, e.itl)]
        size, style = f"{e.operations}+{e.constants}", "bold" if best and e.id == best.id else ""
        return row(str(e.id), *figures, size, "yes" if e.sound else "no", e.operator, style=style)

    heads = ">id|>worst 3|>joint|>transfer|>E2E|>TTFT|>ITL|>size|sound|~from"
    return Table.of(title, heads, map(cells, elites))


def fitted_bias(report: RunReport) -> str:
    """Whether the bias over the fitted experiments is small enough; "" where no E2E was observed."""
    return bias_label(_of(report.errors, report.fitted))


def _print_gain(report: RunReport, best: Elite) -> None:
    """What the best seed reached by fitting alone, and what the search added."""
    seed = report.best_seed
    if seed is None:
        prose("No seed could be scored.")
        return
    lower = 100.0 * (1.0 - best.joint / seed.joint)
    change = f"{lower:.0f} % lower" if lower >= 0 else f"{-lower:.0f} % higher"
    fitted = "fitted" if seed.sound else "fitted, not sound"
    prose(
        f"Best seed ({seed.operator.removeprefix(SEED)}, {fitted}), by the arrival seeds "
        f"of the search: joint error {seed.joint:.2f} %, worst 3 {seed.worst3:.2f} %.\n"
        f"The champion compared with it: joint {best.joint:.2f} % ({change}), worst 3 {best.worst3:.2f} %.\n"
        f"The champion is {rule_text(report.rule, best.sound)}.\n"
    )
    if lowest := unsound(report, best):
        prose(
            f"Proposal {lowest.id} ({lowest.operator}) has a joint error of {lowest.joint:.2f} %, but is not sound, so "
            "it cannot be the champion. What it contradicts:"
        )
        say(f"  {command('check', f'{report.run}:{lowest.id}', '--physics')}\n")


def unsound(report: RunReport, best: Elite) -> Elite | None:
    """The program with the lowest joint error, if it is not the champion because it is not sound; else None.

    Where the champion is not sound either, the rule told them apart by something else.
    """
    if not best.sound:
        return None
    seeds = [report.best_seed] if report.best_seed else []
    lowest = min([*seeds, *report.front], key=lambda e: e.joint, default=best)
    return None if lowest.sound or lowest.joint >= best.joint else lowest
