"""trust.json: what the intervals of a run's champion are made of, its committee and its held-out residuals.

`evolve validate` writes it into the run's folder; that of the shipped champion is in seeds/champion.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from evaluator.committee import committee
from evaluator.intervals import STATISTICS, Disagreement, Residual
from evolve.run.folder import Run
from evolve.run.program import CHAMPION, Source
from simulator.documents import parse_json
from simulator.errors import InputError, Section
from simulator.json import JsonObject
from simulator.language.ir import Program
from simulator.language.parse import parse

TRUST_FILE = "trust.json"
CLASSES = INSIDE, OUTSIDE, SATURATED = "inside", "outside", "saturated"
REMEDY = "remove it, and validate the run again"
MOST = 50.0  # of a logarithm of a ratio of latencies


@dataclass(frozen=True)
class Trust:
    """What intervals are made of.

    key: of the champion. committee: near-optimal programs of its run, as text. Residuals are of three classes, none of
    which says much of another: inside, of held-out runs within the ranges of what their fold fitted
    (evolve.run.ranges); outside, of others; saturated, of never fitted runs in which a queue may grow.
    """

    key: str
    committee: tuple[str, ...]
    inside: tuple[Residual, ...] = ()
    outside: tuple[Residual, ...] = ()
    saturated: tuple[Residual, ...] = ()

    def class_of(self, outside: bool, doubt: Disagreement) -> str:
        """The class of a run that is outside the fitted ranges or not."""
        return SATURATED if doubt.saturated > 0.0 else OUTSIDE if outside else INSIDE

    def residuals(self, name: str) -> tuple[Residual, ...]:
        """The residuals of the class."""
        of_class: tuple[Residual, ...] = getattr(self, name)
        return of_class

    @property
    def programs(self) -> list[Program]:
        """The committee."""
        return [parse(text) for text in self.committee]

    def to_json(self) -> JsonObject:
        residuals = {name: [asdict(r) for r in self.residuals(name)] for name in CLASSES if self.residuals(name)}
        return {"key": self.key, "committee": list(self.committee), **residuals}


def committee_of(run: Run, champion: str) -> tuple[str, ...]:
    """The texts of the run's committee without its champion, whose key is given."""
    elites = committee(run.archive().members(), run.config.score.rule)
    return tuple(e.text for e in elites if e.key != champion)


def trust_of(source: Source) -> Trust | None:
    """What the intervals of a program are made of: of the shipped champion or that of a validated run, else None.

    Raises InputError if the file is damaged.
    """
    found = _file(source.name)
    if found is None or not found.is_file():
        return None
    trust = read_trust(found.read_bytes(), str(found))
    return trust if source.record and source.record.key == trust.key else None


def _file(spec: str) -> Path | Traversable | None:
    """Where the file of the program `spec` would be."""
    if spec == CHAMPION:
        return resources.files("seeds") / "champion" / TRUST_FILE
    run, colon, number = spec.rpartition(":")
    return Path(run) / TRUST_FILE if colon and re.fullmatch(r"\d+", number) else None


def read_trust(text: bytes, where: str) -> Trust:
    """The contents of a trust.json. Raises InputError naming the key if it is damaged."""
    value = parse_json(text, where, REMEDY)
    if not isinstance(value, dict):
        raise InputError(f"{where}: must hold an object: {REMEDY}")
    top = Section(where, "", value)
    texts = top.required("committee", REMEDY)
    if not isinstance(texts, list) or not all(isinstance(t, str) for t in texts):
        raise top.error("committee", "must be a list of program texts", REMEDY)
    for i, text in enumerate(texts):
        try:
            parse(text)
        except InputError:
            raise top.error(f"committee[{i}]", "is not a program", REMEDY) from None
    return Trust(top.text("key", REMEDY), tuple(texts), *(_residuals(top, name) for name in CLASSES))


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
