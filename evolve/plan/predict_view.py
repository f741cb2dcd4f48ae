"""Predictions as tables: figures and errors, intervals, what they depend on, parts of the E2E, and single requests."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from evaluator.intervals import LEVELS
from evaluator.metrics import LATENCIES
from evaluator.sensitivity import CONSTANT, DISAGREEMENT, HELD_OUT, PACE, Origin, TermShare
from evolve.output.printing import note, prose, say_once, show
from evolve.output.table import Row, Table, number, passes, row, section
from evolve.output.terminal import command
from evolve.output.terms import legend
from evolve.plan.forecast import Forecast, Forecasts, what
from evolve.run.trust import INSIDE, OUTSIDE, SATURATED
from evolve.run.use import BEFORE, FITTED, NEW, PARTLY, UNKNOWN

# What the first table shows of each latency: its mean, with the error, before the limits, and the others after them.
PRINTED = {"e2e": ("mean", "p90", "p99"), "ttft": ("mean", "p90", "p99"), "itl": ("mean",)}
# A part of the E2E: its name here, the predicted components that add up to it, and its name among the observed ones.
E2E_PARTS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("queueing", ("queueing",), "arrival_to_queue"),
    ("waiting", ("waiting",), "waiting"),
    ("prefill steps", ("prefill_steps",), "prefill_steps"),
    ("decode steps", ("decode_steps",), "decode_steps"),
    ("after the last step", ("per_token", "completion"), "after_finish"),
    ("client", (), "client"),
)
# Legends explain what their table shows, and no more: by use, by class of held-out runs, by kind of origin.
USES = {
    FITTED: "fitted, the program was fitted on this experiment, so its errors are in sample",
    NEW: "new, the program was not fitted on this experiment",
    BEFORE: "before, only a program that it was fitted from was fitted on this experiment",
    PARTLY: "% fitted, on so much of it, so errors are partly in sample (of traces, --part test has the rest)",
}
ERROR_LEGEND = "error: (predicted - observed)/observed of the mean, in percent, so above 0 what was predicted too long"
INTERVALS = {"e2e": "E2E mean", "e2e_p99": "E2E p99", "ttft": "TTFT mean", "ttft_p99": "TTFT p99", "itl": "ITL mean"}
INTERVALS_LEGEND = """\
80 % intervals of a new measurement (--json has those of 95 % and of p90, too): by the errors on held-out runs, wider
where programs that fit equally well disagree"""
CLASSES = {
    INSIDE: "inside, those within the ranges of what their programs were fitted on",
    OUTSIDE: "outside, those beyond the ranges of what their programs were fitted on (after a fit on own runs, always)",
    SATURATED: "saturated, those near their capacity or beyond it",
    None: "-, none were held out",
}
QUEUES = "queues: the share of those programs under which requests spend over 5 % of the E2E in the queue"
QUEUES_GROW = ", so that latencies may depend on how long the load lasts, and errors on saturated runs count"
NO_INTERVALS = """\
No intervals: the shipped champion has some, and a run's champion after `{command}`, and programs fitted from these."""
PARTS_LEGEND = """\
Observed from request traces: queueing is arrival to queue; waiting is queued to first scheduled, which async scheduling
stamps one cycle early (prefill steps hold that cycle), and the gaps of preemptions; after the last step predicts
completion and the times per token; client is its E2E less the server's, of which nothing is predicted."""
SINGLES_LEGEND = """\
Requests of traces, one by one: mean and median absolute error in percent, Pearson's r of predicted and observed, and
the errors of the p50, p90 and p99 over requests. Below, by length in tokens: the errors of the means."""
FEW = 6  # experiments that have up to LINES lines each; where there are more, each has one
LINES = 3
TERMS_LEGEND = """\
mostly: the terms of the program on which the mean E2E depends most. At 50 % it grows by 0.5 % if the term grows by 1 %.
Longer steps mean more requests at once, so shares add up to more than 100 %, near capacity to much more."""
ORIGINS_LEGEND = "interval mostly from: shares of the squared scale of its interval (docs/validation.md)"
ORIGINS = {
    HELD_OUT: "held out: errors on held-out runs",
    PACE: "pace: steps 3 % shorter or longer",
    DISAGREEMENT: "a field, or a method without fields: what the programs that fit equally well disagree about, with "
    "how many of them differ in it from this one by more than 0.1 % of the E2E",
    CONSTANT: "constants: their standard errors, a share that adds to no other, because errors on held-out runs "
    "contain them",
}


