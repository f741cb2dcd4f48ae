"""The text that `evolve fit` prints: errors before and after, constants, and what the data say of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median

import numpy as np

from archive.score import Errors
from evaluator.fit.loss import Delays
from evaluator.score import MEANS, summarise
from evolve.calibrate.certainty import CERTAINTY, hard_to_tell_apart, said_by_data
from evolve.calibrate.first_stage import FITTED, StageFigures
from evolve.calibrate.result import WORSE_POINTS, Calibration, ConstantChange
from evolve.output.columns import NUMBER, Column, figures, words
from evolve.output.printing import LINES, NAMED, more, points, prose, say_once, show
from evolve.output.table import Row, Table, absolute_errors, number, row, section
from evolve.output.terminal import command, say, suggest
from evolve.output.terms import legend
from evolve.run.program_files import alias
from evolve.run.records import ConstantRecord
from evolve.run.trust import trust_file
from simulator.common.text import counted
from simulator.language.affine import thresholds
from simulator.language.bounds import at_bounds, clipped_exponents, outside_bounds
from simulator.language.complete import complete
from simulator.language.unparse import unparse

# Steps and load stages disagree if the error per step grows by this factor in the whole fit, to more than this.
APART, APART_PCT = 2.0, 5.0
TEXT = 16  # lines of a program's text, at most, that stands before its constants without -v
ROWS_BELOW_TEXT, ROWS_ALONE = 9, 20  # lines of the table of constants without -v
SPLIT = {"valid": "next 20 %", "test": "last 20 %"}
LEGEND = """\
moved: the change, in the standard errors of before and after combined; at a bound: the fitted runs would take it
further (recorded requests: or do not show it); a threshold: in conditions alone, so it has no error"""


def print_fit(
    result: Calibration,
    file: str | None,
    explain: bool = False,
    verbose: bool = False,
    excluded: Sequence[str] = (),
) -> None:
    """Print the mean errors before and after, which latencies to trust, where the program was written, its text and
    constants, and the warnings, in about 40 lines.

    file: where its first experiment is, None if it is shipped. excluded: experiments of it that were not fitted.
    explain: the meanings of terms, too. verbose: the docstring, errors by run, methods, values by model and degrees of
    freedom.
    """
    worse = _most_worse(result)
    prose(_answer(result), "bold")
    prose(result.held_out.verdict, "bold")
    if result.worse_errors:
        prose(_worst(result, advise=not worse), "bold")
    if worse:
        prose(worse, "bold")
    _print_files(result, file is None)
    left = _print_program(result, verbose)
    if explain:
        legend("standard error", "data share", "identified", also=LEGEND)
    left += show(_constants_table(result), None if verbose else ROWS_ALONE if left else ROWS_BELOW_TEXT)
    doubts = [*_at_bounds(result), *_beyond_limits(result), *_together(result, verbose)]
    left += points([*doubts, *_dropped(result)] if verbose else doubts, "doubt", None if verbose else LINES)
    own = [c for c in result.constants if c.model]
    further = {
        "values by model": _models_table(own) if own else None,
        "methods": _methods_table(result) if len(result.tries) > 1 else None,
        "errors by run": _errors_table(result),
    }
    for name, table in further.items():
        if table and verbose:
            show(table)
        elif table:
            left.append(name)
    if result.later and verbose:
        show(_later_table(result))
    if result.steps:
        _print_stage(result.steps, verbose)
    if verbose:
        _print_freedom(result)
    else:
        left.append("degrees of freedom")
    if result.left_out:
        prose(f"Not fitted: {_left_out(result.left_out, verbose)}")
    left += say_once(result.warnings, lines=None if verbose else LINES)
    if result.delays:
        prose(_delays(result.delays))
    elif verbose:
        prose("No fitted run tells time in steps from time before and after: see Delays in docs/calibrate.md.")
    if result.no_trust:
        prose(f"Predictions of it have no intervals: {result.no_trust}.")
    more(left, explain)
    cautions = list(dict.fromkeys(text for p in result.programs for text in p.cautions))
    for text in cautions:
        prose(f"Caution: {text}.", "bold")
    if result.out:
        _suggest(result, result.out[0], file, excluded, bool(worse or cautions))


def _delays(delays: Sequence[tuple[Delays, Delays]]) -> str:
    """What a mean request spends outside of steps, in runs that observed it."""
    every = np.array(delays)  # runs, predicted and observed, before and after
    known = ~np.isnan(every[:, 1]).all(axis=0)
    ours, theirs = np.full((2, 2), np.nan)
    ours[known], theirs[known] = np.nanmean(every[:, :, known], axis=0)
    kinds = zip(("before", "after"), ours, theirs, strict=True)
    said = [f"{name} them {a:.1f} ms (observed {b:.1f})" for name, a, b in kinds if not np.isnan(b)]
    runs = f"Outside of steps, in {counted(len(delays), 'run')} that observed it: {', '.join(said)}"
    return f"{runs}; `evolve predict -v` compares the steps."


def _answer(result: Calibration) -> str:
    runs = counted(len(result.best.errors), "fitted run")
    before, after = (_means(errors) for errors in (result.before, result.best.errors))
    figures = (f"{name.upper()} {x} -> {after[name]} %" for name, x in before.items())
    return f"Mean absolute error on {runs}, before -> after: {', '.join(figures)}"


def _means(errors: Sequence[Errors]) -> dict[str, str]:
    """The mean absolute error of each latency that was observed, in percent, as text."""
    means = zip(MEANS, absolute_errors([e._asdict() for e in errors], mean), strict=True)
    return {name: number(x, 2, signed=False) for name, x in means if x is not None}


def _print_files(result: Calibration, shipped: bool) -> None:
    which = " These are shipped runs, because no --experiments is given." if shipped else ""
    if not result.out:
        prose(f"Not written: the same command with `--out mine.py` writes it.{which}")
        return
    records = "each with its record" if len(result.out) > 1 else "with its record"
    prose(f"Written: {', '.join(result.out)}, {records} next to it.{which}")
    if result.replaced:
        prose(f"Replaced: what an earlier fit, or blend, had written as {', '.join(result.replaced)}.")
    if result.rewritten:
        prose(f"Replaced: the text of {result.name} that was fitted, without its comments.")
    if result.trust:
        kept = trust_file(Path(result.out[0]))
        count = counted(len(result.trust.ensemble), "near-optimal program")
        using = command("predict", result.out[0])
        prose(f"Intervals: {kept}, with {count} fitted on the same runs; `{using}` uses it.")


def _print_program(result: Calibration, verbose: bool) -> list[str]:
    """Print the text. Without `verbose` leave out its docstring, and all of a long one, and return what is left out."""
    if result.program is None:
        return []
    text = result.program if verbose else unparse(replace(result.programs[0].parsed, doc=""))
    if not verbose and text.count("\n") > TEXT:
        return ["the program's text"]
    say("\n" + text)
    return []


def _print_freedom(result: Calibration) -> None:
    free = result.freedom
    prose(
        f"Degrees of freedom: {counted(free.constants, 'constant')} fitted; {free.observations} observed means decide "
        f"{free.effective:.1f} of them, the sum of the shares; loss {result.best.fit.loss:.4g} ({result.best.method})"
    )
    if result.started:
        prose(
            f"Started from {result.started}: from the program's own constants the fit ends at a loss of "
            f"{min(t.fit.loss for t in result.tries):.4g}"
        )


def _left_out(reasons: Mapping[str, str], verbose: bool) -> str:
    """The runs that were not fitted, with the reason; without `verbose` the numbers of more than NAMED."""
    if verbose or len(reasons) <= NAMED:
        return ", ".join(f"{ident} ({why})" for ident, why in reasons.items())
    return ", ".join(f"{counted(n, 'run')} ({why})" for why, n in Counter(reasons.values()).items())


def _suggest(result: Calibration, out: str, file: str | None, excluded: Sequence[str], doubtful: bool) -> None:
    """Suggest a prediction of what was not fitted, or of all experiments; a validation where nothing was held out."""
    known = ["--experiments", file] if file else []
    if result.later:
        suggest(command("predict", out, *known, "--part", "test"))
    elif excluded:
        suggest(command("predict", out, *known, "--id", ",".join(excluded)))
    elif doubtful or (not result.held_out.errors and len(result.fitted) > 1):
        suggest(command("fit", result.name, *known, "--learning-curve"))
    else:
        suggest(command("predict", out, *known))


def _later_table(result: Calibration) -> Table:
    rows = []
    for name, of_part in result.later.items():
        rows += section((r.experiment, SPLIT[name], r.e2e, r.ttft, r.itl) for r in of_part)
    title = "Errors of the means on later requests, which were not fitted, in percent"
    return Table.of(title, [words("experiment", "part"), figures("+.1f", "E2E", "TTFT", "ITL")], rows)


def _methods_table(result: Calibration) -> Table:
    rows = []
    for t in result.tries:
        score = summarise(t.errors)
        style = "bold" if t is result.best else ""
        rows.append(row(t.method, t.fit.loss, score.e2e, score.ttft, score.itl, t.seconds, style=style))
    title = "Methods: loss of the fit's own replays, mean absolute errors in percent; the best is kept"
    columns = [words("method"), figures(".4g", "loss"), figures(".2f", "E2E", "TTFT", "ITL", "seconds")]
    return Table.of(title, columns, rows)


def _constants_table(result: Calibration) -> Table:
    several_models = any(c.model for c in result.constants)
    staged = result.steps is not None
    # of the whole form, because a written one lacks the methods whose constants are all 0
    whole = complete(result.programs[0].parsed)
    chosen = {f"{f.name}.{name}" for f in whole.functions for name in thresholds(f)}

    def cells(c: ConstantChange) -> Row:
        known = ConstantRecord(c.standard_error, c.bound, c.identified, data_share=c.data_share, held=c.held)
        chooses = c.standard_error is None and f"{c.method}.{c.name}" in chosen
        share = None if c.held or c.bound or chooses else c.data_share
        name = f"{c.method}.{c.name}"
        if several_models:
            name += f", {alias(c.model) if c.model else 'all models'}"
        values = (c.before, c.after_steps, c.after) if staged else (c.before, c.after)
        said = said_by_data(known) if c.shown else "no fitted run shows it"
        return row(name, *values, c.standard_error, c.moved, share, "a threshold" if chooses else said)

    error, by_data = CERTAINTY
    heads = ("before", "after steps", "after") if staged else ("before", "after")
    moved = Column("moved", NUMBER, format="+.1f", missing="")
    columns = [*words("constant"), *figures("g", *heads), error, moved, *figures(".2f", "data share"), by_data]
    return Table.of("Constants", columns, map(cells, result.constants))


def _at_bounds(result: Calibration) -> list[str]:
    """A sentence for each constant that the fit moved to a bound, or left there."""
    held = {f"{c.method}.{c.name}" for c in result.constants if c.held}
    texts: dict[str, None] = {}  # in order, each once
    for fitted in result.programs:
        of_model = f"{alias(fitted.model)}: " if fitted.model else ""
        texts |= {of_model + text: None for name, text in at_bounds(fitted.parsed).items() if name not in held}
    return list(texts)


def _beyond_limits(result: Calibration) -> list[str]:
    """A sentence for each constant that was held outside its bounds, or is an exponent beyond what `pow` takes."""
    programs = [fitted.parsed for fitted in result.programs]
    return list(dict.fromkeys(text for p in programs for text in (*outside_bounds(p), *clipped_exponents(p))))


def _together(result: Calibration, verbose: bool) -> list[str]:
    texts = []
    for model in dict.fromkeys(c.model for c in result.constants):
        of_model = {f"{c.method}.{c.name}": c.correlated for c in result.constants if c.model == model}
        texts += [f"{alias(model)}: {text}" if model else text for text in hard_to_tell_apart(of_model, verbose)]
    return texts


def _dropped(result: Calibration) -> list[str]:
    written = {f.name for p in result.programs for f in p.parsed.functions}
    names = list(dict.fromkeys(c.method for c in result.constants if c.method not in written))
    return [f"{', '.join(names)}: 0, as the host has it, so the text leaves it out"] if names else []


def _models_table(own: Sequence[ConstantChange]) -> Table:
    names = list(dict.fromkeys((c.method, c.name) for c in own))
    rows = []
    for model in dict.fromkeys(c.model for c in own):
        values = {(c.method, c.name): c.after for c in own if c.model == model}
        rows.append([alias(str(model)), *(values[name] for name in names)])
    return Table.of("By model", [words("model"), figures("g", *(name for _, name in names))], rows)


def _errors_table(result: Calibration) -> Table:
    before, after = ([r._asdict() for r in rows] for rows in (result.before, result.best.errors))
    rows = [
        row(old["experiment"], *(f"{number(old[x])} -> {number(new[x])}" for x in MEANS))
        for old, new in zip(before, after, strict=True)
    ]
    averages = []
    for name, average in (("mean absolute", mean), ("median absolute", median)):
        pairs = zip(absolute_errors(before, average), absolute_errors(after, average), strict=True)
        averages.append(row(name, *(f"{number(a, 2, False)} -> {number(b, 2, False)}" for a, b in pairs), style="bold"))
    title = "Errors of the means in percent, before -> after (fitted on these experiments)"
    return Table.of(title, [words("experiment"), figures("", "E2E", "TTFT", "ITL")], [*section(rows), *averages])


def _worst(result: Calibration, advise: bool) -> str:
    """Sentences on the error that grew most. advise: say what helps."""
    worst, *others = result.worse_errors
    more = f" {counted(len(others), 'more error')} grew by more than {WORSE_POINTS:g} points." if others else ""
    remedy = (
        "The loss is robust (Huber) already: fit fewer constants with --only, or runs of this kind alone with --id."
    )
    return (
        f"The fit made {worst.latency.upper()} of {worst.experiment} worse: error {number(worst.before)} -> "
        f"{number(worst.after)} %.{more}{f' {remedy}' if advise else ''}"
    )


def _most_worse(result: Calibration) -> str | None:
    """A sentence if most runs are predicted worse than before the fit, of several."""
    runs, held = len(result.best.errors), sum(c.held for c in result.constants)
    if runs == 1 or 2 * result.worse <= runs:
        return None
    remedy = f"free more of the {counted(held, 'held constant')} with --only" if held else "choose another form"
    return (
        f"{result.worse} of {runs} runs are predicted worse than before: see the medians. A few runs with large errors "
        f"decide this fit. Do not use it: leave these runs out (--id names the others), or {remedy}."
    )


def _print_stage(steps: StageFigures, verbose: bool) -> None:
    if verbose:
        show(_stage_table(steps))
    else:
        changes = []
        for split, f in steps.per_step["before"].items():
            pair = (number(x.mape_pct, 2, signed=False) for x in (f, steps.per_step["after"][split]))
            changes.append(f"{split} {' -> '.join(pair)} %")
        prose(f"MAPE of cycles of single steps, before -> after: {', '.join(changes)}", "bold")
    of_means = steps.loss != "quantile"  # a quantile is meant to differ from the mean
    after_steps, after = (steps.per_step[key][FITTED].mape_pct for key in ("after_steps", "after"))
    if of_means and after is not None and after_steps is not None and after > max(APART * after_steps, APART_PCT):
        prose(
            f"Steps and load stages disagree under this form: per step it is {after:.1f} % off after the whole fit, "
            f"{after_steps:.1f} % after steps alone. Do not trust both.",
            "bold",
        )
    for note in _stage_notes(steps, verbose):
        prose(f"- {note}", "dim")


def _stage_notes(steps: StageFigures, verbose: bool) -> list[str]:
    """Sentences on the first stage; without `verbose` only what a quantile does to predictions."""
    goes_on = "The whole fit starts from there, and keeps within about 30 % of it."
    if steps.loss == "quantile":
        goes_on = (
            "The whole fit held the constants of step_time, because load stages show means. So latencies are predicted "
            "too long, as if every step were a slow one."
        )
    if not verbose:
        return [goes_on] if steps.loss == "quantile" else []
    runs = ", ".join(f"{r.id} {r.fitted} of {r.usable}" for r in steps.runs)
    notes = [
        *_loss_notes(steps),
        f"Fitted to cycles of the train split: {runs}; not to those measured against a neighbour's batch with prefill. "
        f"{goes_on}",
        *dict.fromkeys(r.assumed for r in steps.runs if r.assumed),
    ]
    if steps.left_out:
        notes.append(f"Steps not used, because their experiments are not fitted: {', '.join(steps.left_out)}")
    return notes


def _stage_table(steps: StageFigures) -> Table:
    names = {"before": "before", "after_steps": "after steps", "after": "after the whole fit"}
    rows = []
    for key, name in names.items():
        rows.append([name, *(x for f in steps.per_step[key].values() for x in (f.mape_pct, f.bias_pct))])
    title = f"Cycles of single steps, {len(steps.runs)} runs: MAPE and bias in percent; fitted first, on train"
    columns: list[Column | tuple[Column, ...]] = [words("constants")]
    for split, f in steps.per_step["before"].items():
        columns += [figures(".2f", f"{split} ({f.steps})"), figures("+.2f", "bias")]
    return Table.of(title, columns, rows)


def _loss_notes(steps: StageFigures) -> list[str]:
    """The loss of the first stage, unless it was the usual one, and its other findings."""
    if steps.loss == "ridge":
        return [f"Loss ridge: penalty {steps.strength:.3g}, the best on blocks of time that were left out."]
    if steps.loss == "log":
        grown = f"; the form grew by {counted(steps.operations, 'operation')}" if steps.operations else ""
        return [f"Loss log: all step times are multiplied by {steps.smearing:.6g} (smearing){grown}."]
    if steps.loss == "quantile":
        shares = ", ".join(f"{share:.1%} of {split}" for split, share in steps.coverage.items() if share is not None)
        return [f"Loss quantile: {steps.quantile:g}; steps that took no longer than predicted (coverage): {shares}."]
    return []
