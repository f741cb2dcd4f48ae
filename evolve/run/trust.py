"""trust.json: the ensemble and the held-out residuals from which the intervals of a run's champion are made.

`evolve validate` writes it into the run's folder; that of the shipped champion is in seeds/champion. `evolve fit`
writes NAME.trust.json next to a program that it fitted from one of these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from evaluator.coverage import Coverage, JudgedFigure, judged
from evaluator.ensemble import ensemble
from evaluator.intervals import LEAST_FOLDS, STATISTICS, Disagreement, Residual
from evolve.run.beyond import TOLERANCE
from evolve.run.folder import RunFolder, shipped_run
from evolve.run.program import CHAMPION, Source
from simulator.common.documents import parse_json, read_bytes
from simulator.common.errors import LARGEST_NUMBER, InputError
from simulator.common.json import JsonObject
from simulator.common.records import fields_to_json, from_json, reader_of, record_class, stored
from simulator.language.ir import Program
from simulator.language.parse import parse

TRUST_FILE = "trust.json"
CLASSES = INSIDE, OUTSIDE, SATURATED = "inside", "outside", "saturated"
LOADS = {False: "at a rate", True: "closed load"}
REMEDY = "remove it, and validate the run or fit the program again"
MOST = 50.0  # of a logarithm of a ratio of latencies


def _programs(raw: Any) -> tuple[str, ...]:
    texts: tuple[str, ...] = reader_of(tuple[str, ...])(raw)
    for i, text in enumerate(texts):
        try:
            parse(text)
        except InputError:
            raise InputError(f"program {i} cannot be parsed") from None
    return texts


def _figures(least: float) -> Callable[[Any], dict[str, float | None]]:
    def read(raw: Any) -> dict[str, float | None]:
        figures = reader_of(Mapping[str, float | None])(raw)
        for name, x in figures.items():
            if x is not None and not least <= x <= MOST:
                raise InputError(f"{name} must be from {least:g} to {MOST:g}, got {x:g}")
        return {name: figures.get(name) for name in STATISTICS}

    return read


@record_class
class _ResidualRow:
    fold: str
    experiment: str
    log_ratio: Mapping[str, float | None] = stored(read=_figures(-MOST))
    spread: Mapping[str, float | None] = stored(read=_figures(0.0))
    closed: bool = stored(default=False, brief=True)
    cell: str = stored(default="", brief=True)


def _residuals(raw: Any) -> tuple[Residual, ...]:
    rows = reader_of(tuple[_ResidualRow, ...])(raw)
    return tuple(Residual(row.fold, row.experiment, row.log_ratio, row.spread, row.closed, row.cell) for row in rows)


@record_class
class Trust:
    """The sources of intervals.

    key: of the champion. ensemble: near-optimal programs of its run, as text. Residuals are of three classes, none of
    which says much about another: inside, of held-out runs within the fitted ranges of their fold (evolve.run.beyond);
    outside, of others; saturated, of never fitted runs in which a queue may grow. data: hash of the runs of a fit of
    program and ensemble after the residuals were measured, None without one. reach: the largest factor by which a
    held-out run was beyond each fitted range; empty in files of older releases. call: the number of the validation that
    measured the residuals; None in files of older releases.
    """

    key: str
    ensemble: tuple[str, ...] = stored(old=("committee",), read=_programs)
    inside: tuple[Residual, ...] = stored(default=(), read=_residuals, brief=True)
    outside: tuple[Residual, ...] = stored(default=(), read=_residuals, brief=True)
    saturated: tuple[Residual, ...] = stored(default=(), read=_residuals, brief=True)
    data: str | None = stored(default=None, brief=True)
    reach: Mapping[str, float] = stored(default_factory=dict, brief=True, limits=(1.0, LARGEST_NUMBER))
    call: int | None = stored(default=None, brief=True, limits=(1, LARGEST_NUMBER))

    def class_of(self, outside: bool, doubt: Disagreement) -> str:
        """The class of a run that is outside the fitted ranges or not.

        After a fit on the user's runs no run counts as inside: such a fit leaves other runs of the model as far off as
        those outside the ranges (docs/search.md). No run counts as inside if no held-out run was.
        """
        if doubt.saturated > 0.0:
            return SATURATED
        return OUTSIDE if outside or self.data or not self.inside else INSIDE

    def residuals(self, name: str, closed: bool | None = None) -> tuple[Residual, ...]:
        """Those of the class; with `closed`, those of such loads (of a fixed concurrency or not), if it has any.

        Runs of one fold err together. Where they are of fewer than LEAST_FOLDS, more count: beside those outside, those
        inside; of saturated ones, those of the other load.
        """
        of_class: tuple[Residual, ...] = getattr(self, name)
        of_load = tuple(r for r in of_class if r.closed == closed) or of_class
        few = 0 < len({r.fold for r in of_load}) < LEAST_FOLDS
        if few and name == SATURATED:
            return of_class
        if few and name == OUTSIDE:
            return (*of_load, *(r for r in self.inside if closed is None or r.closed == closed))
        return of_load

    def coverage(self) -> dict[str, dict[str, Coverage]]:
        """How intervals cover held-out runs: by class and load, then by type of weights, GPU and load."""
        rows: dict[str, dict[str, list[JudgedFigure]]] = {
            f"{c}, {load}": {} for c in CLASSES for load in LOADS.values()
        }
        for name in CLASSES:
            for r in getattr(self, name):
                load, groups = LOADS[r.closed], [r.group] if r.group and name != SATURATED else []
                for figure, row in judged(r, self.residuals(name, r.closed)).items():
                    for group in (name, *groups):
                        rows.setdefault(f"{group}, {load}", {}).setdefault(figure, []).append(row)
        return {
            label: {figure: Coverage.of(of_figure[figure]) for figure in STATISTICS if figure in of_figure}
            for label, of_figure in rows.items()
            if of_figure
        }

    @property
    def programs(self) -> list[Program]:
        return [parse(text) for text in self.ensemble]

    def to_json(self) -> JsonObject:
        values = fields_to_json(self)
        return {name: values[name] for name in ("key", "data", "call", "ensemble", "reach", *CLASSES) if name in values}

    def too_far(self, factors: Mapping[str, float]) -> dict[str, tuple[float, float]]:
        """By range, the factor of a run and that of the farthest held-out run, if the run is farther.

        `factors`: those of evolve.run.beyond. Empty for files of older releases, which lack these factors.
        """
        reach = self.reach
        return {name: (x, reach[name]) for name, x in factors.items() if name in reach and x > TOLERANCE * reach[name]}


def ensemble_of(run: RunFolder, champion: str) -> tuple[str, ...]:
    elites = ensemble(run.archive().members(), run.config.score.rule)
    return tuple(e.text for e in elites if e.key != champion)


def trust_of(source: Source) -> Trust | None:
    """The trust of a program; None if it has none. Raises InputError if the file is damaged.

    The shipped champion, champions of validated runs and programs fitted from these have one.
    """
    trust = _trust_at(_file(source.name))
    return trust if trust and _matches(trust, source) else None


def trust_in(run: Path) -> Trust | None:
    """The trust of a run's champion; None if it was not validated. Raises InputError if the file is damaged."""
    return _trust_at(run / TRUST_FILE)


