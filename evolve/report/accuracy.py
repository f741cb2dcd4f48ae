"""Accuracy: errors in sample and held out, apart; what simple models reach; how far intervals and orders hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from evaluator import baselines
from evaluator.intervals import STATISTICS
from evaluator.metrics import mean_abs, present
from evaluator.score import MEANS
from evolve.output.columns import column, figures, integers, row_class, words, wrapped
from evolve.output.terminal import command
from evolve.plan.forecast import Forecast
from evolve.report.dimension import CARE, GOOD, MEAN_ERRORS, POOR, UNTESTED, Dimension, Exhibit, percent
from evolve.report.evidence import Evidence
from evolve.report.held_out import HeldOutRuns, figures_of, means_of, over_the_limits
from evolve.summary.run import median_text
from evolve.validate.held_out_views import COVERAGE, COVERAGE_LEGEND, HELD, coverage_rows
from evolve.validate.ranks import rankings
from simulator.common.text import counted

NAME = "accuracy"
RULE = (
    "good: mean absolute errors held out, on new runs and in sample are within 10 % (E2E) and 15 % (TTFT, ITL); with "
    "care: so is that of E2E, or it was fitted again after the validation; poor: that of E2E is not; untested: never "
    "validated"
)
RANKED = ("e2e", "e2e_p99")


@row_class
class SampleErrors:
    """The mean absolute errors in percent over a sample of runs; None where nothing was measured."""

    sample: str = column("the runs", head="mean errors in percent", wraps=True)
    e2e_pct: float | None = column("mean absolute error of the mean E2E", head="E2E", format=".1f")
    e2e_runs: int = column("runs whose E2E was measured", head="of runs", format=",d")
    ttft_pct: float | None = column("the same of TTFT", head="TTFT", format=".1f")
    itl_pct: float | None = column("the same of ITL", head="ITL", format=".1f")
    runs: int = column("runs with any latency", head="of runs", format=",d")
    held_out: bool = False

    def of(self, latency: str) -> float | None:
        """The mean error of e2e, ttft or itl."""
        return {"e2e": self.e2e_pct, "ttft": self.ttft_pct, "itl": self.itl_pct}[latency]

    def beyond(self) -> list[str]:
        return over_the_limits({name: self.of(name) for name in MEANS})


def accuracy(evidence: Evidence) -> Dimension:
    makers = _predicted, _held_out, _baselines, _baselines_held_out, _intervals, _ranks
    caveats = [
        "In-sample errors are on runs that the constants were fitted on. They say how well the form can follow the "
        "data, not how far off a new run will be."
    ]
    if refitted(evidence):
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
    return replace(brief(evidence), exhibits=tuple(make(evidence) for make in makers), caveats=tuple(caveats))


def brief(evidence: Evidence) -> Dimension:
    """The dimension without its tables."""
    errors, fitted_again = sample_errors(evidence), refitted(evidence)
    held = [sample for sample in errors if sample.held_out]
    known = [f"{percent(s.e2e_pct)} {s.sample} ({counted(s.e2e_runs, 'run')})" for s in errors if s.e2e_runs]
    beyond = [f"{name.upper()} {s.sample} ({percent(s.of(name))})" for s in errors for name in s.beyond()]
    sentences = [f"The mean E2E error is {', '.join(known)}." if known else "No E2E was observed."]
    if not held:
        never = command("validate", evidence.subject.path or "RUN")
        sentences.insert(0, f"Held-out errors are not known: never validated: run `{never}`.")
    elif fitted_again:
        sentences.insert(0, "Not validated since it was fitted again.")
    if beyond:
        sentences.append(f"Beyond the limits: {', '.join(beyond)}.")
    level = UNTESTED if not held else CARE if beyond or fitted_again else GOOD
    if any("e2e" in sample.beyond() for sample in errors):
        level = POOR
    return Dimension.of(NAME, "Accuracy", (level, " ".join(sentences)), RULE)


def sample_errors(evidence: Evidence) -> tuple[SampleErrors, ...]:
    """The program's errors held out, by what folds leave out, and on the clean runs, in sample and new ones apart."""
    found = []
    for kind in kinds_of(evidence.held_out):
        rows = [r for r in evidence.held_out if r.kind == kind]
        errors = {name: [r.errors[name] for r in rows] for name in MEANS}
        found.append(_sample(f"held out, without {left_out(kind)}", errors, True))
    for sample, runs in evidence.samples.items():
        found.append(_sample(sample, {name: evidence.errors_of(runs, name) for name in MEANS}, False))
    return tuple(found)


def _sample(sample: str, errors: Mapping[str, Sequence[float | None]], held_out: bool) -> SampleErrors:
    e2e, ttft, itl = (mean_abs(errors[name]) for name in MEANS)
    runs = sum(any(x is not None for x in of_run) for of_run in zip(*errors.values(), strict=True))
    return SampleErrors(sample, e2e, len(present(errors["e2e"])), ttft, itl, runs, held_out)


def refitted(evidence: Evidence) -> bool:
    """True if the program was fitted again after its validation."""
    return bool(evidence.subject.trust and evidence.subject.trust.data)


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


def _predicted(evidence: Evidence) -> Exhibit:
    rows = list[list[object]]()
    for sample, runs in evidence.samples.items():
        forecasts = [evidence.forecasts[e.id] for e in runs]
        for name in MEANS:
            f = figures_of(list(zip(runs, evidence.errors_of(runs, name), strict=True)))
            p99 = mean_abs([_of(forecast, f"{name}_ms", "p99") for forecast in forecasts])
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
    title = "Baselines of one set of constants or none on the clean runs, in sample where fitted: errors in percent"
    return Exhibit.of(title, columns, rows, evidence.subject.again(NAME))


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
    samples = {
        sample: [
            HeldOutRuns(sample, "", e, False, {n: _of(evidence.forecasts[e.id], *at) for n, at in STATISTICS.items()})
            for e in runs
        ]
        for sample, runs in evidence.samples.items()
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
