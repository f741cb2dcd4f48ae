"""Predictions as tables: figures and errors, intervals, main terms, parts of the E2E, and single requests."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest

from evaluator.intervals import LEVELS, Bands
from evaluator.metrics import LATENCIES, present
from evaluator.sensitivity import CONSTANT, DISAGREEMENT, HELD_OUT, PACE, Origin, TermShare
from evolve.output.columns import Column, figures, integers, words, wrapped
from evolve.output.printing import LINES, NAMED, ROWS, more, note, prose, say_once, show
from evolve.output.table import Row, Table, number, passes, section
from evolve.output.terminal import command
from evolve.output.terms import legend
from evolve.plan.forecast import Forecast, Forecasts, what
from evolve.run.trust import INSIDE, OUTSIDE, SATURATED
from evolve.run.use import BEFORE, FITTED, NEW, PARTLY, UNKNOWN

# What the first table shows of each latency: its mean, with the error, before the limits, and the others after them.
PRINTED = {"e2e": ("mean", "p90", "p99"), "ttft": ("mean", "p90", "p99"), "itl": ("mean",)}
# A part of the E2E: its name here, and the predicted and the observed components that add up to it.
E2E_PARTS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("until scheduled", ("queueing", "waiting"), ("arrival_to_queue", "waiting")),
    ("prefill steps", ("prefill_steps",), ("prefill_steps",)),
    ("decode steps", ("decode_steps",), ("decode_steps",)),
    ("after, client", ("per_token", "completion"), ("after_finish", "client")),
)
# Legends explain only what their table shows: by use, by class of held-out runs, by kind of origin.
USES = {
    FITTED: "fitted, the program was fitted on this experiment, so its errors are in sample",
    NEW: "new, the program was not fitted on this experiment",
    BEFORE: "before, only an ancestor of this program was fitted on this experiment",
    PARTLY: "% fitted, the share that was fitted, so errors are partly in sample (of traces, --part test has the rest)",
}
ERROR_LEGEND = "error: (predicted - observed)/observed of the mean, in percent; a positive one was predicted too long"
INTERVALS = {"e2e": "E2E mean", "e2e_p99": "E2E p99", "ttft": "TTFT mean", "ttft_p99": "TTFT p99", "itl": "ITL mean"}
GUESSED = " (*: not calibrated)"
INTERVALS_LEGEND = """\
80 % intervals of a new measurement (--json has those of every figure, and 95 %): from the errors on held-out runs,
wider where programs that fit equally well disagree; *: too few of these runs measured the figure, so the interval is
that of the nearest one, twice as wide"""
CLASSES = {
    INSIDE: "inside, within the ranges of the fitted runs",
    OUTSIDE: "outside, beyond the ranges of the fitted runs (always after a fit on own runs)",
    SATURATED: "saturated, near capacity or beyond it",
    None: "-, none were held out",
}
QUEUES = "queues: the share of equally good programs that predict over 5 % of the E2E in the queue"
QUEUES_GROW = "; latencies may then depend on the length of the load"
NO_INTERVALS = (
    """No intervals: only the shipped champion, a run's champion after `{command}`, and fits of these have some."""
)
PARTS_LEGEND = """\
Observed in request traces. until scheduled: from arrival, with the gaps of preemptions; vLLM stamps QUEUED between two
steps, so that no stamp tells the wait for a step from what comes before. after: completion and the times per token;
client: its E2E less the server's. A fit puts a first token's way to the client before the steps: the host has no other
place for it."""
SINGLES_LEGEND = """\
Requests of traces, one by one: mean and median absolute error in percent, Pearson's r of predicted and observed, and
the errors of the p50, p90 and p99 over requests. By length: errors of the means, lengths in tokens."""
FEW = 6  # experiments that have up to TERMS main terms each; where there are more, each has one
TERMS = 3
TERMS_LEGEND = """\
mostly: the terms of the program with the largest effect on the mean E2E. At 50 % it grows by 0.5 % if the term grows by
1 %. Longer steps mean more requests at once, so shares add up to more than 100 %, near capacity to much more."""
ORIGINS_LEGEND = "main sources of the interval: shares of its squared scale (docs/search.md)"
ORIGINS = {
    HELD_OUT: "held out: errors on held-out runs",
    PACE: "pace: steps 3 % shorter or longer",
    DISAGREEMENT: "a field, or a method: programs that fit equally well disagree about it; so many of them differ by "
    "more than 0.1 % of the E2E",
}


