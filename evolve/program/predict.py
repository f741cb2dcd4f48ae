"""`evolve predict`: what a program predicts for experiments, what was observed there, and what to beware of."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from evaluator.experiments import data_hash
from evaluator.intervals import LEVELS, Disagreement, able, disagreements, scales
from evaluator.known import datasheet
from evaluator.score import Prediction, errors, predictions, score_set, summarise
from evaluator.sensitivity import (
    CONSTANT,
    ConstantError,
    Dispute,
    TermShare,
    constant_errors,
    disputes,
    origins,
    term_shares,
    traffic_of,
)
from evolve.program.axes import setting_of
from evolve.program.beware import about, contradicted, impossible, too_fast, too_slow, warnings
from evolve.program.depends import print_depends
from evolve.program.forecast import Comparison, Forecast, Forecasts
from evolve.program.prediction_intervals import class_of, prediction_intervals, too_narrow
from evolve.program.singles import print_singles
from evolve.report.printing import note, prose, say_once, show
from evolve.report.table import Row, Table, number, passes, row
from evolve.report.terms import legend
from evolve.run.program import Source
from evolve.run.records import Record
from evolve.run.trust import Trust, trust_of
from evolve.run.use import BEFORE, FITTED, NEW, PARTLY, UNKNOWN, fitted_by_predecessor, fitted_share, saw
from evolve.terminal import command
from simulator.experiment.experiment import CLEAN, Experiment
from simulator.experiment.workload import is_recorded

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
FITTED_LEGEND = """\
use: fitted, the program was fitted on this experiment, so its errors are in sample; new, it was not; before, only a
program that it was fitted from was; % fitted, on so much of it, so its errors are partly in sample (of a trace, --part
test has those of the rest)"""
ERROR_LEGEND = "error: of the mean, percent of what was observed"
INTERVALS = {"e2e": "E2E mean", "e2e_p99": "E2E p99", "ttft": "TTFT mean", "ttft_p99": "TTFT p99", "itl": "ITL mean"}
INTERVALS_LEGEND = """\
80 % intervals of a new measurement (--json has those of 95 % and of p90, too): by the errors on held-out runs, wider
where programs that fit equally well disagree. by: which held-out runs, inside or outside the ranges of what was fitted,
or saturated ones; after a fit on own runs, outside; -: none were held out. queues: the share of those programs under
which requests spend over 5 % of the E2E in the queue, so that latencies may depend on how long the load lasts; if there
are any, errors on saturated runs count (docs/validation.md)."""
NO_INTERVALS = """\
No intervals: the shipped champion has some, and a run's champion after `{command}`, and programs fitted from these."""
PARTS_LEGEND = """\
Observed from request traces: queueing is arrival to queue; waiting is queued to first scheduled, which async scheduling
stamps one cycle early (prefill steps hold that cycle), and the gaps of preemptions; after the last step predicts
completion and the times per token; client is its E2E less the server's, of which nothing is predicted."""


def predict(
    source: Source, experiments: Sequence[Experiment], seeds: Sequence[int], wholes: Sequence[Experiment] = ()
) -> Forecasts:
    """Replay every experiment under every arrival seed. wholes: the experiments that these are parts of, if they are
    parts: one that was fitted was fitted with all its parts."""
    program = source.complete
    ours = predictions(program, score_set(experiments, seeds), of_requests=True)
    bounds = predictions(datasheet(), score_set(experiments, seeds[:1]))
    total = summarise([errors(p, e) for p, e in zip(ours, experiments, strict=True)])
    of_program = about(source, experiments)
    traffic = traffic_of(experiments, seeds[0])
    shares = term_shares(program, traffic)
    forecasts = [
        _forecast(p, bound, e, source.record, of_program, of_terms, saw(source.record, whole) is True)
        for p, bound, e, of_terms, whole in zip(ours, bounds, experiments, shares, wholes or experiments, strict=True)
    ]
    if (trust := trust_of(source)) and source.record:
        doubts = disagreements(program, trust.programs, experiments, seeds[0])
        disputed = disputes(program, able(trust.programs, experiments), doubts, traffic)
        constants = (source.record.constants or {}).items()
        known = {name: (c.standard_error, c.correlated) for name, c in constants if c.standard_error is not None}
        known_errors = constant_errors(program, known, traffic)
        forecasts = [
            _with_intervals(forecast, source.record, e, p, trust, doubt, parts, of_constants)
            for forecast, e, p, doubt, parts, of_constants in zip(
                forecasts, experiments, ours, doubts, disputed, known_errors, strict=True
            )
        ]
    return Forecasts(
        source.name,
        program,
        data_hash(experiments),
        tuple(seeds),
        tuple(forecasts),
        {"e2e": total.e2e, "ttft": total.ttft, "itl": total.itl},
        drawn=any(not is_recorded(e.workload) for e in experiments),
    )


