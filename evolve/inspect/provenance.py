"""The origin of a program: its constants, the tables of its measured kernels, and its ancestors in a search."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from archive.elite import OLD_KEYS, SEED
from archive.proposal import ancestors, is_outcome
from evaluator.fit.uncertainty import IDENTIFIED
from evolve.inspect.show import ConstantOrigin, describe
from evolve.inspect.step_shares import deployment_name
from evolve.run.folder import RunFolder, is_run, open_run, shipped_run
from evolve.run.program import CHAMPION, Source
from evolve.run.records import ConstantRecord, Record
from evolve.summary.story import generation_of
from simulator.common.errors import InputError
from simulator.common.json import JsonObject, renamed
from simulator.common.records import fields_to_json, record_class, stored, to_json
from simulator.kernels.curves import kernels
from simulator.kernels.tables import tables
from simulator.language.ir import Field, walk
from simulator.language.measure import features
from simulator.language.opcodes import formula
from simulator.schema import FIELDS, KERNELS
from simulator.serving.experiment import Experiment


@dataclass(frozen=True, slots=True)
class TimedOperation:
    """An operation of a measured kernel: `kind` is measured, interpolated, nearest shape or datasheet; `off_octaves`
    is how far the closest timed shape is, in powers of 2."""

    name: str
    kind: str
    kernel: str
    off_octaves: float


@dataclass(frozen=True, slots=True)
class KernelOrigin:
    """The operations that a kernel field adds up on a deployment, and the table that their times are from."""

    field: str
    deployment: str
    table: str
    operations: tuple[TimedOperation, ...]


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A program on the way to this one: its proposal number, generation (0: the search began with it; None: after the
    last one), operator, parents, and mean error in percent on the fitted runs."""

    id: int
    generation: int | None
    operator: str
    parents: tuple[int, ...]
    mean_error: float | None


@record_class
class Provenance:
    """The origin of a program. `record`: of its fit, None if unknown.

    lineage: the program itself, then always the first parent, down to a program that the search began with; empty
    without a search. ancestors: how many programs it descends from. sources: the source of each kernel table, by its
    file.
    """

    record: Record | None = stored(hidden=True)
    constants: tuple[ConstantOrigin, ...]
    kernels: tuple[KernelOrigin, ...]
    sources: Mapping[str, str]
    run: str | None
    lineage: tuple[Ancestor, ...]
    ancestors: int

    def to_json(self) -> JsonObject:
        about = {name: to_json(getattr(self.record, name, None)) for name in ("fitted", "date", "fitted_from")}
        return about | fields_to_json(self)


def provenance(source: Source, experiments: Sequence[Experiment]) -> Provenance:
    """The provenance of a program, with the kernel tables of these experiments' deployments.

    Raises InputError if the journal of its run is damaged.
    """
    origins = _kernels(source, experiments)
    found = _run_of(source)
    lineage, ancestors = _lineage(*found) if found else ((), 0)
    run = None
    if found:
        run = CHAMPION if found[0].shipped else str(found[0].path)
    tables_of = {k.table: _source(k.table) for k in origins}
    return Provenance(source.record, _constants(source), origins, tables_of, run, lineage, ancestors)


def _constants(source: Source) -> tuple[ConstantOrigin, ...]:
    description = describe(Source(source.name, source.text, source.complete, source.record))
    known = description.certainty or {}
    found = []
    for c in description.constants:
        name = f"{c.method}.{c.name}"
        k = known.get(name)
        kept = (k.standard_error, k.bound, k.data_share) if k else (None, None, None)
        by = _verdict(source.record, k, name in description.thresholds)
        found.append(ConstantOrigin(c.method, c.name, c.value, c.unit, *kept, by))
    return tuple(found)