def print_prediction(forecasts: Forecasts, explain: bool = False, verbose: bool = False) -> None:
    """Print the mean errors, a row per experiment, the intervals of a few, and the warnings, in about 40 lines.

    explain: the meanings of terms, too. verbose: all rows and warnings, main terms, parts of the E2E, single requests.
    """
    experiments = forecasts.experiments
    doubted = any(e.summary.intervals for e in experiments)
    most = None if verbose else ROWS // 2 if doubted and len(experiments) <= FEW else ROWS
    for line in mean_lines(forecasts):
        prose(line, "bold")
    if forecasts.deviation:
        prose(forecasts.deviation.sentence, "bold")
    left = show(_table(forecasts), most)
    if explain:
        _print_uses(experiments)
    if empty := [e.id for e in experiments if e.empty]:
        others = f" and {len(empty) - NAMED} more" if len(empty) > NAMED else ""
        prose(f"No request completes, for the reasons below: {', '.join(empty[:NAMED])}{others}", "bold")
    if doubted:
        if verbose or len(experiments) <= FEW:
            left += show(_intervals_table(experiments), most)
        else:
            left.append("intervals")
        if explain:
            note(_intervals_legend(experiments))
    elif not all(e.empty for e in experiments):
        prose(NO_INTERVALS.format(command=command("validate", "RUN")))
    further = {
        "main terms": ([e for e in experiments if e.depends_on], _print_depends),
        "parts of the E2E": ([e for e in experiments if e.observed_components], _print_parts),
        "single requests": ([e for e in experiments if e.singles], _print_singles),
    }
    for name, (of_these, printed) in further.items():
        if of_these and verbose:
            printed(of_these, explain)
        elif of_these:
            left.append(name)
    left += say_once(forecasts.warnings_by_id, lines=None if verbose else LINES)
    more(left, explain)


def _print_uses(experiments: Sequence[Forecast]) -> None:
    notes = [_uses_legend(experiments)] if any(e.fitted_share is not None for e in experiments) else []
    if any(e.summary.error_pct for e in experiments):
        legend("limits", also=". ".join([*notes, ERROR_LEGEND]))
    elif notes:
        legend(also=notes[0])


def _uses_legend(experiments: Sequence[Forecast]) -> str:
    shown = {PARTLY if e.use.endswith(PARTLY) else e.use for e in experiments}
    return "use: " + "; ".join(words for use, words in USES.items() if use in shown)


def _intervals_legend(experiments: Sequence[Forecast]) -> str:
    shown = {e.residual_class for e in experiments}
    by = "by: which held-out runs: " + "; ".join(words for name, words in CLASSES.items() if name in shown)
    queues = QUEUES + QUEUES_GROW if any(e.doubt and e.doubt.saturated for e in experiments) else QUEUES
    return f"{INTERVALS_LEGEND}. {by}. {queues} (docs/search.md)."


def mean_lines(forecasts: Forecasts) -> list[str]:
    """The mean absolute errors of the observed experiments: a line for those that the program was fitted on, one for
    those of which it was fitted on a part, one for those that it was fitted on before, and one for the others, which
    are never averaged together; one line where no record says which these are."""
    observed = [e.use for e in forecasts.experiments if e.summary.error_pct]
    partly = {name for name in observed if name.endswith(PARTLY)}
    by_use: tuple[tuple[str, Collection[str]], ...] = (
        (f"{FITTED}, in sample", [FITTED]),
        (f"{PARTLY}, partly in sample", partly),
        (f"{BEFORE}, not in this fit", [BEFORE]),
        (f"{NEW}, not fitted", [NEW]),
        ("", [UNKNOWN]),
    )
    lines = []
    for name, uses in by_use:
        count = sum(of_one in uses for of_one in observed)
        if count and (figures := _figures(forecasts.mean_abs_error_pct_by_use(uses))):
            lines.append(f"Mean absolute error{f', {name} ({count})' if name else ''}: {figures}")
    return lines


