"""Reads records from the JSON that is kept next to a program's text."""

from __future__ import annotations

from collections.abc import Mapping

from evaluator.score import MEANS, Errors
from evolve.run.ranges import REMEDY, read_ranges
from evolve.run.records import ConstantRecord, FoundBy, Record, StepsRecord
from simulator.common.errors import Section, shown


def read_record(value: object, where: str) -> Record | None:
    """A record from the JSON values of the file `where`; None for JSON that is not a record, without `fitted`.

    Raises InputError naming the key for a record that is incomplete or damaged.
    """
    if not isinstance(value, Mapping) or "fitted" not in value:
        return None
    top = Section(where, "", value)
    errors = top.section("errors_pct", REMEDY)
    return Record(
        engine=top.text("engine", REMEDY),
        data=top.text("data", REMEDY),
        key=top.text("key", REMEDY),
        date=top.text("date", REMEDY),
        fitted=top.names("fitted", REMEDY),
        errors=tuple(_errors(errors, name) for name in errors.raw),
        seeds=_seeds(top),
        measured=_texts(top.section("measured", REMEDY)) if top.has("measured") else None,
        ranges=read_ranges(top.section("ranges", REMEDY)) if top.has("ranges") else None,
        fitted_from=top.text("fitted_from", REMEDY) if top.has("fitted_from") else None,
        ranges_before=tuple(map(read_ranges, _sections(top, "ranges_before"))),
        measured_before=_texts(top.section("measured_before", REMEDY)) if top.has("measured_before") else {},
        constants=_constants(top.section("constants", REMEDY)) if top.has("constants") else None,
        values=_values(top.section("values", REMEDY)) if top.has("values") else None,
        fitted_with=top.names("fitted_with", REMEDY) if top.has("fitted_with") else None,
        simulated=top.names("simulated", REMEDY) if top.has("simulated") else (),
        steps=_steps(top.section("steps", REMEDY)) if top.has("steps") else None,
        found=_found(top.section("found", REMEDY)) if top.has("found") else None,
        run=top.text("run", REMEDY) if top.has("run") else None,
        sound=top.flag("sound", True),
    )


def _seeds(section: Section) -> tuple[int, ...]:
    values = section.raw.get("seeds", [])
    if not isinstance(values, list) or not all(isinstance(seed, int) for seed in values):
        raise section.error("seeds", f"must be a list of whole numbers, got {shown(values)}", REMEDY)
    return tuple(values)


def _texts(section: Section) -> dict[str, str | None]:
    return {str(name): section.text(name, REMEDY) if section.has(name) else None for name in section.raw}


def _values(section: Section) -> dict[str, float]:
    return {str(name): section.number(name, REMEDY) for name in section.raw}


def _sections(section: Section, key: str) -> tuple[Section, ...]:
    return section.sections(key, REMEDY) if section.has(key) else ()


def _number(section: Section, key: str) -> float | None:
    return section.number(key, REMEDY) if section.has(key) else None


def _errors(section: Section, name: str) -> Errors:
    row = section.section(name, REMEDY)
    return Errors(name, *(_number(row, latency) for latency in MEANS))


def _constants(section: Section) -> dict[str, ConstantRecord]:
    constants = {}
    for name in section.raw:
        row = section.section(name, REMEDY)
        bound = row.text("bound", REMEDY) if row.has("bound") else None
        others = row.section("correlated", REMEDY) if row.has("correlated") else None
        correlated = {other: others.number(other, REMEDY, least=-1, most=1) for other in others.raw} if others else {}
        identified = row.flag("identified", False)
        error, determined = _number(row, "standard_error"), _number(row, "determined")
        constants[name] = ConstantRecord(error, bound, identified, correlated, determined, row.flag("held", False))
    return constants


def _steps(section: Section) -> StepsRecord:
    runs = section.section("runs", REMEDY)
    coverage = section.section("coverage", REMEDY) if section.has("coverage") else None
    return StepsRecord(
        section.text("split", REMEDY),
        {name: runs.text(name, REMEDY) for name in runs.raw},
        section.text("loss", REMEDY) if section.has("loss") else "relative",
        _number(section, "quantile"),
        _number(section, "strength"),
        _number(section, "smearing"),
        {split: _number(coverage, split) for split in coverage.raw} if coverage else {},
    )


def _found(section: Section) -> FoundBy:
    return FoundBy(section.whole("proposal", REMEDY), section.number("joint", REMEDY), _number(section, "transfer"))
