"""`evolve predict`: the predictions of a program for experiments, the observations, and warnings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from evaluator.acceptance import with_acceptance
from evaluator.baselines import datasheet
from evaluator.intervals import LEVELS, Disagreement, able, disagreements, figure_of, scales, waiting_share
from evaluator.metrics import WAITING
from evaluator.score import MEANS, Prediction, errors, predictions, score_set, summarise
from evaluator.sensitivity import ConstantError, Dispute, TermShare, disputes, origins, term_shares, traffic_of
from evolve.plan.axes import setting_of
from evolve.plan.deviation import MeasuredStage, deviation
from evolve.plan.forecast import Forecast, Forecasts, ObservedErrors
from evolve.plan.prediction_intervals import (
    class_of,
    errors_of_constants,
    exceeded,
    prediction_intervals,
    too_narrow,
    widened,
)
from evolve.plan.warnings import about, contradicted, impossible, warnings
from evolve.run.measurements import too_fast, too_slow
from evolve.run.program import Source
from evolve.run.records import Record
from evolve.run.trust import Trust, trust_of
from evolve.run.use import fitted_by_predecessor, fitted_share, saw
from simulator.serving.digests import data_hash
from simulator.serving.experiment import Experiment
from simulator.serving.observations import CLEAN
from simulator.serving.workload import is_recorded


def predict(
    source: Source, experiments: Sequence[Experiment], seeds: Sequence[int], wholes: Sequence[Experiment] = ()
) -> Forecasts:
    """Replay every experiment under every arrival seed. wholes: the experiments that these are parts of, if they are
    parts: one that was fitted was fitted with all its parts."""
    program = source.complete
    experiments = [with_acceptance(program, e, seeds) for e in experiments]
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
        known_errors = errors_of_constants(program, source.record, traffic)
        forecasts = [
            _with_intervals(forecast, source, source.record, e, p, trust, doubt, parts, of_constants)
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
        tuple(of_program),
        deviation=deviation([*chain(*map(_measured, forecasts, experiments, ours))]),
        drawn=any(not is_recorded(e.workload) for e in experiments),
    )


def _measured(f: Forecast, e: Experiment, prediction: Prediction) -> Iterator[MeasuredStage]:
    """The measured stages of a clean run that the program was not fitted on.

    None where a queue may grow, because latencies then depend on how long the load lasts.
    """
    if f.fitted_share or e.quality != CLEAN or waiting_share(prediction) > WAITING:
        return
    run = f.summary.observed
    bands = {n: bands.at[LEVELS[0]] for n, bands in f.summary.intervals.items() if n in MEANS and bands.calibrated}
    seen = {n: figure_of(run, n) for n in bands}
    inside = {n for n, x in seen.items() if x is None or bands[n][0] <= x <= bands[n][1]}
    stages = f.stages if any(s.observed for s in f.stages) else (f.summary,)
    for stage, compared in zip(e.workload.stages, stages, strict=False):
        errors = {n: (compared.error_pct or {}).get(f"{n}_ms", {}).get("mean") for n in MEANS}
        known = {n: -math.log1p(x / 100.0) for n, x in errors.items() if x is not None and x > -100.0}
        if known:
            yield MeasuredStage(e, stage.level, known, frozenset(seen) - inside if bands else None)


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
        summary=ObservedErrors(prediction.predicted.summary, observed.summary if observed else None),
        components=prediction.components,
        observed_components=experiment.components,
        stages=tuple(ObservedErrors(p, o) for p, o in zip(prediction.predicted.stages, stages, strict=True)),
        warnings=(
            *impossible(prediction, bound),
            *too_fast(experiment, bound),
            *too_slow(experiment, bound),
            *warnings(record, experiment, prediction),
            *of_program,
        ),
        depends_on=tuple(shares),
        singles=prediction.singles,
        served=prediction.served,
    )


def _with_intervals(
    forecast: Forecast,
    source: Source,
    record: Record,
    e: Experiment,
    prediction: Prediction,
    trust: Trust,
    doubt: Disagreement,
    disputed: Sequence[Dispute],
    constants: ConstantError,
) -> Forecast:
    """The forecast with the intervals that held-out errors and the disagreement of near-optimal programs give it."""
    if forecast.summary.predicted is None:
        return forecast
    if e.pools:
        return replace(forecast, warnings=(*forecast.warnings, "no interval: no run of separate pools was measured"))
    which = class_of(trust, record, e, prediction, doubt)
    by_figure = scales(trust.residuals(which, e.workload.closed), e.workload.closed)
    wide = widened(record, e, source.complete, prediction, doubt)
    intervals = prediction_intervals(prediction, wide, by_figure)
    lines = list(forecast.warnings)
    if e.quality == CLEAN:  # what is advised needs a clean run
        lines += contradicted(forecast.summary.observed, intervals, e.id, bool(forecast.fitted_share))
    if not by_figure:
        lines.append(f"no interval: no held-out run of its kind ({which}) is known: validate with all kinds of folds")
    if intervals:
        lines += too_narrow(trust, record, e, prediction, which)
    summary = replace(forecast.summary, intervals=intervals)
    causes = tuple(origins(by_figure["e2e"], doubt, disputed, constants)) if "e2e" in intervals else ()
    lines += exceeded(causes)
    return replace(forecast, summary=summary, doubt=doubt, residual_class=which, warnings=tuple(lines), origins=causes)