def _verdict(record: Record | None, known: ConstantRecord | None, chooses: bool) -> str:
    """The origin of a constant's value. `chooses`: it is one of the description's thresholds."""
    if record is None:
        return "as written: no record of a fit"
    if known is None:
        return "fitted; how well is not known"
    if known.held:  # what is known of it is from the fit before
        return "held: not fitted" if known.standard_error is None else "held, as an earlier fit left it"
    if known.bound:
        return f"at its {'lower' if known.bound == 'low' else 'upper'} bound"
    if known.identified:
        return "the fitted runs"
    if known.standard_error is None and chooses:
        return "chosen by trial: a threshold has no slope, and so no error"
    if known.standard_error is None:
        return "the fitted runs say nothing of it"
    if known.data_share is None:
        return "NOT identified by the fitted runs"
    if known.data_share < 0.005:
        return "the prior"
    if known.data_share <= IDENTIFIED:
        return f"the fitted runs by {100.0 * known.data_share:.0f} %, the rest the prior"
    return "the fitted runs, but it is smaller than its error"


def _kernels(source: Source, experiments: Sequence[Experiment]) -> tuple[KernelOrigin, ...]:
    """The origin of every kernel field that the program reads, on each deployment once."""
    names = [name for text in features(source.complete) if (name := text.removeprefix("b.")) in KERNELS]
    deployments = {deployment_name(e): e.facts.deployed for e in experiments}
    found = []
    for name in names:
        for where, deployed in deployments.items():
            if deployed is None:
                continue
            operations = tuple(
                TimedOperation(o.name, o.timing.kind, o.timing.kernel, o.timing.off_grid)
                for o in kernels(deployed).operations
                if o.curve in _curves(name) and o.timing.us.any()
            )
            if operations:
                table = f"configs/kernels/{deployed.gpu.tables}.parquet"
                found.append(KernelOrigin(f"b.{name}", where, table, operations))
    return tuple(found)


def _curves(name: str) -> frozenset[str]:
    if curve := FIELDS["b", name].curve:
        return frozenset((curve,))
    inner = (n.name for n in walk(formula(name)) if isinstance(n, Field) and n.name in KERNELS)
    return frozenset().union(*map(_curves, inner))


def _source(table: str) -> str:
    about = tables(Path(table).stem).about
    return f"{about['source']}, {about['gpu']}, {about['license']}"


def _run_of(source: Source) -> tuple[RunFolder, int] | None:
    """The run that found the program, or the program that its constants were fitted from, and its number there."""
    record = source.record
    if record is None:
        return None
    if source.name == CHAMPION and record.found:
        return open_run(shipped_run()), record.found.proposal
    if record.run and record.proposal and is_run(Path(record.run)):
        return open_run(Path(record.run)), record.proposal.id
    run, _, number = (record.fitted_from or "").rpartition(":")
    if re.fullmatch(r"\d+", number) and is_run(Path(run)):
        return open_run(Path(run)), int(number)
    return None


def _lineage(run: RunFolder, number: int) -> tuple[tuple[Ancestor, ...], int]:
    """(the line of first parents, the number of all ancestors) of a proposal."""
    by_id = {a.id: a for a in _proposals(run)}
    if number not in by_id:
        raise InputError(f"{run.path}: has no proposal {number}, which the program's record names: restore its journal")
    line = [by_id[number]]
    while line[-1].parents:
        line.append(by_id[line[-1].parents[0]])
    return tuple(line), len(ancestors([number], {a.id: a.parents for a in by_id.values()}))


def _proposals(run: RunFolder) -> Iterator[Ancestor]:
    seeds = 0
    for line in filter(is_outcome, run.each_line()):
        seed = line["operator"].startswith(SEED)
        seeds += seed
        inside = None if line["island"] is None else generation_of(line["id"], seeds, run.config.search)
        mean_error = renamed(line["elite"], OLD_KEYS)["mean_error"] if line.get("elite") else None
        yield Ancestor(line["id"], 0 if seed else inside, line["operator"], tuple(line["parents"]), mean_error)
