"""Records: what a program was fitted on and what it reached there, kept next to its text as JSON."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from archive.elite import Elite
from archive.proposal import Proposal
from evaluator.fit.uncertainty import Certainty
from evaluator.score import Errors, summarise
from evolve import __version__
from evolve.run.folder import RunFolder
from evolve.run.ranges import Ranges, ranges_of
from simulator.serving.digests import data_hash, measurement_digest
from simulator.serving.experiment import NOT_MEASURED, Experiment, simulated

# Mean absolute E2E error on the fitted runs. The roofline, with nothing fitted, is 38 % off on the shipped ones.
USELESS_PCT = 25.0
UNSOUND = (
    "the program contradicts a datasheet or measured kernels, so beyond the fitted runs it may predict what no GPU can "
    "do (`evolve check PROGRAM --physics` lists what)"
)


@dataclass(frozen=True, slots=True)
class ConstantRecord:
    """How well a fit determined a constant: its standard error in the constant's unit (None: it has none), the bound it
    is at (`low`, `high` or None), whether the runs identify it, and how its error correlates with those of other
    constants, by `method.name`; none in older records. determined: the share of what is known of it that comes from the
    runs, not the prior; None in older records. held: the fit left it as it was, and all else here is from before, as
    far as it is known; False in older records."""

    standard_error: float | None
    bound: str | None
    identified: bool
    correlated: Mapping[str, float] = field(default_factory=dict)
    determined: float | None = None
    held: bool = False


@dataclass(frozen=True, slots=True)
class StepsRecord:
    """Measured steps that were fitted first: the split of each run, and by experiment id the digest of its steps.

    loss: of `evaluator.fit.steps`; quantile, strength and smearing are None unless the loss has them. coverage: by
    split, the share of the steps that took no longer than predicted by the fit on steps; none in older records.
    """

    split: str
    runs: Mapping[str, str]
    loss: str = "relative"
    quantile: float | None = None
    strength: float | None = None
    smearing: float | None = None
    coverage: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FoundBy:
    """The proposal that became the shipped champion, with its errors in the search, in percent."""

    proposal: int
    joint: float
    transfer: float | None


@dataclass(frozen=True)
class Record:
    """What a program was fitted on, by which engine, on which data and when (ISO date), and its errors there.

    key: of the program. fitted: ids of the experiments. errors: signed, in percent, of the means over arrival `seeds`.
    measured: by id, the `measurement_digest`. ranges: what the fitted runs span. None or empty where it is not known,
    as in older records, or does not apply:

    fitted_from: the program that `evolve fit` started from, or the run whose programs `evolve blend` averaged;
    ranges_before: the ranges of that program, and of those that it was fitted from, the latest first; measured_before:
    as `measured`, of the experiments that these were fitted on; constants: by `method.name`; values: those of the
    constants, by `method.name`, as the program's text was written; fitted_with: all
    experiments of a fit per model; simulated: ids of experiments, among these and those fitted before, whose times are
    a simulation's; steps: what was fitted first; found: of the shipped champion; run: path of the run
    that the program is from; proposal: its proposal there; sound: False if the run found that it contradicts a
    datasheet or a measured kernel, or the fit, unless the program that it started from did so and nobody had judged it.
    """

    engine: str
    data: str
    key: str
    date: str
    fitted: tuple[str, ...]
    errors: tuple[Errors, ...]
    seeds: tuple[int, ...] = ()
    measured: Mapping[str, str | None] | None = None
    ranges: Ranges | None = None
    fitted_from: str | None = None
    ranges_before: tuple[Ranges, ...] = ()
    measured_before: Mapping[str, str | None] = field(default_factory=dict)
    constants: Mapping[str, ConstantRecord] | None = None
    values: Mapping[str, float] | None = None
    fitted_with: tuple[str, ...] | None = None
    simulated: tuple[str, ...] = ()
    steps: StepsRecord | None = None
    found: FoundBy | None = None
    run: str | None = None
    proposal: Proposal | None = None
    sound: bool = True

    @property
    def all_ranges(self) -> tuple[Ranges, ...]:
        """The ranges of the fitted runs, and of those that the fit started from."""
        return (*([self.ranges] if self.ranges else []), *self.ranges_before)

    @property
    def all_gpus(self) -> set[str]:
        """The GPUs of these runs; empty where older records do not say."""
        return {gpu for ranges in self.all_ranges for gpu in ranges.hardware or ()}

    @property
    def all_measured(self) -> dict[str, str | None]:
        """As `measured`, of the fitted experiments, and of those that the programs were fitted on that it was fitted
        from."""
        return {**self.measured_before, **(self.measured or dict.fromkeys(self.fitted))}

    @property
    def cautions(self) -> tuple[str, ...]:
        """Reasons not to rely on the program, a line each: what it was fitted to, and how far off it is even there."""
        lines = [UNSOUND] if not self.sound else []
        if own := [name for name in self.simulated if name in self.fitted]:
            lines.append(
                f"the constants are fitted to times of {', '.join(own)}, which {NOT_MEASURED}: they say nothing about "
                "a real engine"
            )
        if others := [name for name in self.simulated if name not in self.fitted]:
            lines.append(
                f"the last fit began with constants that were fitted to times of {', '.join(others)}, which "
                f"{NOT_MEASURED}: those that it did not decide say nothing about a real engine: fit a "
                "program of measured runs"
            )
        e2e = summarise(self.errors).e2e
        if e2e is not None and e2e > USELESS_PCT:
            lines.append(
                f"mean E2E is {e2e:.0f} % off on the very runs that the constants are fitted on: do not use it, "
                "fit all of its constants, or another form"
            )
        return tuple(lines)

    def to_json(self) -> dict[str, Any]:
        """The record as JSON values; `record_file.read_record` reads them back."""
        constants = {name: asdict(c) for name, c in self.constants.items()} if self.constants is not None else None
        values: dict[str, Any] = {
            "engine": self.engine,
            "data": self.data,
            "key": self.key,
            "date": self.date,
            "fitted": list(self.fitted),
            "measured": dict(self.measured) if self.measured is not None else None,
            "ranges": self.ranges.to_json() if self.ranges else None,
            "seeds": list(self.seeds),
            "errors_pct": {r.experiment: {"e2e": r.e2e, "ttft": r.ttft, "itl": r.itl} for r in self.errors},
            "fitted_from": self.fitted_from,
            "ranges_before": [r.to_json() for r in self.ranges_before] or None,
            "measured_before": dict(self.measured_before) or None,
            "constants": constants,
            "values": dict(self.values) if self.values is not None else None,
            "scope": None if self.fitted_with is None else "per-model",
            "fitted_with": None if self.fitted_with is None else list(self.fitted_with),
            "simulated": list(self.simulated) or None,
            "steps": asdict(self.steps) if self.steps else None,
            "found": asdict(self.found) if self.found else None,
            "run": self.run,
            "sound": None if self.sound else False,
        }
        p = self.proposal
        if p:
            values["id"] = p.id
        if p and p.call:
            values |= {"call": p.call, "idea": p.idea, "reviews": [asdict(review) for review in p.reviews]}
        return {name: value for name, value in values.items() if value is not None}


def today() -> str:
    """The date of a record that is made now (ISO, UTC)."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def record(
    key: str, fitted: Sequence[Experiment], errors: Iterable[Errors], seeds: Sequence[int], date: str,
    before: Record | None = None,
) -> Record:  # fmt: skip
    """The record of a program fitted on `fitted`, with its errors there, means of arrival `seeds`.

    before: of the program that the fit started from.
    """
    return Record(
        engine=__version__,
        data=data_hash(fitted),
        key=key,
        date=date,
        fitted=tuple(e.id for e in fitted),
        errors=tuple(errors),
        seeds=tuple(seeds),
        measured={e.id: measurement_digest(e) for e in fitted},
        ranges=ranges_of(fitted),
        ranges_before=before.all_ranges if before else (),
        measured_before=before.all_measured if before else {},
        simulated=tuple(dict.fromkeys((*simulated(fitted), *(before.simulated if before else ())))),
    )


def record_of(run: RunFolder, elite: Elite, proposal: Proposal) -> Record:
    """The record of a run's elite, made of this proposal."""
    return Record(
        engine=run.about.engine,
        data=run.about.data,
        key=elite.key,
        date=run.about.started,
        fitted=tuple(run.about.fitted),
        errors=tuple(Errors(*row) for row in elite.rows),
        seeds=tuple(run.config.score.arrival_seeds),
        ranges=run.about.ranges,
        simulated=run.about.simulated,
        run=str(run.path),
        proposal=proposal,
        sound=elite.sound,
    )


def constant_records(certainties: Iterable[Certainty]) -> dict[str, ConstantRecord]:
    """What a record keeps of each constant, by `method.name`."""
    return {
        f"{c.method}.{c.name}": ConstantRecord(
            c.standard_error if math.isfinite(c.standard_error) else None,
            c.bound,
            c.identified,
            c.correlated,
            c.determined,
            c.held,
        )
        for c in certainties
    }