def print_prediction(forecasts: Forecasts) -> None:
    """A row per experiment, with errors if anything was observed, then every warning once."""
    experiments = forecasts.experiments
    compared = any(e.summary.error_pct for e in experiments)
    recorded = any(e.fitted_share is not None for e in experiments)
    notes = [_uses_legend(experiments)] * recorded + [ERROR_LEGEND] * compared
    if notes:
        legend(*["limits"] * compared, also=". ".join(notes))
    show(_table(forecasts))
    if any(e.summary.intervals for e in experiments):
        note(_intervals_legend(experiments))
        show(_intervals_table(experiments))
    elif not all(e.empty for e in experiments):
        prose(NO_INTERVALS.format(command=command("validate", "RUN")))
    _print_depends(experiments)
    for e in experiments:
        if e.empty:
            prose(f"{e.id}: no request completes, for the reasons below", "bold")
    if any(e.observed_components for e in experiments):
        _print_parts(experiments)
    if any(e.singles for e in experiments):
        _print_singles(experiments)
    for line in mean_lines(forecasts):
        prose(line)
    say_once({e.id: e.warnings for e in experiments})


def _uses_legend(experiments: Sequence[Forecast]) -> str:
    shown = {PARTLY if e.use.endswith(PARTLY) else e.use for e in experiments}
    return "use: " + "; ".join(words for use, words in USES.items() if use in shown)


def _intervals_legend(experiments: Sequence[Forecast]) -> str:
    shown = {e.residual_class for e in experiments}
    by = "by: which held-out runs: " + "; ".join(words for name, words in CLASSES.items() if name in shown)
    grows = any(e.doubt and e.doubt.saturated for e in experiments)
    return f"{INTERVALS_LEGEND}. {by}. {QUEUES}{QUEUES_GROW * grows} (docs/validation.md)."


def mean_lines(forecasts: Forecasts) -> list[str]:
    """The mean absolute errors of the observed experiments: a line for those that the program was fitted on, one for
    those of which it was fitted on a part, one for those that it was fitted on before, and one for the others, which
    are never averaged together; one line where no record says which these are."""
    observed = [e.use for e in forecasts.experiments if e.summary.error_pct]
    partly = {name for name in observed if name.endswith(PARTLY)}
    by_use: tuple[tuple[str, Collection[str]], ...] = (
        (f"{FITTED}, in sample", [FITTED]), (f"{PARTLY}, partly in sample", partly),
        (f"{BEFORE}, not in this fit", [BEFORE]), (f"{NEW}, not fitted", [NEW]), ("", [UNKNOWN]),
    )  # fmt: skip
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
    means, others = list[str](), list[str]()
    for latency, (mean, *percentiles) in PRINTED.items():
        name = latency.upper()
        means += [f">{name} {mean}", *[f">{name} error"] * compared]
        others += [f">{name} {q}" for q in percentiles]
    heads = "|".join(["experiment", *["use"] * recorded, *means, *["limits"] * compared, *others])
    averaged = f", mean over arrival seeds {list(forecasts.seeds)}" if forecasts.drawn else ""
    title = f"Predictions of {forecasts.name} in ms{averaged}"
    return Table.of(title, heads, (_row(e, compared, recorded) for e in forecasts.experiments))


def _intervals_table(experiments: Sequence[Forecast]) -> Table:
    heads = ["experiment", "by", *(f">{title}" for title in INTERVALS.values()), ">queues"]
    rows = []
    for e in experiments:
        intervals = (e.summary.intervals.get(name) for name in INTERVALS)
        cells = ("-" if b is None else " to ".join(_three_digits(x) for x in b[LEVELS[0]]) for b in intervals)
        share = f"{100.0 * e.doubt.saturated:.0f} %" if e.doubt else "-"
        rows.append([e.id, e.residual_class or "-", *cells, share])
    return Table.of("80 % intervals in ms", "|".join(heads), rows)


def _three_digits(ms: float) -> str:
    return f"{ms:,.{max(0, 2 - math.floor(math.log10(ms)))}f}" if ms > 0.0 else "0"


def _row(e: Forecast, compared: bool, recorded: bool) -> Row:
    error_pct = e.summary.error_pct or {}
    errors_of_means = {latency: error_pct.get(f"{latency}_ms", {}).get("mean") for latency in PRINTED}
    cells, others = [e.id, *([e.use] if recorded else [])], list[str]()
    for latency, quantities in PRINTED.items():
        statistic = getattr(e.summary.predicted, f"{latency}_ms", None)
        mean, *percentiles = (number(getattr(statistic, q, None), 2 if latency == "itl" else 1, signed=False)
                              for q in quantities)  # fmt: skip
        cells += [mean, *([number(errors_of_means[latency])] if compared else [])]
        others += percentiles
    limits = "nothing completes" if e.empty else passes(errors_of_means)
    return row(*cells, *([limits] if compared else []), *others)


