"""What the bench says of a method: its errors in sample and held out, and whether constants of its own pay a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from evaluator.metrics import mean, mean_abs, present
from evolve.methods.bench import FIGURES, KINDS, Result
from evolve.methods.catalog import METHODS
from evolve.methods.samples import TRAIN
from evolve.methods.train import PROTOCOLS
from evolve.program.steps.figures import Figures
from simulator.json import JsonObject

WORTH_POINTS = 2.0  # of the mean E2E error, by which constants of its own must be better to be worth it to a model


@dataclass(frozen=True, slots=True)
class Summary:
    """A method by one protocol and kind of fold: errors in percent over all runs that it predicted, absolute.

    constants, times: of the largest training. cpu_s: of all trainings. cycles: of the runs that it predicted, in
    sample those of the last 20 % of each run. fitted_cycles: in sample, of the first 60 %. runs: how many it predicted,
    of how many. failures: why trainings came to nothing.
    """

    method: str
    what: str
    protocol: str
    kind: str
    constants: int
    times: int
    cpu_s: float
    e2e: float | None
    e2e_median: float | None
    e2e_worst: float | None
    ttft: float | None
    itl: float | None
    e2e_p99: float | None
    cycles_mape: float | None
    cycles_r: float | None
    fitted_cycles_mape: float | None
    fitted_cycles_r: float | None
    runs: tuple[int, int]
    failures: tuple[str, ...]

    def to_json(self) -> JsonObject:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Worth:
    """Whether constants of its own pay a model: errors of the mean E2E in percent on workloads held out, of one method
    with constants shared by all models and with those of each model."""

    shared: str
    own: str
    protocol: str
    shared_e2e: float
    own_e2e: float

    def to_json(self) -> JsonObject:
        return {**asdict(self), "justified": self.justified}

    @property
    def justified(self) -> bool:
        """Whether its own constants are better by more than WORTH_POINTS."""
        return self.shared_e2e - self.own_e2e > WORTH_POINTS


def summaries(results: Sequence[Result]) -> list[Summary]:
    """A summary of each method, protocol and kind of fold that has results."""
    known = {m.name: m for m in METHODS}
    names = [name for name in known if any(r.task.method == name for r in results)]
    rows = []
    for name in names:
        for protocol in PROTOCOLS:
            for kind in KINDS:
                key = (name, protocol, kind)
                of_kind = [r for r in results if (r.task.method, r.task.protocol, r.task.kind) == key]
                if of_kind:
                    rows.append(_summary(known[name].what, of_kind))
    return rows


def _summary(what: str, results: Sequence[Result]) -> Summary:
    task = results[0].task
    rows = [errors for r in results for errors in r.errors.values()]
    e2es = [abs(x) for x in present([row["e2e"] for row in rows])]
    means = {name: mean_abs([row[name] for row in rows]) for name in FIGURES}
    mape, r = _over([f for x in results for split, f in x.cycles.items() if split != TRAIN])
    fitted_mape, fitted_r = _over([f for x in results for split, f in x.cycles.items() if split == TRAIN])
    wanted = sum(len(x.task.predicted) for x in results)
    return Summary(
        task.method, what, task.protocol, task.kind, max(x.constants for x in results), max(x.times for x in results),
        sum(x.cpu_s for x in results), means["e2e"], median(e2es) if e2es else None, max(e2es, default=None),
        means["ttft"], means["itl"], means["e2e_p99"], mape, r, fitted_mape, fitted_r, (len(rows), wanted),
        tuple(dict.fromkeys(x.failure for x in results if x.failure)),
    )  # fmt: skip


def _over(figures: Sequence[Figures]) -> tuple[float | None, float | None]:
    """(MAPE in percent, r) of the cycles of several trainings; r is the mean over them."""
    measured = [f for f in figures if f.mape_pct is not None]
    if not measured:
        return None, None
    steps = sum(f.steps for f in measured)
    mape = sum(f.steps * (f.mape_pct or 0.0) for f in measured) / steps
    return mape, mean([f.pearson_r for f in measured])


def worth(rows: Sequence[Summary]) -> list[Worth]:
    """For each method that is also on the bench with constants of each model, whether these pay."""
    e2e = {(row.method, row.protocol): row.e2e for row in rows if row.kind == "workloads"}
    verdicts = []
    for method in METHODS:
        alike = [m for m in METHODS if (m.program, m.own, m.per_model) == (method.program, method.own, False)]
        if not method.per_model or not alike:
            continue
        (shared,) = alike
        for protocol in PROTOCOLS:
            theirs, own = e2e.get((shared.name, protocol)), e2e.get((method.name, protocol))
            if theirs is not None and own is not None:
                verdicts.append(Worth(shared.name, method.name, protocol, theirs, own))
    return verdicts
