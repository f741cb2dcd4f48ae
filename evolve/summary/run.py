"""The report of a run: its tables and sentences, and how the terminal shows them, champion first.

`evolve.summary.markdown` writes the same tables to RUN/summary.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from math import inf
from pathlib import Path
from statistics import mean, median

from archive.elite import SEED, Elite
from archive.score import Errors
from evaluator.baselines import BASELINES, ONE_SET, SHARED
from evaluator.cells import MOST_RUNS
from evolve.output.columns import figures, words, wrapped
from evolve.output.printing import prose, show
from evolve.output.table import PASS_PCT, Row, Table, arrival_seeds, bias_label, mean_errors, number, passes, row
from evolve.output.terminal import GO_FOLDER, command, say, suggest
from evolve.output.terms import legend
from evolve.run.folder import is_run, open_run
from evolve.run.use import FITTED, NEW
from evolve.summary.llm import lines
from evolve.summary.result import RunReport, errors_of
from evolve.summary.sentences import (
    against_seed_text,
    cascade_text,
    gap_text,
    group_out_text,
    inconsistent_text,
    rule_text,
)
from simulator.common.json import JsonObject
from simulator.common.text import counted, listed
from simulator.language.bounds import at_bounds
from simulator.serving.observations import CLEAN, OVERLOADED

# Column heads of the baselines in the table of errors; the table of means has their full names.
SHORT = {
    **{name: answer.short for name, answer in BASELINES.items()},
    "blackbox per model (published)": "p-bbox",
    "regime ensemble with overhead floor (round 2)": "p-regime",
    "metadata power law (round 5)": "p-meta",
    "direct calibration per model (round 4, in sample)": "p-calib",
}
ERRORS_LEGEND = """\
use: fitted, so the errors are in sample; new, not fitted; or the quality for which it was not fitted. E2E, TTFT, ITL:
errors of an experiment's means over {seeds}"""
BASELINES_LEGEND = """\
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
MOST_BASELINES = 3  # without -v
MOST_BEYOND = 5  # experiments outside the limits, by name
FEW_RUNS = 3.0  # times the median from which on a mean shows a few runs only


def print_run(report: RunReport, baselines: bool = False, explain: bool = False, verbose: bool = False) -> None:
    """Print the report of a run: its errors next to those of baselines, the champion, and the next commands.

    baselines: with a table of errors by experiment, those of baselines included. explain: the meanings of words,
    too. verbose: with that table, the Pareto front, the rule, and the history of the search.
    """
    best = report.champion
    if best is None:
        reasons = "; ".join(f"{r.count} at {r.stage}, e.g. {r.why}" for r in report.rejected)
        prose(f"No candidate could be scored: {reasons}. Run: {report.run}")
        return
    counts = f"{counted(best.operations, 'operation')}, {counted(best.constants, 'constant')}, key {best.key}"
    say("\nChampion", "bold", end="")
    say(f" (proposal {best.id}, {counts})")
    if text := inconsistent_text(report):
        prose(text, "bold")
    _print_gain(report, best)
    show(means_table(report, None if verbose else MOST_BASELINES))
    bias = fitted_bias(report)
    prose(f"{bias}, over the fitted experiments." if bias else "")
    prose(within_limits(report))
    say(f"\n{best.text}")
    for text in bounds_texts(best):
        prose(f"- {text}")
    if baselines or verbose:
        show(errors_table(report, baselines))
    if verbose:
        _print_search(report, best)
    if explain:
        _print_legend(report, baselines)
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
    emit = command("emit", program, "--host", "blis-4", "--out", GO_FOLDER, *own, *one)
    more = command("resume", report.run, "--all", "-v", "--explain")
    suggest(command("archive", report.run), command("show", program), emit, more)


def _print_search(report: RunReport, best: Elite) -> None:
    """Print the rule for the champion, its distance from other programs, the Pareto front, and the use of time."""
    prose(f"The champion is {rule_text(report.rule, best.consistent)}.")
    prose("\n".join(text for text in (group_out_text(best), gap_text(report)) if text))
    shown = thinned(report.front, best)
    show(front_table(shown, "Pareto front", best))
    if len(shown) < len(report.front):
        prose(f"{len(shown)} of {len(report.front)} programs, evenly by size; the champion is proposal {best.id}; all:")
        say(f"  {command('archive', report.run)}\n")
    prose(cascade_text(report))


def _print_legend(report: RunReport, baselines: bool) -> None:
    """Print the meanings of the words in the tables."""
    seeds = ERRORS_LEGEND.format(seeds=arrival_seeds(report.seeds))
    legend("limits", also=f"{seeds}. {BASELINES_LEGEND}" if baselines else seeds)
    legend("baseline", also=f"{MEANS_LEGEND}. {PUBLISHED_LEGEND}" if report.published else MEANS_LEGEND)
    terms = "mean error", "worst-3 E2E", "group-out", "consistent", "Pareto front"
    legend(*terms, also=FRONT_LEGEND.format(seeds=arrival_seeds(report.search_seeds)))


def bounds_texts(best: Elite) -> list[str]:
    return list(at_bounds(best.program).values())


def thinned(front: Sequence[Elite], best: Elite) -> Sequence[Elite]:
    """At most MOST_ROWS programs of a front, evenly spaced from the simplest to the largest, and the champion."""
    if len(front) <= MOST_ROWS:
        return front
    shown = {i * (len(front) - 1) // (MOST_ROWS - 1) for i in range(MOST_ROWS)}
    return [e for i, e in enumerate(front) if i in shown or e.id == best.id]


def errors_table(report: RunReport, baselines: bool) -> Table:
    """A row per experiment: signed errors of the means, those outside the limits, and if `baselines` the E2E errors of
    the baselines."""
    answers = {**report.baselines, **report.published} if baselines else {}
    title = "Errors of the means in percent, (predicted - observed)/observed"
    title += "; right: E2E of baselines" if baselines else ""
    e2e = {name: {r.experiment: r.e2e for r in rows} for name, rows in answers.items()}

    def cells(errors: Errors) -> Row:
        name, fitted = errors.experiment, errors.experiment in report.fitted
        quality = report.quality[name]
        use = FITTED if fitted else NEW if quality == CLEAN else quality
        theirs = [e2e[answer].get(name) for answer in answers]
        return row(name, use, *errors.figures, passes(errors._asdict()), *theirs, style="" if fitted else "dim")

    columns = [words("experiment", "use"), figures("+.1f", "E2E", "TTFT", "ITL"), words("limits")]
    columns += [figures("+.1f" if a in report.baselines else ".1f", SHORT.get(a, a)) for a in answers]
    return Table.of(title, columns, map(cells, report.errors))


def means_table(report: RunReport, most: int | None = None) -> Table:
    """Mean absolute errors over the fitted experiments: the champion's, the best seed's, and the baselines'.

    most: of the baselines, only so many, those of one set of constants or none that are closest.
    """
    ours = _of(report.errors, report.fitted)
    rows = [row("champion", *mean_errors(ours), ONE_SET, style="bold")]
    seed = report.best_seed.operator.removeprefix(SEED) if report.best_seed else ""
    own, called = f"seed {seed}", f"best seed ({seed})"
    if report.best_seed and own not in report.baselines:
        best = report.best_seed.score
        how = f"{ONE_SET}; as the search scored it, with {MOST_RUNS:g} runs of a cell at most"
        rows.append(row(called, best.e2e, best.ttft, best.itl, len(ours), how))
    baselines = {name: _of(errors, report.fitted) for name, errors in report.baselines.items()}
    if most is not None:
        shared = [name for name in baselines if name in SHARED and name != own]
        closest = sorted(shared, key=lambda name: next((x for x in mean_errors(baselines[name]) if x is not None), inf))
        baselines = {name: of for name, of in baselines.items() if name in (own, *closest[:most])}
    for name, fitted in sorted(baselines.items(), key=lambda item: item[0] != own):
        title = called if name == own else name
        how = BASELINES[name].constants if name in BASELINES else ONE_SET
        rows.append(row(title, *mean_errors(fitted), how + median_text(of["e2e"] for of in fitted)))
    for name, errors in report.published.items() if most is None else ():
        if chosen := _of(errors, report.fitted):
            rows.append(row(name, *mean_errors(chosen), "published; its ITL errors: against half the observed ITL"))
    for quality in (CLEAN, OVERLOADED):
        left = [name for name, q in report.quality.items() if q == quality and name not in report.fitted]
        if others := _of(report.errors, left):
            rows.append(row(f"champion on others, {quality}", *mean_errors(others), "not fitted", style="dim"))
    title = f"Mean absolute error in percent over the {len(report.fitted)} fitted experiments"
    columns = [words("model"), figures(".2f", "E2E", "TTFT", "ITL"), figures("d", "runs"), wrapped("constants")]
    return Table.of(title, columns, rows)


def within_limits(report: RunReport) -> str:
    """The number of fitted experiments within the limits on errors, and the others by name."""
    fitted = errors_of(report.errors, report.fitted)
    found = {row.experiment: passes(row._asdict()) for row in fitted}
    beyond = [f"{name} ({text[1:]})" for name, text in found.items() if text.startswith(">")]
    limits = ", ".join(f"{name.upper()} {most:g} %" for name, most in PASS_PCT.items())
    within = f"{len(fitted) - len(beyond)} of {counted(len(fitted), 'fitted experiment')} are within {limits}"
    return f"{within}; outside: {listed(beyond, MOST_BEYOND)}." if beyond else f"{within}."


def median_text(e2e_pct: Iterable[float | None]) -> str:
    """The median absolute E2E error, where a few runs make the mean several times as large; else ""."""
    errors = [abs(x) for x in e2e_pct if x is not None]
    if not errors or mean(errors) <= FEW_RUNS * median(errors):
        return ""
    return f"; a few runs make the mean, the median E2E is {number(median(errors), 1, signed=False)}"


def _of(errors: Iterable[Errors], experiments: Collection[str]) -> list[JsonObject]:
    return [row._asdict() for row in errors_of(errors, experiments)]


def front_table(elites: Sequence[Elite], title: str, best: Elite | None = None) -> Table:
    """A row per program of a Pareto front: objectives, mean errors, size, and the operator that made it; bold for the
    champion, if `best` is one of them."""

    tails = ["TTFT p99"] if any(e.score.ttft_p99 is not None for e in elites) else []

    def cells(e: Elite) -> Row:
        s = e.score
        errors = s.worst3, s.mean_error, e.group_out, s.e2e, s.ttft, s.itl, *([s.ttft_p99] if tails else [])
        size, style = f"{e.operations}+{e.constants}", "bold" if best and e.id == best.id else ""
        return row(e.id, *errors, size, e.consistent, e.operator, style=style)

    columns = [
        figures("d", "id"),
        figures(".2f", "worst-3 E2E", "mean error", "group-out", "E2E", "TTFT", "ITL", *tails),
        figures("", "size"),
        words("consistent"),
        wrapped("from"),
    ]
    return Table.of(title, columns, map(cells, elites))


def fitted_bias(report: RunReport) -> str:
    """The bias over the fitted experiments and its limit, in words; "" where no E2E was observed."""
    return bias_label(_of(report.errors, report.fitted))


def _print_gain(report: RunReport, best: Elite) -> None:
    """Print the errors of the best seed after a fit alone, and the gain of the search."""
    seed = report.best_seed
    if seed is None:
        prose("No seed could be scored.")
        return
    lower = 100.0 * (1.0 - best.mean_error / seed.mean_error)
    change = f"{lower:.0f} % lower" if lower >= 0 else f"{-lower:.0f} % higher"
    fitted = "fitted" if seed.consistent else "fitted, not physically consistent"
    prose(
        f"Best seed ({seed.operator.removeprefix(SEED)}, {fitted}): mean error {seed.mean_error:.2f} %, worst-3 E2E "
        f"{seed.worst3:.2f} %. Champion: mean error {best.mean_error:.2f} % ({change}), worst-3 E2E "
        f"{best.worst3:.2f} %. Both as the search counts: {MOST_RUNS:g} runs of a cell (model, GPU, type of weights) "
        "at most, by its arrival seeds."
    )
    prose(against_seed_text(best, seed))
    if lowest := inconsistent(report, best):
        prose(
            f"Proposal {lowest.id} ({lowest.operator}) has a mean error of {lowest.mean_error:.2f} %, but is not "
            "physically consistent, so it cannot be the champion. Its contradictions:"
        )
        say(f"  {command('show', f'{report.run}:{lowest.id}', '--check', '--physics')}\n")


def inconsistent(report: RunReport, best: Elite) -> Elite | None:
    """The program with the lowest mean error, if only its physical inconsistency bars it from being champion.

    None otherwise; also if the champion is inconsistent itself.
    """
    if not best.consistent:
        return None
    seeds = [report.best_seed] if report.best_seed else []
    lowest = min([*seeds, *report.front], key=lambda e: e.mean_error, default=best)
    return None if lowest.consistent or lowest.mean_error >= best.mean_error else lowest
