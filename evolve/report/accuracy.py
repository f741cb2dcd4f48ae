"""Accuracy: errors in sample and held out, apart; what simple models reach; how far intervals and orders hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from evaluator import baselines
from evaluator.intervals import STATISTICS
from evaluator.metrics import mean_abs, present
from evaluator.score import MEANS
from evolve.output.columns import figures, integers, words, wrapped
from evolve.output.terminal import command
from evolve.plan.forecast import Forecast
from evolve.report.dimension import CARE, GOOD, MEAN_ERRORS, POOR, UNTESTED, Dimension, Exhibit
from evolve.report.evidence import Evidence, of_means
from evolve.report.held_out import HeldOutRuns, figures_of, means_of, over_the_limits
from evolve.summary.run import median_text
from evolve.validate.held_out_views import COVERAGE, COVERAGE_LEGEND, HELD, coverage_rows
from evolve.validate.ranks import rankings
from simulator.common.text import counted

NAME = "accuracy"
RULE = (
    "good: mean absolute errors on held-out and on new runs are within 10 % (E2E) and 15 % (TTFT, ITL); with care: so "
    "is that of E2E, or it was fitted again after the validation; poor: that of E2E is not, or not even in sample; "
    "untested: never validated"
)
RANKED = ("e2e", "e2e_p99")
PER_RUN = baselines.BASELINES.keys() - baselines.SHARED  # with constants of each model or run
NEW = "on runs that it was not fitted on"
NEVER = "never validated: run `{}`"


def accuracy(evidence: Evidence) -> Dimension:
    makers = _predicted, _held_out, _baselines, _baselines_held_out, _intervals, _ranks
    caveats = [
        "In-sample errors are on runs that the constants were fitted on. They say how well the form can follow the "
        "data, not how far off a new run will be."
    ]
    if _refitted(evidence):
        if evidence.held_out:
            caveats.append(
                "Held-out errors evaluate the search that found the form, repeated without each fold's runs."
            )
        caveats.append(
            "The program was fitted again after the validation. So the held-out errors are those of the form before "
            "that fit, on the runs of that validation."
        )
    elif evidence.held_out:
        caveats.append(
            "Held-out errors are of the search that found the program, repeated without what each fold holds out. They "
            "say what to expect of such a search, not of this text, whose constants saw all of its runs."
        )
    exhibits = [make(evidence) for make in makers]
    return Dimension.of(NAME, "Accuracy", _verdict(evidence), RULE, exhibits, _brief(evidence), caveats)


def _verdict(evidence: Evidence) -> tuple[str, str]:
    rows = evidence.held_out
    far_off = any(over_the_limits({"e2e": mean_abs(of_means(of, "e2e"))}) for of in _samples(evidence).values())
    if not rows:
        never = f"Held-out errors are not known: {_never(evidence)}. {_in_words(evidence)}"
        return POOR if far_off else UNTESTED, never
    means = {kind: means_of(r for r in rows if r.kind == kind) for kind in kinds_of(rows)}
    failed = {kind: over_the_limits(of_kind) for kind, of_kind in means.items()}
    e2e = [value for of_kind in means.values() if (value := of_kind["e2e"]) is not None]
    spread = " to ".join(dict.fromkeys(f"{x:.1f}" for x in (min(e2e), max(e2e)))) + " %" if e2e else "unknown"
    refitted = _refitted(evidence)
    sentence = f"Held out, the mean E2E error is {spread}, by what is left out."
    if refitted:
        sentence = f"Not validated since it was fitted again: before that, the held-out mean E2E error was {spread}."
    sentence += f" {_in_words(evidence)}"
    of_new = {name: mean_abs(of_means(_samples(evidence).get(NEW, []), name)) for name in MEANS}
    where = [
        f"{name.upper()} without {left_out(kind)} ({means[kind][name]:.1f} %)"
        for kind, of in failed.items()
        for name in of
    ]
    where += [f"{name.upper()} {NEW} ({of_new[name]:.1f} %)" for name in over_the_limits(of_new)]
    if where:
        sentence += f" Beyond the limits: {', '.join(where)}."
    if far_off or any("e2e" in of for of in failed.values()):
        return POOR, sentence
    return CARE if where or refitted else GOOD, sentence


def _refitted(evidence: Evidence) -> bool:
    return bool(evidence.subject.trust and evidence.subject.trust.data)


def _never(evidence: Evidence) -> str:
    return NEVER.format(command("validate", evidence.subject.path or "RUN"))


def _in_words(evidence: Evidence) -> str:
    texts = []
    for sample, of_sample in _samples(evidence).items():
        known = present(of_means(of_sample, "e2e"))
        e2e = mean_abs(known)
        if e2e is not None:
            texts.append(f"{e2e:.1f} % {sample} ({counted(len(known), 'run')})")
    return f"The mean E2E error is {', '.join(texts)}." if texts else "No run was observed."


def _brief(evidence: Evidence) -> str:
    rows = [r for r in evidence.held_out if r.kind == "models"] or list(evidence.held_out)
    texts = []
    if rows:
        means = means_of(rows)
        worst = figures_of([(r.experiment, r.errors["e2e"]) for r in rows])
        if _refitted(evidence):
            texts.append(
                "It was not validated since it was fitted again; before that, on other runs, held-out mean "
                f"errors were {_three(means)}"
            )
        elif rows[0].kind == "models" and worst.worst is not None:
            texts.append(
                f"On models that it had not seen, mean errors are {_three(means)}; the worst run is off by "
                f"{worst.worst:+.1f} % E2E"
            )
        else:
            texts.append(f"Held out, mean errors are {_three(means)}")
    else:
        texts.append("No held-out error is known, because it was never validated")
    for sample, of_sample in _samples(evidence).items():
        texts.append(f"{sample} they are {_three({n: mean_abs(of_means(of_sample, n)) for n in MEANS})}")
    shared = {name: rows for name, rows in evidence.baselines.items() if name not in PER_RUN}
    whole = {name: rows for name, rows in shared.items() if len(rows) == len(evidence.subject.clean)}
    means_e2e = {name: mean_abs([r.e2e for r in rows]) for name, rows in whole.items()}
    best = min(((e2e, name) for name, e2e in means_e2e.items() if e2e is not None), default=None)
    if best:
        texts.append(
            f"the best baseline with one set of constants or none ({best[1]}) reaches {best[0]:.1f} % E2E on the "
            "same runs"
        )
    return f"{'; '.join(texts)}."


def _three(means: dict[str, float | None]) -> str:
    known = [f"{value:.1f} % {name.upper()}" for name in MEANS if (value := means[name]) is not None]
    return ", ".join(known) or "unknown"


def left_out(kind: str) -> str:
    """What a kind of fold leaves out, in words.

    >>> left_out("models"), left_out("stages")
    ('one model', 'the last load stage')
    """
    return "the last load stage" if kind == "stages" else HELD[kind].removeprefix("leave ").removesuffix(" out")


def kinds_of(rows: Sequence[HeldOutRuns]) -> list[str]:
    """The kinds of folds of these rows, in the usual order."""
    present = {row.kind for row in rows}
    return [kind for kind in HELD if kind in present]


def _samples(evidence: Evidence) -> dict[str, list[Forecast]]:
    """The forecasts of clean experiments, by whether the program was fitted on them."""
    clean = {e.id for e in evidence.subject.clean}
    of_clean = [f for f in evidence.forecasts.experiments if f.id in clean]
    unknown = "of which no record says whether it was fitted on them"
    if evidence.subject.source.record:
        unknown = "that it was fitted on in part"
    names = {True: "in sample", False: NEW, None: f"on runs {unknown}"}
    return {text: rows for fitted, text in names.items() if (rows := [f for f in of_clean if f.fitted is fitted])}


def _predicted(evidence: Evidence) -> Exhibit:
    rows = list[list[object]]()
    by_id = {e.id: e for e in evidence.subject.experiments}
    for sample, of_sample in _samples(evidence).items():
        for name in MEANS:
            f = figures_of([(by_id[x.id], e) for x, e in zip(of_sample, of_means(of_sample, name), strict=True)])
            p99 = mean_abs(of_means(of_sample, name, "p99"))
            rows.append([sample, name.upper(), f.runs, f.mean, f.median, f.worst, f.worst_in, p99])
            sample = ""
    columns = [wrapped("sample"), words("latency"), integers("runs"), figures(".2f", "mean", "median")]
    columns += [figures("+.1f", "worst"), words("worst run"), figures(".1f", "p99, mean")]
    title = "Errors of the program in percent: of a run's mean latency, and of its p99 latency"
    note = (
        "(predicted - observed)/observed, over arrival seeds 1 to 3; mean and median of absolute errors. "
        "Overloaded runs are under Workloads."
    )
    return Exhibit.of(title, columns, rows, evidence.subject.by("predict", "--json", dimension=NAME), note=note)


def _held_out(evidence: Evidence) -> Exhibit:
    rows = list[list[object]]()
    for kind in kinds_of(evidence.held_out):
        of_kind = [r for r in evidence.held_out if r.kind == kind]
        f = figures_of([(r.experiment, r.errors["e2e"]) for r in of_kind])
        low, high = f.interval or (None, None)
        others = means_of(of_kind, ("e2e_p99", "ttft", "itl", "ttft_p99")).values()
        rows.append([left_out(kind), f.runs, f.mean, low, high, f.median, f.worst, f.worst_in, *others])
    columns = [wrapped("left out"), integers("runs"), figures(".2f", "E2E mean"), figures(".1f", "from", "to")]
    columns += [figures(".2f", "median"), figures("+.1f", "worst"), words("worst run")]
    columns += [figures(".1f", "E2E p99", "TTFT", "ITL", "TTFT p99")]
    title = "Held-out errors in percent, by what each fold of the validation leaves out"
    note = (
        "Search, choice and fit are repeated in every fold without what it leaves out. from, to: 95 % bootstrap "
        "interval of the mean, whole models resampled."
    )
    return Exhibit.of(title, columns, rows, *evidence.subject.validating(NAME), note=note)


def _baselines(evidence: Evidence) -> Exhibit:
    rows = list[list[Any]]()
    for name, errors in evidence.baselines.items():
        means = [mean_abs([getattr(r, x) for r in errors]) for x in MEANS]
        worst = max((r.e2e for r in errors if r.e2e is not None), key=abs, default=None)
        constants = baselines.BASELINES[name].constants + median_text(r.e2e for r in errors)
        rows.append([name, constants, len(errors), *means, worst])
    rows.sort(key=lambda row: float("inf") if row[3] is None else row[3])
    columns = [words("baseline"), wrapped("constants"), integers("runs"), MEAN_ERRORS, figures("+.1f", "worst E2E")]
    title = "Baselines on the clean runs, in sample where constants are fitted: errors in percent"
    note = "Those with a set of constants per model or per experiment can predict no other."
    return Exhibit.of(title, columns, rows, evidence.subject.again(NAME), note=note)


def _baselines_held_out(evidence: Evidence) -> Exhibit:
    return Exhibit.of(
        "Baselines held out: fitted in the same folds, mean absolute errors in percent",
        [wrapped("left out"), words("baseline"), integers("runs"), MEAN_ERRORS],
        [(left_out(k.kind), k.name, k.over, k.e2e, k.ttft, k.itl) for k in evidence.baselines_held_out],
        *evidence.subject.validating(NAME),
    )


def _intervals(evidence: Evidence) -> Exhibit:
    rows = coverage_rows(evidence.subject.trust.coverage()) if evidence.subject.trust else []
    title = "How often the intervals of `evolve predict` cover what was measured"
    return Exhibit.of(title, COVERAGE, rows, evidence.subject.again(NAME), note=COVERAGE_LEGEND)


def _ranks(evidence: Evidence) -> Exhibit:
    columns = [wrapped("runs"), words("figure"), integers("count"), figures(".3f", "Kendall's tau")]
    columns.append(integers("pairs in the wrong order"))
    title = "How well predictions put runs in order"
    note = "Kendall's tau of predicted and observed mean and p99 of E2E is 1 for the same order."
    return Exhibit.of(title, columns, _ranked(evidence), evidence.subject.again(NAME), note=note)


def _ranked(evidence: Evidence) -> Iterator[list[object]]:
    by_id = {e.id: e for e in evidence.subject.experiments}
    samples = {
        sample: [
            HeldOutRuns(sample, "", by_id[f.id], False, {name: _of(f, *where) for name, where in STATISTICS.items()})
            for f in of_sample
        ]
        for sample, of_sample in _samples(evidence).items()
    }
    kinds = [kind for kind in kinds_of(evidence.held_out) if kind != "stages"]  # which are no runs
    held = {f"without {left_out(kind)}": [r for r in evidence.held_out if r.kind == kind] for kind in kinds}
    for label, rows in {**samples, **held}.items():
        for figure in RANKED:
            for ranking in rankings([r.compared for r in rows], label, "runs", figure):
                yield [label, figure.upper().replace("_", " "), ranking.count, ranking.tau, len(ranking.inversions)]


def _of(forecast: Forecast, latency: str, statistic: str) -> float | None:
    errors = forecast.summary.error_pct
    return errors[latency][statistic] if errors else None
