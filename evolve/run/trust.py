"""trust.json: the ensemble and the held-out residuals from which the intervals of a run's champion are made.

`evolve validate` writes it into the run's folder; that of the shipped champion is in seeds/champion. `evolve fit`
writes NAME.trust.json next to a program that it fitted from one of these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from evaluator.ensemble import ensemble
from evaluator.intervals import STATISTICS, Disagreement, Residual
from evolve.run.beyond import TOLERANCE
from evolve.run.folder import RunFolder, shipped_run
from evolve.run.program import CHAMPION, Source
from simulator.common.documents import parse_json
from simulator.common.errors import InputError, Section
from simulator.common.json import JsonObject, renamed
from simulator.language.ir import Program
from simulator.language.parse import parse

TRUST_FILE = "trust.json"
CLASSES = INSIDE, OUTSIDE, SATURATED = "inside", "outside", "saturated"
REMEDY = "remove it, and validate the run or fit the program again"
MOST = 50.0  # of a logarithm of a ratio of latencies


@dataclass(frozen=True)
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
    ensemble: tuple[str, ...]
    inside: tuple[Residual, ...] = ()
    outside: tuple[Residual, ...] = ()
    saturated: tuple[Residual, ...] = ()
    data: str | None = None
    reach: Mapping[str, float] = field(default_factory=dict)
    call: int | None = None

    def class_of(self, outside: bool, doubt: Disagreement) -> str:
        """The class of a run that is outside the fitted ranges or not.

        After a fit on the user's runs no run counts as inside: such a fit leaves other runs of the model as far off as
        those outside the ranges (docs/search.md). No run counts as inside if no held-out run was.
        """
        if doubt.saturated > 0.0:
            return SATURATED
        return OUTSIDE if outside or self.data or not self.inside else INSIDE

    def residuals(self, name: str) -> tuple[Residual, ...]:
        """The residuals of the class."""
        of_class: tuple[Residual, ...] = getattr(self, name)
        return of_class

    @property
    def programs(self) -> list[Program]:
        """The ensemble."""
        return [parse(text) for text in self.ensemble]

    def to_json(self) -> JsonObject:
        residuals = {name: [asdict(r) for r in self.residuals(name)] for name in CLASSES if self.residuals(name)}
        data = {name: value for name in ("data", "call") if (value := getattr(self, name))}
        reach = {"reach": dict(self.reach)} if self.reach else {}
        return {"key": self.key, **data, "ensemble": list(self.ensemble), **reach, **residuals}

    def too_far(self, factors: Mapping[str, float]) -> dict[str, tuple[float, float]]:
        """By range, the factor of a run and that of the farthest held-out run, if the run is farther.

        `factors`: those of evolve.run.beyond. Empty for files of older releases, which lack these factors.
        """
        reach = self.reach
        return {name: (x, reach[name]) for name, x in factors.items() if name in reach and x > TOLERANCE * reach[name]}


def ensemble_of(run: RunFolder, champion: str) -> tuple[str, ...]:
    """The texts of the run's ensemble without its champion, whose key is given."""
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
    return read_trust(path.read_bytes(), str(path)) if path is not None and path.is_file() else None


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
    value = parse_json(text, where, REMEDY)
    if not isinstance(value, dict):
        raise InputError(f"{where}: must hold an object: {REMEDY}")
    top = Section(where, "", renamed(value, {"committee": "ensemble"}))
    texts = top.required("ensemble", REMEDY)
    if not isinstance(texts, list) or not all(isinstance(t, str) for t in texts):
        raise top.error("ensemble", "must be a list of program texts", REMEDY)
    for i, text in enumerate(texts):
        try:
            parse(text)
        except InputError:
            raise top.error(f"ensemble[{i}]", "is not a program", REMEDY) from None
    data = top.text("data", REMEDY) if top.has("data") else None
    residuals = {name: _residuals(top, name) for name in CLASSES}
    call = top.whole("call", REMEDY, least=1) if top.has("call") else None
    return Trust(top.text("key", REMEDY), tuple(texts), **residuals, data=data, reach=_reach(top), call=call)


def _reach(top: Section) -> dict[str, float]:
    if not top.has("reach"):
        return {}
    reach = top.section("reach", REMEDY)
    return {name: reach.number(name, REMEDY, least=1.0) for name in reach.raw}


def _residuals(top: Section, key: str) -> tuple[Residual, ...]:
    return tuple(
        Residual(
            row.text("fold", REMEDY),
            row.text("experiment", REMEDY),
            _figures(row, "log_ratio"),
            _figures(row, "spread"),
        )
        for row in (top.sections(key, REMEDY) if top.has(key) else ())
    )


def _figures(row: Section, key: str) -> dict[str, float | None]:
    figures = row.section(key, REMEDY)
    least = 0.0 if key == "spread" else -MOST
    return {
        name: figures.number(name, REMEDY, least=least, most=MOST) if figures.has(name) else None for name in STATISTICS
    }