def _print_parts(experiments: Sequence[Forecast]) -> None:
    """Predicted and observed parts of the E2E, for the experiments that have observed ones."""
    rows = []
    for e in experiments:
        observed = e.observed_components
        if observed is None:
            continue
        cells = []
        for _, ours, theirs in E2E_PARTS:
            predicted = sum(e.components[name] for name in ours) if ours else None
            cells.append(f"{number(predicted, 1, signed=False)} / {number(getattr(observed, theirs), 1, signed=False)}")
        rows.append([e.id, *cells, "-" if observed.requests is None else str(observed.requests)])
    heads = "|".join(["experiment", *(f">{name}" for name, _, _ in E2E_PARTS), ">requests"])
    note(PARTS_LEGEND)
    show(Table.of("Parts of the mean E2E in ms, predicted / observed", heads, rows))


def _print_depends(experiments: Sequence[Forecast]) -> None:
    """Print the largest shares: up to LINES for each of FEW experiments, one for each of more."""
    if not any(e.depends_on for e in experiments):
        return
    doubted = any(e.origins for e in experiments)
    few = len(experiments) <= FEW
    note(f"{TERMS_LEGEND} {_origins_legend(experiments, few)}" if doubted else TERMS_LEGEND)
    title = f"What the mean E2E depends on{'' if few else ' most (--json has more)'}"
    rows = [part for e in experiments for part in (section(_largest_shares(e)) if few else [_largest_share(e)])]
    if doubted:
        show(Table.of(title, f"experiment|~mostly|{'~' if few else ''}interval mostly from", rows))
    else:
        show(Table.of(title, "experiment|~mostly", (replace(part, cells=part.cells[:2]) for part in rows)))


def _origins_legend(experiments: Sequence[Forecast], few: bool) -> str:
    shown = {o.kind for e in experiments for o in (e.origins[:LINES] if few else _adding(e)[:1])}
    return f"{ORIGINS_LEGEND}. {'; '.join(words for kind, words in ORIGINS.items() if kind in shown)}."


def _largest_shares(e: Forecast) -> list[Row]:
    terms, origins = map(_term, e.depends_on[:LINES]), map(_origin, e.origins[:LINES])
    first, *more = list(zip_longest(terms, origins, fillvalue="")) or [("-", "-")]
    return [row(e.id, *first), *(row("", *cells) for cells in more)]


def _largest_share(e: Forecast) -> Row:
    """One row; of the interval only what adds up, as there is no room for the names of constants."""
    origins = _adding(e)
    return row(e.id, _term(e.depends_on[0]) if e.depends_on else "-", _origin(origins[0]) if origins else "-")


def _adding(e: Forecast) -> list[Origin]:
    """Where its interval comes from, without the constants, whose share adds to no other."""
    return [o for o in e.origins if o.kind != CONSTANT]


def _term(share: TermShare) -> str:
    return f"{100.0 * share.share:3.0f} % {share.term.text}"


def _origin(origin: Origin) -> str:
    return f"{100.0 * origin.share:3.0f} % {what(origin)}"


def _print_singles(forecasts: Sequence[Forecast]) -> None:
    """Two tables of the experiments that have latencies of single requests."""
    shown = [f for f in forecasts if f.singles]
    prose(SINGLES_LEGEND)
    heads = "experiment|>requests|latency|>mean|>median|>r|>p50|>p90|>p99"
    show(Table.of("Single requests: errors in percent", heads, [r for f in shown for r in section(_by_latency(f))]))
    heads = "experiment|>prompt|>answer|>requests|>E2E|>TTFT|>ITL"
    by_length = [r for f in shown for r in section(_by_length(f))]
    show(Table.of("By length: errors of the means in percent", heads, by_length))


def _by_latency(f: Forecast) -> list[Row]:
    rows: list[Row] = []
    for name, single in f.singles.latencies.items() if f.singles else ():
        about = ("", "") if rows else (f.id, f"{f.singles.requests:,}" if f.singles else "")
        sizes = number(single.mean_abs_pct, 1, signed=False), number(single.median_abs_pct, 1, signed=False)
        figures = *sizes, number(single.r, 3, signed=False), *(number(x) for x in single.quantiles_pct.values())
        rows.append(Row((*about, name.removesuffix("_ms").upper(), *figures)))
    return rows


def _by_length(f: Forecast) -> list[Row]:
    rows: list[Row] = []
    for b in f.singles.bins if f.singles else ():
        lengths = (f"{low:,} to {high:,}" if low < high else f"{low:,}" for low, high in (b.prompt, b.answer))
        errors = (number(b.error_pct[name]) for name in LATENCIES)
        rows.append(Row(("" if rows else f.id, *lengths, f"{b.requests:,}", *errors)))
    return rows