def _figures(means: Mapping[str, float | None]) -> str:
    return ", ".join(f"{n.upper()} {number(v, 2, signed=False)} %" for n, v in means.items() if v is not None)


def _table(forecasts: Forecasts) -> Table:
    compared = any(e.summary.error_pct for e in forecasts.experiments)
    recorded = any(e.fitted_share is not None for e in forecasts.experiments)
    columns, others = [words("experiment", *(["use"] if recorded else []))], list[tuple[Column, ...]]()
    for latency, (mean, *percentiles) in PRINTED.items():
        spec = ".2f" if latency == "itl" else ".1f"
        columns.append(figures(spec, f"{latency.upper()} {mean}"))
        if compared:
            columns.append(figures("+.1f", f"{latency.upper()} error"))
        others.append(figures(spec, *(f"{latency.upper()} {q}" for q in percentiles)))
    if compared:
        columns.append(words("limits"))
    if _closed(forecasts):
        others.insert(0, figures("", "requests/s", "tokens/s"))
    averaged = f", mean over arrival seeds {list(forecasts.seeds)}" if forecasts.drawn else ""
    title = f"Predictions of {forecasts.name} in ms{averaged}"
    return Table.of(
        title, [*columns, *others], (_row(e, compared, recorded, _closed(forecasts)) for e in forecasts.experiments)
    )


def _closed(forecasts: Forecasts) -> bool:
    """True if answers decide the rate of any load, so that it is a result."""
    return any(e.setting.concurrency for e in forecasts.experiments)


def _row(e: Forecast, compared: bool, recorded: bool, rates: bool) -> list[object]:
    error_pct = e.summary.error_pct or {}
    errors_of_means = {latency: error_pct.get(f"{latency}_ms", {}).get("mean") for latency in PRINTED}
    cells: list[object] = [e.id, e.use] if recorded else [e.id]
    others: list[object] = []
    for latency, quantities in PRINTED.items():
        statistic = getattr(e.summary.predicted, f"{latency}_ms", None)
        mean, *percentiles = (getattr(statistic, q, None) for q in quantities)
        cells += [mean, errors_of_means[latency]] if compared else [mean]
        others += percentiles
    if rates:
        others = [f"{e.served.completed_rps:.3g}", f"{e.served.output_tokens_per_s:.4g}", *others]
    if compared:
        cells.append("nothing completes" if e.empty else passes(errors_of_means))
    return [*cells, *others]


def _intervals_table(experiments: Sequence[Forecast]) -> Table:
    columns = [words("experiment", "by"), figures("", *INTERVALS.values()), figures(".0f", "queues, %")]
    rows = []
    for e in experiments:
        cells = [_interval(e.summary.intervals.get(name)) for name in INTERVALS]
        rows.append([e.id, e.residual_class, *cells, 100.0 * e.doubt.saturated if e.doubt else None])
    guessed = any(name in INTERVALS for e in experiments for name in e.summary.not_calibrated)
    return Table.of(f"80 % intervals in ms{GUESSED if guessed else ''}", columns, rows)


def _interval(bands: Bands | None) -> str | None:
    if bands is None:
        return None
    low, high = map(_three_digits, bands.at[LEVELS[0]])
    return f"{low} to {high}{'' if bands.calibrated else ' *'}"


def _three_digits(ms: float) -> str:
    return f"{ms:,.{max(0, 2 - math.floor(math.log10(ms)))}f}" if ms > 0.0 else "0"


def _parts_table(experiments: Sequence[Forecast]) -> Table:
    """Predicted and observed parts of the E2E, for the experiments that have observed ones."""
    rows = []
    for e in experiments:
        observed = e.observed_components
        if observed is None:
            continue
        cells = []
        for _, ours, theirs in E2E_PARTS:
            predicted = sum(e.components[name] for name in ours)
            known = present([getattr(observed, name) for name in theirs])
            seen = number(sum(known) if known else None, 1, signed=False)
            cells.append(f"{number(predicted, 1, signed=False)} / {seen}")
        rows.append([e.id, *cells, observed.requests])
    columns = [words("experiment"), figures("", *(name for name, _, _ in E2E_PARTS)), figures("d", "requests")]
    return Table.of("Parts of the mean E2E in ms, predicted / observed", columns, rows)