def _forecast(
    prediction: Prediction,
    bound: Prediction,
    experiment: Experiment,
    record: Record | None,
    of_program: Sequence[str],
    shares: Sequence[TermShare],
    whole_fitted: bool,
) -> Forecast:
    observed = experiment.observed
    stages = observed.stages if observed and observed.stages else (None,) * len(experiment.workload.stages)
    return Forecast(
        id=experiment.id,
        model=experiment.model,
        setting=setting_of(experiment),
        fitted_share=1.0 if whole_fitted else fitted_share(record, experiment),
        fitted_by_predecessor=fitted_by_predecessor(record, experiment),
        summary=Comparison(prediction.predicted.summary, observed.summary if observed else None),
        components=prediction.components,
        observed_components=experiment.components,
        stages=tuple(Comparison(p, o) for p, o in zip(prediction.predicted.stages, stages, strict=True)),
        warnings=(
            *impossible(prediction, bound),
            *too_fast(experiment, bound),
            *too_slow(experiment, bound),
            *warnings(record, experiment, prediction),
            *of_program,
        ),
        depends_on=tuple(shares),
        singles=prediction.singles,
    )


def _with_intervals(
    forecast: Forecast, record: Record, e: Experiment, prediction: Prediction, trust: Trust, doubt: Disagreement,
    disputed: Sequence[Dispute], constants: ConstantError,
) -> Forecast:  # fmt: skip
    """The forecast with the intervals that held-out errors and the disagreement of near-optimal programs give it."""
    if forecast.summary.predicted is None:
        return forecast
    which = class_of(trust, record, e, prediction, doubt)
    by_figure = scales(trust.residuals(which))
    intervals = prediction_intervals(prediction, doubt, by_figure)
    lines = list(forecast.warnings)
    if not forecast.fitted_share and e.quality == CLEAN:  # what is advised needs a clean run
        lines += contradicted(forecast.summary.observed, intervals)
    if not by_figure:
        lines.append(f"no interval: no held-out run of its kind ({which}) is known: validate with all kinds of folds")
    if intervals:
        lines += too_narrow(trust, record, e, prediction, which)
    summary = replace(forecast.summary, intervals=intervals)
    causes = tuple(origins(by_figure["e2e"], doubt, disputed, constants)) if "e2e" in intervals else ()
    lines += [
        f"the standard errors of its constants, mostly {o.constant}, are larger than these intervals, which are too "
        "narrow: look for fitted runs that contradict each other, or measure more"
        for o in causes
        if o.kind == CONSTANT and o.share > 1.0
    ]
    return replace(forecast, summary=summary, doubt=doubt, residual_class=which, warnings=tuple(lines), origins=causes)


def print_prediction(forecasts: Forecasts) -> None:
    """A row per experiment, with errors if anything was observed, then every warning once."""
    experiments = forecasts.experiments
    compared = any(e.summary.error_pct for e in experiments)
    recorded = any(e.fitted_share is not None for e in experiments)
    notes = [FITTED_LEGEND] * recorded + [ERROR_LEGEND] * compared
    if notes:
        legend(*["limits"] * compared, also=". ".join(notes))
    show(_table(forecasts))
    if any(e.summary.intervals for e in experiments):
        note(INTERVALS_LEGEND)
        show(_intervals_table(experiments))
    elif not all(e.empty for e in experiments):
        prose(NO_INTERVALS.format(command=command("validate", "RUN")))
    print_depends(experiments)
    for e in experiments:
        if e.empty:
            prose(f"{e.id}: no request completes, for the reasons below", "bold")
    if any(e.observed_components for e in experiments):
        _print_parts(experiments)
    if any(e.singles for e in experiments):
        print_singles(experiments)
    for line in mean_lines(forecasts):
        prose(line)
    say_once({e.id: e.warnings for e in experiments})


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
    means = [f">{name} mean" + f"|>{name} error" * compared for name in ("E2E", "TTFT", "ITL")]
    others = [f">{name} {q}" for name in ("E2E", "TTFT") for q in ("p90", "p99")]
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
