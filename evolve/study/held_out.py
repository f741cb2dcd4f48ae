"""Signed errors of a program on held-out experiments: means and percentiles, of the run, of its later stages, or of its
last stage alone."""

from __future__ import annotations

from collections.abc import Sequence

from evaluator.metrics import error_pct, mean
from evaluator.score import predictions, score_set
from simulator.experiment.experiment import Experiment, Observation, Observed
from simulator.language.ir import Program

# figure -> (latency, statistic); ITL is observed in its mean only
STATISTICS = {
    "e2e": ("e2e_ms", "mean"), "ttft": ("ttft_ms", "mean"), "itl": ("itl_ms", "mean"),
    "e2e_p90": ("e2e_ms", "p90"), "e2e_p99": ("e2e_ms", "p99"),
    "ttft_p90": ("ttft_ms", "p90"), "ttft_p99": ("ttft_ms", "p99"),
}  # fmt: skip
LATER = "_later"  # of the stages after the first, where cold starts are over: their average
FIGURES = (*STATISTICS, *(name + LATER for name in STATISTICS))
Figures = dict[str, float | None]


def held_out_errors(program: Program, held: Sequence[Experiment], last_stage: bool) -> list[Figures]:
    """Errors in percent, (predicted - observed)/observed, of every figure of FIGURES and every experiment, predictions
    averaged over the arrival seeds of reports; None where nothing was observed, or no request completes.

    `last_stage`: the whole run is replayed, and only its last stage compared.
    """
    out = []
    for made, e in zip(predictions(program, score_set(held)), held, strict=True):
        seen = e.observed or Observed(None, ())
        if last_stage:
            out.append(_errors([made.predicted.stages[-1]], list(seen.stages[-1:])) | dict.fromkeys(FIGURES[7:]))
            continue
        whole = _errors([s for s in (made.predicted.summary,) if s], [s for s in (seen.summary,) if s])
        later = _errors(made.predicted.stages[1:], seen.stages[1:])
        out.append(whole | {name + LATER: value for name, value in later.items()})
    return out


def _errors(predicted: Sequence[Observation], observed: Sequence[Observation]) -> Figures:
    """Of each statistic averaged over these sets of figures; None where there are none, or one is missing."""

    def average(sets: Sequence[Observation], latency: str, statistic: str) -> float | None:
        return mean([getattr(getattr(o, latency), statistic) for o in sets]) if sets else None

    return {
        name: error_pct(average(predicted, *where), average(observed, *where)) for name, where in STATISTICS.items()
    }
