"""The entries of the board: methods, baselines, the shipped champion, users' programs, and published errors."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from evaluator import baselines
from evaluator.intervals import FIGURES
from evolve.run.folder import is_run
from evolve.run.program import CHAMPION, Source, load
from evolve.run.trust import INSIDE, OUTSIDE, SATURATED, trust_of
from evolve.summary.searched import searched
from research.methods.catalog import METHODS, OURS_WORDS, Method
from simulator.common.errors import InputError
from simulator.language.measure import Caps
from simulator.language.opcodes import assemble
from simulator.schema import RECORDED
from simulator.serving.bundled import published_errors
from simulator.serving.digests import data_hash, measurement_digest
from simulator.serving.experiment import Experiment

# How constants are found: by the method's authors, by our fit, by our fit of a form that was chosen with these runs in
# sight, by the search that found the form, or not at all; and what others published.
OWN, OURS, REFIT, SEARCH, NONE, PUBLISHED = "own", "ours", "hindsight", "search", "none", "published"
Group = Literal["method", "baseline", "champion", "yours", "published"]
HINDSIGHT = "form chosen with these runs in sight"
ELSEWHERE = "form chosen on other runs"
NESTED = "form and constants chosen without the held-out runs, by a search in every fold"
Errors = Mapping[str, float | None]  # of FIGURES, signed, in percent; published ones are absolute


@dataclass(frozen=True)
class Entry:
    """An entry that is trained and judged.

    method: of the catalog. source: the program of the champion or of a user. note: on the origin of its form.
    protocols: all but PUBLISHED.
    """

    name: str
    group: Group
    what: str
    protocols: tuple[str, ...]
    idea: str = ""
    citations: tuple[str, ...] = ()
    method: Method | None = None
    source: Source | None = None
    note: str = ""

    def algorithm(self, protocol: str) -> str:
        """How its constants are found, in words."""
        words = {OURS: OURS_WORDS, REFIT: OURS_WORDS, NONE: "nothing is fitted", SEARCH: f"search; {OURS_WORDS}"}
        if self.method is not None and (protocol == OWN or self.method.needs_extra):
            return self.method.training + (", scale and delays by our fit" if protocol == OURS else "")
        return words[protocol]


def shipped_methods() -> list[Entry]:
    """The methods of the original exercise. Those of one form have one training by our protocol, that of the first."""
    first: dict[tuple[str, bool], str] = {}
    entries = []
    for m in METHODS:
        mine = first.setdefault((m.form, m.per_model), m.name) == m.name
        protocols = (OWN, OURS) if mine else (OWN,)
        family = m.family
        entries.append(Entry(m.name, "method", m.what, protocols, family.idea, family.citations, method=m))
    return entries


def baseline_entries() -> list[Entry]:
    """The baselines that the board can judge: they read only fields of recorded steps.

    The host's trained-physics form reads whole prompt lengths, which recorded steps lack.
    """
    return [
        Entry(name, "baseline", a.what, (NONE if name in baselines.UNFITTED else OURS,), "", a.citations)
        for name, a in baselines.BASELINES.items()
        if not assemble(baselines.form(name)).uses - {*RECORDED}
    ]


def champion(experiments: Sequence[Experiment]) -> Entry:
    """The shipped champion: as its search found it if it was searched on these runs, and its form fitted again."""
    return _of_source(load(CHAMPION), "champion", "the shipped program", experiments)


def added(spec: str, caps: Caps, experiments: Sequence[Experiment]) -> Entry:
    """A user's program, or the champion of a run. Raises InputError if it is neither."""
    source = searched(Path(spec)).source if is_run(Path(spec)) else load(spec, caps)
    return replace(_of_source(source, "yours", "added", experiments), name=board_name(source.name))


def board_name(name: str) -> str:
    """The board's name of an added program: the stem of a file, or a run's folder and the program's number.

    >>> board_name("drafts/mine.py"), board_name("runs/0003:412"), board_name("jams")
    ('mine', '0003-412', 'jams')
    """
    run, colon, number = name.rpartition(":")
    if colon and number.isdecimal():
        return f"{Path(run).resolve().name}-{number}"
    return Path(name).stem


def _of_source(source: Source, group: Group, what: str, experiments: Sequence[Experiment]) -> Entry:
    note = origin(source, experiments)
    fitted = OURS if note == ELSEWHERE else REFIT
    protocols = (SEARCH, fitted) if nested(source, experiments) else (fitted,)
    return Entry(source.name, group, what, protocols, source=source, note=note)


def origin(source: Source, experiments: Sequence[Experiment]) -> str:
    """HINDSIGHT if the program's form was chosen with these runs in sight.

    ELSEWHERE if its record names other runs only, and it is not a refit of an earlier program.
    """
    record = source.record
    if record is None:
        return f"{HINDSIGHT}, as far as is known: it has no record"
    theirs = set(record.fitted) | {m for m in (record.measured or {}).values() if m}
    seen = [e.id for e in experiments if e.id in theirs or measurement_digest(e) in theirs]
    return HINDSIGHT if seen or record.fitted_from else ELSEWHERE


def nested(source: Source, experiments: Sequence[Experiment]) -> dict[str, dict[str, Errors]]:
    """The held-out errors of these runs by kind of fold and run, where the program's search was repeated in every fold;
    empty if it was not, or on other runs."""
    trust = trust_of(source)
    if trust is None or trust.data is not None or source.record is None:
        return {}
    if source.record.data != data_hash(experiments):
        return {}
    errors: dict[str, dict[str, Errors]] = {}
    for name in (INSIDE, OUTSIDE, SATURATED):
        for row in trust.residuals(name):
            if row.held_out:
                errors.setdefault(row.kind, {})[row.experiment] = {f: row.error_pct(f) for f in FIGURES}
    return errors


@dataclass(frozen=True)
class Published:
    """The published absolute errors of a system, by run."""

    name: str
    source: str
    errors: Mapping[str, Errors]


def published(experiments: Sequence[Experiment]) -> list[Published]:
    """The published errors of these runs. Their ITL errors refer to the load generator's ITL, half the true one."""
    ids = {e.id for e in experiments}
    systems: dict[str, tuple[dict[str, None], dict[str, dict[str, float | None]]]] = {}
    for row in published_errors():
        if row.experiment in ids:
            sources, errors = systems.setdefault(row.system, ({}, {}))
            sources[row.source] = None
            errors.setdefault(row.experiment, dict.fromkeys(FIGURES))[row.metric] = row.abs_error_pct
    return [Published(name, "; ".join(sources), errors) for name, (sources, errors) in systems.items()]


def without_extra(entries: Sequence[Entry]) -> list[str]:
    """Names of the entries that need an extra which is not installed."""
    if importlib.util.find_spec("sklearn") is not None:
        return []
    return [e.name for e in entries if e.method is not None and e.method.needs_extra]


def checked(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """The entries. Raises InputError if two have one name."""
    names = [e.name for e in entries]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"--add {name}: is on the board already. Leave it out, or copy it to another name.")
    return tuple(entries)