def _print_parts(experiments: Sequence[Forecast], explain: bool) -> None:
    show(_parts_table(experiments))
    if explain:
        note(PARTS_LEGEND)


def _print_depends(experiments: Sequence[Forecast], explain: bool) -> None:
    """Print the largest shares: up to TERMS for each of FEW experiments, one for each of more."""
    doubted = any(e.origins for e in experiments)
    few = len(experiments) <= FEW
    title = "Main terms of the mean E2E" if few else "Main term of the mean E2E (--json has more)"
    columns, rows = [words("experiment"), wrapped("mostly")], list[Row]()
    if doubted:
        columns.append(wrapped("main sources of the interval" if few else "main source of the interval"))
    for e in experiments:
        shares = [cells[: len(columns)] for cells in _largest_shares(e, TERMS if few else 1)]
        rows += section(shares) if few else [Row(shares[0])]
    show(Table.of(title, columns, rows))
    if explain:
        note(f"{TERMS_LEGEND} {_origins_legend(experiments, few)}" if doubted else TERMS_LEGEND)


def _origins_legend(experiments: Sequence[Forecast], few: bool) -> str:
    shown = {o.kind for e in experiments for o in _adding(e)[: TERMS if few else 1]}
    return f"{ORIGINS_LEGEND}. {'; '.join(words for kind, words in ORIGINS.items() if kind in shown)}."


def _largest_shares(e: Forecast, most: int) -> list[tuple[str, ...]]:
    """At most so many rows of the experiment, its largest shares first."""
    pairs = list(zip_longest(map(_term, e.depends_on[:most]), map(_origin, _adding(e)[:most])))
    return [("" if i else e.id, term or "", origin or "") for i, (term, origin) in enumerate(pairs or [("", "")])]


def _adding(e: Forecast) -> list[Origin]:
    """The sources of its interval without its constants, whose share is contained in the errors on held-out runs."""
    return [o for o in e.origins if o.kind != CONSTANT]


def _term(share: TermShare) -> str:
    return f"{100.0 * share.share:3.0f} % {share.term.text}"


def _origin(origin: Origin) -> str:
    return f"{100.0 * origin.share:3.0f} % {what(origin)}"


def _print_singles(forecasts: Sequence[Forecast], explain: bool) -> None:
    """Print two tables of the experiments that have latencies of single requests."""
    columns = [
        words("experiment"),
        integers("requests"),
        words("latency"),
        figures(".1f", "mean", "median"),
        figures(".3f", "r"),
        figures("+.1f", "p50", "p90", "p99"),
    ]
    show(
        Table.of("Single requests: errors in percent", columns, [r for f in forecasts for r in section(_by_latency(f))])
    )
    columns = [
        words("experiment"),
        figures("", "prompt", "answer"),
        integers("requests"),
        figures("+.1f", "E2E", "TTFT", "ITL"),
    ]
    by_length = [r for f in forecasts for r in section(_by_length(f))]
    show(Table.of("By length: errors of the means in percent", columns, by_length))
    if explain:
        note(SINGLES_LEGEND)


def _by_latency(f: Forecast) -> list[list[object]]:
    rows: list[list[object]] = []
    for name, single in f.singles.latencies.items() if f.singles else ():
        about: list[object] = ["", ""] if rows else [f.id, f.singles.requests if f.singles else None]
        figures_pct = single.mean_abs_pct, single.median_abs_pct, single.r, *single.quantiles_pct.values()
        rows.append([*about, name.removesuffix("_ms").upper(), *figures_pct])
    return rows


def _by_length(f: Forecast) -> list[list[object]]:
    rows: list[list[object]] = []
    for b in f.singles.bins if f.singles else ():
        lengths = (f"{low:,} to {high:,}" if low < high else f"{low:,}" for low, high in (b.prompt, b.answer))
        rows.append(["" if rows else f.id, *lengths, b.requests, *(b.error_pct[name] for name in LATENCIES)])
    return rows
