"""Records: the experiments that a program was fitted on, and its errors there, kept next to its text as JSON."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from archive.elite import Elite
from archive.proposal import Proposal
from archive.score import Errors
from evaluator.fit.uncertainty import Certainty
from evaluator.score import summarise
from evolve import __version__
from evolve.run.folder import RunFolder
from evolve.run.ranges import REMEDY, Ranges, ranges_of
from simulator.common.json import JsonObject
from simulator.common.records import fields_to_json, from_json, reader_of, record_class, stored
from simulator.serving.digests import data_hash, measurement_digest
from simulator.serving.experiment import Experiment, simulated
from simulator.serving.observations import NOT_MEASURED

# Mean absolute E2E error on the fitted runs. The roofline, with nothing fitted, is 38 % off on the shipped ones.
USELESS_PCT = 25.0
INCONSISTENT = (
    "the program contradicts a datasheet or measured kernels, so beyond the fitted runs it may predict what no GPU can "
    "do (`evolve show PROGRAM --check --physics` lists what)"
)


@record_class
class ConstantRecord:
    """The certainty of a fitted constant.

    standard_error: in the constant's unit, None if it has none. bound: the bound it is at (`low`, `high` or None).
    identified: True if the runs identify it. correlated: the correlation of its error with those of other constants,
    by `method.name`; empty in older records. data_share: share of the information that comes from the runs, not the
    prior; None in older records. held: the fit left it as it was, and the other figures are from before; False in older
    records.
    """

    standard_error: float | None = stored(lacking=None)
    bound: str | None = stored(lacking=None)
    identified: bool = stored(lacking=False)
    correlated: Mapping[str, float] = stored(default_factory=dict, limits=(-1.0, 1.0))
    data_share: float | None = stored(default=None, old=("determined",))
    held: bool = False


@record_class
class StepsRecord:
    """Measured steps that were fitted first: the split of each run, and by experiment id the digest of its steps.

    loss: of `evaluator.fit.steps`; quantile, strength and smearing are None unless the loss has them. coverage: by
    split, the share of steps that took no longer than the fit on steps predicts; empty in older records.
    """

    split: str
    runs: Mapping[str, str]
    loss: str = "relative"
    quantile: float | None = None
    strength: float | None = None
    smearing: float | None = None
    coverage: Mapping[str, float | None] = stored(default_factory=dict)


@record_class
class FoundBy:
    """The proposal that became the shipped champion, with its errors in the search, in percent."""

    proposal: int
    mean_error: float = stored(old=("joint",))
    group_out: float | None = stored(old=("transfer",), lacking=None)


@dataclass(frozen=True, slots=True)
class MeanErrors:
    """Signed errors of an experiment's means, as a record has them."""

    e2e: float | None = None
    ttft: float | None = None
    itl: float | None = None


def _errors(raw: Any) -> tuple[Errors, ...]:
    by_name = reader_of(Mapping[str, MeanErrors])(raw)
    return tuple(Errors(name, row.e2e, row.ttft, row.itl) for name, row in by_name.items())


def _errors_json(errors: Iterable[Errors]) -> JsonObject:
    return {r.experiment: {"e2e": r.e2e, "ttft": r.ttft, "itl": r.itl} for r in errors}


