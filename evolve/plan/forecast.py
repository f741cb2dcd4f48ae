"""Forecasts: what a program predicts for experiments, next to what was observed there."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass, field

from evaluator.intervals import STATISTICS, Bands, Disagreement
from evaluator.metrics import LATENCIES, error_pct, mean_abs
from evaluator.requests import Singles
from evaluator.score import MEANS
from evaluator.sensitivity import HELD_OUT, PACE, Origin, TermShare
from evaluator.throughput import NOTHING, Served
from evolve import __version__
from evolve.plan.axes import Setting
from evolve.plan.deviation import Deviation
from evolve.run.use import FITTED, NEW, exactly, use
from simulator.common.json import JsonObject
from simulator.common.records import fields_to_json
from simulator.language.ir import Program
from simulator.language.key import key
from simulator.language.unparse import unparse
from simulator.serving.observations import QUANTITIES, Components, Observation

Intervals = Mapping[str, Bands]  # by figure of STATISTICS


@dataclass(frozen=True, slots=True)
class ObservedErrors:
    """The predicted figures of a run or of one of its stages, and the observed ones; None where there are none.

    intervals: of the predicted figures; empty where there are none.
    """

    predicted: Observation | None
    observed: Observation | None
    intervals: Intervals = field(default_factory=dict)

    @property
    def not_calibrated(self) -> tuple[str, ...]:
        """The figures whose intervals are not calibrated."""
        return tuple(name for name, bands in self.intervals.items() if not bands.calibrated)

    @property
    def error_pct(self) -> dict[str, dict[str, float | None]] | None:
        """Signed errors by latency and quantity in percent; None where nothing was observed."""
        if self.predicted is None or self.observed is None:
            return None
        pairs = {name: (getattr(self.predicted, name), getattr(self.observed, name)) for name in LATENCIES}
        return {
            name: {q: error_pct(getattr(p, q), getattr(o, q)) for q in QUANTITIES} for name, (p, o) in pairs.items()
        }

    def to_json(self) -> JsonObject:
        return {
            "predicted": _observation(self.predicted, self.intervals),
            "observed": _observation(self.observed),
            "error_pct": self.error_pct,
        }


def _observation(o: Observation | None, intervals: Intervals | None = None) -> JsonObject | None:
    if o is None:
        return None
    values: JsonObject = {name: {q: getattr(getattr(o, name), q) for q in QUANTITIES} for name in LATENCIES}
    for figure, bands in (intervals or {}).items():
        latency, statistic = STATISTICS[figure]
        values[latency] |= {f"{statistic}_{100 * level:.0f}": list(band) for level, band in bands.at.items()}
    return values | {"completed": o.completed, "failed": o.failed}


@dataclass(frozen=True, slots=True)
class Forecast:
    """The prediction for one experiment, next to its observation: latencies and parts of the mean E2E in ms.

    setting: the GPU, the limits of the engine, and the mean rate of the load. fitted_share: the share of this
    experiment that the program was fitted on; None without a record. fitted_by_predecessor: True if a program that it
    was fitted from was fitted on it.
    doubt: how far near-optimal programs disagree, and residual_class: that of the held-out runs whose errors make the
    intervals (evolve.run.trust); None where none were kept. depends_on: the terms on which the mean E2E depends most;
    origins: where its interval comes from; the largest share first. singles: the errors of single requests, of a trace
    that has their latencies. served: requests and tokens per second.
    """

    id: str
    model: str
    setting: Setting
    fitted_share: float | None
    summary: ObservedErrors
    components: Mapping[str, float]
    observed_components: Components | None
    stages: tuple[ObservedErrors, ...]
    warnings: tuple[str, ...]
    depends_on: tuple[TermShare, ...]
    fitted_by_predecessor: bool = False
    doubt: Disagreement | None = None
    residual_class: str | None = None
    origins: tuple[Origin, ...] = ()
    singles: Singles | None = None
    served: Served = NOTHING

    @property
    def fitted(self) -> bool | None:
        """True if the program was fitted on this experiment; None if on a part of it, or if that is not known."""
        return exactly(self.fitted_share)

    @property
    def use(self) -> str:
        """The use that the program made of this experiment, as tables name it."""
        return use(self.fitted_share, self.fitted_by_predecessor)

    @property
    def empty(self) -> bool:
        """True if no request completes, so that there are no latencies."""
        predicted = self.summary.predicted
        return predicted is None or not predicted.completed

    def to_json(self) -> JsonObject:
        return {
            "id": self.id,
            "model": self.model,
            "rate_rps": self.setting.rate,
            "concurrency": self.setting.concurrency,
            **asdict(self.served),
            **self.setting.deployed,
            "fitted": self.fitted,
            "fitted_share": self.fitted_share,
            "fitted_before": self.fitted_by_predecessor,
            **self.summary.to_json(),
            "intervals_of": self.residual_class,
            "not_calibrated": list(self.summary.not_calibrated),
            "saturated": self.doubt.saturated if self.doubt else None,
            "depends_on": [
                {"term": t.term.text, "method": t.term.method, "share_pct": 100.0 * t.share} for t in self.depends_on
            ],
            "interval_from": [{"what": what(o), "kind": o.kind, "share_pct": 100.0 * o.share} for o in self.origins],
            "components": self.components,
            "observed_components": asdict(self.observed_components) if self.observed_components else None,
            "stages": [stage.to_json() for stage in self.stages],
            "requests": asdict(self.singles) if self.singles else None,
            "warnings": list(self.warnings),
        }


def what(origin: Origin) -> str:
    """The source of an interval, in few words."""
    if origin.constant:
        return f"constants, mostly {origin.constant}"
    if origin.dispute is None:
        return {HELD_OUT: "held out", PACE: "pace"}.get(origin.kind, "programs that fit equally well")
    part, d = origin.dispute.part, origin.dispute
    name = part.text or ("step_time without batch fields" if part.method == "step_time" else part.method)
    return f"{name} ({d.differ} of {d.members} differ)"


@dataclass(frozen=True)
class Forecasts:
    """The predictions of a program, averaged over arrival `seeds`, and its mean absolute errors in percent by latency,
    None where nothing was observed. warnings: about the program; those of each experiment have them, too. drawn: True
    if any requests differ between seeds, as those of a trace do not. deviation: that of measured runs that the program
    was not fitted on, None without any."""

    name: str
    program: Program
    data: str
    seeds: tuple[int, ...]
    experiments: tuple[Forecast, ...]
    mean_abs_error_pct: Mapping[str, float | None]
    warnings: tuple[str, ...]
    drawn: bool
    deviation: Deviation | None

    @property
    def warnings_by_id(self) -> dict[str, list[str]]:
        """The warnings of each experiment, those about the program first."""
        return {
            e.id: [*self.warnings, *(text for text in e.warnings if text not in self.warnings)]
            for e in self.experiments
        }

    def mean_abs_error_pct_by_use(self, uses: Container[str]) -> dict[str, float | None]:
        """As `mean_abs_error_pct`, over the experiments of which the program makes one of these uses."""
        errors = [e.summary.error_pct or {} for e in self.experiments if e.use in uses]
        return {name: mean_abs([of.get(f"{name}_ms", {}).get("mean") for of in errors]) for name in MEANS}

    def to_json(self) -> JsonObject:
        return {
            "engine": __version__,
            "data": self.data,
            "seeds": list(self.seeds),
            "program": unparse(self.program),
            "key": key(self.program),
            "experiments": [e.to_json() for e in self.experiments],
            "mean_abs_error_pct": self.mean_abs_error_pct,
            "mean_abs_error_pct_in_sample": self.mean_abs_error_pct_by_use([FITTED]),
            "mean_abs_error_pct_new": self.mean_abs_error_pct_by_use([NEW]),
            "deviation": fields_to_json(self.deviation) | {"text": self.deviation.sentence} if self.deviation else None,
            "warnings": list(self.warnings),
        }
