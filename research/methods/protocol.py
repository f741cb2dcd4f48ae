"""The protocol of the board: splits, hypotheses, and when a method is not worth a replay. Read from configs once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import Any

from simulator.common.documents import parse_yaml
from simulator.common.errors import InputError, Section, shown
from simulator.common.json import JsonObject
from simulator.serving.splits import SHARES, SPLITS

NAME = "leaderboard.yaml"
REMEDY = "restore the file from the package"
HELD_OUT = ("models", "workloads", "architectures", "hardware")


@dataclass(frozen=True, slots=True)
class H1:
    """Features against raw counts. alpha: of the test; points: of the mean error, percent; strengths: of the ridge."""

    alpha: float
    points: float
    strengths: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class H2:
    """Limits of the mean absolute errors of mean latencies, in percent."""

    e2e: float
    ttft: float
    itl: float

    def holds(self, errors: Mapping[str, float | None]) -> bool:
        """True if each error in percent is known and within its limit."""
        pairs = [(errors[name], limit) for name, limit in asdict(self).items()]
        return all(error is not None and abs(error) < limit for error, limit in pairs)


@dataclass(frozen=True, slots=True)
class H3:
    """The limit of the mean absolute E2E error of runs that were left out, in percent, for each of `kinds`."""

    e2e: float
    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShortCircuit:
    """The error of single steps in percent beyond which a method has no h2 and h3."""

    mape: float
    reference: str
    points: float

    def limit(self, reference_mape: float | None) -> float:
        """The larger of the fixed limit and that of the reference plus its points; the fixed one where the reference
        has no error."""
        return self.mape if reference_mape is None else max(self.mape, reference_mape + self.points)


@dataclass(frozen=True, slots=True)
class Protocol:
    """All that the board's figures and verdicts depend on besides methods and data. splits: shares of a run's sampled
    steps. bootstrap_seed: of the intervals."""

    splits: Mapping[str, float]
    h1: H1
    h2: H2
    h3: H3
    short_circuit: ShortCircuit
    bootstrap_seed: int

    def to_json(self) -> JsonObject:
        return {**asdict(self), "digest": self.digest}

    @property
    def digest(self) -> str:
        """16 hex digits that change with any value, not with the comments of the file."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def protocol() -> Protocol:
    """The shipped protocol. Raises InputError if its file is damaged."""
    where = f"configs/{NAME}"
    data = resources.files("configs").joinpath(NAME).read_bytes()
    return read_protocol(parse_yaml(data, where, REMEDY), where)


def read_protocol(raw: Any, where: str) -> Protocol:
    """The protocol in the value of a YAML file. Raises InputError, naming the key, for anything wrong in it."""
    if not isinstance(raw, dict):
        raise InputError(f"{where}: must hold a mapping: {REMEDY}")
    top = Section(where, "", raw)
    top.only(("splits", "h1", "h2", "h3", "short_circuit", "bootstrap"))
    h1, h3 = top.section("h1", REMEDY), top.section("h3", REMEDY)
    short = top.section("short_circuit", REMEDY)
    return Protocol(
        _splits(top.section("splits", REMEDY)),
        H1(_share(h1, "alpha"), _percent(h1, "points"), tuple(_strength(h1, x) for x in _listed(h1, "strengths"))),
        H2(**{name: _percent(top.section("h2", REMEDY), name) for name in ("e2e", "ttft", "itl")}),
        H3(_percent(h3, "e2e"), tuple(_kind(h3, x) for x in _listed(h3, "kinds"))),
        ShortCircuit(_percent(short, "mape"), short.text("reference", REMEDY), _percent(short, "points")),
        top.section("bootstrap", REMEDY).whole("seed", REMEDY),
    )


def _splits(section: Section) -> dict[str, float]:
    """The shares. The step tables are split by `evolve ingest`, so there is one choice only."""
    shares = {name: _share(section, name) for name in SPLITS}
    for name, share in shares.items():
        if share != SHARES[name]:
            raise section.error(name, f"must be {SHARES[name]:g}, as steps are split", REMEDY)
    return shares


def _share(section: Section, key: str) -> float:
    return section.number(key, REMEDY, least=0.0, most=1.0)


def _percent(section: Section, key: str) -> float:
    return section.number(key, REMEDY, least=0.0, most=1000.0)


def _listed(section: Section, key: str) -> list[Any]:
    value = section.required(key, REMEDY)
    if not isinstance(value, list) or not value:
        raise section.error(key, f"must be a list, got {shown(value)}", REMEDY)
    return value


def _strength(section: Section, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0.0:
        raise section.error("strengths", f"must be numbers above 0, got {shown(value)}", REMEDY)
    return float(value)


def _kind(section: Section, value: Any) -> str:
    if value not in HELD_OUT:
        raise section.error("kinds", f"must be of {', '.join(HELD_OUT)}, got {shown(value)}", REMEDY)
    return str(value)
