"""The use of an experiment in the fits of a program: whole, in part, or not at all."""

from __future__ import annotations

from evolve.run.data import but_last, training_part
from evolve.run.records import Record
from simulator.serving.digests import measurement_digest
from simulator.serving.experiment import Experiment
from simulator.serving.splits import SHARES, TRAIN
from simulator.serving.trace import Trace

FITTED, BEFORE, NEW, UNKNOWN = "fitted", "before", "new", "-"  # as tables name it
PARTLY = "% fitted"  # how the name of a part ends


def fitted_share(record: Record | None, e: Experiment) -> float | None:
    """The share of an experiment's requests that the program was fitted on, from 0 to 1; None without a record."""
    if record is None:
        return None
    part = fitted_part(record, e)
    if part is None or part is e:
        return float(part is e)
    if isinstance(e.workload.source, Trace):
        return SHARES[TRAIN]
    requests = [s.offered for s in e.workload.stages]
    return sum(requests[:-1]) / sum(requests)


def fitted_part(record: Record, e: Experiment) -> Experiment | None:
    """The part of an experiment that the program was fitted on: `e` itself, a part of it, or None.

    The part of a trace is its training part; of other experiments, all load stages but the last. Measurements identify
    an experiment, because names may differ; its id does if the record has no digests.
    """
    if record.measured is None:
        return e if e.id in record.fitted else None
    digests = {record.measured.get(name) for name in record.fitted} - {None}
    if measurement_digest(e) in digests:
        return e
    parts = (training_part(e), but_last(e)) if digests else ()
    return next((part for part in parts if part and measurement_digest(part) in digests), None)


def fitted_by_predecessor(record: Record | None, e: Experiment) -> bool:
    """Return True if a program that this one was fitted from was fitted on the experiment.

    Its form and the constants that the fit held then depend on it.
    """
    if record is None:
        return False
    digests = {*record.measured_before.values()} - {None}
    return measurement_digest(e) in digests or (e.id in record.measured_before and record.measured_before[e.id] is None)


def known_before(record: Record | None, e: Experiment) -> bool:
    """Return True if the program, or one that it was fitted from, was fitted on the experiment or on a part of it."""
    return bool(fitted_share(record, e)) or fitted_by_predecessor(record, e)


def exactly(share: float | None) -> bool | None:
    """True if this share of an experiment is all of it, False if it is none; None for a part or an unknown share."""
    return None if share is None or 0.0 < share < 1.0 else share == 1.0


def saw(record: Record | None, e: Experiment) -> bool | None:
    """True if the program was fitted on this experiment; None if on a part of it, and without a record."""
    return exactly(fitted_share(record, e))


def use(share: float | None, before: bool = False) -> str:
    """The fitted share of an experiment in words, `-` if unknown. `before`: a predecessor was fitted on it."""
    if share is None or share in (0.0, 1.0):
        return UNKNOWN if share is None else FITTED if share else BEFORE if before else NEW
    return f"{100.0 * share:.0f} {PARTLY}"