@record_class
class Record:
    """The fit of a program: its engine version, data hash, ISO date, experiments, and the errors there.

    key: of the program. fitted: ids of the experiments. errors: signed, in percent, of the means over arrival `seeds`.
    measured: by id, the `measurement_digest`. ranges: those of the fitted runs. The others are None or empty if
    they are unknown, as in older records, or do not apply:

    fitted_from: the program that `evolve fit` started from, or the run whose programs `evolve fit --blend` averaged;
    ranges_before: the ranges of that program, and of those that it was fitted from, the latest first; measured_before:
    as `measured`, of the experiments of their fits; constants: by `method.name`; values: those of the constants, by
    `method.name`, as the program's text was written; fitted_with: all experiments of a fit per model; simulated: ids of
    all experiments with simulated times; steps: the measured steps that were fitted first; found: of the shipped
    champion; run: path of the run that found the program; proposal: its proposal there; consistent: False if the run or
    the fit found that it contradicts a datasheet or a measured kernel. A fit of an unjudged inconsistent program leaves
    it True.
    """

    engine: str
    data: str
    key: str
    date: str
    fitted: tuple[str, ...]
    errors: tuple[Errors, ...] = stored(key="errors_pct", read=_errors, write=_errors_json)
    measured: Mapping[str, str | None] | None = stored(default=None, brief=True)
    ranges: Ranges | None = stored(default=None, brief=True)
    seeds: tuple[int, ...] = ()
    fitted_from: str | None = stored(default=None, brief=True)
    ranges_before: tuple[Ranges, ...] = stored(default=(), brief=True)
    measured_before: Mapping[str, str | None] = stored(default_factory=dict, brief=True)
    constants: Mapping[str, ConstantRecord] | None = stored(default=None, brief=True)
    values: Mapping[str, float] | None = stored(default=None, brief=True)
    fitted_with: tuple[str, ...] | None = stored(default=None, brief=True)
    simulated: tuple[str, ...] = stored(default=(), brief=True)
    steps: StepsRecord | None = stored(default=None, brief=True)
    found: FoundBy | None = stored(default=None, brief=True)
    run: str | None = stored(default=None, brief=True)
    consistent: bool = stored(default=True, brief=True, old=("sound",))
    proposal: Proposal | None = stored(default=None, hidden=True)

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
        """As `measured`, of the experiments of this fit and of the fits before it."""
        return {**self.measured_before, **(self.measured or dict.fromkeys(self.fitted))}

    @property
    def cautions(self) -> tuple[str, ...]:
        """Reasons not to rely on the program, a line each: physics, the fitted experiments, and the errors there."""
        lines = [INCONSISTENT] if not self.consistent else []
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
                f"mean E2E is {e2e:.0f} % off on the runs that it was fitted on: do not use it. Check the units, the "
                "model and the GPU of these runs, or search for another form by `evolve run --experiments FILE`"
            )
        return tuple(lines)

    def to_json(self) -> JsonObject:
        values, p = fields_to_json(self), self.proposal
        first = "engine", "data", "key", "date", "fitted", "measured", "ranges", "seeds", "errors_pct"
        values = {name: values[name] for name in first if name in values} | values
        if self.fitted_with is not None:
            values["scope"] = "per-model"
        if p:
            values["id"] = p.id
        if p and p.call:
            values |= {"call": p.call, "idea": p.idea, "reviews": [review.to_json() for review in p.reviews]}
        return values


def read_record(value: object, where: str) -> Record | None:
    """A record from the JSON value of the file `where`; None for JSON that is not a record, without `fitted`.

    Raises DamagedRecord.
    """
    if not isinstance(value, Mapping) or "fitted" not in value:
        return None
    return from_json(Record, value, where, REMEDY)


def today() -> str:
    """The date of a record that is made now (ISO, UTC)."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def record(
    key: str,
    fitted: Sequence[Experiment],
    errors: Iterable[Errors],
    seeds: Sequence[int],
    date: str,
    before: Record | None = None,
) -> Record:
    """The record of a program fitted on `fitted`, with its errors there, means of arrival `seeds`.

    before: of the program that the fit started from.
    """
    identity = __version__, data_hash(fitted), key, date, tuple(e.id for e in fitted), tuple(errors)
    measured = {e.id: measurement_digest(e) for e in fitted}
    made = Record(*identity, measured, ranges_of(fitted), tuple(seeds), simulated=tuple(simulated(fitted)))
    if before is None:
        return made
    both = tuple(dict.fromkeys((*made.simulated, *before.simulated)))
    return replace(made, ranges_before=before.all_ranges, measured_before=before.all_measured, simulated=both)


def record_of(run: RunFolder, elite: Elite, proposal: Proposal) -> Record:
    about = run.about
    identity = about.engine, about.data, elite.key, about.started, about.fitted, elite.score.rows
    seeds, simulated = tuple(run.config.score.arrival_seeds), about.simulated
    made = Record(*identity, ranges=about.ranges, seeds=seeds, simulated=simulated, run=str(run.path))
    return replace(made, proposal=proposal, consistent=elite.consistent)


def constant_records(certainties: Iterable[Certainty]) -> dict[str, ConstantRecord]:
    same = ("bound", "identified", "correlated", "data_share", "held")

    def known(c: Certainty) -> ConstantRecord:
        error = c.standard_error if math.isfinite(c.standard_error) else None
        return ConstantRecord(error, **{name: getattr(c, name) for name in same})

    return {f"{c.method}.{c.name}": known(c) for c in certainties}
