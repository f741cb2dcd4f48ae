"""Retraining: how many runs the constants need, what a refit costs, and how well the runs determine them."""

from __future__ import annotations

from evolve.calibrate.learning import DRAWS, LearningCurve, learning_curve
from evolve.output.columns import figures, integers, words, wrapped
from evolve.report.dimension import CARE, GOOD, UNTESTED, Dimension, Exhibit
from evolve.report.evidence import Evidence
from simulator.common.text import counted

NAME = "retraining"
NEAR = 1.1  # times the error that a fit to all runs reaches
MOST_RUNS, MOST_S = 8, 60.0
RULE = (
    f"good: {MOST_RUNS} runs or fewer bring E2E and TTFT errors to {NEAR:g} times those of all runs; a refit takes "
    f"{MOST_S:g} CPU seconds or less; with care: otherwise; untested: fewer than two runs can be fitted"
)


def retraining(evidence: Evidence) -> Dimension:
    title = "Retraining"
    if len(evidence.subject.clean) < 2:
        text = "There are fewer than two clean runs, so what a refit needs cannot be measured."
        return Dimension.of(NAME, title, (UNTESTED, text), RULE, ())
    curve = learning_curve(evidence.subject.source, evidence.subject.few, evidence.pool)
    needed = {name: runs_needed(curve, name) for name in ("e2e", "ttft") if curve.points[-1].mean[name] is not None}
    cpu_s = evidence.refit.cpu_s
    of_all = ", ".join(f"{curve.points[-1].mean[name]:.1f} % {name.upper()}" for name in needed)
    counts = " and ".join(f"{_runs(count, curve)} for {name.upper()}" for name, count in needed.items())
    sentence = (
        f"To come within {NEAR:g} times of the errors on runs left out that all runs reach ({of_all}) takes {counts}. "
        f"A refit takes {cpu_s:.1f} CPU seconds."
    )
    enough = all(count is not None and count <= MOST_RUNS for count in needed.values())
    level = GOOD if enough and cpu_s <= MOST_S else CARE
    caveats = (
        "The form stays the same in all of these fits. If it was chosen with these runs in sight, its constants need "
        "this many runs, and its search may need more.",
    )
    exhibits = (_curve(evidence, curve), _refit(evidence), _constants(evidence))
    return Dimension.of(NAME, title, (level, sentence), RULE, exhibits, caveats)


def runs_needed(curve: LearningCurve, latency: str) -> int | None:
    """The fewest fitted runs from which on mean errors of left-out runs are within NEAR times those of all runs.

    None if only all of them reach it. `latency`: one that was observed.
    """
    last = curve.points[-1].mean[latency]
    assert last is not None
    enough = None
    for point in reversed(curve.points[:-1]):
        error = point.mean[latency]
        if error is None or error > NEAR * last:
            break
        enough = point.runs
    return enough


def _runs(count: int | None, curve: LearningCurve) -> str:
    every = str(curve.least) if curve.least == curve.most else f"{curve.least} to {curve.most}"
    return counted(count, "run") if count else f"all of them ({every})"


def _curve(evidence: Evidence, curve: LearningCurve) -> Exhibit:
    rows = []
    for p in curve.points:
        runs = f"all ({curve.least} to {curve.most})" if p.runs is None else str(p.runs)
        rows.append([runs, p.fits, p.median["e2e"], p.mean["e2e"], p.e2e_p90, p.mean["ttft"], p.mean["itl"]])
    columns = [words("fitted runs"), integers("fits"), figures(".2f", "E2E median", "E2E mean")]
    columns += [figures(".1f", "E2E p90", "TTFT mean"), figures(".2f", "ITL mean")]
    title = f"Learning curve: absolute errors in percent on runs left out of the fit, each {curve.left_out} in turn"
    again = evidence.subject.by("fit", "--learning-curve", dimension=NAME)
    note = f"{DRAWS} random choices of as many runs for each {curve.left_out}, of one run of each cell and workload."
    return Exhibit.of(title, columns, rows, again, note=note)


def _refit(evidence: Evidence) -> Exhibit:
    refit = evidence.refit
    rows = [
        ("CPU seconds of `evolve fit`, with what its intervals need", refit.cpu_s),
        ("seconds of the fit alone", refit.fit_s),
        ("constants fitted", refit.freedom.constants),
        ("constants that the runs decide", refit.freedom.effective),
        ("observed means", refit.freedom.observations),
    ]
    again = evidence.subject.by("fit", "--json", dimension=NAME)
    return Exhibit.of("A refit to all clean runs", [wrapped("what"), figures(",.3g", "figure")], rows, again)


def _constants(evidence: Evidence) -> Exhibit:
    rows = [
        (f"{c.method}.{c.name}", c.before, c.after, c.standard_error, c.data_share, c.identified)
        for c in evidence.refit.constants
    ]
    columns = [words("constant"), figures(".6g", "before", "after"), figures(".2g", "standard error")]
    columns += [figures(".2f", "decided by the runs"), words("identified")]
    note = "decided: the fraction of information on the constant contributed by the runs, not by the prior."
    again = evidence.subject.by("fit", "--json", dimension=NAME)
    return Exhibit.of("Constants before and after the refit", columns, rows, again, note=note)