def stale(source: Source) -> list[str]:
    """A line if the trust file next to a program's file is that of another program or another fit."""
    path = _file(source.name)
    if path is None or path.name == TRUST_FILE:
        return []
    trust = _trust_at(path)
    if trust is None or _matches(trust, source):
        return []
    return [f"{path} is of another program, or of another fit of this one, so there are no intervals: fit it again"]


def trust_file(program: Path) -> Path:
    """The trust file of the program in this file, such as mine.trust.json."""
    return program.with_suffix(f".{TRUST_FILE}")


def _trust_at(path: Path | None) -> Trust | None:
    if path is None or not path.is_file():
        return None
    return read_trust(read_bytes(path, kept=path.name == TRUST_FILE), str(path))


def _matches(trust: Trust, source: Source) -> bool:
    """Return True if it is of this program: the same form, fitted on the same runs."""
    record = source.record
    return record is not None and record.key == trust.key and trust.data in (None, record.data)


def _file(spec: str) -> Path | None:
    """The path that the trust file of the program `spec` would have."""
    if spec == CHAMPION:
        return shipped_run() / TRUST_FILE
    run, colon, number = spec.rpartition(":")
    if colon and re.fullmatch(r"\d+", number):
        return Path(run) / TRUST_FILE
    return trust_file(Path(spec)) if spec.endswith(".py") else None


def read_trust(text: bytes, where: str) -> Trust:
    """The contents of a trust.json. Raises InputError naming the key if it is damaged."""
    return from_json(Trust, parse_json(text, where, REMEDY), where, REMEDY)
